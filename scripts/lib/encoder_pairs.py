"""Two encoders that ought to give the same tokens, to be compared: gigatoken, and what defines the tokens.

Real vocabularies hide most differences: few tokens span the boundary between
two words, so a wrong boundary rarely shows. So there are synthetic ones, whose
merges all span a boundary between characters and so show where every word
ends. What is found then depends on no vocabulary.
"""

import base64
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import gigatoken
import numpy as np
import pyarrow as pa
import tokenizers
from numpy.typing import NDArray

from fwconvert.tokens import tiktoken_kind
from fwconvert.tokens.tokenizer import ReferenceTokenizer

# gigatoken's name for the pattern of each encoding of tiktoken.
TIKTOKEN_PATTERNS = {"gpt2": "gpt2", "cl100k_base": "gpt4", "o200k_base": "o200k"}

_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_MARKED_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
# It has the characters themselves where others have \r and \n.
_DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^[CR][LF]\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[[CR][LF]]*|\s*[[CR][LF]]+|\s+(?!\S)|\s+"
)


def _by_case(endings: str, digits: str) -> str:
    begin = r"[^\r\n\p{L}\p{N}]?"
    words = f"{begin}{_UPPER}*{_LOWER}+{endings}|{begin}{_UPPER}+{_LOWER}*{endings}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_SPACES}"


# The patterns by which text is cut into words in the files that gigatoken takes; none: that of ByteLevel.
SPLITS: dict[str, tuple[str, ...]] = {
    "GPT-2, GPT-NeoX": (),
    "GPT-2 as a Split": (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",),
    "Llama 3, OLMo 2": (rf"{_WORDS}|\p{{N}}{{1,3}}{_SYMBOLS}{_SPACES}",),
    "Qwen 2 and 3": (rf"{_WORDS}|\p{{N}}{_SYMBOLS}{_SPACES}",),
    "Qwen 3.5": (rf"{_MARKED_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_SPACES}",),
    "GPT-4o, GPT-OSS": (_by_case(_ENDINGS, r"\p{N}{1,3}"),),
    "Mistral Nemo": (_by_case("", r"\p{N}"),),
    "DeepSeek V3": (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        _DEEPSEEK.replace("[CR]", "\r").replace("[LF]", "\n"),
    ),
}

# Tokens of all texts, and where in them each text begins and the last ends.
Found = tuple[NDArray[Any], NDArray[np.int64]]


class Pair:
    """The two encoders of one definition."""

    def __init__(
        self, description: str, fast: gigatoken.Tokenizer, reference: Callable[[Sequence[str]], Found]
    ) -> None:
        self.description = description
        self.fast = fast
        self._reference = reference

    def differing(self, texts: Sequence[str]) -> list[int]:
        """Return the indices of the texts for which the two make different tokens."""
        array = self.fast.encode_batch(list(texts), parallel=False).layout
        fast, fast_bounds = np.asarray(array.content.data), np.asarray(array.offsets.data)
        slow, slow_bounds = self._reference(texts)
        if np.array_equal(fast_bounds, slow_bounds) and np.array_equal(fast, slow):
            return []
        cuts = zip(
            itertools.pairwise(fast_bounds.tolist()), itertools.pairwise(slow_bounds.tolist()), strict=True
        )
        return [
            index for index, ((a, b), (c, d)) in enumerate(cuts) if not np.array_equal(fast[a:b], slow[c:d])
        ]


def of_tiktoken(description: str, name: str, table: bytes) -> Pair:
    """Return the two encoders with one encoding's pattern and a rank table."""
    reference = ReferenceTokenizer(tiktoken_kind.find(name), table)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ranks.tiktoken"
        path.write_bytes(table)
        fast = gigatoken.Tokenizer.from_tiktoken(
            str(path), pretokenizer=TIKTOKEN_PATTERNS[name], special_tokens={}
        )

    def encode(texts: Sequence[str]) -> Found:
        encoded = reference.encode(pa.array(texts, pa.large_string()))
        return encoded.tokens, encoded.offsets

    return Pair(description, fast, encode)


def of_file(description: str, definition: bytes) -> Pair:
    """Return the two encoders of a tokenizer.json, against tokenizers of Hugging Face."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    reference = tokenizers.Tokenizer.from_str(definition.decode())

    def encode(texts: Sequence[str]) -> Found:
        lengths, ids = [0], [np.empty(0, np.uint32)]
        for at in range(0, len(texts), 1000):  # The library makes objects for each token.
            for encoding in reference.encode_batch_fast(
                list(texts[at : at + 1000]), add_special_tokens=False
            ):
                ids.append(np.array(encoding.ids, np.uint32))
                lengths.append(len(ids[-1]))
        return np.concatenate(ids), np.cumsum(lengths)

    return Pair(description, gigatoken.Tokenizer.from_json(definition), encode)


def synthetic_pairs() -> dict[str, Pair]:
    """Return the pairs of all patterns, with synthetic vocabularies."""
    table = synthetic_table()
    found = {name: of_tiktoken(name, name, table) for name in TIKTOKEN_PATTERNS}
    return found | {name: of_file(name, synthetic_file(splits)) for name, splits in SPLITS.items()}


def _borders(alphabet: Collection[int] = range(256)) -> list[tuple[int, int]]:
    """Return the last byte of any character with the first of any other, in the order of merging.

    Two ASCII characters merge last, so that the boundaries of all other characters show.
    """
    ends = [byte for byte in alphabet if byte < 0xC0]
    begins = [byte for byte in alphabet if byte < 0x80 or byte >= 0xC0]
    return sorted(itertools.product(ends, begins), key=lambda border: bytes(border).isascii())


def synthetic_table() -> bytes:
    """Return the rank table of the synthetic vocabulary."""
    pieces = [bytes([byte]) for byte in range(256)] + [bytes(border) for border in _borders()]
    return b"".join(b"%s %d\n" % (base64.b64encode(piece), rank) for rank, piece in enumerate(pieces))


def synthetic_file(
    splits: Sequence[str], *, normalizer: str | None = None, alphabet: Collection[int] = range(256)
) -> bytes:
    """Return a tokenizer.json with the synthetic vocabulary, which merges bytes of this alphabet.

    The id of a single byte is that byte.
    """
    letters = _letters()
    borders = [(letters[end], letters[begin]) for end, begin in _borders(alphabet)]
    pieces = [*letters, *(end + begin for end, begin in borders)]
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
        for split in splits
    ]
    steps.append(
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not splits}
    )
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": normalizer and {"type": normalizer},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps} if splits else steps[0],
            "model": {
                "type": "BPE",
                "vocab": {piece: number for number, piece in enumerate(pieces)},
                "merges": borders,
            },
        }
    ).encode()


def _letters() -> list[str]:
    """Return the letter that stands for each byte in vocabularies of bytes, as GPT-2 has them."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printed else next(others)) for byte in range(0x100)]


class Normalizing:
    """Unicode's form NFC as each of the two has it."""

    def __init__(self) -> None:
        # With tokens that are bytes, the tokens are the normalized text.
        definition = synthetic_file((), normalizer="NFC", alphabet=())
        self._fast = gigatoken.Tokenizer.from_json(definition)
        self._reference = tokenizers.normalizers.NFC()

    def differing(self, texts: Sequence[str]) -> list[int]:
        """Return the indices of the texts of which the two make different texts."""
        layout = self._fast.encode_batch(list(texts), parallel=False).layout
        content = np.asarray(layout.content.data).astype(np.uint8).tobytes()
        bounds = itertools.pairwise(np.asarray(layout.offsets.data).tolist())
        return [
            index
            for index, (text, (begin, end)) in enumerate(zip(texts, bounds, strict=True))
            if content[begin:end] != self._reference.normalize_str(text).encode()
        ]
