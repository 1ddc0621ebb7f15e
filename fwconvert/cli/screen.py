"""The progress display as lines of text: from a snapshot and a speed, for any width and encoding.

The speed is that of the last half minute of this session's own work. An
average since the start would credit a resumed run with work of earlier
sessions, and would show a slow start for hours.
"""

from __future__ import annotations

import math
import textwrap
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # For annotations only, so that --help stays fast.
    from fwconvert.run.engines import Progress
    from fwconvert.run.events import Snapshot

Clock = Callable[[], float]
# A piece of a line and its style; a line is drawn piece by piece.
Span = tuple[str, str]

SEPARATOR = " · "
UNKNOWN = "–"  # noqa: RUF001  # a dash, as wide as a digit
_ASCII = {"·": "|", "…": "~", UNKNOWN: "-", "━": "#", "─": "-"}
# The speed is measured over this time.
WINDOW_SECONDS = 30.0
# A shorter time is too little to measure a speed.
EVIDENCE_SECONDS = 2.0
# A longer bar shows no more, and breaks when the window shrinks.
_WIDEST_HEAD = 100


def humanised(number: float) -> str:
    """Return a count in three significant digits: 950, 1.23K, 12.3M, 123B."""
    if number < 999.5:
        return f"{number:.0f}"
    for unit in ("K", "M", "B", "T"):
        number /= 1000
        if number < 999.5 or unit == "T":
            break
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f}{unit}"


def megabytes(number: float) -> str:
    """Return bytes as megabytes: 0.4, 12.3, 123."""
    return f"{number / 1e6:.1f}" if number < 99.95e6 else f"{number / 1e6:.0f}"


def percent(part: float) -> str:
    """Return a percentage, six characters wide; 100% only when all is done."""
    return "  100%" if part >= 1 else f"{math.floor(part * 1000) / 10:>5.1f}%"


def duration(seconds: float | None) -> str:
    """Return hours, minutes and seconds: 0:00:07, 1:02:03; a dash for None."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def bar(part: float, width: int, style: str) -> list[Span]:
    """Return a bar of which `part` is filled; its two glyphs differ, so it needs no colour."""
    full = math.floor(min(1.0, max(0.0, part)) * max(0, width))
    return [("━" * full, style), ("─" * (width - full), "dim")]


def fitting(parts: Sequence[str], width: int) -> str:
    """Return as many of the parts as fit in one line, at least the first."""
    line = parts[0]
    for part in parts[1:]:
        if len(line) + len(SEPARATOR) + len(part) > width:
            break
        line += SEPARATOR + part
    return line


def cells(text: str) -> int:
    """Return how many terminal columns a text takes; an ideograph takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415  # heavy, and needed for few names

    return cell_len(text)


def shortened(text: str, width: int) -> str:
    """Return `text` in at most `width` columns, its middle elided: file names differ mostly at the end."""
    if cells(text) <= width:
        return text
    start = _prefix(text, (width - 1) // 3)
    end = _prefix(text[::-1], width - 1 - cells(start))[::-1]
    return f"{start}…{end}"


def _prefix(text: str, width: int) -> str:
    taken = 0
    for at, character in enumerate(text):
        taken += cells(character)
        if taken > width:
            return text[:at]
    return text


def wrapped(line: str, width: int) -> list[str]:
    """Wrap a line at `width`, indenting the lines that follow; long words stay whole."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    parts = textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return parts if len(line) > width else [line]


def printable_lines(text: str) -> list[str]:
    """Return the lines of `text` without control characters, which could redraw the screen."""
    return ["".join(c if c.isprintable() else "?" for c in line) for line in text.expandtabs().splitlines()]


def encodable(text: str, encoding: str) -> str:
    """Return `text` with ASCII stand-ins of the same width for characters that the encoding lacks."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(_replaced(character, encoding) for character in text)
    return text


def _replaced(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return _ASCII.get(character, "?" * cells(character))
    return character


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
    """Measures how fast this session works, each phase separately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._phase = ""
        self._started = 0.0
        self._samples: deque[_Sample] = deque()

    def add(self, snapshot: Snapshot) -> None:
        """Add a measurement."""
        now = self._clock()
        if snapshot.phase != self._phase:
            self._phase, self._started = snapshot.phase, now
            self._samples.clear()
        fetched = snapshot.fetched or 0
        # Before that the workers are still starting, which would distort the speed.
        if snapshot.session_units > 0 or fetched:
            self._samples.append(_Sample(now, snapshot.session_units, session_tokens(snapshot), fetched))
        while len(self._samples) > 1 and self._samples[1].at <= now - WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def seconds(self) -> float:
        """How long the phase has lasted so far."""
        return self._clock() - self._started

    def recent(self) -> Speed | None:
        """Return the speed of the last half minute, or None while there is too little evidence."""
        if not self._samples:
            return None
        first, last = self._samples[0], self._samples[-1]
        seconds = last.at - first.at
        if seconds < EVIDENCE_SECONDS:
            return None
        # A failed job's work is subtracted again; a speed is never negative.
        gains = (last.units - first.units, last.tokens - first.tokens, last.fetched - first.fetched)
        return Speed(*(max(0.0, gain) / seconds for gain in gains))

    def average(self, snapshot: Snapshot) -> Speed | None:
        """Return the speed since the beginning of the phase."""
        seconds = self.seconds
        if seconds <= 0:
            return None
        done = (snapshot.session_units, session_tokens(snapshot), snapshot.fetched or 0)
        return Speed(*(amount / seconds for amount in done))


def session_tokens(snapshot: Snapshot) -> int:
    """Return the tokens that this session made in this phase."""
    return int(snapshot.session_units) if snapshot.phase == "join" else snapshot.session_tokens


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
    """Return a line for each running job, at most `most`, then the number of jobs left out."""
    bar_width = max(8, min(20, width // 5))
    unit = " tokens" if width >= 72 else ""
    free = width - bar_width - len(f"    {'':>4} 12.3M{unit}")
    shown = running[:most]
    title_width = min(max(8, free), max((cells(job.title) for job in shown), default=0))
    lines = [_job_line(job, title_width, bar_width, unit) for job in shown]
    if len(running) > most:
        lines.append([(f"  … and {len(running) - most} more", "dim")])
    return lines


def _job_line(job: Progress, title_width: int, bar_width: int, unit: str) -> list[Span]:
    title = shortened(job.title, title_width)
    padding = " " * (title_width - cells(title))
    end = f" {math.floor(job.fraction * 100):>3}% {humanised(job.tokens):>5}{unit}"
    return [(f"  {title}{padding} ", ""), *bar(job.fraction, bar_width, "cyan"), (end, "")]


def status(snapshot: Snapshot, speed: Speed | None) -> list[str]:
    """Return how far the run is and how much time is left."""
    return [_headline(snapshot), *counts(snapshot, speed), f"{duration(seconds_left(snapshot, speed))} left"]


def outcome(snapshot: Snapshot, pace: Pace) -> list[str]:
    """Return the summary of a finished phase, most important first; its speed is the average."""
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
    if snapshot.phase == "check":
        return [f"{megabytes(snapshot.units_done)} of {megabytes(snapshot.units)} MB hashed", bytes_rate]
    return [
        jobs,
        f"{humanised(snapshot.tokens)} tokens",
        tokens_rate,
        bytes_rate,
        *_fetching(snapshot, speed),
    ]


def _fetching(snapshot: Snapshot, speed: Speed | None) -> list[str]:
    """Return the download rate and the bottleneck, if the run fetches files."""
    if snapshot.fetched is None:
        return []
    rate = UNKNOWN if speed is None else megabytes(speed.fetched)
    over = f" over {snapshot.connections}" if snapshot.connections else ""
    return [f"fetching {rate} MB/s{over}", f"limit: {snapshot.bottleneck}"]


def fraction(snapshot: Snapshot) -> float:
    """Return how much of the phase is done, from 0 to 1."""
    if snapshot.units <= 0:  # All sources are empty files, so count files instead of bytes.
        return snapshot.jobs_done / max(1, snapshot.jobs)
    return min(1.0, max(0.0, snapshot.units_done / snapshot.units))


def seconds_left(snapshot: Snapshot, speed: Speed | None) -> float | None:
    """Return how long the rest of the phase takes at this speed; None if that is unknown."""
    left = max(0.0, snapshot.units - snapshot.units_done)
    if left == 0:
        return 0.0
    if speed is None:
        return None
    times = [left / speed.units] if speed.units > 0 else []
    if snapshot.fetched is not None and speed.fetched > 0:  # The slower of the two determines it.
        before = snapshot.units_done - snapshot.session_units
        times.append(max(0.0, snapshot.units - before - snapshot.fetched) / speed.fetched)
    return max(times, default=None)
