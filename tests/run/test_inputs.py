"""Where a run's tokens come from, and the hint that is kept of it."""

from pathlib import Path

import pytest
from examples import RECIPE

from fwconvert.options import Options
from fwconvert.run.prefetch import open_input
from fwconvert.store import layout, saved_recipe
from fwconvert.store.local import LocalStore


@pytest.mark.parametrize("option", ["root", "keep_source"])
def test_the_place_of_the_sources_is_kept_for_later(option: str, tmp_path: Path) -> None:
    folder = LocalStore(tmp_path / "run")
    folder.prepare()
    here = tmp_path / "here"
    inputs = {
        "root": open_input(RECIPE.at(here), Options(), folder),
        "keep_source": open_input(RECIPE, Options(keep_source=here), folder),
    }

    saved_recipe.save_source_root(folder, inputs[option].root)

    assert saved_recipe.read_source_root(folder) == tmp_path / "here"


def test_sources_that_are_fetched_and_removed_leave_no_hint(tmp_path: Path) -> None:
    folder = LocalStore(tmp_path / "run")
    folder.prepare()

    saved_recipe.save_source_root(folder, open_input(RECIPE, Options(), folder).root)

    assert saved_recipe.read_source_root(folder) is None
    assert not folder.local(layout.PLACES).exists()


def test_a_hint_that_is_right_is_not_written_again(tmp_path: Path) -> None:
    folder = LocalStore(tmp_path / "run")
    folder.prepare()
    saved_recipe.save_source_root(folder, tmp_path)
    before = folder.local(layout.PLACES).stat().st_mtime_ns

    saved_recipe.save_source_root(folder, tmp_path)
    assert folder.local(layout.PLACES).stat().st_mtime_ns == before

    saved_recipe.save_source_root(folder, tmp_path / "other")
    assert saved_recipe.read_source_root(folder) == tmp_path / "other"
