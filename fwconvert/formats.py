"""The formats of token shards: how their files are named and begin, and what stands beside them.

Everything in which trainers differ is said here, so no other module asks for a
format by its name. Headers are parsed here for everybody: those of our own
shards, and those of other programs, which spell numpy's in their own ways.
They are parsed and never evaluated. FORMAT.md describes each byte.
"""

import json
import re
import struct
import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from fwconvert.errors import ShardError, UsageError, message

FormatName = Literal["llmc", "npy", "raw", "megatron", "datatrove", "nemo", "litdata", "mds", "parquet"]

# Magic number and version of llm.c's gpt-2 shards (2 bytes a token) and llama-3 shards (4 bytes).
_LLMC_VERSIONS = {2: (20240520, 1), 4: (20240801, 7)}
_LLMC_BYTES = 1024

# Magic number and version of NeMo Automodel's own shards.
_NEMO_VERSION = (278895051, 1)

# What a compressed token shard has after its suffix. Higher levels are slower and gain little on tokens.
ZIPPED = ".zst"
ZIP_LEVEL = 3

_NPY_MAGIC = b"\x93NUMPY"
_NPY_VERSIONS = (b"\x01\x00", b"\x02\x00", b"\x03\x00")
# Room for 21 digits of the length and lines of 64 bytes: the same size for every length.
_NPY_BYTES = 128
# What numpy writes: a dictionary of three entries. Types and shapes that tokens do not have are recognised
# as such and not understood any further.
_NPY_VALUE = r"""'[^'"]*'|"[^'"]*"|\[[^\[\]]*\]|\([^()]*\)|True|False"""
_NPY_ENTRY = re.compile(rf"""['"](\w+)['"]\s*:\s*({_NPY_VALUE})\s*,?\s*""")
_NPY_HEADER = re.compile(rf"\{{\s*(?:{_NPY_ENTRY.pattern})*\}}")

# Enough for the header of any format by which shards without a run manifest are known.
MOST_HEADER_BYTES = 4096

# The length of the samples of a format that has them, where nobody says another.
SEQUENCE_LENGTH = 2048
# A token, and the one that follows it.
LEAST_SEQUENCE_LENGTH = 2
# Of a sample in an MDS shard, an offset; before these, how many there are; behind them, what the tokens are.
_MDS_OFFSET, _MDS_TEXT_BYTES = 4, 512

# A row of a parquet file has so many tokens at the most, and a row group so many rows and tokens: readers
# have a row group in memory.
ROW_TOKENS = 2**20
ROW_GROUP_ROWS, ROW_GROUP_TOKENS = 1000, 2**22
# What nanoGPT calls its files, which have no header to know them by.
HEADERLESS_NAMES = ("train.bin", "val.bin")


@dataclass(frozen=True)
class Contents:
    """What a token shard holds, by its header or, if it has none, by its size."""

    tokens: int
    token_bytes: int
    # Where the tokens begin.
    offset: int


@dataclass(frozen=True)
class Header:
    """What stands before the tokens. Ours always has one size, so that a tail can keep that of its shard."""

    size: int
    # How it begins, in any version.
    magics: tuple[bytes, ...]
    # From the bytes of a token and the number of tokens.
    make: Callable[[int, int], bytes]
    # From the name of a file and its first bytes; raises ShardError if they are no such header.
    parse: Callable[[object, bytes], Contents]
    # Whether the header of a run's shard must be ours to the byte: what differs might be another array.
    is_exact: bool


@dataclass(frozen=True)
class Format:
    """How the token shards are made that one family of trainers reads."""

    name: FormatName
    # Whose loader it is made for.
    trainer: str
    suffix: str
    # On which side of a document its separator is by default.
    eot: Literal["before", "after"]
    # The most tokens and bytes of a token shard, and why.
    most_tokens: int
    limit: str
    most_bytes: int | None = None
    header: Header | None = None
    # What the files beside a token shard have instead of its suffix.
    sidecars: tuple[str, ...] = ()
    # How large these are, all together: for a token shard, and for each document in it.
    sidecar_bytes: tuple[int, int] = (0, 0)
    # All tokens for training are one file, and all for validation another.
    is_one_stream: bool = False
    # The start of a document in the document index.
    index_start: Literal["<u4", "<u8"] = "<u4"
    # Whether its shards may be compressed, for shipping.
    zips: bool = False
    # What the loader looks for anywhere in a file name, so that --name must not contain it.
    reserved: tuple[str, ...] = ()
    # Whether its trainers take every file with the suffix, whatever its name.
    takes_all: bool = False
    # Files about all token shards of a run, which follow from its run manifest (see shards/listings).
    listings: tuple[str, ...] = ()
    # Whether a trainer sees windows of --sequence-length tokens and nothing else.
    has_windows: bool = False
    # Whether a token shard is a table with a row for each document, of which the tokens have to be read.
    is_table: bool = False

    @property
    def header_bytes(self) -> int:
        """How many bytes stand before the tokens."""
        return self.header.size if self.header else 0

    @property
    def index_entry_bytes(self) -> int:
        """How many bytes a document takes in the document index: its start, and a row of 4 bytes."""
        return int(self.index_start[-1]) + 4

    def header_of(self, token_bytes: int, tokens: int) -> bytes:
        """Return what stands before `tokens` tokens."""
        return self.header.make(token_bytes, tokens) if self.header else b""

    def contents(self, file: object, head: bytes, size: int, token_bytes: int = 2) -> Contents:
        """Return what a file of `size` bytes holds that begins with `head`, whoever wrote it.

        Raises ShardError, which names the file, if that is not a header, or not
        one that fits the size. `token_bytes` is for files without a header.
        """
        if self.header is None:
            tokens, rest = divmod(size, token_bytes)
            if rest:
                raise ShardError(
                    message(
                        "a token shard without a header is cut short, or its tokens are of another type",
                        file=file,
                        bytes=f"{size:,}",
                        bytes_per_token=token_bytes,
                    )
                )
            return Contents(tokens, token_bytes, 0)
        found = self.header.parse(file, head)
        if found.offset + found.tokens * found.token_bytes != size:
            raise ShardError(
                message(
                    "the size of a token shard does not match its header",
                    file=file,
                    tokens_in_header=f"{found.tokens:,}",
                    bytes=f"{size:,}",
                )
            )
        return found

    def own_contents(self, file: object, head: bytes, size: int, token_bytes: int) -> Contents:
        """Return what a file holds that fwconvert wrote in this format, with tokens of `token_bytes` bytes.

        Raises ShardError, which names the file, if it did not.
        """
        found = self.contents(file, head, size, token_bytes)
        is_width = found.token_bytes == token_bytes
        # There may be none for so many tokens of another width.
        own = self.header_of(token_bytes, found.tokens if is_width else 0)
        is_exact = self.header is not None and self.header.is_exact
        if not is_width or found.offset != len(own) or (is_exact and head != own):
            raise ShardError(
                message(
                    f"this is not a token shard of uint{8 * token_bytes} in {self.trainer}'s format",
                    file=file,
                    first_bytes=head[:12].hex(" "),
                    expected=own[:8].hex(" ") + " and what follows",
                )
            )
        return found

    def most(self, token_bytes: int) -> int:
        """Return how many tokens a token shard may have."""
        if self.most_bytes is None:
            return self.most_tokens
        return min(self.most_tokens, (self.most_bytes - self.header_bytes) // token_bytes)

    def check_name(self, name: str) -> None:
        """Raise UsageError if --name would make the trainer mistake one split for the other."""
        if any(word in name for word in self.reserved):
            words = " and ".join(self.reserved)
            raise UsageError(
                message(
                    f"--name would mislead {self.trainer}, which looks for {words} anywhere in a name",
                    "choose another --name",
                    given=repr(name),
                )
            )

    def check_stream(self, layout: str, shard_tokens: int, name: str, last: str) -> None:
        """Raise UsageError if an option was chosen that a single stream does not have."""
        for flag, given, only in (
            ("layout", layout, "contiguous"),
            ("shard-tokens", shard_tokens, 0),
            ("name", name, ""),
            ("last", last, "keep"),
        ):
            if given != only:
                raise UsageError(
                    message(
                        f"--format {self.name} makes one stream, the files train.bin and val.bin",
                        f"leave --{flag} out, or choose another --format",
                        given=f"--{flag} {given}",
                    )
                )


def find(name: str) -> Format:
    """Return the format of that name, or raise UsageError with the names that exist."""
    if name not in _FORMATS:
        known = ", ".join(_FORMATS)
        raise UsageError(
            message("there is no such format", "choose one of the known names", given=repr(name), known=known)
        )
    return _FORMATS[name]


@lru_cache(64)  # asked for with each look at the rules of a run
def windowed(name: str, sequence_length: int, longest: int) -> Format:
    """Return a format that has windows, for those of so many tokens; no token shard is longer than `longest`.

    Its header has the same size in all token shards of a run: room for the windows of the longest.
    """
    room = -(-(_MDS_OFFSET * (2 + longest // sequence_length) + _MDS_TEXT_BYTES) // 64) * 64
    header = Header(
        size=room,
        magics=(),
        make=lambda token_bytes, tokens: _mds_header(room, sequence_length, token_bytes, tokens),
        parse=lambda file, head: _parse_mds(room, sequence_length, file, head),
        is_exact=True,
    )
    return replace(find(name), header=header)


def recognised(head: bytes) -> Format | None:
    """Return the format whose header a file begins with, in any version; None if it has no header."""
    for found in _FORMATS.values():
        if found.header and head.startswith(found.header.magics):
            return found
    return None


def _llmc_header(token_bytes: int, tokens: int) -> bytes:
    return struct.pack("<3i", *_LLMC_VERSIONS[token_bytes], tokens).ljust(_LLMC_BYTES, b"\0")


def _parse_llmc(file: object, head: bytes) -> Contents:
    magic, version, tokens = struct.unpack_from("<3i", head.ljust(12, b"\0"))
    widths = {versions: token_bytes for token_bytes, versions in _LLMC_VERSIONS.items()}
    if (magic, version) not in widths or tokens < 0 or len(head) < _LLMC_BYTES:
        wrong = "this is not a token shard in llm.c's format"
        raise ShardError(message(wrong, file=file, first_bytes=head[:12].hex(" ")))
    return Contents(tokens, widths[magic, version], _LLMC_BYTES)


def _npy_header(token_bytes: int, tokens: int) -> bytes:
    described = f"{{'descr': '<u{token_bytes}', 'fortran_order': False, 'shape': ({tokens},), }}"
    start = struct.pack("<8sH", _NPY_MAGIC + _NPY_VERSIONS[0], _NPY_BYTES - 10)
    return start + described.encode().ljust(_NPY_BYTES - 11) + b"\n"


def _parse_npy(file: object, head: bytes) -> Contents:
    wrong = "this is not a token shard in numpy's format"
    # Version 1 has 2 bytes for the length of what follows, later ones have 4.
    width = 2 if head[6:7] == b"\x01" else 4
    begin = len(_NPY_MAGIC) + 2 + width
    offset = begin + int.from_bytes(head[begin - width : begin], "little")
    if not head.startswith(_NPY_MAGIC) or head[6:8] not in _NPY_VERSIONS or offset > len(head):
        raise ShardError(message(wrong, file=file, first_bytes=head[:12].hex(" ")))
    # numpy would have it evaluated by Python, which fails in many ways of its own.
    text = head[begin:offset].decode("latin-1").strip()
    entries = dict(_NPY_ENTRY.findall(text))
    if not _NPY_HEADER.fullmatch(text) or entries.keys() != {"descr", "fortran_order", "shape"}:
        raise ShardError(message(wrong, file=file, header=text[:200]))
    token_bytes = {"<u2": 2, "<u4": 4}.get(entries["descr"].strip("'\""))
    shape = re.fullmatch(r"\(\s*([0-9]{1,19})L?\s*,\s*\)", entries["shape"])
    if shape is None or token_bytes is None:
        wrong = "this is not an array of uint16 or uint32 with one dimension"
        raise ShardError(message(wrong, file=file, type=entries["descr"], shape=entries["shape"]))
    return Contents(int(shape[1]), token_bytes, offset)


def _nemo_header(token_bytes: int, tokens: int) -> bytes:
    return struct.pack("<4i", *_NEMO_VERSION, tokens, token_bytes).ljust(_LLMC_BYTES, b"\0")


def _parse_nemo(file: object, head: bytes) -> Contents:
    magic, version, tokens, token_bytes = struct.unpack_from("<4i", head.ljust(16, b"\0"))
    known = (magic, version) == _NEMO_VERSION and token_bytes in (2, 4)
    if not known or tokens < 0 or len(head) < _LLMC_BYTES:
        wrong = "this is not a token shard in NeMo Automodel's format"
        raise ShardError(message(wrong, file=file, first_bytes=head[:16].hex(" ")))
    return Contents(tokens, token_bytes, _LLMC_BYTES)


def mds_columns(sequence_length: int, token_bytes: int) -> dict[str, Any]:
    """Return how an MDS shard and its index.json describe a sample of that many tokens."""
    return {
        "column_encodings": [f"ndarray:uint{8 * token_bytes}:{sequence_length}"],
        "column_names": ["tokens"],
        "column_sizes": [sequence_length * token_bytes],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }


def _mds_header(room: int, sequence_length: int, token_bytes: int, tokens: int) -> bytes:
    """Return the number of samples, where each begins and the last ends, and what they are.

    Tokens that fill no sample follow the last one, where MDS's reader does not look.
    """
    samples, step = tokens // sequence_length, sequence_length * token_bytes
    offsets = array("I", range(room, room + samples * step + 1, step))
    offsets.insert(0, samples)
    if sys.byteorder == "big":
        offsets.byteswap()
    columns = mds_columns(sequence_length, token_bytes) | {"tokens": tokens}
    return (offsets.tobytes() + json.dumps(columns, sort_keys=True).encode()).ljust(room)


def _parse_mds(room: int, sequence_length: int, file: object, head: bytes) -> Contents:
    try:
        (samples,) = struct.unpack_from("<I", head)
        columns = json.loads(head[_MDS_OFFSET * (2 + samples) : room])
        tokens, (encoding,) = columns["tokens"], columns["column_encodings"]
        token_bytes = {"uint16": 2, "uint32": 4}[encoding.split(":")[1]]
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError):
        tokens, token_bytes = -1, 0
    # Its offsets have 4 bytes, and there is room for each.
    is_possible = type(tokens) is int and tokens >= 0 and tokens * token_bytes < 2**32 - room
    if len(head) < room or not is_possible or _MDS_OFFSET * (2 + tokens // sequence_length) > room:
        wrong = "this is not a token shard in MDS's format"
        raise ShardError(message(wrong, file=file, first_bytes=head[:12].hex(" ")))
    return Contents(tokens, token_bytes, room)


LLMC = Format(
    name="llmc",
    trainer="llm.c",
    suffix=".bin",
    eot="before",
    most_tokens=2**31 - 1,
    # llm.c seeks with a C int.
    most_bytes=2**31 - 1,
    limit="a token shard must stay below 2 GiB for llm.c",
    header=Header(
        size=_LLMC_BYTES,
        magics=tuple(magic.to_bytes(4, "little") for magic, _ in _LLMC_VERSIONS.values()),
        make=_llmc_header,
        parse=_parse_llmc,
        # What follows the first three numbers says nothing; `verify` reports it if it is not zeros.
        is_exact=False,
    ),
    zips=True,
)
NPY = Format(
    name="npy",
    trainer="build-nanogpt",
    suffix=".npy",
    eot="before",
    most_tokens=2**32,
    limit="a document index has 4 bytes for the start of a document",
    header=Header(size=_NPY_BYTES, magics=(_NPY_MAGIC,), make=_npy_header, parse=_parse_npy, is_exact=True),
    reserved=("train", "val"),
    zips=True,
)
RAW = Format(
    name="raw",
    trainer="nanoGPT",
    suffix=".bin",
    eot="after",
    most_tokens=2**63 - 1,
    limit="a file has fewer tokens than that",
    is_one_stream=True,
    index_start="<u8",
    zips=True,
)
MEGATRON = Format(
    name="megatron",
    trainer="Megatron-LM",
    suffix=".bin",
    eot="after",
    most_tokens=2**31 - 1,
    limit="Megatron-LM has 4 bytes, with a sign, for the length of a document",
    sidecars=(".idx",),
    sidecar_bytes=(42, 20),
    listings=(".fwconvert/megatron.json",),
)
DATATROVE = Format(
    name="datatrove",
    trainer="datatrove",
    suffix=".ds",
    eot="after",
    most_tokens=2**32,
    limit="a document index has 4 bytes for the start of a document",
    sidecars=(".ds.index", ".ds.metadata"),
    sidecar_bytes=(40, 8),
    takes_all=True,
)
NEMO = Format(
    name="nemo",
    trainer="NeMo Automodel",
    suffix=".bin",
    eot="before",
    most_tokens=2**31 - 1,
    most_bytes=2**32 - 1,
    limit="a token shard must stay below 4 GiB for NeMo Automodel",
    header=Header(
        size=_LLMC_BYTES,
        magics=(_NEMO_VERSION[0].to_bytes(4, "little"),),
        make=_nemo_header,
        parse=_parse_nemo,
        is_exact=False,
    ),
    sidecars=(".bos.idx",),
    sidecar_bytes=(0, 4),
)
_SPLITS = ("index.json", "train/index.json", "val/index.json")
LITDATA = Format(
    name="litdata",
    trainer="litdata",
    suffix=".bin",
    eot="after",
    most_tokens=2**31 - 1,
    limit="the header of a token shard has 4 bytes, with a sign, for its length",
    # litdata skips (2 + chunk_size) * 4 bytes before the tokens: with a chunk_size of 254, llm.c's header.
    header=LLMC.header,
    listings=_SPLITS,
)
MDS = Format(
    name="mds",
    trainer="MosaicML Streaming",
    suffix=".mds",
    eot="after",
    most_tokens=2**31 - 1,
    most_bytes=2**32 - 1,
    limit="an MDS shard has 4 bytes for where a sample is",
    listings=_SPLITS,
    has_windows=True,
)
PARQUET = Format(
    name="parquet",
    trainer="datasets",
    suffix=".parquet",
    eot="after",
    most_tokens=2**31 - 1,
    limit="a document index has 4 bytes for the start of a document",
    is_table=True,
)

_FORMATS: dict[str, Format] = {
    made.name: made for made in (LLMC, NPY, RAW, MEGATRON, DATATROVE, NEMO, LITDATA, MDS, PARQUET)
}
