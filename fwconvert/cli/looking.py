"""Commands for people who look at runs: a page, the page live, and two runs beside each other."""

import argparse
import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fwconvert import records
from fwconvert.cli import text as wording
from fwconvert.cli.console import note, program, tell
from fwconvert.errors import UsageError, message, printable
from fwconvert.store.bucket import is_uri

if TYPE_CHECKING:
    from fwconvert.inspection.compare import Comparison


def report(args: argparse.Namespace) -> int:
    """Write the page of a run."""
    from fwconvert.page import facts, render, writing  # noqa: PLC0415  # --help and status are instant

    output = args.output or _named_after(args.out)
    found = facts.gather(args.out, verified=args.verify)
    writing.refuse_place(args.out, found.manifest.rules, output)
    writing.write(output, render.render(found, program=program()).html)
    tell(message("the page is written; open it in a browser", file=output.absolute()))
    wrong = found.problems or (found.report is not None and not found.report.ok)
    if wrong:
        note("fwconvert: not all of this run is as it should be; the page says what, under Integrity")
    return 1 if wrong else 0


def _named_after(out: Path | str) -> Path:
    """Return the page's name in the current folder: not in the run, where nothing else belongs."""
    name = str(out).rstrip("/").rpartition("/")[2] if is_uri(out) else Path(out).resolve().name
    return Path(f"{name or 'report'}.html")


def browse(args: argparse.Namespace) -> int:
    """Serve the page of a run until the user stops it."""
    from fwconvert.page import server  # noqa: PLC0415

    if args.port is not None and args.port > 65_535:
        raise UsageError(message("there is no such port", "choose one up to 65535", port=args.port))
    with _stopping() as stop:
        server.serve(args.out, args.port, _tell_address, stop, program())
    return 0


def _tell_address(address: str) -> None:
    tell(f"{address}  (on this machine only; Ctrl-C ends it)")


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Have an event that Ctrl-C, SIGTERM and a lost terminal set."""
    stop = threading.Event()
    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def compare(args: argparse.Namespace) -> int:
    """Say how two runs differ."""
    from fwconvert.inspection import compare as comparing  # noqa: PLC0415

    found = comparing.compare(args.a, args.b)
    facts = {"equal": found.equal, **records.as_builtin(found)}
    tell(wording.json_text(facts) if args.json else in_words(found))
    return 0 if found.equal else 1


def in_words(found: "Comparison") -> str:
    """Return a comparison as text."""
    shards = (
        len(found.equal_shards) + len(found.different_shards) + len(found.only_in_a) + len(found.only_in_b)
    )
    lines = [f"  A  {found.a}", f"  B  {found.b}"]
    if found.equal:
        lines.insert(0, f"the runs are equal: all {shards:,} token shards, byte for byte")
    else:
        lines.insert(0, "the runs differ")
    if found.recipe:
        lines.append("recipe")
        lines += _pairs(found.recipe)
    elif found.same_recipe:
        lines.append("recipe: the same")
    if found.counts:
        lines.append("counts")
        lines += _pairs(found.counts)
    lines.append(f"token shards: {len(found.equal_shards):,} of {shards:,} are equal, byte for byte")
    for title, names in (
        ("different", found.different_shards),
        ("only in A", found.only_in_a),
        ("only in B", found.only_in_b),
    ):
        if names:
            more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
            lines.append(f"  {title}  {', '.join(names[:3])}{more}")
    first = found.first_difference
    if first is not None:
        lines.append("first difference")
        at = "" if first.token is None else f":{first.token}"
        for letter, name, token in (("A", first.a, first.a_token), ("B", first.b, first.b_token)):
            told = f", token id {token}" if token is not None else (", which has ended" if at else "")
            lines.append(f"  {letter}  {name}{at}{told}")
        if first.note:
            lines.append(f"  {first.note}")
        if first.a_token is not None:
            lines.append(f"  -> see it: {program()} trace {shlex.quote(found.a)} {first.a}{at}")
    return printable("\n".join(lines))


def _pairs(values: dict[str, tuple[object, object]]) -> list[str]:
    def told(value: object) -> str:
        if value is None:
            return "none"
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)[:300]

    names = {name: name.replace("_", " ") for name in values}
    width = max(map(len, names.values()))
    return [
        f"  {names[name]:<{width}}  "
        + (f"A {told(a)}" if b == "" else f"B {told(b)}" if a == "" else f"A {told(a)}  B {told(b)}")
        for name, (a, b) in values.items()
    ]
