"""What a Python program may rely on: the names of the package, given no more than they need."""

import json
import os
import subprocess
import sys
from pathlib import Path

import child
import corpus
import pytest
import runner

import fwconvert

NAMES = [
    "Copied", "Engine", "Estimate", "FwconvertError", "HubError", "Loader", "ManifestError", "Observer",
    "Options", "OutputError", "Rank", "Recipe", "Report", "Result", "RunReader", "ShardError", "Snapshot",
    "SourceError", "SourceManifest", "Status", "StopSwitch", "Trace", "UsageError", "convert",
    "convert_rank", "copy", "export", "merge", "open_run", "pin", "plan", "recipe", "save_plan", "status",
    "trace", "verify",
]  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert fwconvert.__all__ == NAMES
    assert set(NAMES) <= set(dir(fwconvert))


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_found_when_it_is_asked_for(name: str) -> None:
    found = getattr(fwconvert, name)

    assert found.__name__ == name
    assert found.__module__.startswith("fwconvert.")
    assert found.__doc__


def test_any_other_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        fwconvert.nonsense  # noqa: B018


def test_importing_the_package_loads_no_module_of_it() -> None:
    code = "import sys, fwconvert; print(*(name for name in sys.modules if name.startswith('fwconvert.')))"

    assert child.run(code).strip() == ""


def test_a_recipe_and_a_folder_are_enough(tmp_path: Path) -> None:
    """In a process of its own, as a user has it: nothing is left but the output, and nothing is forgotten."""
    corpus.write(tmp_path / "sources/a.parquet", ["one", "two", "three"])
    home = tmp_path / "home"
    home.mkdir()
    code = (
        "import fwconvert\n"
        "recipe = fwconvert.recipe(source='sources', tokenizer='bytes')\n"
        "print(fwconvert.convert(recipe, 'OUT').complete)\n"
    )
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": str(runner.REPOSITORY)}

    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.stdout, ended.stderr, ended.returncode) == ("True\n", "", 0)
    assert {path.name for path in tmp_path.iterdir()} == {"sources", "OUT", "home"}
    assert list(home.iterdir()) == []
    assert json.loads((tmp_path / "OUT/manifest.json").read_bytes())["headline"]["documents"] == 3


def test_every_folder_may_be_given_as_text_or_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus.tiny(tmp_path / "sources")
    options = fwconvert.Options(workers=1)
    for number, made in enumerate((str, Path)):
        out, new = made(f"out{number}"), made(f"new{number}")
        recipe = fwconvert.recipe(source=made("sources"), tokenizer="bytes", shard_tokens=50, val_tokens=0)
        assert fwconvert.plan(recipe, out).plan.files == len(recipe.source.files)
        assert fwconvert.convert(recipe, out, options).complete
        assert fwconvert.status(out).complete
        assert fwconvert.verify(out).ok
        shard = fwconvert.open_run(out).manifest.shards[0].name
        assert fwconvert.trace(out, f"{shard}:0", made("sources")).shard == shard
        assert fwconvert.export(out, new, options, format="npy", layout="contiguous").complete
        pinned = fwconvert.pin(made("sources"), output=made("pinned.json"))
        assert len(pinned.files) == len(recipe.source.files)
        assert fwconvert.recipe(version="pinned.json", source=made("sources")).source.files == pinned.files


def test_an_export_refuses_a_change_that_there_is_not(tmp_path: Path) -> None:
    corpus.tiny(tmp_path / "sources")
    assert runner.convert(tmp_path / "sources", tmp_path / "run", tokenizer="bytes", shard_tokens=9).complete

    with pytest.raises(fwconvert.UsageError, match="tokenizer"):
        fwconvert.export(tmp_path / "run", tmp_path / "new", tokenizer="gpt2")  # type: ignore[call-arg]
    assert not (tmp_path / "new").exists()
