"""Sources that nodes fetch for themselves: who gets which, how many at a time, and what a lost node costs.

The nodes are a stand-in here, whose answers the tests give; e2e/test_ray has real ones.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import examples
import pytest

from fwconvert.errors import FwconvertError, OutputError, RemoteError
from fwconvert.hub.dataset import Dataset
from fwconvert.job.orders import ConvertOrder, Failure, Ready, RunContext, SourceFile, Unfetched
from fwconvert.options import Options
from fwconvert.recipes import SourceShard
from fwconvert.run.engines import NodeState, NodeTraffic
from fwconvert.run.node_prefetch import FetchPlan, NodePrefetch
from fwconvert.run.prefetch import Prefetch, Terms

FILES = tuple(SourceShard(f"sample/{number:03}.parquet", 10, f"{number:064x}") for number in range(12))
MANIFEST = examples.recipe_with(files=FILES).source


class FakeNodes:
    """Two nodes of two workers, unless told; a fetch ends when the test says so."""

    order_threads = 1

    def __init__(self, **slots: int) -> None:
        self.nodes = {name: NodeState(name, count, 0) for name, count in (slots or {"a": 2, "b": 2}).items()}
        self.asked: list[tuple[str, str, Future[SourceFile | Failure]]] = []
        self.released: list[str] = []
        self.started: dict[str, frozenset[str]] = {}
        self.cleared: list[bool] = []

    def check(self, context: RunContext, *, encodes: bool, seen: Path | str | None) -> None:
        """Find nothing wrong."""

    def states(self) -> Mapping[str, NodeState]:
        return self.nodes

    def open_fetching(self, plan: FetchPlan) -> Mapping[str, frozenset[str]]:
        self.plan = plan
        return self.started

    def fetch(self, node: str, order: ConvertOrder) -> "Future[SourceFile | Failure]":
        self.asked.append((node, order.source.path, Future()))
        return self.asked[-1][2]

    def release(self, order_key: str, source: SourceShard) -> None:  # noqa: ARG002
        self.released.append(source.path)

    def close_fetching(self, *, clear: bool) -> None:
        self.cleared.append(clear)

    def traffic(self) -> NodeTraffic:
        return NodeTraffic()

    def notices(self) -> list[str]:
        return []

    def answer(self, answer: SourceFile | Failure | Exception | None = None) -> None:
        """End all fetches that are under way."""
        for node, path, future in self.asked:
            if not future.done():
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer or SourceFile(path, proven=True, node=node))

    def occupy(self, node: str, orders: int) -> None:
        self.nodes[node] = replace(self.nodes[node], orders=orders)

    def at(self, node: str) -> list[str]:
        return [path[-11:-8] for asked, path, _ in self.asked if asked == node]


def inputs_of(nodes: FakeNodes, tmp_path: Path, prefetch: int | None = 1) -> NodePrefetch:
    remote = Dataset(MANIFEST.dataset, MANIFEST.revision)
    local = Prefetch(remote, MANIFEST, Terms(1, 1, 1, 5.0), tmp_path, None)
    return NodePrefetch(local, Options(prefetch=prefetch), nodes).__enter__()


def orders() -> list[ConvertOrder]:
    context = RunContext("out", "recipe", examples.RULES, "session")
    return [ConvertOrder(context, file, at, SourceFile(file.path)) for at, file in enumerate(FILES)]


def given(ready: Ready) -> list[tuple[str, str]]:
    """Return the orders that are ready now, with their nodes."""
    found = []
    while isinstance(item := next(ready), ConvertOrder):
        found.append((item.source.path[-11:-8], item.file.node))
    assert item is None
    return found


def test_the_emptiest_node_gets_the_next_source_and_no_node_more_than_it_may_have(tmp_path: Path) -> None:
    nodes = FakeNodes(a=1, b=2)
    inputs = inputs_of(nodes, tmp_path, prefetch=2)
    ready = inputs.ready(orders())

    assert given(ready) == []
    assert (nodes.at("a"), nodes.at("b")) == (["000", "003"], ["001", "002"])
    nodes.answer()
    first = next(ready)
    assert isinstance(first, ConvertOrder)
    nodes.occupy("a", 1)  # A worker has it: another source may be fetched, and then no more.
    nodes.answer()
    given(ready)
    assert len(nodes.at("a")) == 3
    nodes.answer()
    assert all(node == "b" for _, node in given(ready))
    assert len(nodes.at("a")) == 3

    inputs.release(first.source)
    assert nodes.released == [first.source.path]
    nodes.occupy("a", 0)
    assert ("003", "a") in given(ready)
    assert len(nodes.at("a")) == 4


def test_an_order_waits_until_a_worker_of_the_node_that_has_its_file_is_free(tmp_path: Path) -> None:
    nodes = FakeNodes(a=1, b=1)
    ready = inputs_of(nodes, tmp_path).ready(orders())
    next(ready)
    nodes.occupy("a", 1)
    nodes.answer()
    assert given(ready) == [("001", "b")]
    nodes.occupy("a", 0)
    assert given(ready)[0] == ("000", "a")


def test_a_lost_node_s_sources_are_fetched_by_others(tmp_path: Path) -> None:
    nodes = FakeNodes(a=2, b=2)
    ready = inputs_of(nodes, tmp_path).ready(orders())
    assert given(ready) == []
    assert (nodes.at("a"), nodes.at("b")) == (["000"], ["001"])
    nodes.asked[0][2].set_exception(ConnectionError("gone"))  # While it fetches ...
    nodes.answer()
    del nodes.nodes["b"]  # ... and with a file that it has.
    assert given(ready) == []
    assert nodes.at("a") == ["000", "000"]
    nodes.answer()
    assert given(ready) == [("000", "a")]
    assert nodes.at("a") == ["000", "000", "001"]
    nodes.answer()
    assert given(ready) == [("001", "a")]


def test_a_source_that_no_node_survives_ends_the_run_with_its_name(tmp_path: Path) -> None:
    nodes = FakeNodes(a=1)
    ready = inputs_of(nodes, tmp_path).ready(orders())
    for _ in range(5):
        next(ready)
        nodes.answer(ConnectionError("gone"))
    with pytest.raises(FwconvertError, match="every node that was to fetch a source was lost"):
        next(ready)


def test_a_source_that_cannot_be_fetched_is_given_up_alone(tmp_path: Path) -> None:
    nodes = FakeNodes(a=1)
    ready = inputs_of(nodes, tmp_path).ready(orders())
    next(ready)
    nodes.answer(Failure("unfetched", "no such file"))
    item = next(ready)
    assert isinstance(item, Unfetched)
    assert (item.order.source.path, item.failure.message) == (FILES[0].path, "no such file")
    nodes.answer()
    assert given(ready)[0] == ("001", "a")


def test_what_has_come_is_given_out_before_it_is_said_that_the_hub_is_away(tmp_path: Path) -> None:
    nodes = FakeNodes(a=2, b=2)
    ready = inputs_of(nodes, tmp_path).ready(orders())
    next(ready)
    nodes.asked[0][2].set_result(Failure("unready", "no way to the hub"))
    nodes.answer()
    item = next(ready)
    assert isinstance(item, ConvertOrder)
    with pytest.raises(RemoteError, match="no way to the hub"):
        next(ready)
    assert len(nodes.asked) == 2


def test_a_full_disk_of_a_node_ends_the_run_at_once_and_names_it(tmp_path: Path) -> None:
    nodes = FakeNodes(a=1)
    ready = inputs_of(nodes, tmp_path).ready(orders())
    next(ready)
    nodes.answer(Failure("output", "no space left"))
    with pytest.raises(OutputError, match="a: no space left"):
        next(ready)


def test_a_node_goes_on_with_what_an_earlier_session_left_on_its_disk(tmp_path: Path) -> None:
    nodes, wanted = FakeNodes(a=1, b=1), orders()
    nodes.started = {"b": frozenset({wanted[5].key})}
    ready = inputs_of(nodes, tmp_path).ready(wanted)
    next(ready)
    assert (nodes.at("a"), nodes.at("b")) == (["000"], ["005"])


def test_what_a_node_has_begun_is_left_to_it_until_it_is_lost(tmp_path: Path) -> None:
    nodes, wanted = FakeNodes(a=1, b=1), orders()
    nodes.started = {"b": frozenset(order.key for order in wanted[:3])}
    ready = inputs_of(nodes, tmp_path).ready(wanted)
    assert given(ready) == []
    assert (nodes.at("a"), nodes.at("b")) == (["003"], ["000"])
    del nodes.nodes["b"]
    nodes.answer()
    assert given(ready) == [("003", "a")]
    assert nodes.at("a") == ["003", "001"]


def test_what_is_not_wanted_yet_is_not_fetched(tmp_path: Path) -> None:
    nodes = FakeNodes(a=8)
    ready = inputs_of(nodes, tmp_path, None).ready(orders(), lambda order: order.source_index < 2)
    next(ready)
    assert nodes.at("a") == ["000", "001"]


def test_nodes_clear_their_disks_only_when_all_is_done(tmp_path: Path) -> None:
    nodes = FakeNodes(a=12)
    inputs = inputs_of(nodes, tmp_path, None)
    ready = inputs.ready(orders())
    next(ready)
    inputs.__exit__()
    with inputs:
        ready = inputs.ready(orders())
        next(ready)
        nodes.answer()
        for item in ready:
            if isinstance(item, ConvertOrder):
                inputs.release(item.source)
            nodes.answer()
    assert nodes.cleared == [False, True]
