"""The scripts of a clone, as far as can be told without the network: no environment is made here."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2]
SCRIPTS = ("scripts/run", "scripts/test", "scripts/bench", "scripts/fuzz", "scripts/disagreements", ".ci/run")

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the scripts want bash")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a clone without an environment, in a folder with spaces in its name."""
    clone = tmp_path / "a clone"
    for folder in ("scripts", ".ci"):
        # Another test may be writing what it compiled.
        shutil.copytree(SOURCE / folder, clone / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SOURCE / "pyproject.toml", clone)
    return clone


def fake_python(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/bash", *lines, ""]))
    path.chmod(0o755)
    return path


def finish_environment(clone: Path, purpose: str) -> None:
    """Make what looks like a finished environment, whose Python tells what it was asked to run."""
    tell = 'printf "%s\\n" "$PWD" "${PYTHONPATH-unset}" "$@"'
    fake_python(
        clone / ".venv/bin/python", f'if [[ $1 == -IS ]]; then exec "{sys.executable}" "$@"; fi', tell
    )
    set_up = runpy.run_path(str(clone / "scripts/set_up.py"))
    (clone / ".venv/fwconvert-lock").touch()
    (clone / ".venv/fwconvert-stamp").write_text(set_up["stamp"](purpose))


def call(
    script: Path, *arguments: str, where: Path | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a script as a user would whose PYTHONPATH is set."""
    surroundings = {**os.environ, "PYTHONPATH": "/leaked", **settings}
    return subprocess.run(
        [script, *arguments], cwd=where, env=surroundings, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_can_be_executed(name: str) -> None:
    assert os.access(SOURCE / name, os.X_OK)


@pytest.mark.parametrize("name", [*SCRIPTS, "scripts/environment"])
def test_bash_can_read_a_script(name: str) -> None:
    subprocess.run(["bash", "-n", SOURCE / name], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    scripts = [*SCRIPTS, "scripts/environment"]
    done = subprocess.run(
        ["shellcheck", "-x", *scripts], cwd=SOURCE, capture_output=True, text=True, check=False
    )
    assert done.stdout == ""


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("behaviour", ["exit 1", "exit 127", "kill -9 $$"])
def test_a_python_that_is_too_old_or_broken_is_a_clear_error(
    name: str, behaviour: str, clone: Path, tmp_path: Path
) -> None:
    old = fake_python(tmp_path / "old python", behaviour)
    done = call(clone / name, "--help", PYTHON=str(old))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Python 3.11 or newer" in done.stderr
    assert f"tried  {old}" in done.stderr
    assert not (clone / ".venv").exists()


def test_the_first_python_that_works_is_taken(clone: Path, tmp_path: Path) -> None:
    fake_python(tmp_path / "bin/python3", "echo 'pyenv: python3: command not found' >&2", "exit 127")
    fake_python(tmp_path / "bin/python3.13", "exit 1")
    fake_python(tmp_path / "bin/python3.12", f'exec "{sys.executable}" "$@"')
    done = subprocess.run(
        ["bash", "-c", 'source "$0"; find_python', clone / "scripts/environment"],
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHON": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("python3.12\n", "")


@pytest.mark.parametrize("purpose", ["run", "test", "fuzz"])
def test_a_finished_environment_runs_the_program_where_the_user_is(
    purpose: str, clone: Path, tmp_path: Path
) -> None:
    finish_environment(clone, purpose)
    (tmp_path / "here").mkdir()
    done = call(clone / "scripts/run", "--name", "a b", "", "*", where=tmp_path / "here", PYTHON="")
    assert done.stderr == ""
    told = [str(tmp_path / "here"), "unset", "-P", "-m", "fwconvert", "--name", "a b", "", "*"]
    assert done.stdout.split("\n")[:-1] == told


def test_a_script_works_through_links(clone: Path, tmp_path: Path) -> None:
    finish_environment(clone, "run")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/absolute").symlink_to(clone / "scripts/run")
    (tmp_path / "bin/relative").symlink_to("absolute")
    done = call(tmp_path / "bin/relative", "--about", where=tmp_path, PYTHON="", CDPATH=str(tmp_path))
    assert (done.returncode, done.stdout.split()[-2:]) == (0, ["fwconvert", "--about"])


def test_the_tests_name_each_step_and_hand_their_arguments_to_pytest(clone: Path, tmp_path: Path) -> None:
    finish_environment(clone, "test")
    done = call(clone / ".ci/run", "tests/test_pack.py", "-k", "a name", where=tmp_path, PYTHON="")
    assert [line for line in done.stdout.splitlines() if line.startswith("==")] == [
        "== ruff check",
        "== ruff format --check",
        "== mypy",
        "== pytest -n auto --dist loadgroup tests/test_pack.py -k a name",
    ]
    assert done.stdout.splitlines()[-3:] == ["tests/test_pack.py", "-k", "a name"]


@pytest.mark.parametrize("change", ["pyproject.toml", "place", "purpose", "no stamp", "unreadable stamp"])
def test_an_environment_that_no_longer_fits_is_not_ready(change: str, clone: Path, tmp_path: Path) -> None:
    finish_environment(clone, "run")
    if change == "pyproject.toml":
        (clone / "pyproject.toml").write_text("")
    elif change == "place":
        clone = clone.rename(tmp_path / "moved")
    elif change == "no stamp":
        (clone / ".venv/fwconvert-stamp").unlink()
    elif change == "unreadable stamp":
        (clone / ".venv/fwconvert-stamp").write_bytes(b"\xff")
    purpose = "test" if change == "purpose" else "run"
    check = [sys.executable, "-IS", str(clone / "scripts/set_up.py"), "check", purpose]
    assert subprocess.run(check, check=False).returncode == 1


def test_an_environment_of_somebody_else_is_refused_and_left_alone(clone: Path) -> None:
    (clone / ".venv").mkdir()
    (clone / ".venv/pyvenv.cfg").write_text("mine")
    done = call(clone / "scripts/run", PYTHON=sys.executable)
    assert done.returncode == 2
    assert "was not made by these scripts" in done.stderr
    assert [path.name for path in (clone / ".venv").iterdir()] == ["pyvenv.cfg"]


def test_a_set_up_that_fails_shows_why_and_leaves_no_stamp(clone: Path) -> None:
    python = fake_python(clone / ".venv/bin/python", "echo the reason; exit 3")
    set_up = runpy.run_path(str(clone / "scripts/set_up.py"))
    (clone / ".venv/fwconvert-lock").touch()
    (clone / ".venv/fwconvert-stamp").write_text(set_up["base"]())
    done = call(clone / "scripts/run", PYTHON=sys.executable)
    assert done.returncode == 1
    assert "the reason" in done.stderr
    assert "could not be made" in done.stderr
    assert python.exists()
    assert not (clone / ".venv/fwconvert-stamp").exists()


def test_the_development_tools_are_those_of_the_project(clone: Path) -> None:
    (clone / "pyproject.toml").write_text(
        '[dependency-groups]\nlint = ["ruff"]\ndev = ["pytest>=8", {include-group = "lint"}]\n'
    )
    set_up = runpy.run_path(str(clone / "scripts/set_up.py"))
    assert set_up["group"]("dev") == ["pytest>=8", "ruff"]
    assert set_up["commands"]("test", mendable=True)[0][-2:] == ["pytest>=8", "ruff"]
    assert "ruff" not in set_up["commands"]("run", mendable=True)[0]


def test_only_who_fuzzes_waits_for_the_fuzzer() -> None:
    set_up = runpy.run_path(str(SOURCE / "scripts/set_up.py"))
    tools = {purpose: set_up["commands"](purpose, mendable=True)[0] for purpose in set_up["GOOD_FOR"]}
    with_fuzzer = {purpose for purpose, words in tools.items() if any("atheris" in word for word in words)}
    assert with_fuzzer == {"fuzz"}
    assert {*tools["test"]} < {*tools["fuzz"]}


@pytest.mark.parametrize("words", [["--list"], ["where", "--input", "a file"]])
def test_inputs_are_played_again_in_an_environment_without_the_fuzzer(words: list[str], clone: Path) -> None:
    finish_environment(clone, "run")
    done = call(clone / "scripts/fuzz", *words, PYTHON="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-len(words) :] == words
