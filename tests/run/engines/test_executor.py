"""Conversions on executors that somebody else owns: equal bytes, resumable, and clear when they break."""

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import corpus
import engines
import forked
import pytest
import runner
from runner import PRIVATE, Notices

import fwconvert
from fwconvert import FwconvertError, Result, Snapshot, StopSwitch
from fwconvert.run import scheduler
from fwconvert.run.engines.executor import ExecutorEngine

FILES = 6
RECIPE: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 500, "val_tokens": 500}


def processes(count: int, gate: Path | None = None) -> ProcessPoolExecutor:
    """Return a pool of processes, which begin to work when the file `gate` is there."""
    spawn = multiprocessing.get_context("spawn")
    if gate is None:
        return ProcessPoolExecutor(count, mp_context=spawn)
    return ProcessPoolExecutor(count, mp_context=spawn, initializer=wait_for, initargs=(gate,))


def wait_for(gate: Path) -> None:
    while not gate.exists():
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _quick_starts() -> Iterator[None]:
    with forked.workers():
        yield


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.equal_sources(tmp_path_factory.mktemp("executor") / "sources", files=FILES, rows=20)


@pytest.fixture(scope="module")
def golden(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What processes of our own make of the sources."""
    out = tmp_path_factory.mktemp("executor") / "out"
    assert runner.convert(sources, out, **RECIPE).complete
    return runner.tree(out)


class Watch(Notices):
    """An observer that keeps what it is shown, and does something once orders are in flight."""

    def __init__(self, act: Callable[[Snapshot], object] | None = None) -> None:
        super().__init__()
        self.switch = StopSwitch()
        self.snapshots: list[Snapshot] = []
        self._act = act

    def update(self, snapshot: Any) -> None:
        self.snapshots.append(snapshot)
        if self._act is not None and snapshot.running:
            self._act(snapshot)


def convert(sources: Path, out: Path, engine: ExecutorEngine, watch: Watch | None = None) -> Result:
    recipe = fwconvert.recipe(source=str(sources), **RECIPE)
    watch = watch or Watch()
    return fwconvert.convert(recipe, out, engine=engine, observer=watch, stop=watch.switch)


def receipts(out: Path) -> int:
    return len(list((out / PRIVATE / "receipts").glob("*.json")))


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, processes])
def test_any_executor_makes_the_bytes_of_our_own_processes_and_is_not_shut_down(
    pool: Callable[[int], Executor], sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    with pool(2) as executor:
        engine = ExecutorEngine(executor, slots=2)
        for name in ("once", "again"):
            assert convert(sources, tmp_path / name, engine).complete
            assert runner.tree(tmp_path / name) == golden
        assert executor.submit(abs, -1).result() == 1


# --- progress and stop requests


class HeldReporter:
    """Passes on what an order says; once it has made tokens, holds it until it is asked to stop."""

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter
        self._holds = False
        self.show, self.beat = reporter.show, reporter.beat

    def show_text(self, tokens: int, text_bytes: int) -> None:
        self._reporter.show_text(tokens, text_bytes)
        self._holds = tokens > 0

    def check(self) -> None:
        self._reporter.check()
        deadline = time.monotonic() + runner.PATIENCE
        while self._holds and time.monotonic() < deadline:
            self._reporter.check()
            time.sleep(0.01)


class HeldThreads(ThreadPoolExecutor):
    """Threads whose orders end by a stop request alone."""

    def submit(self, fn: Any, /, order: Any, reporter: Any) -> "Future[Any]":  # type: ignore[override]
        return super().submit(fn, order, HeldReporter(reporter))


def test_threads_tell_how_far_they_are_and_stop_in_the_middle_of_an_order(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def stop_both(snapshot: Snapshot) -> None:
        if [progress.tokens > 0 for progress in snapshot.running] == [True, True]:
            watch.switch.ask()

    watch = Watch(stop_both)
    with HeldThreads(2) as executor:
        result = convert(sources, out, ExecutorEngine(executor, slots=2), watch)

    assert (result.complete, result.stopped, receipts(out)) == (False, True, 0)
    assert all(0 < progress.fraction <= 1 for progress in watch.snapshots[-1].running)
    with ThreadPoolExecutor(2) as threads:
        assert convert(sources, out, ExecutorEngine(threads, slots=2)).complete
    assert runner.tree(out) == golden


def test_processes_tell_nothing_and_finish_what_they_have_begun_when_asked_to_stop(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    gate = tmp_path / "gate"

    class Stopped(ExecutorEngine):
        """Lets the processes begin when what waits has been withdrawn; sooner, they might do all of it."""

        def stop(self) -> None:
            super().stop()
            gate.touch()

    def stop(_: Snapshot) -> None:
        watch.switch.ask()

    watch = Watch(stop)
    with processes(1, gate) as executor:
        # Orders wait in the executor, too: it has fewer workers than the engine was told.
        engine = Stopped(executor, slots=FILES)
        result = convert(sources, out, engine, watch)

        assert (result.complete, result.stopped) == (False, True)
        # Python gives a worker one or two orders ahead; those count as begun.
        assert 0 < receipts(out) < FILES
        seen = {(order.fraction, order.tokens) for snapshot in watch.snapshots for order in snapshot.running}
        assert seen == {(0.0, 0)}

        assert convert(sources, out, engine).complete
    assert runner.tree(out) == golden


# --- executors that fail


def kill_a_worker(_: Snapshot) -> None:
    for worker in multiprocessing.active_children()[:1]:
        worker.kill()


def test_a_pool_that_lost_a_worker_is_told_and_the_same_call_continues_with_a_new_one(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    # They never begin, so one is killed in time.
    with processes(2, tmp_path / "shut") as executor, pytest.raises(FwconvertError) as told:
        convert(sources, out, ExecutorEngine(executor, slots=2), Watch(kill_a_worker))

    assert "the executor is broken" in str(told.value)
    assert "BrokenProcessPool" in str(told.value)
    assert "with a new executor: it continues where it stopped" in str(told.value)
    assert not list((out / PRIVATE / "quarantine").glob("*"))
    with processes(2) as executor:
        assert convert(sources, out, ExecutorEngine(executor, slots=2)).complete
    assert runner.tree(out) == golden


def test_a_pool_that_was_broken_before_is_told(sources: Path, tmp_path: Path) -> None:
    with processes(1) as executor:
        broken = executor.submit(time.sleep, runner.PATIENCE)
        multiprocessing.active_children()[0].kill()
        assert broken.exception() is not None

        with pytest.raises(FwconvertError, match="the executor is broken"):
            convert(sources, tmp_path / "out", ExecutorEngine(executor, slots=1))


def carry_out_unless(poison: str, fn: Any, order: Any, reporter: Any) -> Any:
    if order.title == poison:
        os.kill(os.getpid(), signal.SIGKILL)
    return fn(order, reporter)


class Poisoned(ProcessPoolExecutor):
    """Processes that one source kills, each time."""

    def submit(self, fn: Any, /, order: Any, reporter: Any) -> "Future[Any]":  # type: ignore[override]
        return super().submit(carry_out_unless, "02.parquet", fn, order, reporter)


def test_a_source_that_breaks_every_pool_is_set_aside_and_costs_the_others_one_try_at_most(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    out, watch, made = tmp_path / "out", Watch(), []

    def pool() -> Executor:
        made.append(Poisoned(3, mp_context=multiprocessing.get_context("spawn")))
        return made[-1]

    result = convert(sources, out, ExecutorEngine(pool, slots=3), watch)

    assert [failed.path for failed in result.failed] == ["02.parquet"]
    assert receipts(out) == FILES - 1
    attempts = Counter(text.partition(":")[0] for text in watch.texts if ": attempt" in text)
    assert attempts.pop("02.parquet") == scheduler.LOST_TRIES
    assert all(count == 1 for count in attempts.values())
    with pytest.raises(RuntimeError):  # What was made here is shut down here.
        made[-1].submit(abs, -1, None)
    with processes(2) as executor:
        assert convert(sources, out, ExecutorEngine(executor, slots=2)).complete
    assert runner.tree(out) == golden


def test_a_pool_that_lost_a_worker_is_made_anew_if_we_are_told_how(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    killed: list[Snapshot] = []
    out, gate = tmp_path / "out", tmp_path / "gate"

    def kill_once(snapshot: Snapshot) -> None:
        if not killed:
            killed.append(snapshot)
            kill_a_worker(snapshot)
            gate.touch()

    engine = ExecutorEngine(lambda: processes(2, gate), slots=2)
    assert convert(sources, out, engine, Watch(kill_once)).complete
    assert killed
    assert runner.tree(out) == golden


class Refusing(engines.AtOnce):
    """Refuses so many orders before it takes one."""

    def __init__(self, times: int) -> None:
        self.refused = 0
        self._times = times

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        if self.refused < self._times:
            self.refused += 1
            raise ConnectionError("the cluster is away")
        return super().submit(fn, *args, **kwargs)


def test_an_executor_that_refuses_an_order_is_asked_again(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    watch, executor = Watch(), Refusing(2)

    assert convert(sources, tmp_path / "out", ExecutorEngine(executor, slots=1), watch).complete

    assert executor.refused == 2
    assert watch.mention("the cluster is away")
    assert runner.tree(tmp_path / "out") == golden


def test_an_executor_that_takes_no_order_is_told_and_the_same_call_continues(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shut = ThreadPoolExecutor(1)
    shut.shutdown()

    for executor, reason in ((Refusing(10**9), "the cluster is away"), (shut, "shutdown")):
        with pytest.raises(FwconvertError) as told:
            convert(sources, out, ExecutorEngine(executor, slots=2))
        assert "the executor takes no order" in str(told.value)
        assert reason in str(told.value)
        assert "it continues where it stopped" in str(told.value)

    assert receipts(out) == 0
    assert convert(sources, out, engines.inline()).complete
    assert runner.tree(out) == golden
