"""Run a command as a user would and measure it from outside: time, CPU, memory.

Every row of the benchmark is a process of its own, so that all of them pay for
their start-up, and none inherits a warm cache from the one before. This module
and those that drive it import nothing heavy: the kernel counts the memory of
the process that starts another as the other's.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What finds this package, in a process of its own too.
_LIB = Path(__file__).resolve().parent.parent


class BenchError(Exception):
    """A measured program failed, or two that should agree do not."""


@dataclass(frozen=True)
class Measure:
    """What a run took. `peak_bytes` is of the largest of its processes."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    # What the program says of its own work: tokens, documents, text_bytes.
    said: dict[str, Any] = field(default_factory=dict)


def run(command: Sequence[str], where: Path) -> Measure:
    """Run a command to its end in the folder `where`; raise BenchError with what it said if it fails."""
    found_here = {**os.environ, "PYTHONPATH": str(_LIB)}
    os.sync()  # What an earlier run left to write is not this one's.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=where, env=found_here, stdout=out, stderr=errors, stdin=subprocess.DEVNULL
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise BenchError(f"{' '.join(command)[:300]}\nexit code {process.returncode}\n{_text(errors)}")
        said = _text(out).strip().splitlines()
    unit = 1 if sys.platform == "darwin" else 1024
    cpu = usage.ru_utime + usage.ru_stime
    return Measure(seconds, cpu, usage.ru_maxrss * unit, _json(said[-1]) if said else {})


def child(name: str, **task: Any) -> list[str]:
    """Return the command that calls a function (bench.ways.decode) in a process of its own."""
    return [sys.executable, "-P", "-m", "bench.task", name, json.dumps(task, default=str)]


def fwconvert(source: Path, out: Path, *options: str) -> list[str]:
    """Return the command of a conversion, with all that keeps it safe."""
    command = [sys.executable, "-P", "-m", "fwconvert", "--source", str(source), "--out", str(out), "--quiet"]
    return [*command, *options]


def counts_of(out: Path) -> dict[str, Any]:
    """Return what a finished conversion says of itself."""
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    if not manifest["headline"]["complete"]:
        raise BenchError(f"the conversion in {out} is not complete")
    jobs = manifest["jobs"]
    counts = {name: sum(job[name] for job in jobs) for name in ("tokens", "documents", "text_bytes")}
    width = 2 if manifest["rules"]["token_type"] == "uint16" else 4
    hashes = sorted(shard["sha256"] for shard in manifest["shards"])
    return {**counts, "token_bytes": width, "sha256": hashes}


def link(files: Sequence[Path], folder: Path) -> Path:
    """Return a folder that holds these files, as links, in this order."""
    folder.mkdir(parents=True)
    for number, file in enumerate(files):
        (folder / f"{number:04}.parquet").symlink_to(file.absolute())
    return folder


def tell(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read())


def _json(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
