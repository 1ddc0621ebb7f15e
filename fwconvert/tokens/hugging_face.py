"""Tokenizers of a tokenizer.json: the library of Hugging Face is the reference, gigatoken the fast way.

What both get is the definition for ordinary text (see definition). The library
merges words at some 2 MB of text a second in each process, and makes a Python
object for each token, so texts go through it in small batches.
"""

import functools
import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import tokenizers

from fwconvert.errors import SourceError, UsageError, message
from fwconvert.tokens import definition, disagreements, gigatoken, separators
from fwconvert.tokens.decoding import Pieces, byte_level, whole_pieces
from fwconvert.tokens.defined import Given
from fwconvert.tokens.gigatoken import FastTokenizer
from fwconvert.tokens.spec import Loading, TokenizerSpec
from fwconvert.tokens.tokenizer import Encoded, Tokens, text_bytes

# By the first two numbers of their versions: those whose ids are equal for every character that was compared,
# and which the fast encoder was compared with. 0.20 is not among them: it knows an older Unicode.
COMPARED = ("0.22", "0.23")

# Of text at a time: for each token the library has some 200 bytes of what we do not ask for.
_BATCH_BYTES = 2**20


class HuggingFace:
    """See defined.Library."""

    def examine(self, given: Given) -> TokenizerSpec:
        """See Library."""
        tree = definition.parse(given.content)
        text = definition.text_of(tree)
        facts = definition.facts(tree)
        engine = _loaded(text, given.name)
        chosen = separators.of_definition(given, facts, default=separators.named_in(given.config, facts))
        names = {number: name for name, number in facts.names.items()}
        for number in (chosen.eot, chosen.bos):
            name = "" if number is None else names.get(number, "")
            found = {token for text in (name, f" {name}", f"a{name}b") for token in _ids(engine, text)}
            if number in found:
                raise UsageError(
                    message(
                        "a separator is a token of ordinary text here, so documents could contain it",
                        "choose another one by --eot-token",
                        tokenizer=given.name,
                        separator=f"{name} ({number})",
                        special_tokens=separators.listed(facts.names),
                    )
                )
        return chosen

    def reference(self, spec: TokenizerSpec, content: bytes, how: Loading) -> "HuggingFaceTokenizer":
        """See Library."""
        return HuggingFaceTokenizer(spec, content, how.threads)

    def why_not_fast(self, content: bytes) -> str:
        """See Library."""
        installed = tokenizers.__version__
        if ".".join(installed.split(".")[:2]) not in COMPARED:
            return f"tokenizers {installed} is installed, and only {' and '.join(COMPARED)} were compared"
        reason = disagreements.not_compared(json.loads(_text(content)))
        return f"gigatoken was not compared with it: {reason}" if reason else ""

    def fast(self, spec: TokenizerSpec, content: bytes, how: Loading) -> FastTokenizer:
        """See Library."""
        text = _text(content).decode()
        return FastTokenizer(
            self.reference(spec, content, how),
            lambda: gigatoken.library().Tokenizer.from_json(text),
            how.threads,
        )


class HuggingFaceTokenizer:
    """The library itself; see tokenizer.Tokenizer."""

    def __init__(self, spec: TokenizerSpec, content: bytes, threads: int = 1) -> None:
        self.spec = spec
        # Its threads are the process's, and are counted when it first uses them.
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        self._content = content
        self._engine = _loaded(_text(content), spec.name)

    def encode(self, texts: pa.Array) -> Encoded:
        """See Tokenizer."""
        lengths, parts = [0], [np.empty(0, np.uint32)]
        _, bounds = text_bytes(texts)
        begin = 0
        for end in _batch_ends(bounds):
            for encoding in self._batch(texts[begin:end], begin):
                ids = np.array(encoding.ids, np.uint32)
                parts.append(ids)
                lengths.append(len(ids))
            begin = end
        tokens = np.concatenate(parts).astype(self.spec.token_type)
        return Encoded(tokens, np.cumsum(lengths, dtype=np.int64))

    def decode(self, tokens: Tokens) -> bytes:
        """See Tokenizer."""
        return self._pieces.join(tokens)

    @functools.cached_property
    def _pieces(self) -> Pieces:
        # Only whoever shows text needs them.
        return pieces(self.spec, self._content, self._engine)

    def _batch(self, texts: pa.Array, first: int) -> list[Any]:
        words = texts.to_pylist()
        try:
            return list(self._engine.encode_batch_fast(words, add_special_tokens=False))
        except Exception:  # noqa: BLE001  # the library raises nothing more definite
            return [self._one(first + at, word) for at, word in enumerate(words)]

    def _one(self, index: int, text: str) -> Any:
        try:
            return self._engine.encode(text, add_special_tokens=False)
        except Exception as error:  # noqa: BLE001  # as above
            raise SourceError(
                message(
                    "tokenizers of Hugging Face cannot encode a document",
                    tokenizer=self.spec.name,
                    document_in_batch=index,
                    characters=f"{len(text):,}",
                    reason=error,
                )
            ) from None


@functools.lru_cache(maxsize=1)
def _text(content: bytes) -> bytes:
    # A second or two for the largest, and both ways need it: a worker tries one and loads both.
    return definition.for_text(content)


def _batch_ends(bounds: "np.typing.NDArray[np.int64]") -> Iterator[int]:
    """Yield where a batch of texts ends: each has about so many bytes, or is one text."""
    begin, count = 0, len(bounds) - 1
    while begin < count:
        end = int(np.searchsorted(bounds, bounds[begin] + _BATCH_BYTES, side="right")) - 1
        begin = max(begin + 1, end)
        yield begin


def _loaded(text: bytes, name: str) -> Any:
    try:
        return tokenizers.Tokenizer.from_str(text.decode())
    except Exception as error:  # noqa: BLE001  # the library raises nothing more definite
        raise UsageError(
            message(
                "tokenizers of Hugging Face cannot read this tokenizer",
                f"look at the file, or install a newer version than tokenizers {tokenizers.__version__}",
                tokenizer=name,
                reason=error,
            )
        ) from None


def _ids(engine: Any, text: str) -> list[int]:
    return list(engine.encode(text, add_special_tokens=False).ids)


def pieces(spec: TokenizerSpec, content: bytes, engine: Any) -> Pieces:
    """Return what each token spells, by the decoder of the definition."""
    tree = definition.parse(content)
    # The decoder does not ask whether a token was added: Gemma 3 has runs of marked blanks for blanks.
    words = {number: text for text, number in definition.vocabulary(tree).items()}
    words |= {token["id"]: token["content"] for token in tree["added_tokens"]}
    decoder = json.dumps(tree.get("decoder"))
    if '"ByteLevel"' in decoder:
        spelt = {number: byte_level(text) for number, text in words.items()}
    elif '"ByteFallback"' in decoder or '"Metaspace"' in decoder:
        spelt = {number: whole_pieces(text) for number, text in words.items()}
    else:
        # Such decoders join words by blanks; a token alone is what the library says.
        spelt = {number: text.encode() for number, text in words.items()}
        return Pieces(spec, spelt, lambda ids: engine.decode(ids, skip_special_tokens=False).encode())
    return Pieces(spec, spelt)
