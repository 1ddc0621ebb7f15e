"""The stream of one source in a run: in which token shards its tokens stand, in order.

Pure arithmetic. A source's stream is what its job gave: the tokens of its own
token shards by block, then its part of the joined ones. `stream_reader` reads it.

Read the stream of one source out of the token shards of a run.

A file is hashed before anything in it is believed, once in a process while it
stays the same file. It is mapped for a moment and a part of it copied, so that
memory does not grow with the size of a token shard.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fwconvert import files
from fwconvert.errors import ManifestError, ShardError, UsageError, message
from fwconvert.job import process
from fwconvert.recipe import Rules
from fwconvert.shards import shard
from fwconvert.store.folder import RunFolder
from fwconvert.store.receipts import ShardLine
from fwconvert.tokens import vocabulary


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
    """Return the passages of each source. `shards` stand in the order in which they were cut.

    Raises ManifestError if the segments of a shard cannot be.
    """
    found: list[list[Passage]] = [[] for _ in range(sources)]
    lengths: Counter[int] = Counter()
    for line in shards:
        # Passages go to workers, and the segments of all sources would go with each.
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
            message("a token shard has segments that cannot be", file=shard.name, segments=shard.segments)
        )
    for (source, first), end in zip(shard.segments, bounds[1:], strict=True):
        yield source, first, end


def between(stream: Sequence[Passage], begin: int, end: int) -> Iterator[Passage]:
    """Yield what a stream has from token `begin` to `end`, passage by passage."""
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


@dataclass(frozen=True)
class Documents:
    """Where documents start in a stream, and their rows in the source."""

    starts: NDArray[np.int64]
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Document:
    """One document of a stream: its number in it, from 0, its row, its first token and its end."""

    number: int
    row: int
    start: int
    end: int
    # Otherwise its end is in a token shard that is not made yet, was dropped, or is behind a limit.
    is_whole: bool


class StreamReader:
    """The tokens and the documents of one source."""

    def __init__(self, run: Path, rules: Rules, passages: Sequence[Passage]) -> None:
        self._folder = RunFolder(run)
        self._rules = rules
        self._passages = passages
        self.length = length(passages)
        self.eot = vocabulary.find(rules.tokenizer).eot

    def tokens(self, begin: int, end: int) -> NDArray[Any]:
        """Return a copy of the tokens from `begin` to `end`."""
        begin, end = max(0, begin), max(0, min(end, self.length))
        tokens = np.empty(max(0, end - begin), shard.numpy_type(self._rules.token_type))
        # Copied one by one: a map that is kept is an open file, and a document may span thousands of shards.
        for passage in between(self._passages, begin, end):
            part = self._shard(passage.shard)[passage.first : passage.first + passage.tokens]
            tokens[passage.start - begin : passage.end - begin] = part
        return tokens

    def documents(self, begin: int, end: int) -> Documents:
        """Return the documents that start from `begin` to `end`."""
        starts, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for passage in between(self._passages, begin, end):
            entries = self._entries(passage)
            starts.append(entries["start"].astype(np.int64) + (passage.start - passage.first))
            rows.append(entries["row"].astype(np.int64))
        return Documents(np.concatenate(starts), np.concatenate(rows))

    def document_at(self, position: int) -> Document:
        """Return the document that has the token at `position`, however many shards it spans."""
        number, found = 0, None
        for passage in between(self._passages, 0, position + 1):
            entries = self._entries(passage)
            if len(entries):
                found = passage, entries[-1]
            number += len(entries)
        if found is None:
            raise _misfit(self._passages[0].shard.name)
        passage, entry = found
        return self._document(number - 1, passage, entry)

    def document(self, number: int) -> Document:
        """Return a document by its number, counted from 0."""
        before = 0
        for passage in self._passages:
            entries = self._entries(passage)
            if number < before + len(entries):
                return self._document(number, passage, entries[number - before])
            before += len(entries)
        raise _misfit(self._passages[-1].shard.name if self._passages else "manifest.json")

    def place(self, position: int) -> tuple[str, int]:
        """Return the token shard that has a token of the stream, and where."""
        (passage,) = between(self._passages, position, position + 1)
        return passage.shard.name, passage.first

    def _document(self, number: int, passage: Passage, entry: Any) -> Document:
        start = int(entry["start"]) - passage.first + passage.start
        before = start if self._rules.eot == "before" else start - 1
        if before >= 0 and self.tokens(before, before + 1).tolist() != [self.eot]:
            raise _misfit(passage.shard.name)
        return Document(number, int(entry["row"]), start, *self._end(start))

    def _end(self, start: int) -> tuple[int, bool]:
        """Return where a document ends, as far as it is there: at the next one, or with the stream."""
        for passage in between(self._passages, start + 1, self.length):
            if not passage.shard.sha256:
                return passage.start, False
            entries = self._entries(passage)
            if len(entries):
                return int(entries["start"][0]) - passage.first + passage.start, True
        return self.length, True

    def _shard(self, line: ShardLine) -> NDArray[Any]:
        path = self._folder.shard(line.name)
        _believe(path, line.sha256)
        tokens = shard.read_tokens(path, self._rules.token_type, self._rules.kind, line.tokens)
        if len(tokens) != line.tokens:
            raise _misfit(line.name)
        return tokens

    def _entries(self, passage: Passage) -> NDArray[Any]:
        """Return the index entries of the documents that start in a passage."""
        line, end = passage.shard, passage.first + passage.tokens
        path = self._folder.shard_index(line.name)
        _believe(path, line.index_sha256)
        index = shard.read_index(path, self._rules.kind)
        if len(index) != line.documents:
            raise _misfit(line.name)
        # Not numpy's search, which would copy all starts.
        starts = index["start"]
        found = np.array(index[bisect_left(starts, passage.first) : bisect_right(starts, end - 1)])
        inside = found["start"].astype(np.int64)
        rising = bool(np.all(inside[1:] > inside[:-1]))
        if len(inside) and not (rising and passage.first <= inside[0] and inside[-1] < end):
            raise _misfit(line.name)  # A hash that fits says only that it was written so.
        return found


def _believe(path: Path, sha256: str) -> None:
    """Raise ShardError unless the file has this sha256; hashed once while it stays the same."""
    if not sha256:
        raise UsageError(
            message(
                "a token shard is not made yet, or what would be in it was dropped (--last drop)",
                "if the run is not finished, run the command that makes it again, to its end",
                file=path,
            )
        )
    with _reading(path):
        state = path.stat()
        found = _sha256(path, (state.st_ino, state.st_size, state.st_mtime_ns))
    if found != sha256:
        raise ShardError(
            message(
                "a file of the run is damaged: its sha256 is not the one in the run manifest",
                "run the command that made the run again: it makes the file again",
                file=path,
                wanted=sha256,
                found=found,
            )
        )


@lru_cache(maxsize=4096)
def _sha256(path: Path, _: tuple[int, int, int]) -> str:
    return files.sha256_of(path, lambda _: process.stop_if_asked())


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unreadable(path, error.strerror) from error


def _unreadable(path: Path, reason: str | None) -> ShardError:
    return ShardError(
        message(
            "a file of the run cannot be read",
            "run the command that made the run again: it makes what is missing",
            file=path,
            reason=reason,
        )
    )


def _misfit(name: str) -> ShardError:
    return ShardError(
        message("a document index does not fit its token shard", "see fwconvert verify", file=name)
    )
