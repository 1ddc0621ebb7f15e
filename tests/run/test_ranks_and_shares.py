"""Which sources a rank has, what it is called, and how Slurm is told of those that are missing."""

from pathlib import Path

import corpus
import pytest
import runner
from hypothesis import given
from hypothesis import strategies as st

import fwconvert
from fwconvert.errors import UsageError
from fwconvert.recipes import SourceShard
from fwconvert.run.ranks import Rank, array_expression, last_world, owners, parse_rank, share
from fwconvert.store import layout, sessions
from fwconvert.store.local import LocalStore

SIZES = st.lists(st.integers(0, 3_000), max_size=40)


def files_of(sizes: list[int]) -> list[SourceShard]:
    return [SourceShard(f"{number}.parquet", size) for number, size in enumerate(sizes)]


@given(sizes=SIZES, world=st.integers(1, 50))
def test_every_source_has_one_rank_and_no_rank_much_more_than_another(sizes: list[int], world: int) -> None:
    files = files_of(sizes)
    shares = [share(files, Rank(number, world)) for number in range(world)]

    assert sorted(index for one in shares for index in one) == [*range(len(files))]
    loads = [sum(files[index].bytes for index in one) for one in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)
    assert owners(files, world) == owners(files, world)


@given(numbers=st.sets(st.integers(0, 60), min_size=1))
def test_an_array_expression_means_its_numbers(numbers: set[int]) -> None:
    found = set()
    for part in array_expression(numbers).split(","):
        first, _, last = part.partition("-")
        found |= {*range(int(first), int(last or first) + 1)}
    assert found == numbers


@pytest.mark.parametrize(("numbers", "text"), [({0, 1, 2, 3, 7}, "0-3,7"), ({5}, "5"), ({1, 2}, "1-2")])
def test_an_array_expression_is_short(numbers: set[int], text: str) -> None:
    assert array_expression(numbers) == text


def test_a_rank_is_one_of_its_world() -> None:
    assert str(parse_rank("3", 8, {})) == "3 of 8"
    for number, world in ((8, 8), (9, 8), (0, 0)):
        with pytest.raises(UsageError, match="there is no such rank"):
            Rank(number, world)
    with pytest.raises(UsageError, match="one of how many"):
        parse_rank("3", None, {})


def test_slurm_is_believed_before_kubernetes_and_neither_beyond_what_it_says() -> None:
    slurm = {f"SLURM_ARRAY_TASK_{name}": "0" for name in ("ID", "MIN", "MAX")}
    slurm["SLURM_ARRAY_TASK_COUNT"] = "1"
    assert parse_rank("auto", None, {**slurm, "JOB_COMPLETION_INDEX": "5"}) == Rank(0, 1)
    assert parse_rank("auto", 9, {"JOB_COMPLETION_INDEX": "5"}) == Rank(5, 9)
    with pytest.raises(UsageError, match="JOB_COMPLETION_INDEX is not a number"):
        parse_rank("auto", 9, {"JOB_COMPLETION_INDEX": ""})
    with pytest.raises(UsageError, match="there is no such rank"):
        parse_rank("auto", 5, {"JOB_COMPLETION_INDEX": "5"})


def test_the_last_world_is_that_of_the_last_rank_that_began(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, "s")
    store.prepare()
    assert last_world(store) is None
    for name in ("20260101T000000Z-aaaaaa-r0of4", "20260102T000000Z-aaaaaa-r1of8", "20260103T000000Z-aaaaaa"):
        store.write(layout.session(name), b"{}\n")

    assert last_world(store) == 8
    assert sessions.rank_in("20260103T000000Z-aaaaaa") is None


def test_a_program_plans_converts_by_ranks_and_merges(tmp_path: Path) -> None:
    for number in range(3):
        corpus.write(tmp_path / f"sources/{number}.parquet", corpus.documents(100 * number, 20))
    recipe = fwconvert.recipe(source=tmp_path / "sources", tokenizer="bytes", shard_tokens=500)
    options = fwconvert.Options(workers=1)
    out = tmp_path / "out"
    fwconvert.save_plan(recipe, out, options)

    first = fwconvert.convert_rank(out, fwconvert.Rank(0, 2), options)
    missing = fwconvert.merge(out, options)
    second = fwconvert.convert_rank(out, fwconvert.Rank(1, 2), options)
    merged = fwconvert.merge(out, options)

    assert first.complete
    assert second.complete
    assert (first.rank, first.headline.jobs + second.headline.jobs) == ("0 of 2", 3)
    assert not missing.complete
    assert len(missing.missing) == second.headline.jobs
    assert merged.complete
    assert fwconvert.convert(recipe, tmp_path / "one", options).complete
    assert runner.tree(out) == runner.tree(tmp_path / "one")
