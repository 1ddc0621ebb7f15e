"""How far a run is, read quickly from its small records: no file is hashed, no text is read."""

import os
import re
from collections.abc import Callable, Sequence

from fwconvert import limits
from fwconvert.errors import ManifestError
from fwconvert.recipes import Recipe, Rules
from fwconvert.records import Part
from fwconvert.store import base, layout, pulses
from fwconvert.store.base import R, Store
from fwconvert.store.local import open_store
from fwconvert.store.pulses import Pulse
from fwconvert.store.receipts import (
    JoinReceipt,
    Quarantined,
    Receipt,
    ShardLine,
    join_receipts,
    shard_problem,
    totals,
)
from fwconvert.store.run_manifest import RunManifest, files_described
from fwconvert.store.saved_recipe import read_plan


class FailedJob(Part, frozen=True):
    """A job that the last session gave up on."""

    path: str
    reason: str
    attempts: int


class Status(Part, frozen=True):
    """A run at a glance."""

    folder: str
    format: str
    complete: bool
    # The session at work on it ("pid 7 on host h, session s"), or "".
    at_work: str
    jobs: int
    jobs_done: int
    source_bytes: int
    source_bytes_done: int
    documents: int
    tokens: int
    shards: int
    null_rows: int
    empty_rows: int
    failed: tuple[FailedJob, ...]
    filtered_rows: int = 0
    # Token shards that were made but are now missing or have a different size.
    missing_shards: tuple[str, ...] = ()
    # How far the sessions at work are, as they last said: one, or one for each rank.
    running: tuple[Pulse, ...] = ()


def status(out: str | os.PathLike[str]) -> Status:
    """Return how far the run in the folder `out` is, or raise UsageError if there is none."""
    store = open_store(out).listed()
    recipe = read_plan(store)
    given = [_receipt(store, file.path) for file in recipe.source.files]
    gave = [None if receipt is None else receipt.counts for receipt in given]
    files = recipe.source.files[: limits.extent(recipe.rules, gave, len(given))]
    receipts = [receipt for receipt in given[: len(files)] if receipt]
    manifest = _finished(store, recipe)
    lines = _shards(store, receipts) if manifest is None else manifest.shards
    holder = store.holder()
    missing = [line.name for line in lines if _is_gone(store, recipe.rules, line)]
    return Status(
        folder=str(out),
        format=recipe.rules.format,
        complete=manifest is not None and len(receipts) == len(files) and not missing,
        at_work=holder,
        running=tuple(pulse for one in _sessions(holder) if (pulse := pulses.read(store, one))),
        jobs=len(files),
        jobs_done=len(receipts),
        source_bytes=sum(file.bytes for file in files),
        source_bytes_done=sum(receipt.source_bytes for receipt in receipts),
        shards=len(lines) - len(missing),
        **totals([receipt.counts for receipt in receipts]),
        # A rank may have given up a source that another one has converted since.
        failed=tuple(
            failed
            for file, receipt in zip(files, given, strict=False)
            if receipt is None and (failed := _failed(store, file.path))
        ),
        missing_shards=tuple(missing),
    )


def _sessions(holder: str) -> list[str]:
    """Return the ids of the sessions that hold a run, from what is said of them."""
    return re.findall(r"session ([^\s,;]+)", holder)


def _shards(store: Store, receipts: Sequence[Receipt]) -> list[ShardLine]:
    """Return the token shards listed in receipts, without those that joined shards have absorbed."""
    read = [_read(store, name, JoinReceipt) for name in join_receipts(store)]
    joins = [join for join in read if join is not None]
    taken = {join.taken.name for join in joins if join.taken}
    own = [line for receipt in receipts for line in receipt.shards if line.name not in taken]
    return [*own, *(join.shard for join in joins)]


def _receipt(store: Store, path: str) -> Receipt | None:
    return _read(store, layout.receipt(layout.job_key(path)), Receipt, lambda: files_described(store))


def _failed(store: Store, path: str) -> FailedJob | None:
    record = _read(store, layout.quarantined(layout.job_key(path)), Quarantined)
    return None if record is None else FailedJob(record.path, record.reason, len(record.attempts))


def _finished(store: Store, recipe: Recipe) -> RunManifest | None:
    """Return the run manifest if it says that the run is complete."""
    manifest = _read(store, layout.MANIFEST, RunManifest, lambda: files_described(store))
    is_ours = manifest is not None and manifest.recipe_id == recipe.recipe_id
    return manifest if manifest is not None and is_ours and manifest.headline.complete else None


def _is_gone(store: Store, rules: Rules, line: ShardLine) -> bool:
    # A foreign name could point outside the folder.
    return not layout.is_shard(rules, line.name) or shard_problem(store, rules, line) != ""


def _read(store: Store, name: str, kind: type[R], described: Callable[[], int] = lambda: 0) -> R | None:
    """Return a record, or None if it is missing or unreadable; the next session deals with that."""
    try:
        return base.read_record(store, name, kind, described)
    except ManifestError:
        return None
