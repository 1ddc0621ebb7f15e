"""The benchmark's result as Markdown: the machine's facts, the rows with their ratios, growth, stages."""

import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.growth import Growth
from bench.measure import Measure
from bench.rows import Row, Setup, cores

_PACKAGES = (
    "fwconvert", "pyarrow", "numpy", "tiktoken", "gigatoken", "awkward", "tokenizers", "datatrove",
)  # fmt: skip
_HEAD = (
    "way",
    "text MB",
    "seconds",
    "CPU s",
    "peak MB",
    "MB/s",
    "M tokens/s",
    "times llm.c",
    "of the ceiling",
)


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table; all columns but the first hold numbers."""
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines)) + "\n"


def rows_table(rows: Sequence[Row]) -> str:
    """Return the main table, with each row relative to the llm.c way and to the ceiling."""
    llmc = next((row.rate for row in rows if row.way.key == "llmc"), None)
    ceilings = {row.way.processes: row.rate for row in rows if row.way.group == "ceiling"}
    return markdown(_HEAD, [_row(row, llmc, ceilings.get(row.way.processes)) for row in rows])


def _row(row: Row, llmc: float | None, ceiling: float | None) -> list[str]:
    text, best = row.text_bytes / 1e6, row.best
    return [
        row.way.title,
        f"{text:,.0f}",
        f"{best.seconds:.2f}",
        f"{best.cpu_seconds:.2f}",
        f"{best.peak_bytes / 1e6:,.0f}",
        f"{text / best.seconds:,.1f}",
        f"{row.rate / 1e6:,.2f}",
        f"{row.rate / llmc:.1f}" if llmc else "-",
        f"{row.rate / ceiling:.0%}" if ceiling else "-",
    ]


def network_table(rows: Sequence[tuple[str, Measure]]) -> str:
    """Return how long each way took, relative to the larger of what cannot be avoided.

    That is the fastest downloader, or converting from disk.
    """
    alone = [took.seconds for title, took in rows if "alone" in title]
    disk = [took.seconds for title, took in rows if "from disk" in title]
    bound = max(min(alone, default=0.0), *disk)
    lines = [
        [title, f"{took.seconds:.2f}", f"{took.cpu_seconds:.2f}", f"{took.seconds / bound:.2f}"]
        for title, took in rows
    ]
    return markdown(("way", "seconds", "CPU s", "of the bound"), lines)


def fetching_table(rows: Sequence[tuple[str, Measure]]) -> str:
    """Return what each way to fetch took."""
    lines = [
        [title, f"{took.seconds:.2f}", f"{took.cpu_seconds:.2f}", f"{took.peak_bytes / 1e6:,.0f}"]
        for title, took in rows
    ]
    return markdown(("way", "seconds", "CPU s", "peak MB"), lines)


def ranks_table(rows: Sequence[tuple[str, Measure]]) -> str:
    """Return how long each way took, relative to the first."""
    first = rows[0][1].seconds
    lines = [
        [title, f"{took.seconds:.2f}", f"{took.cpu_seconds:.2f}", f"{took.seconds / first:.2f}"]
        for title, took in rows
    ]
    return markdown(("way", "seconds", "CPU s", "of the first"), lines)


def growth_table(growth: Growth) -> str:
    """Return a series with its exponents."""
    head = (growth.title, "seconds", "beyond the first", "CPU s", "beyond the first", "peak MB")
    points = (growth.first, *growth.points)
    table = markdown(head, [_point(point.label, point.best, growth.first.best) for point in points])
    fitted = ", ".join(f"{name} {_power(power)}" for name, power in growth.exponents().items())
    return f"{table}\nFitted exponents beyond the first, which pays the fixed costs: {fitted}.\n"


def _point(label: str, best: Measure, first: Measure) -> list[str]:
    seconds, cpu = best.seconds, best.cpu_seconds
    net = f"{seconds - first.seconds:.2f}", f"{cpu - first.cpu_seconds:.2f}"
    return [label, f"{seconds:.2f}", net[0], f"{cpu:.2f}", net[1], f"{best.peak_bytes / 1e6:,.0f}"]


def _power(power: float | None) -> str:
    return "indistinguishable from the first" if power is None else f"{power:.2f}"


def stages_table(found: dict[str, Any]) -> str:
    """Return where a worker's time goes."""
    total = sum(found["cpu"].values())
    ordered = sorted(found["cpu"].items(), key=lambda item: (item[0] == "other", -item[1]))
    lines = [[name, f"{cpu / total:.1%}", f"{cpu:.2f}", _passed(found, name)] for name, cpu in ordered]
    return markdown(("stage", "share of CPU", "CPU s", "seconds passed"), lines)


def _passed(found: dict[str, Any], name: str) -> str:
    return f"{found['passed'][name]:.2f}" if name in found["passed"] else "-"


def loader_table(found: dict[str, Any]) -> str:
    """Return how fast tokens are served, each way relative to the plain one that does the same."""
    lines, plain = [], 1.0
    for name, best in found.items():
        passed, cpu = best["bytes"] / best["seconds"], best["bytes"] / best["cpu"]
        plain = cpu if name.startswith("plain") else plain
        speeds = [f"{passed / 1e9:.2f}", f"{cpu / 1e9:.2f}", f"{cpu / plain:.0%}"]
        lines.append([name, f"{best['bytes'] / 1e6:,.0f}", *speeds])
    return markdown(("way", "MB of tokens", "GB/s", "GB in a second of CPU", "of plain numpy"), lines)


def facts(setup: Setup, rounds: int) -> str:
    """Return the facts without which the figures mean nothing."""
    known = {
        "command": shlex.join(["scripts/bench", *sys.argv[1:]]),
        "machine": f"{cores()} cores of {_cpu()}, {_memory()}, {platform.system()} {platform.release()}",
        "work folder on": _file_system(setup.work),
        "software": f"Python {platform.python_version()}, " + ", ".join(_versions()),
        "sources": _described(setup.of_all, len(setup.files)),
        "the peers' sources": f"the first documents of these: {_described(setup.of_few, setup.cores)}",
        "recipe": f"{setup.tokenizer}, {setup.shard_tokens:,} tokens in a shard; encoder {setup.encoder}",
        "measured": f"best of {rounds} interleaved rounds",
    }
    return "\n".join(f"- {name}: {value}" for name, value in known.items()) + "\n"


def _described(counts: dict[str, Any], files: int) -> str:
    text, tokens = counts["text_bytes"] / 1e6, counts["tokens"] / 1e6
    return f"{files} files, {counts['documents']:,} documents, {text:,.1f} MB of text, {tokens:,.2f} M tokens"


def _versions() -> Iterable[str]:
    for package in _PACKAGES:
        try:
            yield f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue


def _cpu() -> str:
    lines = _lines("/proc/cpuinfo")
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )


def _memory() -> str:
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return "memory unknown"
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"


def _file_system(path: Path) -> str:
    """Return the kind and the device of the file system that holds a folder."""
    mounts = [line.split() for line in _lines("/proc/mounts")]
    above = {str(folder) for folder in (path.resolve(), *path.resolve().parents)}
    holding = [mount for mount in mounts if mount[1] in above]
    if not holding:
        return "unknown"
    device, _, kind = max(reversed(holding), key=lambda mount: len(mount[1]))[:3]
    return f"{kind} ({device})"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8").splitlines()
    except OSError:
        return []
