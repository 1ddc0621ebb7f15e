"""The stream of one source in a run: which token shards hold its tokens, in order.

Pure arithmetic. A source's stream is what its job made: the tokens of its own
token shards by block, then its part of the joined ones.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import msgspec

from fwconvert.errors import ManifestError, message
from fwconvert.store.receipts import ShardLine


@dataclass(frozen=True)
class Passage:
    """A run of tokens of one source in one token shard."""

    shard: ShardLine
    # The first of the tokens: in the token shard, and in the stream of the source.
    first: int
    start: int
    tokens: int

    @property
    def end(self) -> int:
        """Where the next passage starts in the stream."""
        return self.start + self.tokens


def passages(shards: Iterable[ShardLine], sources: int) -> list[tuple[Passage, ...]]:
    """Return the passages of each source. `shards` are in the order in which they were cut.

    Raises ManifestError if the segments of a shard are invalid.
    """
    found: list[list[Passage]] = [[] for _ in range(sources)]
    lengths: Counter[int] = Counter()
    for line in shards:
        # Passages are sent to workers, and each would carry the segments of all sources.
        alone = msgspec.structs.replace(line, segments=())
        for source, first, end in _segments(line, sources):
            found[source].append(Passage(alone, first, lengths[source], end - first))
            lengths[source] += end - first
    return [tuple(one) for one in found]


def _segments(shard: ShardLine, sources: int) -> Iterator[tuple[int, int, int]]:
    """Yield the source, the first token and the end of each segment."""
    firsts = [first for _, first in shard.segments]
    bounds = [*firsts, shard.tokens]
    rising = all(one < other for one, other in pairwise(bounds))
    if firsts[:1] != [0] or not rising or not all(0 <= source < sources for source, _ in shard.segments):
        raise ManifestError(
            message("a token shard has invalid segments", file=shard.name, segments=shard.segments)
        )
    for (source, first), end in zip(shard.segments, bounds[1:], strict=True):
        yield source, first, end


def between(stream: Sequence[Passage], begin: int, end: int) -> Iterator[Passage]:
    """Yield the passages of a stream from token `begin` to `end`, cut to that range."""
    at = max(0, bisect_right(stream, begin, key=lambda passage: passage.start) - 1)
    for passage in islice(stream, at, None):
        first, last = max(begin, passage.start), min(end, passage.end)
        if first < last:
            yield Passage(passage.shard, passage.first + first - passage.start, first, last - first)
        elif passage.start >= end:
            return


def length(stream: Sequence[Passage]) -> int:
    """Return how many tokens a stream has."""
    return stream[-1].end if stream else 0
