"""Compare fwconvert with the ceiling, the hardware and other tools; print a Markdown table.

Every figure comes from this run. Rows are interleaved, so that a machine that
is slow for a minute is slow for all of them, and the best round counts. The
tokens of all tools are compared, those of the llm.c way to the byte.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.growth import grow
from bench.measure import BenchError, child, fwconvert, log, run
from bench.network import measure_network, measure_ranks, networks
from bench.ray_nodes import measure_ray
from bench.rows import Setup, checked, cores, fresh, measure, prepare, ways
from bench.table import (
    facts,
    fetching_table,
    growth_table,
    loader_table,
    network_table,
    ranks_table,
    rows_table,
    stages_table,
)
from bench.xet import measure_xet

# Real sources are large, but each core needs several for an even distribution.
FILES_PER_CORE = 4


@dataclass(frozen=True)
class Scale:
    """How much to measure."""

    megabytes: int
    rounds: int
    # Of text for the peers.
    few_megabytes: int
    sources: tuple[int, ...]


FULL = Scale(1_000, 3, 40, (10, 100, 1_000))
QUICK = Scale(32, 1, 4, (5, 20, 80))


@dataclass
class Report:
    """What is printed at the end, collected on the way."""

    parts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, title: str, text: str) -> None:
        """Append a section."""
        self.parts.append(f"### {title}\n\n{text}")

    def __str__(self) -> str:
        return "\n".join([*self.parts, "".join(f"- {note}\n" for note in self.notes)])


def main() -> int:
    """Run what the arguments ask for; return the exit code."""
    args = _parse_arguments()
    scale = QUICK if args.quick else FULL
    try:
        if args.work is not None:
            args.work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fwconvert-bench-", dir=args.work) as work:
            report = bench(args, scale, Path(work).resolve())
    except BenchError as error:
        log(f"bench: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    print(report)
    if args.output:
        args.output.write_text(f"{report}\n", "utf-8")
    return 0


def bench(args: argparse.Namespace, scale: Scale, work: Path) -> Report:
    """Measure what the arguments select."""
    report = Report(notes=[_load()])  # Before we cause load ourselves.
    rounds = scale.rounds if args.rounds is None else args.rounds
    files = _files(args, scale, work)
    log(f"{len(files)} files; converting them once, unmeasured")
    setup = Setup(work, files, args.tokenizer, args.encoder, cores())
    setup = prepare(setup, scale.few_megabytes * 1_000_000)
    report.add("Machine and material", facts(setup, rounds))
    wanted = _selector(args.only)
    chosen = [way for way in ways(setup, peers=args.peers) if wanted(way.group) or wanted(way.key)]
    if chosen:
        rows = measure(setup, chosen, rounds, report.notes)
        report.add("End to end, process start-up included", rows_table(rows))
        report.notes += checked(rows)
    if args.only:  # They wait for most of their time: only if asked for.
        _measure_networks(report, setup, wanted, rounds)
    if wanted("growth"):
        for growth in grow(setup, rounds, scale.sources):
            report.add(f"Growth with the {growth.title}, 1 worker", growth_table(growth))
    if wanted("stages"):
        report.add("Inside a worker, 1 thread, instrumented", _stages(setup))
    if wanted("loader"):
        report.add("The loader, 1 process, files in the page cache", _loader(setup, rounds))
    return report


def _measure_networks(report: Report, setup: Setup, wanted: Callable[[str], bool], rounds: int) -> None:
    """Measure fetching in all its ways: each network by itself, and some of them for what goes beyond."""
    for network in networks():
        title, is_late = network.title, network.key == "network-both-late"
        if wanted(network.key):
            log(f"  {title}")
            report.add(f"Network: {title}", network_table(measure_network(setup, network, rounds)))
        if not is_late and network.key != "network-both":
            continue
        if wanted("xet"):
            log(f"  Xet: {title}")
            report.add(f"Xet: {title}", fetching_table(measure_xet(setup, network, rounds)))
        if wanted("ranks"):
            log(f"  Two ranks: {title}")
            report.add(f"Two ranks: {title}", ranks_table(measure_ranks(setup, network, rounds)))
        if wanted("ray") and not is_late:
            log(f"  Ray: {title}")
            report.add(f"Ray: {title}", ranks_table(measure_ray(setup, network, rounds)))


def _load() -> str:
    """Return how busy the machine is, and what that means."""
    load = os.getloadavg()[0]
    advice = ": it is busy, so do not quote these figures" if load > cores() / 2 else ""
    return f"Load of the machine before the start: {load:.1f} on {cores()} cores{advice}."


def _stages(setup: Setup) -> str:
    log("  stages")
    with fresh(setup.out):
        task = {"folder": setup.all_folder, "out": setup.out, "encoder": setup.encoder}
        took = run(child("bench.stages.stages", **task, vocabulary=setup.tokenizer), setup.work)
    return stages_table(took.reported)


def _loader(setup: Setup, rounds: int) -> str:
    log("  loader")
    with fresh(setup.out):
        run(fwconvert(setup.all_folder, setup.out, *setup.options(setup.cores)), setup.work)
        took = run(child("bench.loader.loader", out=setup.out, rounds=rounds), setup.work)
    return loader_table(took.reported)


def _selector(only: str | None) -> Callable[[str], bool]:
    """Return a predicate of rows and sections: --only names a key, a group, or the beginning of a key."""
    names = tuple(only.split(",")) if only else ("",)
    return lambda key: key.startswith(names)


def _files(args: argparse.Namespace, scale: Scale, work: Path) -> tuple[Path, ...]:
    """Return the parquet files to convert, or generate them if none are given."""
    if args.source:
        files = tuple(sorted(args.source.rglob("*.parquet")))
        if not files:
            raise BenchError(f"there is no parquet file in {args.source}")
        return files
    size = (scale.megabytes if args.generate is None else args.generate) * 1_000_000
    log(f"generating {size / 1e6:,.0f} MB of text")
    task = {"folder": work / "corpus", "text_bytes": size, "files": FILES_PER_CORE * cores()}
    run(child("bench.corpus.generate", **task, processes=cores()), work)
    return tuple(sorted((work / "corpus").iterdir()))


def _from_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    tokenizers = ("gpt2", "r50k_base", "cl100k_base", "o200k_base")
    add("--source", metavar="DIR", type=Path, help="parquet files with a column `text` (default: generated)")
    add("--generate", metavar="MB", type=_from_one, help="how much text (default 1,000; with --quick 32)")
    add("--work", metavar="DIR", type=Path, help="where to make a temporary folder")
    add("--tokenizer", metavar="NAME", default="gpt2", choices=tokenizers)
    add("--encoder", default="auto", choices=("auto", "fast", "reference"), help="what fwconvert uses")
    add("--rounds", metavar="N", type=_from_one, help="default 3; with --quick 1")
    add("--peers", action="store_true", help="also run datatrove, if it is installed (slow; one round)")
    add(
        "--only",
        metavar="ROW,...",
        help="fwconvert, ceiling, gigatoken, floor, peers, stages, loader, network, ranks, ray, xet, ...",
    )
    add("-o", "--output", metavar="FILE", type=Path, help="write the Markdown here too")
    add("--quick", action="store_true", help="little text, one round: a smoke test")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
