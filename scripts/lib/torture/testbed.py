"""The program under test: small scenarios, sessions that convert them, and what must hold after each.

A session is forked from a process that has everything loaded, and runs the
`fwconvert` command line. Its workers are forked too, where users have them
spawned, and blocks are small, so that a few kilobytes of text exercise what
gigabytes would. A session then takes a tenth of a second. `torture.real` runs
the program as users do.
"""

import hashlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fwconvert import cli
from fwconvert.cli import progress
from fwconvert.errors import FwconvertError
from fwconvert.inspection import verify
from fwconvert.job import worker
from fwconvert.processes import ProcessLimits
from fwconvert.run import convert, ranks
from fwconvert.run.engines.local import LocalEngine
from fwconvert.store import atomic
from torture.faults import Fault, Interposer, Point

# What a session would import: loaded before anything is forked.
_PRELOADED = (progress, worker, convert, ranks)

# How many faults were injected from this process: a session may end before it comes to its own.
INJECTED: Counter[str] = Counter()

_PATIENCE_SECONDS = 60.0
_ORPHAN_SECONDS = 2.0


@dataclass(frozen=True)
class Scenario:
    """Some sources and a recipe."""

    name: str
    files: int
    rows: int
    options: tuple[str, ...]
    # Test an export of the conversion, with these options, instead of the conversion itself.
    export: tuple[str, ...] = ()
    # All rows of a source are equal: by its footer it has far less text than it holds.
    alike: bool = False
    workers: int = 1

    def command(self, sources: Path, out: Path) -> list[str]:
        """Return the arguments of the command. For an export, `sources` is the finished run."""
        begin = ["export", str(sources)] if self.export else ["--source", str(sources)]
        options = self.export or self.options
        return [*begin, "--out", str(out), "--workers", str(self.workers), "--no-disk-check", *options]


_SMALL = ("--tokenizer", "bytes", "--val-tokens", "700")
_LIMIT = ("--limit-tokens", "16000", "--where", "length > 3")
SCENARIOS = (
    Scenario("three sources", 3, 12, (*_SMALL, "--shard-tokens", "1500")),
    Scenario("one stream", 3, 12, (*_SMALL, "--shard-tokens", "1500", "--layout", "contiguous")),
    Scenario("seven sources", 7, 5, (*_SMALL, "--shard-tokens", "4000")),
    # Its tail is absorbed.
    Scenario("one source", 1, 20, (*_SMALL, "--shard-tokens", "900", "--eot", "after")),
    Scenario("large blocks", 2, 30, (*_SMALL, "--shard-tokens", "20000")),
    Scenario("one file", 3, 12, (*_SMALL, "--format", "raw")),
    Scenario("files beside", 3, 12, (*_SMALL, "--shard-tokens", "1500", "--format", "datatrove")),
    Scenario("a limit", 4, 20, (*_SMALL, "--shard-tokens", "4000", *_LIMIT), alike=True, workers=3),
    Scenario("compressed", 3, 12, (*_SMALL, "--shard-tokens", "1500", "--compress", "zstd")),
    Scenario(
        "an export",
        3,
        12,
        (*_SMALL, "--shard-tokens", "1500"),
        export=("--shard-tokens", "2100", "--eot", "after", "--format", "npy"),
    ),
)


def make_sources(scenario: Scenario, folder: Path) -> Path:
    """Write the sources of a scenario, the same every time."""
    random = np.random.Generator(np.random.PCG64(scenario.files * 1000 + scenario.rows))
    folder.mkdir(parents=True)
    for number in range(scenario.files):
        lengths = random.integers(1, 900, scenario.rows)
        texts = ["".join(map(chr, random.integers(97, 123, length))) for length in lengths]
        if scenario.alike:
            texts = texts[:1] * scenario.rows
        table = pa.table({"text": texts, "length": [len(text) for text in texts]})
        size = scenario.rows if scenario.alike else 5
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=size)
    return folder


def prepare() -> None:
    """Make this process one that sessions can be forked from."""
    atomic.BLOCK_BYTES = 4096


@dataclass(frozen=True)
class Result:
    """How a session result. `code` is negative if a signal killed it."""

    code: int
    output: str
    orphans: int


@dataclass(frozen=True)
class Session:
    """A command that runs."""

    child: int
    interposer: Interposer
    log: Path

    def result(self) -> Result:
        """Wait until it exits or is killed, and all its processes with it."""
        code = wait_for(self.child)
        orphans = wait_for_end(self.child)
        INJECTED["faults"] += self.interposer.triggered
        return Result(code, self.log.read_text(errors="replace"), orphans)


@dataclass
class Testbed:
    """Where one run after another of a scenario takes place, with what an undisturbed one makes."""

    scenario: Scenario
    sources: Path
    out: Path
    scratch: Path
    expected: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)

    @classmethod
    def made(cls, scenario: Scenario, scratch: Path, out: Path) -> "Testbed":
        """Convert once, undisturbed, to learn the right bytes and the calls that can fail."""
        sources = make_sources(scenario, scratch / "sources")
        if scenario.export:
            convert = cls(replace(scenario, export=()), sources, scratch / "run", scratch)
            result, sources = convert.session(), convert.out
            assert result.code == 0, result.output
        testbed = cls(scenario, sources, out, scratch)
        interposer = Interposer(out, None)
        result = testbed.session(interposer=interposer)
        assert result.code == 0, result.output
        testbed.expected, testbed.points = tree(out), interposer.points()
        testbed.clear()
        return testbed

    def session(
        self,
        fault: Fault | None = None,
        *,
        interposer: Interposer | None = None,
        before: Callable[[], None] | None = None,
        limits: ProcessLimits | None = None,
    ) -> Result:
        """Run the command in a process of its own until it exits or is killed."""
        words = self.scenario.command(self.sources, self.out)
        interposer = interposer or Interposer(self.out, fault)
        return self.begin(words, interposer, before=before, limits=limits).result()

    def begin(
        self,
        words: list[str],
        interposer: Interposer,
        *,
        before: Callable[[], None] | None = None,
        limits: ProcessLimits | None = None,
        name: str = "output",
    ) -> "Session":
        """Start a command in a process of its own; what it prints goes into the file `name`."""
        log = self.scratch / name
        fork = multiprocessing.get_context("fork")
        engine = LocalEngine(self.scenario.workers, limits or ProcessLimits(), fork)
        child = os.fork()
        if child == 0:
            run_session(interposer, log, before, lambda: cli.main(words, engine=engine))
        return Session(child, interposer, log)

    def clear(self) -> None:
        """Remove the output."""
        shutil.rmtree(self.out, ignore_errors=True)

    def problems(self) -> list[str]:
        """Return what is wrong with a run that should be finished."""
        found = []
        if tree(self.out) != self.expected:
            found.append("other bytes than the undisturbed run")
        if left := [path.name for path in (self.out / ".fwconvert/temporary").iterdir()]:
            found.append(f"left behind: {left[0]}")
        try:
            report = verify.verify(self.out)
            found += [f"verify: {problem.file}: {problem.what}" for problem in report.problems[:2]]
        except FwconvertError as error:
            found.append(f"verify: {error}")
        return found


def run_session(
    interposer: Interposer, log: Path, before: Callable[[], None] | None, command: Callable[[], int]
) -> NoReturn:
    """Be the session, in a forked process; does not return."""
    code = 99
    try:
        os.setsid()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        tempfile.tempdir = str(log.parent)
        if before is not None:
            before()
        interposer.install()
        code = command()
        sys.stdout.flush()
    finally:
        os._exit(code)


def wait_for(child: int) -> int:
    """Return the exit code of a session; one that hangs is killed."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 98
        time.sleep(0.002)


def wait_for_end(session: int) -> int:
    """Return how many processes of a session are alive after two seconds, and kill those."""
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while members := members_of(session):
        if time.monotonic() > deadline:
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return len(members)
        time.sleep(0.005)
    return 0


def members_of(session: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                facts = (path / "stat").read_text().rpartition(")")[2].split()
                state, sid, threads = facts[0], int(facts[3]), int(facts[17])
            except (OSError, IndexError):
                continue
            # A zombie with further threads still holds its files.
            if sid == session and (state != "Z" or threads > 1):
                found.append(int(path.name))
    return found


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tree(out: Path) -> dict[str, str]:
    """Return the sha256 of every output file, of the run manifest without its sessions."""
    found = {}
    for path in out.rglob("*"):
        name = path.relative_to(out).as_posix()
        if path.is_file() and not name.startswith(".fwconvert/"):
            content = path.read_bytes()
            if name == "manifest.json":
                content = content.partition(b'\n"sessions": ')[0]
            found[name] = hashlib.sha256(content).hexdigest()
    return found
