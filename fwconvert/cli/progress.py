"""Progress of a run: a live display on a terminal, a few log lines a minute or JSON elsewhere.

It goes to stderr, so that stdout is free for results. The display has no thread
of its own: `update`, which the scheduler calls several times a second, draws it in
a few milliseconds. rich is loaded only when a live display is chosen.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal, Self, TextIO, cast

from fwconvert.cli.console import Unfailing, event_line
from fwconvert.cli.screen import (
    SEPARATOR,
    Clock,
    encodable,
    fitting,
    outcome,
    printable_lines,
    resuming,
    status,
    wrapped,
)

if TYPE_CHECKING:  # For annotations only, so that --help stays fast.
    from rich.console import Console

    from fwconvert.cli.live import Picture
    from fwconvert.run.events import Observer, Snapshot
    from fwconvert.run.outlook import Outlook

Mode = Literal["auto", "bar", "plain", "json"]

_DRAW_SECONDS = 0.25
# Between two drawings there are so many times what one takes.
_DRAW_SHARE = 30
_LONGEST_PAUSE = 1.0
_FIRST_LOG_SECONDS = 5.0
_LOG_SECONDS = 20.0
_JSON_SECONDS = 1.0


def choose(
    *, quiet: bool, mode: Mode = "auto", stream: TextIO | None = None
) -> AbstractContextManager[Observer]:
    """Return the observer that suits `mode` and `stream` (stderr unless given), for a `with` block."""
    stream = sys.stderr if stream is None else stream
    if quiet or stream is None:  # pythonw and `2>&-` have no stderr.
        from fwconvert.run.events import SilentObserver  # noqa: PLC0415  # heavy, and already loaded in a real run

        return nullcontext(SilentObserver())
    if mode == "json":
        return JsonProgress(stream)
    can_draw = os.environ.get("TERM") not in ("dumb", "unknown")
    if can_draw and (mode == "bar" or (mode == "auto" and Unfailing(stream).isatty())):
        return TerminalProgress(terminal(stream))
    return PlainProgress(stream)


class _Encodable(Unfailing):
    """A stream that gets plainer characters for those that its encoding lacks."""

    def write(self, text: str) -> int:
        """Write `text` if possible."""
        return super().write(encodable(text, self.encoding))


def terminal(stream: TextIO) -> Console:
    """Return a rich console that draws on `stream` and survives its loss."""
    from rich.console import Console  # noqa: PLC0415  # see the module's head

    # Errors must be swallowed in the stream: on a broken pipe rich itself ends the process.
    unfailing = cast("TextIO", _Encodable(stream))
    return Console(file=unfailing, force_terminal=True, force_interactive=True, force_jupyter=False)


def _outlook() -> Outlook:
    from fwconvert.run.outlook import Outlook  # noqa: PLC0415  # heavy, and already loaded in a real run

    return Outlook()


class PlainProgress:
    """Log lines for pipes, batch queues and CI: nothing but text and line feeds."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream = Unfailing(stream)
        self._clock = clock
        self._outlook = _outlook()
        self._phase_at = clock()
        self._latest: Snapshot | None = None
        self._due = 0.0
        self._has_resumed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._latest is not None:
            self._log(outcome(self._latest, self._clock() - self._phase_at))

    def notice(self, text: str) -> None:
        """Log a notice; further lines are indented below the first."""
        lines = f"\n{' ' * 9}".join(printable_lines(text))
        stamped = f"{time.strftime('%H:%M:%S')} {lines}\n"
        self._stream.write(encodable(stamped, self._stream.encoding))
        self._stream.flush()

    def update(self, snapshot: Snapshot) -> None:
        """Log how far the run is, if a line is due."""
        before, self._latest = self._latest, snapshot
        now = self._clock()
        if before is None or before.phase != snapshot.phase:
            if before is not None:
                self._log(outcome(before, now - self._phase_at))
                self._due = now + _FIRST_LOG_SECONDS
            self._phase_at = now
        if resuming(snapshot) and not self._has_resumed:
            self._has_resumed = True
            self.notice(resuming(snapshot))
        self._outlook.see(snapshot, now)
        if before is None or now >= self._due:
            self._log(status(snapshot, self._outlook.forecast()))
            self._due = now + (_FIRST_LOG_SECONDS if before is None else _LOG_SECONDS)

    def _log(self, parts: list[str]) -> None:
        self.notice(SEPARATOR.join(parts))


class JsonProgress:
    """JSON objects, one a line, for programs; REFERENCE.md has their keys."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream = Unfailing(stream)
        self._clock = clock
        self._outlook = _outlook()
        self._latest: Snapshot | None = None
        self._due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._latest is not None:
            self._tell(self._latest)

    def notice(self, text: str) -> None:
        """Tell of a notice."""
        self._write(event_line("notice", text=text))

    def update(self, snapshot: Snapshot) -> None:
        """Tell how far the run is, once a second and when a phase begins or ends."""
        before, self._latest = self._latest, snapshot
        if before is not None and before.phase != snapshot.phase:
            self._tell(before)
            self._due = 0.0
        now = self._clock()
        self._outlook.see(snapshot, now)
        if before is None or now >= self._due:
            self._tell(snapshot)
            self._due = now + _JSON_SECONDS

    def _tell(self, snapshot: Snapshot) -> None:
        self._write(event_line("progress", **facts(snapshot, self._outlook)))

    def _write(self, line: str) -> None:
        self._stream.write(line)
        self._stream.flush()


def facts(snapshot: Snapshot, outlook: Outlook) -> dict[str, object]:
    """Return how far a run is, for programs; REFERENCE.md has the keys."""
    found = outlook.forecast()
    fetches = snapshot.fetched is not None
    return {
        "phase": snapshot.phase,
        "progress": round(found.progress, 6),
        "seconds": round(outlook.seconds, 3),
        "seconds_left": _rounded(found.seconds_left),
        "jobs": snapshot.jobs,
        "jobs_done": snapshot.jobs_done,
        "jobs_found": snapshot.jobs_found,
        "jobs_failed": snapshot.jobs_failed,
        "tokens": snapshot.tokens,
        "tokens_per_second": _rounded(found.tokens),
        "unit": "tokens" if snapshot.phase == "join" else "bytes",
        "units": snapshot.units,
        "units_done": round(snapshot.units_done),
        "units_per_second": _rounded(found.units),
        "join_tokens": snapshot.join_tokens,
        "joined_tokens": round(snapshot.joined_tokens),
        "limit": snapshot.bottleneck,
        "fetched_bytes": snapshot.fetched,
        "fetched_bytes_per_second": _rounded(found.fetched),
        "bytes_to_fetch": snapshot.to_fetch if fetches else None,
        "connections": snapshot.connections if fetches else None,
        "running": [
            {"title": job.title, "progress": round(job.fraction, 4), "tokens": job.tokens, "node": job.node}
            for job in snapshot.running
        ],
        "downloads": [
            {
                "title": one.title,
                "bytes": one.bytes,
                "size": one.size,
                "bytes_per_second": _rounded(outlook.download_rate(one.title)),
                "node": one.node,
            }
            for one in snapshot.downloads
        ],
        "faults": vars(snapshot.faults),
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


class TerminalProgress:
    """A live display: one bar for the whole run, and a line for each running job and each download.

    When it ends, even by an exception, one line per phase stays on the screen.
    """

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._outlook = _outlook()
        self._phase_at = clock()
        self._latest: Snapshot | None = None
        self._picture: Picture | None = None
        self._due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._picture is not None:
            self._picture.stop()
        if self._latest is not None:
            self._leave(self._latest)

    def notice(self, text: str) -> None:
        """Print a notice above the display, where it stays."""
        from rich.text import Text  # noqa: PLC0415  # see the module's head

        width = self._console.width
        lines = [part for line in printable_lines(text) for part in wrapped(line, width)]
        # Soft: a word longer than the line, such as a path, stays whole so that it can be copied.
        self._console.print(Text("\n".join(lines)), soft_wrap=True)

    def update(self, snapshot: Snapshot) -> None:
        """Show how far the run is."""
        before, self._latest = self._latest, snapshot
        now = self._clock()
        if before is None or before.phase != snapshot.phase:
            if before is not None:
                self._leave(before)
            self._phase_at = now
            self._due = 0.0
        self._outlook.see(snapshot, now)
        if now >= self._due:
            if self._picture is None:
                self._picture = self._new_picture()
            begun = self._clock()
            self._picture.show(snapshot, self._outlook.forecast(), self._outlook)
            # With many jobs, and a machine that has other things to do, drawing is to be a small part.
            pause = _DRAW_SHARE * (self._clock() - begun)
            self._due = now + min(_LONGEST_PAUSE, max(_DRAW_SECONDS, pause))

    def _leave(self, snapshot: Snapshot) -> None:
        self.notice(fitting(outcome(snapshot, self._clock() - self._phase_at), self._console.width))

    def _new_picture(self) -> Picture:
        from fwconvert.cli.live import Picture  # noqa: PLC0415  # see the module's head

        return Picture(self._console)
