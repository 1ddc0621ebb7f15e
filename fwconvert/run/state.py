"""The state of a run: what is done, what failed, and what is left to do.

Bookkeeping alone: nothing here reads or writes a file. The run's folder is
always ahead of this state, because a job counts once its receipt is published,
whether or not the session lives to see it.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from fwconvert.job.orders import Failure
from fwconvert.limits import NOTHING, Amount
from fwconvert.recipes import Recipe, SourceShard
from fwconvert.run.limiter import Limiter
from fwconvert.shards.cutting import JoinedShard, joined_shards, last_full
from fwconvert.store import layout
from fwconvert.store.receipts import JoinReceipt, Quarantined, Receipt


@dataclass
class Done:
    """The receipts of a run that can be trusted: jobs by source path, joined shards by name."""

    jobs: dict[str, Receipt] = field(default_factory=dict)
    joins: dict[str, JoinReceipt] = field(default_factory=dict)
    # The sha256 of sources whose receipts were withdrawn: the new output must come from the same bytes.
    known_sources: dict[str, str] = field(default_factory=dict)

    @property
    def absorbed(self) -> dict[int, str]:
        """The jobs' shards that joined shards have taken in, by source index."""
        taken = (join.taken for join in self.joins.values())
        return {shard.source: shard.name for shard in taken if shard}

    @property
    def covered(self) -> Counter[int]:
        """How many tokens of each source's tail are in joined shards already."""
        covered: Counter[int] = Counter()
        for join in self.joins.values():
            for segment in join.segments:
                covered[segment.source] += segment.tokens
        return covered

    @property
    def shard_names(self) -> Iterator[str]:
        """The names of all token shards that the receipts list."""
        for job in self.jobs.values():
            yield from (line.name for line in job.shards)
        yield from self.joins


@dataclass
class Tally:
    """Running totals of what is done."""

    documents: int = 0
    tokens: int = 0
    source_bytes: int = 0
    tail_tokens: int = 0
    joined_tokens: int = 0


class RunState:
    """What is known of a run while a session works on it.

    `expected` is what each source may hold; only a run with a limit needs it.
    `share` are the sources of a rank, by index: the others are not its business.
    """

    def __init__(
        self,
        recipe: Recipe,
        session_id: str,
        done: Done,
        expected: Sequence[Amount] = (),
        share: frozenset[int] | None = None,
    ) -> None:
        self.recipe = recipe
        self.session_id = session_id
        self.done = done
        self.failures: dict[str, list[Failure]] = {}
        self.quarantined: dict[str, Quarantined] = {}
        self.total, self.session = Tally(), Tally()
        # All names of a run are of one kind, that of its first ones.
        self.plain_names = layout.are_plain(recipe.rules, done.shard_names)
        files = recipe.source.files
        self._expected = expected
        self._share = None if share is None else sorted(share)
        self._joined: dict[str, JoinedShard] | None = None
        self.limiter = Limiter(recipe.rules, expected or [NOTHING] * len(files))
        for index, file in enumerate(files):
            if file.path in done.jobs:
                self._count(self.total, index, done.jobs[file.path])
                self.limiter.done(index, done.jobs[file.path].counts)
        self.total.joined_tokens = sum(join.shard.tokens for join in done.joins.values())

    @property
    def sources(self) -> Sequence[SourceShard]:
        """The sources of the run: all, those up to its limit once that is reached, or a rank's share."""
        files = self.recipe.source.files
        # A rank has no limit, and looking at how far it is must not take long.
        return files[: self.limiter.extent] if self._share is None else [files[at] for at in self._share]

    @property
    def missing(self) -> list[str]:
        """The sources that are not converted."""
        return [file.path for file in self.sources if file.path not in self.done.jobs]

    @property
    def has_more_to_convert(self) -> bool:
        """Whether there is another source to convert: under a limit, some may yield less than expected."""
        first = next(iter(self.missing), None)
        return first is not None and first not in self.quarantined

    @property
    def unconverted(self) -> list[tuple[int, SourceShard]]:
        """The sources to convert, by index; one that was converted before must still have the same bytes."""
        done, found = self.done, []
        for index, file in zip(self._share or itertools.count(), self.sources, strict=False):
            if file.path not in done.jobs and file.path not in self.quarantined:
                known = file.sha256 or done.known_sources.get(file.path)
                found.append((index, msgspec.structs.replace(file, sha256=known)))
        return found

    @property
    def joined_shards(self) -> Mapping[str, JoinedShard]:
        """The shards that the join makes, by name. All jobs must be done."""
        if self._joined is None:
            jobs, rules = [self.done.jobs[file.path] for file in self.sources], self.recipe.rules
            shards = joined_shards([job.tail.tokens for job in jobs], rules, last_full(jobs))
            self._joined = {
                layout.joined_shard(self.recipe, one.split, one.number, plain=self.plain_names): one
                for one in shards
            }
        return self._joined

    @property
    def tokens_to_join(self) -> int:
        """How many tokens the joined shards have. All jobs must be done."""
        return sum(shard.tokens for shard in self.joined_shards.values())

    @property
    def unjoined(self) -> list[tuple[str, JoinedShard]]:
        """The joined shards that are not made yet. All jobs must be done."""
        return [item for item in self.joined_shards.items() if item[0] not in self.done.joins]

    @property
    def misfits(self) -> list[JoinReceipt]:
        """The joined shards that do not fit the tails of their sources. All jobs must be done."""
        wanted = {name: (one.segments, one.absorbed) for name, one in self.joined_shards.items()}
        joins = self.done.joins.items()
        return [join for name, join in joins if wanted.get(name) != (join.segments, join.taken)]

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to do."""
        return not self.missing and not self.misfits and not self.unjoined

    @property
    def failed_bytes(self) -> int:
        """The bytes of the sources that were given up."""
        return (
            sum(file.bytes for file in self.sources if file.path in self.quarantined)
            if self.quarantined
            else 0
        )

    def job_done(self, index: int, receipt: Receipt) -> None:
        """Count a job whose receipt is on the disk."""
        self.done.jobs[receipt.path] = receipt
        self._count(self.total, index, receipt)
        self._count(self.session, index, receipt)
        self.limiter.done(index, receipt.counts)
        self._joined = None

    def job_withdrawn(self, index: int) -> Receipt:
        """Count a job as not done, to be done again from the same bytes; return its receipt."""
        receipt = self.done.jobs.pop(self.recipe.source.files[index].path)
        self._count(self.total, index, receipt, -1)
        if receipt.session == self.session_id:
            self._count(self.session, index, receipt, -1)
        self.done.known_sources[receipt.path] = receipt.source_sha256
        self.limiter.undone(index)
        self._joined = None
        return receipt

    def job_failed(self, index: int, record: Quarantined) -> None:
        """Count a job that was given up."""
        self.quarantined[record.path] = record
        self.limiter.undone(index)

    def join_done(self, receipt: JoinReceipt) -> None:
        """Count a joined shard whose receipt is on the disk."""
        self.done.joins[receipt.shard.name] = receipt
        self.total.joined_tokens += receipt.shard.tokens
        self.session.joined_tokens += receipt.shard.tokens

    def join_withdrawn(self, receipt: JoinReceipt) -> None:
        """Count a joined shard as not done."""
        del self.done.joins[receipt.shard.name]
        self.total.joined_tokens -= receipt.shard.tokens

    def bytes_to_read(self, source_bytes: float, tokens: int) -> int:
        """Return how many source bytes the run reads; estimated from the progress while a limit is ahead.

        `source_bytes` and `tokens` are those of the whole run so far, orders in flight included.
        """
        if not self.recipe.rules.is_limited and self._share is None:
            return self.recipe.source.bytes
        everything = sum(file.bytes for file in self.sources)
        shares = [
            (self.total.source_bytes, self.limiter.share(self.total.documents, 0)),
            (source_bytes, self.limiter.share(0, tokens)),
        ]
        return min(everything, *(round(read / share) for read, share in shares if share), everything)

    def _count(self, tally: Tally, index: int, receipt: Receipt, sign: int = 1) -> None:
        # Under a limit only as many rows of the last source are read as come before it.
        counts = receipt.counts
        rows = self._expected[index].documents if self._expected and counts.limited else 0
        share = min(1.0, counts.rows / rows) if rows else 1.0
        tally.documents += sign * counts.documents
        tally.tokens += sign * counts.tokens
        tally.tail_tokens += sign * receipt.tail.tokens
        tally.source_bytes += sign * round(receipt.source_bytes * share)
