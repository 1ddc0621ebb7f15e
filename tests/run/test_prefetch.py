"""Sources that are fetched: how many are on the disk at a time, and what becomes of each.

The fetching itself is replaced by a gate here; test_fetch and e2e/test_hub_run have the real one.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import examples
import pytest

from fwconvert.errors import HubError, OutputError, SourceError
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.download import Download
from fwconvert.job.orders import ConvertOrder, RunContext, SourceFile, Unfetched
from fwconvert.recipes import SourceShard
from fwconvert.run.prefetch import Prefetch, Terms

FILES = tuple(SourceShard(f"sample/{number:03}.parquet", 10, f"{number:064x}") for number in range(12))
MANIFEST = examples.recipe_with(files=FILES).source


@dataclass
class Gate:
    """Stands in for the network: a file comes when it is let through."""

    opened: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    asked: list[str] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)

    def fetch(self, fetching: Download, file: SourceShard, place: Path, parts: Path, _turn: int) -> None:
        self.asked.append(file.path)
        while not self.opened.acquire(timeout=0.02):
            if fetching.stop.is_set():
                return
        if file.path in self.errors:
            raise self.errors[file.path]
        parts.mkdir(parents=True, exist_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"0123456789")
        fetching.count(10)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()

    def fetch(fetching: Download, file: SourceShard, place: Path, parts: Path, turn: int) -> None:
        made.fetch(fetching, file, place, parts, turn)

    monkeypatch.setattr(Download, "fetch", fetch)
    return made


Make = Callable[..., Prefetch]


@pytest.fixture
def prefetch_with(tmp_path: Path) -> Iterator[Make]:
    made: list[Prefetch] = []

    def make(prefetch: int = 3, connections: int = 2, workers: int = 2, keep: Path | None = None) -> Prefetch:
        remote = Dataset(MANIFEST.dataset, MANIFEST.revision)
        terms = Terms(prefetch, connections, workers, 5.0)
        made.append(Prefetch(remote, MANIFEST, terms, tmp_path / "private", keep))
        return made[-1].__enter__()

    yield make
    for inputs in made:
        inputs.__exit__()


def orders_of(inputs: Prefetch, files: tuple[SourceShard, ...] = FILES) -> list[ConvertOrder]:
    context = RunContext("out", "recipe", examples.RULES, "session")
    return [
        ConvertOrder(context, file, at, SourceFile(str(inputs.location(file))))
        for at, file in enumerate(files)
    ]


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def take(ready: Iterator[ConvertOrder | Unfetched | None]) -> ConvertOrder | Unfetched:
    deadline = time.monotonic() + 20
    while (item := next(ready)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return item


def test_every_order_comes_once_with_its_file_proven(gate: Gate, prefetch_with: Make) -> None:
    inputs = prefetch_with(prefetch=4, workers=99)
    gate.opened.release(len(FILES))

    items = [item for item in inputs.ready(orders_of(inputs)) if item is not None]

    assert all(
        isinstance(item, ConvertOrder) and item.file.proven and item.file.local.is_file() for item in items
    )
    assert sorted(item.source.path for item in items if isinstance(item, ConvertOrder)) == [
        file.path for file in FILES
    ]
    assert inputs.traffic().bytes == 10 * len(FILES)


def test_no_more_than_the_connections_are_on_their_way(gate: Gate, prefetch_with: Make) -> None:
    inputs = prefetch_with(prefetch=8, connections=3)
    assert next(inputs.ready(orders_of(inputs))) is None

    wait_until(lambda: len(gate.asked) == 3)
    time.sleep(0.1)

    assert len(gate.asked) == 3
    assert (inputs.traffic().here, inputs.traffic().coming) == (0, True)


def test_no_more_than_prefetch_is_fetched_before_a_worker_wants_it(gate: Gate, prefetch_with: Make) -> None:
    inputs = prefetch_with(prefetch=3, connections=2)
    ready = inputs.ready(orders_of(inputs))
    gate.opened.release(len(FILES))
    first = take(ready)

    wait_until(lambda: not inputs.traffic().coming)
    assert inputs.traffic().here == 1 + 3

    assert isinstance(first, ConvertOrder)
    assert len(gate.asked) == 1 + 3  # the one that a worker has, and those that wait


def test_files_that_nobody_releases_end_the_fetching(gate: Gate, prefetch_with: Make, tmp_path: Path) -> None:
    # A source whose job failed keeps its file until it is tried again.
    inputs = prefetch_with(prefetch=2, connections=2, workers=2)
    ready = inputs.ready(orders_of(inputs))
    gate.opened.release(len(FILES))

    taken = [take(ready) for _ in range(4)]
    assert next(ready) is None
    time.sleep(0.1)
    assert len(gate.asked) == len(list((tmp_path / "private").iterdir())) == 4

    for item in taken:
        assert isinstance(item, ConvertOrder)
        inputs.release(item.source)
        assert not item.file.local.exists()
    assert isinstance(take(ready), ConvertOrder)


def test_a_source_that_is_not_to_be_had_is_told_and_the_others_come(gate: Gate, prefetch_with: Make) -> None:
    gate.errors[FILES[1].path] = SourceError("it is gone")
    gate.opened.release(len(FILES))
    inputs = prefetch_with(prefetch=2, workers=99)

    items = [item for item in inputs.ready(orders_of(inputs)) if item is not None]

    lost = [item for item in items if isinstance(item, Unfetched)]
    assert [(item.order.source.path, item.failure.message) for item in lost] == [
        (FILES[1].path, "it is gone")
    ]
    assert len(items) == len(FILES)


@pytest.mark.parametrize("error", [HubError("no way"), OutputError("no space"), RuntimeError("a bug")])
def test_what_is_nobodys_fault_is_raised(gate: Gate, prefetch_with: Make, error: Exception) -> None:
    gate.errors[FILES[0].path] = error
    gate.opened.release(len(FILES))
    inputs = prefetch_with()
    ready = inputs.ready(orders_of(inputs))

    with pytest.raises(type(error), match=str(error)):
        [take(ready) for _ in FILES]


def test_what_a_session_left_of_finished_sources_is_removed(
    gate: Gate, prefetch_with: Make, tmp_path: Path
) -> None:
    inputs = prefetch_with()
    done, wanted = FILES[:2], FILES[2:]
    private = tmp_path / "private"
    private.mkdir()
    for file in (done[0], wanted[0]):
        inputs.location(file).write_bytes(b"x")
    for file in (done[1], wanted[1]):
        (private / f"{file.sha256}.part").write_bytes(b"x")

    next(inputs.ready(orders_of(inputs, wanted)))

    left = {path.name for path in private.iterdir()}
    assert left == {inputs.location(wanted[0]).name, f"{wanted[1].sha256}.part"}
    wait_until(lambda: bool(gate.asked))


def test_files_of_equal_content_have_places_of_their_own(prefetch_with: Make) -> None:
    inputs = prefetch_with()
    twins = [SourceShard(f"{folder}/0.parquet", 10, "ab" * 32) for folder in ("a", "b")]
    unpinned = [SourceShard(f"{folder}/1.parquet", 10) for folder in ("a", "b")]

    assert len({inputs.location(file) for file in (*twins, *unpinned)}) == 4


def test_what_an_earlier_version_fetched_is_used_once_and_what_nobody_wants_goes(
    gate: Gate, prefetch_with: Make, tmp_path: Path
) -> None:
    """It had its name by its content, which two sources may have."""
    twins = tuple(SourceShard(f"{folder}/0.parquet", 10, "ab" * 32) for folder in ("a", "b"))
    private = tmp_path / "private"
    private.mkdir()
    (private / f"{'ab' * 32}.parquet").write_bytes(b"0123456789")
    (private / f"{'cd' * 32}.parquet").write_bytes(b"of a source that is done")
    inputs = prefetch_with()

    next(inputs.ready(orders_of(inputs, twins)))

    assert [path.name for path in private.iterdir()] == [inputs.location(twins[0]).name]
    wait_until(lambda: bool(gate.asked))


def test_traffic_tells_of_files_that_lie_ready_and_not_of_errors(gate: Gate, prefetch_with: Make) -> None:
    inputs = prefetch_with(prefetch=3, connections=1)
    gate.errors[FILES[1].path] = HubError("no way")
    ready = inputs.ready(orders_of(inputs))
    assert next(ready) is None
    gate.opened.release(2)
    wait_until(lambda: len(inputs._ready) == 2)

    assert (inputs.traffic().here, inputs.traffic().coming) == (1, True)
    item = take(ready)
    assert isinstance(item, ConvertOrder)
    inputs.release(item.source)
    with pytest.raises(HubError):
        take(ready)
    assert (inputs.traffic().here, inputs.traffic().coming) == (0, True), "the network is still missing"


def test_kept_files_stay(gate: Gate, prefetch_with: Make, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    inputs = prefetch_with(keep=keep, workers=99)
    gate.opened.release(len(FILES))
    for item in inputs.ready(orders_of(inputs)):
        if isinstance(item, ConvertOrder):
            inputs.release(item.source)
    inputs.__exit__()

    found = sorted(path.relative_to(keep).as_posix() for path in keep.rglob("*") if path.is_file())
    assert found == [file.path for file in FILES]
    assert not (keep / ".parts").exists()


def test_leaving_ends_the_threads(gate: Gate, prefetch_with: Make) -> None:
    inputs = prefetch_with(prefetch=8, connections=4)
    next(inputs.ready(orders_of(inputs)))
    wait_until(lambda: len(gate.asked) == 4)

    inputs.__exit__()

    wait_until(lambda: not any(thread.name.startswith("fetch-") for thread in threading.enumerate()))
    assert len(gate.asked) == 4
