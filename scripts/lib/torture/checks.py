"""What is done to the program, one fault at a time, and what must hold after it.

Each check makes a run go wrong, then runs the same command again, and returns
the problems that it found: none if the bytes are those of an undisturbed run,
nothing is left behind, `verify` passes, no process survives and there was no
traceback. Checks run in processes that have everything loaded and keep a
scratch folder of their own.
"""

import atexit
import ctypes
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from fwconvert.job import encoded, worker
from fwconvert.processes import ProcessLimits
from fwconvert.shards.cutting import Batch
from torture.disks import Disk, ShrinkingDisk
from torture.faults import Fault, Interposer, Point
from torture.testbed import INJECTED, SCENARIOS, Result, Testbed, prepare

# Exit codes that a person can act on: done, not done, refused.
_ORDERLY = {0, 1, 2}


@cache
def scratch() -> Path:
    """Return the scratch folder of this process, in memory where possible."""
    prepare()
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="fwconvert-torture-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def testbed_of(scenario: int) -> Testbed:
    """Return this process's testbed for a scenario."""
    folder = scratch() / f"scenario-{scenario}"
    return Testbed.made(SCENARIOS[scenario], folder, folder / "out")


@cache
def disk_of(kind: str, options: str) -> Disk:
    """Return this process's disk of a kind."""
    folder = Path(tempfile.mkdtemp(prefix="fwconvert-disk-"))
    disk = Disk(kind, folder, options)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(disk.close)
    return disk


@cache
def testbed_on(kind: str, scenario: int, options: str) -> Testbed:
    """Return this process's testbed for a scenario on a disk."""
    folder = scratch() / f"{kind}-{options}-{scenario}"
    return Testbed.made(SCENARIOS[scenario], folder, disk_of(kind, options).path / f"out-{scenario}")


def counted(check: Callable[..., list[str]], *given: object) -> tuple[list[str], int]:
    """Run a check; return the problems that it found, and how many faults were injected at calls."""
    before = INJECTED["faults"]
    problems = check(*given)
    return problems, INJECTED["faults"] - before


def points(scenario: int) -> list[Point]:
    """Return the calls of a scenario that touch the output."""
    return testbed_of(scenario).points


def kill(scenario: int, point: Point) -> list[str]:
    """(1) A process dies at a call."""
    return _inject(testbed_of(scenario), [Fault(point)])


def kill_again(scenario: int, first: Point, second: Point) -> list[str]:
    """(2) A process dies at a call, and again while the run is resumed."""
    return _inject(testbed_of(scenario), [Fault(first), Fault(second)])


def fail_call(scenario: int, point: Point, error: int) -> list[str]:
    """(3) A call fails."""
    return _inject(testbed_of(scenario), [Fault(point, error)])


def power_cut(kind: str, scenario: int, point: Point) -> list[str]:
    """(4) The power fails when a process comes to a call."""
    testbed = testbed_on(kind, scenario, "")
    try:
        result = testbed.session(Fault(point))
        disk_of(kind, "").cut_power()
        return [*exit_problems(result), *_resume(testbed)]
    finally:
        testbed.clear()


def control(kind: str, scenario: int) -> list[str]:
    """Lose power some time after a run that brought nothing to the disk: problems must be found."""
    options = "noauto_da_alloc,commit=1" if kind == "ext4" else ""
    # On a busy machine the kernel may have written everything by then: try again.
    return next((found for _ in range(3) if (found := _lose_power(kind, scenario, options))), [])


def _lose_power(kind: str, scenario: int, options: str) -> list[str]:
    testbed = testbed_on(kind, scenario, options)
    try:
        testbed.session(interposer=Interposer(testbed.out, None, fsync=False))
        time.sleep(2.5)  # Names reach the disk by themselves now; data may not.
        disk_of(kind, options).cut_power()
        return testbed.problems() if (testbed.out / ".fwconvert/temporary").is_dir() else ["the run is gone"]
    finally:
        testbed.clear()


def small_disk(size: int) -> list[str]:
    """(5) The disk has only this many bytes; later it has enough."""
    disk, testbed = _small()
    try:
        disk.resize(size)
        result = testbed.session()
        problems = exit_problems(result)
        if result.code != 0 and "space" not in result.output:
            problems.append(f"does not mention space: {result.output}")
        disk.resize(64 * 2**20)
        return [*problems, *_resume(testbed)]
    finally:
        disk.resize(64 * 2**20)
        testbed.clear()


@cache
def _small() -> tuple[ShrinkingDisk, Testbed]:
    folder = Path(tempfile.mkdtemp(prefix="fwconvert-small-"))
    disk = ShrinkingDisk(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(disk.close)
    return disk, Testbed.made(SCENARIOS[0], scratch() / "small", disk.path / "out")


def poison(scenario: int, kind: str, source: int) -> list[str]:
    """(6) One source kills every process that reads it: it alone is quarantined."""
    testbed = testbed_of(scenario)
    try:
        result = testbed.session(
            before=lambda: _poison(_POISONS[kind], source), limits=ProcessLimits(stall_seconds=5)
        )
        problems = exit_problems(result)
        quarantined = [path.name[:3] for path in (testbed.out / ".fwconvert/quarantine").iterdir()]
        receipts = len([*(testbed.out / ".fwconvert/receipts").iterdir()])
        if result.code != 1 or quarantined != [f"{source:03}"] or receipts != testbed.scenario.files - 1:
            problems.append(
                f"exit {result.code}, quarantined {quarantined}, done {receipts}: {result.output[-300:]}"
            )
        return [*problems, *_resume(testbed)]
    finally:
        testbed.clear()


def two_sessions(scenario: int, delay: float) -> list[str]:
    """(7) Two sessions at once."""
    testbed = testbed_of(scenario)
    try:
        other = os.fork()
        if other == 0:
            time.sleep(delay)
            second = Testbed(testbed.scenario, testbed.sources, testbed.out, testbed.scratch / "second")
            second.scratch.mkdir(exist_ok=True)
            os._exit(second.session().code)
        result = testbed.session()
        code = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
        problems = exit_problems(result)
        if not {result.code, code} <= {0, 2}:
            problems.append(f"exit {result.code} and {code}: {result.output[-300:]}")
        return [*problems, *_resume(testbed)]
    finally:
        testbed.clear()


def random_kills(scenario: int, seed: int) -> list[str]:
    """(8) Processes die at random calls, session after session; then one may finish."""
    testbed, rng = testbed_of(scenario), random.Random(seed)
    problems: list[str] = []
    try:
        for session in range(4):
            role = rng.choice(("driver", "worker"))
            calls = [point for point in testbed.points if point.role == role]
            # Each session finds less to do than the one before.
            problems += exit_problems(testbed.session(Fault(rng.choice(calls).sooner(1 / (session + 1)))))
        return [*problems, *_resume(testbed)]
    finally:
        testbed.clear()


def _inject(testbed: Testbed, faults: list[Fault]) -> list[str]:
    try:
        problems = [problem for fault in faults for problem in exit_problems(testbed.session(fault))]
        return [*problems, *_resume(testbed)]
    finally:
        testbed.clear()


def exit_problems(result: Result) -> list[str]:
    """Return what is wrong with how a session result."""
    problems = []
    if result.code != -signal.SIGKILL and result.code not in _ORDERLY:
        problems.append(f"exit {result.code}: {result.output[-500:]}")
    if "Traceback" in result.output:
        problems.append(f"a traceback: {result.output[-500:]}")
    if result.orphans:
        problems.append(f"{result.orphans} processes survived")
    return problems


def _resume(testbed: Testbed) -> list[str]:
    """Run the same command again, undisturbed; return what is wrong after it."""
    result = testbed.session()
    if result.code != 0:
        return [f"the same command exits with {result.code}: {result.output[-500:]}", *exit_problems(result)]
    return [*exit_problems(result), *testbed.problems()]


class _PanicException(BaseException):
    """As tiktoken raises it."""


def _hang() -> None:
    time.sleep(3600)


def _panic() -> None:
    raise _PanicException("poison")


def _interrupt() -> None:
    raise KeyboardInterrupt


_POISONS: dict[str, Callable[[], object]] = {
    "segmentation fault": lambda: ctypes.string_at(0),
    "killed, as when memory runs out": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "exit": lambda: os._exit(3),
    "panic": _panic,
    "interrupt": _interrupt,
    "hang": _hang,
}
POISONS = tuple(_POISONS)


def _poison(happens: Callable[[], object], source: int) -> None:
    class Poisoned(encoded.EncodedSource):
        def batches(self) -> Iterator[Batch]:
            if self._order.source_index == source:
                happens()
            return super().batches()

    vars(worker)["EncodedSource"] = Poisoned
