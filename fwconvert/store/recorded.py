"""The files that receipts name, and whether they are as recorded: by size and time, or by their hash."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import NamedTuple

from fwconvert import files, machine
from fwconvert.errors import ManifestError, Stopped, message
from fwconvert.recipes import Rules
from fwconvert.store import base, layout
from fwconvert.store.base import Store
from fwconvert.store.receipts import Receipt, ShardLine

_TICK_SECONDS = 0.1
# Records beyond those of files that are there: somebody else's, or of joined shards without a file.
MOST_OTHERS = 100_000


class Recorded(NamedTuple):
    """A file as its receipt has it."""

    name: str
    bytes: int
    sha256: str


def tail_files(made: Receipt) -> Iterator[Recorded]:
    """Yield the files of a job's tail: the tokens first."""
    key, tail = layout.job_key(made.path), made.tail
    yield Recorded(layout.tail(key), tail.bytes, tail.sha256)
    yield Recorded(layout.tail_index(key), tail.index_bytes, tail.index_sha256)


def shard_files(rules: Rules, line: ShardLine) -> Iterator[Recorded]:
    """Yield the files of a token shard: the tokens first."""
    yield Recorded(layout.shard(line.name), line.bytes, line.sha256)
    index_bytes = line.documents * rules.kind.index_entry_bytes
    yield Recorded(layout.index(line.name), index_bytes, line.index_sha256)
    for beside in line.sidecars:
        yield Recorded(layout.shard(beside.name), beside.bytes, beside.sha256)


def shard_problem(
    store: Store, rules: Rules, line: ShardLine, tick: Callable[[int, int], None] | None = None
) -> str:
    """Return what is wrong with the files of a token shard, or "": their sizes; with `tick` their hashes."""
    recorded = [*shard_files(rules, line)]
    wrong = next((wrong for file in recorded if (wrong := look_at(store, file)[0])), "")
    if wrong or tick is None:
        return wrong
    return next((wrong for wrong in Hashing(store, tick).hashed(recorded).values() if wrong), "")


def look_at(store: Store, file: Recorded) -> tuple[str, int]:
    """Return what is wrong with a file as far as its size tells, or "", and when it last changed."""
    name = file.name.rpartition("/")[2]
    try:
        state = store.state(file.name)
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})", 0
    if state is None:
        return f"{name} is missing", 0
    if state.bytes != file.bytes:
        return f"{name} has {state.bytes:,} bytes instead of {file.bytes:,}", 0
    return "", state.changed_at


class Hashing:
    """Hashes files side by side. `tick` is given the bytes done and all bytes; it may raise to stop."""

    def __init__(self, store: Store, tick: Callable[[int, int], None]) -> None:
        self._store = store
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
                file: threads.submit(self._wrong_hash, file) for file in files
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

    def _wrong_hash(self, file: Recorded) -> str:
        name = file.name.rpartition("/")[2]
        try:
            found = files.sha256_of(self._store.local(file.name), self._count)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        return (
            ""
            if found == file.sha256
            else f"{name} is damaged (its sha256 is {found[:12]}..., not {file.sha256[:12]}...)"
        )

    def _count(self, size: int) -> None:
        if self._stopped:
            raise Stopped("stopped by the user")
        with self._lock:
            self._done += size


def join_receipts(store: Store) -> list[str]:
    """Return the names of the receipts of joined shards; ManifestError if there are far more than files."""
    most = base.count(store, "") + MOST_OTHERS
    found = sorted(islice(base.record_names(store, layout.JOINS), most + 1))
    if len(found) > most:
        raise ManifestError(
            message(
                "a run has far more receipts of joined shards than files",
                "remove them: what is missing is joined again",
                folder=store.address(layout.JOINS),
                more_than=f"{most:,}",
            )
        )
    return [f"{layout.JOINS}/{name}" for name in found]
