"""Read the tails of jobs: the tokens and the documents of a joined shard, piece by piece."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert.errors import ShardError, message
from fwconvert.job.orders import JoinOrder
from fwconvert.recipes import Rules
from fwconvert.shards.cutting import Piece
from fwconvert.shards.shard import (
    map_array,
    numpy_type,
    opened,
    read_array,
    read_index,
    tail_index_type,
    token_count,
)
from fwconvert.store import layout
from fwconvert.store.base import Store
from fwconvert.store.receipts import Absorbed, Segment

# Tokens copied at a time: a few MB.
_STEP = 2**21


def joined_pieces(store: Store, order: JoinOrder) -> Iterator[Piece]:
    """Yield the tokens and the document starts of a joined shard: a job's shard, if any, then the tails."""
    rules = order.context.rules
    if order.absorbed:
        yield from _absorbed_pieces(store, order.absorbed, rules)
    for segment, key in zip(order.segments, order.tails, strict=True):
        read = _tail_reader(store.local(layout.tail(key)), rules, segment)
        index = map_array(store.local(layout.tail_index(key)), tail_index_type(rules), 0)
        yield from _pieces(read, index, segment)


# Reads the tokens from one position to another; it is asked for all of them in sequence.
Read = Callable[[int, int], NDArray[Any]]


def _absorbed_pieces(store: Store, absorbed: Absorbed, rules: Rules) -> Iterator[Piece]:
    """Yield a token shard. It is read, because what is mapped or unpacked whole counts as memory."""
    path, kind = store.local(layout.shard(absorbed.name)), numpy_type(rules.token_type)
    whole = Segment(absorbed.source, 0, 0, absorbed.tokens)
    _check_length(path, token_count(path, rules.token_type, rules.kind), whole)
    index = read_index(store.local(layout.index(absorbed.name)), rules.kind)
    with opened(path) as file:
        file.read(rules.kind.header_bytes)
        yield from _pieces(
            lambda begin, end: np.frombuffer(file.read((end - begin) * kind.itemsize), kind), index, whole
        )


def _tail_reader(path: Path, rules: Rules, segment: Segment) -> Read:
    """Return a reader of a tail. It does not map it, because what is mapped counts as memory."""
    kind, header_bytes = numpy_type(rules.token_type), rules.kind.header_bytes
    _check_length(path, len(map_array(path, kind, header_bytes)), segment)
    return lambda begin, end: read_array(path, kind, header_bytes + begin * kind.itemsize, end - begin)


def _check_length(path: Path, tokens: int, segment: Segment) -> None:
    if segment.start + segment.tokens > tokens:
        raise ShardError(message("a file is shorter than its receipt says", file=path))


def _pieces(read: Read, index: NDArray[Any], segment: Segment) -> Iterator[Piece]:
    stop, starts = segment.start + segment.tokens, index["start"]
    for begin in range(segment.start, stop, _STEP):
        end = min(begin + _STEP, stop)
        first, last = bisect_left(starts, begin), bisect_left(starts, end)
        yield Piece(
            tokens=read(begin, end),
            starts=starts[first:last].astype(np.int64) + (segment.first - segment.start),
            rows=index["row"][first:last],
            ends_block=False,
        )
