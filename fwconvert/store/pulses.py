"""How far the session at work is: a small record, renewed every few seconds for whoever asks from outside.

Nothing rests on it. Only that of a session that holds its lock says anything; it goes
with its session, and one that a killed session has left goes with the next.
"""

import datetime as dt
from contextlib import suppress
from typing import ClassVar

from fwconvert import records
from fwconvert.errors import ManifestError, OutputError
from fwconvert.recipes import is_safe
from fwconvert.records import Record
from fwconvert.store import base, layout
from fwconvert.store.base import Store


class Pulse(Record, frozen=True, tag="fwconvert pulse 1"):
    """How far a session is, and how fast. Rates are those of the last seconds; None: not known yet."""

    most_bytes: ClassVar[int] = 2**14
    session: str
    # When this was so.
    at: str
    phase: str
    # Of the whole run (of a rank: of its share), from 0 to 1.
    progress: float
    # Since the session began.
    seconds: float
    seconds_left: float | None
    jobs: int
    jobs_done: int
    tokens: int
    tokens_per_second: float | None
    source_bytes_per_second: float | None
    # None if nothing is fetched.
    fetched_bytes_per_second: float | None
    connections: int
    # "network", "workers" or "--limit"; None if nothing is fetched.
    limit: str | None


def now() -> str:
    """Return the time, as records have it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(pulse: Pulse) -> float | None:
    """Return how many seconds old a pulse is, by the clock of this machine; None if that cannot be said."""
    try:
        then = dt.datetime.strptime(pulse.at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    return max(0.0, (dt.datetime.now(dt.UTC) - then).total_seconds())


def write(store: Store, pulse: Pulse) -> None:
    """Renew the pulse of a session, if that is possible."""
    with suppress(OutputError, OSError):
        store.write(layout.pulse(pulse.session), records.encode(pulse) + b"\n")


def read(store: Store, session: str) -> Pulse | None:
    """Return the pulse of a session, or None if there is none that can be read."""
    if not is_safe(session):
        return None
    with suppress(ManifestError, OSError):
        found = base.read_record(store, layout.pulse(session), Pulse)
        return found if found.session == session else None
    return None


def remove(store: Store, *sessions: str) -> None:
    """Remove the pulses of sessions that are over, those that are there."""
    with suppress(OutputError, OSError):
        store.remove(*(layout.pulse(session) for session in sessions))
