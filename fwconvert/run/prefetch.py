"""Where source shards come from, and how they get to the workers.

The seam between conversion and fetching. An origin takes the orders of a
session and gives back each one when its file is there; when the receipt is on
the disk, it takes the file back.
"""

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

from fwconvert import files
from fwconvert.errors import HubError, SourceError, Stopped
from fwconvert.hub import download
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.download import Fetching
from fwconvert.job.orders import ConvertOrder, Failure, SourceFile, Unfetched
from fwconvert.recipes import SourceManifest, SourceShard
from fwconvert.sources import catalog
from fwconvert.store import atomic, layout
from fwconvert.store.receipts import Receipt

_END = Stopped("all is fetched")

# An order whose file is there, one whose file is not to be had, or None: nothing just now, ask again.
Ready = Iterator[ConvertOrder | Unfetched | None]

# Tells whether a source should be fetched already, though all before it are not converted yet.
Wanted = Callable[[ConvertOrder], bool]


def _always(_: ConvertOrder) -> bool:
    return True


@dataclass(frozen=True)
class Traffic:
    """How fetching goes."""

    # Since the session began.
    bytes: int
    # Files that are fetched and not done with: at work, or waiting for a worker.
    here: int
    # More is on its way, or would be if there were a way.
    coming: bool


class Origin(Protocol):
    """A place that can provide the files of a source manifest."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End; nothing is fetched after this."""

    def place(self, source: SourceShard) -> Path:
        """Return where the file lies on this machine, or will."""

    def changed(self, source: SourceShard, receipt: Receipt) -> str | None:
        """Return the sha256 that a source has now if it is not the one that was converted."""

    def ready(self, orders: Sequence[ConvertOrder], is_wanted: Wanted = _always) -> Ready:
        """Yield the orders as their files come; a file that is not wanted is not fetched until it is."""

    def clear(self) -> None:
        """Remove what was fetched and is not needed any more; after the end."""

    def release(self, source: SourceShard) -> None:
        """Take back a file whose receipt is on the disk, or that was given up."""

    def traffic(self) -> Traffic | None:
        """Return how fetching goes, or None if nothing is fetched."""

    def notices(self) -> list[str]:
        """Return what a person should know since this was last asked."""


def other_sha256(path: Path, receipt: Receipt) -> str | None:
    """Return the sha256 of a file that is there and not the one of the receipt.

    Hashed only if its size or its time is another: it may be a terabyte of files.
    """
    from fwconvert.sources.parquet import prove  # noqa: PLC0415  # loads pyarrow

    if not path.exists():
        return None
    now = path.stat()
    if (now.st_size, now.st_mtime_ns) == (receipt.source_bytes, receipt.source_mtime_ns):
        return None
    found = prove(path, lambda: None).sha256
    return None if found == receipt.source_sha256 else found


class LocalOrigin:
    """Files that are on this machine already, and stay."""

    def __init__(self, manifest: SourceManifest, root: Path) -> None:
        self._root = root
        self._bare = catalog.bare(manifest, root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def place(self, source: SourceShard) -> Path:
        """Return where the file lies, or where it was expected if it is missing."""
        return self._bare.get(source.path, self._root / source.path)

    def changed(self, source: SourceShard, receipt: Receipt) -> str | None:
        """Return the sha256 of the file if it is another one by now."""
        return other_sha256(self.place(source), receipt)

    def ready(self, orders: Sequence[ConvertOrder], is_wanted: Wanted = _always) -> Ready:  # noqa: ARG002
        """Yield all orders; one whose file is not to be had as Unfetched, since no worker need try it."""
        for order in orders:
            wrong = _out_of_reach(order.file.local)
            yield Unfetched(order, Failure("unfetched", wrong)) if wrong else order

    def clear(self) -> None:
        """Leave everything alone."""

    def release(self, source: SourceShard) -> None:
        """Leave the file alone: it is the user's."""

    def traffic(self) -> None:
        """Tell that nothing is fetched."""

    def notices(self) -> list[str]:
        """Return nothing: there is nothing to tell."""
        return []


def _out_of_reach(path: Path) -> str:
    """Return why a file is not to be had, or ""; whether it is a good one is the worker's affair."""
    from fwconvert.sources.parquet import reading  # noqa: PLC0415  # loads pyarrow

    try:
        with reading(path):
            files.state_of(path)
            if not os.access(path, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except SourceError as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Terms:
    """How to fetch."""

    # Files that may be fetched, or be on their way, before a worker wants them.
    prefetch: int
    # Files that may be on their way at a time.
    connections: int
    # Orders that may be carried out at a time: as many files more are on the disk.
    workers: int
    patience: float


class HubOrigin:
    """Files of the hub, fetched ahead of the workers and removed when they are converted.

    `keep` is the folder of a user who wants them kept; what lies there already
    is used, once it is proven, and never replaced. Otherwise they lie in
    `private`, each under the name of its job, because two may have equal content
    and each goes when its own job is done. Parts are named by their content.
    """

    def __init__(self, manifest: SourceManifest, terms: Terms, private: Path, keep: Path | None) -> None:
        self._terms = terms
        self._private = private
        self._keep = keep
        self._bare = {} if keep is None or not keep.is_dir() else catalog.bare(manifest, keep)
        self._stop = threading.Event()
        self._notices: deque[str] = deque()
        self._bytes = 0
        self._fetching = Fetching(
            Dataset(manifest.dataset, manifest.revision),
            terms.patience,
            self._stop,
            self._count,
            self._tell,
            keeps=keep is not None,
        )
        # Guards all below. Threads wait on it for room, and tell of what is ready.
        self._changed = threading.Condition()
        self._wanted: deque[ConvertOrder] = deque()
        self._is_wanted: Wanted = _always
        self._ready: deque[ConvertOrder | Unfetched | BaseException] = deque()
        # Begun by a thread, and not handed to a worker yet; and not released yet.
        self._ahead = self._held = 0
        # The hub cannot be used, so nothing more will come in this session.
        self._is_lost = False
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
        deadline = time.monotonic() + 1.0
        for thread in self._threads:
            # One that waits for the network notices in time; until then it writes nothing.
            thread.join(max(0.0, deadline - time.monotonic()))
        with suppress(OSError):
            self._parts().rmdir()
        with suppress(OSError):
            self._private.rmdir()

    def place(self, source: SourceShard) -> Path:
        """Return where the file lies, or will."""
        if self._keep is None:
            return self._private / f"{layout.job_key(source.path)}{catalog.PARQUET}"
        return self._keep / source.path

    def changed(self, source: SourceShard, receipt: Receipt) -> str | None:
        """Return the sha256 of the file if it is there, and another one by now."""
        return other_sha256(self.place(source), receipt)

    def clear(self) -> None:
        """Remove what was fetched and is not needed any more, unless it is to be kept."""
        self._remove_others([])
        with suppress(OSError):
            self._private.rmdir()

    def ready(self, orders: Sequence[ConvertOrder], is_wanted: Wanted = _always) -> Ready:
        """Yield each order when its file is there and proven.

        Whether a file is wanted is asked again when another one was released.
        Raises OutputError at once, and HubError when all that was on its way has come.
        """
        self._is_wanted = is_wanted
        self._wanted = deque(orders)
        self._remove_others(orders)
        for number in range(min(self._terms.connections, self._terms.prefetch, len(orders))):
            thread = threading.Thread(target=self._work, name=f"fetch-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        trouble: HubError | None = None
        while (item := self._take()) is not _END:
            if isinstance(item, HubError):
                trouble = trouble or item
                with self._changed:
                    self._wanted.clear()
                    self._changed.notify_all()
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
        if trouble is not None:
            raise trouble

    def _take(self) -> ConvertOrder | Unfetched | BaseException | None:
        """Return what is ready, None if nothing is, or _END if nothing more will be."""
        with self._changed:
            if not self._ready:
                return None if self._wanted or self._ahead else _END
            item = self._ready.popleft()
            self._ahead -= 1
            if not isinstance(item, ConvertOrder):
                self._held -= 1
            self._changed.notify_all()
            return item

    def release(self, source: SourceShard) -> None:
        """Remove the file, unless it is to be kept."""
        if self._keep is None:
            atomic.remove(self.place(source))
        with self._changed:
            self._held -= 1
            self._changed.notify_all()

    def traffic(self) -> Traffic:
        """Return how fetching goes."""
        with self._changed:
            on_the_way = self._ahead - len(self._ready)
            # Among what is ready there may be errors that nobody has taken yet.
            ready = sum(isinstance(item, ConvertOrder) for item in self._ready)
            coming = on_the_way > 0 or self._is_lost or bool(self._wanted and self._may_begin())
            return Traffic(self._bytes, self._held - self._ahead + ready, coming)

    def notices(self) -> list[str]:
        """Return what was told since this was last asked."""
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def _remove_others(self, orders: Sequence[ConvertOrder]) -> None:
        """Remove what a session that was cut off has left of sources that are done."""
        for folder in (self._private, self._parts()):
            atomic.refuse_link(folder)
        if self._keep is not None or not self._private.is_dir():
            return
        for order in orders:
            self._adopt(order)
        needed = {name for order in orders for name in (order.file.local.name, self._part_name(order.source))}
        for entry in self._private.iterdir():
            if entry.name not in needed:
                atomic.remove(entry)

    def _adopt(self, order: ConvertOrder) -> None:
        """Give a file its name that an earlier version of fwconvert left under that of its content."""
        left = (self._private / self._part_name(order.source)).with_suffix(catalog.PARQUET)
        if left.is_file() and not order.file.local.exists():
            with atomic.writing(order.file.local):
                left.replace(order.file.local)

    def _work(self) -> None:
        """Fetch one file after another, in a thread, while there is room."""
        while (order := self._next()) is not None:
            item: ConvertOrder | Unfetched | BaseException
            try:
                proven = order.source.sha256 is not None
                item = replace(order, file=SourceFile(str(self._have(order)), proven))
            except SourceError as error:
                item = Unfetched(order, Failure("unfetched", str(error)))
            except BaseException as error:  # noqa: BLE001  # raised again where the orders are taken
                item = error
            with self._changed:
                self._ready.append(item)
                self._is_lost = self._is_lost or isinstance(item, HubError)
            if isinstance(item, BaseException):
                return

    def _have(self, order: ConvertOrder) -> Path:
        """Have the file of an order on this machine, proven; return where it lies."""
        bare = self._bare.get(order.source.path)
        if bare is not None and not order.file.local.exists() and self._fetching.is_right(order.source, bare):
            return bare
        self._fetching.fetch(order.source, order.file.local, self._parts())
        return order.file.local

    def _next(self) -> ConvertOrder | None:
        """Wait for room; return what to fetch, or None if there is no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop.is_set() or not self._wanted or self._may_begin())
            if self._stop.is_set() or not self._wanted:
                return None
            self._ahead += 1
            self._held += 1
            return self._wanted.popleft()

    def _may_begin(self) -> bool:
        return self._has_room() and self._is_wanted(self._wanted[0])

    def _has_room(self) -> bool:
        terms = self._terms
        return self._ahead < terms.prefetch and self._held < terms.prefetch + terms.workers

    def _part_name(self, source: SourceShard) -> str:
        return download.part_name(source, self._fetching.dataset.revision)

    def _parts(self) -> Path:
        return self._private if self._keep is None else self._keep / ".parts"

    def _count(self, size: int) -> None:
        with self._changed:
            self._bytes += size

    def _tell(self, text: str) -> None:
        self._notices.append(text)
