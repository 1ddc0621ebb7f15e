"""The token shards that a run's jobs must have made: they follow from the counts in its run manifest.

Pure arithmetic on a run manifest. Whether its lines and the files agree with it
is checked by `verify_manifest` and `verify_shard`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from fwconvert import limits
from fwconvert.recipes import Recipe, Rules
from fwconvert.shards import cutting
from fwconvert.shards.cutting import JoinedShard, joined_shards
from fwconvert.store import layout
from fwconvert.store.receipts import Absorbed
from fwconvert.store.run_manifest import JobLine, RunManifest

# How many more token shards than there are lines may follow from the jobs: those yet to be joined. So a
# damaged count cannot fill the memory.
MOST_SHARDS = 100_000


@dataclass(frozen=True)
class ExpectedShard:
    """A token shard that the jobs must have made."""

    name: str
    split: layout.Split
    tokens: int
    segments: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Account:
    """A run manifest, and the token shards that follow from its jobs."""

    manifest: RunManifest

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.manifest.recipe()

    @cached_property
    def jobs(self) -> dict[int, JobLine]:
        """The job of each source that has one."""
        lines = {job.path: job for job in self.manifest.jobs}
        sources = enumerate(self.manifest.sources)
        return {index: lines[source.path] for index, source in sources if source.path in lines}

    @cached_property
    def own(self) -> list[ExpectedShard]:
        """The token shards that jobs made by themselves and that are still there, in order."""
        return [shard for shard in self._made if self.absorbed is None or shard.name != self.absorbed.name]

    @cached_property
    def _made(self) -> list[ExpectedShard]:
        if not self._is_credible:
            return []
        rules, made = self.manifest.rules, []
        for index, job in self.jobs.items():
            for block, size in enumerate(blocks(rules, index, job.tokens)):
                is_val = block == 0 and cutting.has_validation(rules, index)
                split: layout.Split = "val" if is_val else "train"
                name = layout.job_shard(rules, split, index, block, plain=self._plain)
                made.append(ExpectedShard(name, split, size, ((index, 0),)))
        return made

    @cached_property
    def joined(self) -> list[ExpectedShard]:
        """The token shards that the join made or has to make, in order; none before all jobs are done."""
        return [
            ExpectedShard(self._joined_name(shard), shard.split, shard.tokens, shard.places)
            for shard in self._joined
        ]

    @cached_property
    def absorbed(self) -> Absorbed | None:
        """The job's shard that a joined shard has absorbed, if that joined shard exists."""
        last = self._joined[-1] if self._joined else None
        is_there = last is not None and self._joined_name(last) in {
            line.name for line in self.manifest.shards
        }
        return last.absorbed if last is not None and is_there else None

    @cached_property
    def _joined(self) -> list[JoinedShard]:
        if not self._is_credible or not self.is_converted:
            return []
        rules = self.manifest.rules
        tails = [tail(rules, index, self.jobs[index].tokens) for index in range(len(self.jobs))]
        train = [shard for shard in self._made if shard.split == "train"]
        full = Absorbed(train[-1].name, train[-1].segments[0][0], train[-1].tokens) if train else None
        return joined_shards(tails, rules, full)

    def _joined_name(self, shard: JoinedShard) -> str:
        return layout.joined_shard(self.recipe, shard.split, shard.number, plain=self._plain)

    @cached_property
    def _plain(self) -> bool:
        return layout.are_plain(self.manifest.rules, (line.name for line in self.manifest.shards))

    @cached_property
    def cut_off(self) -> set[int]:
        """The sources whose last tokens are in no shard: not joined yet, or dropped."""
        if not self.is_converted:
            return {index for index, job in self.jobs.items() if job.tail_tokens}
        covered: Counter[int] = Counter()
        for segment in (segment for shard in self._joined for segment in shard.segments):
            covered[segment.source] += segment.tokens
        rules = self.manifest.rules
        return {
            i for i, job in self.jobs.items() if self._is_credible and tail(rules, i, job.tokens) > covered[i]
        }

    @property
    def dropped(self) -> int:
        """How many tokens are in no shard because the last one was dropped."""
        lost = sum(job.tokens for job in self.manifest.jobs) - sum(
            line.tokens for line in self.manifest.shards
        )
        return lost if self.manifest.rules.last == "drop" and self.is_whole else 0

    @cached_property  # asked for every token shard
    def is_converted(self) -> bool:
        """Whether every source, or every source up to the limit, has its job."""
        return [*self.jobs] == [*range(self.extent)]

    @cached_property
    def extent(self) -> int:
        """How many sources the run has: all, or those up to its limit if that is reached."""
        sources = len(self.manifest.sources)
        gave = [self.jobs.get(index) for index in range(sources)]
        return limits.extent(self.manifest.rules, gave, sources)

    @cached_property
    def is_whole(self) -> bool:
        """Whether every source has its job and every token shard its line."""
        there = {line.name for line in self.manifest.shards}
        return self.is_converted and all(shard.name in there for shard in (*self.own, *self.joined))

    def is_open(self, name: str) -> bool:
        """Return whether this joined shard depends on jobs that are not done (or have to be repeated)."""
        if self.is_converted or not layout.is_shard(self.manifest.rules, name):
            return False
        return name.rpartition("_")[0] in self._joined_stems

    @cached_property
    def _joined_stems(self) -> set[str]:
        splits: tuple[layout.Split, ...] = ("val", "train")
        made = (layout.joined_shard(self.recipe, split, 0, plain=self._plain) for split in splits)
        return {name.rpartition("_")[0] for name in made}

    @cached_property  # asked for every source
    def _is_credible(self) -> bool:
        counts = [job.tokens for job in self.jobs.values()]
        shards = sum(counts) // self.manifest.rules.block_tokens
        return min(counts, default=0) >= 0 and shards <= MOST_SHARDS + 2 * len(self.manifest.shards)


def blocks(rules: Rules, index: int, tokens: int) -> Iterator[int]:
    """Yield the sizes of the blocks that a job's tokens fill."""
    for size in cutting.block_sizes(rules, index):
        if tokens < size:
            return
        tokens -= size
        yield size


def tail(rules: Rules, index: int, tokens: int) -> int:
    """Return how many of a job's tokens are its tail, in constant time."""
    sizes = cutting.block_sizes(rules, index)
    first, second = next(sizes), next(sizes)
    return tokens if tokens < first else (tokens - first) % second
