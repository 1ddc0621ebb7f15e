"""The run manifest: manifest.json, for people and for loaders.

Derived: the deterministic merge of the receipts, so it may be lost and made
again. Only the driver writes it, by atomic replace; two writers would lose
each other's jobs. Two runs of one recipe agree in every byte but `sessions`.
"""

from collections.abc import Mapping, Sequence

from fwconvert import limits, records
from fwconvert.errors import FwconvertError, ManifestError, UsageError, message
from fwconvert.recipes import Recipe, Rules, SourceManifest, SourceShard, Totals
from fwconvert.records import Part, Record
from fwconvert.store.folder import RunFolder
from fwconvert.store.receipts import JoinReceipt, Receipt, ShardLine
from fwconvert.store.sessions import Session

# Of a token shard, and of each file beside it, in the run manifest.
_LINE_BYTES = 300
_SIDECAR_BYTES = 140


class Headline(Part, frozen=True, omit_defaults=True):
    """The run at a glance. What has a default is written where there is any."""

    complete: bool
    jobs: int
    jobs_done: int
    train_shards: int
    val_shards: int
    documents: int
    tokens: int
    null_rows: int
    empty_rows: int
    # With --last drop: the tokens that did not fill a shard.
    dropped_tokens: int = 0
    filtered_rows: int = 0


class JobLine(Part, frozen=True, omit_defaults=True):
    """One finished job."""

    path: str
    bytes: int
    sha256: str
    rows: int
    documents: int
    null_rows: int
    empty_rows: int
    text_bytes: int
    tokens: int
    tail_tokens: int
    filtered_rows: int = 0
    limited: bool = False
    cut: bool = False


class RunManifest(Record, frozen=True, tag="fwconvert run manifest 1"):
    """What stands in the output folder, and how it was made."""

    headline: Headline
    recipe_id: str
    dataset: str
    revision: str
    rules: Rules
    sources: tuple[SourceShard, ...]
    jobs: tuple[JobLine, ...]
    shards: tuple[ShardLine, ...]
    sessions: tuple[Session, ...]

    def recipe(self) -> Recipe:
        """Return the recipe that made this run."""
        totals = Totals(len(self.sources), sum(file.bytes for file in self.sources))
        source = SourceManifest("", self.dataset, self.revision, "", self.sources, totals)
        return Recipe(source, self.rules)


def build(
    recipe: Recipe,
    receipts: Mapping[str, Receipt],
    joins: Mapping[str, JoinReceipt],
    sessions: Sequence[Session],
    *,
    complete: bool,
) -> RunManifest:
    """Merge receipts (by source path) and join receipts (by shard name) into a run manifest."""
    receipts = limits.counted(recipe, receipts)
    taken = {join.taken.name: join.taken.tokens for join in joins.values() if join.taken}
    done = [receipts[file.path] for file in recipe.source.files if file.path in receipts]
    jobs = tuple(_job_line(receipt, taken) for receipt in done)
    lines = [line for receipt in done for line in receipt.shards if line.name not in taken]
    shards = tuple(sorted([*lines, *(join.shard for join in joins.values())], key=lambda line: line.name))
    return RunManifest(
        headline=_headline(recipe, jobs, shards, complete=complete),
        recipe_id=recipe.recipe_id,
        dataset=recipe.source.dataset,
        revision=recipe.source.revision,
        rules=recipe.rules,
        sources=recipe.source.files,
        jobs=jobs,
        shards=shards,
        sessions=tuple(sessions),
    )


def write(folder: RunFolder, manifest: RunManifest) -> None:
    """Replace manifest.json."""
    content = records.lines(records.fields(manifest))
    if len(content) > records.MOST_BYTES:
        raise FwconvertError(
            message(
                "the run manifest has become larger than any reader takes: there are too many token shards",
                "choose another --out and larger --shard-tokens",
                token_shards=f"{len(manifest.shards):,}",
                bytes=f"{len(content):,}",
                at_most=f"{records.MOST_BYTES:,}",
            )
        )
    folder.write(folder.manifest, content)


def read(folder: RunFolder) -> RunManifest:
    """Return the run manifest of a folder, or raise UsageError if it has none."""
    if not folder.manifest.is_file() and folder.plan.is_file():
        raise ManifestError(
            message(
                "this run has lost its run manifest, or has not come so far",
                "run the command that makes it again: the manifest is made from the receipts",
                folder=folder.path,
                missing=folder.manifest.name,
            )
        )
    if not folder.manifest.is_file():
        raise UsageError(
            message(
                "this folder has no run manifest",
                "name the output folder of a run (--out)",
                folder=folder.path,
                missing=folder.manifest.name,
            )
        )
    return records.read(folder.manifest, RunManifest, lambda: files_described(folder))


def files_described(folder: RunFolder) -> int:
    """Return how many lines a run's records may have: a file each, or a source and a job for a receipt."""
    return records.files_in(folder.path) + 2 * records.files_in(folder.receipts)


def _job_line(receipt: Receipt, taken: Mapping[str, int]) -> JobLine:
    """Return a job's line. `taken` are shards that were joined with tails, and so are tail now themselves."""
    counts = receipt.counts
    absorbed = sum(taken.get(line.name, 0) for line in receipt.shards)
    return JobLine(
        path=receipt.path,
        bytes=receipt.source_bytes,
        sha256=receipt.source_sha256,
        rows=counts.rows,
        documents=counts.documents,
        null_rows=counts.null_rows,
        empty_rows=counts.empty_rows,
        text_bytes=counts.text_bytes,
        tokens=counts.tokens,
        tail_tokens=receipt.tail.tokens + absorbed,
        filtered_rows=counts.filtered_rows,
        limited=counts.limited,
        cut=counts.cut,
    )


def _headline(
    recipe: Recipe, jobs: Sequence[JobLine], shards: Sequence[ShardLine], *, complete: bool
) -> Headline:
    val = sum(line.split == "val" for line in shards)
    dropped = sum(job.tokens for job in jobs) - sum(line.tokens for line in shards)
    return Headline(
        complete=complete,
        jobs=limits.extent(recipe.rules, jobs, len(recipe.source.files)),
        jobs_done=len(jobs),
        train_shards=len(shards) - val,
        val_shards=val,
        documents=sum(job.documents for job in jobs),
        tokens=sum(job.tokens for job in jobs),
        null_rows=sum(job.null_rows for job in jobs),
        empty_rows=sum(job.empty_rows for job in jobs),
        dropped_tokens=dropped if complete and recipe.rules.last == "drop" else 0,
        filtered_rows=sum(job.filtered_rows for job in jobs),
    )


def most_shards(rules: Rules) -> int:
    """Return how many token shards a run manifest can describe, about: readers take no larger file."""
    return records.MOST_BYTES // (_LINE_BYTES + _SIDECAR_BYTES * len(rules.kind.sidecars))
