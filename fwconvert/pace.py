"""How fast a session works: the speed of the last half minute of its own work.

An average since the start would let a resumed run claim the speed of its
predecessors, and would show a slow start for hours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # For their names only: --help must not wait for them.
    from fwconvert.run.events import Snapshot

Clock = Callable[[], float]
WINDOW_SECONDS = 30.0
# Less than this says nothing about a speed.
EVIDENCE_SECONDS = 2.0


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


def session_tokens(snapshot: Snapshot) -> int:
    """Return the tokens that this session made in this phase."""
    return int(snapshot.session_units) if snapshot.phase == "join" else snapshot.session_tokens
