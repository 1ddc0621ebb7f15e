"""Orders carried out by any executor of concurrent.futures: threads, a cluster's client, other pools.

    fwconvert.convert(recipe, out, engine=ExecutorEngine(client.get_executor(), slots=64))

The workers must see the run and the sources under the same paths. Nothing is
known of an order between its start and its end: no progress, no limits, and an
order that was begun before a stop request is carried out to its end.
"""

from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Self

from fwconvert.addresses import plain
from fwconvert.errors import message
from fwconvert.job.orders import Failure, NoReporter, Order, Outcome
from fwconvert.run.engines import Progress


@dataclass
class ExecutorEngine:
    """Gives orders to an executor, which stays its owner's to shut down."""

    executor: Executor
    slots: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, order: Order) -> "Future[Outcome]":
        """Give the order to the executor; one that takes no more orders cannot begin this one."""
        try:
            return self.executor.submit(_carry_out, order)
        except Exception as error:  # noqa: BLE001  # whatever an executor of somebody else raises
            refused: Future[Outcome] = Future()
            refused.set_result(Failure("unready", _lost(error)))
            return refused

    def outcome(self, future: "Future[Outcome]") -> Outcome:
        """Return what became of an order. Orders never raise, so whatever is raised is the executor's."""
        try:
            return future.result()
        except Exception as error:  # noqa: BLE001  # BrokenProcessPool, KilledWorker, a lost connection, ...
            return Failure("lost", _lost(error))

    def progress(self) -> list[Progress]:
        """Tell nothing: an executor does not."""
        return []

    def enforce_limits(self) -> None:
        """Leave limits to the executor."""

    def stop(self) -> None:
        """Let the orders in flight come to their end."""

    kill = stop


def _carry_out(order: Order) -> Outcome:
    from fwconvert.job.worker import perform  # noqa: PLC0415  # heavy (pyarrow, tokenizer): in the worker only

    return perform(order, NoReporter())


def _lost(error: Exception) -> str:
    return message("the executor lost a worker", reason=f"{type(error).__name__}: {plain(error)}")
