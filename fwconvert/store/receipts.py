"""Receipts: the small records that say what is done.

A job is done when its receipt is published, and a receipt is published only
after all of its files are on the disk under their final names. Receipts hold
facts only. Each carries the digest of its own content, so that a damaged one is
noticed. Whether the files that a receipt names are still as recorded is seen by
size and time, or by their hash.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import ClassVar, NamedTuple, TypeVar

import msgspec

from fwconvert import machine, records
from fwconvert.errors import ManifestError, Stopped, message
from fwconvert.recipes import Rules
from fwconvert.records import Part, Record
from fwconvert.store import base, layout
from fwconvert.store.base import Store


class Sidecar(Part, frozen=True):
    """A file that some formats want beside a token shard."""

    name: str
    bytes: int
    sha256: str


class ShardLine(Part, frozen=True, omit_defaults=True):
    """One token shard: a line of the run manifest."""

    name: str
    split: str
    tokens: int
    documents: int
    bytes: int
    sha256: str
    index_sha256: str
    # Where the tokens come from: (source index, first token in this shard), in order.
    segments: tuple[tuple[int, int], ...]
    sidecars: tuple[Sidecar, ...] = ()


class Tail(Part, frozen=True):
    """The tokens left at a job's end, in the run's private folder until they are joined."""

    tokens: int
    documents: int
    bytes: int
    sha256: str
    index_bytes: int
    index_sha256: str


class Counts(Part, frozen=True, omit_defaults=True):
    """What a job saw: each row is a document, null, empty, or one that the filter rejects."""

    rows: int
    documents: int
    null_rows: int
    empty_rows: int
    text_bytes: int
    tokens: int
    filtered_rows: int = 0
    # The limit of the run ended it: the source has more documents. Its last document may be cut.
    limited: bool = False
    cut: bool = False


# What adds up over the sources of a run; receipts and lines of the run manifest have all of them.
_SUMMED = ("documents", "tokens", "null_rows", "empty_rows", "filtered_rows")


def totals(sources: Sequence[Part]) -> dict[str, int]:
    """Return the sums over all sources, by name."""
    return {name: sum(getattr(source, name) for source in sources) for name in _SUMMED}


class Receipt(Record, frozen=True, tag="fwconvert receipt 1"):
    """One finished job."""

    recipe_id: str
    path: str
    source_bytes: int
    source_sha256: str
    # Only a hint of when to hash a source again; no decision rests on it alone.
    source_mtime_ns: int
    counts: Counts
    shards: tuple[ShardLine, ...]
    tail: Tail
    session: str
    # How many documents were encoded by the reference too, and found equal. Not in the run manifest.
    audited: int = 0
    digest: str = ""


class Segment(Part, frozen=True):
    """A run of tokens of one tail in a joined shard."""

    source: int
    # The first of the tokens: in the joined shard, and in the tail.
    first: int
    start: int
    tokens: int


class Absorbed(Part, frozen=True):
    """A full training shard of a job that a joined shard takes in, as its beginning."""

    name: str
    source: int
    tokens: int


class JoinReceipt(Record, frozen=True, tag="fwconvert join receipt 1"):
    """One finished joined shard."""

    recipe_id: str
    segments: tuple[Segment, ...]
    shard: ShardLine
    session: str
    digest: str = ""
    # Not written where there is none, so that the digests of before hold.
    absorbed: Absorbed | msgspec.UnsetType = msgspec.UNSET

    @property
    def taken(self) -> Absorbed | None:
        """The job's shard that it has taken in, if any."""
        return self.absorbed if isinstance(self.absorbed, Absorbed) else None


class Quarantined(Record, frozen=True, tag="fwconvert quarantine 1"):
    """A job that was given up; `attempts` are messages and tracebacks."""

    # Of 7 attempts at the most, each with some KB.
    most_bytes: ClassVar[int] = 4 * 2**20
    path: str
    reason: str
    attempts: tuple[tuple[str, str], ...]


AnyReceipt = TypeVar("AnyReceipt", Receipt, JoinReceipt)


def publish(store: Store, receipt: Receipt | JoinReceipt) -> None:
    """Write the receipt, durably: this is the commit. All its files must be settled before."""
    store.write(name_of(receipt), encode(receipt))


def encode(receipt: Receipt | JoinReceipt) -> bytes:
    """Return the content of a receipt's file, with its digest."""
    return records.encode(msgspec.structs.replace(receipt, digest=_digest(receipt))) + b"\n"


def name_of(receipt: Receipt | JoinReceipt) -> str:
    """Return the name of a receipt's file."""
    if isinstance(receipt, Receipt):
        return layout.receipt(layout.job_key(receipt.path))
    return layout.join_receipt(receipt.shard.name)


def read(
    store: Store, name: str, kind: type[AnyReceipt], recipe_id: str, described: Callable[[], int] = lambda: 0
) -> AnyReceipt:
    """Return a receipt that can be trusted, or raise ManifestError that says why not.

    `described` counts the files that it may describe (see records.decode).
    """
    receipt = base.read_record(store, name, kind, described)
    if _digest(receipt) != receipt.digest:
        raise ManifestError(
            message("a receipt is damaged: its digest does not match its content", file=store.address(name))
        )
    if receipt.recipe_id != recipe_id:
        raise ManifestError(message("a receipt belongs to another recipe", file=store.address(name)))
    return receipt


def _digest(receipt: Receipt | JoinReceipt) -> str:
    return records.digest(msgspec.structs.replace(receipt, digest=""))


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
    index_bytes = line.documents * rules.shard_format.index_entry_bytes
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
            found = self._store.sha256(file.name, self._count)
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
