"""Hand out orders, and decide what to do when one fails.

The policy is here and not in an engine, so that it is the same everywhere:

- an order's own error is retried once, then the order is given up and
  the others go on;
- a lost worker is retried more often, because it is seldom the order's fault;
  after a SIGKILL, as when memory runs out, with half the concurrency;
- a worker that cannot begin is no order's fault: the others go on without it.
  Only if there are none, and it happens again and again, does the run stop;
- an output error stops everything at once and is never counted against an order;
- a stop request lets the workers stop at a safe place; a second one kills them;
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

from fwconvert.errors import FwconvertError, OutputError, RemoteError, Stopped
from fwconvert.job.orders import Failure, Order, Outcome, Unfetched
from fwconvert.run.engines import Engine, Progress
from fwconvert.store.receipts import JoinReceipt, Receipt

JOB_TRIES = 2
LOST_TRIES = 5

_TICK_SECONDS = 0.25
_LOOK_SECONDS = 0.05
# How soon a free worker gets a source that has come.
_HAND_OUT_SECONDS = 0.01
_WORK_PER_LOOK = 20
# How long workers may take to stop at the next batch: Slurm and Kubernetes kill after 30 s.
_GRACE_SECONDS = 10.0


class Watcher(Protocol):
    """Is told what happens, and knows of stop requests."""

    def done(self, order: Order, receipt: Receipt | JoinReceipt) -> None:
        """Take note of an order that was carried out; its receipt is on the disk."""

    def failed(self, order: Order, failure: Failure, *, final: bool) -> None:
        """Take note of a failed attempt. `final`: the order was given up."""

    def notice(self, text: str) -> None:
        """Show what a person should know."""

    def tick(self, running: list[Progress]) -> None:
        """Show how far the orders in flight are; raise Stopped if there is a stop request."""

    def stop_now(self) -> bool:
        """Return whether there is a second stop request: do not wait for the workers."""


@dataclass
class _Attempts:
    """An order, and how often it has failed."""

    order: Order
    own_failures: int = 0
    lost_workers: int = 0

    def count(self, failure: Failure) -> bool:
        """Count a failed attempt; tell whether it was the last."""
        if failure.kind == "lost":
            self.lost_workers += 1
        else:
            self.own_failures += 1
        return self.own_failures >= JOB_TRIES or self.lost_workers >= LOST_TRIES


@dataclass
class _Scheduler:
    engine: Engine
    watcher: Watcher
    # Orders that are still to come; gives None if none is ready just now.
    incoming: Iterator[Order | Unfetched | None] | None
    # To be tried again: before all others, and when nothing else is ready.
    retry_now: deque[_Attempts] = field(default_factory=deque)
    retry_later: deque[_Attempts] = field(default_factory=deque)
    in_flight: "dict[Future[Outcome], _Attempts]" = field(default_factory=dict)
    # Those of them that are finished, put here by whichever thread finished them.
    finished: "SimpleQueue[Future[Outcome]]" = field(default_factory=SimpleQueue)
    # The orders whose workers were killed, until they are done or given up.
    suspects: set[str] = field(default_factory=set)
    # Workers in a row that could not begin. After one, no more are started than are at work.
    failed_starts: int = 0
    warned_of_failed_start: bool = False
    # Why no more sources come, though there are more.
    fetch_error: RemoteError | None = None

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to do."""
        return self.incoming is None and not (self.retry_now or self.retry_later or self.in_flight)

    def fill_slots(self) -> None:
        """Start as many orders as may run and are ready."""
        while len(self.in_flight) < self._most_at_once() and (attempts := self._next()) is not None:
            future = self.engine.submit(attempts.order)
            self.in_flight[future] = attempts
            future.add_done_callback(self.finished.put)

    def _most_at_once(self) -> int:
        if self.failed_starts:
            return max(1, len(self.in_flight))
        return max(1, self.engine.slots // 2) if self.suspects else self.engine.slots

    def _next(self) -> _Attempts | None:
        """Return the order to start next: one that was lost, a new one, or one that has failed."""
        if self.retry_now:
            return self.retry_now.popleft()
        while self.incoming is not None:
            try:
                item = next(self.incoming)
            except StopIteration:
                self.incoming = None
            except RemoteError as error:
                self.incoming, self.fetch_error = None, error
            else:
                if item is None:
                    break
                if not isinstance(item, Unfetched):
                    return _Attempts(item)
                self.watcher.failed(item.order, item.failure, final=True)
        return self.retry_later.popleft() if self.retry_later else None

    def settle_next(self, seconds: float) -> None:
        """Wait at most this long for an order to finish, and settle it."""
        if not self.in_flight:
            if not self.is_done:
                time.sleep(_HAND_OUT_SECONDS)  # for the next source to come
            return
        if self.incoming is not None and len(self.in_flight) < self._most_at_once():
            seconds = min(seconds, _HAND_OUT_SECONDS)
        with suppress(Empty):
            future = self.finished.get(timeout=seconds)
            self._settle(self.in_flight.pop(future), self.engine.outcome(future))

    def _settle(self, attempts: _Attempts, outcome: Outcome) -> None:
        order = attempts.order
        self.suspects.discard(order.key)
        if isinstance(outcome, Failure) and outcome.kind == "unready":
            self.failed_starts += 1
            if self.failed_starts >= LOST_TRIES and not self.in_flight:
                raise FwconvertError(outcome.message)
            if not self.warned_of_failed_start:  # The others say the same.
                self.warned_of_failed_start = True
                self.watcher.failed(order, outcome, final=False)
            self.retry_later.append(attempts)
            return
        self.failed_starts = 0
        if not isinstance(outcome, Failure):
            self.watcher.done(order, outcome)
        elif outcome.kind == "output":
            raise OutputError(outcome.message)
        elif outcome.kind == "stopped":
            raise Stopped(outcome.message)
        else:
            self._retry_or_give_up(attempts, outcome)

    def _retry_or_give_up(self, attempts: _Attempts, failure: Failure) -> None:
        is_last = attempts.count(failure)
        self.watcher.failed(attempts.order, failure, final=is_last)
        if is_last:
            return
        if failure.killed:
            self.suspects.add(attempts.order.key)
        # An order's own error is retried later, when what caused it may have passed.
        (self.retry_now if failure.kind == "lost" else self.retry_later).append(attempts)

    def wind_down(self) -> None:
        """Let the workers stop; what they finish meanwhile still counts."""
        self.engine.stop()
        deadline = time.monotonic() + _GRACE_SECONDS
        try:
            while self.in_flight and time.monotonic() < deadline and not self.watcher.stop_now():
                with suppress(FwconvertError):  # The reason for stopping is another one.
                    self.settle_next(_LOOK_SECONDS)
        finally:
            if self.in_flight:
                self.engine.kill()
                wait(self.in_flight)


def carry_out(orders: Iterable[Order | Unfetched | None], engine: Engine, watcher: Watcher) -> None:
    """Carry out all orders; the watcher is told which are done and which were given up.

    `orders` may give None: nothing is ready just now. Raises OutputError if the
    output cannot be written, FwconvertError if no worker can begin, Stopped if
    the watcher does, and RemoteError if `orders` did, once all that had come was
    done. By then no worker is at work any more.
    """
    if engine.slots < 1:
        raise ValueError(f"an engine needs at least one slot, and this one has {engine.slots}")
    scheduler = _Scheduler(engine, watcher, iter(orders))
    looked_at, pause = -_LOOK_SECONDS, _LOOK_SECONDS
    try:
        scheduler.fill_slots()
        while not scheduler.is_done:
            scheduler.settle_next(_TICK_SECONDS)
            scheduler.fill_slots()  # Before the look: only this tells whether what was settled was the last.
            # Not after every order: with thousands of small ones, looking would be the main cost.
            if not scheduler.is_done and (begun := time.monotonic()) - looked_at >= pause:
                engine.enforce_limits()
                for notice in engine.nodes.notices() if engine.nodes is not None else ():
                    watcher.notice(notice)
                watcher.tick(engine.progress())
                looked_at = time.monotonic()
                # Thousands of slots take a while to look at: it is to be a small part of the time. But
                # a stop request must not wait for long.
                pause = min(1.0, max(_LOOK_SECONDS, _WORK_PER_LOOK * (looked_at - begun)))
        with suppress(Stopped):  # Too late: all is done.
            watcher.tick([])
    except BaseException:
        scheduler.wind_down()
        raise
    if scheduler.fetch_error is not None:
        raise scheduler.fetch_error
