"""What each command does, and what it prints.

Results go to standard output, progress and errors to standard error. Neither
changes the exit code, which reports the outcome of the work. The modules that do
the work are imported when a command needs them, so `--help` and `status` are instant.
"""

import argparse
import dataclasses
import inspect
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from fwconvert import records
from fwconvert.cli import text as wording
from fwconvert.cli.console import note, tell
from fwconvert.errors import OutputError, Stopped, UsageError, message
from fwconvert.options import Options
from fwconvert.recipes import Recipe

if TYPE_CHECKING:
    from fwconvert.run.convert import Result
    from fwconvert.run.events import Observer, StopSwitch


def convert(args: argparse.Namespace) -> int:
    """Convert, and print the outcome."""
    from fwconvert.run import convert as run  # noqa: PLC0415

    recipe, out, options = _asked(args)
    code, result = _watched(
        recipe,
        args,
        lambda observer, stop: run.convert(
            recipe, out, options, engine=args.engine, observer=observer, stop=stop
        ),
    )
    if result and result.complete and args.version == "demo" and not args.quiet:
        _mention(wording.what_next(result))
    return code


def export(args: argparse.Namespace) -> int:
    """Make another run from a finished one, and print the outcome."""
    from fwconvert.run.export import Changes, Export  # noqa: PLC0415

    exporting = Export(args.out, cast("Changes", _named(args, Changes.__annotations__)))
    code, _ = _watched(
        exporting.recipe,
        args,
        lambda observer, stop: exporting.carry_out(
            args.new, _options(args), engine=args.engine, observer=observer, stop=stop
        ),
    )
    return code


def _watched(
    recipe: Recipe, args: argparse.Namespace, work: "Callable[[Observer, StopSwitch], Result]"
) -> "tuple[int, Result | None]":
    """Do the work, show progress and the outcome; return the exit code, and the result if any."""
    from fwconvert.cli import progress  # noqa: PLC0415

    try:
        with progress.choose(quiet=args.quiet) as observer, _stopping() as stop:
            result = work(observer, stop.switch)
    except Stopped as error:  # before any work began
        note(f"fwconvert: {error}")
        return 128 + stop.signal, None
    if not args.quiet:
        _mention(wording.outcome(result, recipe))
    for failed in result.failed:
        note(f"fwconvert: {failed.path} failed: {failed.reason}")
    if result.foreign:
        note(f"fwconvert: {wording.foreign_text(result.foreign)}")
    if result.stopped:
        return 128 + stop.signal, result
    return (0 if result.complete and not result.foreign else 1), result


def about() -> int:
    """Print the version."""
    from importlib import metadata  # noqa: PLC0415  # 35 ms

    tell(f"fwconvert {metadata.version('fwconvert')}")
    return 0


def plan(args: argparse.Namespace) -> int:
    """Show what a run would need."""
    from fwconvert.run import preflight  # noqa: PLC0415

    recipe, out, options = _asked(args)
    found = preflight.plan(recipe, out, options)
    tell(wording.json_text(found) if args.json else wording.plan_text(found, recipe))
    return 0


def pin(args: argparse.Namespace) -> int:
    """Make a source manifest."""
    from fwconvert.sources import pin as pinning  # noqa: PLC0415

    try:
        with _stopping() as stop:
            pinned = pinning.pin(
                args.source,
                args.path,
                revision=args.revision,
                output=args.output,
                notice=note,
                stop=stop.switch.event,
            )
    except Stopped as error:
        note(f"fwconvert: {error}")
        return 128 + stop.signal
    rows = {"file": args.output, "revision": pinned.revision, "files": f"{len(pinned.files):,}"}
    rows["bytes"] = f"{pinned.bytes:,}"
    use = f"fwconvert --version {args.output}" + (" --source DIR" if not pinned.revision else "")
    _mention(
        message(f"pinned {pinned.dataset}", use, **{name: value for name, value in rows.items() if value})
    )
    return 0


def _mention(text: str) -> None:
    """Print what was made. The work stands even if this fails: a full log disk does not undo a run."""
    try:
        tell(text)
    except OutputError as error:
        note(f"fwconvert: {error}")


def status(args: argparse.Namespace) -> int:
    """Show how far a run is; the exit code says whether it is complete."""
    from fwconvert.inspection.status import status as look  # noqa: PLC0415

    found = look(args.out)
    tell(wording.json_text(found) if args.json else wording.status_text(found))
    return 0 if found.complete else 1


def verify(args: argparse.Namespace) -> int:
    """Verify a run."""
    from fwconvert.inspection.verify import verify as prove  # noqa: PLC0415

    report = prove(args.out)
    facts = {"ok": report.ok, **records.as_builtin(report)}
    tell(wording.json_text(facts) if args.json else wording.verify_text(report, args.out))
    return 0 if report.ok else 1


def show(args: argparse.Namespace) -> int:
    """Print the first documents of a token shard, or one document of the run."""
    from fwconvert.inspection.show import documents, numbered  # noqa: PLC0415

    if (args.shard is None) == (args.document is None):
        raise UsageError(
            message("exactly one thing can be shown", "name a token shard, or pass --document N")
        )
    if args.document is not None:
        document, place = numbered(args.out, args.document)
        tell(wording.document_text(document, f"{args.document:,} of the run, from {place}"))
        return 0
    line, found = documents(args.out, args.shard, args.documents)
    tell(f"{line.name}: {line.tokens:,} tokens, {line.documents:,} documents start in it")
    for document in found:
        tell(wording.document_text(document, str(document.number)))
    return 0


def trace(args: argparse.Namespace) -> int:
    """Print where a token comes from."""
    from fwconvert.inspection import trace as tracing  # noqa: PLC0415

    found = tracing.trace(args.out, args.place, args.source)
    tell(wording.json_text(found) if args.json else tracing.in_words(found))
    return 0


class _Stopping:
    """A stop switch, and the signal that came first: it decides the exit code."""

    def __init__(self, switch: "StopSwitch") -> None:
        self.switch = switch
        self.signal = int(signal.SIGINT)

    def ask(self, number: int, _: FrameType | None) -> None:
        if not self.switch.asked:
            self.signal = number
        self.switch.ask()

    def ask_once(self, number: int, _: FrameType | None) -> None:
        """Ask unless asked already: kernel and shell may both send SIGHUP for one lost terminal."""
        if not self.switch.asked:
            self.ask(number, _)


@contextmanager
def _stopping() -> Iterator[_Stopping]:
    """Turn SIGINT, SIGTERM and SIGHUP into stop requests, so the process ends only at a safe place."""
    from fwconvert.run.events import StopSwitch  # noqa: PLC0415

    stopping = _Stopping(StopSwitch())
    handlers = {signal.SIGINT: stopping.ask, signal.SIGTERM: stopping.ask}
    # Under nohup SIGHUP is ignored and must stay so; Windows does not have it.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        handlers[signal.SIGHUP] = stopping.ask_once
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _asked(args: argparse.Namespace) -> tuple[Recipe, Path, Options]:
    from fwconvert.run.request import recipe  # noqa: PLC0415

    out = args.out or _default_out(args.version, args.source)
    return recipe(**_named(args, inspect.signature(recipe).parameters)), out, _options(args)


def _options(args: argparse.Namespace) -> Options:
    return Options(**_named(args, (field.name for field in dataclasses.fields(Options))))


def _named(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of those flags that the command has; a flag is named after what it sets."""
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def _default_out(version: str | None, source: str | None) -> Path:
    if version is None and source is not None:
        raise UsageError(message("--out is missing", "pass --out DIR"))
    return Path(f"edu_fineweb{Path(version or '').stem}")
