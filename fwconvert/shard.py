"""Token shards and document indexes on disk: their bytes, their writer and their reader.

The format is llm.c's: a header of 256 little-endian int32 (magic, version,
token count, zeros), then the tokens and nothing else. FORMAT.md describes each
byte. This module has the only writer and the only reader of both files; verify,
show and the tests use the same reader.
"""

import errno
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fwconvert.atomic import Output
from fwconvert.config import HEADER_BYTES, Rules, TokenType
from fwconvert.errors import ShardError, message
from fwconvert.pack import Piece

# Magic number and version of llm.c's gpt-2 shards (uint16) and llama-3 shards (uint32).
_KINDS: dict[TokenType, tuple[int, int]] = {"uint16": (20240520, 1), "uint32": (20240801, 7)}

# A document index entry: where the document starts in the token shard, and its row in the source shard.
INDEX_TYPE = np.dtype([("start", "<u4"), ("row", "<u4")])
# The tail of a whole source shard may be longer than 2**32 tokens.
LONG_INDEX_TYPE = np.dtype([("start", "<u8"), ("row", "<u4")])


def numpy_type(token_type: TokenType) -> np.dtype[Any]:
    """Return the type of a token on disk, little-endian on every machine."""
    return np.dtype("<u2" if token_type == "uint16" else "<u4")


def tail_index_type(rules: Rules) -> np.dtype[Any]:
    """Return the type of the entries in a tail's document index."""
    return LONG_INDEX_TYPE if rules.layout == "contiguous" else INDEX_TYPE


def header(token_type: TokenType, tokens: int) -> bytes:
    """Return the header of a token shard of so many tokens."""
    magic, version = _KINDS[token_type]
    return struct.pack("<3i", magic, version, tokens).ljust(HEADER_BYTES, b"\0")


class ShardWriter:
    """A token shard and its document index under construction, both under temporary names.

    `tokens` is how many the header promises. A block that does not fill keeps
    that header: as a tail it is the beginning of the token shard that it would
    have become, and its receipt says how many tokens it has.
    """

    def __init__(self, folder: Path, label: str, rules: Rules, tokens: int) -> None:
        self._type = numpy_type(rules.token_type)
        self._index_type = INDEX_TYPE if tokens else tail_index_type(rules)
        self.tokens = 0
        self.documents = 0
        with ExitStack() as unfinished:
            self.body = unfinished.enter_context(Output(folder, label))
            self.index = unfinished.enter_context(Output(folder, label))
            self.body.write(header(rules.token_type, tokens))
            unfinished.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.body.discard()
        self.index.discard()

    def write(self, piece: Piece) -> None:
        """Append a piece of the block."""
        entries = np.empty(len(piece.starts), self._index_type)
        entries["start"] = piece.starts
        entries["row"] = piece.rows
        self.body.write(np.ascontiguousarray(piece.tokens, self._type).view(np.uint8).data)
        self.index.write(entries.view(np.uint8).data)
        self.tokens += len(piece.tokens)
        self.documents += len(entries)

    def finish(self) -> None:
        """Bring both files to the disk; they then only await their names."""
        self.body.finish()
        self.index.finish()

    def publish(self, shard: Path, index: Path) -> None:
        """Give both files their final names."""
        self.index.publish(index)
        self.body.publish(shard)


def read_tokens(path: Path, token_type: TokenType) -> NDArray[Any]:
    """Map the tokens of a token shard, after its header and its size have been checked."""
    with _reading(path) as descriptor:
        size = os.fstat(descriptor).st_size
        head = os.read(descriptor, HEADER_BYTES)
    tokens = _token_count(path, head, token_type)
    if size != HEADER_BYTES + tokens * numpy_type(token_type).itemsize:
        raise ShardError(
            message(
                "a token shard has another size than its header says",
                file=path,
                tokens_in_header=f"{tokens:,}",
                bytes=f"{size:,}",
            )
        )
    return map_array(path, numpy_type(token_type), HEADER_BYTES)


def read_index(path: Path) -> NDArray[Any]:
    """Map the document index of a token shard."""
    return map_array(path, INDEX_TYPE, 0)


def map_array(path: Path, kind: np.dtype[Any], offset: int) -> NDArray[Any]:
    """Map a file of `kind` that begins at `offset`; an empty one gives an empty array."""
    with _reading(path) as descriptor:
        size = os.fstat(descriptor).st_size - offset
    if size < 0 or size % kind.itemsize:
        raise ShardError(message("a file is cut short", file=path, bytes=f"{size + offset:,}"))
    if size == 0:  # An empty file cannot be mapped.
        return np.empty(0, kind)
    return np.memmap(path, kind, "r", offset)


@contextmanager
def _reading(path: Path) -> Iterator[int]:
    try:
        # Without O_NONBLOCK a pipe would be waited for.
        flags = getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(path, os.O_RDONLY | flags)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ShardError(message("a file cannot be read", file=path, reason=error.strerror)) from error


def _token_count(path: Path, head: bytes, token_type: TokenType) -> int:
    if len(head) == HEADER_BYTES:
        magic, version, tokens = struct.unpack_from("<3i", head)
        if (magic, version) == _KINDS[token_type] and tokens >= 0:
            return int(tokens)
    raise ShardError(
        message(
            f"this is not a token shard of {token_type} in llm.c's format",
            file=path,
            first_bytes=head[:12].hex(" "),
            wanted=header(token_type, 0)[:8].hex(" ") + " and the token count",
        )
    )
