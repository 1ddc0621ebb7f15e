"""Whether a folder holds what the oracle says, and nothing else."""

import hashlib
import json
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from worlds.history import PRIVATE
from worlds.oracle import Run
from worlds.program import Wrong

SESSIONS = b'"sessions": '
# Of these a finished run has nothing left.
SPENT = ("temporary", "tails", "sources", "quarantine")

State = dict[str, tuple[int, str]]


def state(out: Path, *, private: bool = True) -> State:
    """Return the time of change and the sha256 of everything in a folder, with or without what is private."""
    if not out.exists():
        return {}
    found = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_file() and (private or not name.startswith(PRIVATE)):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found[name] = (path.stat().st_mtime_ns, content)
    return found


def unchanged(before: State, after: State) -> None:
    """Fail unless the two are equal."""
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        raise Wrong(f"files were changed, made or removed: {some(changed)}")


def spoilt(out: Path, run: Run) -> list[str]:
    """Return the output files that are missing or have other bytes."""
    return [
        name
        for name, content in run.files.items()
        if not (out / name).is_file() or (out / name).read_bytes() != content
    ]


def complete(out: Path, run: Run) -> None:
    """Fail unless a folder is the finished run."""
    _files(out, run.files)
    _manifest(out, run.manifest())
    private = out / PRIVATE
    left = [path.relative_to(out) for name in SPENT for path in private.glob(f"{name}/*")]
    left += [path.relative_to(out) for path in out.rglob(".*") if path.is_file()]
    if left:
        raise Wrong(f"a finished run has left behind: {some(left)}")


def unfinished(out: Path, run: Run, missing: Iterable[str]) -> None:
    """Fail unless a folder is the run as far as it goes without these sources."""
    _manifest(out, run.unfinished(missing))
    lines = json.loads((out / "manifest.json").read_bytes())["shards"]
    names = {line["name"] for line in lines}
    names |= {beside["name"] for line in lines for beside in line.get("sidecars", ())}
    there = {path.name for path in out.iterdir() if path.is_file()} - {"manifest.json"}
    limited = run.rules.limit_documents is not None or run.rules.limit_tokens is not None
    # What is converted ahead of a limit is on trial, and listed when it is certain.
    if there != names and not (limited and there > names):
        raise Wrong(f"listed, or there, but not both: {some(there ^ names)}")
    for line in lines:
        if hashlib.sha256((out / line["name"]).read_bytes()).hexdigest() != line["sha256"]:
            raise Wrong(f"{line['name']} is not what its line says")


def _files(out: Path, wanted: dict[str, bytes]) -> None:
    found = {
        name: (out / name).read_bytes()
        for path in out.rglob("*")
        if path.is_file() and not (name := path.relative_to(out).as_posix()).startswith(PRIVATE)
    }
    found.pop("manifest.json", None)
    if missing := wanted.keys() - found.keys():
        raise Wrong(f"these are missing: {some(missing)}")
    if more := found.keys() - wanted.keys():
        raise Wrong(f"nobody asked for these: {some(more)}")
    for name, content in wanted.items():
        if content != found[name]:
            at = next((at for at, (a, b) in enumerate(zip(content, found[name], strict=False)) if a != b), -1)
            sizes = f"{len(found[name])} instead of {len(content)} in all"
            raise Wrong(f"{name} has other bytes, the first at {at}; {sizes}")


def _manifest(out: Path, wanted: bytes) -> None:
    if not (out / "manifest.json").is_file():
        raise Wrong("there is no manifest.json")
    content = (out / "manifest.json").read_bytes()
    found, there, _ = content.partition(SESSIONS)
    if not there:
        raise Wrong("manifest.json tells of no sessions")
    json.loads(content)
    for have, want in zip_longest(found.splitlines(), wanted.splitlines(), fillvalue=b"nothing"):
        if have != want:
            raise Wrong(
                f"manifest.json has a line\n    {have.decode()}\n  and it should be\n    {want.decode()}"
            )


def status(found: dict[str, Any], run: Run) -> None:
    """Fail unless `status --json` of a finished run tells what is so."""
    lines = [job.line(0) for job in run.jobs]
    wanted = {
        "complete": True,
        "at_work": "",
        "jobs": len(run.jobs) if run.reached else len(run.sources),
        "jobs_done": len(run.jobs),
        "documents": sum(line["documents"] for line in lines),
        "tokens": sum(line["tokens"] for line in lines),
        "shards": len(run.shards),
        "null_rows": sum(line["null_rows"] for line in lines),
        "empty_rows": sum(line["empty_rows"] for line in lines),
        "filtered_rows": sum(line.get("filtered_rows", 0) for line in lines),
        "failed": [],
        "format": run.rules.format,
    }
    wrong = {name: (found.get(name), value) for name, value in wanted.items() if found.get(name) != value}
    if wrong:
        raise Wrong(f"status tells something else (told, true): {wrong}")


def some(names: Iterable[object]) -> str:
    """Return a few of them."""
    known = sorted(map(str, names))
    return ", ".join(known[:6]) + (f" and {len(known) - 6} more" if len(known) > 6 else "")
