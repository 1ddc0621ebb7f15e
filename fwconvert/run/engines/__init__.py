"""Where orders are carried out.

An engine runs orders and says what became of each. It decides nothing: retries,
quarantine and the order of things are the scheduler's, so that every engine
behaves alike.
"""

import traceback
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, Self

from fwconvert.addresses import plain
from fwconvert.job.orders import Failure, Order, Outcome, Reporter
from fwconvert.processes import cannot_start


@dataclass(frozen=True)
class Progress:
    """How far one order in flight is. `fraction` goes from 0 to 1."""

    key: str
    title: str
    fraction: float
    # Made so far, by encoding or by joining.
    tokens: int
    # What the whole order is: bytes of its source, or tokens of the joined shard.
    size: int

    @classmethod
    def of(cls, order: Order, fraction: float, tokens: int) -> Self:
        """Return the progress of an order, without the order itself."""
        return cls(order.key, order.title, fraction, tokens, order.size)


class Engine(Protocol):
    """Carries out orders side by side, from the beginning of a `with` block to its end.

    One engine serves one run at a time. After the block no worker is left, and
    it can be entered again.
    """

    # How many orders it can carry out at the same time.
    slots: int

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def submit(self, order: Order) -> "Future[Outcome]":
        """Start an order on a free slot. Never raises for what is wrong with a worker: that is a Failure.

        FwconvertError means that no order can be started any more.
        """

    def outcome(self, future: "Future[Outcome]") -> Outcome:
        """Return what became of a finished order, and free its slot; a dead worker is a Failure too."""

    def progress(self) -> list[Progress]:
        """Return how far the orders in flight are, as far as the engine can tell."""

    def enforce_limits(self) -> None:
        """End workers that have stalled or grown beyond their limits; called several times a second."""

    def stop(self) -> None:
        """Ask all workers to stop at the next safe place."""

    def kill(self) -> None:
        """End all workers at once, where that is possible."""


def carry_out(order: Order, reporter: Reporter) -> Outcome:
    """Carry out an order in a worker, whatever its engine. One that cannot load what it needs is unready."""
    try:
        from fwconvert.job.worker import perform  # noqa: PLC0415  # heavy (pyarrow, tokenizer): in the worker only
    except (ImportError, OSError, MemoryError) as error:
        return Failure("unready", cannot_start(error), plain(traceback.format_exc()))
    return perform(order, reporter)
