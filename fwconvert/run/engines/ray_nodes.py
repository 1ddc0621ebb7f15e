"""The machines of a Ray cluster: which can be used, which orders they have, and what they fetch.

Which machine carries out an order is decided here and not by Ray: each has fetched its own sources. A
machine that joins the cluster later is checked and used too; one that is lost takes its orders with it.
"""

import math
import threading
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fwconvert.errors import FwconvertError, UsageError, message
from fwconvert.job.orders import ConvertOrder, Failure, Order, RunContext, SourceFile
from fwconvert.recipes import SourceShard
from fwconvert.run.engines import NodeState, NodeTraffic
from fwconvert.run.engines.ray_connection import reason
from fwconvert.run.engines.ray_worker import Session, identity, look_around
from fwconvert.run.events import Faults

if TYPE_CHECKING:  # It loads the client of the hub.
    from fwconvert.run.node_prefetch import FetchPlan

# For a node to start a process and answer, when the machine is busy.
_ANSWER_SECONDS = 180.0
# How long fetchers may take to end.
_GONE_SECONDS = 5.0


class NodeLost(Exception):
    """A node is gone, and with it what it was to do."""


@dataclass
class Node:
    """A machine of the cluster, and what is known of it."""

    id: str
    name: str
    slots: int
    # Orders that it has; whether it may have any; whether it is gone for good.
    orders: int = 0
    is_ready: bool = False
    is_lost: bool = False
    # What it is asked before it is used: whether it is as it should be, and then to begin to fetch.
    looking: Any = None
    beginning: Any = None
    fetcher: Any = None
    # What it was asked for and has not answered yet.
    asked: "set[Future[Any]]" = field(default_factory=set)
    # What its fetcher last said, and the answer that is awaited.
    traffic: NodeTraffic = field(default_factory=NodeTraffic)
    news: Any = None


class RayNodes:
    """The machines of a Ray cluster that can carry out an order of this size."""

    def __init__(self, ray: Any, cpus: float, memory: int | None) -> None:
        self.ray = ray
        self.order_threads = max(1, math.floor(cpus))
        self._cpus, self._memory = cpus, memory
        self._identity = identity()
        self._look = ray.remote(look_around)
        self._session: Session | None = None
        self._plan: FetchPlan | None = None
        self._stored_plan: Any = None
        # The node that fetched the source of an order, by the order's key.
        self._holders: dict[str, str] = {}
        self._notices: list[str] = []
        # Guards all above, which the engine's own thread changes too.
        self._lock = threading.RLock()
        self.known: dict[str, Node] = {}
        self._find()
        if not self.known:
            raise UsageError(
                message(
                    "no machine of the Ray cluster can carry out a job",
                    "pass a smaller --job-cpus or --job-memory, or start Ray on more or larger machines",
                    job_cpus=f"{cpus:g}",
                    job_memory="any" if memory is None else f"{memory:,} bytes",
                    cluster=", ".join(f"{amount:g} {name}" for name, amount in self._resources()) or "empty",
                )
            )
        self._check_all()

    def _resources(self) -> list[tuple[str, float]]:
        found = self.ray.cluster_resources()
        return [(name, found[name]) for name in ("CPU", "memory") if name in found]

    def pinned(self, node: str, **more: Any) -> dict[str, Any]:
        """Return the options of a task or an actor that runs on this node, or not at all."""
        strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        return {"scheduling_strategy": strategy, **more}

    def order_options(self, node: str) -> dict[str, Any]:
        """Return the options of an order on this node."""
        memory = {} if self._memory is None else {"memory": self._memory}
        return self.pinned(node, num_cpus=self._cpus, max_retries=0, **memory)

    def _find(self) -> list[Node]:
        """Take note of which nodes there are; return those that are new."""
        alive = {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}
        new = []
        with self._lock:
            for node in self.known.values():
                if node.id not in alive:
                    self._lose(node)
            names = [node["NodeManagerHostname"] for node in alive.values()]
            for node_id, node in alive.items():
                slots = self._slots_of(node["Resources"])
                if node_id in self.known or slots < 1:
                    continue
                name = node["NodeManagerHostname"]
                # Several on one machine, as in a test, are told apart.
                self.known[node_id] = Node(
                    node_id, name if names.count(name) == 1 else f"{name}-{node_id[:4]}", slots
                )
                new.append(self.known[node_id])
        return new

    def _slots_of(self, resources: Mapping[str, float]) -> int:
        slots = math.floor(resources.get("CPU", 0) / self._cpus + 1e-9)
        if self._memory is not None:
            slots = min(slots, math.floor(resources.get("memory", 0) / self._memory))
        return slots

    def _lose(self, node: Node) -> None:
        if not node.is_lost:
            node.is_ready, node.is_lost, node.fetcher = False, True, None
            self._notices.append(f"the node {node.name} is lost; what it had is done on others")
            # Of one whose network is cut Ray says that it is dead, and goes on waiting for its answers.
            for future in list(node.asked):
                with suppress(InvalidStateError):
                    future.set_exception(NodeLost(node.name))

    def ask(self, node: Node, answer: Any) -> "Future[Any]":
        """Return a future that has what Ray answers, or NodeLost as soon as the node is lost."""
        future: Future[Any] = Future()
        with self._lock:
            node.asked.add(future)
            if node.is_lost:
                future.set_exception(NodeLost(node.name))
        future.add_done_callback(node.asked.discard)
        answer.future().add_done_callback(lambda done: _pass_on(done, future))
        return future

    def lost(self, node: Node) -> None:
        """Take note that a node is gone for good."""
        with self._lock:
            self._lose(node)

    def set_aside(self, node: Node) -> None:
        """Give no more orders to a node, unless there is no other."""
        with self._lock:
            others = [other for other in self.known.values() if other.is_ready and other is not node]
            if node.is_ready and others:
                node.is_ready = False
                self._notices.append(f"the node {node.name} gets no more orders: its workers cannot begin")

    def _asked(self, node: Node) -> Any:
        options = self.pinned(node.id, num_cpus=0, max_retries=0)
        return self._look.options(**options).remote(self._identity, self._session)

    def _check_all(self) -> None:
        """Raise UsageError unless all nodes are as they should be; waits for their answers."""
        nodes = [node for node in self.known.values() if not node.is_lost]
        answers = {node.id: self._asked(node) for node in nodes}
        self.ray.wait([*answers.values()], num_returns=len(answers), timeout=_ANSWER_SECONDS)
        self._find()  # One may have died meanwhile: then the others do.
        nodes = [node for node in nodes if not node.is_lost]
        problems = {node.name: self._answer(answers[node.id]) for node in nodes}
        if not nodes:
            raise UsageError(no_node())
        wrong = {name: problem for name, problem in problems.items() if problem}
        if wrong:
            name, problem = next(iter(wrong.items()))
            count = f"{len(wrong)} of {len(nodes)} nodes" if len(nodes) > 1 else "the node"
            raise UsageError(f"{count} of the Ray cluster cannot be used: {name}: {problem}")
        for node in nodes:
            node.is_ready = True

    def _answer(self, answer: Any) -> str:
        if not self.ray.wait([answer], timeout=0)[0]:
            return f"it has not answered for {_ANSWER_SECONDS:,.0f} s"
        try:
            problem: str = self.ray.get(answer)
        except Exception as error:  # noqa: BLE001  # among others, that fwconvert cannot be imported there
            return message(
                "it cannot run fwconvert",
                "pip install 'fwconvert[ray]' on every machine, the same version as here",
                reason=reason(error),
            )
        return problem

    def check(self, context: RunContext, *, encodes: bool, seen: Path | str | None) -> None:
        """Raise FwconvertError unless all nodes see the run (and the file `seen`) and have its tokenizer."""
        self._session = Session(context, encodes, seen)
        try:
            self._check_all()
        except UsageError as error:  # By now the run has been begun.
            raise FwconvertError(str(error)) from None

    def look(self) -> None:
        """See which nodes have come and gone, and what their fetchers say. Called by the engine's thread."""
        for node in self._find():
            node.looking = self._asked(node)
        with self._lock:
            here = [node for node in self.known.values() if not node.is_lost]
        for node in here:
            if self._has_come(node.looking):
                problem, node.looking = self._answer(node.looking), None
                self._take_in(node, problem)
            if self._has_come(node.beginning):
                answer, node.beginning = node.beginning, None
                self._use(node, self._begun(answer)[1])
            if node.fetcher is not None and node.is_ready:
                self._hear(node)

    def _has_come(self, answer: Any) -> bool:
        return answer is not None and bool(self.ray.wait([answer], timeout=0)[0])

    def _take_in(self, node: Node, problem: str) -> None:
        """Begin to use a node that has joined, unless something is wrong; if it is to fetch, that first."""
        with self._lock:  # Fetching may begin just now.
            if problem or self._plan is None:
                self._use(node, problem)
            else:
                self._start_fetcher(node)
                node.beginning = node.fetcher.begin.remote(node.slots)

    def _use(self, node: Node, problem: str) -> None:
        with self._lock:
            node.is_ready = not problem and not node.is_lost
            said = f"is not used: {problem}" if problem else "is used from now on"
            self._notices.append(f"the node {node.name} {said}")

    def _hear(self, node: Node) -> None:
        if node.news is not None and self.ray.wait([node.news], timeout=0)[0]:
            with suppress(self.ray.exceptions.RayError):  # It is started again, or the node is lost.
                traffic, said = self.ray.get(node.news)
                with self._lock:
                    node.traffic = replace(
                        traffic, downloads=tuple(replace(one, node=node.name) for one in traffic.downloads)
                    )
                    self._notices += [f"{node.name}: {text}" for text in said]
            node.news = None
        if node.news is None:
            node.news = node.fetcher.news.remote()

    def states(self) -> dict[str, NodeState]:
        """Return the nodes that can be given orders, by id."""
        with self._lock:
            return {
                node.id: NodeState(node.name, node.slots, node.orders)
                for node in self.known.values()
                if node.is_ready
            }

    def best_for(self, order: Order) -> tuple[Node, bool] | None:
        """Return the node for an order, and whether its source has to be fetched there first."""
        with self._lock:
            ready = [node for node in self.known.values() if node.is_ready]
            if not ready:
                return None
            best = max(ready, key=lambda node: (node.slots - node.orders, node.slots))
            if not isinstance(order, ConvertOrder) or not order.file.node or self._plan is None:
                return best, False
            holder = self._holders.get(order.key, order.file.node)
            held = next((node for node in ready if node.id == holder), None)
            if held is not None:
                # Its path is another if it was fetched again.
                return held, held.id != order.file.node
            self._holders[order.key] = best.id
            return best, True

    def open_fetching(self, plan: "FetchPlan") -> dict[str, frozenset[str]]:
        """Let every node fetch; return, by node, the keys of the orders of which it has something already."""
        stored = self.ray.put(plan)
        with self._lock:  # A node that joins now is ready before this, or begins to fetch by itself.
            self._plan, self._stored_plan = plan, stored
            ready = [node for node in self.known.values() if node.is_ready]
            for node in ready:
                self._start_fetcher(node)
            answers = [(node, node.fetcher.begin.remote(node.slots)) for node in ready]
        there = {}
        for node, answer in answers:
            there[node.id], problem = self._begun(answer)
            if problem:
                raise FwconvertError(f"the node {node.name} {problem}")
        return there

    def _begun(self, answer: Any) -> tuple[frozenset[str], str]:
        """Return of which orders a fetcher that begins has something, and what is wrong with it."""
        try:
            found: frozenset[str] | Failure = self.ray.get(answer, timeout=_ANSWER_SECONDS)
        except self.ray.exceptions.RayError as error:
            found = Failure("lost", message("its fetcher cannot be started", reason=reason(error)))
        if isinstance(found, Failure):
            return frozenset(), f"cannot fetch sources: {found.message}"
        return found, ""

    def _start_fetcher(self, node: Node) -> None:
        from fwconvert.run.node_prefetch import Fetcher  # noqa: PLC0415  # it loads the client of the hub

        assert self._plan is not None  # noqa: S101  # for mypy
        # All that it may be fetching, for workers too whose file was lost, and what is asked meanwhile.
        at_a_time = self._plan.ahead(node.slots) + node.slots + 4
        options = self.pinned(node.id, num_cpus=0, max_concurrency=at_a_time)
        node.fetcher = self.ray.remote(Fetcher).options(**options).remote(self._stored_plan, node.id)

    def fetch(self, node: str, order: ConvertOrder) -> "Future[SourceFile | Failure]":
        """Let a node fetch the file of an order; what the future raises means that the node is lost."""
        with self._lock:
            self._holders[order.key] = node
            fetcher = self.known[node].fetcher
        future: Future[SourceFile | Failure] = Future()
        if fetcher is None:
            future.set_exception(NodeLost(node))
            return future
        future = self.ask(self.known[node], fetcher.have.remote(order))
        future.add_done_callback(lambda done: self._fetched(node, fetcher, done))
        return future

    def _fetched(self, node_id: str, fetcher: Any, done: "Future[SourceFile | Failure]") -> None:
        """If the fetcher has died, let its node be as one that joins: looked at, and given another."""
        if done.cancelled() or done.exception() is None:
            return
        with self._lock:
            node = self.known[node_id]
            if node.fetcher is fetcher and not node.is_lost:
                node.is_ready, node.fetcher, node.news = False, None, None
                node.looking = self._asked(node)

    def release(self, order_key: str, source: SourceShard) -> None:
        """Let the node that has the file of an order remove it."""
        with self._lock:
            node = self.known.get(self._holders.pop(order_key, ""))
            fetcher = None if node is None else node.fetcher
        if fetcher is not None:
            fetcher.remove.remote(source)

    def close_fetching(self, *, clear: bool) -> None:
        """Stop what is being fetched; what has come of a file stays for the next session, or is cleared."""
        with self._lock:
            fetchers = [node.fetcher for node in self.known.values() if node.fetcher is not None]
            for node in self.known.values():
                if node.beginning is not None:  # It is as it should be, and need not fetch any more.
                    node.is_ready = not node.is_lost
                node.fetcher = node.news = node.beginning = None
            self._plan = self._stored_plan = None
            self._holders.clear()
        ends = [fetcher.end.remote(clear=clear) for fetcher in fetchers]
        if ends:
            self.ray.wait(ends, num_returns=len(ends), timeout=_GONE_SECONDS)
        for fetcher in fetchers:
            self.ray.kill(fetcher)

    def traffic(self) -> NodeTraffic:
        """Return how fetching goes, as the nodes last said."""
        with self._lock:
            said = [node.traffic for node in self.known.values()]
            at_work = [node.traffic for node in self.known.values() if node.fetcher is not None]
        return NodeTraffic(
            bytes=sum(one.bytes for one in said),
            connections=sum(one.connections for one in said),
            downloads=tuple(download for one in at_work for download in one.downloads),
            faults=sum((one.faults for one in said), Faults()),
        )

    def notices(self) -> list[str]:
        """Return what a person should know since this was last asked."""
        with self._lock:
            said, self._notices = self._notices, []
        return said


def _pass_on(done: "Future[Any]", future: "Future[Any]") -> None:
    """Give to our future what Ray's has; it may have been given up."""
    with suppress(InvalidStateError):
        error = done.exception()
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(error)


def no_node() -> str:
    """Return the message for a cluster in which every node is lost or set aside."""
    return message(
        "no node of the Ray cluster is left that could carry out an order",
        "start Ray on some machines, then run the same command again: it continues where it stopped",
    )
