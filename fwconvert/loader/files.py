"""Token shards as a loader opens them: a run's or any others, each checked before it is trusted.

A shard is known by its header; one without a header by its name, or by what the
caller says. Looking at a shard reads its first bytes and its size; its tokens
are mapped when they are first used. A compressed shard is one zstd frame of the
same bytes and is unpacked whole.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fwconvert import formats
from fwconvert.errors import ShardError, message
from fwconvert.formats import ZIPPED, Format
from fwconvert.recipes import TokenType
from fwconvert.shards import table, zstd
from fwconvert.shards.shard import Beginning, beginning, map_array, numpy_type

_TYPES: dict[int, TokenType] = {2: "uint16", 4: "uint32"}
# The ids of all vocabularies that we know are below 4 * 2**16. In fewer pairs it might be chance.
_HIGH_HALVES = 4
_LEAST_PAIRS = 8


@dataclass(frozen=True)
class Claims:
    """What the run manifest or the caller says about a shard; None if they do not say."""

    shard_format: Format | None = None
    token_type: TokenType | None = None
    tokens: int | None = None
    bytes: int | None = None
    # The caller says that it has no header, and what its tokens are.
    raw: TokenType | None = None


@dataclass(frozen=True)
class TokenFile:
    """A token shard whose header and size agree."""

    path: Path
    tokens: int
    token_type: TokenType
    # Where its tokens begin.
    offset: int
    # Its size unpacked.
    bytes: int

    @property
    def name(self) -> str:
        """Its file name."""
        return self.path.name

    def read(self) -> NDArray[Any]:
        """Return its tokens: mapped, or unpacked into memory if the shard is compressed or a table."""
        dtype = numpy_type(self.token_type)
        if table.is_table(self.path):
            tokens = table.read(self.path, dtype)
        elif self.path.suffix != ZIPPED:
            # Slices of the plain type are made twice as fast as those of np.memmap.
            tokens = np.asarray(map_array(self.path, dtype, self.offset))
        else:
            tokens = zstd.unzip(self.path, self.bytes)[self.offset :].view(dtype)
        if len(tokens) != self.tokens:
            raise ShardError(message("a token shard has changed since the loader was made", file=self.path))
        return tokens


def look(path: Path, claims: Claims) -> TokenFile:
    """Return a shard's contents; raise ShardError, which names it, if it is not a shard or not as claimed."""
    most = max(formats.MOST_HEADER_BYTES, claims.shard_format.header_bytes if claims.shard_format else 0)
    start = beginning(path, most)
    if path.suffix == ZIPPED:
        zstd.unpackable_size(path)
    if claims.bytes is not None and claims.bytes != start.file_bytes:
        raise ShardError(
            message(
                "the size of a token shard does not match the run manifest",
                file=path,
                bytes=f"{start.file_bytes:,}",
                bytes_in_manifest=f"{claims.bytes:,}",
            )
        )
    shard_format = claims.shard_format or _format_of(path, start, claims.raw)
    width = numpy_type(claims.token_type or claims.raw or "uint16").itemsize
    size = table.token_count(path) * width if shard_format.is_table else start.content_bytes
    found = shard_format.contents(path, start.head, size, width)
    token_type = _TYPES[found.token_bytes]
    for what, claimed, there in (
        ("number of tokens", claims.tokens, found.tokens),
        ("token type", claims.token_type, token_type),
    ):
        if claimed is not None and claimed != there:
            wrong = f"the {what} of a token shard does not match the run manifest"
            raise ShardError(message(wrong, file=path, found=there, in_manifest=claimed))
    return TokenFile(path, found.tokens, token_type, found.offset, size)


def _format_of(path: Path, start: Beginning, raw: TokenType | None) -> Format:
    """Return the format of a shard that no run manifest lists: by its header, the caller, or its name."""
    found = formats.recognised(start.head)
    if found and raw:
        raise ShardError(
            message(
                "this token shard has a header, which would be served as tokens",
                "do not pass raw",
                file=path,
                format=found.name,
                given=f"raw={raw!r}",
            )
        )
    if found:
        return found
    if raw:
        return formats.RAW
    if path.name.removesuffix(ZIPPED) not in formats.HEADERLESS_NAMES:
        raise ShardError(
            message(
                "this is not a token shard: neither llm.c's format nor numpy's",
                "pass raw='uint16' or raw='uint32' if it has no header",
                file=path,
                first_bytes=start.head[:12].hex(" "),
            )
        )
    if _looks_like_uint32(start.head):
        raise ShardError(
            message(
                "this file looks like tokens of 4 bytes, but a file of this name has tokens of 2",
                "pass raw='uint32', or raw='uint16' if its tokens do have 2 bytes",
                file=path,
                first_bytes=start.head[:12].hex(" "),
            )
        )
    return formats.RAW


def _looks_like_uint32(head: bytes) -> bool:
    """Return whether every second number of what should be uint16 is almost zero."""
    low, high = np.frombuffer(head[: len(head) // 4 * 4], "<u2").reshape(-1, 2).T
    return len(high) >= _LEAST_PAIRS and bool(high.max() < _HIGH_HALVES <= low.max())


class ArrayCache(dict[int, NDArray[Any]]):
    """An array for each shard, made on first use; the oldest is dropped when there are too many."""

    def __init__(self, make: Callable[[int], NDArray[Any]], most: int) -> None:
        super().__init__()
        self._make = make
        self._most = most

    def __missing__(self, shard: int) -> NDArray[Any]:
        if len(self) >= self._most:
            del self[next(iter(self))]
        self[shard] = made = self._make(shard)
        return made

    def __reduce__(self) -> tuple[type[Self], tuple[Callable[[int], NDArray[Any]], int]]:
        # A mapped array would be pickled as a copy of the whole file.
        return type(self), (self._make, self._most)
