"""Conversions that fetch: a miniature of FineWeb-Edu for a loopback hub, and the command that converts it.

The client of the hub reads its settings when it is imported, so every command is a process of its own. It
gets no setting of the user's own: neither a token, nor a proxy, nor a cache.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import corpus
import forked
import runner
from hub_server import REPO, HubServer, Seen

from fwconvert.recipes import SourceManifest
from fwconvert.sources import catalog
from fwconvert.store import layout

FOLDER = "sample/10BT"
SHARD_TOKENS = 100_000
FILES = 10

# Of the client of the hub. It stays empty: what is fetched is nobody's cache.
HOME = Path(tempfile.gettempdir()) / "fwconvert-tests-no-such-home"


@dataclass(frozen=True)
class Miniature:
    """A small repository, its manifest, and what becomes of its files when they are converted from disk."""

    repository: Path
    pinned: Path
    tree: dict[str, str]

    @cached_property
    def manifest(self) -> SourceManifest:
        return catalog.find(str(self.pinned))

    @property
    def names(self) -> list[str]:
        """The bare names of the files, in order."""
        return [Path(file.path).name for file in self.manifest.files]

    def sha256(self, name: str) -> str:
        """Return the sha256 of a file, by which it is known while it is fetched."""
        return next(file.sha256 or "" for file in self.manifest.files if file.path.endswith(name))


def miniature(folder: Path) -> Miniature:
    """Make a repository of ten files of 100 to 500 KB and some others; pin those, and convert them."""
    repository, pinned = folder / "repository", folder / "mini.json"
    for number in range(FILES):
        rows = corpus.documents(1000 * number, 400 + 130 * (number * 7 % FILES))
        # Not packed, or text that repeats itself would make no traffic.
        corpus.write(
            repository / FOLDER / f"{number:03d}_00000.parquet",
            [*rows[:50], *corpus.ODD, *rows[50:]],
            compression="none",
            use_dictionary=False,
        )
    corpus.write(repository / "data/CC-MAIN-2013-20/000_00000.parquet", ["of the same name, but another"])
    (repository / "README.md").write_text("a dataset")
    (repository / FOLDER / "notes.txt").write_text("no parquet")
    with HubServer(repository, page_size=4) as hub:
        runner.assert_tidy_end(run(["pin", REPO, FOLDER, "-o", str(pinned)], hub.endpoint), 0)
    out = folder / "from disk"
    recipe: dict[str, Any] = {"version": str(pinned), "tokenizer": "bytes", "shard_tokens": SHARD_TOKENS}
    assert runner.convert(repository, out, **recipe).complete
    return Miniature(repository, pinned, runner.tree(out))


def conversion(manifest: Path, out: Path, *flags: str) -> list[str]:
    """Return the words of a conversion with the miniature's recipe."""
    recipe = ["--version", str(manifest), "--tokenizer", "bytes", "--shard-tokens", str(SHARD_TOKENS)]
    return [*recipe, "--out", str(out), *(() if "--workers" in flags else ("--workers", "1")), *flags]


def environment(endpoint: str, **settings: str) -> dict[str, str]:
    """Return the variables of a command that knows one hub and nothing of the user's."""
    foreign = ("HF_", "HUGGING", "XDG_CACHE_HOME")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(foreign) and not name.lower().endswith("_proxy")
    }
    return {
        **kept,
        "PYTHONPATH": str(runner.REPOSITORY),
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(HOME),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **settings,
    }


@contextmanager
def running(
    words: list[str], endpoint: str, *, stderr: Any = subprocess.PIPE, **settings: str
) -> Iterator["subprocess.Popen[str]"]:
    """Have a command run during the block, in a session of its own; nothing of it is left after."""
    process = forked.start(
        [sys.executable, "-m", "fwconvert", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
        env=environment(endpoint, **settings),
    )
    try:
        yield process
    finally:
        runner.kill_all(process.pid)
        process.communicate(timeout=runner.PATIENCE)


def run(words: list[str], endpoint: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    with running(words, endpoint, **settings) as process:
        return runner.finish(process)


def wait_for(true: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    """Wait until `true()`; the command must not end before."""
    runner.wait_until(true, process)
    if process.poll() is not None and not true():
        ended = runner.finish(process)
        raise AssertionError(f"it ended too early, with {ended.returncode}\n{ended.stdout}\n{ended.stderr}")


def seconds_to_stop(process: "subprocess.Popen[str]") -> float:
    """Press Ctrl-C; return how long the command goes on."""
    begun = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=runner.PATIENCE)
    return time.monotonic() - begun


def sources(out: Path) -> dict[str, int]:
    """Return the fetched files of a run, and parts of them, with their sizes."""
    found = {}
    folder = out / runner.PRIVATE / "sources"
    try:
        there = os.listdir(folder)  # noqa: PTH208  # one call of the system, so it shows one instant
    except FileNotFoundError:
        return {}
    for name in there:
        try:
            found[name] = (folder / name).stat().st_size
        except FileNotFoundError:  # It was renamed or removed just now.
            found[name] = 0
    return found


def place_name(path: str) -> str:
    """Return the name of a fetched file among the sources of a run, by its path in the repository."""
    return f"{layout.job_key(path)}.parquet"


def receipts(out: Path) -> list[str]:
    """Return the bare names of the sources that are converted."""
    return _records(out, "receipts")


def quarantined(out: Path) -> list[str]:
    """Return the bare names of the sources that were given up."""
    return _records(out, "quarantine")


def _records(out: Path, kind: str) -> list[str]:
    prefix = FOLDER.replace("/", "_") + "_"
    found = sorted((out / runner.PRIVATE / kind).glob("*.json"))
    return [path.name.removeprefix(prefix).rpartition("-")[0] for path in found]


def bodies(log: list[Seen], name: str = "") -> list[Seen]:
    """Return the requests that fetch a file, or any file."""
    return [seen for seen in _contents(log, name) if not _is_look(seen)]


def looks(log: list[Seen], name: str = "") -> list[Seen]:
    """Return the requests that look at a part of a file, and fetch nothing."""
    return [seen for seen in _contents(log, name) if _is_look(seen)]


def _contents(log: list[Seen], name: str) -> list[Seen]:
    return [seen for seen in log if seen.server == "cdn" and name in unquote(seen.query)]


def _is_look(seen: Seen) -> bool:
    """Tell whether a range has an end: who fetches asks for all that there is."""
    return seen.range is not None and not seen.range.endswith("-")


def ranges(log: list[Seen], name: str) -> list[str | None]:
    """Return what was asked of a file: None is the whole."""
    return [seen.range for seen in bodies(log, name)]


def assert_whole(mini: Miniature, out: Path) -> None:
    """Fail unless the output is that of the conversion from disk, and nothing else is left."""
    assert runner.tree(out) == mini.tree
    assert runner.litter(out) == []
    assert sources(out) == {}
    assert not (out / runner.PRIVATE / "sources").exists()
    assert quarantined(out) == []
    assert not HOME.exists()
