"""Sources of equal content in one version of a hub: each is fetched, converted and removed by itself."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus
import hub_runs
import pytest
import runner
from hub_runs import bodies, conversion, place_name, run, running, sources
from hub_server import REPO, HubServer
from runner import assert_tidy_end

from fwconvert.sources import catalog

pytestmark = pytest.mark.skipif(os.name == "nt", reason="processes are found by their POSIX session")

TWINS = [f"{folder}/twin.parquet" for folder in ("a", "b", "c")]
ALONE = "d/alone.parquet"
EMPTY = [f"e/{number}.parquet" for number in range(3)]
# No parquet: each is set aside by itself.
NOTHING = ["f/0.parquet", "f/1.parquet"]


@dataclass(frozen=True)
class World:
    """A repository with twins, the manifest that pins it, and what becomes of it from disk."""

    repository: Path
    pinned: Path
    tree: dict[str, str]
    twin_bytes: int
    twin_sha256: str

    @property
    def part(self) -> str:
        return f"{self.twin_sha256}.part"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("twins")
    repository = folder / "repository"
    first = corpus.write(repository / TWINS[0], corpus.documents(0, 900), compression="none")
    for twin in TWINS[1:]:
        (repository / twin).parent.mkdir()
        shutil.copy(first, repository / twin)
    corpus.write(repository / ALONE, corpus.documents(5000, 300))
    for empty in EMPTY:
        corpus.write(repository / empty, [])
    pinned = pin(repository, folder / "pinned.json")
    assert len({file.sha256 for file in catalog.find(str(pinned)).files}) == 3
    recipe: dict[str, Any] = {
        "version": str(pinned), "tokenizer": "bytes", "shard_tokens": hub_runs.SHARD_TOKENS,
    }  # fmt: skip
    assert runner.convert(repository, folder / "out", **recipe).complete
    return World(repository, pinned, runner.tree(folder / "out"), first.stat().st_size, runner.sha256(first))


def pin(repository: Path, pinned: Path) -> Path:
    with HubServer(repository) as hub:
        assert_tidy_end(run(["pin", REPO, "-o", str(pinned)], hub.endpoint), 0)
    return pinned


@pytest.fixture
def hub(world: World) -> Iterator[HubServer]:
    with HubServer(world.repository) as hub:
        yield hub


def assert_whole(world: World, out: Path) -> None:
    assert runner.tree(out) == world.tree
    assert runner.litter(out) == []
    assert sources(out) == {}
    assert [*(out / runner.PRIVATE / "quarantine").iterdir()] == []


@pytest.mark.parametrize(
    "flags", [(), ("--workers", "2"), ("--workers", "2", "--max-connections", "1")], ids=str
)
def test_twins_are_converted_like_any_other_and_the_same_command_again_finds_all_done(
    flags: tuple[str, ...], world: World, hub: HubServer, tmp_path: Path
) -> None:
    words = conversion(world.pinned, tmp_path, *flags)
    assert_tidy_end(run(words, hub.endpoint), 0)
    assert_whole(world, tmp_path)
    asked = len(hub.log)
    again = run(words, hub.endpoint)
    assert_tidy_end(again, 0)
    assert "already complete" in again.stdout
    assert len(hub.log) == asked


def test_twins_are_kept_side_by_side(world: World, hub: HubServer, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    words = conversion(world.pinned, tmp_path / "out", "--workers", "2", "--keep-source", str(kept))
    assert_tidy_end(run(words, hub.endpoint), 0)
    assert_whole(world, tmp_path / "out")
    files = {path.relative_to(kept).as_posix(): path for path in kept.rglob("*") if path.is_file()}
    assert sorted(files) == sorted([*TWINS, ALONE, *EMPTY])
    assert all(runner.sha256(files[twin]) == world.twin_sha256 for twin in TWINS)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_kill_while_a_twin_is_half_here_costs_not_a_byte(
    workers: str, world: World, hub: HubServer, tmp_path: Path
) -> None:
    hub.fault("stall", path=TWINS[1], after=50_000)
    words = conversion(world.pinned, tmp_path, "--workers", workers)
    with running(words, hub.endpoint, HF_HUB_DOWNLOAD_TIMEOUT="60") as process:
        hub_runs.wait_for(
            lambda: sources(tmp_path).get(world.part) == 50_000 and runner.steps(tmp_path), process
        )
        process.kill()
        process.wait()
        assert runner.outliving(process) == []
    before = len(hub.log)
    assert_tidy_end(run(words, hub.endpoint), 0)
    assert_whole(world, tmp_path)
    twins = [seen for seen in bodies(hub.log) if "twin" in seen.query]
    assert sum(seen.bytes for seen in twins) == len(TWINS) * world.twin_bytes
    assert "bytes=50000-" in hub_runs.ranges(hub.log[before:], "twin")


def test_twins_that_were_all_here_when_the_run_was_killed_are_not_fetched_again(
    world: World, hub: HubServer, tmp_path: Path
) -> None:
    words = conversion(world.pinned, tmp_path, "--prefetch", "20")
    twins = {place_name(twin) for twin in TWINS}
    with running(words, hub.endpoint) as process:
        hub_runs.wait_for(lambda: runner.workers(process), process)
        (worker,) = runner.workers(process)
        worker.suspend()
        hub_runs.wait_for(lambda: twins <= {*sources(tmp_path)}, process)
        process.kill()
        process.wait()
        worker.kill()
        assert runner.outliving(process) == []
    before = len(hub.log)
    assert_tidy_end(run(words, hub.endpoint), 0)
    assert_whole(world, tmp_path)
    assert hub_runs.ranges(hub.log[before:], "twin") == []


def test_what_the_version_before_had_fetched_is_used_and_none_of_it_stays(
    world: World, hub: HubServer, tmp_path: Path
) -> None:
    """It named fetched files by their content, for which twins were one."""
    words = conversion(world.pinned, tmp_path)
    # All of them, once the footer of one was looked at: none may be converted before the kill.
    hub.fault("stall", path="twin", after=50_000, times=None, skip=1)
    with running(words, hub.endpoint, HF_HUB_DOWNLOAD_TIMEOUT="60") as process:
        hub_runs.wait_for(lambda: sources(tmp_path).get(world.part) == 50_000, process)
        process.kill()
        process.wait()
        runner.kill_all(process.pid)
    folder = tmp_path / runner.PRIVATE / "sources"
    for path in folder.iterdir():
        path.unlink()
    shutil.copy(world.repository / TWINS[0], folder / f"{world.twin_sha256}.parquet")
    shutil.copy(world.repository / ALONE, folder / f"{'0' * 64}.parquet")
    with HubServer(world.repository) as mended:
        assert_tidy_end(run(words, mended.endpoint), 0)
        twins = [seen for seen in bodies(mended.log) if "twin" in seen.query]
        assert sum(seen.bytes for seen in twins) == (len(TWINS) - 1) * world.twin_bytes
    assert_whole(world, tmp_path)


def test_files_without_a_byte_are_each_set_aside_and_no_other_is(world: World, tmp_path: Path) -> None:
    repository = Path(shutil.copytree(world.repository, tmp_path / "repository"))
    for nothing in NOTHING:
        (repository / nothing).parent.mkdir(exist_ok=True)
        (repository / nothing).write_bytes(b"")
    pinned = pin(repository, tmp_path / "pinned.json")
    with HubServer(repository) as hub:
        ended = run(conversion(pinned, tmp_path / "out", "--workers", "2"), hub.endpoint)
    assert_tidy_end(ended, 1)
    for nothing in NOTHING:
        assert f"fwconvert: {nothing} failed: a source file cannot be read as parquet" in ended.stderr
    assert ended.stderr.count(" failed: ") == len(NOTHING)
