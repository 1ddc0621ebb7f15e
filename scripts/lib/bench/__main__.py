"""Measure fwconvert beside the ceiling, the hardware and the ways of others; print a Markdown table.

Every figure comes from this run. Rows are interleaved, so that a machine that
is slow for a minute is slow for all of them, and the best round counts. The
tokens of every way are compared, the llm.c way's to the byte.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.growth import grow
from bench.measure import BenchError, child, fwconvert, run, tell
from bench.rows import Setup, checked, cores, fresh, measure, prepare, ways
from bench.table import facts, growth_table, loader_table, rows_table, stages_table

# Real sources are large; but there must be some for each core to be dealt out evenly.
FILES_PER_CORE = 4


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    megabytes: int
    rounds: int
    # What the peers get, at least.
    few_megabytes: int
    sources: tuple[int, ...]


FULL = Scale(1_000, 3, 40, (10, 100, 1_000))
QUICK = Scale(32, 1, 4, (5, 20, 80))


@dataclass
class Report:
    """What is printed in the end, collected on the way."""

    parts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, title: str, text: str) -> None:
        """Append a section."""
        self.parts.append(f"### {title}\n\n{text}")

    def __str__(self) -> str:
        return "\n".join([*self.parts, "".join(f"- {note}\n" for note in self.notes)])


def main() -> int:
    """Run what the arguments ask for; return the exit code."""
    given = _arguments()
    scale = QUICK if given.quick else FULL
    try:
        if given.work is not None:
            given.work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fwconvert-bench-", dir=given.work) as work:
            report = bench(given, scale, Path(work).resolve())
    except BenchError as error:
        tell(f"bench: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    print(report)
    if given.output:
        given.output.write_text(f"{report}\n", "utf-8")
    return 0


def bench(given: argparse.Namespace, scale: Scale, work: Path) -> Report:
    """Measure all that is wanted."""
    report = Report(notes=[_load()])  # Before we are the load ourselves.
    rounds = scale.rounds if given.rounds is None else given.rounds
    files = _files(given, scale, work)
    tell(f"{len(files)} files; converting them once, unmeasured")
    setup = Setup(work, files, given.tokenizer, given.encoder, cores())
    setup = prepare(setup, scale.few_megabytes * 1_000_000)
    report.add("Machine and material", facts(setup, rounds))
    wanted = _selector(given.only)
    chosen = [way for way in ways(setup, peers=given.peers) if wanted(way.group) or wanted(way.key)]
    if chosen:
        rows = measure(setup, chosen, rounds, report.notes)
        report.add("End to end, process start-up included", rows_table(rows))
        report.notes += checked(rows)
    if wanted("growth"):
        for growth in grow(setup, rounds, scale.sources):
            report.add(f"Growth with the {growth.title}, 1 worker", growth_table(growth))
    if wanted("stages"):
        report.add("Inside a worker, 1 thread, instrumented", _stages(setup))
    if wanted("loader"):
        report.add("The loader, 1 process, files in the page cache", _loader(setup, rounds))
    return report


def _load() -> str:
    """Return how busy the machine is, and what that means."""
    load = os.getloadavg()[0]
    advice = ": others are using it, so do not quote these figures" if load > cores() / 2 else ""
    return f"Load of the machine before the start: {load:.1f} on {cores()} cores{advice}."


def _stages(setup: Setup) -> str:
    tell("  stages")
    with fresh(setup.out):
        task = {"folder": setup.all_folder, "out": setup.out, "encoder": setup.encoder}
        took = run(child("bench.stages.stages", **task, vocabulary=setup.tokenizer), setup.work)
    return stages_table(took.said)


def _loader(setup: Setup, rounds: int) -> str:
    tell("  loader")
    with fresh(setup.out):
        run(fwconvert(setup.all_folder, setup.out, *setup.options(setup.cores)), setup.work)
        return loader_table(run(child("bench.loader.loader", out=setup.out, rounds=rounds), setup.work).said)


def _selector(only: str | None) -> Callable[[str], bool]:
    """Return what tells whether a row is wanted: one is named by its key, its group or how its key begins."""
    names = tuple(only.split(",")) if only else ("",)
    return lambda key: key.startswith(names)


def _files(given: argparse.Namespace, scale: Scale, work: Path) -> tuple[Path, ...]:
    """Return the parquet files to convert, made if none are given."""
    if given.source:
        files = tuple(sorted(given.source.rglob("*.parquet")))
        if not files:
            raise BenchError(f"there is no parquet file in {given.source}")
        return files
    size = (scale.megabytes if given.generate is None else given.generate) * 1_000_000
    tell(f"making {size / 1e6:,.0f} MB of text")
    task = {"folder": work / "corpus", "text_bytes": size, "files": FILES_PER_CORE * cores()}
    run(child("bench.corpus.generate", **task, processes=cores()), work)
    return tuple(sorted((work / "corpus").iterdir()))


def _from_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--source", metavar="DIR", type=Path, help="parquet files with a column `text`; default: made-up text"
    )
    add(
        "--generate",
        metavar="MB",
        type=_from_one,
        help="how much text to make (default 1,000; with --quick 32)",
    )
    add(
        "--work",
        metavar="DIR",
        type=Path,
        help="where to make a temporary folder (default: the system's place)",
    )
    add(
        "--tokenizer",
        metavar="NAME",
        default="gpt2",
        choices=("gpt2", "r50k_base", "cl100k_base", "o200k_base"),
    )
    add("--encoder", default="auto", choices=("auto", "fast", "reference"), help="what fwconvert uses")
    add("--rounds", metavar="N", type=_from_one, help="default 3; with --quick 1")
    add("--peers", action="store_true", help="measure datatrove too, if it is installed (slow; once)")
    add(
        "--only",
        metavar="ROW,...",
        help="fwconvert, ceiling, floor, peers, llmc, map, hf, growth, stages, loader, ...",
    )
    add("-o", "--output", metavar="FILE", type=Path, help="write the Markdown here too")
    add("--quick", action="store_true", help="little text, one round: to see that it works")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
