"""Hand out orders, and decide what to do when one fails.

The policy is here and not in an engine, so that it is the same everywhere:

- an order's own error is retried a little, then the order is given up and the
  others go on;
- a lost worker is retried more often, because it is seldom the order's fault;
  after a kill from outside (memory) with half the concurrency;
- a worker that cannot begin is nobody's fault: the others go on without it, and
  only if there are none, and it happens again and again, the run stops;
- an output error stops everything at once and is never counted against an order;
- a wish to stop lets the workers stop at a safe place; a second one kills them;
- when no more sources can be fetched, the workers finish what they have.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol

from fwconvert.errors import FwconvertError, HubError, OutputError, Stopped
from fwconvert.job.orders import Failure, Order, Outcome, Unfetched
from fwconvert.run.engines import Engine, Progress
from fwconvert.store.receipts import JoinReceipt, Receipt

JOB_TRIES = 2
LOST_TRIES = 5

_TICK_SECONDS = 0.25
_LOOK_SECONDS = 0.05
# How long workers may take to stop at the next batch: Slurm and Kubernetes kill after 30 s.
_GRACE_SECONDS = 10.0


class Watcher(Protocol):
    """Is told what happens."""

    def done(self, order: Order, receipt: Receipt | JoinReceipt) -> None:
        """An order was carried out; its receipt is on the disk."""

    def failed(self, order: Order, failure: Failure, *, final: bool) -> None:
        """An attempt failed. `final`: the order was given up."""

    def tick(self, running: list[Progress]) -> None:
        """Some time has passed. Raises Stopped when the user wants to stop."""

    def impatient(self) -> bool:
        """Tell whether the user asked a second time to stop."""


@dataclass
class _State:
    """An order and what became of its attempts."""

    order: Order
    job_failures: int = 0
    lost: int = 0

    def count(self, failure: Failure) -> bool:
        """Count a failed attempt; tell whether it was the last."""
        if failure.kind == "lost":
            self.lost += 1
        else:
            self.job_failures += 1
        return self.job_failures >= JOB_TRIES or self.lost >= LOST_TRIES


@dataclass
class _Flight:
    engine: Engine
    watcher: Watcher
    # What is still to come: None if nothing is ready just now.
    coming: Iterator[Order | Unfetched | None] | None
    # To be tried again: at once, and when nothing else is ready.
    urgent: deque[_State] = field(default_factory=deque)
    later: deque[_State] = field(default_factory=deque)
    flying: "dict[Future[Outcome], _State]" = field(default_factory=dict)
    # Those of them that have ended, told by whichever thread ended them.
    landed: "SimpleQueue[Future[Outcome]]" = field(default_factory=SimpleQueue)
    # The orders whose workers were killed from outside, until they are settled.
    suspects: set[str] = field(default_factory=set)
    # Workers in a row that could not begin. After one, no more are started than are at work.
    unready: int = 0
    warned: bool = False
    # Why nothing more is coming, though it should.
    trouble: HubError | None = None

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        return self.coming is None and not (self.urgent or self.later or self.flying)

    def fill(self) -> None:
        """Start as many orders as may run and are ready."""
        while len(self.flying) < self._limit() and (state := self._next()) is not None:
            future = self.engine.submit(state.order)
            self.flying[future] = state
            future.add_done_callback(self.landed.put)

    def _next(self) -> _State | None:
        if self.urgent:
            return self.urgent.popleft()
        while self.coming is not None:
            item = self._from_outside(self.coming)
            if isinstance(item, Unfetched):
                self.watcher.failed(item.order, item.failure, final=True)
            elif item is not None:
                return _State(item)
            else:
                break
        return self.later.popleft() if self.later else None

    def _from_outside(self, coming: Iterator[Order | Unfetched | None]) -> Order | Unfetched | None:
        try:
            return next(coming)
        except StopIteration:
            self.coming = None
        except HubError as error:
            self.coming, self.trouble = None, error
        return None

    def land(self, seconds: float) -> None:
        """Wait for orders to finish and settle each of them."""
        if not self.flying:
            if not self.over:
                time.sleep(_LOOK_SECONDS)  # for the first source to come
            return
        with suppress(Empty):
            future = self.landed.get(timeout=seconds)
            self._settle(self.flying.pop(future), self.engine.outcome(future))

    def _limit(self) -> int:
        if self.unready:
            return max(1, len(self.flying))
        return max(1, self.engine.slots // 2) if self.suspects else self.engine.slots

    def _settle(self, state: _State, outcome: Outcome) -> None:
        self.suspects.discard(state.order.key)
        if isinstance(outcome, Failure) and outcome.kind == "unready":
            self._begin_again(state, outcome)
            return
        self.unready = 0
        if not isinstance(outcome, Failure):
            self.watcher.done(state.order, outcome)
        elif outcome.kind == "output":
            raise OutputError(outcome.message)
        elif outcome.kind == "stopped":
            raise Stopped(outcome.message)
        else:
            self._retry(state, outcome)

    def _begin_again(self, state: _State, failure: Failure) -> None:
        self.unready += 1
        if self.unready >= LOST_TRIES and not self.flying:
            raise FwconvertError(failure.message)
        if not self.warned:  # The others say the same.
            self.warned = True
            self.watcher.failed(state.order, failure, final=False)
        self.later.append(state)

    def _retry(self, state: _State, failure: Failure) -> None:
        final = state.count(failure)
        self.watcher.failed(state.order, failure, final=final)
        if final:
            return
        if failure.killed:
            self.suspects.add(state.order.key)
        if failure.kind == "lost":
            self.urgent.append(state)
        else:  # Later, when a passing fault may have passed.
            self.later.append(state)


def drive(orders: Iterable[Order | Unfetched | None], engine: Engine, watcher: Watcher) -> None:
    """Carry out all orders; those given up have been told to the watcher.

    `orders` may give None: nothing is ready just now. Raises OutputError if the
    output cannot be written, FwconvertError if no worker can begin, Stopped if
    the watcher does, and HubError if `orders` did, once all that had come was
    done. By then no worker is at work any more.
    """
    if engine.slots < 1:
        raise ValueError(f"an engine needs a slot, and this has {engine.slots}")
    flight = _Flight(engine, watcher, iter(orders))
    looked_at = -_LOOK_SECONDS
    try:
        flight.fill()
        while not flight.over:
            flight.land(_TICK_SECONDS)
            flight.fill()  # Before the look: only this tells whether what landed was the last.
            # Not after every order: of thousands of small ones, looking would be the main cost.
            if not flight.over and time.monotonic() - looked_at >= _LOOK_SECONDS:
                engine.enforce_limits()
                watcher.tick(engine.progress())
                looked_at = time.monotonic()
        with suppress(Stopped):  # Too late: all is done.
            watcher.tick([])
    except BaseException:
        _wind_down(flight)
        raise
    if flight.trouble is not None:
        raise flight.trouble


def _wind_down(flight: _Flight) -> None:
    """Let the workers stop; what they finish meanwhile still counts."""
    flight.engine.stop()
    deadline = time.monotonic() + _GRACE_SECONDS
    try:
        while flight.flying and time.monotonic() < deadline and not flight.watcher.impatient():
            _land_quietly(flight)
    finally:
        if flight.flying:
            flight.engine.kill()
            wait(flight.flying)


def _land_quietly(flight: _Flight) -> None:
    with suppress(FwconvertError):  # Already on the way down, for a reason of its own.
        flight.land(0.05)
