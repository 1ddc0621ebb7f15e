"""Orders carried out by the workers of a Ray cluster.

    fwconvert --version 100B --out /shared/OUT --scratch /local/scratch --engine ray
    fwconvert.convert(recipe, out, engine=RayEngine())

Ray starts processes on other machines, notices when one of them or a whole
machine is gone, and is told to retry nothing: that is the scheduler's, so that
a run ends alike on every engine. Functions travel by their import path and
orders as plain values, so every machine needs the same fwconvert, and must see
the run. Both are checked before the first order is given out.

Which machine carries out an order is decided here and not by Ray: each has
fetched its own sources. A machine that joins the cluster later is checked and
used too; the orders of one that is lost are tried elsewhere.
"""

import hashlib
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fwconvert import files, machine
from fwconvert.addresses import plain
from fwconvert.errors import FwconvertError, OutputError, Stopped, UsageError, message
from fwconvert.job.orders import ConvertOrder, Failure, Order, Outcome, Reporter, RunContext, SourceFile
from fwconvert.processes import ProcessLimits
from fwconvert.recipes import SourceShard
from fwconvert.run.engines import NodeState, NodeTraffic, Progress, carry_out, stalled, too_large
from fwconvert.run.events import Faults
from fwconvert.store import base, layout
from fwconvert.store.local import open_store

if TYPE_CHECKING:  # It loads the client of the hub.
    from fwconvert.run.node_prefetch import FetchPlan

# For a node to start a process and answer, when the machine is busy.
_ANSWER_SECONDS = 180.0
_KNOCK_SECONDS = 10.0
# How often nodes, fetchers and the board are asked.
_LOOK_SECONDS = 0.5
# How often all workers together may say how far they are.
_SAID_A_SECOND = 500
# A board that has not answered for this long is told again: perhaps the message was lost with it.
_SILENCE_SECONDS = 30.0
# How long workers that are killed may take to be gone.
_GONE_SECONDS = 5.0
# What decides the tokens and the bytes, beside fwconvert itself.
_PACKAGES = ("gigatoken", "tiktoken", "regex", "zstandard")


def load() -> Any:
    """Return Ray, or raise UsageError that says how to get it."""
    try:
        import ray  # noqa: PLC0415  # an extra, and slow to load
    except ImportError as error:
        raise UsageError(
            message(
                "--engine ray needs Ray, which is not installed",
                "pip install 'fwconvert[ray]', here and on every machine of the cluster",
                reason=f"{type(error).__name__}: {plain(error)}",
            )
        ) from error
    return ray


def connect(address: str | None) -> Any:
    """Return Ray, connected to the cluster at `address`, or to the one of this machine or RAY_ADDRESS.

    A connection that the program has already is used. Raises UsageError if there is no cluster.
    """
    ray = load()
    if ray.is_initialized():
        return ray
    if address is not None and address.startswith("ray://"):
        raise UsageError(
            message(
                "ray:// is the address of Ray Client, which keeps programs outside of the cluster",
                "run the command on a machine of the cluster, or by `ray job submit`: it must see the output",
                address=address,
            )
        )
    try:
        _knock(address or os.environ.get("RAY_ADDRESS", ""))
        with _handlers_kept():
            ray.init(address or "auto", log_to_driver=False, configure_logging=False, include_dashboard=False)
        _silence(ray)
    except Exception as error:  # Ray raises what it likes: ConnectionError, RuntimeError, ValueError, ...
        raise UsageError(
            message(
                "the Ray cluster cannot be reached",
                "start one with `ray start --head` here and `ray start --address=HOST:6379` elsewhere",
                "or name another with --ray-address HOST:6379",
                address=address or "of this machine, or RAY_ADDRESS",
                reason=_reason(error),
            )
        ) from error
    return ray


def _silence(ray: Any) -> None:
    """Keep Ray from printing, on standard output, that a node is lost: that is said by us.

    No setting does it, so what it listens with is closed. A version that has none of this prints.
    """
    with suppress(Exception):
        worker = ray._private.worker.global_worker  # noqa: SLF001
        worker.threads_stopped.set()
        worker.gcs_error_subscriber.close()


def _knock(address: str) -> None:
    """Raise OSError if nobody listens at HOST:PORT: Ray would try for minutes before it said so."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep what this program does on signals: Ray has SIGTERM end the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def identity() -> str:
    """Return what must be the same on all machines: fwconvert, its very code, and what decides the tokens."""
    package, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(files.sha256_of(path).encode())
    versions = [f"{name} {_version(name)}" for name in ("fwconvert", *_PACKAGES)]
    return f"{versions[0]} (code {digest.hexdigest()[:12]}), {', '.join(versions[1:])}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


@dataclass(frozen=True)
class _Session:
    """What a node must be able to do for a session: see its run and a source, and load its tokenizer."""

    context: RunContext
    encodes: bool
    seen: Path | None


def look_around(wanted: str, session: _Session | None) -> str:
    """Return what is wrong with the machine that this is called on; "" if nothing."""
    found = identity()
    if found != wanted:
        advice = "install the same fwconvert on all machines of the cluster, with the same packages"
        return message("it has another fwconvert than the driver", advice, driver=wanted, node=found)
    try:
        return "" if session is None else _problem(session)
    except (OutputError, UsageError) as error:  # Of a bucket too: no extra s3 there, or no credentials.
        return str(error)
    except Exception as error:  # noqa: BLE001  # whatever a vocabulary or its libraries raise
        name = "" if session is None else session.context.rules.tokenizer
        return message("it cannot load the tokenizer", tokenizer=name, reason=_reason(error))


def _problem(session: _Session) -> str:
    context = session.context
    store = open_store(context.run, context.session, context.scratch)
    try:
        sees_run = base.exists(store, layout.session(context.session))
    except OSError:
        sees_run = False
    if not sees_run:
        shared = "--out must be a folder that all machines share, under the same path"
        return message("it does not see the run that the driver sees", shared, out=context.run)
    if session.seen is not None and not session.seen.is_file():
        shared = "the files must be in a folder that all machines share, under the same path"
        return message("it does not see a file that it is to read", shared, file=session.seen)
    with store.draft("probe") as probe:
        probe.write(b"probe")
        probe.finish()
    if session.encodes:
        _load_tokenizer(context)
    return ""


def _load_tokenizer(context: RunContext) -> None:
    from fwconvert.tokens import registry  # noqa: PLC0415  # heavy: on the nodes only
    from fwconvert.tokens.spec import Loading  # noqa: PLC0415

    store = open_store(context.run, context.session, context.scratch)
    how = Loading(context.encoder, context.threads, store.local(layout.TEMPORARY))
    registry.load(registry.of_rules(context.rules), store.local(layout.VOCABULARIES), how)


class Board:
    """Where workers say how far they are, and read whether to stop: an actor, which may die at any time."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[float, int, int | None]] = {}
        self._stop = False

    def say(self, number: int, fraction: float, tokens: int, memory: int | None) -> bool:
        """Take note of how far an order is; return whether to stop."""
        self._said[number] = fraction, tokens, memory
        return self._stop

    def read(self, *, stop: bool) -> dict[int, tuple[float, int, int | None]]:
        """Return what was said since this was last called; from now on workers are told whether to stop."""
        self._stop = stop
        said, self._said = self._said, {}
        return said


class BoardReporter:
    """Tells the board how far an order is, now and then. Never waits for it, and never fails with it."""

    def __init__(self, ray: Any, board: Any, number: int, seconds: float) -> None:
        self._ray, self._board, self._number, self._seconds = ray, board, number, seconds
        self._fraction, self._tokens = 0.0, 0
        self._answer: Any = None
        self._said_at = self._sent_at = -math.inf
        self._stop = False
        self._talking = threading.Lock()

    def show(self, done: int, total: int) -> None:
        """Keep how much of the order is done, for the next message."""
        self._fraction = done / max(1, total)

    def show_text(self, tokens: int, text_bytes: int) -> None:  # noqa: ARG002  # part of the protocol
        """Keep how many tokens the order has made so far, for the next message."""
        self._tokens = tokens

    def beat(self) -> None:
        """Say that the worker is alive, if it is time to."""
        if time.monotonic() - self._said_at >= self._seconds and self._talking.acquire(blocking=False):
            try:
                self._talk()
            except Exception:  # noqa: BLE001  # a board that is gone is no reason to stop working
                self._answer = None
            finally:
                self._said_at = time.monotonic()
                self._talking.release()

    def _talk(self) -> None:
        """Read the answer to the last message, if it is there, and send another; never two at a time."""
        if self._answer is not None:
            if not self._ray.wait([self._answer], timeout=0)[0]:
                if time.monotonic() - self._sent_at > _SILENCE_SECONDS:
                    self._answer = None
                return
            self._stop = self._stop or self._ray.get(self._answer)
        self._sent_at = time.monotonic()
        self._answer = self._board.say.remote(
            self._number, self._fraction, self._tokens, machine.resident_bytes()
        )

    def check(self) -> None:
        """Say that the worker is alive, if it is time to; raise Stopped if the board said so."""
        self.beat()
        if self._stop:
            raise Stopped("stopped by the user")


def carry_out_on_node(order: Order, board: Any, number: int, seconds: float, fetcher: Any) -> Outcome:
    """Carry out an order in a worker of Ray's; if `fetcher` is given, have it fetch the source first."""
    import ray  # noqa: PLC0415  # it is there: this is its process

    reporter = BoardReporter(ray, board, number, seconds)
    if fetcher is not None and isinstance(order, ConvertOrder):
        try:
            file = _fetched_here(ray, fetcher, order, reporter)
        except Stopped as error:
            return Failure("stopped", str(error))
        except ray.exceptions.RayError as error:
            return Failure("lost", message("the process that fetches sources died", reason=_reason(error)))
        if isinstance(file, Failure):
            return replace(file, kind="job") if file.kind == "unfetched" else file
        order = replace(order, file=file)
    return carry_out(order, reporter)


def _fetched_here(ray: Any, fetcher: Any, order: ConvertOrder, reporter: Reporter) -> "SourceFile | Failure":
    coming = fetcher.have.remote(order)
    while not ray.wait([coming], timeout=_LOOK_SECONDS)[0]:
        reporter.check()
    file: SourceFile | Failure = ray.get(coming)
    return file


class NodeLost(Exception):
    """A node is gone, and with it what it was to do."""


@dataclass
class _Node:
    id: str
    name: str
    slots: int
    # Orders that it has; whether it may have any; whether it is gone for good.
    orders: int = 0
    is_ready: bool = False
    is_lost: bool = False
    looking: Any = None
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
        self._session: _Session | None = None
        self._plan: FetchPlan | None = None
        self._stored_plan: Any = None
        # The node that fetched the source of an order, by the order's key.
        self._holders: dict[str, str] = {}
        self._notices: list[str] = []
        # Guards all above, which the engine's own thread changes too.
        self._lock = threading.RLock()
        self.known: dict[str, _Node] = {}
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

    def _find(self) -> list[_Node]:
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
                self.known[node_id] = _Node(
                    node_id, name if names.count(name) == 1 else f"{name}-{node_id[:4]}", slots
                )
                new.append(self.known[node_id])
        return new

    def _slots_of(self, resources: Mapping[str, float]) -> int:
        slots = math.floor(resources.get("CPU", 0) / self._cpus + 1e-9)
        if self._memory is not None:
            slots = min(slots, math.floor(resources.get("memory", 0) / self._memory))
        return slots

    def _lose(self, node: _Node) -> None:
        if not node.is_lost:
            node.is_ready, node.is_lost, node.fetcher = False, True, None
            self._notices.append(f"the node {node.name} is lost; what it had is done on others")
            # Of one whose network is cut Ray says that it is dead, and goes on waiting for its answers.
            for future in list(node.asked):
                with suppress(InvalidStateError):
                    future.set_exception(NodeLost(node.name))

    def ask(self, node: _Node, answer: Any) -> "Future[Any]":
        """Return a future that has what Ray answers, or NodeLost as soon as the node is lost."""
        future: Future[Any] = Future()
        with self._lock:
            node.asked.add(future)
            if node.is_lost:
                future.set_exception(NodeLost(node.name))
        future.add_done_callback(node.asked.discard)
        answer.future().add_done_callback(lambda done: _pass_on(done, future))
        return future

    def lost(self, node: _Node) -> None:
        """Take note that a node is gone for good."""
        with self._lock:
            self._lose(node)

    def set_aside(self, node: _Node) -> None:
        """Give no more orders to a node, unless there is no other."""
        with self._lock:
            others = [other for other in self.known.values() if other.is_ready and other is not node]
            if node.is_ready and others:
                node.is_ready = False
                self._notices.append(f"the node {node.name} gets no more orders: its workers cannot begin")

    def _asked(self, node: _Node) -> Any:
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
            raise UsageError(_no_node())
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
                reason=_reason(error),
            )
        return problem

    def check(self, context: RunContext, *, encodes: bool, seen: Path | None) -> None:
        """Raise FwconvertError unless all nodes see the run (and the file `seen`) and have its tokenizer."""
        self._session = _Session(context, encodes, seen)
        try:
            self._check_all()
        except UsageError as error:  # By now the run has been begun.
            raise FwconvertError(str(error)) from None

    def look(self) -> None:
        """See which nodes have come and gone, and what their fetchers say. Called by the engine's thread."""
        for node in self._find():
            node.looking = self._asked(node)
        for node in list(self.known.values()):
            if node.is_lost:
                continue
            if node.looking is not None and self.ray.wait([node.looking], timeout=0)[0]:
                self._take_in(node, self._answer(node.looking))
            if node.fetcher is not None:
                self._hear(node)

    def _take_in(self, node: _Node, problem: str) -> None:
        """Begin to use a node that has joined, unless something is wrong with it."""
        node.looking = None
        if not problem and self._plan is not None:
            self._start_fetcher(node)
            try:
                self._begun(node, node.fetcher.begin.remote(node.slots))
            except FwconvertError as error:
                problem = str(error)
        with self._lock:
            node.is_ready = not problem
            said = f"is not used: {problem}" if problem else "is used from now on"
            self._notices.append(f"the node {node.name} {said}")

    def _hear(self, node: _Node) -> None:
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

    def best_for(self, order: Order) -> tuple[_Node, bool] | None:
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
        self._plan, self._stored_plan = plan, self.ray.put(plan)
        begun = {}
        for node in self.known.values():
            if node.is_ready:
                self._start_fetcher(node)
                begun[node.id] = node.fetcher.begin.remote(node.slots)
        return {node: self._begun(self.known[node], answer) for node, answer in begun.items()}

    def _begun(self, node: _Node, answer: Any) -> frozenset[str]:
        try:
            found: frozenset[str] | Failure = self.ray.get(answer, timeout=_ANSWER_SECONDS)
        except self.ray.exceptions.RayError as error:
            found = Failure("lost", message("its fetcher cannot be started", reason=_reason(error)))
        if isinstance(found, Failure):
            raise FwconvertError(f"the node {node.name} cannot fetch sources: {found.message}")
        return found

    def _start_fetcher(self, node: _Node) -> None:
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
                node.fetcher = node.news = None
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


@dataclass
class _Flight:
    """An order that a node has been given."""

    order: Order
    node: _Node
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
            none.set_result(Failure("unready", _no_node()))
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
                "unready", message("a node cannot carry out orders", node=name, reason=_reason(error))
            )
        if isinstance(error, kinds.TaskUnschedulableError):
            self.nodes.lost(flight.node)
            return Failure("unready", message("a node is lost", node=name, reason=_reason(error)))
        if isinstance(error, NodeLost | kinds.NodeDiedError | kinds.LocalRayletDiedError):
            self.nodes.lost(flight.node)
            return Failure("lost", message("the node was lost", node=name))
        killed = isinstance(error, kinds.OutOfMemoryError)
        wrong = "memory ran out on the node" if killed else "the worker process died"
        return Failure("lost", message(wrong, node=name, reason=_reason(error)), killed=killed)

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


def _pass_on(done: "Future[Outcome]", future: "Future[Outcome]") -> None:
    """Give to our future what Ray's has; it may have been given up."""
    with suppress(InvalidStateError):
        error = done.exception()
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(error)


def _no_node() -> str:
    return message(
        "no node of the Ray cluster is left that could carry out an order",
        "start Ray on some machines, then run the same command again: it continues where it stopped",
    )


def _reason(error: BaseException) -> str:
    """Return one line: Ray puts a traceback before what it says, or pages of advice after it."""
    error = getattr(error, "cause", None) or error
    text = str(error) if isinstance(error, FwconvertError) else f"{type(error).__name__}: {plain(error)}"
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
