"""Progress of a run: a live display on a terminal, a few log lines a minute elsewhere.

It goes to stderr, so that stdout is free for results. The display has no thread
of its own: `update`, which the scheduler calls several times a second, draws it in
a few milliseconds. rich is loaded only when a live display is chosen.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Self, TextIO, cast

from fwconvert.cli.console import Unfailing
from fwconvert.cli.screen import (
    SEPARATOR,
    Clock,
    Pace,
    Span,
    encodable,
    fitting,
    outcome,
    printable_lines,
    screen,
    status,
    wrapped,
)

if TYPE_CHECKING:  # For annotations only, so that --help stays fast.
    from rich.console import Console
    from rich.live import Live

    from fwconvert.run.events import Observer, Snapshot

_DRAW_SECONDS = 0.25
_FIRST_LOG_SECONDS = 5.0
_LOG_SECONDS = 20.0


def choose(*, quiet: bool, stream: TextIO | None = None) -> AbstractContextManager[Observer]:
    """Return the observer that suits `stream` (stderr unless given), for a `with` block."""
    stream = sys.stderr if stream is None else stream
    if quiet or stream is None:  # pythonw and `2>&-` have no stderr.
        from fwconvert.run.events import SilentObserver  # noqa: PLC0415  # heavy, and already loaded in a real run

        return nullcontext(SilentObserver())
    if Unfailing(stream).isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        return TerminalProgress(terminal(stream))
    return PlainProgress(stream)


def terminal(stream: TextIO) -> Console:
    """Return a rich console that draws on `stream` and survives its loss."""
    from rich.console import Console  # noqa: PLC0415  # see the module's head

    # Errors must be swallowed in the stream: on a broken pipe rich itself ends the process.
    unfailing = cast("TextIO", Unfailing(stream))
    return Console(file=unfailing, force_terminal=True, force_interactive=True, force_jupyter=False)


class PlainProgress:
    """Log lines for pipes, batch queues and CI: nothing but text and line feeds."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream = Unfailing(stream)
        self._clock = clock
        self._pace = Pace(clock)
        self._latest: Snapshot | None = None
        self._due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._latest is not None:
            self._log(outcome(self._latest, self._pace))

    def notice(self, text: str) -> None:
        """Log a notice; further lines are indented below the first."""
        lines = f"\n{' ' * 9}".join(printable_lines(text))
        stamped = f"{time.strftime('%H:%M:%S')} {lines}\n"
        self._stream.write(encodable(stamped, self._stream.encoding))
        self._stream.flush()

    def update(self, snapshot: Snapshot) -> None:
        """Log how far the run is, if a line is due."""
        before, self._latest = self._latest, snapshot
        if before is not None and before.phase != snapshot.phase:
            self._log(outcome(before, self._pace))
            self._due = self._clock() + _FIRST_LOG_SECONDS
        self._pace.add(snapshot)
        if before is None or self._clock() >= self._due:
            self._log(status(snapshot, self._pace.recent()))
            self._due = self._clock() + (_FIRST_LOG_SECONDS if before is None else _LOG_SECONDS)

    def _log(self, parts: list[str]) -> None:
        self.notice(SEPARATOR.join(parts))


class TerminalProgress:
    """A live display: one bar for the whole run, and a line for each running job.

    When it ends, even by an exception, one line per phase stays on the screen.
    """

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._pace = Pace(clock)
        self._latest: Snapshot | None = None
        self._live: Live | None = None
        self._due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._latest is not None:
            self._leave(outcome(self._latest, self._pace))

    def notice(self, text: str) -> None:
        """Print a notice above the display, where it stays."""
        from rich.text import Text  # noqa: PLC0415  # see the module's head

        width = self._console.width
        lines = [part for line in printable_lines(text) for part in wrapped(line, width)]
        # Soft: a word longer than the line, such as a path, stays whole so that it can be copied.
        self._console.print(Text(encodable("\n".join(lines), self._console.encoding)), soft_wrap=True)

    def update(self, snapshot: Snapshot) -> None:
        """Show how far the run is."""
        before, self._latest = self._latest, snapshot
        if before is not None and before.phase != snapshot.phase:
            self._leave(outcome(before, self._pace))
            self._due = 0.0
        self._pace.add(snapshot)
        if self._clock() >= self._due:
            self._due = self._clock() + _DRAW_SECONDS
            self._draw(screen(snapshot, self._pace.recent(), *self._console.size))

    def _leave(self, parts: list[str]) -> None:
        self.notice(fitting(parts, self._console.width))

    def _draw(self, lines: list[list[Span]]) -> None:
        from rich.segment import Segment, Segments  # noqa: PLC0415  # see the module's head

        console, segments = self._console, []
        for line in lines:
            segments += [
                Segment(encodable(text, console.encoding), console.get_style(style)) for text, style in line
            ]
            segments.append(Segment.line())
        if self._live is None:
            self._live = self._new_live()
            self._live.start()
        self._live.update(Segments(segments), refresh=True)

    def _new_live(self) -> Live:
        from rich.live import Live  # noqa: PLC0415  # see the module's head

        return Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="crop",
        )
