"""Orders carried out by the workers of a Ray cluster.

    fwconvert --version 100B --out /shared/OUT --scratch /local/scratch --engine ray
    fwconvert.convert(recipe, out, engine=RayEngine())

Ray starts processes on other machines, notices when one of them or a whole
machine is gone, and is told to retry nothing: that is the scheduler's, so that
a run ends alike on every engine. Functions travel by their import path and
orders as plain values, so every machine needs the same fwconvert, and must see
the run. Both are checked before the first order is given out.
"""

import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from fwconvert.errors import message
from fwconvert.job.orders import Failure, Order, Outcome
from fwconvert.processes import ProcessLimits
from fwconvert.run.engines import Progress, stalled, too_large
from fwconvert.run.engines.ray_connection import connect, reason
from fwconvert.run.engines.ray_nodes import Node, NodeLost, RayNodes, no_node
from fwconvert.run.engines.ray_worker import Board, carry_out_on_node

# How often nodes, fetchers and the board are asked.
_LOOK_SECONDS = 0.5
# How often all workers together may say how far they are.
_SAID_A_SECOND = 500
# How long workers that are killed may take to be gone.
_GONE_SECONDS = 5.0


@dataclass
class _Flight:
    """An order that a node has been given."""

    order: Order
    node: Node
    number: int
    ref: Any
    # Whether the source has to be fetched first.
    fetches: bool
    fraction: float = 0.0
    tokens: int = 0
    memory: int | None = None
    # When the worker last said something; None until it has begun.
    heard_at: float | None = None
    killed_for: Failure | None = None


class RayEngine:
    """Gives orders to the machines of a Ray cluster. Connects when it is made, and stays connected.

    `most` bounds how many orders run at a time, whatever the cluster has room for.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        job_cpus: float = 1,
        job_memory: int | None = None,
        most: int | None = None,
        limits: ProcessLimits | None = None,
    ) -> None:
        self._ray = connect(address)
        self.nodes = RayNodes(self._ray, job_cpus, job_memory)
        self._most = most
        self._limits = limits or ProcessLimits()
        self._carry_out = self._ray.remote(carry_out_on_node)
        self._flights: dict[Future[Outcome], _Flight] = {}
        self._numbers = 0
        self._board: Any = None
        self._reading: Any = None
        self._board_heard_at = 0.0
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def slots(self) -> int:
        """How many orders the nodes that can be used now have room for; never 0."""
        room = sum(node.slots for node in self.nodes.states().values())
        return max(1, room if self._most is None else min(room, self._most))

    def __enter__(self) -> Self:
        self._stopping, self._ended = threading.Event(), threading.Event()
        here = self._ray.get_runtime_context().get_node_id()
        near = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=True)
        options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": near}
        self._board = self._ray.remote(Board).options(**options).remote()
        self._reading = None
        self._thread = threading.Thread(target=self._look_on, name="ray", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_GONE_SECONDS)
        left = [flight.ref for flight in self._flights.values()]
        if left:
            self._kill_all()
            self._ray.wait(left, num_returns=len(left), timeout=_GONE_SECONDS)
        self._flights.clear()
        self._ray.kill(self._board)

    def submit(self, order: Order) -> "Future[Outcome]":
        """Start an order on the node that has its source, or has most room."""
        self._numbers += 1
        chosen = self.nodes.best_for(order)
        if chosen is None:
            none: Future[Outcome] = Future()
            none.set_result(Failure("unready", no_node()))
            return none
        node, fetch = chosen
        seconds = max(_LOOK_SECONDS, self.slots / _SAID_A_SECOND)
        call = self._carry_out.options(name=order.title, **self.nodes.order_options(node.id))
        fetcher = node.fetcher if fetch else None
        ref = call.remote(order, self._board, self._numbers, seconds, fetcher)
        node.orders += 1
        future = self.nodes.ask(node, ref)
        self._flights[future] = _Flight(order, node, self._numbers, ref, fetch)
        return future

    def outcome(self, future: "Future[Outcome]") -> Outcome:
        """Return what became of an order. Orders never raise, so whatever is raised is Ray's."""
        flight = self._flights.pop(future, None)
        if flight is None:
            return future.result()
        flight.node.orders -= 1
        try:
            outcome = future.result()
        except Exception as error:  # noqa: BLE001  # all that Ray may raise
            outcome = flight.killed_for or self._failure(flight, error)
        # Having most room, a node whose workers cannot begin would be given every order.
        if isinstance(outcome, Failure) and outcome.kind == "unready" and not flight.fetches:
            self.nodes.set_aside(flight.node)
        return outcome

    def _failure(self, flight: _Flight, error: Exception) -> Failure:
        kinds, name = self._ray.exceptions, flight.node.name
        if isinstance(error, kinds.TaskCancelledError):
            return Failure("stopped", "stopped by the user")
        if isinstance(error, kinds.RayTaskError):
            return Failure(
                "unready", message("a node cannot carry out orders", node=name, reason=reason(error))
            )
        if isinstance(error, kinds.TaskUnschedulableError):
            self.nodes.lost(flight.node)
            return Failure("unready", message("a node is lost", node=name, reason=reason(error)))
        if isinstance(error, NodeLost | kinds.NodeDiedError | kinds.LocalRayletDiedError):
            self.nodes.lost(flight.node)
            return Failure("lost", message("the node was lost", node=name))
        killed = isinstance(error, kinds.OutOfMemoryError)
        wrong = "memory ran out on the node" if killed else "the worker process died"
        return Failure("lost", message(wrong, node=name, reason=reason(error)), killed=killed)

    def progress(self) -> list[Progress]:
        """Return how far the orders in flight are, as their workers last said."""
        return [
            Progress.of(flight.order, flight.fraction, flight.tokens, flight.node.name)
            for flight in self._flights.values()
        ]

    def enforce_limits(self) -> None:
        """Kill workers that have stalled or grown beyond their limits, as far as the board tells."""
        for flight in list(self._flights.values()):
            if flight.heard_at is None or flight.killed_for is not None:
                continue
            # Of a board that is silent itself nothing can be concluded.
            waited = self._board_heard_at - flight.heard_at
            failure = too_large(flight.memory, self._limits) or stalled(waited, flight.fraction, self._limits)
            if failure is not None:
                flight.killed_for = failure
                self._ray.cancel(flight.ref, force=True)

    def stop(self) -> None:
        """Ask all workers to stop at the next safe place; the board passes it on within a second."""
        self._stopping.set()

    def kill(self) -> None:
        """End all workers at once. Nobody waits for a node that does not answer."""
        self._kill_all()
        for future in list(self._flights):
            with suppress(InvalidStateError):
                future.set_result(Failure("stopped", "stopped by the user"))

    def _kill_all(self) -> None:
        for flight in list(self._flights.values()):
            self._ray.cancel(flight.ref, force=True)

    def _look_on(self) -> None:
        """Read the board and look at the nodes, in a thread, so that the scheduler never waits for Ray."""
        while not self._ended.is_set():
            with suppress(Exception):  # What is wrong with the cluster shows in the orders.
                self._read_board()
                self.nodes.look()
            if self._stopping.wait(_LOOK_SECONDS):
                self._ended.wait(_LOOK_SECONDS / 5)

    def _read_board(self) -> None:
        if self._reading is not None and self._ray.wait([self._reading], timeout=0)[0]:
            done, self._reading = self._reading, None
            said = self._ray.get(done)
            now = self._board_heard_at = time.monotonic()
            for flight in list(self._flights.values()):
                if flight.number in said:
                    flight.fraction, flight.tokens, flight.memory = said[flight.number]
                    flight.heard_at = now
        if self._reading is None:
            self._reading = self._board.read.remote(stop=self._stopping.is_set())
