"""Workers on this machine that are started before there is an order for them."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import forked
import psutil
import pytest
import runner
from examples import RULES

from fwconvert.errors import EndedApart
from fwconvert.job.orders import Failure, JoinOrder, RunContext
from fwconvert.processes import ProcessLimits
from fwconvert.run.engines.local import LocalEngine

NO_LIMITS = ProcessLimits()


@pytest.fixture(autouse=True)
def _quick_starts() -> Iterator[None]:
    with forked.workers():
        yield


def own_pid(_: None) -> int:
    return os.getpid()


def die_by(number: int) -> None:
    os.kill(os.getpid(), number)


def context_of(out: Path) -> RunContext:
    return RunContext(run=str(out), recipe_id="", rules=RULES, session="test")


def order_of(out: Path) -> JoinOrder:
    return JoinOrder(context_of(out), "shard", "train", (), ())


def test_a_worker_that_survives_a_trial_takes_the_orders(tmp_path: Path) -> None:
    with LocalEngine(2) as engine:
        engine.warm_up(1)
        pid = engine.call_apart(own_pid, None, NO_LIMITS)
        future = engine.submit(order_of(tmp_path))
        future.result()
        engine.outcome(future)

        assert engine.call_apart(own_pid, None, NO_LIMITS) == pid

    assert not psutil.pid_exists(pid)


@pytest.mark.skipif(not hasattr(signal, "SIGILL"), reason="there is no such signal here")
def test_a_trial_that_ends_its_worker_costs_that_worker_alone(tmp_path: Path) -> None:
    with LocalEngine(1) as engine:
        engine.warm_up(1)
        first = engine.call_apart(own_pid, None, NO_LIMITS)

        with pytest.raises(EndedApart, match="its process was ended by SIGILL"):
            engine.call_apart(die_by, int(signal.SIGILL), NO_LIMITS)

        # There is no folder to write to, as the next worker says.
        future = engine.submit(order_of(tmp_path / "nowhere"))
        future.result()
        outcome = engine.outcome(future)
        assert isinstance(outcome, Failure)
        assert outcome.kind == "output"
        assert engine.call_apart(own_pid, None, NO_LIMITS) != first


def test_no_more_workers_are_warmed_up_than_there_are_slots(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}

    def workers() -> list[psutil.Process]:
        spawned = [child for child in psutil.Process().children() if child.pid not in before]
        return [child for child in spawned if any("spawn_main" in word for word in child.cmdline())]

    with LocalEngine(2) as engine:
        engine.warm_up(5, context_of(tmp_path))
        ends = time.monotonic() + runner.PATIENCE
        while len(workers()) < 2 and time.monotonic() < ends:  # A process gets its words after it is there.
            time.sleep(0.01)
        found = workers()
        assert len(found) == 2

    assert not [child for child in found if child.is_running()]


def test_a_worker_that_started_early_prints_into_the_log_of_its_run(tmp_path: Path) -> None:
    logs = tmp_path / ".fwconvert" / "logs"
    logs.mkdir(parents=True)
    with LocalEngine(1) as engine:
        engine.call_apart(print_line, "before there was a run", NO_LIMITS)
        future = engine.submit(order_of(tmp_path))
        future.result()
        engine.outcome(future)
        engine.call_apart(print_line, "in the run", NO_LIMITS)

    assert [log.read_text("utf-8") for log in logs.iterdir()] == ["in the run\n"]


def print_line(text: str) -> None:
    os.write(2, f"{text}\n".encode())
