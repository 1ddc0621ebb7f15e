"""The join: cut the tails of all jobs, in source order, into token shards.

Which token goes where is a pure function of the tails' lengths, so each joined
shard can be made alone, in any order, by any worker. A tail may be removed as
soon as every joined shard that takes from it is done; so joining needs little
disk beyond the tails themselves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat

from fwconvert.config import Rules
from fwconvert.names import Split
from fwconvert.receipt import Segment


@dataclass(frozen=True)
class JoinedShard:
    """One token shard to be made from tails."""

    split: Split
    number: int
    segments: tuple[Segment, ...]


def joined_shards(tails: Sequence[int], rules: Rules) -> list[JoinedShard]:
    """Cut the tails, given by their lengths in source order, into full shards and at most one short one.

    Contiguous: the first shard is for validation if there are tokens enough,
    and train shards count from 1, as llm.c has it.
    """
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
