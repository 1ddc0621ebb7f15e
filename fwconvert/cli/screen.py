"""What is said of a run, as text: numbers for people, and lines that fit a window and an encoding."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # For annotations only, so that --help stays fast.
    from fwconvert.run.events import Snapshot
    from fwconvert.run.outlook import Forecast

Clock = Callable[[], float]

SEPARATOR = " · "
UNKNOWN = "–"  # noqa: RUF001  # a dash, as wide as a digit
# What bars and words are drawn with, where an encoding lacks it.
_ASCII = {"·": "|", "…": "~", UNKNOWN: "-", "━": "#", "╸": "#", "╺": "-", "─": "-"}
# An end that is further away is told with its day.
_A_DAY = 20 * 60 * 60


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
    """Return bytes as megabytes: 0.4, 12.3, 1,230."""
    return f"{number / 1e6:.1f}" if number < 99.95e6 else f"{number / 1e6:,.0f}"


def percent(part: float) -> str:
    """Return a percentage, six characters wide; 100% only when all is done."""
    return "  100%" if part >= 1 else f"{math.floor(part * 1000) / 10:>5.1f}%"


def duration(seconds: float | None) -> str:
    """Return hours, minutes and seconds: 0:00:07, 1:02:03; a dash for None."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def finish(seconds: float | None, now: float) -> str:
    """Return the time of day in so many seconds: 18:42, or Fri 18:42; "" if that is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    try:
        then = time.localtime(now + seconds)
    except (OverflowError, OSError, ValueError):  # Beyond the calendar.
        return ""
    if seconds > 6 * 24 * 60 * 60:
        return time.strftime("%Y-%m-%d", then)
    return time.strftime("%a %H:%M" if seconds > _A_DAY else "%H:%M", then)


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


def status(snapshot: Snapshot, forecast: Forecast) -> list[str]:
    """Return how far the run is, what limits it and how much time is left, in parts: the important first."""
    left = f"{duration(forecast.seconds_left)} left"
    head = f"{snapshot.phase} {percent(forecast.progress).strip()}"
    limiting = limits(snapshot, forecast)
    return [head, left, *limiting[:1], *counts(snapshot, forecast), *limiting[1:2]]


def outcome(snapshot: Snapshot, seconds: float) -> list[str]:
    """Return the summary of a finished phase, in parts: the important first; its speeds are averages."""
    from fwconvert.run.outlook import Forecast  # noqa: PLC0415  # loaded already by whoever had a snapshot

    spent = max(seconds, 1e-9)
    tokens = snapshot.session_units if snapshot.phase == "join" else snapshot.session_tokens
    fetched = None if snapshot.fetched is None else snapshot.fetched / spent
    average = Forecast(0.0, 0.0, tokens / spent, snapshot.session_units / spent, fetched)
    head = f"{snapshot.phase} {percent(fraction(snapshot)).strip()}"
    jobs, made, *rates = counts(snapshot, average if seconds > 0 else Forecast(0.0, None, None, None))
    return [head, jobs, made, f"in {duration(seconds)}", *rates, *limits(snapshot, average)[:2]]


def fraction(snapshot: Snapshot) -> float:
    """Return how much of the phase is done, from 0 to 1."""
    if snapshot.units <= 0:  # All sources are empty files, so count files instead of bytes.
        return snapshot.jobs_done / max(1, snapshot.jobs)
    return min(1.0, max(0.0, snapshot.units_done / snapshot.units))


def counts(snapshot: Snapshot, forecast: Forecast) -> list[str]:
    """Return jobs, tokens, tokens/s and, while source bytes are read, MB/s; how many machines are at work."""
    nodes = len({job.node for job in snapshot.running if job.node})
    jobs = f"{snapshot.jobs_done}/{snapshot.jobs} jobs" + (f" on {nodes} nodes" if nodes > 1 else "")
    tokens_rate = f"{_known(forecast.tokens, humanised)} tokens/s"
    bytes_rate = f"{_known(forecast.units, megabytes)} MB/s"
    if snapshot.phase == "join":
        return [jobs, f"{humanised(snapshot.units_done)} tokens joined", tokens_rate]
    if snapshot.phase in ("check", "copy"):
        done = "hashed" if snapshot.phase == "check" else "copied"
        return [f"{megabytes(snapshot.units_done)} of {megabytes(snapshot.units)} MB {done}", bytes_rate]
    return [jobs, f"{humanised(snapshot.tokens)} tokens", tokens_rate, bytes_rate]


def limits(snapshot: Snapshot, forecast: Forecast) -> list[str]:
    """Return what the run waits for, the download rate and what is to come, if the run fetches files."""
    if snapshot.fetched is None or snapshot.phase != "convert":
        return []
    many = snapshot.connections
    over = f" over {many} connection{'' if many == 1 else 's'}" if many else ""
    return [
        f"limit: {snapshot.bottleneck}",
        f"fetching {_known(forecast.fetched, megabytes)} MB/s{over}",
        f"{megabytes(snapshot.to_fetch)} MB to come",
    ]


def resuming(snapshot: Snapshot) -> str:
    """Return what earlier sessions have done, if they have done anything."""
    if not snapshot.jobs_found or snapshot.phase in ("check", "copy"):
        return ""
    return f"resuming: {snapshot.jobs_found:,} of {snapshot.jobs:,} were done before"


def _known(rate: float | None, shown: Callable[[float], str]) -> str:
    return UNKNOWN if rate is None else shown(rate)
