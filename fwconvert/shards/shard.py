"""Token shards and document indexes on disk: their bytes, their writer and their reader.

A token shard is a header, which some formats have, then the tokens and
nothing else. FORMAT.md describes each byte. This module has the only writer
and the only reader of both files; verify, show and the tests use the same
reader.
"""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fwconvert import files
from fwconvert.errors import ShardError, message
from fwconvert.formats import LLMC, ZIPPED, Format
from fwconvert.recipes import Rules, TokenType
from fwconvert.shards import zstd
from fwconvert.shards.cutting import Piece
from fwconvert.shards.sidecars import Spans, sidecar_parts
from fwconvert.store import layout
from fwconvert.store.atomic import Output

# A document index entry: where the document starts in the token shard, and its row in the source shard.
INDEX_TYPE = np.dtype([("start", "<u4"), ("row", "<u4")])
# Between two signs of life.
_STEP_BYTES = 2**26
# The tail of a whole source shard may be longer than 2**32 tokens, and so may a whole stream.
LONG_INDEX_TYPE = np.dtype([("start", "<u8"), ("row", "<u4")])


def _nothing() -> None:
    pass


def numpy_type(token_type: TokenType) -> np.dtype[Any]:
    """Return the type of a token on disk, little-endian on every machine."""
    return np.dtype("<u2" if token_type == "uint16" else "<u4")  # noqa: S105  # a piece of text, no password


def index_type(kind: Format) -> np.dtype[Any]:
    """Return the type of the entries in the document index of a token shard."""
    return INDEX_TYPE if kind.index_start == "<u4" else LONG_INDEX_TYPE


def tail_index_type(rules: Rules) -> np.dtype[Any]:
    """Return the type of the entries in a tail's document index."""
    return LONG_INDEX_TYPE if rules.layout == "contiguous" else INDEX_TYPE


def header(token_type: TokenType, tokens: int, kind: Format = LLMC) -> bytes:
    """Return the header of a token shard of so many tokens."""
    return kind.header_of(numpy_type(token_type).itemsize, tokens)


class ShardWriter:
    """A token shard and its document index under construction, both under temporary names.

    `tokens` is how many the header promises. A block that does not fill keeps
    that header: as a tail it is the beginning of the token shard that it would
    have become, and its receipt says how many tokens it has.
    """

    def __init__(
        self,
        folder: Path,
        label: str,
        rules: Rules,
        tokens: int,
        threads: int = 1,
        tick: Callable[[], None] = _nothing,
    ) -> None:
        self._folder, self._label, self._rules, self._threads = folder, label, rules, threads
        # Called often while there is much to write; may raise to stop.
        self._tick = tick
        self._type = numpy_type(rules.token_type)
        self._index_type = index_type(rules.kind) if tokens else tail_index_type(rules)
        self.tokens = 0
        self.documents = 0
        with ExitStack() as unfinished:
            self.body = unfinished.enter_context(Output(folder, label))
            self.index = unfinished.enter_context(Output(folder, label))
            self.body.write(header(rules.token_type, tokens, rules.kind))
            unfinished.pop_all()
        self._sidecars: list[Output] = []
        # What is published: the body itself, or the body compressed.
        self.file = self.body

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for output in (self.body, self.file, self.index, *self._sidecars):
            output.discard()

    def write(self, piece: Piece) -> None:
        """Append a piece of the block."""
        entries = np.empty(len(piece.starts), self._index_type)
        entries["start"] = piece.starts
        entries["row"] = piece.rows
        tokens = np.ascontiguousarray(piece.tokens, self._type).view(np.uint8).data
        for at in range(0, len(tokens), _STEP_BYTES):  # A document may be larger than all others together.
            self.body.write(tokens[at : at + _STEP_BYTES])
            self._tick()
        self.index.write(entries.view(np.uint8).data)
        self.tokens += len(piece.tokens)
        self.documents += len(entries)

    def finish(self) -> None:
        """Bring both files to the disk; they then only await their names."""
        self.body.finish()
        self.index.finish()

    def complete(self, firsts: Sequence[int]) -> None:
        """Bring a whole token shard to the disk, and what its format wants beside it.

        `firsts` are the positions at which the tokens of another source begin; the first is 0.
        """
        self.finish()
        if self._rules.compress:
            self._zip()
        kind = self._rules.kind
        if not kind.sidecars:
            return
        entries = map_array(self.index.temporary, self._index_type, 0)
        spans = Spans(entries["start"], firsts, self.tokens)
        for suffix in kind.sidecars:
            output = Output(self._folder, self._label)
            self._sidecars.append(output)
            for part in sidecar_parts(suffix, self._rules, spans):
                output.write(part)
                self._tick()
            output.finish()

    def _zip(self) -> None:
        """Compress the finished body. Only whole shards are, because a frame tells its size first."""
        self.file = Output(self._folder, self._label)
        zstd.zip_file(self.body.temporary, self.file, self._threads, self._tick)
        self.file.finish()
        self.body.discard()

    def sidecars(self, shard: str) -> Iterator[tuple[str, Output]]:
        """Yield the files that stand beside a complete token shard of that name, with their names."""
        return zip(layout.sidecars(self._rules, shard), self._sidecars, strict=True)

    def publish(self, shard: Path, index: Path) -> None:
        """Give all files their final names."""
        self.index.publish(index)
        if self._sidecars:  # A tail has none.
            for name, output in self.sidecars(shard.name):
                output.publish(shard.with_name(name))
        self.file.publish(shard)


def read_tokens(
    path: Path,
    token_type: TokenType,
    kind: Format = LLMC,
    tokens: int | None = None,
    tick: Callable[[], None] = _nothing,
) -> NDArray[Any]:
    """Map the tokens of a token shard, after its header and its size have been checked.

    If it must have so many `tokens`, one that says otherwise is not unpacked.
    `tick` is called often while one is, and may raise to stop.
    """
    if path.suffix == ZIPPED:
        there = token_count(path, token_type, kind)
        if tokens is not None and there != tokens:
            wrong = "a token shard has another number of tokens than the run manifest says"
            raise ShardError(message(wrong, file=path, tokens=f"{there:,}", wanted=f"{tokens:,}"))
        content = _unzipped(path, kind, numpy_type(token_type).itemsize, tick)
        _check_tokens(path, token_type, kind, content[: kind.header_bytes].tobytes(), len(content))
        return content[kind.header_bytes :].view(numpy_type(token_type))
    head, size = _head(path, kind.header_bytes)
    _check_tokens(path, token_type, kind, head, size)
    return map_array(path, numpy_type(token_type), kind.header_bytes)


@contextmanager
def opened(path: Path) -> Iterator["io.BufferedReader[Any]"]:
    """Read the content of a token shard from its beginning, compressed or not."""
    if path.suffix != ZIPPED:
        with io.BufferedReader(files.open_to_read(path)) as file:
            yield file
        return
    with zstd.unzipping(path, zstd.OWN_WINDOW) as content:
        yield io.BufferedReader(content, zstd.STEP)


def token_count(path: Path, token_type: TokenType, kind: Format) -> int:
    """Return how many tokens a token shard has, after its header and its size have been checked."""
    if path.suffix == ZIPPED:
        head, size = zstd.head(path, kind.header_bytes), zstd.content_size(path)
    else:
        head, size = _head(path, kind.header_bytes)
    return _check_tokens(path, token_type, kind, head, size)


def _head(path: Path, most: int) -> tuple[bytes, int]:
    """Return the first bytes of a file, and its size."""
    with _reading(path) as file:
        return file.read(most) or b"", os.fstat(file.fileno()).st_size


def _unzipped(path: Path, kind: Format, width: int, tick: Callable[[], None]) -> NDArray[np.uint8]:
    state = path.stat()
    most = min(kind.most(width) * width + kind.header_bytes, 2**62)
    return _kept(path, most, tick, state.st_size, state.st_mtime_ns)


@lru_cache(1)  # Who reads a shard in steps unpacks it once.
def _kept(path: Path, most: int, tick: Callable[[], None], *_state: int) -> NDArray[np.uint8]:
    return zstd.unzip(path, most, tick)


def _check_tokens(path: Path, token_type: TokenType, kind: Format, head: bytes, size: int) -> int:
    """Return how many tokens a file of this size has, or raise ShardError."""
    width = numpy_type(token_type).itemsize
    tokens = kind.tokens_told(width, head, size)
    if tokens is None:
        raise ShardError(
            message(
                f"this is not a token shard of {token_type} in {kind.trainer}'s format",
                file=path,
                first_bytes=head[:12].hex(" "),
                wanted=kind.header_of(width, 0)[:8].hex(" ") + " and what follows",
            )
        )
    if kind.header and size != kind.header_bytes + tokens * width:
        raise ShardError(
            message(
                "a token shard has another size than its header says",
                file=path,
                tokens_in_header=f"{tokens:,}",
                bytes=f"{size:,}",
            )
        )
    if (size - kind.header_bytes) % width:
        raise ShardError(message("a file is cut short", file=path, bytes=f"{size:,}"))
    return tokens


def read_index(path: Path, kind: Format = LLMC) -> NDArray[Any]:
    """Map the document index of a token shard."""
    return map_array(path, index_type(kind), 0)


def map_array(path: Path, kind: np.dtype[Any], offset: int) -> NDArray[Any]:
    """Map a file of `kind` that begins at `offset`; an empty one gives an empty array."""
    with _reading(path) as file:
        size = os.fstat(file.fileno()).st_size - offset
        if size < 0 or size % kind.itemsize:
            raise ShardError(message("a file is cut short", file=path, bytes=f"{size + offset:,}"))
        if size == 0:  # An empty file cannot be mapped.
            return np.empty(0, kind)
        return np.memmap(file, kind, "r", offset)


def read_array(path: Path, kind: np.dtype[Any], offset: int, count: int) -> NDArray[Any]:
    """Return a copy of so many numbers of `kind` that begin at `offset`, or as many as there are."""
    with _reading(path) as file:
        return np.fromfile(file, kind, count, offset=offset)


@contextmanager
def _reading(path: Path) -> Iterator[io.FileIO]:
    try:
        with files.open_to_read(path) as file:
            yield file
    except OSError as error:
        raise ShardError(message("a file cannot be read", file=path, reason=error.strerror)) from error
