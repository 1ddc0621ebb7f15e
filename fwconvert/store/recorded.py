"""The files that receipts name, and whether they are as recorded: by size and time, or by their hash."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fwconvert import files, machine, records
from fwconvert.errors import ManifestError, Stopped, message
from fwconvert.recipes import Rules
from fwconvert.store import layout
from fwconvert.store.folder import RunFolder
from fwconvert.store.receipts import Receipt, ShardLine

_TICK_SECONDS = 0.1
# Records that nobody asked for, beside those of files that are there; joined shards that no file bears out.
MOST_OTHERS = 100_000


class Recorded(NamedTuple):
    """A file as its receipt has it."""

    path: Path
    bytes: int
    sha256: str


def tail_files(folder: RunFolder, made: Receipt) -> Iterator[Recorded]:
    """Yield the files of a job's tail: the tokens first."""
    key, tail = layout.job_key(made.path), made.tail
    yield Recorded(folder.tail(key), tail.bytes, tail.sha256)
    yield Recorded(folder.tail_index(key), tail.index_bytes, tail.index_sha256)


def shard_files(folder: RunFolder, rules: Rules, line: ShardLine) -> Iterator[Recorded]:
    """Yield the files of a token shard: the tokens first."""
    yield Recorded(folder.shard(line.name), line.bytes, line.sha256)
    index = folder.shard_index(line.name)
    yield Recorded(index, line.documents * rules.kind.index_entry_bytes, line.index_sha256)
    for beside in line.sidecars:
        yield Recorded(folder.shard(beside.name), beside.bytes, beside.sha256)


def shard_problem(
    folder: RunFolder, rules: Rules, line: ShardLine, tick: Callable[[int, int], None] | None = None
) -> str:
    """Return what is wrong with the files of a token shard, or "": their sizes; with `tick` their hashes."""
    files = [*shard_files(folder, rules, line)]
    wrong = next((wrong for file in files if (wrong := looked_at(file)[0])), "")
    if wrong or tick is None:
        return wrong
    return next((wrong for wrong in Hashing(tick).hashed(files).values() if wrong), "")


def looked_at(file: Recorded) -> tuple[str, int]:
    """Return what is wrong with a file as far as its size tells, or "", and when it was written to."""
    try:
        state = files.state_of(file.path)
    except OSError as error:
        return f"{file.path.name} cannot be read ({error.strerror})", 0
    if state.st_size != file.bytes:
        return f"{file.path.name} has {state.st_size:,} bytes instead of {file.bytes:,}", 0
    return "", state.st_mtime_ns


def _wrong_hash(file: Recorded, count: Callable[[int], None]) -> str:
    try:
        if files.sha256_of(file.path, count) == file.sha256:
            return ""
    except OSError as error:
        return f"{file.path.name} cannot be read ({error.strerror})"
    return f"{file.path.name} is damaged (its sha256 is another)"


class Hashing:
    """Hashes files side by side, and tells how far it is. `tick` may raise to stop."""

    def __init__(self, tick: Callable[[int, int], None]) -> None:
        self._tick = tick
        self._lock = threading.Lock()
        self._done = self._all = 0
        self._stopped = False

    def hashed(self, files: Sequence[Recorded]) -> Mapping[Recorded, str]:
        """Return what is wrong with each of the files, or ""."""
        if not files:
            return {}
        self._all += sum(file.bytes for file in files)
        with ThreadPoolExecutor(machine.cores(), "hash") as threads:
            found: dict[Recorded, Future[str]] = {
                file: threads.submit(_wrong_hash, file, self._count) for file in files
            }
            try:
                waiting = set(found.values())
                while waiting:
                    self._tick(self._done, self._all)
                    waiting = wait(waiting, _TICK_SECONDS).not_done
                self._tick(self._done, self._all)
            except BaseException:
                self._stopped = True
                threads.shutdown(cancel_futures=True)
                raise
        return {file: future.result() for file, future in found.items()}

    def _count(self, size: int) -> None:
        if self._stopped:
            raise Stopped("stopped by the user")
        with self._lock:
            self._done += size


def join_paths(folder: RunFolder) -> list[Path]:
    """Return the receipts of joined shards, by name; ManifestError if there are far more than files."""
    most = records.files_in(folder.path) + MOST_OTHERS
    found = sorted(islice(records.names_in(folder.joins), most + 1))
    if len(found) > most:
        raise ManifestError(
            message(
                "a run has far more receipts of joined shards than files",
                "remove them: what is missing is joined again",
                folder=folder.joins,
                more_than=f"{most:,}",
            )
        )
    return [folder.joins / name for name in found]
