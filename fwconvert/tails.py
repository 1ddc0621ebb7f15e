"""Read the tails of jobs: the tokens and the documents of a joined shard, piece by piece."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert.config import HEADER_BYTES
from fwconvert.errors import ShardError, message
from fwconvert.folder import RunFolder
from fwconvert.orders import JoinOrder
from fwconvert.pack import Piece
from fwconvert.receipt import Segment
from fwconvert.shard import map_array, numpy_type, read_index, read_tokens, tail_index_type

# Tokens copied at a time: a few MB.
_STEP = 2**21


def joined_pieces(folder: RunFolder, order: JoinOrder) -> Iterator[Piece]:
    """Yield the tokens and the document starts of a joined shard: a job's shard, if any, then the tails."""
    rules = order.context.rules
    if order.absorbed:
        name, whole = order.absorbed.name, Segment(order.absorbed.source, 0, 0, order.absorbed.tokens)
        tokens = read_tokens(folder.shard(name), rules.token_type)
        yield from _pieces(tokens, read_index(folder.shard_index(name)), whole, folder.shard(name))
    for segment, key in zip(order.segments, order.tails, strict=True):
        tokens = map_array(folder.tail(key), numpy_type(rules.token_type), HEADER_BYTES)
        index = map_array(folder.tail_index(key), tail_index_type(rules), 0)
        yield from _pieces(tokens, index, segment, folder.tail(key))


def _pieces(tokens: NDArray[Any], index: NDArray[Any], segment: Segment, path: Path) -> Iterator[Piece]:
    stop = segment.start + segment.tokens
    if stop > len(tokens):
        raise ShardError(message("a file is shorter than its receipt says", file=path))
    starts = index["start"].astype(np.int64)
    for begin in range(segment.start, stop, _STEP):
        end = min(begin + _STEP, stop)
        first, last = np.searchsorted(starts, (begin, end))
        yield Piece(
            tokens=tokens[begin:end],
            starts=starts[first:last] + (segment.first - segment.start),
            rows=index["row"][first:last],
            ends_block=False,
        )
