"""What is done to the program, one fault at a time, and what must hold after it.

Each check makes a run go wrong, then gives the same command again, and returns
the problems that it found: none if the bytes are those of an undisturbed run,
nothing is left behind, `verify` is content, no process lives on and no
traceback was shown. Checks run in lanes, processes that have everything loaded
and their own folders.
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

from fwconvert.job import documents, worker
from fwconvert.shards.cutting import Batch
from torture.disks import Disk, ShrinkingDisk
from torture.faults import Fault, Interposer, Point
from torture.world import MET, WORLDS, Ended, Place, prepare

# Exit codes that a person can act on: done, not done, refused.
_HONEST = {0, 1, 2}


@cache
def lane() -> Path:
    """Return this process's folder, in memory where that can be."""
    prepare()
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="fwconvert-torture-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def place_of(world: int) -> Place:
    """Return the place of a world in this lane."""
    folder = lane() / f"world-{world}"
    return Place.made(WORLDS[world], folder, folder / "out")


@cache
def disk_of(kind: str, options: str) -> Disk:
    """Return a disk of this lane."""
    folder = Path(tempfile.mkdtemp(prefix="fwconvert-disk-"))
    disk = Disk(kind, folder, options)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(disk.close)
    return disk


@cache
def place_on(kind: str, world: int, options: str) -> Place:
    """Return the place of a world on a disk of this lane."""
    scratch = lane() / f"{kind}-{options}-{world}"
    return Place.made(WORLDS[world], scratch, disk_of(kind, options).path / f"out-{world}")


def counted(check: Callable[..., list[str]], *given: object) -> tuple[list[str], int]:
    """Make a check; return the problems that it found, and how many faults at calls happened in it."""
    before = MET["faults"]
    problems = check(*given)
    return problems, MET["faults"] - before


def points(world: int) -> list[Point]:
    """Return the calls of a world that touch the output."""
    return place_of(world).points


def kill(world: int, point: Point) -> list[str]:
    """(1) A process dies at a call; the same command finishes."""
    place = place_of(world)
    return _crashed(place, [Fault(point)])


def kill_again(world: int, first: Point, second: Point) -> list[str]:
    """(2) And dies again while it resumes."""
    return _crashed(place_of(world), [Fault(first), Fault(second)])


def fail(world: int, point: Point, error: int) -> list[str]:
    """(3) A call fails."""
    return _crashed(place_of(world), [Fault(point, error)])


def cut(kind: str, world: int, point: Point) -> list[str]:
    """(4) The power goes when a process comes to a call."""
    place = place_on(kind, world, "")
    try:
        ended = place.session(Fault(point))
        disk_of(kind, "").cut_power()
        return [*_untidy(ended), *_finish(place)]
    finally:
        place.clear()


def control(kind: str, world: int) -> list[str]:
    """Lose power some time after a run that brought nothing to the disk: problems must be found."""
    options = "noauto_da_alloc,commit=1" if kind == "ext4" else ""
    # On a busy machine the kernel may have written all by then: it gets another chance.
    return next((found for _ in range(3) if (found := _lose_power(kind, world, options))), [])


def _lose_power(kind: str, world: int, options: str) -> list[str]:
    place = place_on(kind, world, options)
    try:
        place.session(interposer=Interposer(place.out, None, fsync=False))
        time.sleep(2.5)  # Names reach the disk by themselves now; data may not.
        disk_of(kind, options).cut_power()
        return place.problems() if (place.out / ".fwconvert/temporary").is_dir() else ["the run is gone"]
    finally:
        place.clear()


def fill(size: int) -> list[str]:
    """(5) The disk has so many bytes; later it has enough."""
    disk, place = _small()
    try:
        disk.resize(size)
        ended = place.session()
        said = [] if ended.code == 0 or "space" in ended.said else [f"does not speak of space: {ended.said}"]
        disk.resize(64 * 2**20)
        return [*said, *_untidy(ended), *_finish(place)]
    finally:
        disk.resize(64 * 2**20)
        place.clear()


@cache
def _small() -> tuple[ShrinkingDisk, Place]:
    folder = Path(tempfile.mkdtemp(prefix="fwconvert-small-"))
    disk = ShrinkingDisk(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(disk.close)
    return disk, Place.made(WORLDS[0], lane() / "small", disk.path / "out")


def poison(world: int, kind: str, source: int) -> list[str]:
    """(6) One source ends every process that touches it: it alone is left out."""
    place = place_of(world)
    try:
        ended = place.session(before=lambda: _poison(_POISONS[kind], source), more=("--stall-timeout", "5"))
        problems = _untidy(ended)
        left_out = [path.name[:3] for path in (place.out / ".fwconvert/quarantine").iterdir()]
        receipts = len([*(place.out / ".fwconvert/receipts").iterdir()])
        if ended.code != 1 or left_out != [f"{source:03}"] or receipts != place.world.files - 1:
            problems.append(f"exit {ended.code}, left out {left_out}, done {receipts}: {ended.said[-300:]}")
        return [*problems, *_finish(place)]
    finally:
        place.clear()


def twice(world: int, delay: float) -> list[str]:
    """(7) Two sessions at once."""
    place = place_of(world)
    try:
        other = os.fork()
        if other == 0:
            time.sleep(delay)
            second = Place(place.world, place.sources, place.out, place.scratch / "second")
            second.scratch.mkdir(exist_ok=True)
            os._exit(second.session().code)
        ended = place.session()
        code = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
        codes = [] if {ended.code, code} <= {0, 2} else [f"exit {ended.code} and {code}: {ended.said[-300:]}"]
        return [*codes, *_untidy(ended), *_finish(place)]
    finally:
        place.clear()


def hunt(world: int, seed: int) -> list[str]:
    """(8) Processes die at random instants, session after session, until one gets through."""
    place, dice = place_of(world), random.Random(seed)
    problems: list[str] = []
    try:
        for session in range(4):
            role = dice.choice(("driver", "worker"))
            calls = [point for point in place.points if point.role == role]
            # Each session finds less to do than the one before.
            problems += _untidy(place.session(Fault(dice.choice(calls).sooner(1 / (session + 1)))))
        return [*problems, *_finish(place)]
    finally:
        place.clear()


def _crashed(place: Place, faults: list[Fault]) -> list[str]:
    try:
        problems = [problem for fault in faults for problem in _untidy(place.session(fault))]
        return [*problems, *_finish(place)]
    finally:
        place.clear()


def _untidy(ended: Ended) -> list[str]:
    """Return what is wrong with the end of a session that was disturbed."""
    problems = []
    if ended.code != -signal.SIGKILL and ended.code not in _HONEST:
        problems.append(f"exit {ended.code}: {ended.said[-500:]}")
    if "Traceback" in ended.said:
        problems.append(f"a traceback: {ended.said[-500:]}")
    if ended.orphans:
        problems.append(f"{ended.orphans} processes lived on")
    return problems


def _finish(place: Place) -> list[str]:
    """Give the same command again; return what is wrong after it."""
    ended = place.session()
    if ended.code != 0:
        return [f"the same command ends with {ended.code}: {ended.said[-500:]}", *_untidy(ended)]
    return [*_untidy(ended), *place.problems()]


class _PanicException(BaseException):
    """As tiktoken's."""


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
    class Poisoned(documents.Documents):
        def batches(self) -> Iterator[Batch]:
            if self._order.source_index == source:
                happens()
            return super().batches()

    vars(worker)["Documents"] = Poisoned
