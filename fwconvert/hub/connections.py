"""The connections that fetch files: several ranges of a file at once, the earliest file first.

A CDN limits each connection, so a link is filled by many. How many pays is found
out while they work (`Pace`). A connection takes some missing pieces of the
earliest file that has any, so that files become whole one after another and the
first job starts soon. If all pieces of a file are taken and one of its connections
is far slower than the others, or stalls, another one takes over what it has left.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from fwconvert.errors import HubError, Stopped
from fwconvert.hub.part import ContentMismatch, Part
from fwconvert.hub.remote import FileRange, Remote
from fwconvert.hub.retry import Retry, TransientError
from fwconvert.recipes import SourceShard

_FIRST_CONNECTIONS = 16
# Pieces that one request may ask for.
_MAX_RUN = 16
# A connection that brings nothing for so long, or a quarter of what the others bring, is replaced.
_STALL_SECONDS = 3.0
_SLOW_SHARE = 4
_LOOK_SECONDS = 0.5
# Ranges by which it is known what a connection usually brings.
_RATES_KEPT = 8


class Pace:
    """How many connections there may be: more as long as more bring more, fewer if the server complains.

    It doubles while that brings a tenth more bytes, goes one step back when it
    does not, and tries a quarter more from time to time. Pure: it is told the time.
    """

    window_seconds = 0.5
    _GAIN = 1.1
    _FIRST_HOLD = 10.0
    _LONGEST_HOLD = 80.0
    _HOLD_AFTER_TROUBLE = 30.0
    _TROUBLE_SECONDS = 2.0

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = min(_FIRST_CONNECTIONS, most)
        # Bytes a second of all connections, as last measured.
        self.rate = 0.0
        self._before = self.limit
        self._best = 0.0
        self._is_doubling = True
        self._hold_seconds, self._held_until = self._FIRST_HOLD, 0.0
        self._troubled = -math.inf
        # What is measured now: since when, how much, and whether all connections were at work.
        self._began, self._bytes, self._was_full = -1.0, 0, True

    def received(self, size: int, now: float, active: int) -> None:
        """Count bytes, and now and then decide anew. `active` connections are at work."""
        if self._began < 0:
            self._begin(now)
        self._bytes += size
        # With fewer connections at work than there may be, nothing can be learnt about more.
        self._was_full = self._was_full and active >= self.limit
        if now - self._began < self.window_seconds:
            return
        self.rate = self._bytes / (now - self._began)
        was_full = self._was_full
        self._begin(now)
        if was_full and now >= self._held_until:
            self._decide(now)

    def trouble(self, now: float) -> None:
        """Halve the number: a server asks for fewer requests, or connections break.

        Connections that meet the same trouble together count once.
        """
        if now < self._troubled + self._TROUBLE_SECONDS:
            return
        self._troubled = now
        self.limit = self._before = max(1, self.limit // 2)
        self._is_doubling, self._best = False, 0.0
        self._held_until = now + self._HOLD_AFTER_TROUBLE
        self._begin(now)

    def _decide(self, now: float) -> None:
        if self.rate > self._best * self._GAIN:
            self._best, self._before = self.rate, self.limit
            self._grow()
        elif self.limit > self._before:  # It grew, and that brought nothing.
            self.limit, self._is_doubling = self._before, False
            self._held_until = now + self._hold_seconds
            self._hold_seconds = min(self._LONGEST_HOLD, 2 * self._hold_seconds)
        else:  # Held long enough: try more, compared with what there is now.
            self._best = self.rate
            self._grow()

    def _grow(self) -> None:
        more = self.limit if self._is_doubling else max(1, self.limit // 4)
        self.limit = min(self._most, self.limit + more)

    def _begin(self, now: float) -> None:
        self._began, self._bytes, self._was_full = now, 0, True


class Span:
    """A range of a file that one connection fetches, from where it is now to its end."""

    def __init__(self, position: int, end: int, now: float) -> None:
        self.position, self.end = position, end
        self.began, self.moved, self.bytes = now, now, 0
        # Given to another connection, or not needed any more.
        self.is_lost = False

    def rate(self, now: float) -> float:
        """Return the bytes a second that it has brought."""
        return self.bytes / max(1e-3, now - self.began)


class Transfer:
    """A file while it is fetched. Its fields are guarded by `changed`, which is that of the connections."""

    def __init__(
        self,
        remote: Remote,
        file: SourceShard,
        part: Part,
        retry: Retry,
        count: Callable[[int], None],
        changed: threading.Condition,
        turn: int,
    ) -> None:
        self.turn = turn
        self.remote, self.file, self.part, self.retry, self.count = remote, file, part, retry, count
        self.changed = changed
        self.spans: list[Span] = []
        self.error: BaseException | None = None
        # The server ignores ranges, so one connection brings all.
        self.is_alone = False
        # After a failure no new range is asked for until then; 0: at any time.
        self.retry_at = 0.0
        self._has_begun = False
        # Held while the part is written to.
        self._writing = threading.Lock()
        # Set when there may be something to hash, or to raise.
        self._news = threading.Event()

    def may_ask(self, now: float) -> bool:
        """Return whether a range may be asked for: nothing is wrong, and no wait is left after a failure."""
        if self.error is not None or now < self.retry_at:
            return False
        if self.retry_at:
            self.retry_at = 0.0
            self.retry.restart_flow()
        return True

    def _begin(self) -> None:
        """Count the time without progress from now on: until now other files had all connections."""
        if not self._has_begun:
            self._has_begun = True
            self.retry.progress()

    def claim(self, most_pieces: int, now: float) -> Span | None:
        """Return a range that nobody fetches yet, or None; at most this many pieces."""
        part = self.part
        if self.is_alone:
            is_free = not self.spans and part.first_missing < self.file.bytes
            return self._add(Span(part.first_missing, self.file.bytes, now)) if is_free else None
        taken = sorted((span.position, span.end) for span in self.spans)
        for piece in range(part.pieces):
            begin, end = part.piece_begin(piece), part.piece_end(piece)
            if begin == end or _overlaps(taken, begin, end):
                continue
            for following in range(piece + 1, min(piece + most_pieces, part.pieces)):
                following_begin, following_end = part.piece_begin(following), part.piece_end(following)
                if following_begin != end or _overlaps(taken, following_begin, following_end):
                    break
                end = following_end
            return self._add(Span(begin, end, now))
        return None

    def take_over(self, fair_rate: float, now: float) -> Span | None:
        """Return what a connection has left that is far slower than `fair_rate`, which loses it."""
        for span in [*self.spans]:
            stalls = now - span.moved > _STALL_SECONDS
            crawls = now - span.began > _STALL_SECONDS and span.rate(now) < fair_rate / _SLOW_SHARE
            if (stalls or crawls) and not self.is_alone:
                self._lose(span)
                if span.position < span.end:  # It may have brought all, and not ended yet.
                    return self._add(Span(span.position, span.end, now))
        return None

    def split(self, now: float) -> Span | None:
        """Return the second half of the largest range that is fetched, if it has whole pieces left."""
        piece_bytes = self.part.piece_bytes

        def middle(span: Span) -> int:
            return ((span.position + span.end) // 2 // piece_bytes + 1) * piece_bytes

        spans = [] if self.is_alone else [span for span in self.spans if middle(span) < span.end]
        if not spans:
            return None
        largest = max(spans, key=lambda span: span.end - span.position)
        begin, end = middle(largest), largest.end
        largest.end = begin
        return self._add(Span(begin, end, now))

    def fetch_alone(self, span: Span) -> bool:
        """Give the whole file to one connection; return whether it is this one's."""
        with self.changed:
            if span.is_lost:
                return False
            self.is_alone = True
            for other in [other for other in self.spans if other is not span]:
                self._lose(other)
            span.position, span.end = self.part.first_missing, self.file.bytes
            return True

    def write(self, span: Span, content: memoryview) -> None:
        """Write what a connection brought, unless its range was given to another one."""
        with self._writing:
            if not span.is_lost:
                self.part.write(span.position, content)
                span.position += len(content)
                self._news.set()

    def wait(self) -> None:
        """Wait until more of the file can be hashed, or a moment; raise what went wrong."""
        self._news.wait(_LOOK_SECONDS / 2)
        self._news.clear()
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        """Take all ranges back; after this nobody writes to the part any more."""
        with self.changed:
            self._close()

    def release(self, span: Span) -> None:
        """Let others fetch what is left of a range."""
        with self.changed:
            if not span.is_lost:
                self._lose(span)
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the transfer: whoever waits for the file raises `error`."""
        with self.changed:
            self.error = self.error or error
            self._close()
            self._news.set()

    def _close(self) -> None:
        """Take all ranges from their connections."""
        for span in [*self.spans]:
            self._lose(span)
        self.changed.notify_all()

    def failed(self, error: TransientError) -> None:
        """Set when to try again; raise HubError if there was no progress for too long.

        Connections that fail together count as one failure.
        """
        with self.changed:
            if not self.retry_at:
                self.retry_at = time.monotonic() + self.retry.next_wait(error, self.file.path)

    def _add(self, span: Span) -> Span:
        self._begin()
        self.spans.append(span)
        return span

    def _lose(self, span: Span) -> None:
        with self._writing:  # Whoever writes for it now is done first.
            span.is_lost = True
        self.spans.remove(span)


def _overlaps(taken: list[tuple[int, int]], begin: int, end: int) -> bool:
    return any(one < end and begin < other for one, other in taken)


class Connections:
    """Threads that fetch the ranges of all files that are wanted, each with one connection at a time.

    What goes wrong and is tried again is counted in `faults`: "refusals", "broken", "corrupt".
    """

    def __init__(self, most: int, faults: Counter[str] | None = None) -> None:
        self.faults: Counter[str] = Counter() if faults is None else faults
        self.changed = threading.Condition()
        self._pace = Pace(most)
        self._transfers: list[Transfer] = []
        self._active: set[Span] = set()
        # What the last connections brought that ended, in bytes a second. A few that were taken over and
        # whose successors are no faster change it, so a link that becomes slow is left in peace.
        self._rates: deque[float] = deque(maxlen=_RATES_KEPT)
        self._idle = 0
        self._moved = 0.0

    @property
    def active(self) -> int:
        """How many connections are at work."""
        with self.changed:
            return self._working

    @property
    def under_way(self) -> list[tuple[str, int, int]]:
        """The files that are being fetched, in turn: the path, the bytes that have arrived, and the size."""
        with self.changed:
            return [(one.file.path, one.part.arrived, one.file.bytes) for one in self._transfers]

    def met(self, fault: str) -> None:
        """Count a fault that is tried again."""
        with self.changed:
            self.faults[fault] += 1

    @property
    def _working(self) -> int:
        return sum(not span.is_lost for span in self._active)

    @contextmanager
    def serving(self, transfer: Transfer) -> Iterator[None]:
        """Fetch what is missing of a file during the block, which waits for it; the lowest `turn` first."""
        with self.changed:
            self._transfers.append(transfer)
            self._transfers.sort(key=lambda one: one.turn)
            self._staff()
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self._transfers.remove(transfer)
            transfer.finish()

    def _staff(self) -> None:
        """Start a thread if another connection may work and no thread is idle. Hold `changed`."""
        if not self._idle and self._working < self._pace.limit:
            try:
                threading.Thread(target=self._work, name="connection", daemon=True).start()
            except RuntimeError:
                if not self._active:  # Otherwise those that there are will do.
                    raise
            else:
                self._idle += 1

    def _work(self) -> None:
        """Fetch one range after another, until no file is wanted."""
        while (task := self._next()) is not None:
            transfer, span = task
            try:
                self._fetch(transfer, span)
            except BaseException as error:  # noqa: BLE001  # raised where the file is waited for
                # A range that was lost is another connection's by now, and no trouble of the file.
                if not span.is_lost:
                    self._failed(transfer, error)
            finally:
                transfer.release(span)
                with self.changed:
                    self._active.discard(span)
                    self._idle += 1
                    if span.bytes:
                        self._rates.append(span.rate(time.monotonic()))

    def _failed(self, transfer: Transfer, error: BaseException) -> None:
        """Let a range be tried again after a while, or give the file up."""
        if not isinstance(error, TransientError):
            transfer.fail(error)
            return
        if error.is_pressure:
            with self.changed:
                self._pace.trouble(time.monotonic())
        try:
            transfer.failed(error)
        except HubError as final:
            transfer.fail(final)
        else:
            self.met("refusals" if error.is_answer else "broken")

    def _next(self) -> tuple[Transfer, Span] | None:
        """Wait for something to fetch; return None when no file is wanted any more."""
        with self.changed:
            while self._transfers:
                is_allowed = self._working < self._pace.limit
                task = self._choose(time.monotonic()) if is_allowed else None
                if task is not None:
                    self._idle -= 1
                    self._active.add(task[1])
                    self._staff()
                    return task
                self.changed.wait(self._idle_seconds())
            self._idle -= 1
            return None

    def _idle_seconds(self) -> float:
        """Return for how long nothing can be learnt by looking again."""
        waits = [transfer.retry_at - time.monotonic() for transfer in self._transfers if transfer.retry_at]
        return max(0.005, min([_LOOK_SECONDS, *waits]))

    def _choose(self, now: float) -> tuple[Transfer, Span] | None:
        # One that is left alone is compared with those that have ended, and never with itself.
        fair_rate = median(self._rates or [0.0])
        if self._working > 1:
            fair_rate = max(fair_rate, self._pace.rate / self._working)
        # If nothing comes at all, it is not one connection that is slow.
        others_move = now - self._moved < 1.0
        allowed = [transfer for transfer in self._transfers if transfer.may_ask(now)]
        for transfer in allowed:
            missing = (transfer.file.bytes - transfer.part.arrived) // transfer.part.piece_bytes
            run = max(1, min(_MAX_RUN, missing // (2 * self._pace.limit)))
            span = transfer.claim(run, now)
            if span is None and others_move:
                span = transfer.take_over(fair_rate, now)
            if span is not None:
                return transfer, span
        for transfer in allowed:
            span = transfer.split(now)
            if span is not None:
                return transfer, span
        return None

    def _fetch(self, transfer: Transfer, span: Span) -> None:
        """Bring one range by one request."""
        file, wanted = transfer.file, span.end
        end = None if wanted == file.bytes else wanted
        with transfer.remote.open_range(file.path, span.position, end) as answer:
            if answer.is_past_end:
                raise ContentMismatch(
                    f"the server's file ends before byte {span.position:,} of {file.bytes:,}"
                )
            if answer.total is not None and answer.total != file.bytes:
                raise ContentMismatch(f"the server has {answer.total:,} bytes instead of {file.bytes:,}")
            if answer.begin > span.position:
                raise TransientError(f"the server sent bytes from {answer.begin:,} on, not {span.position:,}")
            ignores_range = answer.is_whole and (span.position > 0 or end is not None)
            if ignores_range and not transfer.fetch_alone(span):
                return
            self._receive(transfer, span, answer)
        if not span.is_lost and span.position < span.end:
            raise TransientError(f"the response ended after {span.position:,} of {span.end:,} bytes")

    def _receive(self, transfer: Transfer, span: Span, answer: FileRange) -> None:
        """Write what a response brings, block by block."""
        skip = span.position - answer.begin
        for block in answer:
            now = time.monotonic()
            new, skip = memoryview(block)[skip:], max(0, skip - len(block))
            room = max(0, span.end - span.position)
            if len(new) > room and span.end == transfer.file.bytes:
                raise ContentMismatch(f"the server sent more than {transfer.file.bytes:,} bytes")
            transfer.write(span, new[:room])
            span.moved, span.bytes = now, span.bytes + len(block)
            self._count(transfer, len(block), min(len(new), room), now)
            if transfer.retry.stop.is_set():
                raise Stopped("stopped by the user")
            if span.is_lost or room <= len(new):
                return

    def _count(self, transfer: Transfer, size: int, new: int, now: float) -> None:
        transfer.count(new)
        with self.changed:
            self._moved = now
            transfer.retry.received(size, transfer.file.path, new=new > 0)
            before = self._pace.limit
            self._pace.received(size, now, self._working)
            self._staff()
            if self._pace.limit > before:
                self.changed.notify_all()
