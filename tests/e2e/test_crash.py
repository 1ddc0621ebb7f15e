"""Kill it anywhere, run it again: the bytes are those of a run that nobody disturbed.

Moments are chosen by how far a run is, not by the clock, so that they fall all
over it on a fast machine as on a slow one: after so many jobs and joined shards
are done, and then a random while later.
"""

import json
import logging
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus
import psutil
import pytest
import runner
from runner import finish, litter, outliving, running, steps, tree, wait_until

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has neither SIGKILL nor process groups")

# Shown with a test that fails, so that its moments can be repeated.
LOG = logging.getLogger(__name__)
SEED = int(os.environ.get("FWCONVERT_TEST_SEED", "20240520"))

FILES = 12
RECIPE: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 3000, "workers": 2}
STREAM: dict[str, Any] = {**RECIPE, "shard_tokens": 4000, "layout": "contiguous"}


@dataclass(frozen=True)
class Undisturbed:
    """A finished run, and how many jobs and joined shards it took."""

    sources: Path
    out: Path
    recipe: dict[str, Any]
    tree: dict[str, str]
    steps: int


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed(tmp_path_factory.mktemp("golden"), RECIPE)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed(tmp_path_factory.mktemp("stream"), STREAM)


def undisturbed(folder: Path, recipe: dict[str, Any]) -> Undisturbed:
    sources = corpus.equal_sources(folder / "sources", files=FILES, rows=80)
    assert runner.convert(sources, folder / "out", **recipe).complete
    taken = steps(folder / "out")
    assert taken >= FILES + 5, "the join is too short for a kill to fall into it"
    return Undisturbed(sources, folder / "out", recipe, tree(folder / "out"), taken)


@dataclass(frozen=True)
class Moment:
    """When to strike: after a part of the steps, and then some seconds later."""

    part: float
    seconds: float

    @classmethod
    def random(cls, name: str, low: float = 0.0, high: float = 1.0) -> "Moment":
        """Return a moment between two parts of a run, the same one in every session of the tests."""
        LOG.warning("FWCONVERT_TEST_SEED=%s, moment %r", SEED, name)
        generator = random.Random(f"{SEED} {name}")
        part = generator.uniform(low, high)
        return cls(part, generator.uniform(0, 0.4 if part < 1 / 20 else 0.04))

    def wait(self, process: "subprocess.Popen[str]", out: Path, golden: Undisturbed) -> None:
        """Wait for the moment, or for the end of the conversion."""
        wanted = int(self.part * golden.steps)
        wait_until((out / runner.PRIVATE / "plan.json").exists, process)
        wait_until(lambda: steps(out) >= wanted, process)
        # Sooner with each run that was quicker than the strike: see in_time, which numbers the folders.
        time.sleep(self.seconds / 2 ** (int(out.name) if out.name.isdigit() else 0))


def assert_resume_equals(golden: Undisturbed, out: Path) -> None:
    """Run the same command again: it ends well, and the folder is that of an undisturbed run."""
    runner.assert_tidy_end(runner.run(golden.sources, out, **golden.recipe), 0)
    assert tree(out) == golden.tree
    assert litter(out) == []


def in_time(strike: Callable[[Path], bool], folder: Path) -> Path:
    """Strike runs, each in a folder of its own, until one was not through by then; return its folder."""
    for attempt in range(9):
        out = folder / str(attempt)
        if strike(out):
            return out
    raise AssertionError("every run was quicker than the strike")


def kill(golden: Undisturbed, out: Path, moment: Moment) -> int:
    """Kill -9 a conversion and return how it ended; no process of it is alive two seconds later."""
    with running(golden.sources, out, **golden.recipe) as process:
        moment.wait(process, out, golden)
        process.kill()
        process.wait()
        LOG.warning("ended by %s after %s of %s steps", process.returncode, steps(out), golden.steps)
        assert process.returncode in (-signal.SIGKILL, 0)
        assert outliving(process) == []
        return process.returncode


def test_a_receipt_is_published_after_every_file_that_it_names(golden: Undisturbed) -> None:
    """No kill can be timed to fall between the two, but the file system remembers their order."""
    names = [*golden.out.glob(f"{runner.PRIVATE}/receipts/*"), *golden.out.glob(f"{runner.PRIVATE}/joins/*")]
    assert len(names) == golden.steps
    for receipt in names:
        record = json.loads(receipt.read_text())
        for line in record["shards"] if "shards" in record else [record["shard"]]:
            index = golden.out / "index" / Path(line["name"]).with_suffix(".docs")
            for file in (golden.out / line["name"], index):
                assert file.stat().st_ctime_ns <= receipt.stat().st_ctime_ns


@pytest.mark.parametrize("tenth", range(5))
def test_a_run_killed_in_its_first_half_and_again_in_its_second_goes_on_to_equal_bytes(
    tenth: int, golden: Undisturbed, stream: Undisturbed, tmp_path: Path
) -> None:
    """Ten moments in all, on both layouts in turn; the join is in the second half."""
    golden = (golden, stream)[tenth % 2]
    early = Moment.random(f"kill {tenth}", tenth / 10, (tenth + 1) / 10)
    late = Moment.random(f"kill {tenth + 5}", (tenth + 5) / 10, (tenth + 6) / 10)
    out = in_time(lambda out: kill(golden, out, early) == -signal.SIGKILL, tmp_path)
    kill(golden, out, late)  # Or it is quicker than the kill.
    assert_resume_equals(golden, out)


@pytest.mark.parametrize("joining", [False, True], ids=["while converting", "while joining"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_cleanly_and_the_run_goes_on_to_equal_bytes(
    number: signal.Signals, joining: bool, golden: Undisturbed, stream: Undisturbed, tmp_path: Path
) -> None:
    # One stream has few jobs and many joined shards, so that its join is long enough to be hit for sure.
    golden, low, high = (stream, 0.25, 0.5) if joining else (golden, 0.0, 0.4)
    moment = Moment.random(f"{number.name} {joining}", low, high)
    # Ctrl-C reaches the workers too; so does what a batch system sends, or it does not.
    send: Callable[[int, int], None] = os.kill if number == signal.SIGTERM and joining else os.killpg

    def stops(out: Path) -> bool:
        with running(golden.sources, out, **golden.recipe) as process:
            moment.wait(process, out, golden)
            with suppress(ProcessLookupError):
                send(process.pid, number)
            ended = finish(process)
            assert outliving(process) == []
        if steps(out) == golden.steps:
            return False
        runner.assert_tidy_end(ended, 128 + number)
        return True

    out = in_time(stops, tmp_path)
    assert list(out.glob(f"{runner.PRIVATE}/temporary/*")) == []
    assert_resume_equals(golden, out)


def test_a_signal_while_workers_start_is_no_traceback(golden: Undisturbed, tmp_path: Path) -> None:
    with running(golden.sources, tmp_path, **golden.recipe) as process:
        wait_until(lambda: runner.workers(process), process)
        os.killpg(process.pid, signal.SIGINT)
        runner.assert_tidy_end(finish(process), 130)
    logs = [path.read_text() for path in tmp_path.glob(f"{runner.PRIVATE}/logs/*")]
    assert not any("Traceback" in log for log in logs)


def test_a_lost_terminal_means_nothing_to_a_run_under_nohup(golden: Undisturbed, tmp_path: Path) -> None:
    line = ["nohup", *runner.command(golden.sources, tmp_path / "o", **golden.recipe)]
    with subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(runner.REPOSITORY)},
    ) as process:
        wait_until(lambda: steps(tmp_path / "o") >= 1, process)
        assert process.poll() is None, "the run was quicker than the signal"
        os.killpg(process.pid, signal.SIGHUP)
        runner.assert_tidy_end(finish(process), 0)
    assert tree(tmp_path / "o") == golden.tree


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """A worker stops between two batches, and a word of 50 million letters takes long to encode.

    Without the second signal it would have ten seconds. The first must have been noticed by then: two that
    wait together are one.
    """
    corpus.write(tmp_path / "sources" / "0.parquet", ["document" * 6_000_000])
    with running(tmp_path / "sources", tmp_path / "out", tokenizer="gpt2", workers=1) as process:
        wait_until(lambda: list(tmp_path.glob(f"out/{runner.PRIVATE}/temporary/*.0.parquet-*")), process)
        process.terminate()
        time.sleep(3)
        assert process.poll() is None, "the first signal should wait for the worker"
        process.terminate()
        begun = time.monotonic()
        runner.assert_tidy_end(finish(process), 143)
        assert time.monotonic() - begun < 6
        assert outliving(process) == []
    assert list(tmp_path.glob(f"out/{runner.PRIVATE}/temporary/*")) == []


@pytest.mark.parametrize("joining", [False, True], ids=["converting", "joining"])
def test_a_run_survives_the_death_of_its_workers(
    joining: bool, golden: Undisturbed, stream: Undisturbed, tmp_path: Path
) -> None:
    golden, low, high = (stream, 0.3, 0.5) if joining else (golden, 0.0, 0.5)

    def survives(out: Path) -> bool:
        killed = 0
        with running(golden.sources, out, **golden.recipe) as process:
            for strike in range(3):
                Moment.random(f"worker {low} {strike}", low, high).wait(process, out, golden)
                for victim in runner.workers(process)[:1]:
                    with suppress(psutil.NoSuchProcess):
                        victim.kill()
                        killed += steps(out) < golden.steps
            runner.assert_tidy_end(finish(process), 0)
        assert tree(out) == golden.tree
        assert litter(out) == []
        return killed > 0

    in_time(survives, tmp_path)


def test_a_worker_that_dies_with_nothing_to_do_is_replaced(tmp_path: Path) -> None:
    """The first worker waits for the join while the second is busy with a word of a million letters."""
    sources, out = tmp_path / "sources", tmp_path / "out"
    corpus.write(sources / "0.parquet", ["document 0"])
    corpus.write(sources / "1.parquet", ["document" * 180_000])
    with running(sources, out, tokenizer="gpt2", workers=2) as process:
        wait_until(lambda: steps(out) == 1, process)
        time.sleep(0.2)
        idle = min(runner.workers(process), key=lambda worker: worker.create_time())
        idle.kill()
        runner.assert_tidy_end(finish(process), 0)
    assert litter(out) == []


def test_no_thread_of_a_pool_outlives_the_run(tmp_path: Path) -> None:
    """Python wakes such threads when it ends, and prints a traceback if one closes its pipe just then."""
    sources = corpus.equal_sources(tmp_path / "sources", files=4, rows=5)
    before = set(threading.enumerate())
    for number in range(3):
        out = tmp_path / str(number)
        assert runner.convert(sources, out, workers=4, tokenizer="bytes", shard_tokens=1000).complete
        assert set(threading.enumerate()) <= before
