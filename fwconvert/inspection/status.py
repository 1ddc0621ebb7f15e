"""How far a run is, told at once from its small records: no file is hashed, no text is read."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fwconvert import limits, records
from fwconvert.errors import ManifestError
from fwconvert.recipes import Recipe, Rules
from fwconvert.records import Part
from fwconvert.store import layout
from fwconvert.store.folder import RunFolder
from fwconvert.store.receipts import JoinReceipt, Quarantined, Receipt, ShardLine
from fwconvert.store.recorded import join_paths, shard_problem
from fwconvert.store.run_manifest import RunManifest, files_described
from fwconvert.store.saved_recipe import read_plan


class FailedJob(Part, frozen=True):
    """A job that the last session gave up."""

    path: str
    reason: str
    attempts: int


class Status(Part, frozen=True):
    """A run at a glance."""

    folder: str
    format: str
    complete: bool
    # Who is at work on it ("pid 7 on host h, session s"), or "".
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
    # Token shards that were made, and are gone or have another size by now.
    missing_shards: tuple[str, ...] = ()


def status(out: str | os.PathLike[str]) -> Status:
    """Return how far the run in the folder `out` is, or raise UsageError if there is none."""
    folder = RunFolder(Path(out))
    recipe = read_plan(folder)
    given = [_receipt(folder, file.path) for file in recipe.source.files]
    gave = [None if receipt is None else receipt.counts for receipt in given]
    files = recipe.source.files[: limits.extent(recipe.rules, gave, len(given))]
    receipts = [receipt for receipt in given[: len(files)] if receipt]
    manifest = _finished(folder, recipe)
    lines = _shards(folder, receipts) if manifest is None else manifest.shards
    missing = [line.name for line in lines if _is_gone(folder, recipe.rules, line)]
    return Status(
        folder=str(out),
        format=recipe.rules.format,
        complete=manifest is not None and len(receipts) == len(files) and not missing,
        at_work=folder.store.holder(),
        jobs=len(files),
        jobs_done=len(receipts),
        source_bytes=sum(file.bytes for file in files),
        source_bytes_done=sum(receipt.source_bytes for receipt in receipts),
        documents=sum(receipt.counts.documents for receipt in receipts),
        tokens=sum(receipt.counts.tokens for receipt in receipts),
        shards=len(lines) - len(missing),
        null_rows=sum(receipt.counts.null_rows for receipt in receipts),
        empty_rows=sum(receipt.counts.empty_rows for receipt in receipts),
        filtered_rows=sum(receipt.counts.filtered_rows for receipt in receipts),
        failed=tuple(failed for file in files if (failed := _failed(folder, file.path))),
        missing_shards=tuple(missing),
    )


def _shards(folder: RunFolder, receipts: Sequence[Receipt]) -> list[ShardLine]:
    """Return the token shards that receipts tell of, without those that joined shards have taken in."""
    read = [_read(path, JoinReceipt) for path in join_paths(folder)]
    joins = [join for join in read if join is not None]
    taken = {join.taken.name for join in joins if join.taken}
    own = [line for receipt in receipts for line in receipt.shards if line.name not in taken]
    return [*own, *(join.shard for join in joins)]


def _receipt(folder: RunFolder, path: str) -> Receipt | None:
    return _read(folder.receipt(layout.job_key(path)), Receipt, lambda: files_described(folder))


def _failed(folder: RunFolder, path: str) -> FailedJob | None:
    record = _read(folder.quarantined(layout.job_key(path)), Quarantined)
    return None if record is None else FailedJob(record.path, record.reason, len(record.attempts))


def _finished(folder: RunFolder, recipe: Recipe) -> RunManifest | None:
    """Return the run manifest if it says that all is done."""
    manifest = _read(folder.manifest, RunManifest, lambda: files_described(folder))
    is_ours = manifest is not None and manifest.recipe_id == recipe.recipe_id
    return manifest if manifest is not None and is_ours and manifest.headline.complete else None


def _is_gone(folder: RunFolder, rules: Rules, line: ShardLine) -> bool:
    # A name that is none of ours might lead out of the folder.
    return not layout.is_shard(rules, line.name) or shard_problem(folder, rules, line) != ""


def _read(path: Path, kind: type[records.R], there: Callable[[], int] = lambda: 0) -> records.R | None:
    """Return a record, or None if it is missing or unreadable: the next session will deal with that."""
    try:
        return records.read(path, kind, there) if path.exists() else None
    except ManifestError:
        return None
