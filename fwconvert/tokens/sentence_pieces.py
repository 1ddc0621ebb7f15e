"""Tokenizers of a sentencepiece model: that library is the reference, gigatoken the fast way."""

import functools
from typing import Any

import numpy as np
import pyarrow as pa
import sentencepiece

from fwconvert.errors import SourceError, UsageError, message
from fwconvert.tokens import separators
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

    def fast(self, spec: TokenizerSpec, content: bytes, how: Loading) -> FastTokenizer:
        """See Library."""
        import gigatoken  # noqa: PLC0415  # may be absent; whoever chooses the encoder knows

        reference = self.reference(spec, content, how)
        return FastTokenizer(reference, lambda: gigatoken.Tokenizer.from_sentencepiece(content), how.threads)


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
