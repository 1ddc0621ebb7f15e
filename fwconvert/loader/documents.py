"""Document order: whole documents, shuffled over the whole run and packed into windows.

A window begins with the first token of a document (the EOT with `--eot before`)
and goes on with the documents that follow in the shuffled order; the last is
cut where the window ends. The rest of a cut document is passed over, and the
next window begins with the next document, as modded-nanogpt has it.

Where a document lies is looked up in the mapped document index when its turn
comes, so there is no table of documents. A document is what of it stands in the
shard in which it starts; the rest, in the next shard, is passed over too.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert.errors import ShardError, UsageError, message
from fwconvert.loader.files import Kept
from fwconvert.loader.permutation import Numbers
from fwconvert.loader.shards import Shards
from fwconvert.loader.windows import Mark, Share, Shuffle, Tokens
from fwconvert.shards.shard import INDEX_TYPE, LONG_INDEX_TYPE, map_array
from fwconvert.store.folder import RunFolder

# How many documents are looked up at a time.
_AHEAD = 4_096


@dataclass(frozen=True)
class Extents:
    """Some documents in the order in which they are served: where each starts, and where it ends in a row."""

    shards: Sequence[int]
    starts: Sequence[int]
    # How many tokens they have together, up to and with each.
    ends: Sequence[int]


@dataclass(frozen=True)
class Packed:
    """A window: some documents, from the `first` to the `last`, which is cut."""

    extents: Extents
    first: int
    last: int
    passed: int

    @property
    def documents(self) -> int:
        """How many documents it takes."""
        return self.last - self.first + 1


class Documents:
    """All documents of the shards of a run."""

    def __init__(self, shards: Shards, folder: RunFolder, seq_len: int) -> None:
        if not shards.lines:
            raise UsageError(
                message(
                    "these token shards have no document index, so documents cannot be shuffled",
                    "use order='shuffled' or order='sequential'",
                )
            )
        self.size = seq_len + 1
        self._shards = shards
        self._folder = folder
        counts = np.array([line.documents for line in shards.lines], np.int64)
        self._ends = np.cumsum(counts)
        self._firsts = self._ends - counts
        self.total = int(counts.sum())
        self._starts = Kept(self._open, shards.most_open)
        self._tokens = Kept(self._read, shards.most_open)

    def passed(self, windows: int) -> int:
        """Return how many tokens an epoch does not serve that ends after so many windows."""
        return self._shards.tokens - windows * self.size

    def walk(
        self, mark: Mark, share: Share, shuffle: Shuffle, least: int
    ) -> Iterator[tuple[Mark, Sequence[Packed]]]:
        """Yield the mark after each step from `mark` on, and our windows; no step has fewer than `least`."""
        windows = self._windows(mark.documents, shuffle)
        while step := list(islice(windows, share.span)):
            if len(step) < least:
                return
            mark = Mark(
                mark.windows + len(step),
                mark.documents + sum(window.documents for window in step),
                mark.passed + sum(window.passed for window in step),
            )
            ours = share.of(len(step))
            yield mark, step[ours.start : ours.stop]

    def read(self, places: Sequence[Packed]) -> Tokens:
        """Return the windows: a row each."""
        batch = np.empty((len(places), self.size), self._shards.type)
        for row, window in zip(batch, places, strict=True):
            self._fill(row, window)
        return batch

    def _fill(self, row: Tokens, window: Packed) -> None:
        found, filled = window.extents, 0
        before = found.ends[window.first - 1] if window.first else 0
        for at in range(window.first, window.last + 1):
            end = min(found.ends[at] - before, self.size)
            start = found.starts[at]
            row[filled:end] = self._tokens[found.shards[at]][start : start + end - filled]
            filled = end

    def _windows(self, position: int, shuffle: Shuffle) -> Iterator[Packed]:
        """Yield all windows from the document at `position` on; what does not fill one is not yielded."""
        waiting = np.empty((3, 0), np.int64)
        while position < self.total:
            end = min(position + _AHEAD, self.total)
            more = self._look_up(shuffle(np.arange(position, end, dtype=np.int64)))
            position = end
            waiting = np.concatenate([waiting, more], axis=1)
            shards, starts, lengths = waiting
            found = Extents(shards.tolist(), starts.tolist(), np.cumsum(lengths).tolist())
            first = 0
            while (window := self._pack(found, first)) is not None:
                yield window
                first = window.last + 1
            waiting = waiting[:, first:]

    def _pack(self, found: Extents, first: int) -> Packed | None:
        """Return the window that begins with a document; None if there are too few tokens behind it."""
        full = self.size + (found.ends[first - 1] if first else 0)
        last = bisect_left(found.ends, full, lo=first)
        return Packed(found, first, last, found.ends[last] - full) if last < len(found.ends) else None

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
        starts, borders = self._starts[shard], self._borders(shard)
        first = starts[inside].astype(np.int64)
        following = starts[np.minimum(inside + 1, len(starts) - 1)].astype(np.int64)
        # A document ends where the next starts, or where another source's tokens begin.
        end = borders[np.searchsorted(borders, first, side="right")]
        end = np.where(following > first, np.minimum(following, end), end)
        return first, end - first

    def _borders(self, shard: int) -> Numbers:
        line = self._shards.lines[shard]
        return np.array([*(first for _, first in line.segments[1:]), line.tokens], np.int64)

    def _read(self, shard: int) -> NDArray[Any]:
        return self._shards.files[shard].read()

    def _open(self, shard: int) -> NDArray[Any]:
        """Map where the documents of a shard start, after it has been checked that they can."""
        line = self._shards.lines[shard]
        path = self._folder.shard_index(line.name)
        starts = _mapped(path, line.documents)["start"]
        rising = bool(np.all(starts[1:] > starts[:-1]))
        if not rising or (line.documents and int(starts[-1]) >= line.tokens):
            raise ShardError(message("a document index does not fit its token shard", file=path))
        return starts


def _mapped(path: Path, documents: int) -> NDArray[Any]:
    """Map a document index. That of a file that may have more than 2**32 tokens has longer entries."""
    content = map_array(path, np.dtype(np.uint8), 0)
    for kind in (INDEX_TYPE, LONG_INDEX_TYPE):
        if len(content) == documents * kind.itemsize:
            return np.asarray(content).view(kind)
    raise ShardError(
        message(
            "a document index has another size than the run manifest says",
            file=path,
            bytes=f"{len(content):,}",
            documents_in_manifest=f"{documents:,}",
        )
    )
