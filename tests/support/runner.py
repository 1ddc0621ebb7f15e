"""Run conversions the way a user does, as a command that can be killed, and look at what they leave.

What decides the output is given by the names of fwconvert.Request:
`run(source, out, tokenizer="bytes", shard_tokens=1000)`.
"""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import forked
import psutil

import fwconvert
from fwconvert.run.engines import Engine

REPOSITORY = Path(fwconvert.__file__).parent.parent
PRIVATE = ".fwconvert"
HOST = socket.gethostname()

# A conversion in these tests takes seconds, and on a busy machine more; one that hangs must not take the
# suite with it.
PATIENCE = 300


class Notices:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)

    def update(self, snapshot: object) -> None:
        """Ignore it."""

    def mention(self, word: str) -> bool:
        return any(word in text for text in self.texts)


def convert(
    source: Path,
    out: Path,
    *,
    workers: int = 1,
    engine: Engine | None = None,
    notices: Notices | None = None,
    **choices: Any,
) -> fwconvert.Result:
    """Convert by the Python API."""
    recipe = fwconvert.recipe(source=str(source), **choices)
    options = fwconvert.Options(workers=workers)
    with forked.workers():
        return fwconvert.convert(recipe, out, options, engine=engine, observer=notices)


def command(source: Path, out: Path, *flags: str, **choices: Any) -> list[str]:
    """Return the command line of a conversion."""
    line = [sys.executable, "-m", "fwconvert", "--source", str(source), "--out", str(out), *flags]
    for name, value in choices.items():
        line += [f"--{name.replace('_', '-')}", str(value)]
    return line


def command_line(*words: object, **how: Any) -> "subprocess.CompletedProcess[str]":
    """Run the program with these words to its end."""
    line = [sys.executable, "-m", "fwconvert", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **how.pop("env", {})}
    how = {"text": True, "stdin": subprocess.DEVNULL, "timeout": PATIENCE, **how}
    return forked.run(line, env=environment, **how)


def start(source: Path, out: Path, *flags: str, **choices: Any) -> "subprocess.Popen[str]":
    """Start a conversion in a session of its own, in which its workers can be found."""
    return forked.start(
        command(source, out, *flags, **choices),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


@contextmanager
def running(source: Path, out: Path, *flags: str, **choices: Any) -> Iterator["subprocess.Popen[str]"]:
    """Have a conversion run during the block; nothing of it is left after."""
    process = start(source, out, *flags, **choices)
    try:
        yield process
    finally:
        kill_all(process.pid)
        process.communicate(timeout=PATIENCE)


def run(source: Path, out: Path, *flags: str, **choices: Any) -> "subprocess.CompletedProcess[str]":
    """Run a conversion to its end."""
    with running(source, out, *flags, **choices) as process:
        return finish(process)


def finish(process: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    """Wait for a conversion to end; return its exit code and what it said."""
    said, complained = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, said, complained)


def wait_until(true: Callable[[], object], process: "subprocess.Popen[str]", pause: float = 0.002) -> None:
    """Wait until `true()`, or until the conversion has ended; `pause` is longer where looking costs much."""
    deadline = time.monotonic() + PATIENCE
    while not true() and process.poll() is None:
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)


def members(session: int) -> list[psutil.Process]:
    """Return the living processes of a session: a conversion and all that it started."""
    return [member for pid in psutil.pids() if (member := _member(pid, session)) is not None]


def _member(pid: int, session: int) -> psutil.Process | None:
    try:
        if os.getsid(pid) != session:
            return None
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except (OSError, psutil.Error):
        return None


def kill_all(session: int) -> None:
    """Kill a conversion and all that it started. Some of it may end by itself meanwhile."""
    for member in members(session):
        with suppress(psutil.NoSuchProcess):
            member.kill()


def workers(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return the worker processes of a conversion."""
    found = []
    for member in members(process.pid):
        try:
            if any("spawn_main" in word for word in member.cmdline()):
                found.append(member)
        except psutil.Error:
            continue
    return found


def outliving(process: "subprocess.Popen[str]") -> list[str]:
    """Return the processes that outlive a conversion by two seconds."""
    deadline = time.monotonic() + 2
    while (alive := members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [str(member) for member in alive]


def steps(out: Path) -> int:
    """Return how many jobs and joined shards are done: how far a run is."""
    folders = [out / PRIVATE / name for name in ("receipts", "joins")]
    entries = [entry for folder in folders if folder.is_dir() for entry in os.scandir(folder)]
    return sum(not entry.name.startswith(".") for entry in entries)


def tree(out: Path) -> dict[str, str]:
    """Return the sha256 of every file of the output; of manifest.json without `sessions`."""
    files = [path for path in out.rglob("*") if path.is_file()]
    output = {path.relative_to(out).as_posix(): path for path in files}
    return {name: _sha256(path) for name, path in output.items() if not name.startswith(f"{PRIVATE}/")}


def _sha256(path: Path) -> str:
    content = path.read_bytes()
    if path.name == "manifest.json":
        content, found, _ = content.partition(b'\n"sessions": ')
        assert found, "manifest.json has no line for its sessions"
    return hashlib.sha256(content).hexdigest()


def digest_json(value: object) -> str:
    """Return the sha256 of a value as compact JSON."""
    return sha256_text(_compact(value))


def sha256_text(text: str) -> str:
    """Return the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256(path: Path) -> str:
    """Return the sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def shards(out: Path) -> dict[str, str]:
    """Return the sha256 of every token shard and every document index."""
    return {name: digest for name, digest in tree(out).items() if name != "manifest.json"}


def state(out: Path) -> dict[str, tuple[int, str]]:
    """Return the mtime of everything in a folder and the sha256 of each file."""
    entries = [out, *out.rglob("*")]
    return {str(path): (path.stat().st_mtime_ns, _content(path)) for path in entries}


def _content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def name_plainly(out: Path) -> None:
    """Give a run the names of the first version: numbers that do not fit just have more digits."""
    long = re.compile(r"_x0*([0-9]+)(?=\.)")
    for path in [*out.iterdir(), *(out / "index").iterdir()]:
        if long.search(path.name):
            path.rename(path.with_name(long.sub(r"_\1", path.name)))
    manifest = json.loads((out / "manifest.json").read_bytes())
    for line in manifest["shards"]:
        line["name"] = long.sub(r"_\1", line["name"])
    manifest["shards"].sort(key=lambda line: line["name"])
    rows = [f'"{key}": {_rows(value)}' for key, value in manifest.items()]
    (out / "manifest.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    for path in [*out.glob(f"{PRIVATE}/receipts/*.json"), *out.glob(f"{PRIVATE}/joins/*.json")]:
        record = json.loads(long.sub(r"_\1", path.read_text()))
        sealed = {**record, "digest": digest_json({**record, "digest": ""})}
        path.unlink()
        path.with_name(long.sub(r"_\1", path.name)).write_text(_compact(sealed) + "\n")


def _rows(value: object) -> str:
    if not isinstance(value, list) or not value:
        return _compact(value)
    return "[\n" + ",\n".join(map(_compact, value)) + "\n]"


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def litter(out: Path) -> list[str]:
    """Return the files that a finished run has no use for: half-written ones, and tails already joined."""
    private = out / PRIVATE
    hidden = [path for path in out.rglob(".*") if path.is_file()]
    return [str(path) for path in (*hidden, *private.glob("temporary/*"), *private.glob("tails/*"))]


def cut_off(out: Path) -> None:
    """Make the last session one that was killed: the record of such a session has no end."""
    for path in out.glob(f"{PRIVATE}/sessions/*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "ended": "", "outcome": ""}))


def assert_tidy_end(ended: "subprocess.CompletedProcess[str]", code: int) -> None:
    """Fail unless a command ended with that exit code and without a traceback."""
    assert ended.returncode == code, f"exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    assert "Traceback" not in ended.stdout + ended.stderr
