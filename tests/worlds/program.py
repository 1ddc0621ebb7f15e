"""The real program, in processes of its own, in the place of one world; every command is written down."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import forked
import hub_runs
import psutil
import runner
from worlds import history
from worlds.history import Interrupt

# Nothing in a world takes long; a command that hangs must not take everything with it.
PATIENCE = 120
# Workers notice at once that their driver has gone; a busy machine may take a while.
LINGERING = 15
NOWHERE = "http://127.0.0.1:9"
LEAK = re.compile(r"Traceback|\b[A-Z]\w*(?:Error|Exception)\b|<class ")
SIGNALS = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "hang up": signal.SIGHUP}


class Wrong(AssertionError):
    """Something is not as it must be."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    words: tuple[str, ...]
    code: int
    said: str
    complained: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.said}\n{self.complained}".strip()


@dataclass
class Program:
    """Runs commands in a folder, and keeps a diary of them."""

    folder: Path
    endpoint: str = NOWHERE
    diary: list[str] = field(default_factory=list)
    commands: int = 0
    disturbances: int = 0

    def note(self, text: str) -> None:
        self.diary.append(text)

    def run(self, *words: str) -> Ended:
        """Run a command to its end."""
        process = self._start(words)
        try:
            return self._finished(process, words)
        finally:
            runner.kill_all(process.pid)

    def twice(self, *words: str) -> list[Ended]:
        """Run a command twice at once."""
        self.disturbances += 1
        processes = [self._start(words) for _ in range(2)]
        try:
            return [self._finished(process, words) for process in processes]
        finally:
            for process in processes:
                runner.kill_all(process.pid)

    def interrupted(self, out: Path, step: Interrupt, *words: str) -> Ended:
        """Run a command, and disturb it when its time has come."""
        self.disturbances += 1
        lock = out / history.PRIVATE / "lock"
        before = _changed_at(lock)
        process = self._start(words)
        try:
            # Before a session has the folder the interpreter may still be starting, and nobody is to blame.
            self._await(process, lambda: _changed_at(lock) != before and _is_time(out, step))
            time.sleep(step.milliseconds / 1000)
            self._disturb(process, step.action)
            ended = self._finished(process, words)
            self._await_the_end(process)
            return ended
        finally:
            runner.kill_all(process.pid)

    def _start(self, words: tuple[str, ...]) -> "subprocess.Popen[str]":
        self.commands += 1
        self.note(f"$ fwconvert {shlex.join(words)}")
        return forked.start(
            [sys.executable, "-m", "fwconvert", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
            cwd=self.folder,
            env=hub_runs.environment(self.endpoint, PYTHONIOENCODING="utf-8"),
        )

    def _finished(self, process: "subprocess.Popen[str]", words: tuple[str, ...]) -> Ended:
        try:
            said, complained = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise Wrong(f"it does not end in {PATIENCE} s: fwconvert {shlex.join(words)}") from None
        ended = Ended(words, process.returncode, said, complained)
        self.note(f"  {ended}".replace("\n", "\n  "))
        # A worker that was just being started when its driver was killed complains in Python's own words.
        killed_at_a_start = process.returncode == -9 and "multiprocessing/spawn.py" in complained
        if not killed_at_a_start and (leak := LEAK.search(said + complained)):
            raise Wrong(f"it speaks of {leak[0]}: {ended}")
        return ended

    def _await(self, process: "subprocess.Popen[str]", true: Callable[[], bool]) -> None:
        """Wait until it is true, or the command has ended."""
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < deadline and not true():
            time.sleep(0.001)

    def _await_the_end(self, process: "subprocess.Popen[str]") -> None:
        """Fail if anything that the command started goes on without it."""
        deadline = time.monotonic() + LINGERING
        while left := runner.members(process.pid):
            if time.monotonic() > deadline:
                raise Wrong(f"these outlive the command by {LINGERING} s: {left}")
            time.sleep(0.02)

    def _disturb(self, process: "subprocess.Popen[str]", action: str) -> None:
        if process.poll() is not None:
            self.note("  it had ended before it could be disturbed")
            return
        with suppress(psutil.Error, OSError):
            if action == "kill":
                process.kill()
            elif action == "kill worker":
                for worker in runner.workers(process)[:1]:
                    worker.kill()
            else:
                os.kill(process.pid, SIGNALS[action])


def _is_time(out: Path, step: Interrupt) -> bool:
    return history.count(out, step.awaited) >= step.count


def _changed_at(path: Path) -> int:
    """Return the time of change of a file, 0 if it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
