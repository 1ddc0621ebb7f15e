"""Every input that the fuzzer begins with, and every one that it has found, through its target.

No fuzzer is needed for that. A target is played in a process of its own, which
may not have much memory: what it promises is that nothing takes the machine down.
"""

import os
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest
import runner

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(runner.REPOSITORY / "scripts/lib")}
SEEDS = Path(__file__).parent / "seeds"
TARGETS = sorted(folder.name for folder in SEEDS.iterdir() if folder.is_dir())

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="wants a limit of memory that is kept")


def fuzz(*words: object, seconds: float = 300) -> "subprocess.CompletedProcess[str]":
    """Run what scripts/fuzz runs, in the environment of these tests."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "fuzz", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        # Whatever a target asks of a hub, it asks of nobody.
        env={**ENVIRONMENT, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1"},
    )


def test_every_target_is_told_and_has_seeds() -> None:
    done = fuzz("--list")

    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_every_seed_is_read_or_refused_within_its_bounds(target: str) -> None:
    done = fuzz(target, "--input", SEEDS / target)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert told.keys() == {path.name for path in (SEEDS / target).iterdir()}
    # Otherwise the target would not reach what lies behind the first check.
    good = {name for name in told if name.startswith("good-")}
    assert good
    assert {told[name] for name in good} == {"read"}, told


def test_seeds_are_small() -> None:
    sizes = [path.stat().st_size for path in SEEDS.rglob("*") if path.is_file()]

    assert max(sizes) <= 8192
    assert sum(sizes) <= 300_000


def test_what_a_target_must_not_raise_is_told_with_its_place() -> None:
    # A target that lets everything through would pass all of the above.
    code = """
from fuzz import targets
def broken(scratch):
    def read(data):
        raise KeyError("nobody foresaw this")
    return read
def hungry(scratch):
    return lambda data: b"x" * (targets.MOST_BYTES + 50_000_000)
for make in (broken, hungry):
    target = targets.Target("x", "x", make, lambda data, dice: data)
    outcome = targets.Runner(target, None).run(b"")
    print(outcome.status, outcome.site)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )

    assert [line.split("-")[0] for line in done.stdout.splitlines()] == ["found KeyError", "found large"]


def test_words_that_make_no_sense_are_refused() -> None:
    for words in (("nonsense",), ("--input", "x"), ("where", "plan", "--input", "x")):
        done = fuzz(*words)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(util.find_spec("atheris") is None, reason="the fuzzer atheris is not installed")
def test_the_fuzzer_reaches_more_than_its_seeds_do(tmp_path: Path) -> None:
    done = fuzz("where", "--seconds", 5, "--findings", tmp_path / "f", "--corpus", tmp_path / "corpus")

    assert "where: " in done.stdout, done.stdout + done.stderr
    assert "NOTHING" not in done.stdout
    assert any((tmp_path / "corpus" / "where").iterdir())
