"""Show a run to a person: a live display on a terminal, a few log lines a minute elsewhere.

It goes to stderr, so that stdout is free for results. The display has no thread
of its own: it is drawn by `update`, which the driver calls four times a second,
and costs a few milliseconds of it. rich is loaded when a display is chosen.

Speeds are those of the last half minute of this session's own work. An average
since the start would let a resumed run claim the speed of its predecessors, and
would show a slow start for hours.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple, Self, TextIO, cast

from fwconvert.columns import (
    SEPARATOR,
    UNKNOWN,
    Span,
    bar,
    cells,
    duration,
    encodable,
    fitting,
    humanised,
    megabytes,
    percent,
    printable_lines,
    shortened,
    wrapped,
)
from fwconvert.orders import JoinOrder

if TYPE_CHECKING:  # For their names only: --help must not wait for them.
    from rich.console import Console
    from rich.live import Live

    from fwconvert.engine import Progress
    from fwconvert.work import Observer, Snapshot

Clock = Callable[[], float]
WINDOW_SECONDS = 30.0
# Less than this says nothing about a speed.
EVIDENCE_SECONDS = 2.0

_DRAW_SECONDS = 0.25
_FIRST_LOG_SECONDS = 5.0
_LOG_SECONDS = 20.0

# A longer bar says no more, and is torn up when the window shrinks.
_WIDEST_HEAD = 100


def choose(*, quiet: bool, stream: TextIO | None = None) -> AbstractContextManager[Observer]:
    """Return the observer that suits `stream` (stderr unless given), for a `with` block."""
    stream = sys.stderr if stream is None else stream
    if quiet or stream is None:  # pythonw and `2>&-` have no stderr.
        from fwconvert.run import SilentObserver  # noqa: PLC0415  # heavy, and loaded by now in any real run

        return nullcontext(SilentObserver())
    if Unfailing(stream).isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        return TerminalProgress(terminal(stream))
    return PlainProgress(stream)


def terminal(stream: TextIO) -> Console:
    """Return a rich console that draws on `stream` and survives its loss."""
    from rich.console import Console  # noqa: PLC0415  # see the module's head

    # The stream swallows errors, not us: rich ends the process on a broken pipe.
    unfailing = cast("TextIO", Unfailing(stream))
    return Console(file=unfailing, force_terminal=True, force_interactive=True, force_jupyter=False)


class Unfailing:
    """A text stream whose loss goes unnoticed: a closed terminal must not end a run of days."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding: str = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write `text` if that is possible."""
        with self._surviving():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush if that is possible."""
        with self._surviving():
            self._stream.flush()

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):
            # What is still in its buffer goes nowhere; otherwise Python complains of it at its end.
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123
                os.dup2(nowhere.fileno(), self._stream.fileno())
                self._stream.flush()

    def isatty(self) -> bool:
        """Tell whether it is a terminal; a closed one is not."""
        with suppress(OSError, ValueError):
            return self._stream.isatty()
        return False

    def fileno(self) -> int:
        """Return the stream's descriptor."""
        return self._stream.fileno()


class Speed(NamedTuple):
    """Units (source bytes, or tokens while joining), tokens, and bytes fetched, per second."""

    units: float
    tokens: float
    fetched: float = 0.0


class _Sample(NamedTuple):
    at: float
    units: float
    tokens: int
    fetched: int


class Pace:
    """Measures how fast this session works. Each phase is measured by itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._phase = ""
        self._started = 0.0
        self._samples: deque[_Sample] = deque()

    def add(self, snapshot: Snapshot) -> None:
        """Take a measurement."""
        now = self._clock()
        if snapshot.phase != self._phase:
            self._phase, self._started = snapshot.phase, now
            self._samples.clear()
        fetched = snapshot.fetched or 0
        # Until then the workers start, which says nothing of their speed.
        if snapshot.session_units > 0 or fetched:
            self._samples.append(_Sample(now, snapshot.session_units, session_tokens(snapshot), fetched))
        while len(self._samples) > 1 and self._samples[1].at <= now - WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def seconds(self) -> float:
        """How long the phase has been going on."""
        return self._clock() - self._started

    def recent(self) -> Speed | None:
        """Return the speed of the last half minute, or None while there is too little evidence."""
        if not self._samples:
            return None
        first, last = self._samples[0], self._samples[-1]
        seconds = last.at - first.at
        if seconds < EVIDENCE_SECONDS:
            return None
        # A job that failed takes its work back; that is no speed.
        gains = (last.units - first.units, last.tokens - first.tokens, last.fetched - first.fetched)
        return Speed(*(max(0.0, gain) / seconds for gain in gains))

    def average(self, snapshot: Snapshot) -> Speed | None:
        """Return the speed since the beginning of the phase."""
        seconds = self.seconds
        if seconds <= 0:
            return None
        done = (snapshot.session_units, session_tokens(snapshot), snapshot.fetched or 0)
        return Speed(*(amount / seconds for amount in done))


class PlainProgress:
    """Log lines for pipes, batch queues and CI: nothing but text and line feeds."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream = Unfailing(stream)
        self._clock = clock
        self._pace = Pace(clock)
        self._latest: Snapshot | None = None
        self._due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._latest is not None:
            self._log(outcome(self._latest, self._pace))

    def notice(self, text: str) -> None:
        """Log a notice; its further lines stand below its first."""
        lines = f"\n{' ' * 9}".join(printable_lines(text))
        stamped = f"{time.strftime('%H:%M:%S')} {lines}\n"
        self._stream.write(encodable(stamped, self._stream.encoding))
        self._stream.flush()

    def update(self, snapshot: Snapshot) -> None:
        """Log how far the run is if it is time to."""
        before, self._latest = self._latest, snapshot
        if before is not None and before.phase != snapshot.phase:
            self._log(outcome(before, self._pace))
            self._due = self._clock() + _FIRST_LOG_SECONDS
        self._pace.add(snapshot)
        if before is None or self._clock() >= self._due:
            self._log(status(snapshot, self._pace.recent()))
            self._due = self._clock() + (_FIRST_LOG_SECONDS if before is None else _LOG_SECONDS)

    def _log(self, parts: list[str]) -> None:
        self.notice(SEPARATOR.join(parts))


class TerminalProgress:
    """A live display: one bar for the whole run, and a line for each running job.

    When it ends, also by an exception, a single line is left of each phase.
    """

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._pace = Pace(clock)
        self._latest: Snapshot | None = None
        self._live: Live | None = None
        self._due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._latest is not None:
            self._leave(outcome(self._latest, self._pace))

    def notice(self, text: str) -> None:
        """Print a notice above the display, where it stays."""
        from rich.text import Text  # noqa: PLC0415  # see the module's head

        width = self._console.width
        lines = [part for line in printable_lines(text) for part in wrapped(line, width)]
        # Soft: a word longer than the line (a path) is left whole, for copying.
        self._console.print(Text(encodable("\n".join(lines), self._console.encoding)), soft_wrap=True)

    def update(self, snapshot: Snapshot) -> None:
        """Show how far the run is."""
        before, self._latest = self._latest, snapshot
        if before is not None and before.phase != snapshot.phase:
            self._leave(outcome(before, self._pace))
            self._due = 0.0
        self._pace.add(snapshot)
        if self._clock() >= self._due:
            self._due = self._clock() + _DRAW_SECONDS
            self._draw(screen(snapshot, self._pace.recent(), *self._console.size))

    def _leave(self, parts: list[str]) -> None:
        self.notice(fitting(parts, self._console.width))

    def _draw(self, lines: list[list[Span]]) -> None:
        from rich.segment import Segment, Segments  # noqa: PLC0415  # see the module's head

        console, segments = self._console, []
        for line in lines:
            segments += [
                Segment(encodable(text, console.encoding), console.get_style(style)) for text, style in line
            ]
            segments.append(Segment.line())
        if self._live is None:
            self._live = self._new_live()
            self._live.start()
        self._live.update(Segments(segments), refresh=True)

    def _new_live(self) -> Live:
        from rich.live import Live  # noqa: PLC0415  # see the module's head

        return Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="crop",
        )


def screen(snapshot: Snapshot, speed: Speed | None, width: int, height: int) -> list[list[Span]]:
    """Return the lines of the live display on a terminal of this size."""
    return head_lines(snapshot, speed, width) + job_lines(snapshot.running, width, max(1, height - 6))


def head_lines(snapshot: Snapshot, speed: Speed | None, width: int) -> list[list[Span]]:
    """Return the two lines about the whole run."""
    done = fraction(snapshot)
    end = f" {percent(done)} · {duration(seconds_left(snapshot, speed))} left".ljust(22)
    bar_width = min(width, _WIDEST_HEAD) - len(snapshot.phase) - 1 - len(end)
    first = [(f"{snapshot.phase} ", "bold"), *bar(done, bar_width, "green"), (end, "")]
    return [first, [(fitting(counts(snapshot, speed), width), "")]]


def job_lines(running: Sequence[Progress], width: int, most: int) -> list[list[Span]]:
    """Return a line for each running job, at most `most`, and then how many more there are."""
    bar_width = max(8, min(20, width // 5))
    unit = " tokens" if width >= 72 else ""
    free = width - bar_width - len(f"    {'':>4} 12.3M{unit}")
    shown = running[:most]
    title_width = min(max(8, free), max((cells(job.order.title) for job in shown), default=0))
    lines = [_job_line(job, title_width, bar_width, unit) for job in shown]
    if len(running) > most:
        lines.append([(f"  … and {len(running) - most} more", "dim")])
    return lines


def _job_line(job: Progress, title_width: int, bar_width: int, unit: str) -> list[Span]:
    title = shortened(job.order.title, title_width)
    padding = " " * (title_width - cells(title))
    end = f" {math.floor(job.fraction * 100):>3}% {humanised(job_tokens(job)):>5}{unit}"
    return [(f"  {title}{padding} ", ""), *bar(job.fraction, bar_width, "cyan"), (end, "")]


def status(snapshot: Snapshot, speed: Speed | None) -> list[str]:
    """Return how far the run is and how long it will take."""
    return [_headline(snapshot), *counts(snapshot, speed), f"{duration(seconds_left(snapshot, speed))} left"]


def outcome(snapshot: Snapshot, pace: Pace) -> list[str]:
    """Return what a phase came to, the most telling first; its speed is the average."""
    jobs, tokens, *rates = counts(snapshot, pace.average(snapshot))
    return [_headline(snapshot), jobs, tokens, f"in {duration(pace.seconds)}", *rates]


def _headline(snapshot: Snapshot) -> str:
    return f"{snapshot.phase} {percent(fraction(snapshot)).strip()}"


def counts(snapshot: Snapshot, speed: Speed | None) -> list[str]:
    """Return jobs, tokens, tokens/s and, while source bytes are read, MB/s."""
    jobs = f"{snapshot.jobs_done}/{snapshot.jobs} jobs"
    tokens_rate = f"{UNKNOWN if speed is None else humanised(speed.tokens)} tokens/s"
    if snapshot.phase == "join":
        return [jobs, f"{humanised(snapshot.units_done)} tokens joined", tokens_rate]
    bytes_rate = f"{UNKNOWN if speed is None else megabytes(speed.units)} MB/s"
    return [
        jobs,
        f"{humanised(snapshot.tokens)} tokens",
        tokens_rate,
        bytes_rate,
        *_fetching(snapshot, speed),
    ]


def _fetching(snapshot: Snapshot, speed: Speed | None) -> list[str]:
    """Return the rate of the download and what the run waits for, if it fetches."""
    if snapshot.fetched is None:
        return []
    rate = UNKNOWN if speed is None else megabytes(speed.fetched)
    return [f"fetching {rate} MB/s", f"limit: {snapshot.limit}"]


def fraction(snapshot: Snapshot) -> float:
    """Return how much of the phase is done, from 0 to 1."""
    if snapshot.units <= 0:  # All sources are empty files: then they count by number.
        return snapshot.jobs_done / max(1, snapshot.jobs)
    return min(1.0, max(0.0, snapshot.units_done / snapshot.units))


def seconds_left(snapshot: Snapshot, speed: Speed | None) -> float | None:
    """Return how long the rest of the phase takes at this speed; None if nobody knows."""
    left = max(0.0, snapshot.units - snapshot.units_done)
    if left == 0:
        return 0.0
    if speed is None:
        return None
    times = [left / speed.units] if speed.units > 0 else []
    if snapshot.fetched is not None and speed.fetched > 0:  # The slower of the two decides.
        before = snapshot.units_done - snapshot.session_units
        times.append(max(0.0, snapshot.units - before - snapshot.fetched) / speed.fetched)
    return max(times, default=None)


def session_tokens(snapshot: Snapshot) -> int:
    """Return the tokens that this session made in this phase."""
    return int(snapshot.session_units) if snapshot.phase == "join" else snapshot.session_tokens


def job_tokens(job: Progress) -> int:
    """Return the tokens that a running job has made."""
    return int(job.fraction * job.order.tokens) if isinstance(job.order, JoinOrder) else job.tokens
