"""How far a run is, how fast it goes and how long it still takes. Pure: it is told the time.

The time left is that of a small simulation of the rest. Sources arrive at the
speed of the network; each goes to the first worker that is free, which converts
it at the speed of a worker; then the join. So the one that is slower counts, be
it the network or the workers, and so do a last source that one worker converts
alone and workers that wait for the first.

A worker's speed is measured while it works, and the network's while something is
fetched; what was done before this session is no speed. Both are averages whose
memory grows with the run, from a few seconds to most of a minute: the first
connections of a download are no measure for its hours, and a stall of seconds is none either.

What is shown goes down with the clock and approaches the estimate in a few
seconds, so it neither jumps nor stands still.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fwconvert.run.events import Phase, Snapshot

# Before a speed is believed it was seen for so long.
EVIDENCE_SECONDS = 2.0
# An average remembers a part of the time so far, within these bounds.
_MEMORY = 0.4
_SHORTEST_MEMORY, _LONGEST_MEMORY = 4.0, 60.0
# What is shown of a speed is that of the last seconds.
_SHOWN_MEMORY = 15.0
# What is shown of the time left approaches the estimate in this part of it, or of twice the time
# that is over if that is less, within these bounds.
_APPROACH = 0.05
_FASTEST_APPROACH, _SLOWEST_APPROACH = 1.0, 15.0
# Nothing came for so long: that says nothing of the speed when it comes again.
_STALL_SECONDS = 3.0
# A driver that was suspended has seen nothing.
_LONGEST_STEP = 10.0
# Until there is evidence: parquet bytes that a worker converts, and bytes of tokens that it joins, a second.
_CONVERTED = 20e6
_JOINED = 150e6
# A guess weighs as much as what was seen in this time.
_GUESS_SECONDS = 0.3
# What joining a byte is in the progress, of what converting one is: so much faster it is.
_JOIN_WEIGHT = 0.1
# Jobs that the simulation looks at one by one.
_MOST_JOBS = 500


@dataclass(frozen=True)
class Forecast:
    """What is known of a run now. Speeds are a second."""

    # From 0 to 1: bytes fetched, bytes converted, bytes joined.
    progress: float
    # None: there is too little evidence.
    seconds_left: float | None
    # None before there is a speed.
    tokens: float | None
    # Of the phase: bytes of sources, tokens of the join, bytes that are checked or copied.
    units: float | None
    fetched: float | None = None


class Average:
    """An amount a second that forgets: what was seen `memory` seconds ago counts a third."""

    def __init__(self, guess: float = 0.0) -> None:
        self._amount = guess * _GUESS_SECONDS
        self._seconds = _GUESS_SECONDS if guess else 0.0
        # All time that was counted, which is never forgotten.
        self.seen = 0.0

    def add(self, amount: float, seconds: float, step: float, memory: float) -> None:
        """Count an amount and the time that it took, at the end of a step."""
        fade = math.exp(-step / memory)
        self._amount = self._amount * fade + amount
        self._seconds = self._seconds * fade + seconds
        self.seen += seconds

    @property
    def rate(self) -> float:
        """The amount a second. A failed job's work is subtracted again; a speed is never negative."""
        return max(0.0, self._amount) / self._seconds if self._seconds else 0.0


@dataclass
class _Seen:
    """What the last snapshot said, and the averages of a phase."""

    phase: Phase
    began: float
    at: float
    units: float
    tokens: float
    fetched: int
    worker: Average
    network: Average = field(default_factory=Average)
    # What is shown.
    shown_units: Average = field(default_factory=Average)
    shown_tokens: Average = field(default_factory=Average)
    shown_fetched: Average = field(default_factory=Average)
    has_begun: bool = False
    # When a byte was last fetched.
    moved: float = 0.0

    # How long orders have been at work of which nothing is heard yet, by their keys.
    silent: dict[str, float] = field(default_factory=dict)

    def worked(self, snapshot: Snapshot, step: float) -> float:
        """Return the seconds of workers that belong to what was done since the last look.

        The time of an order counts when something is heard of it, at its end at the latest: some engines
        cannot tell more.
        """
        if snapshot.phase in ("check", "copy"):
            return step
        before, self.silent = self.silent, {}
        worked = 0.0
        for job in snapshot.running:
            seconds = before.pop(job.key, 0.0) + step
            if job.fraction > 0:
                worked += seconds
            else:
                self.silent[job.key] = seconds
        return worked + sum(before.values())

    @property
    def stalled(self) -> float:
        """For how long nothing has come; 0 unless that is remarkable."""
        silent = self.at - self.moved
        return silent if silent > _STALL_SECONDS else 0.0


class Outlook:
    """Follows one session by its snapshots."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._seen: _Seen | None = None
        self._now = 0.0
        self._latest: Snapshot | None = None
        # The time left that was told last, and when.
        self._told: tuple[float, float] | None = None
        # By source: what had arrived when it was last looked at, when that was, and the speed.
        self._downloads: dict[str, tuple[int, float, Average]] = {}

    def see(self, snapshot: Snapshot, now: float) -> None:
        """Take in a snapshot."""
        self._began = now if self._began is None else self._began
        self._latest, self._now = snapshot, now
        seen = self._seen
        if seen is None or seen.phase != snapshot.phase:
            self._seen = _begun(snapshot, now)
            if seen is not None and {seen.phase, snapshot.phase} != {"convert", "join"}:
                self._told = None
            return
        step = min(now - seen.at, _LONGEST_STEP)
        if step <= 0:
            return
        memory = min(_LONGEST_MEMORY, max(_SHORTEST_MEMORY, _MEMORY * (now - seen.began)))
        units, tokens = snapshot.session_units, _tokens(snapshot)
        fetched = snapshot.fetched or 0
        seen.has_begun = seen.has_begun or units > 0 or fetched > 0
        busy = seen.worked(snapshot, step)
        if busy or units != seen.units:
            seen.worker.add(units - seen.units, busy or step, step, memory)
        if fetched != seen.fetched or not snapshot.downloads:
            seen.moved = now
        if fetched != seen.fetched or (snapshot.downloads and now - seen.moved <= _STALL_SECONDS):
            seen.network.add(max(0, fetched - seen.fetched), step, step, memory)
        if seen.has_begun:
            seen.shown_units.add(units - seen.units, step, step, _SHOWN_MEMORY)
            seen.shown_tokens.add(tokens - seen.tokens, step, step, _SHOWN_MEMORY)
            seen.shown_fetched.add(fetched - seen.fetched, step, step, _SHOWN_MEMORY)
        seen.at, seen.units, seen.tokens, seen.fetched = now, units, tokens, fetched
        self._see_downloads(snapshot, now)

    def _see_downloads(self, snapshot: Snapshot, now: float) -> None:
        before, self._downloads = self._downloads, {}
        for one in snapshot.downloads:
            arrived, at, speed = before.get(one.title, (one.bytes, now, Average()))
            if now > at:
                speed.add(max(0, one.bytes - arrived), now - at, now - at, _SHOWN_MEMORY)
            self._downloads[one.title] = one.bytes, now, speed

    @property
    def seconds(self) -> float:
        """How long the session has shown what it does."""
        return 0.0 if self._began is None else self._now - self._began

    @property
    def phase_seconds(self) -> float:
        """How long this phase lasts."""
        return 0.0 if self._seen is None else self._now - self._seen.began

    def download_rate(self, title: str) -> float | None:
        """Return how fast a source comes, if that is known."""
        found = self._downloads.get(title)
        return None if found is None or found[2].seen < EVIDENCE_SECONDS / 2 else found[2].rate

    def forecast(self) -> Forecast:
        """Say how far the run is, and how long it still takes, as of the last snapshot."""
        snapshot, seen = self._latest, self._seen
        if snapshot is None or seen is None:
            return Forecast(0.0, None, None, None)
        known = seen.shown_units.seen >= EVIDENCE_SECONDS
        return Forecast(
            progress=progress(snapshot),
            seconds_left=self._tell(_seconds_left(snapshot, seen)),
            tokens=seen.shown_tokens.rate if known and seen.units else None,
            units=seen.shown_units.rate if known and seen.units else None,
            fetched=seen.shown_fetched.rate if known and snapshot.fetched is not None else None,
        )

    def _tell(self, estimate: float | None) -> float | None:
        """Return what to show: what was shown before, less the time since, drawn towards the estimate."""
        if estimate is None or math.isinf(estimate):
            self._told = None
            return None
        if self._told is not None and estimate > 0:
            told, at = self._told
            since = self._now - at
            due = max(0.0, told - since)
            pace = _APPROACH * min(max(due, estimate), 2 * self.seconds)
            pace = min(_SLOWEST_APPROACH, max(_FASTEST_APPROACH, pace))
            estimate = due + (estimate - due) * (1 - math.exp(-since / pace))
        self._told = estimate, self._now
        return estimate


def progress(snapshot: Snapshot) -> float:
    """Return how much of the run (or of a check or a copy) is done, from 0 to 1.

    A byte of a source counts when it has come and when it is converted, and a byte that is joined a little.
    """
    units: float = snapshot.units
    done = snapshot.units_done
    if snapshot.phase in ("check", "copy"):
        return _share(done, units)
    if snapshot.phase == "join":
        units = done = snapshot.source_bytes
    if snapshot.fetched is not None:
        to_fetch = min(snapshot.to_fetch, max(0, units - done))
        units, done = 2 * units, done + units - to_fetch - snapshot.failed_bytes
    weight = snapshot.token_bytes * _JOIN_WEIGHT
    units, done = units + snapshot.join_tokens * weight, done + snapshot.joined_tokens * weight
    if units <= 0:  # All sources are empty files, so count files instead of bytes.
        return _share(snapshot.jobs_done, snapshot.jobs)
    return _share(done, units)


def _share(done: float, everything: float) -> float:
    return min(1.0, max(0.0, done / everything)) if everything > 0 else 0.0


def _begun(snapshot: Snapshot, now: float) -> _Seen:
    guess = 0.0
    if snapshot.phase == "convert":
        guess = _CONVERTED
    elif snapshot.phase == "join":
        guess = _JOINED / snapshot.token_bytes
    return _Seen(
        snapshot.phase,
        began=now,
        at=now,
        units=snapshot.session_units,
        tokens=_tokens(snapshot),
        fetched=snapshot.fetched or 0,
        worker=Average(guess),
        moved=now,
    )


def _tokens(snapshot: Snapshot) -> float:
    return snapshot.session_units if snapshot.phase == "join" else snapshot.session_tokens


def _seconds_left(snapshot: Snapshot, seen: _Seen) -> float | None:
    left = max(0.0, snapshot.units - snapshot.units_done - snapshot.failed_bytes)
    if left == 0:
        return _join_seconds(snapshot)
    speed = seen.worker.rate
    if not speed or (seen.phase != "join" and max(seen.worker.seen, seen.network.seen) < EVIDENCE_SECONDS):
        return None
    if seen.phase in ("check", "copy"):
        return left / speed
    rests = [(1 - job.fraction) * job.size for job in snapshot.running]
    waiting = max(0.0, left - sum(rests))
    running = [
        max(0.0, rest / speed - seen.silent.get(job.key, 0.0))
        for job, rest in zip(snapshot.running, rests, strict=True)
    ]
    if seen.phase == "convert":
        return _convert_seconds(snapshot, seen, running, waiting) + _join_seconds(snapshot)
    shards = math.ceil(waiting / max(1, snapshot.join_tokens) * snapshot.join_shards)
    return makespan(running, shards, waiting / max(1, shards) / speed, snapshot.slots)


def _convert_seconds(snapshot: Snapshot, seen: _Seen, running: Sequence[float], waiting: float) -> float:
    """Return how long it takes until the last source is converted; `waiting` bytes are not begun."""
    behind = snapshot.jobs - snapshot.jobs_done - snapshot.jobs_failed - len(snapshot.running)
    jobs = max(1, behind) if waiting > 0 else 0
    size = waiting / max(1, jobs)
    to_fetch = min(waiting, snapshot.to_fetch)
    speed = seen.network.rate
    if to_fetch > 0 and not speed:
        return math.inf
    # Nobody knows when it comes again: as likely as not it takes as long as it has taken.
    stalled = seen.stalled if to_fetch > 0 else 0.0

    def arrival(number: int) -> float:
        """Return when so many sources are here."""
        missing = number * size - (waiting - to_fetch)
        return stalled + missing / speed if missing > 0 and to_fetch > 0 else 0.0

    return makespan(running, jobs, size / seen.worker.rate, snapshot.slots, arrival)


def _join_seconds(snapshot: Snapshot) -> float:
    """Return how long the join that is to come takes, at a speed that is guessed."""
    if snapshot.phase != "convert" or snapshot.join_tokens <= snapshot.joined_tokens:
        return 0.0
    left = (snapshot.join_tokens - snapshot.joined_tokens) * snapshot.token_bytes
    jobs = max(1, snapshot.join_shards)
    return makespan([], jobs, left / jobs / _JOINED, snapshot.slots)


def makespan(
    running: Sequence[float],
    jobs: int,
    each: float,
    slots: int,
    arrival: Callable[[int], float] = lambda _: 0.0,
) -> float:
    """Return when all is done: jobs under way end in `running` seconds, others take `each` once here.

    `arrival` says when so many of them are here. Each goes to the first slot that is free.
    """
    slots = max(1, slots, len(running))
    free = [*running, *[0.0] * (slots - len(running))]
    end = max(running, default=0.0)
    first = max(0, jobs - max(_MOST_JOBS, 2 * slots))
    if first:  # The many before, as if they could be divided.
        together = max((sum(running) + first * each) / slots, arrival(first))
        free = [max(together, one) for one in free]
        end = max(free)
    heapq.heapify(free)
    for number in range(first + 1, jobs + 1):
        done = max(free[0], arrival(number)) + each
        heapq.heapreplace(free, done)
        end = max(end, done)
    return end
