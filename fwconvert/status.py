"""How far a run is, told at once from its small records: no file is hashed, no text is read."""

from pathlib import Path

from fwconvert import names, records
from fwconvert.config import Recipe
from fwconvert.errors import ManifestError
from fwconvert.folder import RunFolder, holder
from fwconvert.receipt import Quarantined, Receipt
from fwconvert.records import Part
from fwconvert.run_manifest import RunManifest
from fwconvert.saved_plan import read_plan


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


def status(out: Path) -> Status:
    """Return how far the run in the folder `out` is, or raise UsageError if there is none."""
    folder = RunFolder(out)
    recipe = read_plan(folder)
    files = recipe.source.files
    receipts = [found for file in files if (found := _receipt(folder, file.path))]
    joins = sorted(folder.joins.glob("*.json"))
    return Status(
        folder=str(out),
        format=recipe.rules.format,
        complete=len(receipts) == len(files) and _is_complete(folder, recipe),
        at_work=holder(folder),
        jobs=len(files),
        jobs_done=len(receipts),
        source_bytes=sum(file.bytes for file in files),
        source_bytes_done=sum(receipt.source_bytes for receipt in receipts),
        documents=sum(receipt.counts.documents for receipt in receipts),
        tokens=sum(receipt.counts.tokens for receipt in receipts),
        shards=sum(len(receipt.shards) for receipt in receipts) + len(joins),
        null_rows=sum(receipt.counts.null_rows for receipt in receipts),
        empty_rows=sum(receipt.counts.empty_rows for receipt in receipts),
        failed=tuple(failed for file in files if (failed := _failed(folder, file.path))),
    )


def _receipt(folder: RunFolder, path: str) -> Receipt | None:
    return _read(folder.receipt(names.job_key(path)), Receipt)


def _failed(folder: RunFolder, path: str) -> FailedJob | None:
    record = _read(folder.quarantined(names.job_key(path)), Quarantined)
    return None if record is None else FailedJob(record.path, record.reason, len(record.attempts))


def _is_complete(folder: RunFolder, recipe: Recipe) -> bool:
    manifest = _read(folder.manifest, RunManifest)
    return manifest is not None and manifest.headline.complete and manifest.recipe_id == recipe.recipe_id


def _read(path: Path, kind: type[records.R]) -> records.R | None:
    """Return a record, or None if it is missing or unreadable: the next session will deal with that."""
    try:
        return records.read(path, kind) if path.exists() else None
    except ManifestError:
        return None
