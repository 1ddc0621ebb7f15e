"""Dask's own executor, on a cluster of processes: the same orders, the same bytes."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpus
import pytest
import runner

import fwconvert
from fwconvert.run.engines.executor import ExecutorEngine

distributed = pytest.importorskip("distributed", reason="Dask is not installed")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("dask")]  # Its own warnings.

RECIPE: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 500, "val_tokens": 500}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import dask  # noqa: PLC0415  # with distributed

    # Dask would try an order again by itself, four times, on workers that it starts anew.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            local_directory=str(tmp_path_factory.mktemp("dask")),
        ) as cluster,
        distributed.Client(cluster) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.equal_sources(tmp_path_factory.mktemp("dask") / "sources", files=6, rows=20)


@pytest.fixture(scope="module")
def golden(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("dask") / "out"
    assert runner.convert(sources, out, **RECIPE).complete
    return runner.tree(out)


def test_it_makes_the_bytes_of_our_own_processes_and_is_not_shut_down(
    client: Any, sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    executor = client.get_executor(retries=0)
    recipe = fwconvert.recipe(source=str(sources), **RECIPE)
    for name in ("once", "again"):
        done = fwconvert.convert(recipe, tmp_path / name, engine=ExecutorEngine(executor, slots=2))
        assert done.complete
        assert runner.tree(tmp_path / name) == golden
    assert executor.submit(abs, -1).result() == 1


class KillOnce(runner.Notices):
    """Kills a worker once orders are in flight."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid = pid

    def update(self, snapshot: Any) -> None:
        if snapshot.running and self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.pid = 0


def test_a_worker_that_is_killed_costs_its_order_one_more_try(
    client: Any, sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    watch = KillOnce(next(iter(client.run(os.getpid).values())))
    recipe = fwconvert.recipe(source=str(sources), **RECIPE)
    engine = ExecutorEngine(client.get_executor(retries=0), slots=2)

    assert fwconvert.convert(recipe, tmp_path / "out", engine=engine, observer=watch).complete
    assert watch.pid == 0
    assert runner.tree(tmp_path / "out") == golden
    assert not watch.mention("set aside")
