"""The run manifest: manifest.json, for people and for loaders.

Derived: the deterministic merge of the receipts, so it may be lost and made
again. Only the driver writes it, by atomic replace; two writers would lose
each other's jobs. Two runs of one recipe agree in every byte but `sessions`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fwconvert import limits, records
from fwconvert.errors import FwconvertError, ManifestError, UsageError, message
from fwconvert.formats import ZIPPED
from fwconvert.recipes import Recipe, Rules, SourceManifest, SourceShard, Totals
from fwconvert.records import Part, Record
from fwconvert.store import base, layout
from fwconvert.store.base import Store
from fwconvert.store.receipts import Counts, JoinReceipt, Receipt, ShardLine, totals
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
    gave, written = sum(job.tokens for job in jobs), sum(line.tokens for line in shards)
    return RunManifest(
        headline=headline(
            jobs,
            shards,
            extent=limits.extent(recipe.rules, jobs, len(recipe.source.files)),
            dropped=gave - written if complete and recipe.rules.last == "drop" else 0,
            complete=complete,
        ),
        recipe_id=recipe.recipe_id,
        dataset=recipe.source.dataset,
        revision=recipe.source.revision,
        rules=recipe.rules,
        sources=recipe.source.files,
        jobs=jobs,
        shards=shards,
        sessions=tuple(sessions),
    )


def headline(
    jobs: Sequence[JobLine], shards: Sequence[ShardLine], *, extent: int, dropped: int, complete: bool
) -> Headline:
    """Return the headline above these lines. `extent` jobs make the run whole; `dropped` are tokens."""
    val = sum(line.split == "val" for line in shards)
    return Headline(
        complete=complete,
        jobs=extent,
        jobs_done=len(jobs),
        train_shards=len(shards) - val,
        val_shards=val,
        dropped_tokens=dropped,
        **totals(jobs),
    )


def _job_line(receipt: Receipt, taken: Mapping[str, int]) -> JobLine:
    """Return a job's line. `taken` are shards that were joined with tails, and so are tail now themselves."""
    absorbed = sum(taken.get(line.name, 0) for line in receipt.shards)
    return JobLine(
        path=receipt.path,
        bytes=receipt.source_bytes,
        sha256=receipt.source_sha256,
        tail_tokens=receipt.tail.tokens + absorbed,
        **{name: getattr(receipt.counts, name) for name in Counts.__struct_fields__},
    )


def write(store: Store, manifest: RunManifest) -> None:
    """Replace manifest.json, durably and all at once."""
    content = records.lines(records.fields(manifest))
    if len(content) > records.MOST_BYTES:
        raise FwconvertError(
            message(
                "the run manifest would be larger than readers accept: there are too many token shards",
                "choose another --out and larger --shard-tokens",
                token_shards=f"{len(manifest.shards):,}",
                bytes=f"{len(content):,}",
                at_most=f"{records.MOST_BYTES:,}",
            )
        )
    store.write(layout.MANIFEST, content)


def read(store: Store) -> RunManifest:
    """Return the run manifest, or raise UsageError if this is no run."""
    if not base.exists(store, layout.MANIFEST):
        if base.exists(store, layout.PLAN):
            raise ManifestError(
                message(
                    "this run has no run manifest: it was lost, or the run has only begun",
                    "run the same command again: the manifest is made from the receipts",
                    "if ranks convert it, fwconvert merge makes it",
                    folder=store.uri,
                    missing=layout.MANIFEST,
                )
            )
        base.refuse_missing(store)
        raise UsageError(
            message(
                "this folder has no run manifest",
                "name the output folder of a run (--out)",
                folder=store.uri,
                missing=layout.MANIFEST,
            )
        )
    return base.read_record(store, layout.MANIFEST, RunManifest, lambda: files_described(store))


def files_described(store: Store) -> int:
    """Return how many lines a run's records may have: a file each, or a source and a job for a receipt."""
    return base.count(store, "") + 2 * base.count(store, layout.RECEIPTS)


def most_shards(rules: Rules) -> int:
    """Return how many token shards a run manifest can describe, about: readers take no larger file."""
    return records.MOST_BYTES // (_LINE_BYTES + _SIDECAR_BYTES * len(rules.shard_format.sidecars))


@dataclass(frozen=True)
class Unlisted:
    """Files in the output folder that a trainer's glob may find and that the run manifest does not list.

    A trainer takes every file whose name fits its pattern, so tokens in a file that no receipt
    names would be trained on twice. Such files are left behind in ordinary ways: a worker was
    killed between naming its files and its receipt, and the source was then replaced by a shorter
    one; a source was converted again whose last shard a joined shard had absorbed; a source was
    converted ahead of time and lies beyond the limit.
    """

    # Made by this run, whose names nothing else has; and what somebody else may have put here.
    own: tuple[str, ...]
    foreign: tuple[str, ...]


def find_unlisted(store: Store, recipe: Recipe, shards: Collection[str]) -> Unlisted:
    """Return what carries the names of this run's output, or could be taken for it, beyond `shards`."""
    rules, listed = recipe.rules, frozenset(shards)
    beside = {name for shard in listed for name in (shard, *layout.sidecars(rules, shard))}
    beside |= {name.removesuffix(ZIPPED) for name in listed}  # Somebody may have unpacked them.
    own, foreign = [], []
    for name in store.list(""):
        if name in beside:
            continue
        owner = layout.owner(rules, name)
        if owner is not None and layout.is_own(recipe, owner):
            own.append(name)
        elif layout.is_served(rules, name):
            foreign.append(name)
    for name in store.list(layout.INDEX):
        owner = layout.index_owner(rules, name)
        if owner is not None and owner not in listed:
            own.append(f"{layout.INDEX}/{name}")
    return Unlisted(tuple(sorted(own)), tuple(sorted(foreign)))


def remove_unlisted(store: Store, unlisted: Unlisted) -> None:
    """Remove what the run itself has made, durably."""
    store.remove(*unlisted.own)
    store.settle(*sorted({name.rpartition("/")[0] for name in unlisted.own}))
