"""From texts to tokens, a batch at a time.

tiktoken's ids are the definition of correct. Text is always ordinary text: a
document that spells out <|endoftext|> is encoded as those characters, and an
EOT in the output always is a document's boundary. A tokenizer never crosses
to another process; a worker is told its vocabulary and loads its own.
"""

import binascii
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import regex
import tiktoken
from numpy.typing import NDArray

from fwconvert.errors import ShardError, SourceError, message
from fwconvert.recipes import EotSide
from fwconvert.tokens.spec import TokenizerSpec
from fwconvert.tokens.tiktoken_kind import EOT_TEXT, Vocabulary

Tokens: TypeAlias = NDArray[np.uint16 | np.uint32]


@dataclass(frozen=True)
class Encoded:
    """A batch of documents without separators: document i is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: Tokens
    offsets: NDArray[np.int64]


@dataclass(frozen=True)
class Stream:
    """A batch of documents, each with its separators: document i begins at `tokens[starts[i]]`."""

    tokens: Tokens
    starts: NDArray[np.int64]


class Tokenizer(Protocol):
    """Turns texts into tokens and back."""

    @property
    def spec(self) -> TokenizerSpec:
        """The ids that it uses."""

    def encode(self, texts: pa.Array) -> Encoded:
        """Return the tokens of string or large_string `texts`: no nulls, valid UTF-8, any length.

        An empty text gives no tokens. A text that cannot be encoded raises
        SourceError with its index in `texts`.
        """

    def decode(self, tokens: Tokens) -> bytes:
        """Return the text of `tokens`, which may begin and end within a character.

        A separator gives its name. An id that does not exist raises ShardError.
        """


class ReferenceTokenizer:
    """tiktoken itself, a document at a time."""

    def __init__(self, vocabulary: Vocabulary, table: bytes, threads: int = 1) -> None:
        self.spec = vocabulary
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        ranks = parse_ranks(table)
        self._ids = np.array([*ranks.values(), *vocabulary.separator_texts.values()])
        # Made from its parts, because tiktoken.get_encoding may download.
        self._encoding = tiktoken.Encoding(
            vocabulary.name,
            pat_str=vocabulary.pattern,
            mergeable_ranks=ranks,
            special_tokens=vocabulary.separator_texts,
        )

    def encode(self, texts: pa.Array) -> Encoded:
        """See Tokenizer."""
        run = map if self._pool is None else self._pool.map  # tiktoken releases the lock while it works
        documents = [np.empty(0, np.uint32)]  # so that the offsets begin with 0
        documents += run(self._encode_one, range(len(texts)), texts.to_pylist())
        return Encoded(
            np.concatenate(documents, dtype=self.spec.token_type, casting="same_kind"),
            np.cumsum([len(tokens) for tokens in documents], dtype=np.int64),
        )

    def decode(self, tokens: Tokens) -> bytes:
        """See Tokenizer."""
        _refuse_unknown(tokens, self._ids, self.spec)
        return self._encoding.decode_bytes(tokens.tolist())

    def _encode_one(self, index: int, text: str) -> NDArray[np.uint32]:
        # Equal to encode_ordinary, but without a Python object per token; and where that panics,
        # as on a million spaces before a letter, this raises ValueError.
        try:
            return self._encoding.encode_to_numpy(text, disallowed_special=())
        except ValueError:
            return self.encode_in_pieces(index, text)

    def encode_in_pieces(self, index: int, text: str) -> NDArray[np.uint32]:
        """Encode a text on which tiktoken's regex engine gives up; `index` names it in errors.

        The same pattern, run by an engine without that limit, splits the text,
        and tiktoken merges each piece. So the tokens are those that tiktoken's
        definition asks for.
        """
        try:
            pieces = regex.findall(self.spec.pattern, text)
            # Not split again: a piece of a million spaces would stop the engine once more.
            encode = self._encoding._encode_single_piece  # noqa: SLF001
            parts = [np.array(encode(piece), np.uint32) for piece in pieces]
        except ValueError as error:
            raise SourceError(
                message(
                    "tiktoken cannot encode a document",
                    tokenizer=self.spec.name,
                    document_in_batch=index,
                    characters=f"{len(text):,}",
                    reason=error,
                )
            ) from error
        return np.concatenate([np.empty(0, np.uint32), *parts])


class BytesTokenizer:
    """A token is one byte of UTF-8: invertible, needs no files, costs a copy."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self.spec = spec
        self._texts = [bytes([byte]) for byte in range(256)] + [EOT_TEXT.encode()]

    def encode(self, texts: pa.Array) -> Encoded:
        """See Tokenizer."""
        content, bounds = text_bytes(texts)
        return Encoded(content.astype(np.uint16), bounds)

    def decode(self, tokens: Tokens) -> bytes:
        """See Tokenizer."""
        _refuse_unknown(tokens, np.arange(self.spec.size), self.spec)
        return b"".join([self._texts[token] for token in tokens.tolist()])


def place_eot(encoded: Encoded, eot: int, side: EotSide, bos: int | None = None) -> Stream:
    """Return the documents joined: each with one EOT before or after it, or between its BOS and its EOT.

    A document begins with the separator that stands before it. An empty
    document is its separators alone.
    """
    kind, documents = encoded.tokens.dtype, _as_binary(encoded)
    separator = _as_scalar(eot, kind)
    parts = [separator, documents] if side == "before" else [documents, separator]
    if bos is not None:
        parts.insert(0, _as_scalar(bos, kind))
    # The documents ahead of document i have brought their separators with them.
    each = len(parts) - 1
    starts = encoded.offsets[:-1] + each * np.arange(len(encoded.offsets) - 1)
    # Arrow joins by copying whole documents: five times as fast as numpy.insert.
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    size = len(encoded.tokens) + each * len(starts)
    return Stream(np.frombuffer(joined.buffers()[2] or b"", kind)[:size], starts)


def _as_scalar(token: int, kind: np.dtype[Any]) -> pa.Scalar:
    return pa.scalar(np.array(token, kind).tobytes(), pa.large_binary())


def _as_binary(encoded: Encoded) -> pa.Array:
    """Return the documents as byte strings over the same memory."""
    places = pa.py_buffer(encoded.offsets * encoded.tokens.itemsize)
    content = pa.py_buffer(np.ascontiguousarray(encoded.tokens))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(encoded.offsets) - 1, [None, places, content]
    )


def parse_ranks(table: bytes) -> dict[bytes, int]:
    """Return the rank of every piece in a proven rank table: a line is base64, a space, a number."""
    pairs = (line.split() for line in table.splitlines())
    return {binascii.a2b_base64(piece): int(rank) for piece, rank in pairs}


def text_bytes(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of all texts, without a copy, and where in them each text begins and the last ends."""
    bounds = _bounds(texts)
    content = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[bounds[0] : bounds[-1]]
    return content, bounds - bounds[0]


def _bounds(texts: pa.Array) -> NDArray[np.int64]:
    """Return where in the value buffer each text begins, and where the last one ends."""
    if len(texts) == 0:
        return np.zeros(1, np.int64)  # Arrow may leave the offsets of an empty array out.
    width = np.dtype(np.int64 if pa.types.is_large_string(texts.type) else np.int32)
    first = texts.offset * width.itemsize
    return np.frombuffer(texts.buffers()[1], width, len(texts) + 1, first).astype(np.int64)


def _refuse_unknown(tokens: Tokens, ids: NDArray[np.int64], spec: TokenizerSpec) -> None:
    unknown = tokens[~np.isin(tokens, ids)]
    if len(unknown):
        raise ShardError(message("a token is not in the vocabulary", token=unknown[0], tokenizer=spec.name))
