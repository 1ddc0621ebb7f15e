"""What each token of a definition spells, in bytes: a token may begin and end within a character.

A tokenizer may change text before it cuts it: Unicode's form NFC, a blank before
the first word, one blank for many. Its tokens then spell the changed text, and
so does what is decoded here; nothing that checks a run compares it with the source.
"""

import functools
import re
from collections.abc import Callable, Mapping

from fwconvert.errors import ShardError, message
from fwconvert.tokens.spec import TokenizerSpec
from fwconvert.tokens.tokenizer import Tokens

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_BLANK = "\u2581"


class Pieces:
    """The bytes of each token."""

    def __init__(
        self,
        spec: TokenizerSpec,
        spelt: Mapping[int, bytes],
        joined: Callable[[list[int]], bytes] | None = None,
    ) -> None:
        """`joined` turns ids into text where that is more than their bytes, one after the other."""
        self._name = spec.name
        separators = {
            number: f"<|{number}|>".encode() for number in (spec.eot, spec.bos) if number is not None
        }
        self._spelt = {**separators, **spelt}
        self._joined = joined

    def join(self, tokens: Tokens) -> bytes:
        """Return the text of tokens; an id that does not exist raises ShardError."""
        ids = tokens.tolist()
        try:
            parts = [self._spelt[number] for number in ids]
        except KeyError as error:
            raise ShardError(
                message("a token is not in the vocabulary", token=error.args[0], tokenizer=self._name)
            ) from None
        return b"".join(parts) if self._joined is None else self._joined(ids)


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """Return the byte that each character stands for in byte-level vocabularies, as GPT-2 has them."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}


def byte_level(text: str) -> bytes:
    """Return what a token of a byte-level vocabulary spells."""
    known = _bytes_of_characters()
    try:
        return bytes([known[character] for character in text])
    except KeyError:  # No byte-level token: it spells itself.
        return text.encode()


def whole_pieces(text: str) -> bytes:
    """Return what a piece spells whose blanks are marked, and which may stand for one byte."""
    byte = _BYTE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(_BLANK, " ").encode()
