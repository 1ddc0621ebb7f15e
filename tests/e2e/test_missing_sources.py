"""Sources that are not where the command says: the wrong folder, some that are missing or closed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import corpus
import pytest
import runner
from runner import assert_tidy_end

FILES = 5
NAMES = [f"sample/{number:02d}.parquet" for number in range(FILES)]
RECIPE: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 2000, "workers": 1}

NO_OVERRIDE = "-dac_override,-dac_read_search"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    corpus.equal_sources(folder / "sample", files=FILES, rows=40)
    return folder


@pytest.fixture(scope="module")
def pinned(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pinned") / "mine.json"
    words = [sys.executable, "-m", "fwconvert", "pin", str(sources), "-o", str(path)]
    subprocess.run(words, check=True, capture_output=True, env=environment())
    return path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(runner.REPOSITORY)}


def convert(
    pinned: Path | str, folder: Path, out: Path, *flags: str, **choices: Any
) -> "subprocess.CompletedProcess[str]":
    return runner.run(folder, out, "--version", str(pinned), *flags, **{**RECIPE, **choices})


@pytest.mark.parametrize("command", [[], ["plan"]], ids=["convert", "plan"])
def test_a_folder_without_any_of_the_files_is_refused_and_nothing_is_made(
    command: list[str], tmp_path: Path
) -> None:
    wrong, out = tmp_path / "wrong", tmp_path / "out"
    corpus.write(wrong / "of-another-dataset.parquet", ["text"])
    words = [sys.executable, "-m", "fwconvert", *command]
    words += ["--version", "10B", "--source", str(wrong), "--out", str(out), "--no-disk-check"]

    ended = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)

    assert_tidy_end(ended, 2)
    assert "0 of the 14 files are there" in ended.stderr
    for word in (str(wrong), "sample/10BT/000_00000.parquet", "and 11 more", "-> name the folder"):
        assert ended.stderr.count(word) == 1
    assert len(ended.stderr.splitlines()) < 8
    assert not out.exists()


def test_a_few_that_are_missing_are_each_told_once_and_not_tried_again(
    pinned: Path, sources: Path, tmp_path: Path
) -> None:
    some, out = tmp_path / "some", tmp_path / "out"
    shutil.copytree(sources, some)
    gone = [some / NAMES[1], some / NAMES[3]]
    for path in gone:
        path.unlink()

    ended = convert(pinned, some, out)

    assert_tidy_end(ended, 1)
    for path, name in zip(gone, (NAMES[1], NAMES[3]), strict=True):
        assert f"fwconvert: {name} failed: a source file is missing\n" in ended.stderr
        assert ended.stderr.count(str(path)) == 1
        assert ended.stderr.count(f"{name}: attempt") == 1
    assert ended.stderr.count("-> put it back") == 2
    assert "parquet:" in ended.stderr
    assert "cannot be read as parquet" not in ended.stderr
    for path, name in zip(gone, (NAMES[1], NAMES[3]), strict=True):
        shutil.copy(sources / name, path)
    assert_tidy_end(convert(pinned, some, out), 0)


def test_a_corrupt_source_is_told_once_in_full_and_in_a_line_when_it_is_tried_again(
    sources: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(sources, tmp_path / "sources"))
    (folder / NAMES[2]).write_bytes(b"no parquet")

    ended = runner.run(folder, tmp_path / "out", **RECIPE)

    assert_tidy_end(ended, 1)
    assert ended.stderr.count("-> replace the file with a good copy") == 1
    assert ended.stderr.count(str(folder / NAMES[2])) == 1
    tried = [line for line in ended.stderr.splitlines() if "attempt" in line]
    assert [NAMES[2] in line and "cannot be read as parquet" in line for line in tried] == [True, True]


def test_a_source_that_may_not_be_read_is_called_that(pinned: Path, sources: Path, tmp_path: Path) -> None:
    folder, out = Path(shutil.copytree(sources, tmp_path / "sources")), tmp_path / "out"
    (folder / NAMES[2]).chmod(0)
    words = runner.command(folder, out, "--version", str(pinned), **RECIPE)
    if os.access(folder / NAMES[2], os.R_OK):
        words = ["setpriv", f"--bounding-set={NO_OVERRIDE}", f"--inh-caps={NO_OVERRIDE}", *words]
        if shutil.which("setpriv") is None:
            pytest.skip("this user may read everything, and there is no setpriv to forbid it")

    ended = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)

    if "setpriv:" in ended.stderr:
        pytest.skip(f"this user may read everything: {ended.stderr}")
    assert_tidy_end(ended, 1)
    assert f"fwconvert: {NAMES[2]} failed: a source file may not be read\n" in ended.stderr
    assert ended.stderr.count("Permission denied") == 1
    assert ended.stderr.count(f"{NAMES[2]}: attempt") == 1
    assert "good copy" not in ended.stderr
    (folder / NAMES[2]).chmod(0o600)
    assert_tidy_end(convert(pinned, folder, out), 0)


def test_a_run_that_has_begun_refuses_a_folder_that_has_nothing_for_it(
    pinned: Path, sources: Path, tmp_path: Path
) -> None:
    """Whoever has not the disk for all files brings them one after another."""
    folder, out = tmp_path / "sources", tmp_path / "out"
    folder.mkdir()
    shutil.copy(sources / NAMES[0], folder)
    assert_tidy_end(convert(pinned, folder, out), 1)
    before = runner.state(out)

    ended = convert(pinned, folder, out)

    assert_tidy_end(ended, 2)
    assert "0 of the 4 files that are left to convert are there" in ended.stderr
    assert runner.state(out) == before
    (folder / "00.parquet").unlink()
    for name in NAMES[1:]:
        shutil.copy(sources / name, folder)
    assert_tidy_end(convert(pinned, folder, out), 0)


def test_a_run_that_is_done_needs_its_sources_no_more(pinned: Path, sources: Path, tmp_path: Path) -> None:
    folder, out = Path(shutil.copytree(sources, tmp_path / "sources")), tmp_path / "out"
    assert_tidy_end(convert(pinned, folder, out), 0)
    shutil.rmtree(folder / "sample")

    again = convert(pinned, folder, out)

    assert_tidy_end(again, 0)
    assert "already complete" in again.stdout


def test_a_limit_needs_no_source_behind_it(pinned: Path, sources: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "sources", tmp_path / "out"
    folder.mkdir()
    shutil.copy(sources / NAMES[0], folder)

    assert_tidy_end(convert(pinned, folder, out, limit_documents=30), 0)


def test_a_source_of_a_folder_that_is_gone_in_the_next_session_is_named_with_what_to_do(
    sources: Path, tmp_path: Path
) -> None:
    folder, out = Path(shutil.copytree(sources, tmp_path / "sources")), tmp_path / "out"
    assert_tidy_end(runner.run(folder, out, **RECIPE), 0)
    before = runner.state(out)
    (folder / NAMES[3]).unlink()

    ended = runner.run(folder, out, **RECIPE)

    assert_tidy_end(ended, 2)
    assert f"sources missing now  {NAMES[3]}" in ended.stderr
    assert "-> put the missing sources back" in ended.stderr
    assert runner.state(out) == before


def test_the_demo_refuses_files_of_the_user(sources: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = convert("demo", sources, out)
    assert_tidy_end(ended, 2)
    for word in ("--version demo, which generates its own files", str(sources), "drop --source"):
        assert ended.stderr.count(word) == 1
    assert not out.exists()
