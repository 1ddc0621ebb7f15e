"""Read the stream of one source out of the token shards of a run.

A file is hashed before anything in it is trusted, once per process while it
stays the same file. It is mapped for a moment and a part of it copied, so that
memory does not grow with the size of a token shard.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert import files
from fwconvert.errors import ShardError, UsageError, message
from fwconvert.recipes import Rules, Separators
from fwconvert.shards import shard
from fwconvert.shards.passages import Passage, between, length
from fwconvert.store import layout
from fwconvert.store.base import Store
from fwconvert.store.receipts import ShardLine

# The files that this process has hashed, keyed by what shows that a file is unchanged.
_MOST_HASHED = 4096
_hashed: dict[tuple[Path, int, int, int], str] = {}

# Of a remote store a thread keeps copies of as many files: a token shard, its index, and those before them.
_MOST_COPIES = 4
_copies = threading.local()


@dataclass(frozen=True)
class DocumentStarts:
    """Where documents start in a stream, and their rows in the source."""

    starts: NDArray[np.int64]
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class DocumentSpan:
    """One document of a stream: its number in it, from 0, its row, its first token and its end."""

    number: int
    row: int
    start: int
    end: int
    # Otherwise its end is in a token shard that is not made yet, was dropped, or is past a limit.
    is_whole: bool


class StreamReader:
    """The tokens and the documents of one source."""

    def __init__(
        self,
        store: Store,
        rules: Rules,
        passages: Sequence[Passage],
        separators: Separators,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._rules = rules
        self._passages = passages
        self.length = length(passages)
        self.separators = separators
        # Called while files are hashed; may raise to stop.
        self._tick = tick

    def tokens(self, begin: int, end: int) -> NDArray[Any]:
        """Return a copy of the tokens from `begin` to `end`."""
        begin, end = max(0, begin), max(0, min(end, self.length))
        tokens = np.empty(max(0, end - begin), shard.numpy_type(self._rules.token_type))
        # Copied one by one: a map that is kept is an open file, and a document may span thousands of shards.
        for passage in between(self._passages, begin, end):
            part = self._shard(passage.shard)[passage.first : passage.first + passage.tokens]
            tokens[passage.start - begin : passage.end - begin] = part
        return tokens

    def documents(self, begin: int, end: int) -> DocumentStarts:
        """Return the documents that start from `begin` to `end`."""
        starts, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for passage in between(self._passages, begin, end):
            entries = self._entries(passage)
            starts.append(entries["start"].astype(np.int64) + (passage.start - passage.first))
            rows.append(entries["row"].astype(np.int64))
        return DocumentStarts(np.concatenate(starts), np.concatenate(rows))

    def document_at(self, position: int) -> DocumentSpan:
        """Return the document that contains the token at `position`, however many shards it spans."""
        number, found = 0, None
        for passage in between(self._passages, 0, position + 1):
            entries = self._entries(passage)
            if len(entries):
                found = passage, entries[-1]
            number += len(entries)
        if found is None:
            raise shard.misfit(self._passages[0].shard.name)
        passage, entry = found
        return self._document(number - 1, passage, entry)

    def document(self, number: int) -> DocumentSpan:
        """Return a document by its number, counted from 0."""
        before = 0
        for passage in self._passages:
            entries = self._entries(passage)
            if number < before + len(entries):
                return self._document(number, passage, entries[number - before])
            before += len(entries)
        raise shard.misfit(self._passages[-1].shard.name if self._passages else "manifest.json")

    def place(self, position: int) -> tuple[str, int]:
        """Return the token shard that holds a token of the stream, and its offset there."""
        (passage,) = between(self._passages, position, position + 1)
        return passage.shard.name, passage.first

    def _document(self, number: int, passage: Passage, entry: Any) -> DocumentSpan:
        start = int(entry["start"]) - passage.first + passage.start
        for token, at in ((self.separators.before, start), (self.separators.after, start - 1)):
            if token is not None and at >= 0 and self.tokens(at, at + 1).tolist() != [token]:
                raise shard.misfit(passage.shard.name)
        return DocumentSpan(number, int(entry["row"]), start, *self._end(start))

    def _end(self, start: int) -> tuple[int, bool]:
        """Return where a document ends (at the next one, or with the stream) and whether it is whole."""
        for passage in between(self._passages, start + 1, self.length):
            if not passage.shard.sha256:
                return passage.start, False
            entries = self._entries(passage)
            if len(entries):
                return int(entries["start"][0]) - passage.first + passage.start, True
        return self.length, True

    def _shard(self, line: ShardLine) -> NDArray[Any]:
        path = self._verified(layout.shard(line.name), line.sha256)
        tokens = shard.read_tokens(
            path, self._rules.token_type, self._rules.shard_format, line.tokens, self._tick
        )
        if len(tokens) != line.tokens:
            raise shard.misfit(line.name)
        return tokens

    def _entries(self, passage: Passage) -> NDArray[Any]:
        """Return the index entries of the documents that start in a passage."""
        line, end = passage.shard, passage.first + passage.tokens
        path = self._verified(layout.index(line.name), line.index_sha256)
        index = shard.read_index(path, self._rules.shard_format, line.documents)
        # Not numpy's search, which would copy all starts.
        starts = index["start"]
        found = np.array(index[bisect_left(starts, passage.first) : bisect_right(starts, end - 1)])
        shard.check_starts(found["start"], passage.first, end, line.name)
        return found

    def _copy(self, name: str, sha256: str) -> Path:
        """Return a copy of a file of a remote store, which was proven when it was fetched."""
        held: dict[tuple[str, str], tuple[ExitStack, Path]] = _copies.__dict__.setdefault("held", {})
        key = self._store.address(name), sha256
        if key not in held:
            while len(held) >= _MOST_COPIES:
                held.pop(next(iter(held)))[0].close()
            with ExitStack() as opening:
                path = opening.enter_context(self._store.on_disk(name, sha256))
                held[key] = opening.pop_all(), path
        self._tick()
        return held[key][1]

    def _verified(self, name: str, sha256: str) -> Path:
        """Return the path of a file after checking its sha256, once as long as it is unchanged."""
        address = self._store.address(name)
        if not sha256:
            raise UsageError(
                message(
                    "a token shard is not made yet, or its tokens were dropped (--last drop)",
                    "if the run is not finished, run the command that made it again, and let it finish",
                    file=address,
                )
            )
        try:
            if self._store.is_remote:
                return self._copy(name, sha256)
            path = self._store.local(name)
            state = files.state_of(path)
            same = path, state.st_ino, state.st_size, state.st_mtime_ns
            if same not in _hashed:
                if len(_hashed) >= _MOST_HASHED:
                    _hashed.clear()
                _hashed[same] = files.sha256_of(path, lambda _: self._tick())
            found = _hashed[same]
        except OSError as error:
            raise ShardError(
                message(
                    "a file of the run cannot be read",
                    "run the command that made the run again: it remakes what is missing",
                    file=address,
                    reason=error.strerror,
                )
            ) from error
        if found != sha256:
            raise ShardError(
                message(
                    "a file of the run is damaged: its sha256 is not the one in the run manifest",
                    "run the command that made the run again: it remakes the file",
                    file=address,
                    expected=sha256,
                    found=found,
                )
            )
        return path
