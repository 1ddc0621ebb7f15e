"""Rank tables that a user names: tiktoken is the reference, gigatoken the fast way if it knows the pattern.

A definition is a line of JSON (how text is cut into words, and the special
tokens) with the rank table behind it; or what nanochat saves, a pickle of such
an encoding. A pickle can hold orders to run anything, so none is obeyed: only
plain values are read, and the name of that one class is taken for a name.
"""

import base64
import io
import json
import pickle
import pickletools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fwconvert.errors import FwconvertError, UsageError, message
from fwconvert.tokens import gigatoken, separators, tiktoken_kind
from fwconvert.tokens.defined import Given
from fwconvert.tokens.definition import Facts
from fwconvert.tokens.gigatoken import FastTokenizer
from fwconvert.tokens.spec import Loading, TokenizerSpec
from fwconvert.tokens.tiktoken_kind import Vocabulary
from fwconvert.tokens.tokenizer import ReferenceTokenizer, parse_ranks

# What gigatoken calls the patterns that it knows, each as tiktoken and as others spell it. Without `\s++$`
# cl100k_base's is another one: a text that ends with a line and a blank is cut between the two.
_PATTERNS = {
    tiktoken_kind.PATTERNS["r50k_base"]: "gpt2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    tiktoken_kind.PATTERNS["cl100k_base"]: "gpt4",
    tiktoken_kind.PATTERNS["o200k_base"]: "o200k",
}
_MOST_PATTERN = 10_000
_MOST_IDS = 2**31
# A pattern has to take hold of all text: what it passes over is lost.
_PROBES = (
    "Hello, World's 12345!\r\n\t x",
    "\u00e9\u4e2d\U0001f600\u0301\u00a0\u2003.",
    "\x00\x7f\ufffd_'",
    " " * 20,
)


@dataclass(frozen=True)
class RankTable:
    """What a definition says."""

    pattern: str
    ranks: dict[bytes, int]
    specials: dict[str, int]

    @property
    def table(self) -> bytes:
        """The ranks as a file of tiktoken has them."""
        ordered = sorted(self.ranks.items(), key=lambda entry: entry[1])
        return b"".join(base64.b64encode(piece) + b" %d\n" % rank for piece, rank in ordered)


class RankFiles:
    """See defined.Library."""

    def examine(self, given: Given) -> TokenizerSpec:
        """See Library."""
        found = _parsed(given.content, given.name)
        taken = frozenset(found.ranks.values())
        size = 1 + max(*taken, *found.specials.values())
        spec = separators.of_definition(given, Facts(size, found.specials, taken))
        try:
            reference = ReferenceTokenizer(_vocabulary(spec, found), found.table)
            lost = [
                text
                for text in _PROBES
                if reference.decode(reference.encode(pa.array([text])).tokens) != text.encode()
            ]
        except (ValueError, FwconvertError) as error:
            raise _no_definition(given.name, f"tiktoken does not take it: {error}") from None
        if lost:
            raise _no_definition(given.name, f"its pattern passes over a part of the text {lost[0]!r}")
        return spec

    def reference(self, spec: TokenizerSpec, content: bytes, how: Loading) -> ReferenceTokenizer:
        """See Library."""
        found = _parsed(content, spec.name)
        return ReferenceTokenizer(_vocabulary(spec, found), found.table, how.threads)

    def why_not_fast(self, content: bytes) -> str:
        """See Library."""
        if _parsed(content, "").pattern in _PATTERNS:
            return ""
        return "gigatoken knows the patterns of gpt2, cl100k_base and o200k_base, and not this one"

    def fast(self, spec: TokenizerSpec, content: bytes, how: Loading) -> FastTokenizer:
        """See Library."""
        found = _parsed(content, spec.name)
        table, pretokenizer = found.table, _PATTERNS[found.pattern]

        def make() -> Any:
            with gigatoken.file_of(table, how.scratch or Path(tempfile.gettempdir())) as path:
                return gigatoken.of_file(path, pretokenizer)

        return FastTokenizer(self.reference(spec, content, how), make, how.threads)


def _vocabulary(spec: TokenizerSpec, found: RankTable) -> Vocabulary:
    return Vocabulary(
        kind=spec.kind,
        name=spec.name,
        sha256=spec.sha256,
        size=spec.size,
        eot=spec.eot,
        bos=spec.bos,
        built_in=False,
        table="",
        pattern=found.pattern,
        specials=found.specials,
        free=range(0),
        text_bytes_per_token=1.0,
    )


def _parsed(content: bytes, name: str) -> RankTable:
    try:
        found = _unpickled(content) if content[:1] == b"\x80" else _read(content)
        _check(found)
    except Exception as error:  # noqa: BLE001  # a damaged pickle may raise any
        raise _no_definition(name, f"{type(error).__name__}: {error}") from None
    return found


def _read(content: bytes) -> RankTable:
    head, _, table = content.partition(b"\n")
    said = json.loads(head.decode())
    return RankTable(said["pattern"], parse_ranks(table), dict(said.get("special_tokens") or {}))


class _Encoding:
    """Stands for tiktoken's class: it takes what was saved, and does nothing."""

    saved: Any = None

    def __setstate__(self, saved: object) -> None:
        self.saved = saved


class _PlainValues(pickle.Unpickler):  # noqa: S301  # made for strangers: see find_class
    """Reads values that are neither classes nor functions, and that one object."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("tiktoken.core", "Encoding"):
            return _Encoding
        if (module, name) in {("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor")}:
            return lambda *_: _Encoding()
        if (module, name) in {("builtins", "object"), ("__builtin__", "object")}:
            return None
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no plain value")


def _unpickled(content: bytes) -> RankTable:
    # An unpickler has room for every number below the largest that an object is given. No pickle needs
    # more numbers than it has bytes; one that gives 4,000,000,000 would take 64 GB.
    for operation, argument, _ in pickletools.genops(content):
        if operation.name == "LONG_BINPUT" and int(argument or 0) > len(content):
            raise ValueError(f"it gives an object the number {argument:,}")
    found = _PlainValues(io.BytesIO(content)).load()
    saved = found.saved if isinstance(found, _Encoding) else found
    if not isinstance(saved, dict):
        raise TypeError("it is no saved encoding of tiktoken")
    return RankTable(saved["pat_str"], saved["mergeable_ranks"], saved["special_tokens"])


def _check(found: RankTable) -> None:
    pieces, specials = found.ranks, found.specials
    numbers = [*pieces.values(), *specials.values()]
    if not isinstance(found.pattern, str) or len(found.pattern) > _MOST_PATTERN:
        raise ValueError("its pattern is no text")
    if not all(isinstance(piece, bytes) and piece for piece in pieces):
        raise ValueError("a piece is no bytes")
    if not all(isinstance(name, str) and name for name in specials):
        raise ValueError("a special token has no name")
    if not all(type(number) is int and 0 <= number < _MOST_IDS for number in numbers):
        raise ValueError("an id is no number")
    if len(set(numbers)) < len(numbers):
        raise ValueError("two tokens have one id")
    missing = [byte for byte in range(256) if bytes([byte]) not in pieces]
    if missing:
        raise ValueError(f"{len(missing)} of the 256 bytes have no token, the first is {missing[0]:#04x}")


def _no_definition(name: str, reason: str) -> UsageError:
    return UsageError(
        message(
            "this is no rank table with its pattern and its special tokens",
            "name a .tiktoken file with such a .json beside it, or the tokenizer.pkl of nanochat",
            tokenizer=name,
            reason=reason,
        )
    )
