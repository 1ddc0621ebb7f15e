"""The fast encoder gives the reference's ids, whatever the text, and does not grow without bound."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from examples import unhurried
from hypothesis import given
from hypothesis import strategies as st

from fwconvert.tokens import disagreements, gigatoken
from fwconvert.tokens.gigatoken import FastTokenizer, of_table, spliced
from fwconvert.tokens.registry import load
from fwconvert.tokens.spec import Loading
from fwconvert.tokens.tiktoken_kind import find, read_table
from fwconvert.tokens.tokenizer import Encoded, Tokenizer

pytest.importorskip("gigatoken", reason="the fast encoder has no wheel for this machine")

NOWHERE = Path("nowhere")
DOUBTFUL = "".join(chr(code) for first, last in disagreements.RANGES for code in (first, last))
PIECES = st.sampled_from(
    [" ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "word", "Word", "12345", "!?", "<|endoftext|>", "\u2019s"]
) | st.text(max_size=6)
NASTY = st.lists(PIECES | st.text(DOUBTFUL, max_size=2), max_size=12).map("".join)


@pytest.fixture(scope="module", params=["gpt2", "cl100k_base"])
def pair(request: pytest.FixtureRequest) -> tuple[FastTokenizer, Tokenizer]:
    vocabulary = find(request.param)
    return of_table(vocabulary, read_table(vocabulary, NOWHERE)), load(vocabulary, NOWHERE)


def assert_equal(pair: tuple[FastTokenizer, Tokenizer], texts: pa.Array) -> None:
    quick, reference = pair
    found, wanted = quick.encode(texts), reference.encode(texts)
    assert found.offsets.tolist() == wanted.offsets.tolist()
    assert found.tokens.dtype == wanted.tokens.dtype
    assert np.array_equal(found.tokens, wanted.tokens)


@unhurried
@given(st.lists(NASTY, max_size=8))
def test_ids_equal_the_references(pair: tuple[FastTokenizer, Tokenizer], texts: list[str]) -> None:
    assert_equal(pair, pa.array(texts, pa.string()))


def test_documents_with_doubtful_characters_go_to_the_reference(
    pair: tuple[FastTokenizer, Tokenizer],
) -> None:
    texts = [f"a {chr(code)}b {chr(code)}" for first, last in disagreements.RANGES for code in (first, last)]
    plain = ["plain", "", "more"]
    assert_equal(pair, pa.array([text for both in itertools.product(texts, plain) for text in both]))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_slices_and_wide_offsets_are_read_right(
    kind: pa.DataType, pair: tuple[FastTokenizer, Tokenizer]
) -> None:
    texts = pa.array(["first", "", "\u00e9t\u00e9 \U000323b0", "last one"], kind)
    for begin, end in itertools.combinations_with_replacement(range(5), 2):
        assert_equal(pair, texts[begin:end])


def test_long_runs_and_a_document_of_megabytes(pair: tuple[FastTokenizer, Tokenizer]) -> None:
    assert_equal(pair, pa.array(["a" * 100_000, " " * 100_000 + "b", "word " * 400_000, "\x00" * 1000]))


def test_ids_do_not_depend_on_what_was_encoded_before(pair: tuple[FastTokenizer, Tokenizer]) -> None:
    quick, _ = pair
    known = find(quick.spec.name)
    fresh = of_table(known, read_table(known, NOWHERE))
    texts = pa.array([f"some words {number} and more" for number in range(500)])
    quick.encode(pa.array(["altogether different"] * 10))
    assert np.array_equal(quick.encode(texts).tokens, fresh.encode(texts).tokens)
    assert np.array_equal(quick.encode(texts).tokens, fresh.encode(texts).tokens)


def test_threads_change_nothing(pair: tuple[FastTokenizer, Tokenizer]) -> None:
    quick, reference = pair
    known = find(quick.spec.name)
    table = read_table(known, NOWHERE)
    texts = pa.array([f"document {number} " * (number % 50) for number in range(2000)])
    for threads in (2, 5):
        assert_equal((of_table(known, table, threads), reference), texts)
        both = load(quick.spec, NOWHERE, Loading(threads=threads)).encode(texts)
        assert np.array_equal(both.tokens, reference.encode(texts).tokens)


def test_it_is_made_anew_when_the_process_has_grown_and_goes_on_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vocabulary = find("gpt2")
    size = itertools.count(500 * 2**20, 60 * 2**20)  # 60 MB more at every look
    monkeypatch.setattr(gigatoken, "_LOOK_EVERY_BYTES", 1000)
    monkeypatch.setattr(gigatoken, "resident_bytes", lambda: next(size))
    quick = of_table(vocabulary, read_table(vocabulary, NOWHERE))
    reference = load(vocabulary, NOWHERE)
    for part in range(9):
        words = (f"w{part}x{number:x}" for number in range(500))
        assert_equal((quick, reference), pa.array([" ".join(words)]))
    # 200 MB are allowed: the fourth look finds 240.
    assert quick.made == 1 + 9 // 4


def test_where_nobody_knows_the_memory_it_is_made_anew_by_text_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gigatoken, "_LOOK_EVERY_BYTES", 1000)
    monkeypatch.setattr(gigatoken, "_MOST_TEXT_READ", 10_000)
    monkeypatch.setattr(gigatoken, "resident_bytes", lambda: None)
    quick = of_table(find("gpt2"), read_table(find("gpt2"), NOWHERE))
    for _ in range(10):
        quick.encode(pa.array(["x" * 3000]))
    assert quick.made == 1 + 30_000 // 12_000


@unhurried
@given(
    documents=st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=8),
    replaced=st.dictionaries(st.integers(0, 7), st.lists(st.integers(10, 19), max_size=4)),
)
def test_splicing_replaces_some_documents_and_leaves_the_others(
    documents: list[list[int]], replaced: dict[int, list[int]]
) -> None:
    chosen = {index: replaced[index] for index in sorted(replaced) if index < len(documents)}
    encoded = Encoded(
        np.array(list(itertools.chain(*documents)), np.uint16),
        np.cumsum([0, *map(len, documents)], dtype=np.int64),
    )
    found = spliced(encoded, {index: np.array(new, np.uint16) for index, new in chosen.items()})
    wanted = [chosen.get(index, document) for index, document in enumerate(documents)]
    pairs = itertools.pairwise(found.offsets.tolist())
    assert [found.tokens[begin:end].tolist() for begin, end in pairs] == wanted
    assert found.tokens.dtype == np.uint16
