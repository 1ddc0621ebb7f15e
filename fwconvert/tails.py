"""Read the tails of jobs: the tokens and the documents of a joined shard, piece by piece."""

from collections.abc import Iterator

import numpy as np

from fwconvert.config import HEADER_BYTES
from fwconvert.errors import ShardError, message
from fwconvert.folder import RunFolder
from fwconvert.orders import JoinOrder
from fwconvert.pack import Piece
from fwconvert.shard import map_array, numpy_type, tail_index_type

# Tokens copied at a time: a few MB.
_STEP = 2**21


def joined_pieces(folder: RunFolder, order: JoinOrder) -> Iterator[Piece]:
    """Yield the tokens and the document starts of a joined shard, read from the tails."""
    rules = order.context.rules
    for segment, key in zip(order.segments, order.tails, strict=True):
        tokens = map_array(folder.tail(key), numpy_type(rules.token_type), HEADER_BYTES)
        index = map_array(folder.tail_index(key), tail_index_type(rules), 0)
        starts = index["start"].astype(np.int64)
        stop = segment.start + segment.tokens
        if stop > len(tokens):
            raise ShardError(message("a tail is shorter than its receipt says", file=folder.tail(key)))
        for begin in range(segment.start, stop, _STEP):
            end = min(begin + _STEP, stop)
            first, last = np.searchsorted(starts, (begin, end))
            yield Piece(
                tokens=tokens[begin:end],
                starts=starts[first:last] + (segment.first - segment.start),
                rows=index["row"][first:last],
                ends_block=False,
            )
