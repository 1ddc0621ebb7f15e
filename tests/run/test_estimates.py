"""What a run will need is arithmetic on sizes; too small a disk is refused with the numbers."""

from collections.abc import Sequence
from typing import Any

import pytest
from examples import recipe_with, rules_with, unhurried
from hypothesis import given
from hypothesis import strategies as st

from fwconvert.errors import UsageError
from fwconvert.recipes import Recipe, SourceShard, Totals
from fwconvert.run.estimate import Needs, estimate_needs, estimated_sizes
from fwconvert.run.preflight import refuse_small_disk
from fwconvert.sources.catalog import Size
from fwconvert.tokens import registry

TOKENIZERS = ("gpt2", "r50k_base", "p50k_base", "cl100k_base", "o200k_base", "bytes")


def recipe_of(sizes: Sequence[int], **rules: Any) -> Recipe:
    files = tuple(SourceShard(f"{at}.parquet", size) for at, size in enumerate(sizes))
    totals = Totals(len(sizes), sum(sizes))
    return Recipe(recipe_with(files=files, totals=totals).source, rules_with(**rules))


@given(
    counted=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 10**6)), min_size=1, max_size=6),
    shard_tokens=st.integers(1, 10**6),
    layout=st.sampled_from(["independent", "contiguous"]),
)
@unhurried
def test_with_counted_text_a_plan_for_bytes_is_exact(
    counted: list[tuple[int, int]], shard_tokens: int, layout: str
) -> None:
    texts = [text for _, text in counted]
    recipe = recipe_of(texts, tokenizer="bytes", shard_tokens=shard_tokens, layout=layout)
    sizes = {f"{at}.parquet": Size(rows, text) for at, (rows, text) in enumerate(counted)}

    plan = estimate_needs(recipe, sizes, workers=2)

    tokens = sum(text + rows for rows, text in counted)  # A byte is a token, and each row brings an EOT.
    full, rest = divmod(tokens, shard_tokens)
    shards = full + (1 if rest else 0)
    assert (plan.files, plan.rows) == (len(counted), sum(rows for rows, _ in counted))
    assert (plan.tokens, plan.shards) == (tokens, shards)
    assert plan.output_bytes == 2 * tokens + 1024 * shards + 8 * plan.rows
    assert 0 <= plan.working_bytes <= plan.output_bytes
    assert plan.largest_bytes == max(texts)
    at = texts.index(plan.largest_bytes)
    assert plan.largest_path == f"{at}.parquet"
    assert plan.largest_tokens == sum(counted[at])


SIZES = {"0.parquet": Size(10, 990), "1.parquet": Size(5, 1995)}  # 1,000 and 2,000 tokens of bytes


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("npy", 6000 + 4 * 128 + 15 * 8),
        # The parts of documents at the heads of shards count as documents too.
        ("megatron", 6000 + 15 * 8 + 4 * 42 + (15 + 4) * 20),
        ("datatrove", 6000 + 15 * 8 + 4 * 40 + (15 + 4) * 8),
    ],
)
def test_what_a_format_has_before_and_beside_the_tokens_needs_room_too(kind: str, size: int) -> None:
    recipe = recipe_of([990, 1995], tokenizer="bytes", format=kind, shard_tokens=800, val_tokens=0)
    plan = estimate_needs(recipe, SIZES, 1)

    assert (plan.tokens, plan.shards, plan.output_bytes) == (3000, 4, size)


@pytest.mark.parametrize(("val_tokens", "files"), [(0, 1), (700, 2), (3000, 1), (3001, 1)])
@pytest.mark.parametrize("workers", [1, 64])
def test_one_stream_needs_room_for_the_tails_and_the_files_made_of_them(
    val_tokens: int, files: int, workers: int
) -> None:
    stream = {"format": "raw", "layout": "contiguous", "shard_tokens": 0, "val_tokens": val_tokens}
    plan = estimate_needs(recipe_of([990, 1995], tokenizer="bytes", **stream), SIZES, workers)

    tails = 2 * 3000 + 15 * 12  # The tails of one stream have the same entries of 12 bytes.
    assert (plan.shards, plan.output_bytes, plan.working_bytes) == (files, tails, tails)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_every_tokenizer_can_be_planned(tokenizer: str) -> None:
    assert registry.find(tokenizer).name == tokenizer

    plan = estimate_needs(recipe_of([10**9], tokenizer=tokenizer), {}, 1)

    text_bytes = plan.text_bytes
    assert text_bytes > 10**9  # Text is larger than its parquet.
    least, most = (1, 1.1) if tokenizer == "bytes" else (1 / 6, 1 / 4)
    assert least * text_bytes <= plan.tokens <= most * text_bytes


def test_fineweb_edu_10b_is_planned_close_to_what_it_is() -> None:
    # 14 files, 28.52 GB of parquet: about ten billion tokens of GPT-2 in a hundred shards of 200 MB.
    plan = estimate_needs(recipe_of([28_520_000_000 // 14] * 14), {}, 8)

    assert 9.5e9 < plan.tokens < 10.5e9
    assert 95 <= plan.shards <= 105
    assert 19e9 < plan.output_bytes < 21.5e9


def test_uint32_needs_twice_the_room_of_the_same_tokens() -> None:
    small, large = (
        estimate_needs(recipe_of([10**9], token_type=token_type, shard_tokens=10**6), {}, 4)
        for token_type in ("uint16", "uint32")
    )

    assert large.tokens == small.tokens
    assert large.output_bytes - small.output_bytes == 2 * small.tokens


def test_a_version_whose_files_are_not_listed_is_planned_from_its_totals() -> None:
    recipe = Recipe(recipe_with(files=(), totals=Totals(472, 998_102_051_512)).source, rules_with())
    plan = estimate_needs(recipe, {}, 8)

    assert plan.files == 472
    assert plan.source_bytes == 998_102_051_512
    assert 3e11 < plan.tokens < 4e11


def test_nothing_needs_nothing() -> None:
    plan = estimate_needs(recipe_of([]), {}, 1)

    assert plan == Needs(0, 0, 0, 0, 0, 0, 0, 0, "", 0, 0)
    refuse_small_disk(plan, 0, 0, "out")


def test_a_counted_file_without_text_is_not_guessed_at() -> None:
    plan = estimate_needs(recipe_of([10**6]), {"0.parquet": Size(0, 0)}, 1)

    assert (plan.rows, plan.text_bytes, plan.tokens) == (0, 0, 0)


def test_every_row_may_be_a_document_of_one_token() -> None:
    plan = estimate_needs(recipe_of([10**6]), {"0.parquet": Size(1000, 1000)}, 1)

    assert plan.tokens >= 1000


def test_more_workers_need_more_room_to_work_in() -> None:
    needs = [estimate_needs(recipe_of([10**9] * 8), {}, workers).working_bytes for workers in (1, 2, 4)]

    assert needs == sorted(set(needs))


@given(st.integers(0, 10**13))
@unhurried
def test_an_estimate_grows_with_the_file_and_is_never_negative(size: int) -> None:
    files = (SourceShard("a", size), SourceShard("b", size + 10_000))
    small, large = estimated_sizes(files, {}).values()

    assert small.rows >= 0
    assert small.text_bytes >= size
    assert large.text_bytes > small.text_bytes
    assert large.rows >= small.rows


def test_a_file_that_was_not_seen_is_guessed_from_those_that_were() -> None:
    files = (SourceShard("a", 100), SourceShard("b", 300), SourceShard("c", 200))
    seen = {"a": Size(10, 1000), "b": Size(10, 3000)}  # 10 bytes of text and 1/20 of a row for each byte

    assert estimated_sizes(files, seen) == {**seen, "c": Size(10, 2000)}


def test_empty_files_that_were_seen_do_not_spoil_the_estimate_of_the_others() -> None:
    files = (SourceShard("a", 0), SourceShard("b", 10**6))

    assert estimated_sizes(files, {"a": Size(0, 0)})["b"] == estimated_sizes(files, {})["b"]


PLAN = Needs(
    files=1,
    source_bytes=1,
    rows=1,
    text_bytes=1,
    tokens=1,
    shards=1,
    output_bytes=1000,
    working_bytes=500,
    largest_path="",
    largest_bytes=0,
    largest_tokens=0,
)


@pytest.mark.parametrize(("have", "free"), [(0, 1500), (0, 10**15), (400, 1100), (1500, 0), (9000, 0)])
def test_a_disk_that_is_just_large_enough_is_accepted(have: int, free: int) -> None:
    refuse_small_disk(PLAN, have, free, "out")


@pytest.mark.parametrize(("have", "free", "missing"), [(0, 1499, 1), (0, 0, 1500), (400, 1000, 100)])
def test_a_disk_that_is_too_small_is_refused_with_the_numbers(have: int, free: int, missing: int) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_small_disk(PLAN, have, free, "some/out")

    values = {line[2:20].strip(): line[20:].strip() for line in str(caught.value).splitlines()[1:-2]}
    told = {name: value.split()[0] for name, value in values.items()}
    assert told == {
        "folder": "some/out",
        "needed for output": "1,000",
        "needed to work": "500",
        "there already": f"{have:,}",
        "free": f"{free:,}",
        "missing": f"{missing:,}",
    }
    assert "--no-disk-check" in str(caught.value)


TEN_SIZES = {f"{at}.parquet": Size(100, 10_000) for at in range(10)}


def limited_plan(**rules: Any) -> Needs:
    return estimate_needs(
        recipe_of([5_000] * 10, tokenizer="bytes", shard_tokens=1_000, **rules), TEN_SIZES, 1, 4
    )


@pytest.mark.parametrize(
    ("limit", "files", "tokens", "rows"),
    [
        ({"limit_tokens": 1}, 1, 1, 0),
        ({"limit_tokens": 10_100}, 1, 10_100, 100),
        ({"limit_tokens": 10_101}, 2, 10_101, 100),
        ({"limit_tokens": 10**9}, 10, 101_000, 1_000),
        ({"limit_documents": 50}, 1, 5_050, 50),
        ({"limit_documents": 250}, 3, 25_250, 250),
        ({"limit_documents": 250, "limit_tokens": 101}, 1, 101, 1),
        ({"limit_documents": 250, "limit_tokens": 101, "min_score": 1.0}, 10, 101, 1),
    ],
)
def test_a_limit_makes_a_plan_smaller(limit: dict[str, Any], files: int, tokens: int, rows: int) -> None:
    plan = limited_plan(**limit)

    assert (plan.files, plan.tokens, plan.rows) == (files, tokens, rows)
    assert plan.source_bytes == 5_000 * files
    assert plan.fetched_bytes == 5_000 * min(4, files)
    assert plan.output_bytes == 2 * tokens + 1024 * plan.shards + 8 * rows
    assert plan.shards == -(-tokens // 1_000)


def test_a_filter_alone_changes_no_plan() -> None:
    assert limited_plan(where="score > 3") == limited_plan()
