"""Ranks that are killed, fail, come twice and change their number; then a merge.

A plan is saved, and in a few rounds several ranks at a time convert their shares, each with a fault of
its own: a kill or a failed call, in the driver or in a worker. Then every rank of some world runs once,
undisturbed, and a merge that is killed is followed by one that is not. The bytes must be those of one
ordinary session. The control has a worker publish its receipt before its shards, and readers that believe
it unseen; there problems must be found.
"""

import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

from fwconvert.job import worker
from fwconvert.job.orders import ConvertOrder
from fwconvert.run import resume
from fwconvert.store import receipts
from fwconvert.store.local import open_store
from torture.checks import exit_problems, scratch
from torture.faults import ERRORS, Fault, Interposer, Point
from torture.testbed import SCENARIOS, Session, Testbed

# Those whose sources can be divided: no limit, no export, more than one.
_DIVISIBLE = (0, 1, 2, 4, 5, 6, 8)
_ROUNDS = 3
_MOST_AT_ONCE = 3


@dataclass(frozen=True)
class _Bed:
    """A testbed, and the calls of a rank that has all sources, and of a merge."""

    testbed: Testbed
    rank_points: Sequence[Point]
    merge_points: Sequence[Point]

    def plan(self) -> list[str]:
        """Return the words that save the plan."""
        testbed = self.testbed
        words = ["--source", str(testbed.sources), "--out", str(testbed.out), "--no-disk-check"]
        return ["plan", *words, "--save", *testbed.scenario.options]

    def rank(self, number: int, world: int) -> list[str]:
        """Return the words of a rank."""
        words = ["--out", str(self.testbed.out), "--rank", str(number), "--world", str(world)]
        return [*words, "--no-disk-check"]

    def merge(self) -> list[str]:
        """Return the words of the merge."""
        return ["merge", str(self.testbed.out)]

    def begin(
        self,
        words: list[str],
        fault: Fault | None = None,
        *,
        name: str = "output",
        before: Callable[[], None] | None = None,
    ) -> Session:
        """Start a command, with a fault that it may come to."""
        return self.testbed.begin(words, Interposer(self.testbed.out, fault), name=name, before=before)

    def run(self, words: list[str], fault: Fault | None = None) -> list[str]:
        """Run a command; return what is wrong with how it ended."""
        return exit_problems(self.begin(words, fault).result())

    def must(self, words: list[str]) -> list[str]:
        """Run a command that has to succeed; return what is wrong."""
        result = self.begin(words).result()
        wrong = [] if result.code == 0 else [f"{words[:1]} exits with {result.code}: {result.output[-500:]}"]
        return [*wrong, *exit_problems(result)]


@cache
def _bed(scenario: int) -> _Bed:
    folder = scratch() / f"ranks-{scenario}"
    testbed = Testbed.made(SCENARIOS[scenario], folder, folder / "out")
    bed = _Bed(testbed, (), ())
    points = []
    for words in (bed.plan(), bed.rank(0, 1), bed.merge()):
        interposer = Interposer(testbed.out, None)
        result = testbed.begin(words, interposer).result()
        assert result.code == 0, result.output
        points.append(interposer.points())
    assert not testbed.problems(), testbed.problems()
    testbed.clear()
    return _Bed(testbed, *points[1:])


def disturbed(seed: int) -> list[str]:
    """Disturb ranks, and the merge, at random; then let every rank run once more."""
    rng = random.Random(seed)
    bed = _bed(_DIVISIBLE[seed % len(_DIVISIBLE)])
    try:
        problems = bed.must(bed.plan())
        for _ in range(_ROUNDS):
            problems += _round(bed, rng)
        if rng.random() < 0.3:  # Too early: it refuses, or ranks have done everything already.
            problems += bed.run(bed.merge(), _fault(bed.merge_points, rng, 1.0))
        world = rng.randint(1, bed.testbed.scenario.files + 1)
        problems += _all_ranks(bed, world)
        problems += bed.run(bed.merge(), _fault(bed.merge_points, rng, 1.0))
        if rng.random() < 0.3:  # A rank that comes too late.
            problems += bed.run(bed.rank(rng.randrange(world), world), _fault(bed.rank_points, rng, 0.3))
        # A receipt that could not be read was withdrawn: then a rank has to make it again.
        problems += _all_ranks(bed, world)
        problems += bed.must(bed.merge())
        return [*problems, *bed.testbed.problems()]
    finally:
        bed.testbed.clear()


def _all_ranks(bed: _Bed, world: int) -> list[str]:
    return [problem for number in range(world) for problem in bed.must(bed.rank(number, world))]


def _round(bed: _Bed, rng: random.Random) -> list[str]:
    """Let some ranks run at the same time, perhaps one of them twice, each with a fault."""
    world = rng.randint(1, bed.testbed.scenario.files)
    numbers = [rng.randrange(world) for _ in range(rng.randint(2, _MOST_AT_ONCE))]
    started = [
        bed.begin(bed.rank(number, world), _fault(bed.rank_points, rng, 1 / world), name=f"output-{at}")
        for at, number in enumerate(numbers)
    ]
    return [problem for session in started for problem in exit_problems(session.result())]


def _fault(points: Sequence[Point], rng: random.Random, share: float) -> Fault:
    """Choose a call, early enough for a rank with this share of the sources, and what happens there."""
    point = rng.choice(points).sooner(share)
    return Fault(point, rng.choice(ERRORS[point.call]) if rng.random() < 0.4 else None)


def control(seed: int) -> list[str]:
    """Kill a rank that publishes receipts before shards, where nobody looks at the shards."""
    bed = _bed(_DIVISIBLE[seed % 2])
    world = bed.testbed.scenario.files
    try:
        problems = bed.must(bed.plan())
        bed.begin(bed.rank(seed % world, world), before=_receipt_first).result()
        for number in range(world):
            bed.begin(bed.rank(number, world), before=_believe_unseen).result()
        bed.begin(bed.merge(), before=_believe_unseen).result()
        return [*problems, *bed.testbed.problems()]
    finally:
        bed.testbed.clear()


def _receipt_first() -> None:
    make = vars(worker)["_receipt"]

    def publish_and_die(order: ConvertOrder, *given: Any) -> NoReturn:
        receipts.publish(open_store(order.context.run, order.context.session), make(order, *given))
        os.killpg(0, signal.SIGKILL)
        raise AssertionError

    vars(worker)["_receipt"] = publish_and_die


def _believe_unseen() -> None:
    vars(resume)["look_at"] = lambda _store, _file: ("", 0)
    vars(resume)["Hashing"] = _NoHashing


class _NoHashing:
    def __init__(self, *_: object) -> None:
        pass

    def hashed(self, files: Sequence[Any]) -> dict[Any, str]:
        return dict.fromkeys(files, "")
