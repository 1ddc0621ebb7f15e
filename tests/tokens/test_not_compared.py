"""Which tokenizer.json the fast encoder may be used for: it takes files of which it passes over a part."""

import copy
import json
from typing import Any

import pytest

from fwconvert.tokens import definition, disagreements

pytest.importorskip("gigatoken", reason="gigatoken is not installed")
pytest.importorskip("tokenizers", reason="tokenizers is not installed, with which gigatoken is compared")

import encoder_pairs

Tree = dict[str, Any]

BLANK = "\u2581"
LLAMA = encoder_pairs.SPLITS["Llama 3, OLMo 2"]
# As the tokenizer.json of GPT-4 has it.
GPT4 = (LLAMA[0].replace(r"\s*[\r\n]+", r"\s*[\r\n]"),)
# Like that of tiktoken for cl100k_base.
_PLUS = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"
INTERVAL = (_PLUS + r"\s++$|\s*[\r\n]|\s+(?!\S)|\s+",)
TEXTS = [
    "", " ", "a\n ", "  Hello,  world's\n\n 1234567 \tx",
    "qzx a q zx qzxq xqzx qzxx qzx. \n qzx  \u00e9qzx", "  qzx  ",
    "e\u0301\u00e9 z\u00e9 ze\u0301", f"a {BLANK}{BLANK} b", "It's don't 'LL\r\n", "\u4e2d\u6587 \U0001f600",
]  # fmt: skip


def of_bytes(splits: tuple[str, ...] = (), normalizer: str | None = None) -> Tree:
    alphabet = sorted(set("".join(TEXTS).encode()))
    made: Tree = json.loads(encoder_pairs.synthetic_file(splits, normalizer=normalizer, alphabet=alphabet))
    return made


def of_characters() -> Tree:
    """A tokenizer.json of Llama 2's kind, of few characters."""
    letters = [f"<0x{byte:02X}>" for byte in range(256)] + [BLANK, *"Helo,wrd's12abqzx.n"]
    merges = [[BLANK, "w"], [BLANK, "H"], ["l", "l"], [BLANK, BLANK], ["o", BLANK], ["q", "z"], ["d", "'"]]
    pieces = ["<unk>", *letters, *map("".join, merges)]
    marking = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": BLANK}, marking]},
        "pre_tokenizer": None,
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
            "vocab": {piece: number for number, piece in enumerate(pieces)}, "merges": merges,
        },
    }  # fmt: skip


def changed(tree: Tree, **values: Any) -> Tree:
    return {**copy.deepcopy(tree), **values}


def in_model(tree: Tree, **values: Any) -> Tree:
    return changed(tree, model={**tree["model"], **values})


def with_added(tree: Tree, *contents: str, **how: bool) -> Tree:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False) | how
    first = len(tree["model"]["vocab"])
    return changed(
        tree, added_tokens=[{"id": first + at, "content": text, **flags} for at, text in enumerate(contents)]
    )


def with_splits(tree: Tree, *steps: Tree) -> Tree:
    return changed(tree, pre_tokenizer={"type": "Sequence", "pretokenizers": list(steps)})


def split(pattern: str = LLAMA[0], behavior: str = "Isolated", *, invert: bool = False) -> Tree:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def level(*, prefix: bool = False, regex: bool = False) -> Tree:
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def metaspace(scheme: str, *, splits: bool) -> Tree:
    return {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": scheme, "split": splits}


BYTES, WORDS, PIECES = of_bytes(), of_bytes(LLAMA), of_characters()
NFC, DIGITS = of_bytes(LLAMA, "NFC"), {"type": "Digits", "individual_digits": True}

COMPARED = {
    "as GPT-2 has it": BYTES,
    "a blank before the text": changed(BYTES, pre_tokenizer=level(prefix=True, regex=True)),
    "a Split": WORDS,
    "a Split whose matches are kept": with_splits(WORDS, split(behavior="Removed", invert=True), level()),
    "three Splits": of_bytes(encoder_pairs.SPLITS["DeepSeek V3"]),
    "NFC": NFC,
    "an empty sequence of normalizers": changed(WORDS, normalizer={"type": "Sequence", "normalizers": []}),
    "no normalizer, and an added token that would be normalized": with_added(
        changed(WORDS, normalizer={"type": "Sequence", "normalizers": []}), "z\u00e9", normalized=True
    ),
    "whole words before merges": in_model(WORDS, ignore_merges=True),
    "an added token": with_added(WORDS, "qzx"),
    "added tokens in one another": with_added(WORDS, "qzx", "qzxq", "q zx", "  "),
    "an added token that takes blanks": with_added(WORDS, "qzx", lstrip=True, rstrip=True),
    "an added token that is normalized": with_added(NFC, "qzx", normalized=True),
    "an added token that is not normalized": with_added(NFC, "z\u00e9"),
    "as Llama 2 has it": PIECES,
    "no blank before the text": changed(PIECES, normalizer=PIECES["normalizer"]["normalizers"][1]),
    "as Gemma 3 has it": changed(
        PIECES,
        normalizer=PIECES["normalizer"]["normalizers"][1],
        pre_tokenizer={
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
        },
    ),
    "pieces and an added token": with_added(PIECES, "qzx"),
    **{
        f"Metaspace {scheme}, {splits}": changed(
            PIECES, normalizer=None, pre_tokenizer=metaspace(scheme, splits=splits)
        )
        for scheme in ("always", "first", "never")
        for splits in (True, False)
    },
}  # fmt: skip

# What gigatoken takes, and gives other tokens for.
WRONG = {
    "Digits beside a Split": with_splits(WORDS, DIGITS, split(), level()),
    "Digits behind a Split": with_splits(WORDS, split(), DIGITS, level()),
    "a blank before each word": with_splits(WORDS, split(), level(prefix=True)),
    "no ByteLevel": with_splits(WORDS, split()),
    "a Split of bytes": with_splits(WORDS, level(), split()),
    "nothing that splits": changed(WORDS, pre_tokenizer=None),
    "a Split that removes words": with_splits(WORDS, split(behavior="Removed"), level()),
    "a Split that joins": with_splits(WORDS, split(behavior="Contiguous"), level()),
    "a pattern that takes line by line": of_bytes(GPT4),
    "a pattern with an interval and a plus": of_bytes(INTERVAL),
    "an added token that is a word by itself": with_added(WORDS, "qzx", single_word=True),
    "an added token that changes when normalized": with_added(NFC, "ze\u0301", normalized=True),
    "a piece that is a word by itself": with_added(PIECES, "qzx", single_word=True),
    "an end of words": in_model(
        WORDS, end_of_word_suffix="</w>", vocab={**WORDS["model"]["vocab"], "x</w>": 60_000}
    ),
}  # fmt: skip


# Whether or not it takes them, they are not compared.
OTHER = {
    "another model": in_model(WORDS, type="WordPiece"),
    "another normalizer": changed(WORDS, normalizer={"type": "NFKC"}),
    "another normalizer of pieces": changed(PIECES, normalizer={"type": "NFC"}),
    "another pre-tokenizer of pieces": changed(PIECES, pre_tokenizer=DIGITS),
    "a prefix of what goes on": in_model(WORDS, continuing_subword_prefix="##"),
    "SmolLM's": with_splits(BYTES, DIGITS, level(regex=True)),
}


def differing(tree: Tree) -> list[str]:
    pair = encoder_pairs.of_file("", definition.for_text(json.dumps(tree).encode()))
    return [TEXTS[index] for index in pair.differing(TEXTS)]


@pytest.mark.parametrize("tree", COMPARED.values(), ids=COMPARED.keys())
def test_what_was_compared_gives_the_same_tokens(tree: Tree) -> None:
    assert disagreements.not_compared(tree) == ""
    assert differing(tree) == []


@pytest.mark.parametrize("tree", WRONG.values(), ids=WRONG.keys())
def test_what_gigatoken_takes_and_gets_wrong_is_known(tree: Tree) -> None:
    assert differing(tree) != []
    assert disagreements.not_compared(tree).startswith("it has ")


@pytest.mark.parametrize("tree", OTHER.values(), ids=OTHER.keys())
def test_what_nobody_compared_is_not_believed(tree: Tree) -> None:
    assert disagreements.not_compared(tree).startswith("it has ")


def test_special_tokens_do_not_count_as_text_never_has_them() -> None:
    assert disagreements.not_compared(with_added(WORDS, "[MASK]", single_word=True, special=True)) == ""
