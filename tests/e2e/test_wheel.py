"""The wheel is what people install: built here, installed without development tools, and used."""

import os
import subprocess
import sys
from pathlib import Path

import corpus
import pytest

import fwconvert

REPOSITORY = Path(fwconvert.__file__).parent.parent


def _run(words: list[str], folder: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in an empty folder; the clone must not be importable by accident."""
    folder.mkdir(exist_ok=True)
    env = {**os.environ, **more}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(REPOSITORY)]
    built = _run(build, folder)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("fwconvert-*.whl")
    target = folder / "site"
    done = _run([*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)], folder)
    assert done.returncode == 0, done.stderr
    return target


def test_the_wheel_converts_and_finds_its_manifests_and_vocabularies(installed: Path, tmp_path: Path) -> None:
    corpus.write(tmp_path / "source/a.parquet", ["hello", "world"])
    fwconvert_command = [sys.executable, "-m", "fwconvert"]
    path = {"PYTHONPATH": str(installed)}
    where = _run([sys.executable, "-c", "import fwconvert; print(fwconvert.__file__)"], tmp_path, **path)
    assert Path(where.stdout.strip()).is_relative_to(installed)
    assert _run([*fwconvert_command, "--help"], tmp_path / "empty", **path).returncode == 0
    plan = _run([*fwconvert_command, "plan", "--version", "100B"], tmp_path / "empty", **path)
    assert "286,394,522,604" in plan.stdout
    words = ["--source", str(tmp_path / "source"), "--out", "out", "--workers", "1"]
    done = _run([*fwconvert_command, *words], tmp_path / "empty", **path)
    assert done.returncode == 0, done.stderr
    assert "4 of 2 documents" in done.stdout
    show = _run([*fwconvert_command, "show", "out", "train"], tmp_path / "empty", **path)
    assert "world" in show.stdout


def test_the_console_script_exists() -> None:
    command = Path(sys.executable).with_name("fwconvert")
    if not command.exists():
        pytest.skip("fwconvert is not installed in this environment")
    assert subprocess.run([command, "--about"], capture_output=True, text=True, check=True).stdout.startswith(
        "fwconvert "
    )
