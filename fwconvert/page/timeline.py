"""The sessions of a run and how fast they were: what their timelines tell, in the order of the work."""

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fwconvert.errors import FwconvertError, printable
from fwconvert.store import sessions, statistics
from fwconvert.store.base import Store
from fwconvert.store.sessions import Session
from fwconvert.store.statistics import Moment, Timeline

# Records that are read for a page, and marks in its chart.
MOST_SESSIONS = 200
_MOST_NOTICES = 300
_POINTS = 160


@dataclass(frozen=True)
class SessionFacts:
    """One session, and its timeline if there is one."""

    id: str
    started: str
    ended: str
    outcome: str
    host: str
    workers: int
    encoder: str
    at_work: bool
    timeline: Timeline | None

    @property
    def seconds(self) -> float | None:
        """How long it took, as far as that is known."""
        begin, end = _moment(self.started), _moment(self.ended)
        if self.timeline is not None:
            return max(0.0, self.timeline.told - self.timeline.began)
        return None if begin is None or end is None else max(0.0, end - begin)

    @property
    def was_cut_off(self) -> bool:
        """Whether it ended without an end: killed, or its machine lost power."""
        return (not self.ended and not self.at_work) or self.outcome.startswith("cut off")

    @property
    def tokens(self) -> int | None:
        """What it made itself."""
        return None if self.timeline is None else max((m.tokens for m in self.timeline.moments), default=0)


def past_sessions(
    store: Store, written: Sequence[Session], known: dict[str, SessionFacts] | None = None
) -> list[SessionFacts]:
    """Return the last sessions: those of the folder, or those `written` in the manifest of a copy.

    Those that are over are kept in `known`, and not read again.
    """
    past, known = sessions_of(store) or [*written], {} if known is None else known
    found: list[SessionFacts] = []
    for one in past[-MOST_SESSIONS:]:
        if one.id in known:
            found.append(known[one.id])
            continue
        at_work = not one.ended and bool(store.holder(one.id))
        timeline = statistics.of_session(store, one.id)
        facts = SessionFacts(
            id=one.id,
            started=one.started,
            ended=one.ended,
            outcome=one.outcome,
            host=one.host,
            workers=one.workers,
            encoder=one.encoder,
            at_work=at_work,
            timeline=timeline,
        )
        if one.ended and timeline is not None and timeline.outcome:
            known[one.id] = facts
        found.append(facts)
    return found


def _moment(text: str) -> float | None:
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def sessions_of(store: Store) -> list[Session]:
    """Return the sessions whose records are in the folder; none if they cannot be believed."""
    try:
        return sessions.all_of(store)
    except FwconvertError:
        return []


def speed(past: Sequence[SessionFacts]) -> dict[str, Any]:
    """Return the speed of all sessions, one after the other: points, and marks where something happened.

    Time between sessions is left out. A point has the seconds of work before it, tokens and fetched
    bytes per second, and what limited.
    """
    timed = [one for one in past if one.timeline is not None and one.timeline.moments]
    lengths = [one.seconds or 0.0 for one in timed]
    step = max(sum(lengths) / _POINTS, 0.5)
    points, marks, before = [], [], 0.0
    for number, (one, length) in enumerate(zip(timed, lengths, strict=True), 1):
        assert one.timeline is not None  # noqa: S101  # for mypy
        marks.append({"x": round(before, 2), "kind": "session", "text": f"session {number}, {one.started}"})
        points += _rates(one.timeline, before, step)
        for notice in one.timeline.notices:
            trouble = kind_of(notice.text)
            if trouble != "notice" and len(marks) < _MOST_NOTICES:
                text = printable(notice.text.partition("\n")[0][:160])
                marks.append({"x": round(before + notice.seconds, 2), "kind": trouble, "text": text})
        before += length
        if one.was_cut_off:
            marks.append({"x": round(before, 2), "kind": "crash", "text": f"session {number} was cut off"})
    return {"points": points, "marks": marks, "sessions": len(timed)}


def _rates(timeline: Timeline, before: float, step: float) -> list[list[Any]]:
    found = []
    moments = timeline.moments
    begin = moments[0]
    if begin.seconds > 0:  # From its beginning on.
        begin = Moment(0.0, 0, min(begin.fetched, 0), 0, begin.limit, 0)
    limits_seen: Counter[str] = Counter()
    for before_it, moment in pairwise((begin, *moments)):
        # What was made until a phase began is of the phase before.
        is_next_phase = _phase(moment) != _phase(before_it)
        limits_seen[(before_it if is_next_phase else moment).limit[:20]] += 1
        took = moment.seconds - begin.seconds
        # Tokens are told a batch at a time. Between two batches nothing stands still, unless it takes long.
        is_news = moment.tokens > begin.tokens or moment.fetched > begin.fetched or took > 8 * step
        is_end = is_next_phase or moment is moments[-1]
        if took <= 0 or ((took < step or not is_news) and not is_end):
            continue
        tokens = max(0, moment.tokens - begin.tokens) / took
        fetched = max(0, moment.fetched - begin.fetched) / took if moment.fetched >= 0 else None
        limit = limits_seen.most_common(1)[0][0]
        found.append(
            [
                round(before + moment.seconds, 2),
                round(tokens),
                fetched and round(fetched),
                limit,
                moment.running,
            ]
        )
        begin = moment
        limits_seen.clear()
    return found


def _phase(moment: Moment) -> str:
    return moment.limit if moment.limit in ("check", "join", "copy") else "convert"


_TROUBLES = {
    "lost": ("attempt", "was killed", "worker", "died", "crash", "memory"),
    "retry": (
        "retry",
        "retrying",
        "again",
        "reset",
        "503",
        "429",
        "timed out",
        "stalled",
        "sha256",
        "corrupt",
    ),
}


def kind_of(notice: str) -> str:
    """Return what a notice is about: a worker or an attempt that was lost, a retry, or something else."""
    text = notice.lower()
    return next((kind for kind, words in _TROUBLES.items() if any(word in text for word in words)), "notice")
