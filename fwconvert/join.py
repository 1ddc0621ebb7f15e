"""The join: cut the tails of all jobs, in source order, into token shards.

At the end some tokens may be left that do not fill a shard. llm.c refuses a
shard that is shorter than one step of training, so by default they are added
to the shard before it; `Rules.last` says so.

Which token goes where is a pure function of the tails' lengths, so each joined
shard can be made alone, in any order, by any worker. A tail may be removed as
soon as every joined shard that takes from it is done; so joining needs little
disk beyond the tails themselves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, repeat
from typing import Any

from fwconvert.store.names import Split
from fwconvert.store.receipts import Absorbed, Receipt, Segment
from fwconvert.recipe import Rules


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
        # What is absorbed may go on in the first tail.
        return tuple(place for at, place in enumerate(places) if not at or place[0] != places[at - 1][0])


def joined_shards(tails: Sequence[int], rules: Rules, full: Absorbed | None = None) -> list[JoinedShard]:
    """Cut the tails, given by their lengths in source order, into full shards and at most one short one.

    What becomes of a short one is up to `rules.last`. `full` is the last
    training shard that a job made by itself, if any did: if no joined shard is
    full, the short one is added to it.

    Contiguous: the first shard is for validation if there are tokens enough,
    and train shards count from 1, as llm.c has it.
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
    return [*before, replace(short, **_taking(full, short))] if full else shards


def last_full(jobs: Sequence[Receipt]) -> Absorbed | None:
    """Return the last training shard that a job has made by itself. `jobs` are in source order."""
    for source, job in reversed([*enumerate(jobs)]):
        if job.shards and job.shards[-1].split == "train":
            return Absorbed(job.shards[-1].name, source, job.shards[-1].tokens)
    return None


def _merged(before: JoinedShard, short: JoinedShard) -> JoinedShard:
    moved = tuple(_moved(segment, before.tokens) for segment in short.segments)
    last, first = before.segments[-1], moved[0]
    if last.source == first.source:  # The cut between the two went through one tail.
        whole = Segment(last.source, last.first, last.start, last.tokens + first.tokens)
        return replace(before, segments=(*before.segments[:-1], whole, *moved[1:]))
    return replace(before, segments=(*before.segments, *moved))


def _taking(full: Absorbed, short: JoinedShard) -> dict[str, Any]:
    segments = tuple(_moved(segment, full.tokens) for segment in short.segments)
    return {"absorbed": full, "segments": segments}


def _moved(segment: Segment, by: int) -> Segment:
    return Segment(segment.source, segment.first + by, segment.start, segment.tokens)


def _cut(tails: Sequence[int], rules: Rules) -> list[JoinedShard]:
    total = sum(tails)
    contiguous = rules.layout == "contiguous"
    has_val = contiguous and 0 < rules.val_tokens <= total
    sizes = chain([rules.val_tokens] if has_val else [], repeat(rules.block_tokens))
    shards: list[JoinedShard] = []
    number = 1 if contiguous and not has_val else 0
    begin, cursor = 0, _Cursor(tails)
    while begin < total:
        end = min(begin + next(sizes), total)
        split: Split = "val" if has_val and not shards else "train"
        shards.append(JoinedShard(split, number, tuple(cursor.take(begin, end))))
        begin, number = end, number + 1
    return shards


class _Cursor:
    """Walks once over the tails, so that cutting all of them takes linear time."""

    def __init__(self, tails: Sequence[int]) -> None:
        self._starts = list(accumulate(tails, initial=0))
        self._source = 0

    def take(self, begin: int, end: int) -> Iterator[Segment]:
        """Yield the segments that hold the tokens from `begin` to `end` of the joined stream."""
        position = begin
        while position < end:
            while self._starts[self._source + 1] <= position:
                self._source += 1
            tail_start, tail_end = self._starts[self._source : self._source + 2]
            tokens = min(end, tail_end) - position
            yield Segment(self._source, position - begin, position - tail_start, tokens)
            position += tokens
