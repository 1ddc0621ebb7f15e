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
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fwconvert import records
from fwconvert.cli import text as wording
from fwconvert.cli.console import note, note_event, notes_as_json, program, tell
from fwconvert.errors import OutputError, Stopped, UsageError, message, printable
from fwconvert.options import Options
from fwconvert.recipes import Recipe

# Whose words can be completed.
SHELLS = ("bash", "zsh", "fish")

if TYPE_CHECKING:
    from fwconvert.run.convert import Result
    from fwconvert.run.engines import Engine
    from fwconvert.run.events import Observer, StopSwitch


def convert(args: argparse.Namespace) -> int:
    """Convert, and print the outcome."""
    from fwconvert.run import convert as run  # noqa: PLC0415

    recipe, out, options = _asked(args)
    code, _ = _watched(
        recipe,
        args,
        _Asked("convert", out),
        lambda observer, stop: run.convert(
            recipe, out, options, engine=_engine(args, options), observer=observer, stop=stop
        ),
    )
    return code


def rank(args: argparse.Namespace, given: dict[str, Any]) -> int:
    """Convert the share of one rank, and print the outcome. `given` are the flags that were given."""
    from fwconvert.run import ranks  # noqa: PLC0415
    from fwconvert.run.request import recipe as make  # noqa: PLC0415

    if args.rank is None:
        raise UsageError(message("--world is for ranks", "pass --rank as well, or leave --world out"))
    if args.engine_name != "local":
        raise UsageError(
            message(
                "a rank converts on the machine that it is started on",
                "leave --rank out: --engine ray uses all machines of its cluster; or leave --engine out",
            )
        )
    number = ranks.parse_rank(args.rank, args.world)
    out = args.out or _default_out(args.version, args.source)
    named = {name: given[name] for name in inspect.signature(make).parameters if name in given}
    recipe, options = ranks.planned(out, named), _options(args)
    code, _ = _watched(
        recipe,
        args,
        _Asked("rank", out, str(number)),
        lambda observer, stop: ranks.convert_rank(
            out, number, options, recipe=recipe, engine=args.engine, observer=observer, stop=stop
        ),
    )
    return code


def merge(args: argparse.Namespace) -> int:
    """Finish a run that ranks have converted; or print what is missing."""
    from fwconvert.run import ranks  # noqa: PLC0415
    from fwconvert.store.local import open_store  # noqa: PLC0415
    from fwconvert.store.saved_recipe import read_plan  # noqa: PLC0415

    store, options = open_store(args.out), _options(args)
    recipe = read_plan(store)
    code, result = _watched(
        recipe,
        args,
        _Asked("merge", args.out),
        lambda observer, stop: ranks.merge(
            args.out, options, engine=_engine(args, options), observer=observer, stop=stop
        ),
        tells=False,
    )
    if result is None:
        return code
    if result.missing:
        world = args.world or ranks.last_world(store) or 1
        numbers = ranks.array_expression(ranks.ranks_of(recipe, result.missing, world))
        note(f"fwconvert: {wording.missing_text(result, world, numbers)}")
        # For scripts: the first line is ready for sbatch.
        _mention("\n".join([f"--array={numbers}", *(printable(path) for path in result.missing)]))
    elif not args.quiet:
        _mention(wording.outcome(result, recipe))
        if result.complete:
            _mention(wording.what_next(result, recipe.rules))
    return code


def export(args: argparse.Namespace) -> int:
    """Make another run from a finished one, and print the outcome."""
    from fwconvert.run.export import Changes, Export  # noqa: PLC0415

    exporting = Export(args.out, cast("Changes", _named(args, Changes.__annotations__)))
    options = _options(args)
    code, _ = _watched(
        exporting.recipe,
        args,
        _Asked("export", args.new),
        lambda observer, stop: exporting.carry_out(
            args.new, options, engine=_engine(args, options), observer=observer, stop=stop
        ),
    )
    return code


class _Asked(NamedTuple):
    """A command that makes or finishes a run, and where that is."""

    command: str
    out: Path | str
    # "3 of 16", of a rank.
    rank: str = ""


def _watched(
    recipe: Recipe,
    args: argparse.Namespace,
    asked: "_Asked",
    work: "Callable[[Observer, StopSwitch], Result]",
    *,
    tells: bool = True,
) -> "tuple[int, Result | None]":
    """Do the work, show progress and the outcome (`tells`); return the exit code, and the result if any."""
    from fwconvert.cli import progress  # noqa: PLC0415

    notes_as_json(wanted=args.progress == "json")
    try:
        with (
            progress.choose(quiet=args.quiet, mode=args.progress) as shown,
            _stopping() as stop,
            _logged(recipe, args, asked, shown, stop.switch) as (observer, log_result),
        ):
            result = work(observer, stop.switch)
            code = _exit_code(result, stop.signal)
            log_result(wording.end_facts(result, code))
    except Stopped as error:  # before any work began
        note(f"fwconvert: {error}")
        return 128 + stop.signal, None
    if tells and not args.quiet:
        _mention(wording.outcome(result, recipe))
        if result.complete and not result.rank:
            is_demo = getattr(args, "version", None) == "demo"
            _mention(wording.what_next(result, recipe.rules, is_demo=is_demo))
    for line in wording.failures(result):
        note(f"fwconvert: {line}")
    if result.foreign:
        note(f"fwconvert: {wording.foreign_text(result.foreign)}")
    if args.progress == "json" and not args.quiet:
        note_event("end", **wording.end_facts(result, code))
    return code, result


def _exit_code(result: "Result", stopped_by: int) -> int:
    if result.stopped:
        return 128 + stopped_by
    return 0 if result.complete and not result.foreign else 1


@contextmanager
def _logged(
    recipe: Recipe, args: argparse.Namespace, asked: "_Asked", observer: "Observer", stop: "StopSwitch"
) -> "Iterator[tuple[Observer, Callable[[dict[str, object]], None]]]":
    """Have an observer that logs to Weights & Biases, too, if that is asked for; and what logs the result."""
    if args.wandb is None:
        yield observer, lambda _: None
        return
    from fwconvert.cli import wandb  # noqa: PLC0415  # loads what a run needs, and nothing of wandb

    session = wandb.session(args.wandb, asked.command, asked.out, recipe, asked.rank)
    with wandb.WandbObserver(session, observer, stop) as logging:
        yield logging, logging.log_result


def repair(args: argparse.Namespace) -> int:
    """Make again what is damaged or missing, and print what was done."""
    from fwconvert.run import repair as repairing  # noqa: PLC0415

    options = _options(args)
    wanted = repairing.Repair(args.out, args.source, options)
    code, result = _watched(
        wanted.recipe,
        args,
        _Asked("repair", args.out),
        lambda observer, stop: wanted.carry_out(engine=_engine(args, options), observer=observer, stop=stop),
        tells=False,
    )
    if result is not None and not args.quiet:
        _mention(wording.repaired_text(result, wanted.recipe, wanted.problems))
    return code


def copy(args: argparse.Namespace) -> int:
    """Copy a finished run, and print what was done."""
    from fwconvert.cli import progress  # noqa: PLC0415
    from fwconvert.run import copying  # noqa: PLC0415

    notes_as_json(wanted=args.progress == "json")
    try:
        with progress.choose(quiet=args.quiet, mode=args.progress) as observer, _stopping() as stop:
            copied = copying.copy(args.out, args.new, _options(args), observer=observer, stop=stop.switch)
    except Stopped as error:
        note(f"fwconvert: {error}")
        return 128 + stop.signal
    if not args.quiet:
        _mention(wording.copied_text(copied))
    if copied.foreign:
        note(f"fwconvert: {wording.foreign_text(copied.foreign)}")
    code = 1 if copied.foreign else 0
    if args.progress == "json" and not args.quiet:
        note_event("end", exit_code=code, **records.as_builtin(copied))
    return code


def about() -> int:
    """Print the version."""
    from importlib import metadata  # noqa: PLC0415  # 35 ms

    tell(f"fwconvert {metadata.version('fwconvert')}")
    return 0


def versions() -> int:
    """Print the version of the program, and the versions of the data that can be named."""
    from importlib import metadata  # noqa: PLC0415  # 35 ms

    from fwconvert.sources import catalog  # noqa: PLC0415

    tell(wording.versions_text(metadata.version("fwconvert"), [*map(catalog.find, catalog.names())]))
    return 0


def completion(args: argparse.Namespace) -> int:
    """Print what lets a shell complete the words of the program."""
    from fwconvert.cli import completion as completing  # noqa: PLC0415  # loads shtab

    tell(completing.script(args.shell))
    return 0


def plan(args: argparse.Namespace) -> int:
    """Show what a run would need; the exit code says whether the disk has room for it."""
    from fwconvert.cli.plan_text import plan_text  # noqa: PLC0415
    from fwconvert.run import preflight  # noqa: PLC0415
    from fwconvert.run.request import recipe as make  # noqa: PLC0415

    recipe, options = make(**_named(args, inspect.signature(make).parameters)), _options(args)
    is_named = args.out or args.version or args.save
    out = args.out or (_default_out(args.version, args.source) if is_named else None)
    if args.save:
        recipe = _save_plan(recipe, out, options)
    found = preflight.plan(recipe, out, options, bandwidth=args.bandwidth)
    tell(wording.json_text(found) if args.json else plan_text(found, recipe))
    if found.disk_problem:
        note(f"fwconvert: {found.disk_problem}")
    if out is not None and args.save and not args.json:
        tell(wording.saved_text(out))
    return 1 if found.disk_problem else 0


def _save_plan(recipe: Recipe, out: Path | str | None, options: Options) -> Recipe:
    from fwconvert.cli import progress  # noqa: PLC0415
    from fwconvert.run import ranks  # noqa: PLC0415

    with progress.choose(quiet=False) as observer, _stopping() as stop:
        return ranks.save_plan(recipe, out or ".", options, observer=observer, stop=stop.switch)


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
    use = f"{program()} --version {args.output}" + (" --source DIR" if not pinned.revision else "")
    _mention(
        message(f"pinned {pinned.dataset}", use, **{name: value for name, value in rows.items() if value})
    )
    return 0


def _mention(text: str) -> None:
    """Print what was made. The work stands even if this fails: a full log disk does not undo a run."""
    if not text:
        return
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


def _asked(args: argparse.Namespace) -> tuple[Recipe, Path | str, Options]:
    from fwconvert.run.request import recipe  # noqa: PLC0415

    out = args.out or _default_out(args.version, args.source)
    named = {**_named(args, inspect.signature(recipe).parameters), "out": out}
    return recipe(**named), out, _options(args)


def _options(args: argparse.Namespace) -> Options:
    return Options(**_named(args, (field.name for field in dataclasses.fields(Options))))


def _engine(args: argparse.Namespace, options: Options) -> "Engine | None":
    """Return where the work is to be done; None: processes of this machine."""
    if args.engine_name == "local":
        for name in ("ray_address", "job_cpus", "job_memory"):
            if getattr(args, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(
                    message(f"{flag} is for a Ray cluster", "pass --engine ray, or leave it out")
                )
        return cast("Engine | None", args.engine)
    cpus = 1.0 if args.job_cpus is None else args.job_cpus
    if cpus <= 0:
        raise UsageError(message("a job needs more than 0 cores", job_cpus=f"{cpus:g}"))
    from fwconvert.processes import ProcessLimits  # noqa: PLC0415
    from fwconvert.run.engines.ray import RayEngine  # noqa: PLC0415

    limits = ProcessLimits(options.worker_memory, options.stall_timeout)
    return RayEngine(
        args.ray_address, job_cpus=cpus, job_memory=args.job_memory, most=options.workers, limits=limits
    )


def _named(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of those flags that the command has; a flag is named after what it sets."""
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def _default_out(version: str | None, source: object) -> Path:
    if version is None and source is not None:
        raise UsageError(message("--out is missing", "pass --out DIR"))
    return Path(f"edu_fineweb{Path(version or '').stem}")
