"""The windows of a set of shards: cut as llm.c cuts them, numbered over all shards, read in any order.

A window is `seq_len` + 1 tokens, inputs and targets, which overlap by one; so
does each window with the next. A shard holds (tokens - 1) // seq_len of them;
what is left at its end is in none, as with llm.c.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fwconvert.loader.files import ArrayCache
from fwconvert.loader.permutation import Numbers
from fwconvert.loader.remote import RangedRows, RemoteFile, side_by_side
from fwconvert.loader.shards import Shards
from fwconvert.loader.state import Position, RankShare
from fwconvert.shards.cutting import Tokens

Shuffle = Callable[[Numbers], Numbers]
# A run of windows: its first row in the batch and the end, its shard, its first row there and the end.
Place = tuple[int, int, int, int, int]

# How many windows are looked up at a time: numpy is fast with many numbers, not with few.
_AHEAD = 4_096


class Windows:
    """All windows of the shards."""

    def __init__(self, shards: Shards, seq_len: int, *, in_sequence: bool = False) -> None:
        self.seq_len = seq_len
        self._is_ranged = shards.are_ranged(in_sequence=in_sequence)
        self._counts = np.array([max(0, file.tokens - 1) // seq_len for file in shards.files], np.int64)
        self._ends = np.cumsum(self._counts)
        self._firsts = self._ends - self._counts
        self._shards = shards
        self._rows = ArrayCache(self._open, shards.most_open)
        self.total = int(self._counts.sum())
        # Tokens at the ends of shards that are in no window.
        covered = self.total * seq_len + int(np.count_nonzero(self._counts))
        self._left = shards.tokens - covered

    def passed(self, windows: int) -> int:
        """Return how many tokens an epoch of `windows` windows leaves out."""
        return self._left + (self.total - windows) * self.seq_len

    def walk(
        self, position: Position, share: RankShare, shuffle: Shuffle, least: int
    ) -> Iterator[tuple[Position, Sequence[Place]]]:
        """Yield our windows of each step from `position` on, and the position after it.

        No step has fewer than `least` windows, on all ranks together.
        """
        done = position.windows
        while (left := self.total - done) > 0:
            size = share.step_windows
            steps = min(left // size, max(1, _AHEAD // share.batch))
            if not steps:
                if left < least:
                    return
                size, steps = left, 1
            ours = share.of(size)
            firsts = done + size * np.arange(steps, dtype=np.int64)
            numbers = shuffle((firsts[:, None] + np.arange(ours.start, ours.stop)).ravel())
            for places in self._places(numbers.reshape(steps, len(ours))):
                done += size
                yield Position(done), places

    def read(self, places: Sequence[Place]) -> Tokens:
        """Return the windows at these places: a row each."""
        batch = np.empty((places[-1][1] if places else 0, self.seq_len + 1), self._shards.dtype)
        if self._is_ranged:
            side_by_side(lambda place: self._ask(batch, place), places)
            return batch
        for begin, end, shard, row, row_end in places:
            batch[begin:end] = self._rows[shard][row:row_end]
        return batch

    def _ask(self, batch: Tokens, place: Place) -> None:
        begin, end, shard, row, row_end = place
        file = self._shards.files[shard]
        assert isinstance(file, RemoteFile)  # noqa: S101  # for mypy: only those are ranged
        batch[begin:end] = RangedRows(file, self.seq_len)[row:row_end]

    def _places(self, numbers: Numbers) -> Iterator[list[Place]]:
        """Yield where the windows of each step are, of which each has a row of `numbers`."""
        shards = np.searchsorted(self._ends, numbers, side="right")
        rows = numbers - self._firsts[shards]
        begins_run = np.ones(numbers.shape, np.bool_)
        begins_run[:, 1:] = (np.diff(numbers) != 1) | (np.diff(shards) != 0)
        steps, begins = np.nonzero(begins_run)
        lengths = np.diff(np.flatnonzero(begins_run), append=numbers.size)
        row, shard = rows[begins_run], shards[begins_run]
        columns = (begins, begins + lengths, shard, row, row + lengths)
        places = list(zip(*(column.tolist() for column in columns), strict=True))
        borders = np.searchsorted(steps, np.arange(len(numbers) + 1)).tolist()
        return (places[first:last] for first, last in pairwise(borders))

    def _open(self, shard: int) -> NDArray[Any]:
        """Return the windows of a shard as the rows of one array, which overlap as they do in the file."""
        tokens = self._shards.files[shard].read()
        step = tokens.strides[0]
        shape = (int(self._counts[shard]), self.seq_len + 1)
        return as_strided(tokens, shape, (self.seq_len * step, step), writeable=False)
