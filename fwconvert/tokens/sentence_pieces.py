"""Tokenizers of a sentencepiece model: that library is the reference, gigatoken the fast way."""

import functools
import importlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import sentencepiece

from fwconvert.errors import SourceError, UsageError, message
from fwconvert.tokens import disagreements, gigatoken, separators
from fwconvert.tokens.decoding import Pieces, whole_pieces
from fwconvert.tokens.defined import Given
from fwconvert.tokens.definition import Facts
from fwconvert.tokens.gigatoken import FastTokenizer
from fwconvert.tokens.spec import Loading, TokenizerSpec
from fwconvert.tokens.tokenizer import Encoded, Tokens


class SentencePieces:
    """See defined.Library."""

    def examine(self, given: Given) -> TokenizerSpec:
        """See Library."""
        engine = _loaded(given.content, given.name)
        every = range(engine.vocab_size())
        # Text never gives a control symbol: the library passes over them.
        names = {engine.id_to_piece(number): number for number in every if engine.is_control(number)}
        taken = {number for number in every if not engine.is_control(number) and not engine.is_unused(number)}
        facts = Facts(len(every), names, frozenset(taken))
        end = engine.eos_id()
        default = engine.id_to_piece(end) if end in names.values() else None
        return separators.of_definition(given, facts, default)

    def reference(self, spec: TokenizerSpec, content: bytes, how: Loading) -> "SentencePieceTokenizer":
        """See Library."""
        return SentencePieceTokenizer(spec, content, how.threads)

    def why_not_fast(self, content: bytes) -> str:
        """See Library."""
        engine = _loaded(content, "")
        if any(map(engine.is_unused, range(engine.vocab_size()))):
            return "gigatoken does not pass over pieces that are marked as unused"
        gigatoken.library()
        loader = importlib.import_module("gigatoken._load.sentencepiece")
        try:
            tree = json.loads(loader.sentencepiece_to_tokenizer_json(_for_text(content)))
        except ValueError as error:
            return f"gigatoken does not take this model: {error}"
        reason = disagreements.not_compared(tree)
        return f"gigatoken was not compared with it: {reason}" if reason else ""

    def fast(self, spec: TokenizerSpec, content: bytes, how: Loading) -> FastTokenizer:
        """See Library."""
        reference = self.reference(spec, content, how)
        model = _for_text(content)
        # Behind a piece that users have defined gigatoken puts a blank, which the library does not.
        defined = {name for kind, name in _typed(content) if kind == _USER_DEFINED}
        return FastTokenizer(
            reference,
            lambda: gigatoken.library().Tokenizer.from_sentencepiece(model),
            how.threads,
            doubtful={_UNSPELT.encode(), *defined},
        )


class SentencePieceTokenizer:
    """The library itself; see tokenizer.Tokenizer."""

    def __init__(self, spec: TokenizerSpec, content: bytes, threads: int = 1) -> None:
        self.spec = spec
        self._threads = threads
        self._engine = _loaded(content, spec.name)

    def encode(self, texts: pa.Array) -> Encoded:
        """See Tokenizer."""
        try:
            found = self._engine.encode(texts.to_pylist(), out_type=int, num_threads=self._threads)
        except RuntimeError as error:
            raise SourceError(
                message("sentencepiece cannot encode a document", tokenizer=self.spec.name, reason=error)
            ) from None
        parts = [np.array(ids, self.spec.token_type) for ids in found]
        tokens = np.concatenate([np.empty(0, self.spec.token_type), *parts])
        return Encoded(tokens, np.cumsum([0, *map(len, parts)], dtype=np.int64))

    def decode(self, tokens: Tokens) -> bytes:
        """See Tokenizer."""
        return self._pieces.join(tokens)

    @functools.cached_property
    def _pieces(self) -> Pieces:
        engine = self._engine
        spelt = {number: whole_pieces(engine.id_to_piece(number)) for number in range(engine.vocab_size())}
        return Pieces(self.spec, spelt)


# Begins the names that control symbols get for gigatoken. It is no character, and a text that has it
# is encoded by the reference.
_UNSPELT = "\ufdd0" * 4
_PIECES, _PIECE, _TYPE, _CONTROL, _USER_DEFINED = 1, 1, 3, 3, 4


def _typed(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type of each piece of a model that has one, and the piece."""
    for field, kind, piece, _ in _fields(content):
        if field == _PIECES and kind == _BYTES:
            inner = {name: value for name, _, value, _ in _fields(piece)}
            if _TYPE in inner:
                yield inner[_TYPE], inner.get(_PIECE, b"")


def _for_text(content: bytes) -> bytes:
    """Return a model whose control symbols no text spells: gigatoken would take </s> in a text for the end.

    A model is a message of protobuf; what is not a control symbol stays as it is.
    """
    parts = []
    for number, (field, kind, piece, whole) in enumerate(_fields(content)):
        if field == _PIECES and kind == _BYTES:
            inner = list(_fields(piece))
            if any(name == _TYPE and value == _CONTROL for name, _, value, _ in inner):
                name = f"{_UNSPELT}{number}".encode()
                renamed = [_field(_PIECE, name) if at == _PIECE else raw for at, _, _, raw in inner]
                whole = _field(_PIECES, b"".join(renamed))  # noqa: PLW2901  # it is written in its place
        parts.append(whole)
    return b"".join(parts)


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _fields(content: bytes) -> Iterator[tuple[int, int, Any, bytes]]:
    """Yield the fields of a message: number, kind, value and all bytes; IndexError if it is cut off."""
    at = 0
    while at < len(content):
        begin = at
        key, at = _varint(content, at)
        if key & 7 == _VARINT:
            value: Any
            value, at = _varint(content, at)
        elif key & 7 == _BYTES:
            size, at = _varint(content, at)
            value, at = content[at : at + size], at + size
        else:
            at += {_FIXED64: 8, _FIXED32: 4}[key & 7]
            value = content[begin:at]
        yield key >> 3, key & 7, value, content[begin:at]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while content[at] > 127:  # the highest bit says that more follows
        number |= (content[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return number | content[at] << shift, at + 1


def _field(number: int, value: bytes) -> bytes:
    """Return a field of bytes."""
    size, left = bytearray(), len(value)
    while left > 127:  # as above
        size.append(left & 127 | 128)
        left >>= 7
    return bytes([number << 3 | _BYTES]) + bytes(size) + bytes([left]) + value


def _loaded(content: bytes, name: str) -> Any:
    try:
        engine = sentencepiece.SentencePieceProcessor()
        engine.LoadFromSerializedProto(content)
        if engine.vocab_size() > 0:
            return engine
        reason: object = "it has no pieces"
    except (RuntimeError, ValueError) as error:
        reason = error
    raise UsageError(
        message(
            "this is no model of sentencepiece",
            "Llama 3 has a rank table under this name: name its tokenizer.json instead"
            if content[:80].isascii()
            else "name the tokenizer.model, or a tokenizer.json",
            tokenizer=name,
            reason=reason,
        )
    )
