"""What a person sees of a run: true numbers, in any window, and never at the price of the run."""

import contextlib
import io
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import corpus
import pytest
import runner
from rich.cells import cell_len
from rich.console import Console
from snapshots import LONG, Clock, at, job, join_job, joining
from terminals import ERASE_LINE, HIDE_CURSOR, SHOW_CURSOR, needs_pty, open_terminal, read_all, without_codes

import fwconvert
from fwconvert.cli import progress
from fwconvert.cli.live import Picture
from fwconvert.cli.progress import PlainProgress, TerminalProgress
from fwconvert.run.engines import Progress
from fwconvert.run.events import Download, SilentObserver

if TYPE_CHECKING:
    from fwconvert.run.events import Observer


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Lost(io.StringIO):
    """A terminal whose window was closed."""

    def isatty(self) -> bool:
        return True

    def write(self, _: str) -> NoReturn:
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self) -> NoReturn:
        raise OSError(5, "Input/output error")


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def play(observer: "Observer", clock: Clock, jobs: Sequence[Progress] = (), seconds: int = 40) -> None:
    """Show a run of a steady 20 MB/s for some seconds, four times a second."""
    for tick in range(seconds * 4 + 1):
        observer.update(at(tick / 4 * 20e6 / 8e9, running=jobs))
        clock.now += 0.25


def test_it_logs_at_the_start_after_five_seconds_and_every_twenty(clock: Clock) -> None:
    stream = io.StringIO()
    with PlainProgress(stream, clock) as plain:
        play(plain, clock, seconds=50)
    percents = re.findall(r"convert ([0-9.]+)%", stream.getvalue())
    assert percents == ["0.0", "1.2", "6.2", "11.2", "12.5"]


def test_a_line_has_all_numbers(clock: Clock) -> None:
    stream = io.StringIO()
    plain = PlainProgress(stream, clock)
    play(plain, clock, seconds=30)
    line = stream.getvalue().splitlines()[-1]
    numbers = "convert 6.2% · 0:06:15 left · 0/8 jobs · 167M tokens · 6.67M tokens/s · 20.0 MB/s"
    assert re.fullmatch(rf"\d\d:\d\d:\d\d {re.escape(numbers)}", line)


def test_the_end_is_logged_even_after_an_exception(clock: Clock) -> None:
    stream = io.StringIO()
    with contextlib.suppress(KeyboardInterrupt), PlainProgress(stream, clock) as plain:
        play(plain, clock, seconds=10)
        raise KeyboardInterrupt
    assert "convert 2.5% · 0/8 jobs · 66.7M tokens · in 0:00:10" in stream.getvalue().splitlines()[-1]


def test_each_phase_leaves_its_outcome(clock: Clock) -> None:
    stream = io.StringIO()
    with PlainProgress(stream, clock) as plain:
        plain.update(at(0))
        clock.now += 4
        plain.update(at(1.0))
        plain.update(joining(0))
        clock.now += 2
        plain.update(joining(1.0))
    lines = [line[9:] for line in stream.getvalue().splitlines()]
    assert lines[1:] == [
        "convert 100% · 8/8 jobs · 2.67B tokens · in 0:00:04 · 667M tokens/s · 2,000 MB/s",
        "join 100% · 8/8 jobs · 400M tokens joined · in 0:00:02 · 200M tokens/s",
    ]


def test_a_notice_comes_at_once_and_keeps_its_lines(clock: Clock) -> None:
    stream = io.StringIO()
    PlainProgress(stream, clock).notice("it failed\n  file  a.parquet")
    assert re.fullmatch(r"\d\d:\d\d:\d\d it failed\n {11}file  a\.parquet\n", stream.getvalue())


def test_there_are_no_codes_and_no_carriage_returns(clock: Clock) -> None:
    stream = io.StringIO()
    with PlainProgress(stream, clock) as plain:
        plain.notice("red\x1b[31m\r\nnext")
        play(plain, clock, [job()])
    assert all(character.isprintable() or character == "\n" for character in stream.getvalue())


def test_it_writes_ascii_where_there_is_no_more(clock: Clock) -> None:
    raw = io.BytesIO()
    with PlainProgress(io.TextIOWrapper(raw, "ascii", "strict", write_through=True), clock) as plain:
        play(plain, clock)
    assert b"convert 0.0% | - left | 0/8 jobs | 0 tokens | - tokens/s | - MB/s" in raw.getvalue()


def test_nothing_is_said_of_a_run_that_had_nothing_to_do() -> None:
    stream = io.StringIO()
    with PlainProgress(stream):
        pass
    assert not stream.getvalue()


def test_a_lost_stream_does_not_stop_the_run(clock: Clock) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (Lost(), closed):
        with PlainProgress(stream, clock) as plain:
            plain.notice("still here")
            play(plain, clock)


def shown(clock: Clock, width: int, jobs: Sequence[Progress], height: int = 24) -> list[str]:
    """Return the last picture of the display, line by line, as it was drawn."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=height, force_terminal=True)
    terminal = TerminalProgress(console, clock)
    play(terminal, clock, seconds=39)
    clock.now += 0.75
    stream.seek(0)
    stream.truncate()
    terminal.update(at(40 * 20e6 / 8e9, running=jobs))
    picture = without_codes(stream.getvalue()).strip("\n").splitlines()
    terminal.__exit__()
    return [line.rstrip() for line in picture]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_all_numbers_are_there_and_no_line_is_too_wide(clock: Clock, width: int) -> None:
    lines = shown(clock, width, [job(), job(LONG.format(1), 0.999, 12_300_000)])
    assert max(map(cell_len, lines)) <= width
    assert re.fullmatch(r"convert [━╸╺]+  10\.0% · 0:0\d:\d\d left, ends [\w :]*\d\d:\d\d", lines[0])
    numbers = "0/8 jobs · 267M tokens · 6.67M tokens/s · 0:00:40 passed · 20.0 MB/s"
    assert numbers.startswith(lines[1])
    assert lines[1] == numbers or width == 60
    assert re.fullmatch(r"  000_00000\.parquet +[━╸╺]+ 50% 3\.21M tokens", lines[2])
    assert re.fullmatch(r"  data/CC.*-of-00064\.parquet [━╸╺]+ 99% 12\.3M tokens", lines[3])


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_run_that_fetches_shows_what_limits_it_first_and_its_downloads(clock: Clock, width: int) -> None:
    now = {"bottleneck": "network", "connections": 24, "to_fetch": 6_000_000_000, "jobs_found": 2}
    coming = {"size": 2_000_000_000, "node": "node-7"}
    waiting = Download("009_00000.parquet", 0, 2_000_000_000)
    stream, seconds = io.StringIO(), 10
    terminal = TerminalProgress(Console(file=stream, width=width, height=24, force_terminal=True), clock)
    for tick in range(seconds * 4 + 1):
        fetched = round(tick / 4 * 30e6)
        downloads = [Download("008_00000.parquet", fetched, **coming), waiting]  # type: ignore[arg-type]
        if tick == seconds * 4:
            stream.seek(0)
            stream.truncate()
        running = [job()] if tick > seconds else []  # Below jobs even if they were there first.
        terminal.update(at(0.25, fetched=fetched, downloads=downloads, running=running, **now))
        clock.now += 0.25
    lines = [line.rstrip() for line in without_codes(stream.getvalue()).strip("\n").splitlines()]
    terminal.__exit__()
    assert max(map(cell_len, lines)) <= width
    fetching = "limit: network · fetching 30.0 MB/s over 24 connections · 6,000 MB to come"
    assert fetching.startswith(lines[2])
    assert lines[2] == fetching or width == 60
    assert lines[3] == "resuming: 2 of 8 were done before"
    assert re.fullmatch(r"  00.*\.parquet +[━╺]+ +50% 3\.21M tokens", lines[4])
    assert re.fullmatch(r"  0.*t +[━╸╺]+ +15% 300 MB at 30\.0 MB/s on node-7", lines[5])
    assert len(lines) == 6


@pytest.mark.parametrize("width", [1, 10, 20, 40, 60, 61, 79, 80, 81, 100, 132, 200])
def test_no_width_is_exceeded(clock: Clock, width: int) -> None:
    jobs = [job("教育/" * 12 + "文書.parquet"), job(LONG.format(3), 1.0, 999_400_000), job("a", 0, 0)]
    assert max(map(cell_len, shown(clock, width, jobs))) <= width


def test_the_bars_stand_below_each_other(clock: Clock) -> None:
    jobs = [job("a.parquet"), job(LONG.format(3)), job("教育.parquet")]
    starts = {cell_len(line[: line.index("━")]) for line in shown(clock, 80, jobs)[2:]}
    assert len(starts) == 1


@pytest.mark.parametrize("height", [4, 24, 50, 100])
def test_of_64_jobs_as_many_are_shown_as_the_window_has_room_for(clock: Clock, height: int) -> None:
    jobs = [job(LONG.format(number)) for number in range(64)]
    lines = shown(clock, 80, jobs, height)
    count = sum("parquet" in line for line in lines)
    assert len(lines) <= height
    assert count == min(64, max(1, height - 5))
    if count < 64:
        assert lines[-1] == f"  … and {64 - count} more"


@pytest.mark.parametrize("interrupted", [False, True])
def test_one_line_of_each_phase_is_left_and_the_cursor_is_back(clock: Clock, interrupted: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, height=24, force_terminal=True)
    with contextlib.suppress(KeyboardInterrupt), TerminalProgress(console, clock) as terminal:
        play(terminal, clock, [job()], seconds=4)
        terminal.update(at(1.0))
        terminal.update(joining(0.5, [join_job()]))
        if interrupted:
            raise KeyboardInterrupt
        clock.now += 1
        terminal.update(joining(1.0))
    out = stream.getvalue()
    assert out.index(HIDE_CURSOR) < out.index(SHOW_CURSOR)
    assert out.count(HIDE_CURSOR) == out.count(SHOW_CURSOR) == 1
    assert ERASE_LINE in out[out.index(SHOW_CURSOR) :]
    assert without_codes(out).count("convert 100% · 8/8 jobs · 2.67B tokens · in 0:00:04") == 1
    last = without_codes(out[out.index(SHOW_CURSOR) :]).strip("\n")
    assert re.fullmatch(r"join (50\.0|100)% · 8/8 jobs · [24]00M tokens joined · in 0:00:0.*", last)


def test_a_notice_is_printed_once_and_keeps_its_lines(clock: Clock) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=60, height=24, force_terminal=True)
    words = "the kernel kills the largest process when memory runs out"
    with TerminalProgress(console, clock) as terminal:
        terminal.notice("before the display")
        play(terminal, clock, [job()], seconds=2)
        terminal.notice(f"a worker died [bold]\n  hint  {words}\n  -> use fewer")
        play(terminal, clock, [job()], seconds=2)
    out = without_codes(stream.getvalue())
    assert out.count("before the display\n") == 1
    hint = "  hint  the kernel kills the largest process when memory\n    runs out\n"
    assert out.count(f"a worker died [bold]\n{hint}  -> use fewer\n") == 1


def test_a_path_in_a_notice_stays_whole_for_copying(clock: Clock) -> None:
    stream = io.StringIO()
    path = f"/{'a' * 50}/{'b' * 50}"
    console = Console(file=stream, width=60, height=24, force_terminal=True)
    TerminalProgress(console, clock).notice(f"  log  {path}")
    assert f"{path}\n" in stream.getvalue()


def test_the_display_leaves_stdout_alone(clock: Clock) -> None:
    before = sys.stdout
    with TerminalProgress(Console(file=io.StringIO(), force_terminal=True), clock) as terminal:
        terminal.update(at(0.5))
        assert sys.stdout is before


def test_it_draws_at_most_four_times_a_second(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []
    monkeypatch.setattr(Picture, "show", lambda *_: drawn.append(clock.now))
    terminal = TerminalProgress(Console(file=io.StringIO()), clock)
    for tick in range(1000):
        terminal.update(at(tick / 1000))
        clock.now += 0.01
    assert 35 <= len(drawn) <= 41


def test_a_lost_terminal_does_not_stop_the_run(clock: Clock) -> None:
    with TerminalProgress(progress.terminal(Lost()), clock) as terminal:
        terminal.notice("still here")
        play(terminal, clock, [job()])


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_old_terminal_gets_plainer_glyphs(clock: Clock, encoding: str) -> None:
    raw = io.BytesIO()
    console = progress.terminal(io.TextIOWrapper(raw, encoding, "strict", write_through=True))
    with TerminalProgress(console, clock) as terminal:
        terminal.notice("教育 …")
        play(terminal, clock, [job("教育.parquet")])
    out = without_codes(raw.getvalue().decode(encoding))
    assert "???? ~\n" in out
    assert re.search(r"convert -+ .* left", out)
    assert "\\u" not in out


@pytest.fixture(autouse=True)
def capable_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_terminal_gets_the_display() -> None:
    with progress.choose(quiet=False, stream=Screen()) as observer:
        assert isinstance(observer, TerminalProgress)


def test_a_pipe_gets_log_lines() -> None:
    with progress.choose(quiet=False, stream=io.StringIO()) as observer:
        assert isinstance(observer, PlainProgress)


def test_a_dumb_terminal_gets_log_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with progress.choose(quiet=False, stream=Screen()) as observer:
        assert isinstance(observer, PlainProgress)


def test_quiet_shows_nothing() -> None:
    stream = Screen()
    with progress.choose(quiet=True, stream=stream) as observer:
        assert isinstance(observer, SilentObserver)
        observer.notice("nobody hears this")
    assert not stream.getvalue()


def test_without_stderr_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with progress.choose(quiet=False) as observer:
        assert isinstance(observer, SilentObserver)


@pytest.mark.parametrize("colour", [True, False])
def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch, colour: bool) -> None:
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    stream = Screen()
    with progress.choose(quiet=False, stream=stream) as observer:
        observer.update(at(0.5))
    assert ("\x1b[32m━" in stream.getvalue()) is colour


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = "{'rich', 'numpy', 'pyarrow', 'tiktoken', 'multiprocessing'}"
    code = f"import sys, fwconvert.cli.progress; print({heavy} & sys.modules.keys() or 'nothing')"
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=environment(), text=True) == "nothing\n"


def environment() -> dict[str, str]:
    """Return an environment in which a child can import the package and this module."""
    places = [Path(fwconvert.__file__).parents[1], Path(__file__).parent, Path(corpus.__file__).parent]
    clean = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    return clean | {
        "TERM": "xterm-256color",
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "PYTHONUTF8": "1",
    }


def a_short_run() -> None:
    """Show a short run on stderr; what the tests with a real terminal run in a child."""
    with progress.choose(quiet=False) as observer:
        for tick in range(12):
            observer.update(at(tick / 11, running=[job(fraction=tick / 11)]))
            if tick == 6:
                observer.notice("half of it is done")
            time.sleep(0.05)
        observer.update(at(1.0))
    sys.stdout.write("a result\n")


def a_run_that_outlives_its_terminal(proof: str) -> None:
    """Go on after the terminal is gone, then leave a proof."""
    with progress.choose(quiet=False) as observer:
        observer.update(at(0.1, running=[job()]))
        with contextlib.suppress(OSError):  # Ends when the terminal hangs up, with or without an error.
            sys.stdin.readline()
        time.sleep(0.1)
        for tick in range(12):
            observer.notice(f"tick {tick}")
            observer.update(at(tick / 11, running=[job()]))
            time.sleep(0.05)
    Path(proof).write_text("done", encoding="utf-8")


def start(theirs: int, code: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", f"import test_progress; test_progress.{code}"]
    child = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(), start_new_session=True
    )
    os.close(theirs)
    return child


@needs_pty
@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_final_state_stays_on_the_screen(width: int) -> None:
    ours, theirs = open_terminal(width)
    child = start(theirs, "a_short_run()")
    out = read_all(ours)
    assert child.wait(300) == 0
    assert HIDE_CURSOR in out
    end = without_codes(out[out.rindex(SHOW_CURSOR) :]).strip("\n").splitlines()
    assert end[0].startswith("convert 100% · 8/8 jobs · 2.67B tokens · in 0:00:0")
    assert end[1] == "a result"
    assert without_codes(out).count("half of it is done\n") == 1
    assert max(cell_len(line) for line in without_codes(out).splitlines()) <= width


@needs_pty
def test_a_run_outlives_its_terminal(tmp_path: Path) -> None:
    ours, theirs = open_terminal(80)
    child = start(theirs, f"a_run_that_outlives_its_terminal({str(tmp_path / 'proof')!r})")
    os.read(ours, 1)
    os.close(ours)
    assert child.wait(300) == 0
    assert (tmp_path / "proof").read_text() == "done"


def test_a_run_that_fetches_shows_its_download_and_what_it_waits_for(clock: Clock) -> None:
    stream = io.StringIO()
    with PlainProgress(stream, clock) as plain:
        for tick in range(161):
            plain.update(at(tick / 4 * 20e6 / 8e9, fetched=int(tick / 4 * 30e6), bottleneck="workers"))
            clock.now += 0.25

    assert re.search(r"left · limit: workers · .* · 20\.0 MB/s · fetching 30\.0 MB/s\n", stream.getvalue())


@pytest.mark.parametrize("flag", [{"limit_tokens": 50_000}, {"limit_documents": 50}], ids=str)
def test_a_run_with_a_limit_counts_the_bytes_that_it_converts(flag: dict[str, int], tmp_path: Path) -> None:
    """5,000 documents of 1,000 tokens, a byte of the file each; 50 of them are converted."""
    letters = random.Random(1).randbytes(5_000_000).hex()
    texts = [letters[at : at + 999] for at in range(0, 5_000_000, 1000)]
    corpus.write(tmp_path / "source/0.parquet", texts, compression="none", use_dictionary=False)
    words = {**flag, "tokenizer": "bytes", "val_tokens": 0, "workers": 1}

    ended = runner.run(tmp_path / "source", tmp_path / "out", **words)

    runner.assert_tidy_end(ended, 0)
    told = r"convert 100% · 1/1 jobs · 50\.0K tokens · in \S+ · ([0-9.]+)([KM]?) tokens/s · ([0-9.]+) MB/s"
    (tokens, unit, megabytes) = re.findall(told, ended.stderr)[-1]
    # The rate is told in steps of 0.1 MB/s.
    assert float(megabytes) * 1e6 < float(tokens) * {"": 1, "K": 1e3, "M": 1e6}[unit] * 1.2 + 60_000
