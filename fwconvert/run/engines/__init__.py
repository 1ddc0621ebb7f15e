"""Where orders are carried out.

An engine runs orders and says what became of each. It decides nothing: retries,
quarantine and the order of things are the scheduler's, so that every engine
behaves alike.
"""

import traceback
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from fwconvert.addresses import plain
from fwconvert.errors import message
from fwconvert.job.orders import ConvertOrder, Failure, Order, Outcome, Reporter, RunContext, SourceFile
from fwconvert.processes import ProcessLimits, cannot_start
from fwconvert.recipes import SourceShard
from fwconvert.run.events import NO_FAULTS, Download, Faults
from fwconvert.store.local import open_store

if TYPE_CHECKING:  # It imports this module.
    from fwconvert.run.node_prefetch import FetchPlan


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
    # The machine that it runs on; "" where there is only one.
    node: str = ""

    @classmethod
    def of(cls, order: Order, fraction: float, tokens: int, node: str = "") -> Self:
        """Return the progress of an order, without the order itself."""
        return cls(order.key, order.title, fraction, tokens, order.size, node)


class Engine(Protocol):
    """Carries out orders side by side, from the beginning of a `with` block to its end.

    One engine serves one run at a time. After the block no worker is left, and
    it can be entered again.
    """

    @property
    def slots(self) -> int:
        """How many orders it can carry out at the same time, now: machines may come and go."""

    @property
    def nodes(self) -> "Nodes | None":
        """The machines of its workers, if each of them is to fetch its own sources; None: only this one."""

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


@dataclass(frozen=True)
class NodeState:
    """A node that can be given orders."""

    name: str
    # How many orders it can carry out at the same time, and how many it has.
    slots: int
    orders: int


@dataclass(frozen=True)
class NodeTraffic:
    """What the nodes have fetched so far, and by how many connections they fetch now."""

    bytes: int = 0
    connections: int = 0
    downloads: tuple[Download, ...] = ()
    faults: Faults = NO_FAULTS


class Nodes(Protocol):
    """The machines of an engine that has several. No method waits for a machine, except those that say so."""

    # How many threads an order may use there.
    order_threads: int

    def check(self, context: RunContext, *, encodes: bool, seen: Path | str | None) -> None:
        """Raise FwconvertError unless all nodes see the run and have its tokenizer.

        And what all of them read, if that is a file or another run. Waits for their answers. A node that
        joins later is checked before it is used.
        """

    def states(self) -> Mapping[str, NodeState]:
        """Return the nodes that can be given orders, by id."""

    def open_fetching(self, plan: "FetchPlan") -> Mapping[str, frozenset[str]]:
        """Let every node fetch; return, by node, the keys of the orders of which it has something already.

        Raises FwconvertError if one cannot. Waits for their answers.
        """

    def fetch(self, node: str, order: ConvertOrder) -> "Future[SourceFile | Failure]":
        """Let a node fetch the file of an order; what the future raises means that the node is lost."""

    def release(self, order_key: str, source: SourceShard) -> None:
        """Let the node that has the file of an order remove it."""

    def close_fetching(self, *, clear: bool) -> None:
        """Stop what is being fetched; what has come of a file stays for the next session, or is cleared."""

    def traffic(self) -> NodeTraffic:
        """Return how fetching goes, as the nodes last said."""

    def notices(self) -> list[str]:
        """Return what a person should know since this was last asked."""


def too_large(had: int | None, limits: ProcessLimits) -> Failure | None:
    """Return the failure of an order whose worker has more memory than it may, if it has."""
    most = limits.memory_bytes
    if most is None or had is None or had <= most:
        return None
    text = message(
        "the worker process needed too much memory and was killed",
        "if the source is sound, allow more with --worker-memory, with fewer --workers",
        had=f"{had:,} bytes",
        allowed=f"{most:,} bytes",
    )
    return Failure("job", text)


def stalled(waited: float, fraction: float, limits: ProcessLimits) -> Failure | None:
    """Return the failure of an order whose worker has given no sign of life for too long, if so."""
    if limits.stall_seconds is None or waited <= limits.stall_seconds:
        return None
    text = message(
        "the worker process made no progress and was killed",
        "look at the disk and at the source; if both are sound, allow more with --stall-timeout",
        waited=f"{waited:,.0f} s",
        done=f"{fraction:.0%}",
    )
    return Failure("job", text)


def load(context: RunContext | None) -> None:
    """Load in a worker what its first order will need: the imports and, of a run, the tokenizer.

    What is wrong is the order's to say.
    """
    with suppress(Exception):
        from fwconvert.job import worker  # noqa: PLC0415  # heavy (pyarrow, tokenizer): in the worker only

        if context is not None:
            worker.load_tokenizer(context, open_store(context.run, context.session, context.scratch))


def carry_out(order: Order, reporter: Reporter) -> Outcome:
    """Carry out an order in a worker, whatever its engine. One that cannot load what it needs is unready."""
    try:
        from fwconvert.job.worker import perform  # noqa: PLC0415  # heavy (pyarrow, tokenizer): in the worker only
    except (ImportError, OSError, MemoryError) as error:
        return Failure("unready", cannot_start(error), plain(traceback.format_exc()))
    return perform(order, reporter)
