"""Orders carried out by any executor of concurrent.futures: threads, a pool of processes, a cluster's client.

    fwconvert.convert(recipe, out, engine=ExecutorEngine(client.get_executor(), slots=64))
    fwconvert.convert(recipe, out, engine=ExecutorEngine(lambda: ProcessPoolExecutor(8), slots=8))

The workers must see the run and the sources under the same paths. An executor
that is given stays its owner's: it is never shut down here, and limits are its
own business. If it breaks, as a pool of processes does when a worker dies, the
run stops and can be continued with another. Who gives a function that makes an
executor has a new one made, and the run goes on.

A broken pool loses all orders that it has, and does not say whose worker died.
So those orders are tried again one at a time: an order that breaks a pool which
has no other is to blame, and is given up after a few tries. The others lose one.

Where workers are threads of this process, orders tell how far they are and stop
at the next safe place when they are asked to. From another process or machine
nothing is heard between an order's start and its end: its progress is 0, and a
stop request takes back the orders that have not begun and waits for the others.
"""

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, wait
from typing import Self

from fwconvert.addresses import plain
from fwconvert.errors import FwconvertError, Stopped, message
from fwconvert.job.orders import Failure, NoReporter, Order, Outcome, Reporter
from fwconvert.run.engines import Progress, carry_out


class _SharedReporter:
    """What an order says to threads of the same process; a copy in another process reports to nobody."""

    def __init__(self, stop: threading.Event) -> None:
        self.fraction = 0.0
        self.tokens = 0
        self._stop = stop

    def __reduce__(self) -> tuple[type[Reporter], tuple[()]]:
        return NoReporter, ()

    def __dask_tokenize__(self) -> str:  # noqa: PLW3201  # Dask's
        # Dask would take an order that is given again for the one that has failed, and answer at once.
        return uuid.uuid4().hex

    def show(self, done: int, total: int) -> None:
        """Report how much of the order is done."""
        self.fraction = done / max(1, total)

    def show_text(self, tokens: int, text_bytes: int) -> None:  # noqa: ARG002  # part of the protocol
        """Report how many tokens the order has made so far."""
        self.tokens = tokens

    def beat(self) -> None:
        """Drop it: nobody can end a thread that has stalled."""

    def check(self) -> None:
        """Raise Stopped if the engine was asked to stop."""
        if self._stop.is_set():
            raise Stopped("stopped by the user")


class ExecutorEngine:
    """Gives orders to an executor, `slots` at a time; `executor` may be a function that makes one."""

    nodes = None

    def __init__(self, executor: Executor | Callable[[], Executor], slots: int) -> None:
        self._given = executor
        self._slots = slots
        self._executor = executor if isinstance(executor, Executor) else None
        self._stop = threading.Event()
        self._in_flight: dict[Future[Outcome], tuple[Order, _SharedReporter]] = {}
        # The orders that an executor had when it broke, while they are tried one at a time.
        self._suspects: set[str] = set()

    @property
    def slots(self) -> int:
        """How many orders it takes at a time: one, while it is unknown which of them broke an executor."""
        return 1 if self._suspects else self._slots

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._suspects.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        # What was taken back never begins, whether or not the executor has noticed yet.
        wait([future for future in self._in_flight if not future.cancelled()])
        self._in_flight.clear()
        self._drop_executor()

    def submit(self, order: Order) -> "Future[Outcome]":
        """Give the order to the executor; if it does not take it now, the order was not begun.

        Raises FwconvertError if the executor is broken and there is no way to have another.
        """
        if not self._in_flight and order.key not in self._suspects:
            self._suspects.clear()  # The scheduler begins with those: they are done, or given up.
        reporter = _SharedReporter(self._stop)
        try:
            future = self._give(order, reporter)
        except BrokenExecutor as error:
            raise _broken(error) from error
        except Exception as error:  # noqa: BLE001  # whatever an executor of somebody else raises
            future = Future()
            future.set_result(Failure("unready", _refused(error)))
        self._in_flight[future] = order, reporter
        return future

    def _give(self, order: Order, reporter: _SharedReporter) -> "Future[Outcome]":
        if not isinstance(self._given, Executor):
            try:
                if self._executor is not None:
                    return self._executor.submit(carry_out, order, reporter)
            except BrokenExecutor:  # While it was idle, or by orders whose outcome nobody has asked for yet.
                self._drop_executor()
            self._executor = self._given()
        assert self._executor is not None  # noqa: S101  # for mypy
        return self._executor.submit(carry_out, order, reporter)

    def _drop_executor(self) -> None:
        """Shut down an executor that was made here."""
        if self._executor is not None and not isinstance(self._given, Executor):
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def outcome(self, future: "Future[Outcome]") -> Outcome:
        """Return what became of an order. Orders never raise, so whatever is raised is the executor's.

        Raises FwconvertError if it is broken and there is no way to have another: no order will be carried
        out any more, and none is to blame.
        """
        flight = self._in_flight.pop(future, None)
        try:
            return future.result()
        except BrokenExecutor as error:
            if isinstance(self._given, Executor):
                raise _broken(error) from error
            self._suspects |= {flight[0].key} if flight else set()
            return Failure("lost", message("a worker of the executor died", reason=_reason(error)))
        except Exception as error:  # noqa: BLE001  # dask's KilledWorker, a lost connection, ...
            if isinstance(error, CancelledError) and self._stop.is_set():
                return Failure("stopped", "stopped by the user")
            return Failure("lost", message("the executor lost an order", reason=_reason(error)))

    def progress(self) -> list[Progress]:
        """Return how far the orders in flight are, as far as their workers share memory with us."""
        return [
            Progress.of(order, reporter.fraction, reporter.tokens)
            for order, reporter in self._in_flight.values()
        ]

    def enforce_limits(self) -> None:
        """Leave limits to the executor."""

    def stop(self) -> None:
        """Ask threads to stop, and take back what has not begun; other processes finish what they have."""
        self._stop.set()
        for future in list(self._in_flight):
            future.cancel()

    def kill(self) -> None:
        """Do no more than `stop`: the workers are the executor's."""
        self.stop()


def _broken(error: BrokenExecutor) -> FwconvertError:
    return FwconvertError(
        message(
            "the executor is broken: one of its workers died or could not be started",
            "make the same call again with a new executor: it continues where it stopped",
            "or give a function that makes one, ExecutorEngine(lambda: ...): then the run goes on by itself",
            reason=_reason(error),
        )
    )


def _refused(error: Exception) -> str:
    return message(
        "the executor takes no order",
        "make the same call again with an executor that does: it continues where it stopped",
        reason=_reason(error),
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {plain(error)}"
