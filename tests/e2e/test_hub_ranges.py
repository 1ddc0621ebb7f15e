"""Files that come by several ranges at once, through the real program: killed, disturbed, without ranges."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpus
import hub_runs
import pytest
import runner
from hub_runs import conversion, run, running, sources
from hub_server import REPO, HubServer
from runner import assert_tidy_end

pytestmark = pytest.mark.skipif(os.name == "nt", reason="processes are found by their POSIX session")

FOLDER = "sample/10BT"
FILES = 2


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of 5 to 6 MB, which are three pieces each."""
    folder = tmp_path_factory.mktemp("large") / "repository"
    for number in range(FILES):
        rows = corpus.documents(100_000 * number, 18_000)
        plain: dict[str, Any] = {"compression": "none", "use_dictionary": False}
        corpus.write(folder / FOLDER / f"{number:03d}_00000.parquet", rows, **plain)
    sizes = [path.stat().st_size for path in (folder / FOLDER).iterdir()]
    assert all(4 * 2**20 < size < 2**23 for size in sizes), sizes
    return folder


@pytest.fixture(scope="module")
def pinned(repository: Path) -> Path:
    path = repository.parent / "large.json"
    with HubServer(repository) as hub:
        assert_tidy_end(run(["pin", REPO, FOLDER, "-o", str(path)], hub.endpoint), 0)
    return path


@pytest.fixture(scope="module")
def from_disk(repository: Path, pinned: Path) -> dict[str, str]:
    out = repository.parent / "from disk"
    recipe: dict[str, Any] = {"version": str(pinned), "tokenizer": "bytes"}
    assert runner.convert(repository, out, **recipe, shard_tokens=hub_runs.SHARD_TOKENS).complete
    return runner.tree(out)


@pytest.fixture
def hub(repository: Path) -> Iterator[HubServer]:
    with HubServer(repository, rate=1_000_000) as hub:
        yield hub


def fetched(hub: HubServer) -> int:
    """Return how many bytes the CDN has sent."""
    return sum(seen.bytes for seen in hub.log if seen.server == "cdn")


def assert_finished(out: Path, from_disk: dict[str, str]) -> None:
    assert runner.tree(out) == from_disk
    assert runner.litter(out) == []
    assert sources(out) == {}


def test_kills_in_the_middle_of_ranges_cost_what_was_not_written_yet(
    hub: HubServer, pinned: Path, from_disk: dict[str, str], tmp_path: Path
) -> None:
    words = conversion(pinned, tmp_path)
    total = sum(path.stat().st_size for path in (pinned.parent / "repository" / FOLDER).iterdir())
    for kill in (1, 2):
        before = fetched(hub)
        with running(words, hub.endpoint) as process:
            hub_runs.wait_for(lambda: fetched(hub) > before + 2_000_000, process)  # noqa: B023  # called at once
            process.kill()
            process.wait()
        names = {Path(name).suffix for name in sources(tmp_path)}
        assert {".part", ".pieces"} <= names, f"after kill {kill}: {names}"
    assert_tidy_end(run(words, hub.endpoint), 0)
    assert_finished(tmp_path, from_disk)
    # A kill costs what each connection had received and not yet written: 0.2 s of it, or what was in its
    # socket. The looks at footers come on top.
    connections = sum(1 for seen in hub.log if seen.server == "cdn")
    assert fetched(hub) < total + connections * 400_000
    assert fetched(hub) < 2 * total


def test_ranges_that_break_or_are_refused_end_in_the_same_bytes(
    hub: HubServer, pinned: Path, from_disk: dict[str, str], tmp_path: Path
) -> None:
    hub.fault("reset", after=500_000, times=3, skip=2)
    hub.fault("status", status=503, times=3, skip=3)
    hub.fault("status", status=429, headers={"Retry-After": "1"}, times=2, skip=4)
    hub.fault("status", status=403, times=1, skip=5)
    hub.fault("close", after=100_000, times=2, skip=1)
    assert_tidy_end(run(conversion(pinned, tmp_path), hub.endpoint), 0)
    assert_finished(tmp_path, from_disk)
    assert hub.faults_left <= 3, "most of them have happened; which requests there are depends on the time"


def test_a_server_without_ranges_is_served_by_one_connection_and_ends_in_the_same_bytes(
    hub: HubServer, pinned: Path, from_disk: dict[str, str], tmp_path: Path
) -> None:
    hub.fault("ignore_range", times=None, skip=1)  # The footer is looked at by a range.
    assert_tidy_end(run(conversion(pinned, tmp_path), hub.endpoint), 0)
    assert_finished(tmp_path, from_disk)


def test_a_range_that_crawls_is_taken_over_by_another_connection(
    hub: HubServer, pinned: Path, from_disk: dict[str, str], tmp_path: Path
) -> None:
    # At this pace a piece takes an hour: longer than a test may, and it never stalls.
    hub.fault("slow", rate=500, path="000_00000", skip=2)
    for _ in range(2):
        assert_tidy_end(run(conversion(pinned, tmp_path), hub.endpoint), 0)
        assert_finished(tmp_path, from_disk)
    assert hub.faults_left == 0
    assert [seen for seen in hub.log if seen.server == "cdn" and seen.range and 0 < seen.bytes < 50_000]


def test_a_server_that_answers_429_is_asked_by_half_as_many_connections(
    hub: HubServer, pinned: Path, from_disk: dict[str, str], tmp_path: Path
) -> None:
    # 429 to the first ranges, after the looks at footers.
    hub.fault("status", status=429, headers={"Retry-After": "1"}, times=2, skip=3)
    words = conversion(pinned, tmp_path, "--max-connections", "4", "--progress", "json")
    ended = run(words, hub.endpoint)
    assert_tidy_end(ended, 0)
    assert_finished(tmp_path, from_disk)
    said = [json.loads(line) for line in ended.stderr.splitlines()]
    seen = [one for one in said if one["event"] == "progress"]
    after = [one["connections"] for one in seen if (one["faults"] or {}).get("refusals")]
    assert after, said
    assert max(after) <= 2
