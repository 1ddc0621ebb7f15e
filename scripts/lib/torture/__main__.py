"""Crash fwconvert at every system call that touches its output, in every way we know; check what is left.

After each fault the same command is run again, and must end in the bytes of an
undisturbed run. Prints a table; exit code 1 if a single check failed, or if the
control, a run without fsync that loses power, did not fail.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torture import checks, disks, objects, ranks, real
from torture.faults import ERRORS, Point
from torture.s3 import KILLS, LASTING, PASSING
from torture.testbed import SCENARIOS

_SHOWN_PROBLEMS = 3


@dataclass(frozen=True)
class Task:
    """One check and how many faults it injects; None: as many as happen at calls."""

    check: Callable[..., list[str]]
    given: tuple[Any, ...]
    faults: int | None = None


@dataclass
class Row:
    """One line of the table."""

    title: str
    tasks: list[Task]
    # Why it cannot be done here.
    skipped: str = ""
    must_fail: bool = False
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    # How many were made, and how many of these failed.
    checks: int = 0
    failed: int = 0
    # How many were injected.
    faults: int = 0

    @property
    def ok(self) -> bool:
        """Whether the result is as it should be. Of a control that was never made nothing is known."""
        return bool(self.skipped) or (0 < self.failed == self.checks if self.must_fail else not self.failed)

    @property
    def size(self) -> str:
        """How many checks were made, and of how many if it was stopped before its end."""
        of_all = "" if self.checks == len(self.tasks) else f" of {len(self.tasks):,}"
        return f"{self.checks:,}{of_all}"


def main() -> int:
    """Run the checks; return the exit code."""
    args = _parse_arguments()
    rng = random.Random(args.seed)
    jobs = args.jobs or len(os.sched_getaffinity(0))
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        rows = [*_rows(_all_points(pool), rng, full=args.full)]
        rows = [row for row in rows if any(word in row.title for word in args.only.split(","))]
        try:
            for row in rows:
                _sample(row, rng, args.most)
                _run_row(row, pool)
        except KeyboardInterrupt:  # What was done is worth knowing.
            pool.shutdown(wait=False, cancel_futures=True)
    text = _table(rows, time.monotonic() - started)
    print(text)
    if args.output:
        args.output.write_text(text, "utf-8")
    return 0 if all(row.ok for row in rows) else 1


def _all_points(pool: ProcessPoolExecutor) -> list[list[Point]]:
    _log("counting the calls that touch the output")
    return [*pool.map(checks.points, range(len(SCENARIOS)))]


def _rows(points: list[list[Point]], rng: random.Random, *, full: bool) -> Iterator[Row]:
    every = [(scenario, point) for scenario, known in enumerate(points) for point in known]
    few = every if full else rng.sample(every, 60)
    yield Row("SIGKILL at a call", [Task(checks.kill, pair) for pair in few])
    again = [(*pair, _second(points[pair[0]], pair[1], rng)) for pair in (few[::2] if full else few[:20])]
    yield Row("SIGKILL, and again while resuming", [Task(checks.kill_again, three) for three in again])
    failing = [(*pair, error) for pair in every for error in ERRORS[pair[1].call]]
    errors = failing if full else rng.sample(failing, 60)
    yield Row("a call fails (ENOSPC, EIO, …)", [Task(checks.fail_call, three) for three in errors])
    for kind, scenarios in (("ext4", {0, 3, 4, 7, 9}), ("xfs", {0, 3, 7})):
        on_disk = [pair for pair in every if pair[0] in scenarios]
        cuts = on_disk if full else rng.sample(on_disk, 20)
        tasks = [Task(checks.power_cut, (kind, *pair)) for pair in cuts]
        yield Row(f"power cut on {kind} at a call", tasks, disks.skip_reason(kind))
    sizes = range(8_192, 450_000, 4_096 if full else 65_536)
    small = [Task(checks.small_disk, (size,), 1) for size in sizes]
    yield Row("a disk too small", small, disks.skip_reason("ext4"))
    poisoned = (0, 1, 2) if full else (0,)
    poisons = [(number, kind, 1 % SCENARIOS[number].files) for number in poisoned for kind in checks.POISONS]
    yield Row("a source that ends its workers", [Task(checks.poison, three, 1) for three in poisons])
    delays = [number / 100 for number in range(60 if full else 4)]
    yield Row("two sessions at once", [Task(checks.two_sessions, (0, delay), 1) for delay in delays])
    hunts = [(number % len(SCENARIOS), number) for number in range(400 if full else 4)]
    yield Row("deaths at random, 4 sessions", [Task(checks.random_kills, pair) for pair in hunts])
    shared = [Task(ranks.disturbed, (seed,)) for seed in range(250 if full else 4)]
    yield Row("ranks: killed, failing, twice, in other worlds", shared)
    strace = [Task(real.kill, (number,), 1) for number in range(40 if full else 3)]
    yield Row("strace kills the spawned program", strace, real.skip_reason())
    reads = [Task(real.fail_read, (number,), 1) for number in range(60 if full else 3)]
    yield Row("a read of a source fails (strace)", reads, real.skip_reason())
    chaos = [Task(real.random_kills, (seed,), 3) for seed in range(20 if full else 1)]
    yield Row("SIGKILL by the clock, spawned workers", chaos)
    kills = 20 if full else 6
    long = [Task(real.many_kills, (seed, kills), kills) for seed in range(10 if full else 1)]
    yield Row("SIGKILL by the clock, 1,000 sources", long)
    hungry = [Task(real.exhaust_memory, (number,), 1) for number in range(4 if full else 1)]
    yield Row("memory runs out (cgroup)", hungry, real.memory_skip_reason())
    yield from _object_rows(rng, full=full)
    yield Row(
        "control: a rank's receipt before its shards, believed unseen",
        [Task(ranks.control, (seed,), 1) for seed in range(4 if full else 1)],
        must_fail=True,
    )
    for kind in ("ext4", "xfs"):
        tasks = [Task(checks.control, (kind, 0), 1)] * (5 if full else 1)
        yield Row(f"control: no fsync, power cut on {kind}", tasks, disks.skip_reason(kind), must_fail=True)


def _object_rows(rng: random.Random, *, full: bool) -> Iterator[Row]:
    """Yield what happens at the requests to an object store."""
    why_not = objects.skip_reason()
    counts = {} if why_not else {world: objects.requests(world) for world in objects.WORLDS}
    every = [
        (world, kind, at)
        for world, count in counts.items()
        for kind in objects.ALL
        for at in range(1, count + 1)
    ]
    few = every if full or not every else rng.sample(every, 40)
    for title, kinds in (
        ("a bucket: SIGKILL at a request", KILLS),
        ("a bucket: a request goes wrong", PASSING),
        ("a bucket: it is gone from a request on", LASTING),
    ):
        # One that lasts takes until the program gives up, so there are fewer of them.
        chosen = [one for one in few if one[1] in kinds and (kinds != LASTING or one[2] % 8 == 0)]
        yield Row(title, [Task(objects.fault, one) for one in chosen], why_not)
    twice = [(one[0], one[1:], rng.choice(every)[1:]) for one in (few[::4] if full else few[:10])]
    yield Row("a bucket: and again while resuming", [Task(objects.faults, three) for three in twice], why_not)
    lost = [] if why_not else [Task(objects.control, (objects.WORLDS[0],), 1)]
    yield Row("control: receipts before their files, in a bucket", lost, why_not, must_fail=True)


def _second(points: list[Point], first: Point, rng: random.Random) -> Point:
    """Choose where a resuming session dies: the later the first one did, the less is left to do."""
    all_calls = sum(point.role == first.role and point.call == first.call for point in points)
    return rng.choice(points).sooner(1 - first.number / all_calls)


def _sample(row: Row, rng: random.Random, most: int | None) -> None:
    if most is not None and len(row.tasks) > most:
        row.tasks = rng.sample(row.tasks, most)


def _run_row(row: Row, pool: ProcessPoolExecutor) -> None:
    if row.skipped:
        _log(f"{row.title}: skipped, {row.skipped}")
        return
    started = time.monotonic()
    waiting: dict[Future[tuple[list[str], int]], Task] = {
        pool.submit(checks.counted, task.check, *task.given): task for task in row.tasks
    }
    for future in as_completed(waiting):
        task = waiting[future]
        problems, met = _result(future)
        row.checks, row.seconds = row.checks + 1, time.monotonic() - started
        row.faults += met if task.faults is None else task.faults
        if problems:
            row.failed += 1
            row.problems += [f"{task.check.__name__}{task.given}: {problem}" for problem in problems]
            if not row.must_fail:
                _log(f"  FAILED {row.problems[-1]}")
        if row.checks % 100 == 0:
            made = f"{row.checks:,} of {len(row.tasks):,}, {row.faults:,} faults"
            _log(f"  {row.title}: {made}, {row.failed} failed")
    _log(f"{row.title}: {row.checks:,} checks, {row.failed} failed, {row.seconds:.0f} s")


def _result(future: Future[tuple[list[str], int]]) -> tuple[list[str], int]:
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001  # a check that cannot be made is not a check that passed
        return [f"the check itself raised {error!r}"], 0


def _table(rows: Sequence[Row], seconds: float) -> str:
    lines = ["| what happens | checks | faults | failed | s |", "|---|--:|--:|--:|--:|"]
    for row in rows:
        failed = f"{row.failed}, as it must" if row.must_fail and row.ok else str(row.failed)
        if row.skipped:
            failed = f"skipped: {row.skipped}"
        lines.append(f"| {row.title} | {row.size} | {row.faults:,} | {failed} | {row.seconds:.0f} |")
    real_rows = [row for row in rows if not row.must_fail]
    checked = sum(row.checks for row in real_rows)
    faults, wrong = sum(row.faults for row in real_rows), sum(row.failed for row in real_rows)
    lines.append(f"| **all but the control** | {checked:,} | {faults:,} | {wrong} | {seconds:.0f} |")
    shown = [problem for row in rows if not row.ok for problem in row.problems[:_SHOWN_PROBLEMS]]
    return "\n".join([*lines, *shown]) + "\n"


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/torture", description=__doc__, allow_abbrev=False)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a sample: a few minutes (the default)")
    size.add_argument("--full", action="store_true", help="every call, every error: more than 10,000 faults")
    add = parser.add_argument
    add("--most", metavar="N", type=int, help="at most this many checks of a kind")
    add("--only", metavar="WORD,...", default="", help="only rows with one of these words in their title")
    add("--seed", metavar="N", type=int, default=0, help="of the random choices (default: 0)")
    add("--jobs", metavar="N", type=int, help="checks in parallel (default: one per core)")
    add("-o", "--output", metavar="FILE", type=Path, help="write the table here too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
