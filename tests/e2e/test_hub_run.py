"""Fetch and convert, from a hub that fails in every way: the bytes are those of files that lay on the disk.

One miniature of FineWeb-Edu, ten files of it, and one conversion of them from
disk: every run here must end with the same output, and most of them with a log
of the hub that shows that no byte was fetched twice.
"""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any, Self

import hub_runs
import psutil
import pytest
import runner
from hub_faults import nobody
from hub_runs import (
    Miniature,
    assert_whole,
    bodies,
    conversion,
    place_name,
    ranges,
    receipts,
    run,
    running,
    sources,
)
from hub_server import HubServer
from runner import PRIVATE, assert_tidy_end

from fwconvert.cli.plan_text import size

pytestmark = pytest.mark.skipif(os.name == "nt", reason="processes are found by their POSIX session")

CANARY = "hf_CanaryThatMustNeverBeSungAnywhere"
MISSING = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    return hub_runs.miniature(tmp_path_factory.mktemp("miniature"))


@pytest.fixture
def hub(mini: Miniature) -> Iterator[HubServer]:
    with HubServer(mini.repository) as hub:
        yield hub


@pytest.fixture
def nowhere() -> Iterator[str]:
    """The address of a hub that is gone."""
    with nobody() as endpoint:
        yield endpoint


def test_the_manifest_of_the_miniature_is_that_of_its_folder(mini: Miniature) -> None:
    assert mini.names == [f"{number:03d}_00000.parquet" for number in range(hub_runs.FILES)]
    for file in mini.manifest.files:
        content = (mini.repository / file.path).read_bytes()
        assert 100_000 < len(content) == file.bytes < 500_000
        assert hashlib.sha256(content).hexdigest() == file.sha256


def test_through_all_faults_the_bytes_are_those_of_a_conversion_from_disk(
    mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    names = mini.names
    hub.fault("reset", path=names[0], after=50_000, skip=1)  # Its footer is looked at first.
    hub.fault("close", path=names[1], after=60_000)
    hub.fault("status", path=names[2], status=503)
    hub.fault("status", path=names[3], on="hub", status=429, headers={"Retry-After": "1"})
    hub.fault("corrupt", path=names[4], after=1_000)
    hub.fault("reset", path=names[5], after=70_000)
    hub.fault("ignore_range", path=names[5])
    hub.fault("stall", path=names[6], after=80_000)
    hub.fault("refuse", path=names[7], on="hub")
    hub.fault("short", path=names[8], missing=1_000)
    hub.fault("hang", path=names[9])
    ended = run(conversion(mini.pinned, tmp_path), hub.endpoint, HF_HUB_DOWNLOAD_TIMEOUT="5")
    assert_tidy_end(ended, 0)
    assert hub.faults_left == 0
    assert_whole(mini, tmp_path)
    assert ranges(hub.log, names[0]) == [None, "bytes=50000-"]
    assert ranges(hub.log, names[1]) == [None, "bytes=60000-"]
    assert ranges(hub.log, names[4]) == [None, None]
    assert ranges(hub.log, names[5]) == [None, "bytes=70000-"]
    assert ranges(hub.log, names[6]) == [None, "bytes=80000-"]


class SourceWatch(threading.Thread):
    """Looks all the time at the fetched files of a run, and keeps the most files and the most bytes."""

    def __init__(self, out: Path) -> None:
        super().__init__()
        self._out = out
        self._end = threading.Event()
        self.files = self.bytes = 0

    def run(self) -> None:
        while not self._end.wait(0.0005):
            found = sources(self._out)
            self.files = max(self.files, len(found))
            self.bytes = max(self.bytes, sum(found.values()))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()


def test_few_sources_are_on_the_disk_at_a_time_and_the_log_says_what_limits_the_run(
    mini: Miniature, tmp_path: Path
) -> None:
    flags = ("--prefetch", "2", "--workers", "1", "--max-connections", "2")
    with HubServer(mini.repository, rate=1_000_000) as hub, SourceWatch(tmp_path) as watch:
        ended = run(conversion(mini.pinned, tmp_path, *flags), hub.endpoint)
    assert_tidy_end(ended, 0)
    assert_whole(mini, tmp_path)
    assert 2 <= watch.files <= 3
    assert 0 < watch.bytes <= 3 * max(file.bytes for file in mini.manifest.files)
    lines = logged(ended.stderr)
    assert lines
    assert all("fetching " in line and "limit: " in line for line in lines)


def logged(said: str) -> list[str]:
    """Return the lines that tell how far a conversion is, the last of them what it came to."""
    return [line for line in said.splitlines() if " jobs " in line and "convert " in line]


@pytest.mark.parametrize("flags", [("--prefetch", "2"), ("--workers", "2"), ("--workers", "4")], ids=" ".join)
def test_a_slow_network_is_what_limited_the_run_in_the_end(
    flags: tuple[str, ...], mini: Miniature, tmp_path: Path
) -> None:
    flags = (*flags, "--max-connections", "2")
    with HubServer(mini.repository, rate=300_000) as hub:
        ended = run(conversion(mini.pinned, tmp_path, *flags), hub.endpoint)
    assert_tidy_end(ended, 0)
    assert "limit: network" in logged(ended.stderr)[-1]


@pytest.mark.parametrize("prefetch", ["2", "20"])
def test_a_network_that_is_gone_is_what_limits_the_run(
    prefetch: str, mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    hub.fault("status", path=mini.names[5], status=503, times=None)
    words = conversion(mini.pinned, tmp_path, "--patience", "3", "--prefetch", prefetch)
    ended = run(words, hub.endpoint)
    assert_tidy_end(ended, 1)
    assert "no progress with the hub" in ended.stderr
    assert "limit: network" in logged(ended.stderr)[-1]


def test_a_slow_worker_is_what_limits_the_run(mini: Miniature, hub: HubServer, tmp_path: Path) -> None:
    # Should the line never come, the worker is ended for doing nothing, and so is the test.
    words = conversion(mini.pinned, tmp_path, "--stall-timeout", "20")
    with running(words, hub.endpoint) as process:
        hub_runs.wait_for(lambda: runner.workers(process), process)
        (worker,) = runner.workers(process)
        worker.suspend()
        assert process.stderr is not None
        lines = (line for line in process.stderr if " jobs " in line)
        next(lines)  # At the beginning some may have come or not; five seconds later all have.
        assert "limit: workers" in next(lines)


def test_the_first_file_is_converted_before_the_last_is_asked_for(
    mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    words = conversion(mini.pinned, tmp_path, "--prefetch", "100", "--max-connections", "1")
    never = threading.Event()
    hub.fault("late", path=mini.names[1], times=None, until=never.is_set)
    with running(words, hub.endpoint) as process:
        hub_runs.wait_for(lambda: receipts(tmp_path), process)
        log = hub.log
        assert process.poll() is None
        assert bodies(log, mini.names[0])
        assert not any(mini.names[-1] in seen.path for seen in log)


def converting(out: Path) -> list[Path]:
    """Return the files that a worker has under construction."""
    return [*out.glob(f"{PRIVATE}/temporary/*.parquet-*")]


def suspended_in_a_conversion(process: "Popen[str]", out: Path) -> psutil.Process:
    """Stop the worker while it has a file under construction; return the worker."""
    # Found before there is a file: looking for it takes as long as a conversion.
    hub_runs.wait_for(lambda: runner.workers(process), process)
    (worker,) = runner.workers(process)
    while True:
        hub_runs.wait_for(lambda: converting(out), process)
        worker.suspend()
        if converting(out):
            return worker
        worker.resume()


def test_a_kill_in_a_fetch_and_a_conversion_costs_not_a_byte(
    mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    stalled = mini.names[3]
    hub.fault("stall", path=stalled, after=100_000)
    words = conversion(mini.pinned, tmp_path, "--prefetch", "4", "--max-connections", "2")
    with running(words, hub.endpoint, HF_HUB_DOWNLOAD_TIMEOUT="60") as process:
        worker = suspended_in_a_conversion(process, tmp_path)
        # One is converted and four are ahead: nothing is on its way but the one that stalls.
        part = f"{mini.sha256(stalled)}.part"
        hub_runs.wait_for(
            lambda: (
                [(name, size) for name, size in sources(tmp_path).items() if not name.endswith(".parquet")]
                == [(part, 100_000)]
                and len(sources(tmp_path)) == 5
            ),
            process,
        )
        assert converting(tmp_path)
        process.kill()
        process.wait()
        worker.resume()
        assert runner.outliving(process) == []
    before = len(hub.log)
    assert_tidy_end(run(words, hub.endpoint), 0)
    assert_whole(mini, tmp_path)
    assert sum(seen.bytes for seen in bodies(hub.log)) == mini.manifest.bytes
    assert ranges(hub.log[before:], stalled) == ["bytes=100000-"]


def test_ctrl_c_in_stalled_fetches_stops_soon_and_the_same_command_finishes(
    mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    fetches = 8
    hub.fault("stall", times=fetches, after=1_000, skip=1)  # not in the look at a footer
    words = conversion(mini.pinned, tmp_path, "--prefetch", str(fetches), "--max-connections", str(fetches))
    with running(words, hub.endpoint, HF_HUB_DOWNLOAD_TIMEOUT="60") as process:
        hub_runs.wait_for(lambda: [*sources(tmp_path).values()] == [1_000] * fetches, process)
        seconds = hub_runs.seconds_to_stop(process)
        assert_tidy_end(runner.finish(process), 130)
        assert runner.outliving(process) == []
    before = len(hub.log)
    assert_tidy_end(run(words, hub.endpoint), 0)
    assert_whole(mini, tmp_path)
    for name in mini.names[:fetches]:
        assert ranges(hub.log[before:], name) == ["bytes=1000-"]
    assert seconds < 5


def test_kept_sources_are_used_without_a_network_fetched_if_missing_and_never_replaced(
    mini: Miniature, nowhere: str, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    keep = ("--keep-source", str(kept))
    with HubServer(mini.repository) as hub:
        assert_tidy_end(run(conversion(mini.pinned, tmp_path / "first", *keep), hub.endpoint), 0)
    assert_kept(mini, kept)
    assert_whole(mini, tmp_path / "first")

    offline = run(conversion(mini.pinned, tmp_path / "offline", *keep), nowhere, HF_HUB_OFFLINE="1")
    assert_tidy_end(offline, 0)
    assert_whole(mini, tmp_path / "offline")

    flipped, cut, removed = (kept / hub_runs.FOLDER / name for name in mini.names[2:5])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    os.truncate(cut, cut.stat().st_size - 1)
    removed.unlink()
    before = [(path.stat().st_mtime_ns, path.read_bytes()) for path in (flipped, cut)]
    words = conversion(mini.pinned, tmp_path / "mended", *keep)
    with HubServer(mini.repository) as hub:
        ended = run(words, hub.endpoint)
        assert_tidy_end(ended, 1)
        assert [(path.stat().st_mtime_ns, path.read_bytes()) for path in (flipped, cut)] == before
        assert hub_runs.quarantined(tmp_path / "mended") == [flipped.name, cut.name]
        for path in (flipped, cut):
            assert str(path) in reason(ended.stderr, path.name)
            assert "move it away" in reason(ended.stderr, path.name)
            path.unlink()
        assert_tidy_end(run(words, hub.endpoint), 0)
        fetched = sum(seen.bytes for seen in bodies(hub.log))
    assert fetched == sum(path.stat().st_size for path in (flipped, cut, removed))
    assert_kept(mini, kept)
    assert_whole(mini, tmp_path / "mended")


def assert_kept(mini: Miniature, kept: Path) -> None:
    found = {path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()}
    assert found == {"notes.txt", *(file.path for file in mini.manifest.files)}
    for file in mini.manifest.files:
        assert hashlib.sha256((kept / file.path).read_bytes()).hexdigest() == file.sha256
    assert not (kept / ".parts").exists()


def test_without_a_network_and_without_the_sources_it_is_said_what_to_do(
    mini: Miniature, nowhere: str, tmp_path: Path
) -> None:
    ended = run(conversion(mini.pinned, tmp_path), nowhere, HF_HUB_OFFLINE="1")
    assert_tidy_end(ended, 1)
    assert "HF_HUB_OFFLINE" in ended.stderr
    assert "--keep-source" in ended.stderr
    assert nowhere in ended.stderr


def test_corrupt_and_missing_files_are_quarantined_alone_and_fetched_when_the_hub_is_mended(
    mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    corrupt, missing = mini.names[2], mini.names[6]
    hub.fault("corrupt", path=corrupt, after=1_000, times=None)
    hub.fault("status", path=missing, on="hub", status=404, headers=MISSING, times=None)
    ended = run(conversion(mini.pinned, tmp_path), hub.endpoint)
    assert_tidy_end(ended, 1)
    assert hub_runs.quarantined(tmp_path) == [corrupt, missing]
    assert receipts(tmp_path) == [name for name in mini.names if name not in (corrupt, missing)]
    assert "corrupt bytes" in reason(ended.stderr, corrupt)
    assert "no such file" in reason(ended.stderr, missing)
    assert sources(tmp_path) == {}
    assert len(bodies(hub.log, corrupt)) == 2
    with HubServer(mini.repository) as mended:
        assert_tidy_end(run(conversion(mini.pinned, tmp_path), mended.endpoint), 0)
        assert len(bodies(mended.log)) == 2
    assert_whole(mini, tmp_path)


def reason(said: str, name: str) -> str:
    """Return the last word about a source that failed."""
    (text,) = [text for text in said.split("fwconvert: ")[1:] if text.startswith(f"{hub_runs.FOLDER}/{name}")]
    return text


def test_a_network_that_goes_costs_nothing_that_has_come(mini: Miniature, tmp_path: Path) -> None:
    words = conversion(mini.pinned, tmp_path, "--patience", "2", "--prefetch", "6", "--max-connections", "2")
    with HubServer(mini.repository, rate=400_000) as hub, running(words, hub.endpoint) as process:
        hub_runs.wait_for(lambda: runner.workers(process), process)
        (worker,) = runner.workers(process)
        worker.suspend()
        hub_runs.wait_for(lambda: len(whole(tmp_path)) >= 3, process)
        come = whole(tmp_path)
        hub.stop()
        assert len(come) < hub_runs.FILES
        worker.resume()
        ended = runner.finish(process)
        first = hub.log
    assert_tidy_end(ended, 1)
    assert "no progress with the hub" in ended.stderr
    assert "run the same command again" in ended.stderr
    done = {place_name(f"{hub_runs.FOLDER}/{name}") for name in receipts(tmp_path)}
    assert come <= done
    assert whole(tmp_path) == set()
    assert hub_runs.quarantined(tmp_path) == []
    parts = sources(tmp_path)
    with HubServer(mini.repository) as back:
        assert_tidy_end(run(words, back.endpoint), 0)
        for name in mini.names:
            size = parts.get(f"{mini.sha256(name)}.part")
            if size:
                assert ranges(back.log, name) == [f"bytes={size}-"]
        # What the first hub had sent and its end threw away, at most: two chunks on each of two connections.
        assert sum(seen.bytes for seen in bodies([*first, *back.log])) <= mini.manifest.bytes + 80_000
    assert_whole(mini, tmp_path)


def test_what_comes_while_another_file_is_out_of_reach_is_converted(
    mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    """The worker is busy when the hub refuses one file, and others come after that."""
    hub.fault("status", on="hub", path=mini.names[2], status=403, times=None)
    words = conversion(mini.pinned, tmp_path, "--prefetch", "6", "--max-connections", "2")
    with running(words, hub.endpoint) as process:
        hub_runs.wait_for(lambda: runner.workers(process), process)
        (worker,) = runner.workers(process)
        worker.suspend()
        # One is in the worker's hands, and six are ahead: the refused one and five others.
        hub_runs.wait_for(lambda: len(whole(tmp_path)) == 6, process)
        come = whole(tmp_path)
        worker.resume()
        ended = runner.finish(process)
    assert_tidy_end(ended, 1)
    assert "refused the request with 403" in ended.stderr
    assert come <= {place_name(f"{hub_runs.FOLDER}/{name}") for name in receipts(tmp_path)}
    assert whole(tmp_path) == set()


def whole(out: Path) -> set[str]:
    """Return the files that are fetched and not converted yet."""
    return {name for name in sources(out) if name.endswith(".parquet")}


def unlisted(mini: Miniature, path: Path) -> Path:
    """Write a manifest that leaves the list of its files to the hub, as those of the largest versions do."""
    fields = json.loads(mini.pinned.read_text())
    path.write_text(json.dumps({**fields, "files": []}))
    return path


def test_a_manifest_without_files_is_listed_once_and_for_all(
    mini: Miniature, nowhere: str, tmp_path: Path
) -> None:
    words = conversion(unlisted(mini, tmp_path / "unlisted.json"), tmp_path / "out")
    with HubServer(mini.repository, page_size=3) as hub:
        hub.fault("status", on="hub", path="/tree/")
        hub.fault("status", path=mini.names[6], on="hub", status=404, headers=MISSING, times=None)
        assert_tidy_end(run(words, hub.endpoint), 1)
        assert any("/tree/" in seen.path for seen in hub.log)
    with HubServer(mini.repository) as mended:
        assert_tidy_end(run(words, mended.endpoint), 0)
        assert {seen.path for seen in mended.log if "/api/" in seen.path} == set()
        assert len(bodies(mended.log)) == 1
    assert_whole(mini, tmp_path / "out")
    assert_tidy_end(run(words, nowhere), 0)


def test_ctrl_c_while_the_hub_does_not_answer_what_there_is_stops_soon(
    mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    words = conversion(unlisted(mini, tmp_path / "unlisted.json"), tmp_path / "out")
    hub.fault("hang", on="hub", path="/tree/", times=None)
    with running(words, hub.endpoint) as process:
        hub_runs.wait_for(lambda: hub.log, process)
        seconds = hub_runs.seconds_to_stop(process)
        assert_tidy_end(runner.finish(process), 130)
    assert seconds < 5


def test_the_token_and_signatures_are_nowhere_but_at_the_hub(mini: Miniature, tmp_path: Path) -> None:
    """Whatever goes wrong is written down in records and messages: so all goes wrong here that can."""
    repository = Path(shutil.copytree(mini.repository, tmp_path / "repository"))
    out, said = tmp_path / "out", []
    words = conversion(mini.pinned, out)
    with HubServer(repository, token=CANARY) as hub:
        hub.fault("status", path=mini.names[0], status=503, skip=1, headers={"Retry-After": "1"})
        hub.fault("corrupt", path=mini.names[1], times=None)
        hub.fault("reset", path=mini.names[2], after=10)
        said.append(run(words, hub.endpoint, HF_TOKEN=CANARY))
        said.append(run(words, hub.endpoint, HF_TOKEN=f"{CANARY}2"))
        hub.fault("hang", times=None)
        settings = {"HF_HUB_DOWNLOAD_TIMEOUT": "1", "FWCONVERT_DEBUG": "1"}
        said.append(run([*words, "--patience", "1"], hub.endpoint, HF_TOKEN=CANARY, **settings))
        log = hub.log
    assert [ended.returncode for ended in said] == [1, 1, 1], said
    assert {seen.authorization for seen in log if seen.server == "cdn"} == {None}
    assert f"Bearer {CANARY}" in {seen.authorization for seen in log}
    texts = [text.encode() for ended in said for text in (ended.stdout, ended.stderr)]
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) > 10
    for secret in (CANARY.encode(), b"X-Amz-Signature"):
        assert not any(secret in text for text in texts)
        assert [path for path in files if secret in path.read_bytes()] == []


def test_a_plan_needs_no_network_and_says_what_is_fetched_and_how_much_is_there_at_a_time(
    mini: Miniature, nowhere: str, tmp_path: Path
) -> None:
    flags = ("--prefetch", "2", "--workers", "1")
    ended = run(["plan", *conversion(mini.pinned, tmp_path / "out", *flags)], nowhere)
    assert_tidy_end(ended, 0)
    sizes = sorted((file.bytes for file in mini.manifest.files), reverse=True)
    assert f"{sum(sizes):,} (" in ended.stdout
    assert f"{size(sum(sizes))}, at most {size(sum(sizes[:3]))} of them on disk at a time" in ended.stdout
    keep = ("--keep-source", str(tmp_path / "kept"))
    kept = run(["plan", *conversion(mini.pinned, tmp_path / "out", *keep)], nowhere)
    assert f"{size(sum(sizes))}, all of them kept on disk" in kept.stdout
    assert [*tmp_path.iterdir()] == []


def test_the_plan_of_a_shipped_version_has_its_published_numbers(nowhere: str) -> None:
    ended = run(["plan", "--version", "100B", "--no-disk-check"], nowhere)
    assert_tidy_end(ended, 0)
    rows = dict(line.strip().split("  ", 1) for line in ended.stdout.splitlines() if "  " in line.strip())
    assert rows["files"].strip() == "140"
    assert rows["bytes"].strip() == "286,394,522,604 (286 GB)"
    assert rows["token shards"].strip().startswith("about 1,000 of 100,000,000 tokens")
    assert rows["to fetch"].strip().startswith("286 GB, at most ")
    assert "averages of FineWeb-Edu" in rows["estimated from"]


MISSPELT = [
    ["--where", "scor > 3"],
    ["--where", "len(score) > 3"],
    ["--min-int-score", "3"],
    ["--text-column", "txt"],
]


@pytest.mark.parametrize("mistake", MISSPELT, ids=str)
def test_a_misspelt_column_is_told_by_footers_and_nothing_is_fetched(
    mistake: list[str], mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    ended = run(conversion(mini.pinned, tmp_path / "out", *mistake), hub.endpoint)
    assert_tidy_end(ended, 2)
    assert "id (int64), text (string), score (int64)" in ended.stderr
    assert mini.names[0] in ended.stderr
    assert bodies(hub.log) == []
    assert len(hub_runs.looks(hub.log)) <= 8
    assert not (tmp_path / "out").exists()


def test_a_run_looks_at_one_footer_and_a_run_that_goes_on_or_is_complete_at_none(
    mini: Miniature, tmp_path: Path
) -> None:
    words = conversion(mini.pinned, tmp_path)
    with HubServer(mini.repository) as hub:
        hub.fault("status", path=mini.names[6], on="hub", status=404, headers=MISSING, times=None)
        assert_tidy_end(run(words, hub.endpoint), 1)
        assert len(hub_runs.looks(hub.log)) == len(hub_runs.looks(hub.log, mini.names[0])) == 1
    with HubServer(mini.repository) as hub:
        assert_tidy_end(run(words, hub.endpoint), 0)
        assert hub_runs.looks(hub.log) == []
        asked = len(hub.log)
        assert_tidy_end(run(words, hub.endpoint), 0)
        assert len(hub.log) == asked
    assert_whole(mini, tmp_path)


@pytest.mark.parametrize("kept", [False, True])
def test_a_source_that_is_here_is_looked_at_here(
    kept: bool, mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    keep = tmp_path / "kept"
    if kept:
        shutil.copytree(mini.repository, keep)
    ended = run(conversion(mini.pinned, tmp_path / "out", "--keep-source", str(keep)), hub.endpoint)
    assert_tidy_end(ended, 0)
    assert len(hub_runs.looks(hub.log)) == (0 if kept else 1)


TROUBLES: list[dict[str, Any]] = [
    {"kind": "status", "status": 503, "times": None},
    {"kind": "status", "status": 429, "headers": {"Retry-After": "100"}},
    {"kind": "hang", "seconds": 30},
    {"kind": "stall", "after": 1000, "seconds": 30},
    {"kind": "corrupt", "after": 99_999, "times": None},
    {"kind": "ignore_range", "times": None},
    {"kind": "short", "missing": 5},
    {"kind": "reset", "after": 10},
]


@pytest.mark.parametrize("trouble", TROUBLES, ids=str)
def test_a_footer_that_cannot_be_had_is_no_reason_to_stop(
    trouble: dict[str, Any], mini: Miniature, tmp_path: Path
) -> None:
    """The trouble is that of looks alone: only they ask for a part that has an end."""
    with HubServer(mini.repository) as hub:
        hub.fault(**{**trouble, "looks": True})
        words = conversion(mini.pinned, tmp_path)
        assert_tidy_end(run(words, hub.endpoint, HF_HUB_DOWNLOAD_TIMEOUT="1"), 0)
        assert hub_runs.looks(hub.log)
    assert_whole(mini, tmp_path)


def test_ctrl_c_while_a_footer_does_not_come_stops_soon(
    mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    hub.fault("hang", times=None)
    with running(conversion(mini.pinned, tmp_path / "out"), hub.endpoint) as process:
        hub_runs.wait_for(lambda: hub_runs.looks(hub.log), process)
        seconds = hub_runs.seconds_to_stop(process)
        assert_tidy_end(runner.finish(process), 130)
    assert seconds < 5
    assert not (tmp_path / "out").exists()


def test_a_mirror_whose_first_file_is_corrupt_has_it_set_aside_alone(
    mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    size = mini.manifest.files[0].bytes
    hub.fault("corrupt", path=mini.names[0], after=size - 3, times=None)
    assert_tidy_end(run(conversion(mini.pinned, tmp_path), hub.endpoint), 1)
    assert hub_runs.quarantined(tmp_path) == mini.names[:1]
