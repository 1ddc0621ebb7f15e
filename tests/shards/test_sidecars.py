"""The files beside a token shard, against datatrove's own writers and against plain lists."""

import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import rules_with, unhurried
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fwconvert.recipes import Rules
from fwconvert.shards import sidecars
from fwconvert.shards.sidecars import Spans, sidecar_parts


def made(suffix: str, rules: Rules, starts: list[int], firsts: list[int], tokens: int) -> bytes:
    entries = np.array([(start, 0) for start in starts], [("start", "<u4"), ("row", "<u4")])
    return b"".join(sidecar_parts(suffix, rules, Spans(entries["start"], firsts, tokens)))


@st.composite
def shards(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Starts of documents, firsts of segments, and a number of tokens."""
    tokens = draw(st.integers(1, 40))
    positions = st.sets(st.integers(0, tokens - 1))
    return sorted(draw(positions)), sorted({0} | draw(positions)), tokens


@given(shard=shards(), step=st.sampled_from([1, 2, 3, 2**16]))
@settings(unhurried, max_examples=200)
@example(shard=([], [0], 1), step=1)
@example(shard=([3], [0, 3], 4), step=1)
@example(shard=([0, 1, 2], [0], 3), step=2)
@example(shard=([5], [0, 2, 7], 9), step=1)
def test_spans_lie_side_by_side_from_every_start_and_every_first(
    shard: tuple[list[int], list[int], int], step: int
) -> None:
    starts, firsts, tokens = shard
    wanted = [*pairwise([*sorted({*starts, *firsts}), tokens])]
    spans = Spans(np.array(starts, np.uint32), firsts, tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sidecars, "_STEP", step)
        steps = [*spans]

    found = [pair for begins, ends in steps for pair in zip(begins.tolist(), ends.tolist(), strict=True)]
    assert found == wanted
    assert len(spans) == len(wanted)
    assert all(len(begins) <= step + len(firsts) for begins, _ in steps)


def megatron_index(token_bytes: int, lengths: list[int]) -> bytes:
    """Return an .idx as Megatron-LM's indexed_dataset.py lays it out, one sequence for a document."""
    pointers = [sum(lengths[:at]) * token_bytes for at in range(len(lengths))]
    count = len(lengths)
    return (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, {2: 8, 4: 4}[token_bytes], count, count + 1)
        + struct.pack(f"<{count}i", *lengths)
        + struct.pack(f"<{count}q", *pointers)
        + struct.pack(f"<{count + 1}q", *range(count + 1))
    )


@given(shard=shards(), token_type=st.sampled_from(["uint16", "uint32"]), step=st.sampled_from([1, 3, 2**16]))
@unhurried
def test_an_idx_is_laid_out_as_megatron_has_it(
    shard: tuple[list[int], list[int], int], token_type: str, step: int
) -> None:
    starts, firsts, tokens = shard
    lengths = [end - begin for begin, end in pairwise([*sorted({*starts, *firsts}), tokens])]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sidecars, "_STEP", step)
        found = made(".idx", rules_with(token_type=token_type), starts, firsts, tokens)

    assert found == megatron_index(2 if token_type == "uint16" else 4, lengths)
    assert len(found) == 42 + 20 * len(lengths)


def test_pointers_beyond_32_bits_are_exact() -> None:
    starts, tokens = [0, 2**30, 2**31 - 2], 2**31 - 1
    found = made(".idx", rules_with(token_type="uint32"), starts, [0], tokens)

    assert found == megatron_index(4, [2**30, 2**30 - 2, 1])
    assert struct.unpack_from("<q", found, 34 + 3 * 4 + 2 * 8) == (4 * (2**31 - 2),)


@given(shard=shards(), step=st.sampled_from([1, 3, 2**16]))
@unhurried
def test_a_datatrove_index_has_the_ends_of_the_documents(
    shard: tuple[list[int], list[int], int], step: int
) -> None:
    starts, firsts, tokens = shard
    ends = [*sorted({*starts, *firsts}), tokens][1:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sidecars, "_STEP", step)
        assert made(".ds.index", rules_with(), starts, firsts, tokens) == struct.pack(f"<{len(ends)}Q", *ends)


@pytest.mark.parametrize(
    ("tokens", "people"),
    [
        (1, "1.00 T"), (999, "999 T"), (1000, "1.00 kT"), (12_345, "12.3 kT"), (250_000, "250 kT"),
        (100_000_000, "100 MT"), (999_999_999, "1.00 GT"), (2**32, "4.29 GT"),
    ],
)  # fmt: skip
def test_metadata_are_three_lines(tokens: int, people: str) -> None:
    assert made(".ds.metadata", rules_with(), [0], [0], tokens) == f"gpt2|2\n{tokens}\n{people}".encode()
    rules = rules_with(tokenizer="cl100k_base", token_type="uint32")
    assert made(".ds.metadata", rules, [0], [0], tokens).startswith(b"cl100k_base|4\n")


@given(st.integers(1, 2**32))
@example(999)
@example(1000)
@example(9_999)
@example(999_499)
@example(999_500)
@example(999_999)
@example(10**9 - 1)
@unhurried
def test_the_line_humanized_is_what_humanize_makes(tokens: int) -> None:
    humanize = pytest.importorskip("humanize", reason="datatrove's dependency is not installed")

    assert sidecars._humanized(tokens) == humanize.metric(tokens, unit="T")


DOCUMENTS = [[7, 8, 256], [256], [1, 2, 3, 4, 5, 256], [9, 256]]


@pytest.mark.parametrize(("token_type", "width"), [("uint16", 2), ("uint32", 4)])
def test_datatrove_itself_writes_the_same_files(tmp_path: Path, token_type: str, width: int) -> None:
    writers: Any = pytest.importorskip(
        "datatrove.pipeline.tokens.tokenizer", reason="datatrove is not installed"
    )
    file = writers.TokenizedFile(
        str(tmp_path), "x.ds", tokenizer_name_or_path="gpt2", save_final_metadata=True, token_size=width
    )
    for document in DOCUMENTS:
        file.write(document, None)
    file.close()

    for suffix in (".ds.index", ".ds.metadata"):
        assert made_of_documents(suffix, token_type) == (tmp_path / f"x{suffix}").read_bytes()


@pytest.mark.parametrize(("token_type", "width"), [("uint16", 2), ("uint32", 4)])
def test_datatrove_writes_the_same_index_for_megatron(tmp_path: Path, token_type: str, width: int) -> None:
    writers: Any = pytest.importorskip(
        "datatrove.pipeline.tokens.megatron_tokenizer", reason="datatrove is not installed"
    )
    file = writers.MegatronTokenizedFile(str(tmp_path), "x", token_size=width)
    for document in DOCUMENTS:
        file.write(document)
    file.close()

    assert made_of_documents(".idx", token_type) == (tmp_path / "x.idx").read_bytes()


def made_of_documents(suffix: str, token_type: str) -> bytes:
    ends = np.cumsum([len(document) for document in DOCUMENTS]).tolist()
    return made(suffix, rules_with(token_type=token_type), [0, *ends[:-1]], [0], ends[-1])
