"""An observer that writes down how fast a session is, for the page, and passes everything on.

The record is small however long the session: when there are too many moments,
every second one goes. It is written by a thread of its own every few seconds, so
that a slow disk or bucket holds nothing up, and nothing that goes wrong is told:
no decision rests on it.
"""

import threading
import time
from collections import deque

from fwconvert.addresses import plain
from fwconvert.errors import printable
from fwconvert.run.events import Observer, Snapshot
from fwconvert.store import layout, statistics
from fwconvert.store.base import Store
from fwconvert.store.statistics import Arriving, Latest, Moment, Notice, RunningOrder, Timeline

_FIRST_WRITE_SECONDS = 1.0
_WRITE_SECONDS = 4.0
_REMOTE_WRITE_SECONDS = 20.0
_FIRST_STEP = 0.25
_PATIENCE_SECONDS = 10.0
_MOST_TITLE = 200


class Recorder:
    """Keeps the timeline of one session (see events.Observer)."""

    def __init__(self, store: Store, session: str, observer: Observer) -> None:
        self._store = store
        self._session = session
        self._observer = observer
        self._began, self._clock = time.time(), time.monotonic()
        self._moments: list[Moment] = []
        self._step = _FIRST_STEP
        # The first and the last: what began a trouble, and what there is now.
        self._first_notices: list[Notice] = []
        self._last_notices: deque[Notice] = deque(maxlen=statistics.MOST_NOTICES // 2)
        self._noticed = 0
        self._snapshot: Snapshot | None = None
        self._write_at = _FIRST_WRITE_SECONDS
        self._writer: threading.Thread | None = None
        self._is_over = False

    def notice(self, text: str) -> None:
        """Write a notice down, and pass it on."""
        self._noticed += 1
        short = printable(plain(text[: 2 * statistics.MOST_NOTICE]))[: statistics.MOST_NOTICE]
        notice = Notice(round(self._seconds, 3), short)
        if len(self._first_notices) < statistics.MOST_NOTICES // 2:
            self._first_notices.append(notice)
        else:
            self._last_notices.append(notice)
        self._observer.notice(text)

    def update(self, snapshot: Snapshot) -> None:
        """Write down how far the run is, if it is time; pass it on."""
        now, before = self._seconds, self._snapshot
        self._snapshot = snapshot
        is_news = before is None or before.phase != snapshot.phase
        if is_news or now - self._moments[-1].seconds >= self._step:
            self._add(now, snapshot)
        if now >= self._write_at and not self._is_over:
            self._write_at = now + (_REMOTE_WRITE_SECONDS if self._store.is_remote else _WRITE_SECONDS)
            self._write_aside()
        self._observer.update(snapshot)

    def finish(self, outcome: str) -> None:
        """Write down how the session ended; nothing is written after that."""
        self._is_over = True
        if self._writer is not None:
            self._writer.join(_PATIENCE_SECONDS)
            if self._writer.is_alive():
                return  # Whatever it waits for, we do not.
        if self._snapshot is not None:
            self._add(self._seconds, self._snapshot)
        statistics.write(self._store, layout.timeline(self._session), self._timeline(outcome))

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._clock

    def _add(self, now: float, snapshot: Snapshot) -> None:
        working = snapshot.phase == "convert"
        self._moments.append(
            Moment(
                seconds=round(now, 3),
                tokens=snapshot.session_tokens,
                fetched=-1 if snapshot.fetched is None else snapshot.fetched,
                source_bytes=round(snapshot.session_units) if working else 0,
                limit=(snapshot.bottleneck or "workers") if working else snapshot.phase,
                running=len(snapshot.running),
            )
        )
        if len(self._moments) >= statistics.MOST_MOMENTS:
            del self._moments[1:-1:2]
            self._step = max(2 * self._step, now / len(self._moments))

    def _write_aside(self) -> None:
        if self._writer is not None and self._writer.is_alive():
            return
        store, name, record = self._store, layout.timeline(self._session), self._timeline("")
        self._writer = threading.Thread(
            target=statistics.write, args=(store, name, record), name="timeline", daemon=True
        )
        try:
            self._writer.start()
        except RuntimeError:  # No more threads: then not.
            self._writer = None

    def _timeline(self, outcome: str) -> Timeline:
        kept = (*self._first_notices, *self._last_notices)
        return Timeline(
            session=self._session,
            began=self._began,
            told=self._began + self._seconds,
            moments=tuple(self._moments),
            notices=kept,
            notices_left_out=self._noticed - len(kept),
            latest=None if self._snapshot is None else _latest(self._snapshot),
            outcome=outcome,
        )


def _latest(snapshot: Snapshot) -> Latest:
    running = snapshot.running[: statistics.MOST_RUNNING]
    return Latest(
        phase=snapshot.phase,
        units=snapshot.units,
        units_done=snapshot.units_done,
        jobs=snapshot.jobs,
        jobs_done=snapshot.jobs_done,
        tokens=snapshot.tokens,
        fetched=-1 if snapshot.fetched is None else snapshot.fetched,
        connections=snapshot.connections,
        running=tuple(
            RunningOrder(one.title[:_MOST_TITLE], round(one.fraction, 4), one.tokens, one.node)
            for one in running
        ),
        downloads=tuple(
            Arriving(one.title[:_MOST_TITLE], one.bytes, one.size, one.node)
            for one in snapshot.downloads[: statistics.MOST_RUNNING]
        ),
    )
