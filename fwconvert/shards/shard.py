"""Token shards and document indexes on disk: their bytes, their writer and their reader.

A token shard is a header, which some formats have, then the tokens and
nothing else. FORMAT.md describes each byte. A document index is a plain array;
how wide its entries are follows from the format of the token shard, so it is never
guessed from a file. Both files are written and opened here alone; headers
are parsed by `formats`.
"""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fwconvert import files
from fwconvert.errors import ShardError, message
from fwconvert.formats import LLMC, ZIPPED, Format
from fwconvert.recipes import Rules, TokenType
from fwconvert.shards import table, zstd
from fwconvert.shards.cutting import Piece
from fwconvert.shards.sidecars import Spans, sidecar_parts
from fwconvert.store import layout
from fwconvert.store.base import Draft, Store

# A document index entry: where the document starts in the token shard, and its row in the source shard.
INDEX_TYPE = np.dtype([("start", "<u4"), ("row", "<u4")])
# The tail of a whole source shard may be longer than 2**32 tokens, and so may a whole stream.
LONG_INDEX_TYPE = np.dtype([("start", "<u8"), ("row", "<u4")])
# Written between two calls of `tick`.
_STEP_BYTES = 2**26
# Index entries compared at a time: the index of a whole stream may be larger than the memory.
_STEP_ENTRIES = 2**20


def _nothing() -> None:
    pass


def numpy_type(token_type: TokenType) -> np.dtype[Any]:
    """Return the type of a token on disk, little-endian on every machine."""
    return np.dtype("<u2" if token_type == "uint16" else "<u4")  # noqa: S105  # not a password


def index_type(shard_format: Format) -> np.dtype[Any]:
    """Return the type of the entries in the document index of a token shard."""
    return INDEX_TYPE if shard_format.index_start == "<u4" else LONG_INDEX_TYPE


def tail_index_type(rules: Rules) -> np.dtype[Any]:
    """Return the type of the entries in a tail's document index."""
    return LONG_INDEX_TYPE if rules.layout == "contiguous" else INDEX_TYPE


def header(token_type: TokenType, tokens: int, shard_format: Format = LLMC) -> bytes:
    """Return the header of a token shard with `tokens` tokens."""
    return shard_format.header_of(numpy_type(token_type).itemsize, tokens)


class ShardWriter:
    """A token shard and its document index under construction, both as drafts of a store.

    `tokens` is how many the header promises. A block that does not fill keeps
    that header: as a tail it is the start of the token shard that it would
    have become, and its receipt says how many tokens it has.
    """

    def __init__(
        self,
        store: Store,
        label: str,
        rules: Rules,
        tokens: int,
        threads: int = 1,
        tick: Callable[[], None] = _nothing,
    ) -> None:
        self._store, self._label, self._rules, self._threads = store, label, rules, threads
        # Called often during long writes; may raise to stop.
        self._tick = tick
        self._type = numpy_type(rules.token_type)
        self._index_type = index_type(rules.shard_format) if tokens else tail_index_type(rules)
        self.tokens = 0
        self.documents = 0
        with ExitStack() as unfinished:
            self.body = unfinished.enter_context(store.draft(label))
            self.index = unfinished.enter_context(store.draft(label))
            self.body.write(header(rules.token_type, tokens, rules.shard_format))
            unfinished.pop_all()
        self._sidecars: list[Draft] = []
        # What is published: the body itself, or the body compressed.
        self.file = self.body

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for draft in (self.body, self.file, self.index, *self._sidecars):
            draft.discard()

    def write(self, piece: Piece) -> None:
        """Append a piece of the block."""
        entries = np.empty(len(piece.starts), self._index_type)
        entries["start"] = piece.starts
        entries["row"] = piece.rows
        tokens = np.ascontiguousarray(piece.tokens, self._type).view(np.uint8).data
        for at in range(0, len(tokens), _STEP_BYTES):  # A single document may be huge.
            self.body.write(tokens[at : at + _STEP_BYTES])
            self._tick()
        self.index.write(entries.view(np.uint8).data)
        self.tokens += len(piece.tokens)
        self.documents += len(entries)

    def finish(self) -> None:
        """Sync both files to disk; all that is left is to publish them."""
        self.body.finish()
        self.index.finish()

    def complete(self, firsts: Sequence[int]) -> None:
        """Sync a whole token shard to disk, with the sidecar files of its format.

        `firsts` are the positions at which the tokens of another source begin; the first is 0.
        """
        self.finish()
        if self._rules.compress:
            # Only whole shards are compressed, because a frame begins with its size.
            self.file = self._store.draft(self._label)
            zstd.zip_file(self.body.path, self.file.write, self._threads, self._tick)
            self.file.finish()
            self.body.discard()
        kind = self._rules.shard_format
        if not (kind.sidecars or kind.is_table):
            return
        entries = map_array(self.index.path, self._index_type, 0)
        spans = Spans(entries["start"], firsts, self.tokens)
        if kind.is_table:
            body = self.body.path
            self.file = self._store.draft(self._label)
            size = self._type.itemsize
            table.write(
                lambda begin, end: read_array(body, self._type, begin * size, end - begin),
                spans, self.file.write, self._tick,
            )  # fmt: skip
            self.file.finish()
            self.body.discard()
        for suffix in kind.sidecars:
            draft = self._store.draft(self._label)
            self._sidecars.append(draft)
            for part in sidecar_parts(suffix, self._rules, spans):
                draft.write(part)
                self._tick()
            draft.finish()

    def sidecars(self, shard: str) -> Iterator[tuple[str, Draft]]:
        """Yield the names and drafts of the sidecar files of a complete token shard of that name."""
        return zip(layout.sidecars(self._rules, shard), self._sidecars, strict=True)

    def publish(self, shard: str, index: str, tick: Callable[[], None] = _nothing) -> None:
        """Give all files their names in the store. `tick` is called now and then if that takes long."""
        self.index.publish(index, tick)
        if self._sidecars:  # A tail has none.
            for name, draft in self.sidecars(shard):
                draft.publish(name, tick)
        self.file.publish(shard, tick)


class Beginning(NamedTuple):
    """How a file begins, and how large it is."""

    head: bytes
    file_bytes: int
    # The same unless the file is compressed.
    content_bytes: int


def beginning(path: Path, most: int) -> Beginning:
    """Return the first bytes of what a file holds, `most` of them or all there are, and its size."""
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if path.suffix != ZIPPED:
            return Beginning(file.read(most) or b"", size, size)
    return Beginning(zstd.head(path, most), size, zstd.content_size(path))


def token_count(path: Path, token_type: TokenType, shard_format: Format) -> int:
    """Return how many tokens a token shard has, after its header and its size have been checked."""
    if shard_format.is_table:
        return table.token_count(path)
    head, _, size = beginning(path, shard_format.header_bytes)
    return shard_format.own_contents(path, head, size, numpy_type(token_type).itemsize).tokens


def read_tokens(
    path: Path,
    token_type: TokenType,
    shard_format: Format = LLMC,
    tokens: int | None = None,
    tick: Callable[[], None] = _nothing,
) -> NDArray[Any]:
    """Map the tokens of a token shard, after its header and its size have been checked.

    A compressed one is unpacked into memory, unless it must have `tokens`
    tokens and says otherwise. `tick` is called often meanwhile, and may raise
    to stop.
    """
    there = token_count(path, token_type, shard_format)
    offset, dtype = shard_format.header_bytes, numpy_type(token_type)
    if path.suffix != ZIPPED and not shard_format.is_table:
        return map_array(path, dtype, offset)
    if tokens is not None and there != tokens:
        wrong = "the number of tokens in a token shard does not match the run manifest"
        raise ShardError(message(wrong, file=path, tokens=f"{there:,}", tokens_in_manifest=f"{tokens:,}"))
    state = path.stat()
    if shard_format.is_table:
        return _read_table(path, dtype, tick, state.st_size, state.st_mtime_ns)
    most = min(shard_format.most(dtype.itemsize) * dtype.itemsize + offset, 2**62)
    content = _unpacked(path, most, tick, state.st_size, state.st_mtime_ns)
    shard_format.own_contents(path, content[:offset].tobytes(), len(content), dtype.itemsize)
    return content[offset:].view(dtype)


@lru_cache(1)  # A shard that is read in steps is unpacked once.
def _unpacked(path: Path, most: int, tick: Callable[[], None], *_state: int) -> NDArray[np.uint8]:
    return zstd.unzip(path, most, tick)


@lru_cache(1)
def _read_table(path: Path, dtype: "np.dtype[Any]", tick: Callable[[], None], *_state: int) -> NDArray[Any]:
    return table.read(path, dtype, tick)


@contextmanager
def opened(path: Path, rules: Rules) -> Iterator["io.BufferedReader[Any]"]:
    """Read a token shard from its beginning: the header, and tokens, however they are packed."""
    if rules.shard_format.is_table:
        yield io.BufferedReader(table.Content(path, numpy_type(rules.token_type)), zstd.STEP)
        return
    if path.suffix != ZIPPED:
        with io.BufferedReader(files.open_to_read(path)) as file:
            yield file
        return
    with zstd.unzipping(path, zstd.OWN_WINDOW) as content:
        yield io.BufferedReader(content, zstd.STEP)


def read_index(path: Path, shard_format: Format = LLMC, documents: int | None = None) -> NDArray[Any]:
    """Map the document index of a token shard; raise ShardError if it does not have `documents` entries."""
    entries = map_array(path, index_type(shard_format), 0)
    if documents is not None and len(entries) != documents:
        raise ShardError(
            message(
                "the size of a document index does not match the run manifest",
                "see fwconvert verify",
                file=path,
                entries=f"{len(entries):,}",
                documents_in_manifest=f"{documents:,}",
            )
        )
    return entries


def check_starts(starts: NDArray[Any], begin: int, end: int, file: object) -> None:
    """Raise ShardError, which names `file`, unless the starts rise and lie from `begin` to before `end`.

    A matching hash only shows that the index was written that way.
    """
    if len(starts) and not (begin <= int(starts[0]) and int(starts[-1]) < end):
        raise misfit(file)
    if first_fall(starts) >= 0:
        raise misfit(file)


def misfit(file: object) -> ShardError:
    """Return the error for a document index that does not match its token shard."""
    return ShardError(
        message("a document index does not fit its token shard", "see fwconvert verify", file=file)
    )


def first_fall(values: NDArray[Any]) -> int:
    """Return the index at which `values`, which may be mapped, first fail to increase; -1 if none."""
    for begin in range(0, len(values), _STEP_ENTRIES):
        part = values[begin : begin + _STEP_ENTRIES + 1]
        falls = np.flatnonzero(part[1:] <= part[:-1])
        if len(falls):
            return begin + int(falls[0]) + 1
    return -1


def map_array(path: Path, dtype: np.dtype[Any], offset: int) -> NDArray[Any]:
    """Map a file of `dtype` from `offset` to its end; an empty one gives an empty array."""
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size - offset
        if size < 0 or size % dtype.itemsize:
            raise ShardError(message("a file is cut short", file=path, bytes=f"{size + offset:,}"))
        if size == 0:  # An empty file cannot be mapped.
            return np.empty(0, dtype)
        return np.memmap(file, dtype, "r", offset)


def read_array(path: Path, dtype: np.dtype[Any], offset: int, count: int) -> NDArray[Any]:
    """Return a copy of `count` numbers of `dtype` from `offset` on, or as many as there are."""
    with reading(path) as file:
        return np.fromfile(file, dtype, count, offset=offset)


@contextmanager
def reading(path: Path) -> Iterator[io.FileIO]:
    """Open a regular file; an error while reading becomes a ShardError that names it."""
    try:
        with files.open_to_read(path) as file:
            yield file
    except OSError as error:
        raise ShardError(message("a file cannot be read", file=path, reason=error.strerror)) from error
