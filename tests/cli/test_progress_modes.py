"""--progress by the real program: JSON for programs, a display for people, and what is said at the end."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import corpus
import forked
import hub_runs
import pytest
import runner
from hub_runs import Miniature, conversion, miniature
from hub_server import HubServer
from terminals import HIDE_CURSOR, needs_pty, open_terminal, read_all, resize, without_codes

REFERENCE = (runner.REPOSITORY / "REFERENCE.md").read_text(encoding="utf-8")
WORDS = ["--tokenizer", "bytes", "--shard-tokens", "2000", "--workers", "1"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for number in range(3):
        corpus.write(folder / f"{number}.parquet", [corpus.document(one) for one in range(40)])
    return folder


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    return miniature(tmp_path_factory.mktemp("mini"))


def events(said: str) -> list[dict[str, Any]]:
    """Return the objects of standard error: nothing else may be there."""
    return [json.loads(line) for line in said.splitlines()]


def documented(event: str) -> set[str]:
    """Return the keys that REFERENCE.md says an event has."""
    (row,) = re.findall(rf"^\| `{event}` \| (.*) \|$", REFERENCE, re.MULTILINE)
    return {"version", "event", "time", *re.findall(r"`(\w+)`", row)}


def test_json_is_an_object_a_line_with_the_keys_that_are_documented(source: Path, tmp_path: Path) -> None:
    converting = ["--source", source, "--out", tmp_path / "a", *WORDS]
    for words in (
        converting,
        converting,  # All is done already.
        ["export", tmp_path / "a", "--format", "npy", "-o", tmp_path / "b", "--workers", "1"],
        ["copy", tmp_path / "a", tmp_path / "c"],
        ["merge", tmp_path / "a", "--workers", "1"],
    ):
        ended = runner.command_line(*words, "--progress", "json", capture_output=True)
        runner.assert_tidy_end(ended, 0)
        told = events(ended.stderr)
        assert {one["version"] for one in told} == {1}
        assert (told[-1]["event"], told[-1]["exit_code"]) == ("end", 0)
        kind = "end of a copy" if words[0] == "copy" else "end"
        assert documented(kind) == told[-1].keys()
        for one in told[:-1]:
            assert one["event"] in {"progress", "notice"}
            assert one.keys() == documented(one["event"])
        assert ended.stdout  # What was made is told there, as ever.


def test_json_tells_of_failures_and_how_it_ended(source: Path, tmp_path: Path) -> None:
    broken = tmp_path / "in"
    corpus.write(broken / "a.parquet", [corpus.document(1)])
    (broken / "b.parquet").write_bytes(b"<html>")
    words = ["--source", broken, "--out", tmp_path / "o", *WORDS, "--progress", "json"]
    ended = runner.command_line(*words, capture_output=True)
    runner.assert_tidy_end(ended, 1)
    told = events(ended.stderr)
    assert told[-1]["failed"] == ["b.parquet"]
    assert not told[-1]["complete"]
    assert any(one["event"] == "error" and "b.parquet failed" in one["text"] for one in told)
    assert {"version", "event", "time", "text"} == documented("error") == documented("notice")
    assert f"fwconvert status {shlex.quote(str(tmp_path / 'o'))}" in ended.stdout
    # A mistake is an object, too, once the words are understood; --quiet leaves errors alone.
    ended = runner.command_line(
        "--source",
        source,
        "--out",
        tmp_path / "o",
        *WORDS,
        "--progress",
        "json",
        "--quiet",
        capture_output=True,
    )
    assert ended.returncode == 2
    assert [one["event"] for one in events(ended.stderr)] == ["error"]


def test_what_went_wrong_and_was_healed_is_counted(mini: Miniature, tmp_path: Path) -> None:
    with HubServer(mini.repository) as hub:
        hub.fault("status", path=mini.names[1], status=503, times=2)
        hub.fault("reset", path=mini.names[2], after=1000, times=1)
        hub.fault("corrupt", path=mini.names[3], after=1000, times=1)
        ended = hub_runs.run([*conversion(mini.pinned, tmp_path), "--progress", "json"], hub.endpoint)
        assert hub.faults_left == 0
    runner.assert_tidy_end(ended, 0)
    faults = events(ended.stderr)[-1]["faults"]
    assert faults == {"refusals": 2, "broken": 1, "corrupt": 1, "workers": 0, "attempts": 0}
    wanted = "2 answers 429 or 5xx, 1 broken connection, 1 file with corrupt bytes"
    assert re.search(rf"^  healed +{wanted}$", ended.stdout, re.MULTILINE)
    assert runner.tree(tmp_path) == mini.tree


def test_another_process_sees_how_far_a_run_is_and_a_lost_worker_is_told(
    mini: Miniature, tmp_path: Path
) -> None:
    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            runner.command_line("status", tmp_path, "--json", capture_output=True).stdout
        )
        return found

    with HubServer(mini.repository, rate=100_000) as hub:
        words = conversion(mini.pinned, tmp_path, "--max-connections", "2")
        with hub_runs.running(words, hub.endpoint) as process:
            sessions = tmp_path / runner.PRIVATE / "sessions"
            hub_runs.wait_for(lambda: [*sessions.glob("*.progress")], process)
            (one,) = status()["running"]
            shown = runner.command_line("status", tmp_path, capture_output=True).stdout
            (worker,) = runner.workers(process)
            worker.suspend()
            hub_runs.wait_for(lambda: (tmp_path / runner.PRIVATE / "temporary").glob("*"), process)
            worker.kill()
            ended = runner.finish(process)
    runner.assert_tidy_end(ended, 0)
    assert 0 <= one["progress"] < 1
    assert one["phase"] == "convert"
    assert one["limit"] in {"network", "workers"}
    assert one["jobs"] == hub_runs.FILES
    assert re.search(r"^  rate +convert [\d.]+%, \S+ left, limit: \w+", shown, re.MULTILINE)
    assert [*sessions.glob("*.progress")] == []
    assert status()["running"] == []
    assert runner.tree(tmp_path) == mini.tree


def test_a_resumed_run_says_what_was_there_and_forgets_the_session_that_was_killed(
    mini: Miniature, tmp_path: Path
) -> None:
    with HubServer(mini.repository, rate=150_000) as hub:
        words = conversion(mini.pinned, tmp_path, "--max-connections", "2")
        with hub_runs.running(words, hub.endpoint) as process:
            sessions = tmp_path / runner.PRIVATE / "sessions"
            hub_runs.wait_for(
                lambda: [*sessions.glob("*.progress")] and len(hub_runs.receipts(tmp_path)) > 1, process
            )
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(runner.PATIENCE)
    done = len(hub_runs.receipts(tmp_path))
    assert [*sessions.glob("*.progress")]
    assert (
        json.loads(runner.command_line("status", tmp_path, "--json", capture_output=True).stdout)["running"]
        == []
    )
    with HubServer(mini.repository) as hub:
        ended = hub_runs.run(conversion(mini.pinned, tmp_path), hub.endpoint)
    runner.assert_tidy_end(ended, 0)
    assert f"resuming: {done} of {hub_runs.FILES} were done before\n" in ended.stderr
    assert re.search(
        rf"^  resumed +{done} of {hub_runs.FILES} sources were done before$", ended.stdout, re.MULTILINE
    )
    assert [*sessions.glob("*.progress")] == []
    hub_runs.assert_whole(mini, tmp_path)


def test_the_commands_to_type_next_can_be_typed(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "a folder"
    line = [sys.executable, "-m", "fwconvert", "--source", str(source), "--out", str(out), *WORDS]
    environment = {**os.environ, "PYTHONPATH": str(runner.REPOSITORY)}
    ended = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    _, found, commands = ended.stdout.partition("\nTry next:\n")
    assert found
    typed = [command.strip() for command in commands.splitlines()]
    assert typed[0] == f"{shlex.quote(sys.executable)} -m fwconvert verify 'a folder'"
    for command in typed:
        if " browse " in command:  # It serves until it is ended.
            with subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            ) as browsing:
                assert browsing.stdout is not None
                assert browsing.stdout.readline().startswith("http://127.0.0.1:")
                browsing.send_signal(signal.SIGINT)
                assert browsing.wait(runner.PATIENCE) == 0
            continue
        again = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        runner.assert_tidy_end(again, 0)


def on_a_terminal(words: list[str], width: int, **settings: str) -> tuple[str, int]:
    """Run the program on a terminal of its own; return what it drew, and its exit code."""
    ours, theirs = open_terminal(width)
    clean = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment = {**clean, "PYTHONPATH": str(runner.REPOSITORY), "TERM": "xterm-256color", **settings}
    child = forked.start(
        [sys.executable, "-m", "fwconvert", *words],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    drawn = read_all(ours)
    return drawn, child.wait(runner.PATIENCE)


@needs_pty
@pytest.mark.parametrize(
    ("mode", "settings", "is_drawn", "has_colour"),
    [
        ("auto", {}, True, True),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"TERM": "dumb"}, False, False),
        ("bar", {"PYTHONIOENCODING": "latin-1"}, True, True),
        ("plain", {}, False, False),
    ],
)
def test_a_terminal_gets_what_was_asked_for(
    mode: str, settings: dict[str, str], is_drawn: bool, has_colour: bool, source: Path, tmp_path: Path
) -> None:
    words = ["--source", str(source), "--out", str(tmp_path / "o"), *WORDS, "--progress", mode]
    drawn, code = on_a_terminal(words, 80, **settings)
    assert code == 0
    assert (HIDE_CURSOR in drawn) is is_drawn
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]m", drawn)) is has_colour
    assert "done: all 3 sources are converted" in without_codes(drawn)


@needs_pty
def test_a_run_that_fetches_shows_what_limits_it_at_80_columns(mini: Miniature, tmp_path: Path) -> None:
    with HubServer(mini.repository, rate=200_000) as hub:
        words = conversion(mini.pinned, tmp_path, "--max-connections", "4")
        settings = hub_runs.environment(hub.endpoint)
        drawn, code = on_a_terminal(words, 80, **{**settings, "TERM": "xterm-256color", "NO_COLOR": "1"})
    assert code == 0
    text = without_codes(drawn)
    assert re.search(
        r"^limit: network · fetching \S+ MB/s over \d connections · \S+ MB to come", text, re.MULTILINE
    )
    assert re.search(r"^  sample/10BT/00\d_00000\.parquet +[━╸╺ ]+ +\d+% 0\.\d MB", text, re.MULTILINE)
    shares = [float(one) for one in re.findall(r"^convert \S* +([\d.]+)% · ", text, re.MULTILINE)]
    assert shares == sorted(shares)
    # It moves long before all is converted.
    assert len({share for share in shares if share < 90}) > 3


@needs_pty
def test_a_bar_can_be_had_where_there_is_no_terminal(source: Path, tmp_path: Path) -> None:
    words = ["--source", source, "--out", tmp_path / "o", *WORDS, "--progress", "bar"]
    ended = runner.command_line(*words, capture_output=True, env={"TERM": "xterm", "NO_COLOR": "1"})
    runner.assert_tidy_end(ended, 0)
    assert HIDE_CURSOR in ended.stderr
    assert HIDE_CURSOR not in ended.stdout


@needs_pty
def test_a_window_may_be_resized_at_any_time(source: Path, tmp_path: Path) -> None:
    ours, theirs = open_terminal(120)
    environment = {**os.environ, "PYTHONPATH": str(runner.REPOSITORY), "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    words = ["--source", str(source), "--out", str(tmp_path / "o"), *WORDS, "--progress", "bar"]
    child = subprocess.Popen(
        [sys.executable, "-m", "fwconvert", *words],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
    )  # fmt: skip
    for width in (40, 200, 1, 79, 20):
        with contextlib.suppress(OSError):
            resize(theirs, width)
        time.sleep(0.1)
    os.close(theirs)
    drawn = read_all(ours)
    assert child.wait(runner.PATIENCE) == 0
    assert "Traceback" not in drawn
    assert "Try next:" in without_codes(drawn)
