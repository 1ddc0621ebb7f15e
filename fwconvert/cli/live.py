"""The live display: one bar for the whole run, and a line for each job and each download.

Drawn by rich: its Progress has the bars, its Live redraws them. rich is loaded
with this module, only when a live display is chosen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.control import Control
from rich.live import Live
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.segment import ControlType
from rich.table import Column
from rich.text import Text

from fwconvert.cli.screen import (
    cells,
    counts,
    duration,
    finish,
    fitting,
    humanised,
    limits,
    megabytes,
    percent,
    resuming,
    shortened,
)

if TYPE_CHECKING:
    from fwconvert.run.events import Snapshot
    from fwconvert.run.outlook import Forecast, Outlook

# A longer bar shows no more.
_WIDEST = 100
# Below this there is no room for the time of day, nor for speeds of downloads and names of machines.
_NARROW = 60
_SPARE_LINES = 2


class _Name:
    """A name that gives way to what stands beside it: its middle is elided."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:  # noqa: PLW3201
        yield Text(shortened(self._text, options.max_width), no_wrap=True, overflow="crop")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:  # noqa: PLW3201
        width = cells(self._text)
        return Measurement(min(8, width), width)


class _NameColumn(ProgressColumn):
    def render(self, task: Task) -> RenderableType:
        return _Name(f"  {task.description}")


class _BarColumn(BarColumn):
    """A bar in the colour of its task."""

    def render(self, task: Task):  # type: ignore[no-untyped-def]  # of rich's own kind
        drawn = super().render(task)
        drawn.complete_style = drawn.finished_style = task.fields.get("style", "green")
        return drawn


def _field(name: str, style: str = "none", justify: JustifyMethod = "left") -> TextColumn:
    # Names of machines come from outside: no markup.
    return TextColumn(
        f"{{task.fields[{name}]}}", style, justify, markup=False, table_column=Column(no_wrap=True)
    )


class _Line(NamedTuple):
    """A job, or a download."""

    title: str
    node: str
    done: float
    detail: str
    style: str


class Picture:
    """The display on a console. It has no thread: `show` draws it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._whole = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            _BarColumn(bar_width=None, table_column=Column(ratio=1)),
            _field("end"),
            console=console,
            expand=True,
        )
        self._task = self._whole.add_task("", total=1.0, end="")
        self._bars = _BarColumn(table_column=Column(no_wrap=True))
        self._lines = Progress(
            _NameColumn(table_column=Column(no_wrap=False)),
            self._bars,
            _field("share", justify="right"),
            _field("detail"),
            console=console,
        )
        # Of the lines from above: jobs stay above downloads, whichever began first.
        self._ids: list[TaskID] = []
        self._live: Live | None = None
        # What is on the screen, and how wide that was.
        self._drawn: tuple[RenderableType, int] = ("", 0)

    def show(self, snapshot: Snapshot, forecast: Forecast, outlook: Outlook) -> None:
        """Draw the run as it is."""
        self._make_room()
        width, height = self._console.size
        left = f"{duration(forecast.seconds_left)} left"
        ends = finish(forecast.seconds_left, time.time()) if width >= _NARROW else ""
        end = f"{percent(forecast.progress)} · {left}" + (f", ends {ends}" if ends else "")
        self._whole.update(self._task, description=snapshot.phase, completed=forecast.progress, end=end)
        numbers = counts(snapshot, forecast)
        numbers.insert(3, f"{duration(outlook.seconds)} passed")
        texts = [fitting(numbers, width)]
        if limiting := limits(snapshot, forecast):
            texts.append(fitting(limiting, width))
        if found := resuming(snapshot):
            texts.append(found)
        room = max(1, height - 1 - len(texts) - _SPARE_LINES)
        lines = [*_jobs(snapshot), *_downloads(snapshot, outlook, has_room=width >= _NARROW)]
        if len(lines) > room:
            shown = lines[: max(1, room - 1)]
            more = [_plain(f"  … and {len(lines) - len(shown)} more", "dim")]
        else:
            shown, more = lines, []
        self._set_lines(shown, width)
        head: RenderableType = Constrain(self._whole, _WIDEST)
        self._draw(Group(head, *map(_plain, texts), *([self._lines] if shown else []), *more))

    def stop(self) -> None:
        """Take the display from the screen."""
        if self._live is not None:
            self._make_room()
            self._live.stop()

    def _set_lines(self, lines: Iterable[_Line], width: int) -> None:
        self._bars.bar_width = max(4, min(20, width // 5))
        lines = list(lines)
        while len(self._ids) < len(lines):
            self._ids.append(self._lines.add_task("", total=1.0, share="", detail="", style=""))
        while len(self._ids) > len(lines):
            self._lines.remove_task(self._ids.pop())
        for task, line in zip(self._ids, lines, strict=True):
            self._lines.update(
                task,
                description=line.title,
                completed=line.done,
                share=f"{math.floor(line.done * 100)}%",
                detail=line.detail + (f" on {line.node}" if line.node and width >= _NARROW else ""),
                style=line.style,
            )

    def _draw(self, picture: RenderableType) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
        self._live.update(picture, refresh=True)
        self._drawn = picture, self._console.width

    def _make_room(self) -> None:
        """Take away what a narrower window has made of our lines: more of them than were drawn."""
        console, (picture, width) = self._console, self._drawn
        now = console.width
        if now >= width:
            return
        rows = console.render_lines(picture, console.options.update(width=width), pad=False)
        lengths = [sum(piece.cell_length for piece in row) for row in rows]
        extra = sum(max(0, -(-length // now) - 1) for length in lengths)
        up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
        console.control(Control(ControlType.CARRIAGE_RETURN, *(up * extra)))
        self._drawn = "", now


def _plain(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="crop")


def _jobs(snapshot: Snapshot) -> Iterable[_Line]:
    for job in snapshot.running:
        detail = f"{humanised(job.tokens)} tokens"
        yield _Line(job.title, job.node, job.fraction, detail, "cyan")


def _downloads(snapshot: Snapshot, outlook: Outlook, *, has_room: bool) -> Iterable[_Line]:
    for one in snapshot.downloads:
        if not one.bytes:  # It waits for a connection.
            continue
        rate = outlook.download_rate(one.title) if has_room else None
        speed = "" if rate is None else f" at {megabytes(rate)} MB/s"
        detail = f"{megabytes(one.bytes)} MB{speed}"
        done = one.bytes / max(1, one.size)
        yield _Line(one.title, one.node, done, detail, "blue")
