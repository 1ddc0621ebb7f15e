"""The formats of token shards: how their files are named and begin, and what stands beside them.

Everything in which trainers differ is told here, so that nobody else asks for
a format by its name. FORMAT.md describes each byte.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fwconvert.errors import UsageError, message

FormatName = Literal["llmc", "npy", "raw", "megatron", "datatrove"]

# Magic number and version of llm.c's gpt-2 shards (2 bytes a token) and llama-3 shards (4 bytes).
_LLMC_KINDS = {2: (20240520, 1), 4: (20240801, 7)}
_LLMC_BYTES = 1024

# What a compressed token shard has behind its suffix. Higher levels are slower and gain little on tokens.
ZIPPED = ".zst"
ZIP_LEVEL = 3

# Room for 21 digits of the length and lines of 64 bytes: the same size for every length.
_NPY_BYTES = 128


@dataclass(frozen=True)
class Header:
    """What stands before the tokens: always equally long, so that a tail can keep that of its shard."""

    size: int
    # From the bytes of a token and the number of tokens.
    make: Callable[[int, int], bytes]
    # From the bytes of a token and a header, how many tokens it tells of; None if it is none.
    read: Callable[[int, bytes], int | None]


@dataclass(frozen=True)
class Trap:
    """What a trainer would stumble over, and in which runs."""

    text: str
    # With tokens of so many bytes.
    token_bytes: tuple[int, ...] = (2, 4)
    # With so many training shards; None: with any number.
    train_shards: int | None = None


@dataclass(frozen=True)
class Format:
    """One kind of token shard."""

    name: FormatName
    # Whose loader it is made for.
    trainer: str
    suffix: str
    # Where a document has its separator, unless told.
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
    traps: tuple[Trap, ...] = ()

    @property
    def header_bytes(self) -> int:
        """How many bytes stand before the tokens."""
        return self.header.size if self.header else 0

    @property
    def index_entry_bytes(self) -> int:
        """How many bytes a document takes in the document index: its start, and a row of 4 bytes."""
        return int(self.index_start[-1]) + 4

    def header_of(self, token_bytes: int, tokens: int) -> bytes:
        """Return what stands before so many tokens."""
        return self.header.make(token_bytes, tokens) if self.header else b""

    def tokens_told(self, token_bytes: int, head: bytes, size: int) -> int | None:
        """Return how many tokens a file of `size` bytes says it has; None if it is none of this format."""
        return self.header.read(token_bytes, head) if self.header else size // token_bytes

    def most(self, token_bytes: int) -> int:
        """Return how many tokens a token shard may have."""
        if self.most_bytes is None:
            return self.most_tokens
        return min(self.most_tokens, (self.most_bytes - self.header_bytes) // token_bytes)

    def warnings(self, token_bytes: int, train_shards: int | None = None) -> list[str]:
        """Return what trainers would stumble over in a run; None: how many shards it has is not known yet."""
        return [
            trap.text
            for trap in self.traps
            if token_bytes in trap.token_bytes and trap.train_shards in (None, train_shards)
        ]

    def check_name(self, name: str) -> None:
        """Raise UsageError if the loader would take one split for the other because of --name."""
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
        """Raise UsageError if something was chosen that one stream does not have."""
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


def _llmc_header(token_bytes: int, tokens: int) -> bytes:
    return struct.pack("<3i", *_LLMC_KINDS[token_bytes], tokens).ljust(_LLMC_BYTES, b"\0")


def _llmc_tokens(token_bytes: int, head: bytes) -> int | None:
    if len(head) < _LLMC_BYTES:
        return None
    magic, version, tokens = struct.unpack_from("<3i", head)
    return int(tokens) if (magic, version) == _LLMC_KINDS[token_bytes] and tokens >= 0 else None


def _npy_header(token_bytes: int, tokens: int) -> bytes:
    described = f"{{'descr': '<u{token_bytes}', 'fortran_order': False, 'shape': ({tokens},), }}"
    start = struct.pack("<8sH", b"\x93NUMPY\x01\x00", _NPY_BYTES - 10)
    return start + described.encode().ljust(_NPY_BYTES - 11) + b"\n"


def _npy_tokens(token_bytes: int, head: bytes) -> int | None:
    found = re.search(rb"\(([0-9]{1,19}),\)", head)
    tokens = int(found[1]) if found else 0
    return tokens if head == _npy_header(token_bytes, tokens) else None


LLMC = Format(
    name="llmc",
    trainer="llm.c",
    suffix=".bin",
    eot="before",
    most_tokens=2**31 - 1,
    # llm.c seeks with a C int.
    most_bytes=2**31 - 1,
    limit="a token shard must stay below 2 GiB for llm.c",
    header=Header(_LLMC_BYTES, _llmc_header, _llmc_tokens),
    zips=True,
    traps=(
        Trap("modded-nanogpt needs two training shards: see --shard-tokens", train_shards=1),
        # Each of these compares the magic number of the header.
        Trap(
            "these tokens are uint32: llm.c's train_llama3.py reads them, its other programs, modded-nanogpt "
            "and NeMo Automodel read uint16 alone, as --tokenizer gpt2 gives it",
            token_bytes=(4,),
        ),
    ),
)
NPY = Format(
    name="npy",
    trainer="build-nanogpt",
    suffix=".npy",
    eot="before",
    most_tokens=2**32,
    limit="a document index has 4 bytes for the start of a document",
    header=Header(_NPY_BYTES, _npy_header, _npy_tokens),
    reserved=("train", "val"),
    zips=True,
    traps=(
        # They call files .npy that have no header, and would read ours as 64 tokens, without an error.
        Trap("OLMo-core and MaxText take the header of these files for tokens: for them, --format megatron"),
    ),
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
    traps=(Trap("nanoGPT reads uint16, and these tokens are uint32: tell it so", token_bytes=(4,)),),
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

_FORMATS: dict[str, Format] = {kind.name: kind for kind in (LLMC, NPY, RAW, MEGATRON, DATATROVE)}
