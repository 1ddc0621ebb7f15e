"""Which token goes where: a job's documents cut into blocks, and the tails of all jobs into token shards.

Pure: no input, no output, no clock.

A job cuts its stream of documents into blocks of exact size. Documents run
across block ends and may be longer than a block. No token is added or lost: the
pieces joined are the batches joined. What does not fill a block is its tail.

The join cuts the tails of all jobs, in source order, into token shards. At the
end some tokens may be left that do not fill a shard. llm.c refuses a shard that
is shorter than one step of training, so by default they are added to the shard
before it (`Rules.last`).

Which token goes where is a function of the tails' lengths alone, so each joined
shard can be made by itself, in any order, by any worker. A tail may be removed
as soon as every joined shard that takes from it is done; so joining needs
little disk beyond the tails themselves.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, TypeAlias

from fwconvert.recipes import Rules
from fwconvert.store.layout import Split
from fwconvert.store.receipts import Absorbed, Receipt, Segment

if TYPE_CHECKING:  # The driver plans the joined shards without it; arrays come from those who have it.
    import numpy as np
    from numpy.typing import NDArray

# The size of a block that never ends.
UNBOUNDED = sys.maxsize

Tokens: TypeAlias = "NDArray[np.uint16 | np.uint32]"


@dataclass(frozen=True)
class Batch:
    """Some whole documents as tokens, separators included."""

    tokens: Tokens
    # Of each document: the position in `tokens` at which it starts, and its row in the source shard.
    starts: "NDArray[np.int64]"
    rows: "NDArray[np.int64]"


@dataclass(frozen=True)
class Piece:
    """The part of a batch that falls into one block; `starts` are positions in the block."""

    tokens: Tokens
    starts: "NDArray[np.int64]"
    rows: "NDArray[np.int64]"
    ends_block: bool


def cut(batches: Iterable[Batch], sizes: Iterable[int]) -> Iterator[Piece]:
    """Yield the tokens of all batches in order, each piece within one block.

    The first block has the first of `sizes` tokens, the next the second, and
    so on; a piece that fills its block says so. The last block may stay short.
    """
    remaining = iter(sizes)
    size, filled = next(remaining), 0
    for batch in batches:
        begin = 0
        while begin < len(batch.tokens):
            end = min(begin + size - filled, len(batch.tokens))
            full = filled + end - begin == size
            first, last = batch.starts.searchsorted((begin, end))
            yield Piece(
                tokens=batch.tokens[begin:end],
                starts=batch.starts[first:last] + (filled - begin),
                rows=batch.rows[first:last],
                ends_block=full,
            )
            begin, filled = end, filled + end - begin
            if full:
                size, filled = next(remaining), 0


def has_validation(rules: Rules, source_index: int) -> bool:
    """Return whether a job's first block is the validation shard, if it fills."""
    return rules.layout == "independent" and source_index == 0 and rules.val_tokens > 0


def block_sizes(rules: Rules, source_index: int) -> Iterator[int]:
    """Yield the sizes of the blocks into which a job cuts its tokens; what does not fill one is its tail."""
    if rules.layout == "contiguous":
        return repeat(UNBOUNDED)
    first = [rules.val_tokens] if has_validation(rules, source_index) else []
    return chain(first, repeat(rules.block_tokens))


@dataclass(frozen=True)
class JoinedShard:
    """One token shard to be made from tails."""

    split: Split
    number: int
    segments: tuple[Segment, ...]
    absorbed: Absorbed | None = None

    @property
    def tokens(self) -> int:
        """How many tokens it has."""
        own = self.absorbed.tokens if self.absorbed else 0
        return own + sum(segment.tokens for segment in self.segments)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Where the tokens of each source begin: what its line in the run manifest says."""
        places = [(self.absorbed.source, 0)] if self.absorbed else []
        places += [(segment.source, segment.first) for segment in self.segments]
        # The absorbed shard's source may continue in the first tail.
        return tuple(place for at, place in enumerate(places) if not at or place[0] != places[at - 1][0])


def joined_shards(tails: Sequence[int], rules: Rules, full: Absorbed | None = None) -> list[JoinedShard]:
    """Cut the tails, given by their lengths in source order, into full shards and at most one short one.

    `rules.last` decides what happens to a short one. `full` is the last
    training shard that a job made by itself, if any did: if no joined shard is
    full, the short one is added to it.

    Contiguous: the first shard is for validation if there are enough tokens,
    and train shards count from 1, as in llm.c.
    """
    shards = _cut(tails, rules)
    if not shards or rules.last == "keep" or shards[-1].split == "val":
        return shards
    *before, short = shards
    if short.tokens == rules.block_tokens:
        return shards
    if rules.last == "drop":
        return before
    if before and before[-1].split == "train":
        return [*before[:-1], _merged(before[-1], short)]
    if full is None:
        return shards
    return [*before, replace(short, absorbed=full, segments=_moved(short.segments, full.tokens))]


def last_full(jobs: Sequence[Receipt]) -> Absorbed | None:
    """Return the last training shard that a job has made by itself. `jobs` are in source order."""
    for source, job in reversed([*enumerate(jobs)]):
        if job.shards and job.shards[-1].split == "train":
            return Absorbed(job.shards[-1].name, source, job.shards[-1].tokens)
    return None


def _merged(before: JoinedShard, short: JoinedShard) -> JoinedShard:
    first, *rest = _moved(short.segments, before.tokens)
    *earlier, last = before.segments
    if last.source != first.source:
        return replace(before, segments=(*before.segments, first, *rest))
    # The cut between the two went through one tail.
    whole = Segment(last.source, last.first, last.start, last.tokens + first.tokens)
    return replace(before, segments=(*earlier, whole, *rest))


def _moved(segments: Iterable[Segment], by: int) -> tuple[Segment, ...]:
    """Return segments as they are in a shard that has `by` more tokens before them."""
    return tuple(Segment(one.source, one.first + by, one.start, one.tokens) for one in segments)


def _cut(tails: Sequence[int], rules: Rules) -> list[JoinedShard]:
    """Cut the joined stream of all tails into shards; one walk over the tails, so it takes linear time."""
    total = sum(tails)
    contiguous = rules.layout == "contiguous"
    has_val = contiguous and 0 < rules.val_tokens <= total
    sizes = chain([rules.val_tokens] if has_val else [], repeat(rules.block_tokens))
    number = 1 if contiguous and not has_val else 0
    shards: list[JoinedShard] = []
    tail_starts = list(accumulate(tails, initial=0))
    begin = source = 0
    while begin < total:
        end = min(begin + next(sizes), total)
        segments, position = [], begin
        while position < end:
            while tail_starts[source + 1] <= position:
                source += 1
            tokens = min(end, tail_starts[source + 1]) - position
            segments.append(Segment(source, position - begin, position - tail_starts[source], tokens))
            position += tokens
        split: Split = "val" if has_val and not shards else "train"
        shards.append(JoinedShard(split, number, tuple(segments)))
        begin, number = end, number + 1
    return shards
