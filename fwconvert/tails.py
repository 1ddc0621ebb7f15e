"""Read the tails of jobs: the tokens and the documents of a joined shard, piece by piece."""

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert.config import Rules
from fwconvert.errors import ShardError, message
from fwconvert.folder import RunFolder
from fwconvert.orders import JoinOrder
from fwconvert.pack import Piece
from fwconvert.receipt import Segment
from fwconvert.shard import index_type, map_array, numpy_type, tail_index_type

# Tokens copied at a time: a few MB.
_STEP = 2**21


def joined_pieces(folder: RunFolder, order: JoinOrder) -> Iterator[Piece]:
    """Yield the tokens and the document starts of a joined shard: a job's shard, if any, then the tails."""
    rules = order.context.rules
    if order.absorbed:
        path = folder.shard(order.absorbed.name)
        index = map_array(folder.shard_index(order.absorbed.name), index_type(rules.kind), 0)
        yield from _pieces(path, index, rules, Segment(order.absorbed.source, 0, 0, order.absorbed.tokens))
    for segment, key in zip(order.segments, order.tails, strict=True):
        index = map_array(folder.tail_index(key), tail_index_type(rules), 0)
        yield from _pieces(folder.tail(key), index, rules, segment)


def _pieces(path: Path, index: NDArray[Any], rules: Rules, segment: Segment) -> Iterator[Piece]:
    kind, stop = numpy_type(rules.token_type), segment.start + segment.tokens
    header_bytes = rules.kind.header_bytes
    starts = index["start"]
    if stop > len(map_array(path, kind, header_bytes)):
        raise ShardError(message("a file is shorter than its receipt says", file=path))
    for begin in range(segment.start, stop, _STEP):
        end = min(begin + _STEP, stop)
        first, last = bisect_left(starts, begin), bisect_left(starts, end)
        yield Piece(
            # Read, not mapped: what is mapped counts as a worker's memory, and a tail may have gigabytes.
            tokens=np.fromfile(path, kind, end - begin, offset=header_bytes + begin * kind.itemsize),
            starts=starts[first:last].astype(np.int64) + (segment.first - segment.start),
            rows=index["row"][first:last],
            ends_block=False,
        )
