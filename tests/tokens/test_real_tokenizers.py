"""The tokenizers that people use: the fast encoder gives their ids, and text is text.

The files come from registries, once (tests/support/tokenizer_files.py). Every code point in every
context that matters to a pattern is compared without any vocabulary (scripts/disagreements), and a whole
corpus by `scripts/bench tokenizers`; here each file is loaded by both of its encoders and gets what is hard.
"""

import itertools
import json
import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizer_files
from nasty_texts import SCALARS, Texts, abbreviated

from fwconvert.sources import demo
from fwconvert.tokens.defined import library_of
from fwconvert.tokens.gigatoken import FastTokenizer
from fwconvert.tokens.spec import Loading, TokenizerSpec
from fwconvert.tokens.tokenizer import Encoded, Tokenizer

# One process has each file in memory once, and one client fetches.
pytestmark = pytest.mark.xdist_group("real tokenizers")

# What each makes of a text before it cuts it.
PLAIN, NFC, PREFIXED, MARKED = "nothing", "NFC", "a blank before it", "blanks"
NORMALIZING = {
    "llama-3.1": PLAIN,
    "qwen-3": NFC,
    "mistral-nemo": PLAIN,
    "deepseek-v3": PLAIN,
    "gpt-oss": PLAIN,
    "llama-2": PREFIXED,
    "gemma": MARKED,
    "gemma-3": MARKED,
    "gpt-neox": NFC,
    "dolma2": PLAIN,
    "mistral-v1": PREFIXED,
    "mistral-v3": PREFIXED,
    tokenizer_files.SMOLLM: PLAIN,
}
FAST = [name for name in NORMALIZING if name != tokenizer_files.SMOLLM]


@dataclass(frozen=True)
class Loaded:
    """A file, and both of its encoders."""

    name: str
    path: Path

    @cached_property
    def content(self) -> bytes:
        return self.path.read_bytes()

    @property
    def kind(self) -> str:
        return "sentencepiece" if self.path.suffix == ".model" else "hf"

    @property
    def spec(self) -> TokenizerSpec:
        # No id of text is so large.
        return TokenizerSpec(kind=self.kind, name=self.name, sha256="", size=2**20, eot=2**20 - 1)

    @cached_property
    def fast(self) -> FastTokenizer:
        return library_of(self.kind).fast(self.spec, self.content, Loading("fast"))

    @cached_property
    def reference(self) -> Tokenizer:
        if self.name in FAST:
            return self.fast.reference
        return library_of(self.kind).reference(self.spec, self.content, Loading())

    @cached_property
    def added(self) -> list[dict[str, Any]]:
        """Its added tokens; those of a sentencepiece model are its control symbols."""
        if self.kind == "hf":
            found: list[dict[str, Any]] = json.loads(self.content)["added_tokens"]
            return found
        sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
        engine = sentencepiece.SentencePieceProcessor()
        engine.LoadFromSerializedProto(self.content)
        controls = [number for number in range(engine.vocab_size()) if engine.is_control(number)]
        return [{"content": engine.id_to_piece(number), "id": number, "special": True} for number in controls]

    @cached_property
    def pieces(self) -> list[str]:
        """What a part of its vocabulary spells, as text may have it."""
        if self.kind == "hf":
            words = list(json.loads(self.content)["model"]["vocab"])[:4_000]
            return [word.replace("\u0120", " ").replace("\u010a", "\n") for word in words]
        return [token["content"] for token in self.added]


# Of a module, so that pytest keeps the tests of a file together: the largest takes a gigabyte, and seconds.
@pytest.fixture(scope="module")
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    pytest.importorskip("gigatoken", reason="the fast encoder has no wheel for this machine")
    before = {name: os.environ.get(name) for name in ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM")}
    yield Loaded(request.param, tokenizer_files.need(request.param))
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def array(texts: Sequence[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


def documents(encoded: Encoded) -> list[list[int]]:
    bounds = encoded.offsets.tolist()
    return [encoded.tokens[begin:end].tolist() for begin, end in itertools.pairwise(bounds)]


def differing(loaded: Loaded, texts: Sequence[str]) -> list[str]:
    found, wanted = loaded.fast.encode(array(texts)), loaded.reference.encode(array(texts))
    if np.array_equal(found.tokens, wanted.tokens) and np.array_equal(found.offsets, wanted.offsets):
        return []
    rows = zip(texts, documents(found), documents(wanted), strict=True)
    return [abbreviated(text) for text, quick, slow in rows if quick != slow]


def hard_texts(loaded: Loaded) -> Iterator[str]:
    """Yield texts that are hard to split, and the names of its tokens as text."""
    texts = Texts(17, [piece.encode("utf-8", "replace") for piece in loaded.pieces])
    yield from texts.with_disagreements(1_000)
    names = [token["content"] for token in loaded.added]
    few = [*names[:20], *names[-20:], "<s>", "</s>", "<unk>", "<0x0A>", "<|endoftext|>"]
    around = [" ", "  ", "a", "\n", "\u2581", "<", ">", "e\u0301", "\0", "\r"]
    yield from (texts.some([*few, *around], 8) for _ in range(400))
    for blank in (" ", "\n", "\t", "\u00a0", "\u2581", "\r\n", " \n"):
        yield from (blank * count + end for count in (1, 2, 3, 7, 24, 25, 130) for end in ("", "a", "."))
    yield from ("\0", "\0" * 500, "a\0b\0\0 \0c", "a\rb\r\rc", "e\u0301\u0323\u0301 \u1e69 s\u0323\u0307", "")


def long_texts() -> Iterator[str]:
    yield from (" " * 1_000_000 + "a", "\n" * 20_000, "a" * 20_000, "1" * 20_000, "\u65e5" * 5_000)
    yield from ("e\u0301" * 5_000, "\u0301" * 5_000, "ab, " * 5_000, "\0" * 5_000, "<|endoftext|>" * 500)


@pytest.mark.parametrize("loaded", FAST, indirect=True, scope="module")
def test_the_fast_encoder_gives_the_ids_of_the_reference(loaded: Loaded) -> None:
    assert library_of(loaded.kind).why_not_fast(loaded.content) == ""
    texts = list(hard_texts(loaded)) + demo.texts(30)
    assert len(set(texts)) > 1_200
    assert differing(loaded, texts) == []
    assert differing(loaded, list(long_texts())) == []


@pytest.mark.parametrize("loaded", FAST, indirect=True, scope="module")
def test_every_code_point_has_the_ids_of_the_reference(loaded: Loaded) -> None:
    # Of planes without a character, one code point in 64; and with a letter that an accent may join.
    some = [char for char in SCALARS if ord(char) >> 16 in (0, 1, 2, 3, 14) or not ord(char) % 64]
    words = [f"a{char}\u0323\u0301" for char in some]
    texts = [" ".join(words[at : at + 16]) for at in range(0, len(words), 16)]
    assert differing(loaded, texts) == []


@pytest.mark.parametrize("loaded", NORMALIZING, indirect=True, scope="module")
def test_special_tokens_in_a_text_are_ordinary_text(loaded: Loaded) -> None:
    special = {token["id"]: token["content"] for token in loaded.added if token["special"]}
    assert special
    names = sorted(special.values())
    texts = [*names, "".join(names), *(f"a {name} b{name}" for name in names), " ".join(names)]
    encoders = [loaded.reference, loaded.fast] if loaded.name in FAST else [loaded.reference]
    for encoder in encoders:
        encoded = encoder.encode(array(texts))
        assert not {*encoded.tokens.tolist()} & special.keys()
        assert encoder.decode(encoded.tokens[: encoded.offsets[1]]) == normalized(loaded, texts[0]).encode()


@pytest.mark.parametrize("loaded", NORMALIZING, indirect=True, scope="module")
def test_tokens_spell_what_the_normalizer_makes_of_a_text(loaded: Loaded) -> None:
    texts = [
        "Two  blanks, a tab\t, lines\r\n\n and it's 12345.",
        "cafe\u0301 \u212b \u1e9b\u0323 \U0001f469\u200d\U0001f680 \u65e5\u672c\u8a9e \ufb01 \uac00\u0301",
        "\x00\x7f\u00a0\u3000x",
        " begins and ends with blanks ",
        *demo.texts(5),
    ]
    for text, tokens in zip(texts, documents(loaded.reference.encode(array(texts))), strict=True):
        found = loaded.reference.decode(np.array(tokens, np.uint32))
        assert found.decode() == normalized(loaded, text)


def normalized(loaded: Loaded, text: str) -> str:
    how = NORMALIZING[loaded.name]
    if how == NFC:
        return unicodedata.normalize("NFC", text)
    # The mark of a blank is read as a blank.
    text = text.replace("\u2581", " ") if how in (PREFIXED, MARKED) else text
    return f" {text}" if how == PREFIXED else text


@pytest.mark.parametrize("loaded", [tokenizer_files.SMOLLM], indirect=True, scope="module")
def test_a_pipeline_that_was_not_compared_has_no_fast_way(loaded: Loaded) -> None:
    assert "Digits" in library_of(loaded.kind).why_not_fast(loaded.content)
