"""Document order: whole documents, shuffled over the whole run and packed into windows.

A window begins with the first token of a document (its separator with `--eot before` and `--bos-token`)
and continues with the documents that follow in the shuffled order; the last is
cut where the window ends. The rest of a cut document is left out, and the next
window begins with the next document, as in modded-nanogpt.

Where a document is gets looked up in the mapped document index when its turn
comes, so there is no table of documents. Of a document that runs on into the
next shard, only the part in the shard in which it starts is served.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert.errors import UsageError, message
from fwconvert.loader.files import ArrayCache
from fwconvert.loader.permutation import Numbers
from fwconvert.loader.remote import RangedTokens, RemoteFile, side_by_side
from fwconvert.loader.shards import Shards
from fwconvert.loader.state import Position, RankShare
from fwconvert.loader.windows import Shuffle
from fwconvert.shards.cutting import Tokens
from fwconvert.shards.shard import check_starts, read_index
from fwconvert.store import layout
from fwconvert.store.base import Store

# How many documents are looked up at a time.
_AHEAD = 4_096
# How many document indexes are kept open, at least.
_INDEXES = 1_024


@dataclass(frozen=True)
class Extents:
    """Some documents in the order in which they are served: where each starts, and where it ends in a row."""

    shards: Sequence[int]
    starts: Sequence[int]
    # How many tokens they have together, up to and including each.
    ends: Sequence[int]


@dataclass(frozen=True)
class PackedWindow:
    """A window: some documents, from the `first` to the `last`, which is cut."""

    extents: Extents
    first: int
    last: int
    passed: int

    @property
    def documents(self) -> int:
        """How many documents it takes."""
        return self.last - self.first + 1


class PackedDocuments:
    """All documents of the shards of a run, shuffled and packed into windows."""

    def __init__(self, shards: Shards, store: Store, seq_len: int) -> None:
        if not shards.lines:
            raise UsageError(
                message(
                    "these token shards have no document index, so documents cannot be shuffled",
                    "use order='shuffled' or order='sequential'",
                )
            )
        self.size = seq_len + 1
        self._shards = shards
        self._store = store
        counts = np.array([line.documents for line in shards.lines], np.int64)
        self._ends = np.cumsum(counts)
        self._firsts = self._ends - counts
        self.total = int(counts.sum())
        self._is_ranged = shards.are_ranged(in_sequence=False)
        # Indexes are small: a two hundredth of what they belong to.
        self._starts = ArrayCache(self._open_index, max(_INDEXES, shards.most_open))
        self._tokens = ArrayCache(self._read, shards.most_open)

    def passed(self, windows: int) -> int:
        """Return how many tokens an epoch of `windows` windows leaves out."""
        return self._shards.tokens - windows * self.size

    def walk(
        self, position: Position, share: RankShare, shuffle: Shuffle, least: int
    ) -> Iterator[tuple[Position, Sequence[PackedWindow]]]:
        """Yield our windows of each step from `position` on, and the position after it.

        No step has fewer than `least` windows, on all ranks together.
        """
        windows = self._windows(position.documents, shuffle)
        while step := list(islice(windows, share.step_windows)):
            if len(step) < least:
                return
            position = Position(
                position.windows + len(step),
                position.documents + sum(window.documents for window in step),
                position.passed + sum(window.passed for window in step),
            )
            ours = share.of(len(step))
            yield position, step[ours.start : ours.stop]

    def read(self, places: Sequence[PackedWindow]) -> Tokens:
        """Return the windows: a row each."""
        batch = np.empty((len(places), self.size), self._shards.dtype)
        rows = zip(batch, places, strict=True)
        if self._is_ranged:
            side_by_side(lambda pair: self._fill(*pair), rows)
            return batch
        for row, window in rows:
            self._fill(row, window)
        return batch

    def _fill(self, row: NDArray[Any], window: PackedWindow) -> None:
        extents, filled = window.extents, 0
        before = extents.ends[window.first - 1] if window.first else 0
        for at in range(window.first, window.last + 1):
            end = min(extents.ends[at] - before, self.size)
            start, shard = extents.starts[at], extents.shards[at]
            tokens = self._ranged(shard) if self._is_ranged else self._tokens[shard]
            row[filled:end] = tokens[start : start + end - filled]
            filled = end

    def _ranged(self, shard: int) -> RangedTokens:
        file = self._shards.files[shard]
        assert isinstance(file, RemoteFile)  # noqa: S101  # for mypy: only those are ranged
        return RangedTokens(file)

    def _windows(self, position: int, shuffle: Shuffle) -> Iterator[PackedWindow]:
        """Yield all windows from the document at `position` on; what does not fill one is not yielded."""
        waiting = np.empty((3, 0), np.int64)
        while position < self.total:
            end = min(position + _AHEAD, self.total)
            more = self._look_up(shuffle(np.arange(position, end, dtype=np.int64)))
            position = end
            waiting = np.concatenate([waiting, more], axis=1)
            shards, starts, lengths = waiting
            extents = Extents(shards.tolist(), starts.tolist(), np.cumsum(lengths).tolist())
            first, full = 0, self.size
            while (last := bisect_left(extents.ends, full, lo=first)) < len(extents.ends):
                yield PackedWindow(extents, first, last, passed=extents.ends[last] - full)
                first, full = last + 1, extents.ends[last] + self.size
            waiting = waiting[:, first:]

    def _look_up(self, numbers: Numbers) -> NDArray[np.int64]:
        """Return the shard, the start and the length of each document."""
        shards = np.searchsorted(self._ends, numbers, side="right")
        inside = numbers - self._firsts[shards]
        found = np.empty((3, len(numbers)), np.int64)
        found[0] = shards
        by_shard = np.argsort(shards, kind="stable")
        for group in np.split(by_shard, np.flatnonzero(np.diff(shards[by_shard])) + 1):
            found[1:, group] = self._places(int(shards[group[0]]), inside[group])
        return found

    def _places(self, shard: int, inside: Numbers) -> tuple[Numbers, Numbers]:
        """Return the starts and the lengths of some documents of one shard."""
        starts, line = self._starts[shard], self._shards.lines[shard]
        borders = np.array([*(first for _, first in line.segments[1:]), line.tokens], np.int64)
        first = starts[inside].astype(np.int64)
        following = starts[np.minimum(inside + 1, len(starts) - 1)].astype(np.int64)
        # A document ends where the next starts, or where another source's tokens begin.
        end = borders[np.searchsorted(borders, first, side="right")]
        end = np.where(following > first, np.minimum(following, end), end)
        return first, end - first

    def _read(self, shard: int) -> NDArray[Any]:
        return self._shards.files[shard].read()

    def _open_index(self, shard: int) -> NDArray[Any]:
        """Map where the documents of a shard start, after checking that the starts are valid."""
        line = self._shards.lines[shard]
        with self._store.on_disk(layout.index(line.name), line.index_sha256) as path:
            starts = np.asarray(read_index(path, self._shards.shard_format, line.documents))["start"]
            check_starts(starts, 0, line.tokens, path)
        return starts
