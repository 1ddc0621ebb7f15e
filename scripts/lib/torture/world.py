"""The program under torture: small worlds to convert, sessions on them, and what must hold after each.

A session is a process forked from one that has everything loaded, which runs
`fwconvert` itself from its command line on; its workers are forked too, where
users have them spawned, and blocks are small, so that a few kilobytes of text
pass through all that gigabytes would. That makes a session of a tenth of a
second. `torture.real` runs the program as users do.
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

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fwconvert import cli
from fwconvert.cli import progress  # noqa: F401
from fwconvert.errors import FwconvertError
from fwconvert.inspection import verify
from fwconvert.job import worker  # noqa: F401
from fwconvert.run import convert  # noqa: F401
from fwconvert.run.engines.local import LocalEngine

# Some are there to be loaded before anything is forked.
from fwconvert.store import atomic
from torture.faults import Fault, Interposer, Point

# How many faults at calls have happened in this process: a session may end before it comes to its own.
MET: Counter[str] = Counter()

_PATIENCE_SECONDS = 60.0
_ORPHAN_SECONDS = 2.0


@dataclass(frozen=True)
class World:
    """Some sources and a recipe."""

    name: str
    files: int
    rows: int
    options: tuple[str, ...]
    # Not the conversion is tortured, but an export of what it made, with these options.
    export: tuple[str, ...] = ()
    # All rows of a source are the same, so that its footer tells of far less than it holds.
    alike: bool = False
    workers: int = 1

    def command(self, sources: Path, out: Path, *more: str) -> list[str]:
        """Return the words of the command. For an export, `sources` is the finished run."""
        begin = ["export", str(sources)] if self.export else ["--source", str(sources)]
        options = self.export or self.options
        return [*begin, "--out", str(out), "--workers", str(self.workers), "--no-disk-check", *options, *more]


_SMALL = ("--tokenizer", "bytes", "--val-tokens", "700")
_LIMIT = ("--limit-tokens", "16000", "--where", "length > 3")
WORLDS = (
    World("three sources", 3, 12, (*_SMALL, "--shard-tokens", "1500")),
    World("one stream", 3, 12, (*_SMALL, "--shard-tokens", "1500", "--layout", "contiguous")),
    World("seven sources", 7, 5, (*_SMALL, "--shard-tokens", "4000")),
    World("one source", 1, 20, (*_SMALL, "--shard-tokens", "900", "--eot", "after")),  # its end is absorbed
    World("large blocks", 2, 30, (*_SMALL, "--shard-tokens", "20000")),
    World("one file", 3, 12, (*_SMALL, "--format", "raw")),
    World("files beside", 3, 12, (*_SMALL, "--shard-tokens", "1500", "--format", "datatrove")),
    World("a limit", 4, 20, (*_SMALL, "--shard-tokens", "4000", *_LIMIT), alike=True, workers=3),
    World("compressed", 3, 12, (*_SMALL, "--shard-tokens", "1500", "--compress", "zstd")),
    World(
        "an export",
        3,
        12,
        (*_SMALL, "--shard-tokens", "1500"),
        export=("--shard-tokens", "2100", "--eot", "after", "--format", "npy"),
    ),
)


def make_sources(world: World, folder: Path) -> Path:
    """Write the sources of a world: the same every time."""
    random = np.random.Generator(np.random.PCG64(world.files * 1000 + world.rows))
    folder.mkdir(parents=True)
    for number in range(world.files):
        lengths = random.integers(1, 900, world.rows)
        texts = ["".join(map(chr, random.integers(97, 123, length))) for length in lengths]
        if world.alike:
            texts = texts[:1] * world.rows
        table = pa.table({"text": texts, "length": [len(text) for text in texts]})
        size = world.rows if world.alike else 5
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=size)
    return folder


def prepare() -> None:
    """Make this process one that sessions can be forked from."""
    atomic.BLOCK_BYTES = 4096
    # A forked worker has the driver's memory but not its threads.
    os.register_at_fork(after_in_child=atomic._writer.cache_clear)  # noqa: SLF001


@dataclass(frozen=True)
class Ended:
    """How a session ended. `code` is negative if a signal ended it."""

    code: int
    said: str
    orphans: int


@dataclass
class Place:
    """A folder for one run after another of one world."""

    world: World
    sources: Path
    out: Path
    scratch: Path
    golden: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)

    @classmethod
    def made(cls, world: World, scratch: Path, out: Path) -> "Place":
        """Convert once, undisturbed, to know what is right and which calls there are."""
        sources = make_sources(world, scratch / "sources")
        if world.export:
            convert = cls(replace(world, export=()), sources, scratch / "run", scratch)
            ended, sources = convert.session(), convert.out
            assert ended.code == 0, ended.said
        place = cls(world, sources, out, scratch)
        interposer = Interposer(out, None)
        ended = place.session(interposer=interposer)
        assert ended.code == 0, ended.said
        place.golden, place.points = tree(out), interposer.points()
        place.clear()
        return place

    def session(
        self,
        fault: Fault | None = None,
        *,
        interposer: Interposer | None = None,
        before: Callable[[], None] | None = None,
        more: tuple[str, ...] = (),
    ) -> Ended:
        """Run the command in a process of its own until it ends or is ended."""
        interposer = interposer or Interposer(self.out, fault)
        log = self.scratch / "said"
        child = os.fork()
        if child == 0:
            words = self.world.command(self.sources, self.out, *more)
            _live(interposer, log, before, words, self.world.workers)
        code = _wait(child)
        orphans = wait_for_end(child)
        MET["faults"] += interposer.happened
        return Ended(code, log.read_text(errors="replace"), orphans)

    def clear(self) -> None:
        """Remove the output."""
        shutil.rmtree(self.out, ignore_errors=True)

    def problems(self) -> list[str]:
        """Return what is wrong with a run that should be finished."""
        found = []
        if tree(self.out) != self.golden:
            found.append("other bytes than the undisturbed run")
        if left := [path.name for path in (self.out / ".fwconvert/temporary").iterdir()]:
            found.append(f"left behind: {left[0]}")
        try:
            report = verify.verify(self.out)
            found += [f"verify: {problem.file}: {problem.what}" for problem in report.problems[:2]]
        except FwconvertError as error:
            found.append(f"verify: {error}")
        return found


def _live(
    interposer: Interposer, log: Path, before: Callable[[], None] | None, words: list[str], workers: int
) -> None:
    """Be the session; does not return."""
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
        code = cli.main(words, engine=LocalEngine(workers, context=multiprocessing.get_context("fork")))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _wait(child: int) -> int:
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
    """Return how many processes of a session live on after two seconds; none does after this."""
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
            # One whose first thread is gone already holds its files until the last one is.
            if sid == session and (state != "Z" or threads > 1):
                found.append(int(path.name))
    return found


def tree(out: Path) -> dict[str, str]:
    """Return the sha256 of every output file; of the run manifest without its sessions."""
    found = {}
    for path in out.rglob("*"):
        name = path.relative_to(out).as_posix()
        if path.is_file() and not name.startswith(".fwconvert/"):
            content = path.read_bytes()
            if name == "manifest.json":
                content = content.partition(b'\n"sessions": ')[0]
            found[name] = hashlib.sha256(content).hexdigest()
    return found
