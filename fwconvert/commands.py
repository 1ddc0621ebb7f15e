"""What each command does, and what it prints.

Results go to standard output, progress and errors to standard error. What does
the work is imported when a command needs it, so that `--help` and `status` are
instant.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from fwconvert import records
from fwconvert.config import Options, Recipe
from fwconvert.errors import Stopped, UsageError, message, printable
from fwconvert.records import Part

if TYPE_CHECKING:
    from fwconvert.plan import Plan
    from fwconvert.run import Result
    from fwconvert.run_manifest import Headline
    from fwconvert.show import Document
    from fwconvert.status import Status
    from fwconvert.verify import Report
    from fwconvert.work import Observer, StopSwitch


def convert(args: argparse.Namespace) -> int:
    """Convert, and say what came of it."""
    from fwconvert import run  # noqa: PLC0415

    recipe, options = _asked(args)
    code, result = _watched(recipe, args, lambda *watching: run.convert(recipe, options, *watching))
    if result and result.complete and args.version == "demo" and not args.quiet:
        print(_what_next(result))
    return code


def export(args: argparse.Namespace) -> int:
    """Make another run from a finished one, and say what came of it."""
    from fwconvert.export_run import Changes, Export  # noqa: PLC0415

    changes = Changes(**{name: getattr(args, name) for name in vars(Changes()) if hasattr(args, name)})
    exporting = Export(args.out, changes)
    options = Options(
        out=args.new,
        workers=args.workers,
        check_disk=not args.no_disk_check,
        worker_memory=args.worker_memory,
        stall_timeout=args.stall_timeout,
    )
    code, _ = _watched(exporting.recipe, args, lambda *watching: exporting.carry_out(options, *watching))
    return code


def _watched(
    recipe: Recipe, args: argparse.Namespace, work: "Callable[[Observer, StopSwitch], Result]"
) -> "tuple[int, Result | None]":
    """Do the work, show how far it is and what came of it; return the exit code, and the result if any."""
    from fwconvert import progress  # noqa: PLC0415

    try:
        with progress.choose(quiet=args.quiet) as observer, _stopping() as stop:
            result = work(observer, stop.switch)
    except Stopped as error:  # before anything had begun
        _note(f"fwconvert: {error}")
        return 128 + stop.signal, None
    if not args.quiet:
        print(_outcome(result, recipe))
    for failed in result.failed:
        print(printable(f"fwconvert: {failed.path} failed: {failed.reason}"), file=sys.stderr)
    if result.stopped:
        return 128 + stop.signal, result
    return (0 if result.complete else 1), result


def about() -> int:
    """Print the version."""
    from importlib import metadata  # noqa: PLC0415  # 35 ms

    print(f"fwconvert {metadata.version('fwconvert')}")
    return 0


def plan(args: argparse.Namespace) -> int:
    """Show what a run would need."""
    from fwconvert import needs  # noqa: PLC0415
    from fwconvert.folder import RunFolder  # noqa: PLC0415

    recipe, options = _asked(args)
    needed = needs.plan_for(recipe, options)
    out = options.out.absolute()
    free, there = needs.free_bytes(out), needs.bytes_there(RunFolder(out))
    shown = PlanReport(
        dataset=recipe.source.dataset,
        revision=recipe.source.revision,
        out=str(options.out),
        plan=records.as_builtin(needed),
        disk_needed=needed.output_bytes + needed.working_bytes + needed.fetched_bytes,
        disk_used_already=there,
        disk_free=free,
    )
    print(_json(shown) if args.json else _plan_text(shown, needed, recipe))
    return 0


def pin(args: argparse.Namespace) -> int:
    """Make a source manifest."""
    from fwconvert import pin as pinning  # noqa: PLC0415

    pinning.check_output(args.output)  # before all the work
    try:
        with _stopping() as stop:
            pinned = pinning.pin(args.source, args.path, args.revision, _note, stop.switch.wish)
    except Stopped as error:
        _note(f"fwconvert: {error}")
        return 128 + stop.signal
    pinning.write(pinned, args.output)
    rows = {"file": args.output, "revision": pinned.revision, "files": f"{len(pinned.files):,}"}
    rows["bytes"] = f"{pinned.bytes:,}"
    use = f"fwconvert --version {args.output}" + (" --source DIR" if not pinned.revision else "")
    print(message(f"pinned {pinned.dataset}", use, **{name: value for name, value in rows.items() if value}))
    return 0


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def status(args: argparse.Namespace) -> int:
    """Show how far a run is; the exit code tells whether it is complete."""
    from fwconvert.status import status as look  # noqa: PLC0415

    found = look(args.out)
    print(_json(found) if args.json else _status_text(found))
    return 0 if found.complete else 1


def verify(args: argparse.Namespace) -> int:
    """Prove a run."""
    from fwconvert.verify import verify as prove  # noqa: PLC0415

    report = prove(args.out)
    facts = {"ok": report.ok, **records.as_builtin(report)}
    print(_json(facts) if args.json else _verify_text(report, args.out))
    return 0 if report.ok else 1


def show(args: argparse.Namespace) -> int:
    """Print the first documents of a token shard, or one document of the run."""
    from fwconvert.show import documents, numbered  # noqa: PLC0415

    if (args.shard is None) == (args.document is None):
        raise UsageError(
            message("one thing can be shown at a time", "name a token shard, or pass --document N")
        )
    if args.document is not None:
        document, place = numbered(args.out, args.document)
        print(_document_text(document, f"{args.document:,} of the run, from {place}"))
        return 0
    line, found = documents(args.out, args.shard, args.documents)
    print(f"{line.name}: {line.tokens:,} tokens, {line.documents:,} documents start in it")
    for document in found:
        print(_document_text(document, str(document.number)))
    return 0


def trace(args: argparse.Namespace) -> int:
    """Print where a token comes from."""
    from fwconvert import trace as tracing  # noqa: PLC0415

    found = tracing.trace(args.out, args.place, args.source)
    print(_json(found) if args.json else tracing.in_words(found))
    return 0


class PlanReport(Part, frozen=True):
    """What `plan --json` prints."""

    dataset: str
    revision: str
    out: str
    plan: dict[str, object]
    disk_needed: int
    disk_used_already: int
    disk_free: int


class _Stopping:
    """A stop switch that remembers which signal asked first."""

    def __init__(self, switch: "StopSwitch") -> None:
        self.switch = switch
        self.signal = int(signal.SIGINT)

    def ask(self, number: int, _: FrameType | None) -> None:
        if not self.switch.asked:
            self.signal = number
        self.switch.ask()


@contextmanager
def _stopping() -> Iterator[_Stopping]:
    """Let SIGINT and SIGTERM ask for a stop instead of ending the process anywhere."""
    from fwconvert.work import StopSwitch  # noqa: PLC0415

    stopping = _Stopping(StopSwitch())
    before = {number: signal.signal(number, stopping.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _asked(args: argparse.Namespace) -> tuple[Recipe, Options]:
    from fwconvert.request import Request, resolve  # noqa: PLC0415

    out = args.out or _default_out(args.version, args.source)
    recipe, root = resolve(
        Request(
            version=args.version,
            source=args.source,
            tokenizer=args.tokenizer,
            format=args.format,
            eot=args.eot,
            text_column=args.text_column,
            shard_tokens=args.shard_tokens,
            val_tokens=args.val_tokens,
            layout=args.layout,
            last=args.last,
            compress=args.compress,
            name=args.name,
            min_score=args.min_score,
            min_int_score=args.min_int_score,
            where=args.where,
            limit_documents=args.limit_documents,
            limit_tokens=args.limit_tokens,
        )
    )
    return recipe, Options(
        out=out,
        root=root,
        workers=args.workers,
        threads=args.threads,
        encoder=args.encoder,
        check_disk=not args.no_disk_check,
        worker_memory=args.worker_memory,
        stall_timeout=args.stall_timeout,
        keep_source=args.keep_source,
        prefetch=args.prefetch,
        max_fetches=args.max_fetches,
        patience=args.patience,
    )


def _default_out(version: str | None, source: str | None) -> Path:
    if version is None and source is not None:
        raise UsageError(message("no output folder was named", "pass --out DIR"))
    return Path(f"edu_fineweb{Path(version or '').stem}")


def _json(value: object) -> str:
    return records.encode(value).decode()


def _outcome(result: "Result", recipe: Recipe) -> str:
    head = result.headline
    rows = {"folder": result.out, "tokens": f"{head.tokens:,} of {head.documents:,} documents"}
    rows["shards"] = f"{head.train_shards:,} for training, {head.val_shards} for validation"
    rows |= _skipped(head)
    if head.dropped_tokens:
        rows["dropped"] = f"{head.dropped_tokens:,} tokens that fill no last shard (--last drop)"
    if result.session_tokens:
        rate = result.session_tokens / max(result.seconds, 1e-9)
        rows["time"] = f"{result.seconds:,.1f} s, {rate:,.0f} tokens/s"
    return message(_how_it_went(result, recipe), *_advice(result, recipe), **rows)


def _skipped(counts: "Headline | Status") -> dict[str, str]:
    """Return the line about rows that are no documents, if there are any."""
    parts = [f"{counts.null_rows:,} null rows", f"{counts.empty_rows:,} empty rows"]
    if counts.filtered_rows:
        parts.append(f"{counts.filtered_rows:,} rows that the filter rejects")
    any_skipped = counts.null_rows or counts.empty_rows or counts.filtered_rows
    return {"skipped": ", ".join(parts)} if any_skipped else {}


def _how_it_went(result: "Result", recipe: Recipe) -> str:
    jobs, done = result.headline.jobs, result.headline.jobs_done
    if result.untouched:
        return "all is done already; nothing was changed"
    sources = len(recipe.source.files) or recipe.source.totals.files
    if result.complete and jobs < sources:
        return f"done: the limit is reached with {jobs} of {sources} sources"
    if result.complete:
        return f"done: all {jobs} sources are converted"
    reason = "stopped" if result.stopped else "not done"
    return f"{reason}: {done} of {jobs} sources are converted, {len(result.failed)} failed"


def _advice(result: "Result", recipe: Recipe) -> list[str]:
    if not result.complete:
        blocked = result.failed and recipe.rules.is_limited
        why = ["the limit counts from the first source on: nothing behind one that failed can be decided"]
        return [*(why if blocked else []), "run the same command again: it goes on where it stopped"]
    if recipe.rules.val_tokens and not result.headline.val_shards:
        few = f"there is no validation shard: fewer than {recipe.rules.val_tokens:,} tokens to take it from"
        return [few, "everything is kept as training data; see --val-tokens"]
    return []


def _what_next(result: "Result") -> str:
    from fwconvert import names, run_manifest, show  # noqa: PLC0415
    from fwconvert.folder import RunFolder  # noqa: PLC0415

    manifest = run_manifest.read(RunFolder(result.out))
    line = next(line for line in manifest.shards if line.split == "train")
    _, found = show.documents(result.out, line.name, 1)
    first = printable(found[0].text.strip().splitlines()[0])
    out, rules = _short(result.out), manifest.rules
    offset, entry = rules.kind.header_bytes, f"{rules.kind.index_start},<u4"
    return "\n".join(
        [
            "",
            f"The first line in {line.name}:",
            f"  {first[:200]}",
            "",
            "Read a token shard:",
            "  import numpy as np",
            f'  tokens = np.memmap("{out}/{line.name}", np.{rules.token_type}, "r", offset={offset})',
            f'  starts = np.fromfile("{out}/index/{names.index(line.name)}", "{entry}")["f0"]',
            "",
            "What else there is:",
            f"  fwconvert verify {out}",
            f"  fwconvert show {out} {line.name}",
            "  fwconvert plan --version 10B",
        ]
    )


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _plan_text(shown: PlanReport, needed: "Plan", recipe: Recipe) -> str:
    largest = f"{needed.largest_path}: {needed.largest_bytes:,} bytes, about {needed.largest_tokens:,} tokens"
    short = shown.disk_needed - shown.disk_used_already - shown.disk_free
    rows: dict[str, object] = {
        "source": " ".join(filter(None, (shown.dataset, shown.revision, recipe.source.folder))),
        "files": f"{needed.files:,}",
        "bytes": f"{needed.source_bytes:,}",
        "tokens": f"about {needed.tokens:,} ({recipe.rules.tokenizer})",
        "format": f"{recipe.rules.format}, the separator {recipe.rules.eot} each document",
        "token_shards": _shards_text(needed, recipe),
        "output": f"about {needed.output_bytes:,} bytes in {shown.out}",
        "to_fetch": _to_fetch(needed) if needed.fetched_bytes else "nothing: the files are here",
        "disk_needed": f"about {shown.disk_needed:,} bytes, of which {shown.disk_used_already:,} are there",
        "disk_free": f"{shown.disk_free:,} bytes" + (f" ({short:,} too few)" if short > 0 else ""),
        "largest_job": largest,
    }
    if recipe.rules.is_filtered:
        rows["filter"] = "how much it keeps is not known before the run: this is the most that it can be"
    return message("this is what the run needs", **rows)


def _shards_text(needed: "Plan", recipe: Recipe) -> str:
    size = recipe.rules.shard_tokens
    return f"about {needed.shards:,} of {size:,} tokens" if size else "one, and one for validation"


def _to_fetch(needed: "Plan") -> str:
    most = needed.fetched_bytes
    if most >= needed.source_bytes:
        return f"{needed.source_bytes:,} bytes, all of them on the disk in the end"
    return f"{needed.source_bytes:,} bytes, of which at most {most:,} are on the disk at a time"


def _status_text(found: "Status") -> str:
    share = found.source_bytes_done / max(1, found.source_bytes)
    state = "complete" if found.complete else "not complete"
    rows: dict[str, object] = {
        "format": found.format,
        "jobs": f"{found.jobs_done:,} of {found.jobs:,} done ({share:.0%} of the bytes)",
        "tokens": f"{found.tokens:,} of {found.documents:,} documents",
        "shards": f"{found.shards:,}",
        "at_work": found.at_work or "nobody",
    }
    rows |= _skipped(found)
    failures = [f"  failed  {job.path} ({job.attempts} attempts): {job.reason}" for job in found.failed]
    failures = [printable(line) for line in failures]
    return "\n".join([message(f"{found.folder}: {state}", **rows), *failures])


def _verify_text(report: "Report", out: Path) -> str:
    problems = [printable(f"  {problem.file}: {problem.what}") for problem in report.problems]
    verdict = "all is right" if report.ok else f"{len(problems):,} problems"
    rows = {"files": f"{report.files:,}", "bytes": f"{report.bytes:,}", "tokens": f"{report.tokens:,}"}
    rows["documents"] = f"{report.documents:,}"
    return "\n".join([message(f"{out}: {verdict}", **rows), *problems])


def _document_text(document: "Document", number: str) -> str:
    if document.row is None:
        title = f"--- the middle of a document of {document.source}, {document.tokens:,} tokens"
    else:
        cut = "" if document.whole else " (it may go on in another shard)"
        where = f"row {document.row:,} of {document.source}"
        title = f"--- document {number}: {where}, {document.tokens:,} tokens{cut}"
    return f"\n{title}\n{printable(document.text)}"
