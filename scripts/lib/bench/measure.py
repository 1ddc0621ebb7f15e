"""Run a command as a user would and measure it from outside: time, CPU, memory.

Every row of the benchmark is a process of its own, so that all of them pay for
their start-up, and none inherits a warm cache from the one before. This module
and those that drive it import nothing heavy: the kernel counts the peak memory
of a parent, until the exec, as its child's.
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

# For PYTHONPATH: where a child process finds this package.
_LIB = Path(__file__).resolve().parent.parent


class BenchError(Exception):
    """A measured program failed, or two that should agree do not."""


@dataclass(frozen=True)
class Measure:
    """What a run took. `peak_bytes` is that of its largest process."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    # What the program reports of its own work: tokens, documents, text_bytes.
    reported: dict[str, Any] = field(default_factory=dict)


def run(command: Sequence[str], cwd: Path) -> Measure:
    """Run a command in the folder `cwd` to its end; raise BenchError with its output if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(_LIB)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # Or every process compiles the package anew.
    os.sync()  # What an earlier run left to be written must not slow this one.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=out, stderr=errors, stdin=subprocess.DEVNULL
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
        lines = _text(out).strip().splitlines()
    unit = 1 if sys.platform == "darwin" else 1024
    cpu = usage.ru_utime + usage.ru_stime
    return Measure(seconds, cpu, usage.ru_maxrss * unit, _json(lines[-1]) if lines else {})


def child(name: str, **task: Any) -> list[str]:
    """Return the command that calls a function (bench.limits.decode) in a process of its own."""
    return [sys.executable, "-P", "-m", "bench.task", name, json.dumps(task, default=str)]


def fwconvert(source: Path, out: Path, *options: str) -> list[str]:
    """Return the command of a conversion, with all that keeps it safe."""
    command = [sys.executable, "-P", "-m", "fwconvert", "--source", str(source), "--out", str(out), "--quiet"]
    return [*command, *options]


def counts_of(out: Path) -> dict[str, Any]:
    """Return the counts and hashes in the manifest of a finished conversion."""
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


def log(text: str) -> None:
    """Show progress on stderr."""
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
