"""What handing out orders costs: the scheduler with an engine that has each order done at once.

scripts/bench scheduler --orders 20000 --slots 4000

All else is as in a run: the real scheduler, state and tracker, which count receipts, show progress and write
manifest.json now and then into a real folder. It is what a driver adds to the work of its cluster.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Self

from fwconvert.job.orders import ConvertOrder, Order, Outcome, Ready, RunContext, SourceFile
from fwconvert.recipes import Recipe, SourceManifest, SourceShard, Totals
from fwconvert.run import request, scheduler
from fwconvert.run.engines import Progress
from fwconvert.run.events import SilentObserver, Snapshot, StopSwitch
from fwconvert.run.inputs import Input, IsWanted, always
from fwconvert.run.state import Done, RunState
from fwconvert.run.tracker import Tracker
from fwconvert.sources.catalog import Size
from fwconvert.store import layout
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import Counts, Receipt, ShardLine, Tail


class AtOnce:
    """An engine whose workers need no time."""

    nodes = None

    def __init__(self, slots: int, receipts: Mapping[str, Receipt]) -> None:
        self.slots = slots
        self._receipts = receipts
        self._flying: dict[Future[Outcome], Order] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def submit(self, order: Order) -> "Future[Outcome]":
        """Have it done."""
        future: Future[Outcome] = Future()
        self._flying[future] = order
        future.set_result(self._receipts[order.key])
        return future

    def outcome(self, future: "Future[Outcome]") -> Outcome:
        """Return its receipt."""
        del self._flying[future]
        return future.result()

    def progress(self) -> list[Progress]:
        """Return all that are in flight, as a cluster would."""
        return [Progress.of(order, 0.5, 1000) for order in self._flying.values()]

    def enforce_limits(self) -> None:
        """Nothing stalls."""

    def stop(self) -> None:
        """Nothing runs."""

    def kill(self) -> None:
        """Nothing runs."""


class Watching(SilentObserver):
    """Counts how often progress was shown."""

    def __init__(self) -> None:
        self.updates = 0

    def update(self, snapshot: Snapshot) -> None:  # noqa: ARG002
        """Count it."""
        self.updates += 1


class AllHere(Input):
    """Sources that need not be fetched."""

    root = None

    def location(self, source: SourceShard) -> Path:
        """Return where it would be."""
        return Path("/") / source.path

    def sizes(self) -> Mapping[str, Size]:
        """Know nothing."""
        return {}

    def ready(self, orders: Sequence[ConvertOrder], is_wanted: IsWanted = always) -> Ready:  # noqa: ARG002
        """Yield all."""
        return iter(orders)


def main() -> int:
    """Hand out the orders; print a table."""
    parser = argparse.ArgumentParser(prog="scripts/bench scheduler", description=__doc__, allow_abbrev=False)
    parser.add_argument("--orders", metavar="N", type=int, default=20_000)
    parser.add_argument("--slots", metavar="N", type=int, default=4_000)
    given = parser.parse_args()
    print(
        "| orders | slots | seconds | ms per order | orders/s | progress shown |\n|--:|--:|--:|--:|--:|--:|"
    )
    for orders in (given.orders // 4, given.orders // 2, given.orders):
        seconds, shown = hand_out(orders, given.slots)
        each = seconds / orders
        print(
            f"| {orders:,} | {given.slots:,} | {seconds:.2f} | {each * 1e3:.3f} | {1 / each:,.0f} | {shown} |"
        )
    return 0


def hand_out(count: int, slots: int) -> tuple[float, int]:
    """Return how long so many orders take in so many slots, and how often progress was shown."""
    files = tuple(
        SourceShard(f"data/{number:05}.parquet", 2_000_000_000, f"{number:064x}") for number in range(count)
    )
    rules = request.recipe(version="10B").rules
    totals = Totals(count, sum(file.bytes for file in files))
    recipe = Recipe(SourceManifest("many", "owner/name", "0" * 40, "", files, totals), rules)
    receipts = {layout.job_key(file.path): _receipt(recipe, index) for index, file in enumerate(files)}
    with tempfile.TemporaryDirectory(prefix="fwconvert-scheduler-") as folder:
        store = LocalStore(Path(folder), "session")
        store.prepare()
        state, watching = RunState(recipe, "session", Done()), Watching()
        inputs = AllHere()
        tracker = Tracker(store, state, inputs, watching, StopSwitch())
        context = RunContext(store.uri, recipe.recipe_id, rules, "session")
        started = time.perf_counter()
        orders = [
            ConvertOrder(context, source, index, SourceFile(str(inputs.location(source))))
            for index, source in state.unconverted
        ]
        scheduler.carry_out(inputs.ready(orders), AtOnce(slots, receipts), tracker)
        seconds = time.perf_counter() - started
        assert len(state.done.jobs) == count
    return seconds, watching.updates


def _receipt(recipe: Recipe, index: int) -> Receipt:
    file, rules = recipe.source.files[index], recipe.rules
    tokens = 7 * rules.shard_tokens + 50_000_000
    lines = tuple(
        ShardLine(
            layout.job_shard(rules, "train", index, block), "train", rules.shard_tokens, 97_000,
            200_001_024, "0" * 64, "1" * 64, ((index, 0),),
        )
        for block in range(7)
    )  # fmt: skip
    tail = Tail(50_000_000, 48_000, 100_001_024, "2" * 64, 384_000, "3" * 64)
    counts = Counts(726_000, 726_000, 0, 0, 3_600_000_000, tokens)
    return Receipt(
        recipe.recipe_id, file.path, file.bytes, file.sha256 or "", 0, counts, lines, tail, "session", 700
    )


if __name__ == "__main__":
    sys.exit(main())
