"""What is shown of a run, as text: lines from a snapshot and a speed, for any width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fwconvert.columns import (
    UNKNOWN,
    Span,
    bar,
    cells,
    duration,
    fitting,
    humanised,
    megabytes,
    percent,
    shortened,
)
from fwconvert.job.orders import JoinOrder

if TYPE_CHECKING:  # For their names only: --help must not wait for them.
    from fwconvert.pace import Pace, Speed
    from fwconvert.run.engine import Progress
    from fwconvert.run.events import Snapshot

# A longer bar says no more, and is torn up when the window shrinks.
_WIDEST_HEAD = 100


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


def job_tokens(job: Progress) -> int:
    """Return the tokens that a running job has made."""
    return int(job.fraction * job.order.tokens) if isinstance(job.order, JoinOrder) else job.tokens
