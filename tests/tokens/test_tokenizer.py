import hashlib
import importlib
import itertools
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
import tiktoken
from examples import unhurried
from hypothesis import given
from hypothesis import strategies as st

from fwconvert.errors import ShardError
from fwconvert.recipes import EotSide, TokenType
from fwconvert.tokens import registry
from fwconvert.tokens.registry import load
from fwconvert.tokens.tiktoken_kind import find, read_table
from fwconvert.tokens.tokenizer import Encoded, ReferenceTokenizer, Tokenizer, place_eot

OPENAI: Any = importlib.import_module("tiktoken_ext.openai_public")

SCALARS = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
# White space in anyone's opinion: Unicode's of today, Unicode's of earlier (U+180E), and look-alikes.
SPACES = [c for c in SCALARS if c.isspace()] + list("\u180e\u200b\u200c\u200d\u2060\ufeff")
CONTROLS = [c for c in SCALARS if unicodedata.category(c) == "Cc"]
APOSTROPHES = "'\u2019`\u02bc"
SPECIALS = ("<|endoftext|>", "<|endofprompt|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
EMOJI = (
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd\U0001f1e9\U0001f1ea",
    "#\ufe0f\u20e3 \u2764\ufe0f\u200d\U0001f525 \U0001f3f4\U000e0067\U000e0062\U000e007f",
    "Z\u0351\u036b\u0343a\u0329\u0320l\u0348\u0353go \u0301\u0301 e\u0301 \u00e9 \ufb01 \u1e9b\u0323",
    "\u1112\u1161\u11ab \ud55c \u0928\u092e\u0938\u094d\u0924\u0947 \u202eabc\u202c \u05e9\u05dc\u05d5\u05dd",
)


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tiktoken.Encoding]:
    """tiktoken's own encodings, found by tiktoken itself in a cache that holds the bundled tables."""
    cache = tmp_path_factory.mktemp("cache")
    for name in ("r50k_base", "cl100k_base"):
        key = hashlib.sha1(find(name).url.encode()).hexdigest()
        (cache / key).write_bytes(read_table(find(name), cache))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(cache))
        r50k, cl100k = (
            tiktoken.Encoding(**OPENAI.ENCODING_CONSTRUCTORS[n]()) for n in ("r50k_base", "cl100k_base")
        )
    return {"gpt2": r50k, "cl100k_base": cl100k}


@pytest.fixture(scope="module", params=["gpt2", "cl100k_base"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(name: str) -> Tokenizer:
    return load(find(name), Path("nowhere"))


@pytest.fixture(scope="module")
def oracle(name: str, oracles: dict[str, tiktoken.Encoding]) -> tiktoken.Encoding:
    return oracles[name]


@pytest.fixture(scope="module")
def bytewise() -> Tokenizer:
    return load(registry.find("bytes"), Path("nowhere"))


def documents_of(encoded: Encoded) -> list[list[int]]:
    return [encoded.tokens[a:b].tolist() for a, b in itertools.pairwise(encoded.offsets.tolist())]


def differing(tokenizer: Tokenizer, oracle: tiktoken.Encoding, texts: Sequence[str]) -> list[str]:
    """Return the texts whose tokens are not exactly the oracle's (empty when all is well)."""
    encoded = tokenizer.encode(pa.array(texts, pa.string()))
    assert encoded.tokens.dtype == tokenizer.spec.token_type
    assert encoded.offsets.dtype == np.int64
    assert encoded.offsets[-1] == len(encoded.tokens)
    found = zip(texts, documents_of(encoded), strict=True)
    return [text for text, tokens in found if tokens != oracle.encode_ordinary(text)]


def in_batches(pieces: Sequence[str], count: int = 500) -> list[str]:
    return ["".join(pieces[i : i + count]) for i in range(0, len(pieces), count)]


def test_every_code_point_joined_with_its_neighbours(tokenizer: Tokenizer, oracle: tiktoken.Encoding) -> None:
    texts = in_batches(SCALARS)
    assert differing(tokenizer, oracle, texts) == []
    assert tokenizer.decode(tokenizer.encode(pa.array(texts)).tokens) == "".join(SCALARS).encode()


def test_every_code_point_between_a_space_and_a_letter(
    tokenizer: Tokenizer, oracle: tiktoken.Encoding
) -> None:
    assert differing(tokenizer, oracle, in_batches([f" {c}a" for c in SCALARS])) == []


def test_every_code_point_of_the_first_plane_alone_and_in_more_company(
    tokenizer: Tokenizer, oracle: tiktoken.Encoding
) -> None:
    plane = [c for c in SCALARS if c <= "\uffff"]
    assert differing(tokenizer, oracle, plane) == []
    assert differing(tokenizer, oracle, in_batches([f"a{c}1{c}'s{c}{c} {c}\n{c}\n" for c in plane])) == []


@pytest.mark.parametrize("character", "a A0^'\n\t\u00a0\u0301\u6f22\U0001f600\x00")
def test_long_runs_of_one_character(character: str, tokenizer: Tokenizer, oracle: tiktoken.Encoding) -> None:
    runs = [character * 50_000, character * 50_000 + "b", *(character * n for n in range(1, 200))]
    assert differing(tokenizer, oracle, runs) == []


def test_contractions_in_both_cases(tokenizer: Tokenizer, oracle: tiktoken.Encoding) -> None:
    endings = ("s", "t", "m", "d", "re", "ve", "ll", "S", "T", "M", "D", "RE", "Ve", "lL", "\u017f", "x", "")
    words = itertools.product(
        ("", "I", " we", "1", "\n", "'"), APOSTROPHES, endings, ("", " x", "s", "'t", "1")
    )
    assert differing(tokenizer, oracle, ["".join(word) for word in words]) == []


def test_every_kind_of_white_space(tokenizer: Tokenizer, oracle: tiktoken.Encoding) -> None:
    pairs = itertools.product(("", "a", "1", "!"), SPACES, SPACES, ("", "b", "2", "?", "\n"))
    assert differing(tokenizer, oracle, ["".join(pair) for pair in pairs]) == []


def test_control_characters(tokenizer: Tokenizer, oracle: tiktoken.Encoding) -> None:
    pairs = itertools.product(CONTROLS, CONTROLS, ("", "a"))
    assert differing(tokenizer, oracle, ["".join(pair) for pair in pairs]) == []


def test_emoji_combining_marks_and_scripts(tokenizer: Tokenizer, oracle: tiktoken.Encoding) -> None:
    texts = [text[i:j] for text in EMOJI for i, j in itertools.combinations(range(len(text) + 1), 2)]
    assert differing(tokenizer, oracle, texts) == []


def test_a_special_token_in_a_text_is_ordinary_characters(
    tokenizer: Tokenizer, oracle: tiktoken.Encoding
) -> None:
    around = itertools.product(("", " ", "a", "<|"), SPECIALS, ("", " ", "b", "|>", *SPECIALS))
    texts = ["".join(parts) for parts in around] + [SPECIALS[0] * 1000, SPECIALS[0][:-1]]
    assert differing(tokenizer, oracle, texts) == []
    tokens = tokenizer.encode(pa.array(texts)).tokens
    assert tokenizer.spec.eot not in tokens


NASTY = st.lists(
    st.sampled_from(
        [*SPACES, *CONTROLS, *SPECIALS, *EMOJI, *APOSTROPHES, *"aZs7.-", "he'll", "WE'VE", "1234"]
    )
    | st.characters(exclude_categories=["Cs"])
).map("".join)


@unhurried
@given(texts=st.lists(NASTY))
def test_any_mixture(tokenizer: Tokenizer, oracle: tiktoken.Encoding, texts: list[str]) -> None:
    assert differing(tokenizer, oracle, texts) == []


ARRAYS = st.tuples(
    st.lists(st.text(max_size=8)),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([pa.string(), pa.large_string()]),
)


@unhurried
@given(ARRAYS)
def test_slices_and_large_strings_give_the_tokens_of_their_texts(
    tokenizer: Tokenizer, bytewise: Tokenizer, array: tuple[list[str], int, int, pa.DataType]
) -> None:
    texts, first, length, kind = array
    part = pa.array(texts, kind).slice(min(first, len(texts)), length)
    for each in (tokenizer, bytewise):
        alone = [each.encode(pa.array([text])).tokens.tolist() for text in part.to_pylist()]
        assert documents_of(each.encode(part)) == alone


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("texts", [[], [""], ["", "", ""]])
def test_no_texts_and_empty_texts_give_no_tokens(
    tokenizer: Tokenizer, bytewise: Tokenizer, texts: list[str], kind: pa.DataType
) -> None:
    bare = pa.Array.from_buffers(kind, 0, [None, None, pa.py_buffer(b"")])
    for each, array in itertools.product((tokenizer, bytewise), (pa.array(texts, kind), bare)):
        encoded = each.encode(array)
        assert encoded.tokens.tolist() == []
        assert encoded.tokens.dtype == each.spec.token_type
        assert encoded.offsets.tolist() == [0] * (len(array) + 1)


@unhurried
@given(st.lists(NASTY))
def test_bytes_are_the_bytes(bytewise: Tokenizer, texts: list[str]) -> None:
    encoded = bytewise.encode(pa.array(texts, pa.string()))
    assert encoded.tokens.dtype == np.uint16
    assert documents_of(encoded) == [list(text.encode()) for text in texts]
    assert bytewise.decode(encoded.tokens) == "".join(texts).encode()


def test_a_run_too_long_for_tiktokens_regex_engine_is_split_as_its_pattern_says(
    tokenizer: Tokenizer, oracle: tiktoken.Encoding
) -> None:
    # The engine has a stack of a million entries. By the pattern, the last space belongs to the letter.
    text = " " * 1_100_000 + "a"
    with pytest.raises(BaseException, match="Stack"):
        oracle.encode_ordinary(text)
    fine, long = documents_of(tokenizer.encode(pa.array(["fine", text])))
    assert fine == oracle.encode_ordinary("fine")
    assert long == oracle.encode_ordinary(text[:-2]) + oracle.encode_ordinary(text[-2:])


@unhurried
@given(NASTY)
def test_encoding_in_pieces_gives_the_same_tokens(
    tokenizer: Tokenizer, oracle: tiktoken.Encoding, text: str
) -> None:
    assert isinstance(tokenizer, ReferenceTokenizer)
    assert tokenizer.encode_in_pieces(0, text).tolist() == oracle.encode_ordinary(text)


@unhurried
@given(text=NASTY, cut=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_tokens_may_be_decoded_from_and_to_the_middle_of_a_character(
    tokenizer: Tokenizer, bytewise: Tokenizer, text: str, cut: tuple[int, int]
) -> None:
    for each in (tokenizer, bytewise):
        tokens = each.encode(pa.array([text])).tokens
        parts = np.split(tokens, sorted(min(place, len(tokens)) for place in cut))
        assert b"".join(map(each.decode, parts)) == text.encode()


def test_eot_is_decoded_to_its_name(tokenizer: Tokenizer, bytewise: Tokenizer) -> None:
    for each, side in itertools.product((tokenizer, bytewise), get_args(EotSide)):
        stream = place_eot(each.encode(pa.array(["caf\u00e9", ""])), each.spec.eot, side)
        assert (
            each.decode(stream.tokens).replace(b"<|endoftext|>", b"|")
            == {
                "before": "|caf\u00e9|".encode(),
                "after": "caf\u00e9||".encode(),
            }[side]
        )


@pytest.mark.parametrize(
    ("which", "token"),
    [("gpt2", 50257), ("gpt2", 65535), ("cl100k_base", 100256), ("cl100k_base", 2**32 - 1), ("bytes", 257)],
)
def test_an_id_that_does_not_exist_is_named(which: str, token: int) -> None:
    each = load(registry.find(which), Path("nowhere"))
    with pytest.raises(ShardError, match=rf"token +{token}\n"):
        each.decode(np.array([65, token, 66], each.spec.token_type))


@unhurried
@given(
    documents=st.lists(st.lists(st.integers(0, 50256), max_size=5)),
    side=st.sampled_from(["before", "after"]),
    kind=st.sampled_from(["uint16", "uint32"]),
)
def test_each_document_gets_one_eot_on_its_side(
    documents: list[list[int]], side: EotSide, kind: TokenType
) -> None:
    expected: list[int] = []
    starts = []
    for document in documents:
        starts.append(len(expected))
        expected += [50256, *document] if side == "before" else [*document, 50256]
    flat = np.array(list(itertools.chain(*documents)), kind)
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    stream = place_eot(Encoded(flat, offsets), 50256, side)
    assert stream.tokens.tolist() == expected
    assert stream.tokens.dtype == kind
    assert stream.starts.tolist() == starts
    assert stream.starts.dtype == np.int64


@unhurried
@given(
    documents=st.lists(st.lists(st.integers(0, 50256), max_size=5)),
    kind=st.sampled_from(["uint16", "uint32"]),
)
def test_each_document_gets_a_bos_and_an_eot(documents: list[list[int]], kind: TokenType) -> None:
    flat = np.array(list(itertools.chain(*documents)), kind)
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    stream = place_eot(Encoded(flat, offsets), 50256, "after", 50255)
    expected = [[50255, *document, 50256] for document in documents]
    assert stream.tokens.tolist() == list(itertools.chain(*expected))
    assert stream.tokens.dtype == kind
    assert stream.starts.tolist() == [0, *itertools.accumulate(map(len, expected))][:-1]
