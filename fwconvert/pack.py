"""Cut a stream of documents into blocks of exact size.

Pure: no input, no output, no clock. Documents run across block ends and may be
longer than a block. No token is added or lost: the pieces joined are the
batches joined.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from fwconvert.recipe import Rules

# The size of a block that never ends.
UNBOUNDED = sys.maxsize

Tokens = NDArray[np.uint16 | np.uint32]


@dataclass(frozen=True)
class Batch:
    """Some whole documents as tokens, separators included."""

    tokens: Tokens
    # Of each document: the position in `tokens` at which it starts, and its row in the source shard.
    starts: NDArray[np.int64]
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """The part of a batch that falls into one block; `starts` are positions in the block."""

    tokens: Tokens
    starts: NDArray[np.int64]
    rows: NDArray[np.int64]
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
            yield _piece(batch, begin, end, position=filled, ends_block=full)
            begin, filled = end, filled + end - begin
            if full:
                size, filled = next(remaining), 0


def _piece(batch: Batch, begin: int, end: int, *, position: int, ends_block: bool) -> Piece:
    first, last = np.searchsorted(batch.starts, (begin, end))
    return Piece(
        tokens=batch.tokens[begin:end],
        starts=batch.starts[first:last] + (position - begin),
        rows=batch.rows[first:last],
        ends_block=ends_block,
    )


def has_validation(rules: Rules, source_index: int) -> bool:
    """Tell whether a job's first block is the validation shard, should it fill."""
    return rules.layout == "independent" and source_index == 0 and rules.val_tokens > 0


def block_sizes(rules: Rules, source_index: int) -> Iterator[int]:
    """Yield the sizes of the blocks into which a job cuts its tokens; what fills none is its tail."""
    if rules.layout == "contiguous":
        return repeat(UNBOUNDED)
    first = [rules.val_tokens] if has_validation(rules, source_index) else []
    return chain(first, repeat(rules.block_tokens))
