"""scripts/slurm.sbatch, as it is shipped, on a real Slurm with two nodes on this machine."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import corpus
import pytest
import runner
import slurm_cluster
from runner import PRIVATE
from slurm_cluster import Cluster

pytestmark = pytest.mark.skipif(bool(slurm_cluster.why_not()), reason=slurm_cluster.why_not())

SCRIPT = runner.REPOSITORY / "scripts" / "slurm.sbatch"
RECIPE = ("--tokenizer", "bytes", "--shard-tokens", "20000")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for number in range(3):
        corpus.write(folder / f"{number}.parquet", corpus.documents(1000 * number, 150 + 40 * number))
    return folder


def command(folder: Path) -> str:
    """Return a command that is fwconvert, wherever a job runs."""
    program = folder / "fwconvert"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={runner.REPOSITORY} exec {sys.executable} -m fwconvert "$@"\n')
    program.chmod(0o755)
    return str(program)


def submit(cluster: Cluster, folder: Path, *words: str, **variables: str) -> tuple[str, str]:
    """Submit the ranks and the merge; return the numbers of their jobs."""
    given = {"OUT": str(folder / "out"), "FWCONVERT": command(folder), "SCRATCH": str(folder / "scratch")}
    said = cluster.call(str(SCRIPT), *words, cwd=folder, **{**given, "WORLD": "3", **variables})
    _, ranks, _, merge = said.splitlines()[-1].replace(",", "").split()
    return ranks, merge


@pytest.fixture(scope="module")
def whole(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what one session makes of the sources."""
    out = tmp_path_factory.mktemp("whole") / "out"
    runner.assert_tidy_end(runner.command_line("--source", str(sources), "--out", str(out), *RECIPE), 0)
    return runner.tree(out)


def test_the_script_plans_converts_queues_a_killed_task_again_and_merges(
    cluster: Cluster, sources: Path, whole: dict[str, str], tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    program, begun = tmp_path / "patient", tmp_path / "begun"
    # A rank that waits while a file is there: long enough to be killed.
    wait = f"touch {begun}-$SLURM_ARRAY_TASK_ID; while [ -e {slow} ]; do sleep 0.2; done"
    waiting = f'if [ "$1" = --out ]; then {wait}; fi'
    program.write_text(f'#!/bin/sh\n{waiting}\nexec {command(tmp_path)} "$@"\n')
    program.chmod(0o755)
    # Its merge waits for three ranks, of which the two nodes have room for two at a time.
    ranks, merge = submit(cluster, tmp_path, "--source", str(sources), *RECIPE, FWCONVERT=str(program))
    deadline = time.monotonic() + runner.PATIENCE
    while not Path(f"{begun}-1").exists():
        assert time.monotonic() < deadline, cluster.logs()
        time.sleep(0.1)

    cluster.call("scancel", "--signal=KILL", f"{ranks}_1")

    while cluster.states(ranks).get("1") != "PENDING":
        assert time.monotonic() < deadline, cluster.logs()
        time.sleep(0.1)
    slow.unlink()
    assert set(cluster.states(merge).values()) == {"PENDING"}
    # Slurm itself waits for two minutes.
    cluster.call("scontrol", "update", f"JobId={ranks}_1", "StartTime=now")
    cluster.wait_for(merge, "COMPLETED", "FAILED")
    assert set(cluster.states(ranks).values()) == {"COMPLETED"}, cluster.logs()
    assert set(cluster.states(merge).values()) == {"COMPLETED"}, cluster.logs()
    assert "queued again" in (tmp_path / f"fwconvert-{ranks}_1.log").read_text()
    assert runner.tree(tmp_path / "out") == whole
    made = {path.stem.rpartition("-")[2] for path in (tmp_path / "out" / PRIVATE).glob("sessions/*-r*.json")}
    assert made == {"r0of3", "r1of3", "r2of3"}


def test_a_merge_says_which_ranks_are_missing_and_they_can_be_submitted_again(
    cluster: Cluster, sources: Path, whole: dict[str, str], tmp_path: Path
) -> None:
    first, merge = submit(cluster, tmp_path, "--source", str(sources), *RECIPE, ARRAY="0", WORLD="2")
    cluster.wait_for(merge, "COMPLETED", "FAILED")
    assert set(cluster.states(merge).values()) == {"FAILED"}
    assert set(cluster.states(first).values()) == {"COMPLETED"}, cluster.logs()
    log = (tmp_path / f"fwconvert-{merge}-fwconvert-merge.log").read_text()
    assert "--array=1" in log.splitlines()

    _, merge = submit(cluster, tmp_path, ARRAY="1", WORLD="2")

    cluster.wait_for(merge, "COMPLETED", "FAILED")
    assert set(cluster.states(merge).values()) == {"COMPLETED"}, cluster.logs()
    assert runner.tree(tmp_path / "out") == whole
