"""Run folders in which one record or index is the input, given to every command that reads it.

The folder is a finished run of the real program. Where a digest protects a
record, it is computed anew for the input: an attacker can do so too.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

import fwconvert
from fwconvert import records
from fwconvert.errors import FwconvertError
from fwconvert.inspection import show, status, trace, verify, verify_shard
from fwconvert.recipes import Recipe, Rules
from fwconvert.run import export, resume
from fwconvert.run.events import SilentObserver, StopSwitch
from fwconvert.run.inputs import LocalFiles
from fwconvert.run.state import RunState
from fwconvert.run.tracker import Tracker
from fwconvert.shards.shard import header
from fwconvert.sources import catalog
from fwconvert.sources.demo import Corpus
from fwconvert.store import layout, receipts, run_manifest, saved_recipe, sessions
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import JoinReceipt, Quarantined, Receipt, ShardLine, Sidecar
from fwconvert.tokens import registry

_RUN = Path(__file__).resolve().parents[3] / "tests" / "hostile" / "run"
# Of the orders of a join, batches of a loader, shards of a manifest: more find nothing new.
_SOME = 4


class _Attempts:
    """Several readers of one input, each of which may refuse it; any, or all, must not."""

    def __init__(self) -> None:
        self._last: FwconvertError | None = None
        self._has_read = False

    def attempt(self, read: Callable[[], object]) -> None:
        try:
            read()
            self._has_read = True
        except FwconvertError as error:
            self._last = error

    def raise_if_any_refused(self) -> None:
        if self._last is not None:
            raise self._last

    def raise_if_none_read(self) -> None:
        if not self._has_read:
            self.raise_if_any_refused()


def _copy(scratch: Path) -> LocalStore:
    shutil.copytree(_RUN, scratch, dirs_exist_ok=True)
    return LocalStore(scratch / "out")


def source_manifest(scratch: Path) -> Callable[[bytes], object]:
    """Return what reads a source manifest, and makes a recipe of it."""
    path, folder = scratch / "manifest.json", _copy(scratch)
    rules = saved_recipe.read_plan(folder).rules

    def read(data: bytes) -> object:
        path.write_bytes(data)
        found = catalog.find(str(path))
        catalog.locate(found, scratch)
        return Recipe(found, rules).ids

    return read


def run_manifest_file(scratch: Path) -> Callable[[bytes], object]:
    """Return what reads a run manifest in every way there is."""
    folder = _copy(scratch)

    def read(data: bytes) -> object:
        folder.local(layout.MANIFEST).write_bytes(data)
        found = run_manifest.read(folder)
        with suppress(FwconvertError):
            found = msgspec.structs.replace(found, recipe_id=found.recipe().recipe_id)
            folder.local(layout.MANIFEST).write_bytes(records.lines(records.fields(found)))
        attempts = _Attempts()
        attempts.attempt(lambda: status.status(folder.root))
        _read_run(folder, found.shards[:_SOME], attempts)
        attempts.raise_if_any_refused()
        return None

    return read


def _read_run(folder: LocalStore, lines: Sequence[ShardLine], attempts: _Attempts) -> None:
    out, sources = folder.root, folder.root.parent / "sources"
    attempts.attempt(lambda: verify.verify(out, threads=1))
    attempts.attempt(lambda: export.Export(out, export.Changes()))
    attempts.attempt(lambda: show.numbered(out, 1))
    for line in lines:
        attempts.attempt(lambda line=line: show.documents(out, line.name, _SOME))  # type: ignore[misc]
        # The sources are named: otherwise it would ask the hub. One token, as each is read in a new process.
        attempts.attempt(lambda at=f"{line.name}:{line.tokens // 2}": trace.trace(out, at, sources))  # type: ignore[misc]
    for order in ("sequential", "documents"):
        attempts.attempt(lambda order=order: _served(out, order))  # type: ignore[misc]


def _served(out: Path, order: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About shards shorter than a window.
        return [*islice(fwconvert.Loader(out, seq_len=16, batch=1, order=order, partial=True), _SOME)]


def plan(scratch: Path) -> Callable[[bytes], object]:
    """Return what reads a plan, in a run without receipts: with them, the plan is made again."""
    folder, known = _copy(scratch), None
    known = saved_recipe.read_plan(folder)
    shutil.rmtree(folder.local(layout.RECEIPTS))

    def read(data: bytes) -> object:
        with suppress(FwconvertError):
            saved = records.decode(data, saved_recipe.SavedPlan, "plan")
            data = records.encode(msgspec.structs.replace(saved, recipe_id=saved.recipe.recipe_id))
        folder.local(layout.PLAN).write_bytes(data)
        attempts = _Attempts()
        for reader in (saved_recipe.read_plan, lambda at: status.status(at.root), saved_recipe.has_plan):
            attempts.attempt(lambda reader=reader: reader(folder))  # type: ignore[misc]
        attempts.attempt(lambda: saved_recipe.adopt(folder, known))
        attempts.attempt(lambda: saved_recipe.known_sources(folder, known))
        attempts.raise_if_any_refused()
        return None

    return read


def job_receipt(scratch: Path) -> Callable[[bytes], object]:
    """Return what resumes a run in which a job's receipt is the input; its tails are not joined yet."""
    folder = _copy(scratch)
    shutil.copytree(scratch / "tails", folder.local(layout.TAILS))
    shutil.rmtree(folder.local(layout.JOINS))
    return _resumed(folder, min(folder.local(layout.RECEIPTS).iterdir()), Receipt)


def join_receipt(scratch: Path) -> Callable[[bytes], object]:
    """Return what resumes a run in which the receipt of a joined shard is the input."""
    folder = _copy(scratch)
    return _resumed(folder, min(folder.local(layout.JOINS).iterdir()), JoinReceipt)


def _resumed(folder: LocalStore, path: Path, kind: type[Receipt | JoinReceipt]) -> Callable[[bytes], object]:
    recipe, current = saved_recipe.read_plan(folder), sessions.new()
    name = path.relative_to(folder.root).as_posix()

    def read(data: bytes) -> object:
        path.write_bytes(data)
        with suppress(FwconvertError):
            made = msgspec.structs.replace(records.decode(data, kind, "receipt"), recipe_id=recipe.recipe_id)
            path.write_bytes(receipts.encode(made))
        attempts = _Attempts()
        attempts.attempt(lambda: receipts.read(folder, name, kind, recipe.recipe_id))  # type: ignore[type-var]
        attempts.attempt(lambda: status.status(folder.root))
        attempts.attempt(lambda: verify.verify(folder.root, threads=1))
        attempts.attempt(lambda: _begin_session(folder, recipe, current))
        attempts.raise_if_any_refused()
        return None

    return read


def _begin_session(folder: LocalStore, recipe: Recipe, current: sessions.Session) -> object:
    """Find what is done of a run and what is left to join, as a session does; nothing is made."""
    state = RunState(recipe, current.id, resume.find_done(folder, recipe))
    inputs = LocalFiles(recipe.source, folder.root.parent / "sources")
    tracker = Tracker(folder, state, inputs, SilentObserver(), StopSwitch())
    if state.missing:
        return tracker.manifest()
    return state.misfits, state.unjoined[:_SOME], tracker.manifest(complete=state.is_complete)


def small_records(scratch: Path) -> Callable[[bytes], object]:
    """Return what reads the input as each of the small records."""
    folder = _copy(scratch)
    folder.prepare()
    job = min(folder.local(layout.RECEIPTS).iterdir()).name
    loader = fwconvert.Loader(folder.root, seq_len=16, batch=1)

    def read(data: bytes) -> object:
        at = folder.local(layout.SESSIONS) / "20240101T000000Z-000000.json"
        for path in (
            at,
            folder.local(layout.QUARANTINE) / job,
            folder.local(layout.PLACES),
            folder.local(layout.PRIVATE) / "lock",
        ):
            path.write_bytes(data)
        attempts = _Attempts()
        for kind in (sessions.Session, Quarantined, saved_recipe.Places, Corpus):
            attempts.attempt(lambda kind=kind: records.decode(data, kind, "record"))  # type: ignore[misc]
        attempts.attempt(lambda: loader.resume(_mapping(data)))
        for reader in (
            sessions.all_of,
            saved_recipe.read_source_root,
            lambda at: at.holder(),
            lambda at: status.status(at.root),
        ):
            reader(folder)  # These never refuse: they ignore what they cannot read.
        attempts.raise_if_none_read()
        return None

    return read


def _mapping(data: bytes) -> Mapping[str, Any]:
    """Return the loader state of a checkpoint."""
    with suppress(ValueError, RecursionError):
        found = json.loads(data)
        return found if isinstance(found, dict) else {}
    return {}


def document_index(scratch: Path) -> Callable[[bytes], object]:
    """Return what reads the input as a document index that agrees with the manifest."""
    folder = _copy(scratch)
    good = run_manifest.read(folder)
    line = good.shards[-2]  # The joined one: of several sources.

    def read(data: bytes) -> object:
        folder.local(layout.index(line.name)).write_bytes(data)
        entries = len(data) // good.rules.shard_format.index_entry_bytes
        told = msgspec.structs.replace(line, documents=entries, index_sha256=hashlib.sha256(data).hexdigest())
        lines = tuple(told if one is line else one for one in good.shards)
        found = msgspec.structs.replace(good, shards=lines)
        folder.local(layout.MANIFEST).write_bytes(records.lines(records.fields(found)))
        attempts = _Attempts()
        _read_run(folder, [told], attempts)
        attempts.raise_if_any_refused()
        return None

    return read


def sidecars(scratch: Path) -> Callable[[bytes], object]:
    """Return what verifies a shard whose side files, for Megatron-LM and datatrove, are the input."""
    folder = LocalStore(scratch)
    folder.prepare()
    known = registry.find("bytes")
    tokens, starts = [104, 105, 256] * 4, [0, 3, 6, 9]
    body = b"".join(token.to_bytes(2, "little") for token in tokens)
    index = b"".join(
        start.to_bytes(4, "little") + row.to_bytes(4, "little") for row, start in enumerate(starts)
    )

    def read(data: bytes) -> object:
        for kind in ("megatron", "datatrove"):
            rules = Rules(
                "bytes", known.sha256, "after", "uint16", "text", 12, 0, "independent", kind, "a", 3
            )
            name = f"a_train_00000_000{rules.shard_format.suffix}"
            content = header("uint16", len(tokens), rules.shard_format) + body
            folder.local(name).write_bytes(content)
            folder.local(layout.index(name)).write_bytes(index)
            beside = []
            for suffix in rules.shard_format.sidecars:
                one = name.removesuffix(rules.shard_format.suffix) + suffix
                folder.local(one).write_bytes(data)
                beside.append(Sidecar(one, len(data), _sha256(data)))
            line = ShardLine(
                name, "train", len(tokens), len(starts), len(content), _sha256(content), _sha256(index),
                ((0, 0),), tuple(beside),
            )  # fmt: skip
            verify_shard.audit(folder, rules, known, line, [0])
        return None

    return read


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
