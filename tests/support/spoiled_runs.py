"""Runs for tests that spoil them, commands on these, and how a command may end.

A run folder may come from anywhere: from a disk that failed, from a copy that
was cut, from somebody who means ill. No record in it may lead a command
outside, end it with an error that nobody foresaw, or keep it for ever.
"""

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engines
import pytest
import runner
from runner import PRIVATE

from fwconvert import cli
from fwconvert.store.local import LocalStore

CHOICES: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 2000}
BAD = "01.parquet"

posix = pytest.mark.skipif(os.name == "nt", reason="wants links, pipes or any bytes in names")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="wants a limit of memory that is kept")


class Run:
    """A run that can be gone on with, and what it must come to."""

    # No dataclass: Hypothesis would print all of it.
    def __init__(self, out: Path, sources: Path, tree: dict[str, str]) -> None:
        self.out = out
        self.sources = sources
        self.tree = tree

    @property
    def folder(self) -> LocalStore:
        return LocalStore(self.out)


@dataclass(frozen=True)
class Runs:
    """A run that is complete, and the same one before the last of its sources was whole."""

    finished: Run
    halted: Run


def copy_of(run: Run, place: Path) -> Run:
    shutil.copytree(run.out, place)
    return Run(place, run.sources, run.tree)


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, and all that it printed."""

    code: int
    said: str


def command(*words: object) -> Ended:
    """Run a command as `main` does, with the streams of a terminal: text that cannot be encoded raises."""
    out, err = io.BytesIO(), io.BytesIO()
    # Nothing of these is on the disk; closing them would lose what they hold.
    stdout = io.TextIOWrapper(out, "utf-8", errors="strict", write_through=True)
    stderr = io.TextIOWrapper(err, "utf-8", errors="backslashreplace", write_through=True)
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = cli.main([str(word) for word in words], engine=engines.inline())
    return Ended(code, (out.getvalue() + err.getvalue()).decode())


def resumed(run: Run) -> Ended:
    flags = [word for name, value in CHOICES.items() for word in (f"--{name.replace('_', '-')}", value)]
    return command("--source", run.sources, "--out", run.out, "--workers", 1, *flags)


def assert_foreseen(ended: Ended) -> None:
    """Fail unless a command ended in a way that somebody thought of."""
    assert ended.code in {0, 1, 2}, ended
    assert "Traceback" not in ended.said
    assert "FWCONVERT_DEBUG" not in ended.said, f"an error that nobody foresaw\n{ended.said[:2000]}"
    assert ended.said.strip()


def assert_clean(ended: Ended) -> None:
    """Fail unless the end was foreseen, and told in words that cannot command a terminal."""
    assert_foreseen(ended)
    assert all(sign == "\n" or sign.isprintable() for sign in ended.said), ascii(ended.said)


def snapshot(folder: Path) -> dict[str, str]:
    """Return everything in a folder: of files and links what they are."""
    return {str(path.relative_to(folder)): _what(path) for path in sorted(folder.rglob("*"))}


def _what(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    return path.read_bytes().hex() if path.is_file() else "a folder"


def assert_survived(run: Run, elsewhere: Path) -> Ended:
    """Fail unless all commands on the run end well and leave what is elsewhere alone; return the last end."""
    before = snapshot(elsewhere)
    for ended in (command("status", run.out), command("verify", run.out), last := resumed(run)):
        assert_clean(ended)
    assert snapshot(elsewhere) == before
    if last.code == 0:
        assert runner.tree(run.out) == run.tree
    return last


class Reader:
    """A file as it was written, and who reads it."""

    # No dataclass: Hypothesis would print all of it.
    def __init__(self, path: Path, good: bytes, read: Callable[[], object]) -> None:
        self.path = path
        self.good = good
        self.read = read


def private_folder(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.name == PRIVATE)
