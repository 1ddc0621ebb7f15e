"""The scripts of a clone, as far as can be told without the network: no environment is made here."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2]
SCRIPTS = (
    "scripts/run", "scripts/test", "scripts/bench", "scripts/fuzz", "scripts/torture", "scripts/worlds",
    "scripts/disagreements", "scripts/lock", ".ci/run",
)  # fmt: skip

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


@pytest.mark.parametrize("name", [*SCRIPTS, "scripts/slurm.sbatch"])
def test_a_script_can_be_executed(name: str) -> None:
    assert os.access(SOURCE / name, os.X_OK)


@pytest.mark.parametrize("name", [*SCRIPTS, "scripts/environment", "scripts/slurm.sbatch"])
def test_bash_can_read_a_script(name: str) -> None:
    subprocess.run(["bash", "-n", SOURCE / name], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    scripts = [*SCRIPTS, "scripts/environment", "scripts/slurm.sbatch"]
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
    done = call(clone / name, "--version", PYTHON=str(old))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Python 3.11 or newer" in done.stderr
    assert f"tried  {old}" in done.stderr
    assert not (clone / ".venv").exists()


def test_the_first_python_that_works_is_taken(clone: Path, tmp_path: Path) -> None:
    fake_python(tmp_path / "bin/python3", "echo 'pyenv: python3: command not found' >&2", "exit 127")
    fake_python(tmp_path / "bin/python3.14", "exit 1")
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


@pytest.mark.parametrize("purpose", ["run", "test", "fuzz", "everything"])
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
    done = call(clone / "scripts/test", "tests/test_pack.py", "-k", "a name", where=tmp_path, PYTHON="")
    cores = os.cpu_count() or 1
    assert [line for line in done.stdout.splitlines() if line.startswith("==")] == [
        "== ruff check",
        "== ruff format --check",
        "== mypy",
        f"== pytest -n {cores + 1} --dist loadgroup tests/test_pack.py -k a name",
    ]
    assert done.stdout.splitlines()[-3:] == ["tests/test_pack.py", "-k", "a name"]


@pytest.mark.parametrize("name", ["scripts/test", ".ci/run"])
def test_help_is_given_at_once(name: str, clone: Path) -> None:
    for words in (["--everything", "--help"], ["-k", "a name", "-h"]):
        done = call(clone / name, *words, PYTHON="/no/python")
        assert (done.returncode, done.stderr) == (0, "")
        assert "  scripts/test --everything  " in done.stdout
        assert "set -euo pipefail" not in done.stdout


# What scripts/test --everything wants, but for what lies where PATH need not lead.
ELSEWHERE = "/usr/sbin:/sbin"
WANTED = [
    package
    for program, package in {
        "chromedriver": "chromium-driver", "chromium": "chromium", "fish": "fish",
        "mkfs.ext4": "e2fsprogs", "mkfs.xfs": "xfsprogs", "munged": "munge", "sbatch": "slurm-client",
        "setpriv": "util-linux", "shellcheck": "shellcheck", "slurmctld": "slurmctld", "slurmd": "slurmd",
        "strace": "strace", "zsh": "zsh", "zstd": "zstd",
    }.items()
    if shutil.which(program, path=ELSEWHERE) is None
]  # fmt: skip


@pytest.fixture
def bare(clone: Path, tmp_path: Path) -> Path:
    """Return the one folder on PATH: without what tests start, with an apt-get that notes what it is told."""
    finish_environment(clone, "everything")
    folder = tmp_path / "bin"
    fake_python(folder / "apt-get", f'echo "$@" >> "{tmp_path}/asked"; echo said by apt-get')
    fake_python(folder / "id", "echo 0")
    for name in ("bash", "dirname", "realpath", "sed"):
        (folder / name).symlink_to(shutil.which(name) or "")
    return folder


def test_root_on_debian_gets_the_programs_that_are_missing(clone: Path, bare: Path, tmp_path: Path) -> None:
    done = call(clone / ".ci/run", "tests/test_pack.py", "-k", "a name", PATH=str(bare), PYTHON="")
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["update", " ".join(["install --yes --no-install-recommends", *WANTED])]
    assert done.stderr == f"fwconvert: installing Debian packages: {' '.join(WANTED)}\n"
    assert done.stdout.splitlines()[-3:] == ["tests/test_pack.py", "-k", "a name"]


@pytest.mark.parametrize("why", ["no root", "no apt-get", "apt-get fails"])
def test_programs_that_cannot_be_had_are_told_and_the_tests_run(why: str, clone: Path, bare: Path) -> None:
    if why == "no root":
        fake_python(bare / "id", "echo 1000")
    elif why == "no apt-get":
        (bare / "apt-get").unlink()
    else:
        fake_python(bare / "apt-get", "echo the reason; exit 100")
    done = call(clone / "scripts/test", "tests", "--everything", PATH=str(bare), PYTHON="")
    assert done.returncode == 0
    assert f"  -> as root on Debian or Ubuntu: apt-get install {' '.join(WANTED)}\n" in done.stderr
    assert ("the reason" in done.stderr) == (why == "apt-get fails")
    assert done.stdout.splitlines()[-1] == "tests"


def test_a_system_that_has_all_programs_is_left_alone(clone: Path, bare: Path, tmp_path: Path) -> None:
    programs = (
        "chromedriver",
        "chromium",
        "fish",
        "mkfs.ext4",
        "mkfs.xfs",
        "munged",
        "sbatch",
        "setpriv",
        "shellcheck",
        "slurmctld",
        "slurmd",
        "strace",
        "zsh",
        "zstd",
    )
    for name in programs:
        fake_python(bare / name)
    done = call(clone / "scripts/test", "--everything", PATH=str(bare), PYTHON="")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "asked").exists()


def test_plain_tests_ask_nothing_of_the_system(clone: Path, bare: Path, tmp_path: Path) -> None:
    done = call(clone / "scripts/test", PATH=str(bare), PYTHON="")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    "change",
    ["pyproject.toml", "scripts/requirements/run.txt", "place", "purpose", "no stamp", "unreadable stamp"],
)
def test_an_environment_that_no_longer_fits_is_not_ready(change: str, clone: Path, tmp_path: Path) -> None:
    finish_environment(clone, "run")
    if (clone / change).is_file():
        (clone / change).write_text("")
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


@pytest.mark.parametrize("purpose", ["run", "test", "fuzz", "everything"])
def test_what_is_installed_has_hashes_but_for_the_clone_and_pytorch(purpose: str, clone: Path) -> None:
    set_up = runpy.run_path(str(clone / "scripts/set_up.py"))
    listed, itself, *more = [
        [word for word in words[4:] if word != "--no-compile"]
        for words in set_up["commands"](purpose, mendable=True)
    ]
    file = str(clone / f"scripts/requirements/{purpose}.txt")
    assert listed == ["install", "--no-deps", "--require-hashes", "--requirement", file]
    assert itself == ["install", "--no-deps", "--no-build-isolation", "--editable", str(clone)]
    assert [words[1].split(";")[0] for words in more] == (
        ["torch==2.13.0"] if purpose == "everything" else []
    )


@pytest.mark.parametrize("words", [["--list"], ["where", "--input", "a file"]])
def test_inputs_are_played_again_in_an_environment_without_the_fuzzer(words: list[str], clone: Path) -> None:
    finish_environment(clone, "run")
    done = call(clone / "scripts/fuzz", *words, PYTHON="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-len(words) :] == words


@pytest.fixture
def lock_maker(tmp_path: Path) -> Path:
    """Return a Python whose environments have a uv that writes down what it was asked, and keeps the rest."""
    return fake_python(
        tmp_path / "maker",
        'if [[ $3 == venv ]]; then mkdir -p "$5/bin" && cp "$0" "$5/bin/python"; fi',
        "if [[ $3 == uv ]]; then",
        '  [[ $8 != "${SPOILED-}" ]] || exit 1',
        '  if [[ -e ${10} ]]; then kept=$(<"${10}"); fi',
        '  echo "${kept-} $8 ${*:11:2}" >"${10}"',
        "fi",
    )


@pytest.mark.parametrize(("words", "newest"), [([], "--upgrade --universal"), (["-P", "numpy"], "-P numpy")])
def test_one_command_writes_all_lists_anew(
    words: list[str], newest: str, clone: Path, lock_maker: Path, tmp_path: Path
) -> None:
    (clone / "scripts/requirements/everything.txt").write_text("old")
    done = call(clone / "scripts/lock", *words, where=tmp_path, PYTHON=str(lock_maker))
    assert done.returncode == 0, done.stderr
    written = {path.stem: path.read_text() for path in (clone / "scripts/requirements").iterdir()}
    everything = f"old everything {newest}\n"
    # The others begin with what was chosen for everything, so that they choose the same.
    lists = {
        name: f"{everything.strip()} {name} --universal --python-version\n"
        for name in ("run", "test", "fuzz")
    }
    assert written == {"everything": everything, **lists}


@pytest.mark.parametrize("spoiled", ["everything", "fuzz"])
def test_a_list_that_cannot_be_made_changes_none(spoiled: str, clone: Path, lock_maker: Path) -> None:
    before = {path: path.read_bytes() for path in (clone / "scripts/requirements").iterdir()}
    done = call(clone / "scripts/lock", PYTHON=str(lock_maker), SPOILED=spoiled)
    assert done.returncode == 1
    assert {path: path.read_bytes() for path in (clone / "scripts/requirements").iterdir()} == before
