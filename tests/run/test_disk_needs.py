"""What a run needs of the disk, with sources that are fetched, kept, or here already."""

from pathlib import Path
from typing import Any

import examples
import pytest

from fwconvert.errors import UsageError
from fwconvert.options import Options
from fwconvert.recipes import Recipe, SourceShard
from fwconvert.run import preflight
from fwconvert.run.convert import convert
from fwconvert.run.estimate import Needs
from fwconvert.run.prefetch import open_input
from fwconvert.store.local import LocalStore

SIZES = [500, 100, 300, 200, 400]
FILES = tuple(SourceShard(f"{at}.parquet", size * 1_000_000, "ab" * 32) for at, size in enumerate(SIZES))
RECIPE = examples.recipe_with(files=FILES)


def options(**changes: Any) -> Options:
    return Options(workers=1, **changes)


def estimate_of(recipe: Recipe, chosen: Options) -> Needs:
    return open_input(recipe, chosen, LocalStore(Path("out"))).estimate(recipe, chosen)


def test_fetched_sources_need_room_for_the_largest_that_can_lie_there_together() -> None:
    planned = estimate_of(RECIPE, options(prefetch=2))
    assert planned.fetched_bytes == 1_200_000_000


def test_kept_sources_need_room_for_all(tmp_path: Path) -> None:
    planned = estimate_of(RECIPE, options(prefetch=2, keep_source=tmp_path / "keep"))
    assert planned.fetched_bytes == sum(file.bytes for file in FILES)


def test_sources_of_the_user_need_no_room(tmp_path: Path) -> None:
    planned = estimate_of(RECIPE.at(tmp_path), options())
    assert planned.fetched_bytes == 0


def test_a_version_that_lists_no_files_is_planned_from_its_totals() -> None:
    unlisted = examples.recipe_with(files=())
    planned = estimate_of(unlisted, options(prefetch=1))
    assert (planned.files, planned.source_bytes, planned.fetched_bytes) == (2, 30, 30)


def room(monkeypatch: pytest.MonkeyPatch, free: dict[Path, int]) -> None:
    """Give each folder a disk of its own with so many free bytes."""
    monkeypatch.setattr(preflight, "free_bytes", lambda path: free[path])
    monkeypatch.setattr(preflight, "_device", [*free].index)


def check(recipe: Recipe, chosen: Options, out: Path) -> None:
    folder = LocalStore(out)
    preflight.check_disk(folder, recipe, chosen, open_input(recipe, chosen, folder))


@pytest.mark.parametrize("enough", [True, False])
def test_kept_sources_on_another_disk_are_looked_at_by_themselves(
    enough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, keep = tmp_path / "out", tmp_path / "keep"
    keep.mkdir()
    room(monkeypatch, {out: 10**10, keep: 1_500_000_000 if enough else 1_499_999_999})
    chosen = options(keep_source=keep)

    if enough:
        check(RECIPE, chosen, out)
    else:
        with pytest.raises(UsageError, match="to keep the sources"):
            check(RECIPE, chosen, out)


def test_kept_sources_that_are_there_need_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, keep = tmp_path / "out", tmp_path / "keep"
    keep.mkdir()
    small = examples.recipe_with(files=(SourceShard("a.parquet", 1000, "ab" * 32),))
    (keep / "a.parquet").write_bytes(bytes(1000))
    room(monkeypatch, {out: 10**10, keep: 0})

    check(small, options(keep_source=keep), out)


def test_a_disk_without_room_for_the_sources_is_refused_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = estimate_of(RECIPE, options(prefetch=1))
    whole = planned.output_bytes + planned.working_bytes + planned.fetched_bytes
    monkeypatch.setattr(preflight, "free_bytes", lambda _: whole - 1)

    with pytest.raises(UsageError) as caught:
        check(RECIPE, options(prefetch=1), tmp_path)

    assert "needed for sources  900,000,000 bytes" in str(caught.value)


def test_the_source_of_a_user_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--keep-source"):
        convert(RECIPE.at(tmp_path), tmp_path / "out", Options(keep_source=tmp_path))
    assert not (tmp_path / "out").exists()
