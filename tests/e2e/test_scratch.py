"""--scratch: sources are fetched into a folder of this machine, which others may share, and not into OUT."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import hub_runs
import pytest
import runner
from hub_runs import Miniature, assert_whole, bodies, conversion, ranges, run, running
from hub_server import HubServer
from runner import PRIVATE, assert_tidy_end

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="processes are found by their POSIX session"),
    pytest.mark.xdist_group("scratch"),
]


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    return hub_runs.miniature(tmp_path_factory.mktemp("miniature"))


@pytest.fixture
def hub(mini: Miniature) -> Iterator[HubServer]:
    with HubServer(mini.repository) as hub:
        yield hub


def parts(scratch: Path) -> list[Path]:
    """Return what has begun to arrive."""
    return [path for path in scratch.glob("*/*.part") if path.stat().st_size]


def test_sources_are_fetched_into_scratch_and_gone_at_the_end(
    mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    words = conversion(mini.pinned, out, "--scratch", str(scratch))
    let_go = threading.Event()
    hub.fault("late", path=mini.names[4], skip=0, until=let_go.is_set)
    with running(words, hub.endpoint) as process:
        hub_runs.wait_for(lambda: [*scratch.glob("*/*.parquet")] or parts(scratch), process)
        assert not (out / PRIVATE / "sources").exists()
        let_go.set()
        assert_tidy_end(runner.finish(process), 0)

    assert_whole(mini, out)
    assert [*scratch.iterdir()] == []
    before = runner.state(out)
    assert_tidy_end(run(words, hub.endpoint), 0)
    assert runner.state(out) == before
    assert [*scratch.iterdir()] == []


@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGTERM])
def test_the_next_session_continues_a_part_at_its_byte(
    with_signal: signal.Signals, mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    out, scratch, name = tmp_path / "out", tmp_path / "scratch", mini.names[3]
    words = conversion(mini.pinned, out, "--scratch", str(scratch), "--max-connections", "1")
    hub.fault("stall", path=name, after=60_000)
    with running(words, hub.endpoint) as process:
        part = f"{mini.sha256(name)}.part"
        hub_runs.wait_for(
            lambda: any(p.name == part and p.stat().st_size == 60_000 for p in parts(scratch)), process
        )
        process.send_signal(with_signal)
        process.wait(timeout=runner.PATIENCE)
    assert parts(scratch)

    assert_tidy_end(run(words, hub.endpoint), 0)

    assert_whole(mini, out)
    assert ranges(hub.log, name) == [None, "bytes=60000-"]
    assert all(len(bodies(hub.log, other)) == 1 for other in mini.names if other != name)
    assert [*scratch.iterdir()] == []


def test_two_runs_share_a_scratch_folder(mini: Miniature, hub: HubServer, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    outs = [tmp_path / "one", tmp_path / "two"]
    with (
        running(conversion(mini.pinned, outs[0], "--scratch", str(scratch)), hub.endpoint) as one,
        running(conversion(mini.pinned, outs[1], "--scratch", str(scratch)), hub.endpoint) as two,
    ):
        for process in (one, two):
            assert_tidy_end(runner.finish(process), 0)

    for out in outs:
        assert_whole(mini, out)
    assert [*scratch.iterdir()] == []


def test_an_empty_scratch_is_the_callers_mistake(mini: Miniature, tmp_path: Path) -> None:
    ended = run(conversion(mini.pinned, tmp_path / "out", "--scratch", ""), "http://127.0.0.1:9")

    assert_tidy_end(ended, 2)
    assert "is a shell variable not set?" in ended.stderr
    assert not (tmp_path / "out").exists()
