"""Token shards as a loader opens them: of a run or of others, each checked before it is believed.

A shard is known by what it says of itself: llm.c's magic number, numpy's, or,
for headerless files, a name or a word from the caller. Looking at a shard reads
its first bytes and its size; its tokens are mapped when they are first used.
A compressed shard is one zstd frame of the same bytes, with their size and a
checksum, and is unpacked whole.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fwconvert.errors import ShardError, message
from fwconvert.formats import ZIPPED
from fwconvert.recipes import TokenType
from fwconvert.shards import zstd
from fwconvert.shards.shard import map_array, numpy_type

Kind = Literal["llmc", "npy", "raw"]

# What nanoGPT calls its headerless files.
RAW_NAMES = ("train.bin", "val.bin")

_LLMC: dict[tuple[int, int], TokenType] = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
_LLMC_MAGICS = {magic for magic, _ in _LLMC}
_LLMC_BYTES = 1024
_NPY_MAGIC = b"\x93NUMPY"
_NPY_VERSIONS = (b"\x01\x00", b"\x02\x00", b"\x03\x00")
# What numpy writes: a dictionary of three entries. Of a type, or a shape, that is none of ours, no more
# is understood than that it is one.
_NPY_VALUE = r"""'[^'"]*'|"[^'"]*"|\[[^\[\]]*\]|\([^()]*\)|True|False"""
_NPY_ENTRY = re.compile(rf"""['"](\w+)['"]\s*:\s*({_NPY_VALUE})\s*,?\s*""")
_NPY_HEADER = re.compile(rf"\{{\s*(?:{_NPY_ENTRY.pattern})*\}}")
# Enough for the header of any format.
_HEAD_BYTES = 4096
# The ids of all vocabularies that we know are below 4 * 2**16. In fewer pairs it might be chance.
_HIGH_HALVES = 4
_LEAST_PAIRS = 8


@dataclass(frozen=True)
class Expected:
    """What is known of a shard before it is looked at; None: nothing."""

    kind: Kind | None = None
    token_type: TokenType | None = None
    tokens: int | None = None
    bytes: int | None = None
    # The caller's word that it has no header, and what its tokens are.
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
        """Return its tokens: mapped, or unpacked into memory if the shard is compressed."""
        kind = numpy_type(self.token_type)
        if self.path.suffix != ZIPPED:
            # Slices of the plain type are made twice as fast as those of np.memmap.
            tokens = np.asarray(map_array(self.path, kind, self.offset))
        else:
            tokens = zstd.unzip(self.path, self.bytes)[self.offset :].view(kind)
        if len(tokens) != self.tokens:
            raise _refusal("a token shard has changed since it was looked at", self.path)
        return tokens


def look(path: Path, expected: Expected) -> TokenFile:
    """Return what a shard says of itself; raise ShardError that names it if that cannot be."""
    head, size, unpacked = _head(path)
    if expected.bytes is not None and expected.bytes != size:
        wrong = "a token shard has another size than the run manifest says"
        raise _refusal(wrong, path, bytes=f"{size:,}", bytes_in_manifest=f"{expected.bytes:,}")
    found = _parsed(path, head, unpacked, expected)
    width = numpy_type(found.token_type).itemsize
    if found.offset + found.tokens * width != unpacked:
        wrong = "a token shard has another size than its header says"
        raise _refusal(wrong, path, tokens_in_header=f"{found.tokens:,}", bytes=f"{unpacked:,}")
    for what, wanted, there in (
        ("tokens", expected.tokens, found.tokens),
        ("token type", expected.token_type, found.token_type),
    ):
        if wanted is not None and wanted != there:
            raise _refusal(
                f"a token shard has another {what} than it should have", path, found=there, wanted=wanted
            )
    return found


def _parsed(path: Path, head: bytes, size: int, expected: Expected) -> TokenFile:
    kind = expected.kind or _kind(path, head, expected.raw)
    if kind == "llmc":
        return _llmc(path, head, size)
    if kind == "npy":
        return _npy(path, head, size)
    return _raw(path, size, expected.token_type or expected.raw or "uint16")


def _kind(path: Path, head: bytes, raw: TokenType | None) -> Kind:
    """Return what a shard of others is, by its first bytes, by the caller's word, or else by its name."""
    told = _told_kind(head)
    if told and raw:
        wrong = "this token shard has a header, which would be served as tokens"
        raise _refusal(wrong, path, "leave raw out", format=told, given=f"raw={raw!r}")
    if told:
        return told
    if raw:
        return "raw"
    if path.name.removesuffix(ZIPPED) in RAW_NAMES:
        _refuse_wide_tokens(path, head)
        return "raw"
    wrong = "this is not a token shard: neither llm.c's format nor numpy's"
    raise _refusal(
        wrong, path, "say raw='uint16' or raw='uint32' if it has no header", first_bytes=head[:12].hex(" ")
    )


def _told_kind(head: bytes) -> Kind | None:
    if head.startswith(_NPY_MAGIC):
        return "npy"
    return "llmc" if int.from_bytes(head[:4], "little") in _LLMC_MAGICS else None


def _refuse_wide_tokens(path: Path, head: bytes) -> None:
    """Raise ShardError if what goes for uint16 looks like uint32: every second number is next to nothing."""
    low, high = np.frombuffer(head[: len(head) // 4 * 4], "<u2").reshape(-1, 2).T
    if len(high) >= _LEAST_PAIRS and high.max() < _HIGH_HALVES <= low.max():
        wrong = "this file looks like tokens of 4 bytes, but a file of this name has 2 unless told"
        advice = "say raw='uint32', or raw='uint16' if it has 2 nevertheless"
        raise _refusal(wrong, path, advice, first_bytes=head[:12].hex(" "))


def _raw(path: Path, size: int, token_type: TokenType) -> TokenFile:
    tokens, rest = divmod(size, numpy_type(token_type).itemsize)
    if rest:
        wrong = "a token shard without a header is cut short, or its tokens are of another type"
        raise _refusal(wrong, path, bytes=f"{size:,}", token_type=token_type)
    return TokenFile(path, tokens, token_type, 0, size)


def _llmc(path: Path, head: bytes, size: int) -> TokenFile:
    magic, version, tokens = struct.unpack_from("<3i", head.ljust(12, b"\0"))
    if (magic, version) not in _LLMC or tokens < 0 or len(head) < _LLMC_BYTES:
        wrong = "this is not a token shard in llm.c's format"
        raise _refusal(wrong, path, first_bytes=head[:12].hex(" "))
    return TokenFile(path, tokens, _LLMC[magic, version], _LLMC_BYTES, size)


def _npy(path: Path, head: bytes, size: int) -> TokenFile:
    wrong = "this is not a token shard in numpy's format"
    # Version 1 has 2 bytes for the length of what follows, later ones have 4.
    width = 2 if head[6:7] == b"\x01" else 4
    begin = len(_NPY_MAGIC) + 2 + width
    offset = begin + int.from_bytes(head[begin - width : begin], "little")
    if head[6:8] not in _NPY_VERSIONS or offset > len(head):
        raise _refusal(wrong, path, first_bytes=head[:12].hex(" "))
    # numpy would have it evaluated by Python, which fails in many ways of its own.
    text = head[begin:offset].decode("latin-1").strip()
    entries = dict(_NPY_ENTRY.findall(text))
    if not _NPY_HEADER.fullmatch(text) or entries.keys() != {"descr", "fortran_order", "shape"}:
        raise _refusal(wrong, path, header=text[:200])
    kind, shape = (
        entries["descr"].strip("'\""),
        re.fullmatch(r"\(\s*([0-9]{1,19})L?\s*,\s*\)", entries["shape"]),
    )
    types: dict[str, TokenType] = {"<u2": "uint16", "<u4": "uint32"}
    if shape is None or kind not in types:
        wrong = "this is not an array of uint16 or uint32 with one dimension"
        raise _refusal(wrong, path, type=entries["descr"], shape=entries["shape"])
    return TokenFile(path, int(shape[1]), types[kind], offset, size)


def _head(path: Path) -> tuple[bytes, int, int]:
    """Return the first bytes of what a file holds, its size, and its size unpacked."""
    mapped = np.asarray(map_array(path, np.dtype(np.uint8), 0))
    if path.suffix != ZIPPED:
        return mapped[:_HEAD_BYTES].tobytes(), len(mapped), len(mapped)
    return zstd.head(path, _HEAD_BYTES), len(mapped), zstd.unpackable_size(path)


def _refusal(wrong: str, path: Path, *actions: str, **values: object) -> ShardError:
    return ShardError(message(wrong, *actions, file=path, **values))


class Kept(dict[int, NDArray[Any]]):
    """An array for each shard, made when it is asked for; the oldest goes when there are too many."""

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
