"""Receipts: the small records that say what is done.

A job is done when its receipt is published, and a receipt is published only
after all of its files are on the disk under their final names. Receipts hold
facts only. Each carries the digest of its own content, so that a damaged one is
noticed.
"""

from collections.abc import Callable
from typing import ClassVar, TypeVar

import msgspec

from fwconvert import records
from fwconvert.errors import ManifestError, message
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
