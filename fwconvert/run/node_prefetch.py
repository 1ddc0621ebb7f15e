"""Fetch sources on the machines that convert them.

An engine of several machines has a `Fetcher` on each of them. The driver hands
every source to the node that has most room, a few ahead of its workers, and
gives its order out when the file is there and a worker of that node is free. So
every node has its network and its processors busy at the same time and needs
disk for a few sources, and nobody but the driver asks the hub for a list.

A node that dies takes its files with it. Sources that it had fetched are handed
to others; of an order that it was carrying out, the engine has the file fetched
again where it is tried next.
"""

import os
import shutil
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple, Self

from fwconvert.errors import FwconvertError, OutputError, RemoteError, SourceError, Stopped, message
from fwconvert.hub.client import endpoint
from fwconvert.hub.retry import Retry
from fwconvert.job.orders import ConvertOrder, Failure, Ready, SourceFile, Unfetched
from fwconvert.options import Options
from fwconvert.recipes import Recipe, SourceShard
from fwconvert.run.engines import Nodes, NodeState, NodeTraffic
from fwconvert.run.estimate import Needs, Sample, estimate_needs
from fwconvert.run.inputs import Input, IsWanted, Readable, Traffic, always, workers_at_once
from fwconvert.run.prefetch import Prefetch
from fwconvert.sources.catalog import Size
from fwconvert.store import layout

_FEWEST_AHEAD = 4
# Nodes, or their fetchers, that may be lost with the same source in their hands before the run is given up.
_MOST_LOST = 5


@dataclass(frozen=True)
class FetchPlan:
    """What every node is told of the sources that it is to fetch."""

    prefetch: Prefetch
    session: str
    orders: tuple[ConvertOrder, ...]
    # The hub, or its mirror, for a node that knows of no other; without any password.
    endpoint: str
    # Files that a node may fetch before its workers want them; None: as many as its workers need.
    most_ahead: int | None
    # The folder of each node that must have room for them; None: nobody looks.
    room_in: Path | None

    def ahead(self, slots: int) -> int:
        """Return how many files a node of so many workers may have before one of them wants it."""
        return max(_FEWEST_AHEAD, slots // 2) if self.most_ahead is None else self.most_ahead

    def most_bytes(self, slots: int) -> int:
        """Return how much a node of so many workers may have on its disk at a time."""
        largest = max((order.source.bytes for order in self.orders), default=0)
        return largest * min(len(self.orders), slots + self.ahead(slots))


class Fetcher:
    """Fetches files on one node, as many at a time as it is asked for: its methods are called by threads."""

    def __init__(self, plan: FetchPlan, node: str) -> None:
        # Read by the client of the hub when it is first used. A node that has its own setting keeps it.
        os.environ.setdefault("HF_ENDPOINT", plan.endpoint)
        self._plan = plan
        self._node = node
        self._prefetch = plan.prefetch
        self._fetching = self._prefetch.downloading()
        self._held: ExitStack | None = None
        self._beginning = threading.Lock()

    def _have_folder(self) -> None:
        with self._beginning:
            if self._held is None:
                self._held = ExitStack()
                # Two nodes may be on one machine.
                own = f"{self._plan.session}-{self._node[:8]}"
                self._held.enter_context(self._prefetch.held(own))

    def begin(self, slots: int) -> frozenset[str] | Failure:
        """Have a folder with room for the files of so many workers; return what is there of which orders."""
        plan = self._plan
        try:
            self._have_folder()
            self._prefetch.tidy(plan.orders)
            started = self._prefetch.started(plan.orders)
            if plan.room_in is not None:
                free, needed = shutil.disk_usage(plan.room_in).free, plan.most_bytes(slots)
                if needed > free:
                    return Failure("output", _too_small(plan.room_in, needed, free))
        except (OSError, FwconvertError) as error:
            return Failure("output", str(error))
        return frozenset(order.key for order in started)

    def have(self, order: ConvertOrder) -> SourceFile | Failure:
        """Have the proven file of an order; return where it is, or why it cannot be had."""
        try:
            self._have_folder()  # One that died and was started again has none yet.
            return replace(self._prefetch.fetched(order, self._fetching), node=self._node)
        except Stopped as error:
            return Failure("stopped", str(error))
        except SourceError as error:
            return Failure("unfetched", str(error))
        except RemoteError as error:
            return Failure("unready", str(error))
        except (OSError, FwconvertError) as error:
            return Failure("output", str(error))

    def remove(self, source: SourceShard) -> None:
        """Remove a file that is not needed any more, unless it is to be kept."""
        self._prefetch.release(source)

    def news(self) -> tuple[NodeTraffic, list[str]]:
        """Return how fetching goes here, and what was to be said since this was last asked."""
        found = self._prefetch.traffic()
        said = NodeTraffic(found.bytes, found.connections, found.downloads, found.faults)
        return said, self._prefetch.notices()

    def end(self, *, clear: bool) -> None:
        """Stop all that is being fetched; if `clear`, nothing of it is needed any more."""
        self._prefetch.__exit__()
        if clear:
            self._prefetch.clear()
        if self._held is not None:
            self._held.close()


def _too_small(folder: Path, needed: int, free: int) -> str:
    return message(
        "there is not enough disk space for the sources that it fetches",
        "free some space, choose another --scratch, or fetch fewer files ahead: --prefetch",
        "pass --no-disk-check if you know better",
        folder=folder,
        needed=f"{needed:,} bytes",
        free=f"{free:,} bytes",
    )


class _Coming(NamedTuple):
    order: ConvertOrder
    node: str


class NodePrefetch(Input):
    """Files of a remote, each fetched by the node that converts it, ahead of the node's workers.

    All of it is used by the driver's one thread; only `_arrived` is filled by others.
    """

    def __init__(self, prefetch: Prefetch, options: Options, nodes: Nodes) -> None:
        self.root = prefetch.root
        self._prefetch = prefetch
        self._options = options
        self._nodes = nodes
        self._session = ""
        self._plan: FetchPlan | None = None
        self._begin()

    def _begin(self) -> None:
        self._is_wanted: IsWanted = always
        self._waiting: deque[ConvertOrder] = deque()
        # The bytes of the sources that wait, for whoever asks when so many did.
        self._waiting_bytes = (0, 0)
        self._arrived: SimpleQueue[tuple[_Coming, Future[SourceFile | Failure]]] = SimpleQueue()
        self._ready: deque[tuple[_Coming, SourceFile]] = deque()
        self._failed: deque[Unfetched] = deque()
        # By node: files that no worker has been given yet, and all files that are there or on their way.
        self._ahead: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        # The node of each source that is there or on its way, by the source's path.
        self._at: dict[str, str] = {}
        # How many are on their way, and their bytes.
        self._on_the_way = self._coming_bytes = 0
        # By order: the node on which something of its source lies, left by a session before.
        self._started: dict[str, str] = {}
        self._losses: Counter[str] = Counter()
        self._trouble: RemoteError | None = None

    # --- what is the same wherever files are fetched

    def location(self, source: SourceShard) -> Path:
        """Return where the file is, or would be, on this machine."""
        return self._prefetch.location(source)

    def sizes(self) -> Mapping[str, Size]:
        """Return what the footers of files say that are here already."""
        return self._prefetch.sizes()

    def open_footer(self, source: SourceShard, retry: Retry) -> Readable:
        """Return the file if it is here, or a view of the remote one by ranges."""
        return self._prefetch.open_footer(source, retry)

    def estimate(self, recipe: Recipe, options: Options, sample: Sample | None = None) -> Needs:  # noqa: ARG002
        """Return what a run will need here; for what lies on their own disks, the nodes look themselves."""
        needs = self._prefetch.estimate(recipe, options)
        if options.keep_folder is not None:
            return needs
        workers, states = workers_at_once(recipe, options), self._nodes.states().values()
        at_once = 0 if options.scratch_folder is not None else len(states) * _FEWEST_AHEAD + workers
        return estimate_needs(recipe, {}, workers, at_once)

    @contextmanager
    def held(self, session: str) -> Iterator[None]:
        """Keep the session's id: each node has a folder of its own for it."""
        self._session = session
        yield

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._nodes.close_fetching(clear=not self._waiting and not self._at)

    def clear(self) -> None:
        """Let every node remove what it has fetched and is not needed any more."""
        if self._plan is not None:
            self._nodes.open_fetching(replace(self._plan, orders=(), room_in=None))
            self._nodes.close_fetching(clear=True)

    # --- handing sources to nodes

    def ready(self, orders: Sequence[ConvertOrder], is_wanted: IsWanted = always) -> Ready:
        """Yield each order when its file is on a node that has a free worker.

        Raises OutputError at once, and RemoteError when all that was on its way has come.
        """
        self._is_wanted, self._waiting = is_wanted, deque(orders)
        scratch = self._options.scratch_folder if self._options.keep_folder is None else None
        self._plan = FetchPlan(
            self._prefetch,
            self._session,
            tuple(orders),
            endpoint(),
            self._options.prefetch,
            scratch if self._options.check_disk else None,
        )
        there = self._nodes.open_fetching(self._plan)
        self._started = {key: node for node, keys in there.items() for key in keys}
        while True:
            self._look()
            if self._failed:
                yield self._failed.popleft()
            elif (item := self._take()) is not None:
                self._hand_out()  # Room was made: it is used before the worker is.
                yield item
            elif self._waiting or self._on_the_way or self._ready:
                yield None
            else:
                break
        if self._trouble is not None:
            raise self._trouble

    def _look(self) -> None:
        """Take what has come, and have more fetched."""
        while True:
            try:
                coming, future = self._arrived.get_nowait()
            except Empty:
                break
            self._on_the_way -= 1
            self._coming_bytes -= coming.order.source.bytes
            self._settle(coming, future)
        self._hand_out()

    def _settle(self, coming: _Coming, future: "Future[SourceFile | Failure]") -> None:
        if future.exception() is not None:
            self._give_back(coming)
            return
        found = future.result()
        if isinstance(found, SourceFile):
            self._ready.append((coming, found))
            return
        self._forget(coming)
        if found.kind == "output":
            raise OutputError(f"{self._name(coming.node)}: {found.message}")
        if found.kind == "unfetched":
            self._failed.append(Unfetched(coming.order, found))
        else:  # No file can be fetched now: workers finish what is there.
            self._trouble = self._trouble or RemoteError(found.message)
            self._waiting.clear()

    def _name(self, node: str) -> str:
        state = self._nodes.states().get(node)
        return node[:8] if state is None else state.name

    def _forget(self, coming: _Coming) -> None:
        self._ahead[coming.node] -= 1
        self._held[coming.node] -= 1
        self._at.pop(coming.order.source.path, None)

    def _give_back(self, coming: _Coming) -> None:
        """Let another node fetch a source, since its node, or the fetcher there, is lost."""
        self._forget(coming)
        path = coming.order.source.path
        self._losses[path] += 1
        if self._losses[path] >= _MOST_LOST:
            raise FwconvertError(
                message(
                    "every node that was to fetch a source was lost",
                    "look at the machines, then run the same command again: it continues where it stopped",
                    source=path,
                    nodes=_MOST_LOST,
                )
            )
        if self._trouble is None:
            self._waiting.appendleft(coming.order)

    def _take(self) -> ConvertOrder | None:
        """Return an order whose file is on a node with a free worker, if there is one."""
        states = self._nodes.states()
        for _ in range(len(self._ready)):
            coming, file = self._ready.popleft()
            state = states.get(coming.node)
            if state is None:  # The file is gone with its node.
                self._give_back(coming)
            elif state.orders < state.slots:
                self._ahead[coming.node] -= 1
                return replace(coming.order, file=file)
            else:
                self._ready.append((coming, file))
        return None

    def _hand_out(self) -> None:
        """Let nodes that have room fetch what is wanted, the emptiest first."""
        states, plan = self._nodes.states(), self._plan
        while self._waiting and plan is not None:
            free = [
                (self._held[node] / state.slots, node)
                for node, state in states.items()
                if self._ahead[node] < plan.ahead(state.slots)
                and self._held[node] < plan.ahead(state.slots) + state.slots
            ]
            wanted = ((self._wanted_by(node, states), node) for _, node in sorted(free))
            order, node = next((found for found in wanted if found[0] is not None), (None, ""))
            if order is None:
                return
            self._waiting.remove(order)
            self._started.pop(order.key, None)
            self._ahead[node] += 1
            self._held[node] += 1
            self._at[order.source.path] = node
            self._on_the_way += 1
            self._coming_bytes += order.source.bytes
            # Its own queue: what comes after the `with` block is nobody's.
            arrived, coming = self._arrived, _Coming(order, node)
            self._nodes.fetch(node, order).add_done_callback(
                lambda future, arrived=arrived, coming=coming: arrived.put((coming, future))  # type: ignore[misc]
            )

    def _wanted_by(self, node: str, states: Mapping[str, NodeState]) -> ConvertOrder | None:
        """Return what a node should fetch next: what it has begun before what nobody has.

        What another one has begun is left to that, which goes on where a session before was cut off.
        """
        if node in self._started.values():
            for order in self._waiting:
                if self._started.get(order.key) == node and self._is_wanted(order):
                    return order
        for order in self._waiting:
            if self._started.get(order.key) not in states:
                return order if self._is_wanted(order) else None
        return None

    def release(self, source: SourceShard) -> None:
        """Let the node remove the file, unless it is to be kept, and another one be fetched."""
        node = self._at.pop(source.path, None)
        if node is not None:
            self._held[node] -= 1
        self._nodes.release(layout.job_key(source.path), source)
        self._hand_out()

    def traffic(self) -> Traffic:
        """Return how fetching goes."""
        self._look()
        said = self._nodes.traffic()
        coming = self._on_the_way > 0 or self._trouble is not None
        if self._waiting_bytes[0] != len(self._waiting):
            self._waiting_bytes = len(self._waiting), sum(one.source.bytes for one in self._waiting)
        return Traffic(
            bytes=said.bytes,
            here=len(self._at) - self._on_the_way,
            coming=coming,
            connections=said.connections,
            downloads=said.downloads,
            to_fetch=self._waiting_bytes[1]
            + max(0, self._coming_bytes - sum(one.bytes for one in said.downloads)),
            faults=said.faults,
        )
