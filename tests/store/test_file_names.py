"""Names follow from the recipe, sort in the order of the stream, and never meet."""

import itertools
import re

import pytest
from examples import FILES, RULES, recipe_with, rules_with, unhurried
from hypothesis import given
from hypothesis import strategies as st

from fwconvert.recipes import Recipe
from fwconvert.store import layout

CONTIGUOUS = Recipe(recipe_with().source, rules_with(layout="contiguous"))


def test_a_job_names_its_shards_by_source_and_block() -> None:
    assert layout.job_shard(RULES, "val", 0, 0) == "edu_fineweb_val_00000_000.bin"
    assert layout.job_shard(RULES, "train", 0, 1) == "edu_fineweb_train_00000_001.bin"
    assert layout.job_shard(rules_with(block_digits=5), "train", 7, 5) == "edu_fineweb_train_00007_00005.bin"


def test_a_number_with_too_many_digits_sorts_behind_the_others() -> None:
    assert layout.job_shard(RULES, "train", 2409, 1234) == "edu_fineweb_train_02409_x000001234.bin"
    assert layout.job_shard(RULES, "train", 123_456, 7) == "edu_fineweb_train_x000123456_007.bin"
    blocks = [998, 999, 1000, 1001, 9_999, 10_000, 123_456]
    made = [layout.job_shard(RULES, "train", source, at) for source in (7, 99_999, 100_000) for at in blocks]

    assert made == sorted(made)


def test_names_of_the_first_versions_are_known_by_their_long_numbers() -> None:
    ours = [layout.job_shard(RULES, "train", source, at) for source in (0, 123_456) for at in (0, 12_345)]
    theirs = [
        layout.job_shard(RULES, "train", source, at, plain=True) for source, at in ((0, 1000), (100_000, 0))
    ]

    assert theirs == ["edu_fineweb_train_00000_1000.bin", "edu_fineweb_train_100000_000.bin"]
    assert not layout.are_plain(RULES, ours)
    assert all(layout.are_plain(RULES, [*ours, name]) for name in theirs)


def test_joined_tails_carry_the_index_after_the_last_source() -> None:
    recipe = recipe_with(files=FILES)

    assert layout.joined_shard(recipe, "train", 0) == "edu_fineweb_train_00002_000.bin"


def test_contiguous_shards_are_named_as_llm_c_names_them() -> None:
    assert layout.joined_shard(CONTIGUOUS, "val", 0) == "edu_fineweb_val_000000.bin"
    assert layout.joined_shard(CONTIGUOUS, "train", 1) == "edu_fineweb_train_000001.bin"
    assert layout.joined_shard(CONTIGUOUS, "train", 98_765) == "edu_fineweb_train_098765.bin"


def test_names_sort_in_the_order_of_the_stream() -> None:
    recipe = recipe_with(files=FILES)
    made = [layout.job_shard(RULES, "train", source, block) for source in (0, 1) for block in range(1000)]
    made += [layout.joined_shard(recipe, "train", number) for number in range(1000)]

    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_an_index_is_named_after_its_shard() -> None:
    assert layout.index("edu_fineweb_val_00000_000.bin") == "index/edu_fineweb_val_00000_000.docs"


@given(
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True),
    split=st.sampled_from(["val", "train"]),
    source=st.integers(0, 200_000),
    block=st.integers(0, 10**7),
)
@unhurried
def test_every_name_that_a_run_makes_is_known_as_a_shard(
    name: str, split: layout.Split, source: int, block: int
) -> None:
    rules = rules_with(name=name)
    contiguous = Recipe(recipe_with().source, rules_with(name=name, layout="contiguous"))

    assert layout.is_shard(rules, layout.job_shard(rules, split, source, block))
    assert layout.is_shard(contiguous.rules, layout.joined_shard(contiguous, split, block))


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json", "index", ".fwconvert", "edu_fineweb_train_000001.docs",
        "edu_fineweb_train_000001.bin.tmp", ".edu_fineweb_train_000001.bin", "xedu_fineweb_train_000001.bin",
        "fineweb_train_000001.bin", "edu_fineweb_test_000001.bin", "edu_fineweb_train_.bin",
        "edu_fineweb_train_1_2_3.bin", "edu_fineweb_train_00000x.bin", "edu_fineweb_train_000001xbin",
        "edu_fineweb_train_000001.bin\n",
    ],
)  # fmt: skip
def test_other_names_are_not_taken_for_shards(name: str) -> None:
    assert not layout.is_shard(RULES, name)


def test_a_dot_in_the_name_is_a_dot() -> None:
    assert layout.is_shard(rules_with(name="a.b"), "a.b_train_000001.bin")
    assert not layout.is_shard(rules_with(name="a.b"), "axb_train_000001.bin")


@given(st.text(min_size=1, max_size=300))
@unhurried
def test_a_job_key_is_a_safe_file_name(path: str) -> None:
    path = path.encode(errors="replace").decode()

    assert re.fullmatch(r"[A-Za-z0-9._-]{1,120}", layout.job_key(path))


def test_different_paths_have_different_keys_even_where_case_does_not_count() -> None:
    paths = ["a/b", "a_b", "a b", "A/b", "a/B", "x" * 100 + "/b", "y" * 100 + "/b", "é", "è", "a/b.c", "b"]

    assert len({layout.job_key(path).lower() for path in paths}) == len(paths)


@given(st.lists(st.text(st.sampled_from("ab/_ é"), min_size=1, max_size=6), unique=True, max_size=8))
@unhurried
def test_a_key_never_begins_with_another_key_and_a_dash(paths: list[str]) -> None:
    # What a killed worker leaves is swept by this beginning.
    for one, other in itertools.permutations(paths, 2):
        assert not layout.job_key(one).startswith(f"{layout.job_key(other)}-")


def test_a_key_shows_the_end_of_the_path() -> None:
    assert layout.job_key("sample/10BT/000_00000.parquet").startswith("sample_10BT_000_00000.parquet-")
