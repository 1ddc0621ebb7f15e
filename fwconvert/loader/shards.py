"""Which token shards a loader serves: a run's, by its manifest, or others, which `foreign` finds by name.

All of them are looked at before the first token is served, so that a missing or
damaged shard is found now and not in three days.

A run can be served while it is being made. Which of its shards are ready then
is decided here, and how long to wait for more: as long as more may come. A
session that has ended does not notify waiting loaders, so they look at the
run's lock. They give up only if it shows that no session is working on the run,
which the lock of another machine, or a file system without locks, cannot show.
A run that has not been started yet is waited for, too; but its path may be
wrong, so there is a warning.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fwconvert import records
from fwconvert.errors import ManifestError, NotReady, ShardError, UsageError, message
from fwconvert.formats import LLMC, PARQUET, ZIPPED, Format
from fwconvert.loader import foreign
from fwconvert.loader.files import Claims, TokenFile, look
from fwconvert.loader.remote import RemoteFile
from fwconvert.recipes import Rules, TokenType, is_safe
from fwconvert.shards.shard import numpy_type
from fwconvert.store import base, layout, run_manifest, sessions
from fwconvert.store.base import Store
from fwconvert.store.layout import Split
from fwconvert.store.local import open_store
from fwconvert.store.receipts import ShardLine
from fwconvert.store.run_manifest import RunManifest

# Linux allows a process 65,530 mapped files; a shard and its index are two.
_MOST_MAPPED = 16_384
# A shard of 100M tokens is 200 MB unpacked.
_MOST_UNPACKED = 4
# Enough to run the command again by hand, or for a scheduler to do so.
_DESERTED_SECONDS = 60.0
# Enough for a converter that was started together with us to make its folder.
_SILENT_SECONDS = 10.0


@dataclass(frozen=True)
class Selection:
    """Which token shards to serve."""

    path: str | Path
    split: Split = "train"
    # The type of the tokens in headerless files whose names do not show that they are.
    raw: TokenType | None = None
    # Whether to accept an unfinished run: what it has now, or what it is still making.
    partial: bool = False
    follow: bool = False
    # How much disk copies of shards in an object store may take.
    cache_bytes: int = 0

    @property
    def store(self) -> Store:
        """The store, should it be a run's."""
        return open_store(self.path)

    @property
    def is_run(self) -> bool:
        """Whether it is a run's folder. One that is to be followed may have no run manifest yet."""
        return has_manifest(self.store) or (self.follow and has_begun(self.store))


@dataclass(frozen=True)
class Shards:
    """The token shards of one split in the order of their names."""

    token_type: TokenType
    files: tuple[TokenFile, ...]
    # Whether no more will come.
    complete: bool
    # Identifies this set of shards.
    fingerprint: str
    # The rest is known of a run's shards alone. Their lines in the run manifest, and their format:
    lines: tuple[ShardLine, ...] = ()
    shard_format: Format = LLMC
    # Of a run that is whole, or will be: its recipe, which decides all its shards.
    recipe_id: str = ""
    # Of a run in a remote store: how much disk copies of its shards may take.
    cache_bytes: int | None = None

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return sum(file.tokens for file in self.files)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a token."""
        return numpy_type(self.token_type)

    @property
    def most_open(self) -> int:
        """How many of them may be open at a time."""
        most = _MOST_UNPACKED if self._compressed else _MOST_MAPPED
        if self.cache_bytes is None:
            return most
        largest = max((file.bytes for file in self.files), default=1)
        return max(1, min(most, self.cache_bytes // largest))

    def are_ranged(self, *, in_sequence: bool) -> bool:
        """Return whether windows are asked for one by one: copies of all shards would take too much disk."""
        if self.cache_bytes is None or in_sequence or self._compressed:
            return False
        return sum(file.bytes for file in self.files) > self.cache_bytes

    def check_any_order(self) -> None:
        """Raise UsageError if any order but the sequential would unpack a shard for every other window."""
        if not self._compressed or len(self.files) <= _MOST_UNPACKED:
            return
        folder = self.files[0].path.parent
        is_table = self.shard_format.is_table
        choice, packed = ("--format llmc", "parquet") if is_table else ("--compress none", "compressed")
        export = f"fwconvert export {folder} {choice} -o NEW, and serve NEW; or"
        raise UsageError(
            message(
                f"this many {packed} token shards can only be served in sequence",
                *([export] if self.lines else []),
                *(
                    []
                    if is_table
                    else ["unpack them where they are (zstd -d *.zst): plain files are preferred; or"]
                ),
                "order='sequential'",
                folder=folder,
                shards=f"{len(self.files):,}, of which {packed} {self._compressed:,}",
                most=f"{_MOST_UNPACKED}, because each is unpacked whole into memory",
            )
        )

    @property
    def _compressed(self) -> int:
        return sum(file.path.suffix in (ZIPPED, PARQUET.suffix) for file in self.files)


def has_manifest(store: Store) -> bool:
    """Return whether a run has a run manifest."""
    return base.exists(store, layout.MANIFEST) if store.is_remote else store.local(layout.MANIFEST).is_file()


def has_begun(store: Store) -> bool:
    """Return whether a run has been started there."""
    if store.is_remote:
        return has_manifest(store) or base.exists(store, layout.PLAN)
    return has_manifest(store) or store.local(layout.PRIVATE).is_dir()


def find(selection: Selection) -> Shards:
    """Return the shards, each looked at; raise UsageError if there are none, ShardError if one is wrong."""
    if selection.is_run or selection.store.is_remote:  # Elsewhere only a run's manifest says what there is.
        return of_run(selection)
    claims = Claims(raw=selection.raw)
    files = tuple(look(path, claims) for path in foreign.shard_paths(selection.path, selection.split))
    for file in files:
        if file.token_type != files[0].token_type:
            raise ShardError(
                message(
                    "token shards of different types cannot be served together",
                    **{files[0].token_type: files[0].path, file.token_type: file.path},
                )
            )
    listed = [[file.name, file.tokens, file.token_type] for file in files]
    return Shards(files[0].token_type, files, complete=True, fingerprint=records.digest(listed)[:16])


def of_run(selection: Selection, known: Shards | None = None) -> Shards:
    """Return the shards of a run as of now; those that are `known` already are not looked at again."""
    manifest = run_manifest.read(selection.store)
    complete = manifest.headline.complete
    if not (complete or selection.partial or selection.follow):
        raise UsageError(
            message(
                "this run is not complete",
                "run its command again, or",
                "follow=True to serve what is there and wait for the rest, or",
                "partial=True to serve only what is there now",
                folder=selection.path,
                jobs_done=f"{manifest.headline.jobs_done:,} of {manifest.headline.jobs:,}",
            )
        )
    # What is followed may be all there before the run is complete.
    complete = complete or (selection.follow and _has_all(manifest, selection.split))
    lines = _ready(manifest, selection)
    before = known.lines if known else ()
    if known and before[: len(lines)] == lines and not complete:
        return known  # Nothing new; or a damaged shard is being remade.
    if lines[: len(before)] != before:
        raise ShardError(message("the shards of this run have changed", folder=selection.path))
    if complete and not lines:
        raise UsageError(message(f"this run has no {selection.split} shard", folder=selection.path))
    listed = [[line.name, line.tokens, line.sha256] for line in lines]
    return Shards(
        manifest.rules.token_type,
        (*(known.files if known else ()), *_files(manifest, selection.store, lines[len(before) :])),
        complete=complete or not selection.follow,
        fingerprint=records.digest(listed)[:16],
        lines=lines,
        shard_format=manifest.rules.shard_format,
        recipe_id=manifest.recipe_id if complete or selection.follow else "",
        cache_bytes=selection.cache_bytes if selection.store.is_remote else None,
    )


def _has_all(manifest: RunManifest, split: Split) -> bool:
    """Return whether no more shards of the split will come, though the run continues.

    In the independent layout validation is the beginning of the first source; the join adds nothing to it.
    """
    first = {file.path for file in manifest.sources[:1]}
    is_done = any(job.path in first for job in manifest.jobs)
    return split == "val" and manifest.rules.layout == "independent" and is_done


def _ready(manifest: RunManifest, selection: Selection) -> tuple[ShardLine, ...]:
    """Return the lines of the split that can be served: all, or the beginning that will not change.

    While a run goes on that is what comes before the first source that is not
    done. Its joined shards appear at its end.
    """
    chosen = [line for line in manifest.shards if line.split == selection.split]
    ordered = tuple(sorted(chosen, key=lambda line: line.name))
    if manifest.headline.complete or not selection.follow:
        return ordered
    if manifest.rules.layout == "contiguous":
        return ()
    done = {job.path for job in manifest.jobs}
    missing = next((at for at, file in enumerate(manifest.sources) if file.path not in done), None)
    first_missing = len(manifest.sources) if missing is None else missing
    border = layout.job_shard(manifest.rules, selection.split, first_missing, 0)
    if selection.split == "train" and manifest.rules.last == "merge":
        # The join may take in the last shard that a job has made. A block number that has more digits than
        # planned is larger, but sorts before others.
        before = [line.name for line in ordered if line.name < border]
        border = max(before, key=lambda name: (name.rpartition("_")[0], len(name), name), default="")
    return tuple(line for line in ordered if line.name < border)


def _files(manifest: RunManifest, store: Store, lines: Sequence[ShardLine]) -> list[TokenFile]:
    """Return the files of some shards: the plain file where it is there, or else the compressed."""
    rules = manifest.rules
    found: list[TokenFile] = []
    store = store.listed()
    for line in lines:
        if not is_safe(line.name) or "/" in line.name:
            raise ManifestError(
                message("a run manifest lists a file that is not a token shard", file=line.name)
            )
        if store.is_remote:
            found.append(_remote_file(rules, store, line))
            continue
        plain = line.name.removesuffix(ZIPPED)
        paths = [store.local(layout.shard(name)) for name in (plain, plain + ZIPPED, line.name)]
        path = next((path for path in paths if path.exists()), paths[-1])
        # A line has the size of the file that the run made, not of one that was packed or unpacked since.
        size = line.bytes if path.name == line.name else None
        found.append(look(path, Claims(rules.shard_format, rules.token_type, line.tokens, size)))
    return found


def _remote_file(rules: Rules, store: Store, line: ShardLine) -> RemoteFile:
    """Return a shard whose size agrees with its line; its header is looked at when it is read."""
    size = store.size(line.name)
    if size != line.bytes:
        raise ShardError(
            message(
                "the size of a token shard does not match the run manifest",
                file=store.address(line.name),
                bytes="none: it is missing" if size is None else f"{size:,}",
                bytes_in_manifest=f"{line.bytes:,}",
            )
        )
    offset = rules.shard_format.header_bytes
    return RemoteFile(
        path=Path(line.name),
        tokens=line.tokens,
        token_type=rules.token_type,
        offset=offset,
        bytes=offset + line.tokens * rules.token_bytes,
        store=open_store(store.uri),
        sha256=line.sha256,
    )


def check_can_be_followed(selection: Selection) -> None:
    """Raise UsageError if this cannot become the folder of a run; a missing folder can."""
    if selection.store.is_remote:
        return
    path = Path(selection.path)
    is_pattern = not path.exists() and any(sign in str(path) for sign in "*?")
    is_foreign = (
        path.is_dir()
        and not selection.is_run
        and any(foreign.is_shard_name(file.name) for file in path.iterdir())
    )
    if is_pattern or is_foreign or path.is_file():
        raise UsageError(
            message(
                "this is not the folder of a run, so it cannot be followed",
                "name the folder that the conversion writes to (--out)",
                given=selection.path,
            )
        )


@dataclass(frozen=True)
class Waiting:
    """How long to wait for what a run makes."""

    store: Store
    timeout: float | None
    poll: float

    def until(self, true: Callable[[], bool]) -> None:
        """Return when `true()`; raise NotReady after the timeout, or if no session makes the run any more."""
        began = seen = time.monotonic()
        warned = False
        while True:
            # Checked first: a session writes its last manifest before it releases the lock.
            deserted = self.store.is_deserted()
            if true():
                return
            now = time.monotonic()
            seen = seen if deserted else now
            if now - seen >= _DESERTED_SECONDS:
                raise self._deserted()
            if self.timeout is not None and now - began >= self.timeout:
                if has_begun(self.store):
                    raise self._late()
                raise NotReady(self._no_run("gave up waiting for it"))
            if not (warned or has_begun(self.store)) and now - began >= _SILENT_SECONDS:
                warned = True
                # Attributed to the line that makes the loader, above _find, __post_init__ and __init__.
                warnings.warn(self._no_run("waiting for it"), stacklevel=5)
            time.sleep(self.poll)

    def _no_run(self, what: str) -> str:
        return message(
            f"there is no run in this folder yet: {what}",
            "check that the path is right, and that the conversion was started",
            **self._folder(),
            timeout="none" if self.timeout is None else f"{self.timeout:g} seconds",
        )

    def _folder(self) -> dict[str, object]:
        if self.store.is_remote:
            return {"place": self.store.uri}
        folder = self.store.local("")
        return {"folder": folder.absolute(), "folder_exists": "yes" if folder.is_dir() else "no"}

    def _deserted(self) -> NotReady:
        past = sessions.all_of(self.store)
        return NotReady(
            message(
                "this run is not complete, and no session is working on it",
                "run its command again; fwconvert status says what failed",
                "resume from the last state when there is more",
                folder=self.store.uri,
                last_session=(past[-1].outcome if past else "") or "interrupted",
            )
        )

    def _late(self) -> NotReady:
        return NotReady(
            message(
                "the run made nothing new before the timeout",
                "see fwconvert status; resume from the last state when there is more",
                folder=self.store.uri,
                seconds=self.timeout,
            )
        )
