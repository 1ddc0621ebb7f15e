import itertools
import runpy
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from examples import unhurried
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fwconvert.tokens import disagreements, gigatoken, rank_files
from fwconvert.tokens.tokenizer import parse_ranks

CODES = [code for first, last in disagreements.RANGES for code in range(first, last + 1)]
DOUBTFUL = frozenset(map(chr, CODES))
NEIGHBOURS = [
    chr(code)
    for first, last in disagreements.RANGES
    for code in (first - 1, last + 1, first ^ 0x40, last ^ 0x1000)
    if chr(code) not in DOUBTFUL
]
CURLY, SMILE = "\u2019", "\U0001f600"

LETTERS = st.one_of(
    st.characters(codec="utf-8"),
    st.sampled_from(sorted(DOUBTFUL)),
    st.sampled_from(NEIGHBOURS),
    st.sampled_from(["a", " ", "\0", "\u00e9", CURLY, SMILE]),
)
TEXTS = st.lists(st.text(LETTERS, max_size=8))


def joined(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)], dtype=np.int64)


def found_in(texts: Sequence[str]) -> list[int]:
    found = disagreements.documents(*joined(texts))
    assert found.dtype == np.int64
    return list(found)


def naive(texts: Sequence[str]) -> list[int]:
    return [index for index, text in enumerate(texts) if any(c in DOUBTFUL for c in text)]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    pytest.importorskip("gigatoken", reason="gigatoken is not installed: there is nothing to be doubted")
    pytest.importorskip("tokenizers", reason="tokenizers is not installed, with which gigatoken is compared")
    return runpy.run_path(str(Path(__file__).parents[2] / "scripts/lib/derive_disagreements.py"))


@pytest.fixture(scope="module")
def pairs(script: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = script["encoder_pairs"].synthetic_pairs()
    return made


def short_texts() -> list[str]:
    texts = ["".join(chars) for size in range(1, 6) for chars in itertools.product(" \n\ra1.\t", repeat=size)]
    ends = ("s", "S", "t ", "LL", "lla", "re", "\u017f", "\u212a", "\u017fd", "ve.", "ve1", "s's")
    return texts + [f"{begin}'{end}" for begin in ("", "a", " ", "'", "1") for end in ends]


def test_no_short_text_of_ascii_is_cut_in_two_ways(pairs: dict[str, Any]) -> None:
    texts = short_texts()
    found = {name: [texts[at] for at in pair.differing(texts)] for name, pair in pairs.items()}
    assert not any(found.values()), found


@pytest.mark.parametrize("pattern", rank_files._PATTERNS)
def test_a_pattern_of_rank_tables_is_what_gigatoken_takes_it_for(
    script: dict[str, Any], pattern: str, tmp_path: Path
) -> None:
    table = script["encoder_pairs"].synthetic_table()
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=parse_ranks(table), special_tokens={})
    (tmp_path / "x.tiktoken").write_bytes(table)
    fast = gigatoken.of_file(tmp_path / "x.tiktoken", rank_files._PATTERNS[pattern])
    texts = short_texts()
    found = fast.encode_batch_list(texts, parallel=False)
    assert [
        text for text, ids in zip(texts, found, strict=True) if ids != encoding.encode_ordinary(text)
    ] == []


@pytest.fixture(scope="module")
def found(script: dict[str, Any], pairs: dict[str, Any]) -> dict[str, set[int]]:
    """What each pair of encoders, and each way to normalize, finds; the script looks at more contexts."""
    # Between these, a letter of either case, a digit, a mark, a sign and all else are cut in different ways.
    crowd, derive = "!@A!@a!@Ab @.@", script["derive"]
    # All take minutes: pages with a doubtful character, and one in 64 of others.
    pages = {code >> 8 for code in CODES}
    some = [char for char in script["SAMPLED"] if ord(char) >> 8 in pages or not ord(char) % 64]
    # For one of them, all, so that a page without any cannot hide.
    codes = {
        name: derive(pair, crowd, 256, script["SCALARS"] if name == "o200k_base" else some)
        for name, pair in pairs.items()
    }
    normalizing = script["encoder_pairs"].Normalizing()
    marks = set().union(*(derive(normalizing, context, 1, some) for context in ("a@\u0301", "a@\u0323")))
    # What is new and composed has a new part, and those are of the first supplementary plane.
    near = [char for char in some if ord(char) >> 16 == 1 and ord(char) >> 8 in pages]
    return {**codes, "NFC": marks, "joined": script["derive_joined"](normalizing, marks, near)}


def test_the_table_is_that_of_the_installed_versions(
    script: dict[str, Any], found: dict[str, set[int]]
) -> None:
    assert found["gpt2"] == found["cl100k_base"] <= found["o200k_base"]
    assert min(len(codes) for codes in found.values()) > 0
    assert tuple(script["as_ranges"](set().union(*found.values()))) == disagreements.RANGES


def test_the_script_writes_the_table_and_nothing_else(script: dict[str, Any]) -> None:
    source = Path(disagreements.__file__).read_text("utf-8")
    changed = script["source_with"]([(0x41, 0x10FFFF)])
    before, _, after = source.partition("# First and last code point")
    assert changed.startswith(before)
    assert changed.endswith("= (\n    (0x0041, 0x10FFFF),\n)\n" + after.partition("\n)\n")[2])


def test_the_table_is_in_order_and_its_ranges_do_not_touch() -> None:
    ends = [end for pair in disagreements.RANGES for end in pair]
    assert ends == sorted(ends)
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(disagreements.RANGES))


@unhurried
@given(TEXTS)
@example(["", "", ""])
@example([])
def test_exactly_the_documents_with_a_doubtful_code_point_are_found(texts: list[str]) -> None:
    assert found_in(texts) == naive(texts)


@unhurried
@given(TEXTS.filter(bool), st.data())
def test_a_slice_is_searched_as_if_it_were_alone(texts: list[str], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(texts) - 1))
    end = data.draw(st.integers(begin, len(texts)))
    content, bounds = joined(texts)
    found = disagreements.documents(content, bounds[begin : end + 1])
    assert found.tolist() == naive(texts[begin:end])


@unhurried
@given(TEXTS, st.integers(1, 9))
def test_where_the_search_takes_a_new_part_makes_no_difference(texts: list[str], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disagreements, "_PART_BYTES", size)
        assert found_in(texts) == naive(texts)


@pytest.mark.parametrize("dense", [False, True], ids=["in English", "in another script"])
def test_every_code_point_is_told_from_every_other(dense: bool) -> None:
    scalars = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    # The way of searching depends on how many suspects there are.
    texts = scalars if dense else [char + "a" * 300 for char in [*sorted(DOUBTFUL), *NEIGHBOURS]]
    assert found_in(texts) == naive(texts)


@pytest.mark.parametrize("end", [end for pair in disagreements.RANGES for end in pair], ids="{:04X}".format)
def test_a_doubtful_character_at_the_edge_of_a_document_belongs_to_it_alone(end: int) -> None:
    char = chr(end)
    texts = ["", "a", f"{char}a", f"{CURLY}a", f"a{char}", "", f"{SMILE}a", char, "", char, char * 3]
    assert found_in(texts) == [2, 4, 7, 9, 10]


def test_no_content_has_no_doubtful_documents() -> None:
    nothing = np.empty(0, np.uint8)
    for bounds in ([0], [0, 0], [0, 0, 0]):
        assert disagreements.documents(nothing, np.array(bounds, np.int64)).tolist() == []


def test_another_table_would_work_as_well() -> None:
    # Characters of every length but one, the first and the last of them, and ranges across two lengths.
    ranges = [(0x80, 0x80), (0xE9, 0xE9), (0x7FF, 0x800), (0xFFFF, 0x10000)]
    ranges += [(0x10FFFF, 0x10FFFF)]
    codes = {end for pair in ranges for end in pair}
    texts = [chr(c) for code in codes for c in range(max(0, code - 2), min(code + 3, 0x110000))]
    expected = [index for index, text in enumerate(texts) if ord(text) in codes]
    assert with_table(repr(tuple(ranges))).documents(*joined(texts)).tolist() == expected
    assert with_table("()").documents(*joined(texts)).tolist() == []


def test_no_doubtful_character_is_ascii_which_the_search_skips() -> None:
    assert min(first for first, _ in disagreements.RANGES) >= 0x80


def with_table(ranges: str) -> Any:
    """Return the module as it would be with another table."""
    source = Path(disagreements.__file__).read_text("utf-8")
    begin, end = source.index("= (\n") + 2, source.index("\n)\n") + 2
    module = types.ModuleType("another")
    exec(source[:begin] + ranges + source[end:], module.__dict__)
    return module
