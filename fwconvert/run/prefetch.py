"""Fetch sources ahead of the workers, and remove each one when it is converted.

Threads fetch while there is room; a file that has come is proven, and its order
is given to a worker. So a run needs disk for a few sources at a time, whatever
it converts.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from fwconvert.errors import RemoteError, SourceError, Stopped
from fwconvert.hub.connections import Connections
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.download import Download
from fwconvert.hub.part import PIECES, part_name
from fwconvert.hub.ranged import RangedFile
from fwconvert.hub.remote import Remote
from fwconvert.hub.retry import Retry
from fwconvert.job.orders import ConvertOrder, Failure, Ready, SourceFile, Unfetched
from fwconvert.options import Options
from fwconvert.recipes import Recipe, SourceManifest, SourceShard
from fwconvert.run.estimate import Needs, estimate_needs
from fwconvert.run.inputs import (
    Input,
    IsWanted,
    LocalFiles,
    Readable,
    Traffic,
    always,
    footer_sizes,
    workers_at_once,
)
from fwconvert.sources import catalog
from fwconvert.sources.catalog import Size
from fwconvert.store import atomic, layout
from fwconvert.store.base import Store

_END = Stopped("all is fetched")


@dataclass(frozen=True)
class Terms:
    """How much is fetched at a time, and for how long a fetch is retried."""

    # Files that may be fetched, or be on their way, before a worker wants them.
    prefetch: int
    # Connections that may fetch them.
    connections: int
    # Orders that may be carried out at a time: as many files more are on the disk.
    workers: int
    retry_seconds: float


def open_input(recipe: Recipe, options: Options, store: Store) -> Input:
    """Return where the sources of a recipe come from: the user's files, or the hub."""
    manifest, keep = recipe.source, options.keep_folder
    if recipe.root is not None:
        return LocalFiles(manifest, recipe.root)
    terms = Terms(options.prefetch_count, options.max_connections, options.worker_count, options.patience)
    private = store.local(layout.SOURCES)
    remote = Dataset(manifest.dataset, manifest.revision)
    return Prefetch(remote, manifest, terms, private, None if keep is None else keep.absolute())


class Prefetch(Input):
    """Files of a remote, fetched ahead of the workers and removed when they are converted.

    `keep` is the folder of a user who wants them kept; what lies there already
    is used, once it is proven, and never replaced. Otherwise they lie in
    `private`, each under the name of its job, because two may have equal content
    and each goes when its own job is done. Parts are named by their content.
    """

    def __init__(
        self, remote: Remote, manifest: SourceManifest, terms: Terms, private: Path, keep: Path | None
    ) -> None:
        self.root = keep
        self._remote = remote
        self._files = manifest.files
        self._terms = terms
        self._private = private
        self._keep = keep
        self._parts = private if keep is None else keep / ".parts"
        self._bare = {} if keep is None or not keep.is_dir() else catalog.bare(manifest, keep)
        self._sizes: Mapping[str, Size] | None = None
        self._notices: deque[str] = deque()
        self._bytes = 0
        self._connections = Connections(terms.connections)
        # Guards all below. Threads wait on it for room, and say with it what is ready.
        self._changed = threading.Condition()
        self._begin()

    def _begin(self) -> None:
        """Forget what an earlier `with` block had fetched; its threads bring nothing any more."""
        self._stop = threading.Event()
        self._waiting: deque[ConvertOrder] = deque()
        self._is_wanted: IsWanted = always
        self._ready: deque[ConvertOrder | Unfetched | BaseException] = deque()
        # Begun by a thread, and not handed to a worker yet; and not released yet.
        self._ahead = self._held = 0
        # The remote cannot be used, so nothing more will come in this session.
        self._is_lost = False
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        if self._stop.is_set():
            with self._changed:
                self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
        deadline = time.monotonic() + 1.0
        for thread in self._threads:
            # One that waits for the network notices in time; until then it writes nothing.
            thread.join(max(0.0, deadline - time.monotonic()))
        for folder in (self._parts, self._private):
            atomic.remove_if_empty(folder)

    def location(self, source: SourceShard) -> Path:
        """Return where the file is, or will be."""
        if self._keep is None:
            return self._private / f"{layout.job_key(source.path)}{catalog.PARQUET}"
        return self._keep / source.path

    def sizes(self) -> Mapping[str, Size]:
        """Return what the footers of files say that are here already."""
        if self._sizes is None:
            self._sizes = footer_sizes(self._files, self.location)
        return self._sizes

    def estimate(self, recipe: Recipe, options: Options) -> Needs:
        """Return what a run will need, as if all sources were FineWeb-Edu."""
        workers = workers_at_once(recipe, options)
        every = len(recipe.source.files) or recipe.source.totals.files
        fetched = every if self._keep is not None else workers + options.prefetch_count
        return estimate_needs(recipe, {}, workers, fetched)

    def open_footer(self, source: SourceShard, retry: Retry) -> Readable:
        """Return the file if it is here, or a view of the remote one by ranges."""
        place = self.location(source)
        # In a folder of the user's something else may lie there.
        if place.is_file() and place.stat().st_size == source.bytes:
            return place, str(place)
        return RangedFile(self._remote, source, retry), f"{self._remote.name}/{source.path}"

    def ready(self, orders: Sequence[ConvertOrder], is_wanted: IsWanted = always) -> Ready:
        """Yield each order when its file is there and proven.

        Whether a file is wanted is asked again when another one was released.
        Raises OutputError at once, and RemoteError when all that was on its way has come.
        """
        self._remove_others(orders)
        self._is_wanted, self._waiting = is_wanted, deque(orders)
        self._connections = Connections(self._terms.connections)
        fetching = Download(
            self._remote,
            self._terms.retry_seconds,
            self._stop,
            self._count,
            self._notices.append,
            keeps=self._keep is not None,
            connections=self._connections,
        )
        for number in range(min(self._terms.connections, self._terms.prefetch, len(orders))):
            thread = threading.Thread(
                target=self._fetch_all, args=[fetching], name=f"fetch-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        trouble: RemoteError | None = None
        while (item := self._take()) is not _END:
            if isinstance(item, RemoteError):
                trouble = trouble or item
                with self._changed:
                    self._waiting.clear()
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
                return None if self._waiting or self._ahead else _END
            item = self._ready.popleft()
            self._ahead -= 1
            if not isinstance(item, ConvertOrder):
                self._held -= 1
            self._changed.notify_all()
            return item

    def release(self, source: SourceShard) -> None:
        """Remove the file, unless it is to be kept, and let another one be fetched."""
        if self._keep is None:
            atomic.remove(self.location(source))
        with self._changed:
            self._held -= 1
            self._changed.notify_all()

    def clear(self) -> None:
        """Remove what was fetched and is not needed any more, unless it is to be kept."""
        self._remove_others([])
        atomic.remove_if_empty(self._private)

    def traffic(self) -> Traffic:
        """Return how fetching goes."""
        with self._changed:
            on_the_way = self._ahead - len(self._ready)
            # Among what is ready there may be errors that nobody has taken yet.
            ready = sum(isinstance(item, ConvertOrder) for item in self._ready)
            coming = on_the_way > 0 or self._is_lost or bool(self._waiting and self._may_begin())
            here = self._held - self._ahead + ready
            return Traffic(self._bytes, here, coming, self._connections.active)

    def notices(self) -> list[str]:
        """Return what fetching had to say since this was last asked."""
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def _remove_others(self, orders: Sequence[ConvertOrder]) -> None:
        """Remove what a session that was cut off has left of sources that are done."""
        for folder in (self._private, self._parts):
            atomic.refuse_link(folder)
        if self._keep is not None or not self._private.is_dir():
            return
        needed = set()
        for order in orders:
            part = part_name(order.source, self._remote.revision)
            place = order.file.local
            needed |= {place.name, part, str(Path(part).with_suffix(PIECES))}
            # An earlier version of fwconvert gave a fetched file the name of its content.
            left = (self._private / part).with_suffix(catalog.PARQUET)
            if left.is_file() and not place.exists():
                atomic.move(left, place)
        for entry in self._private.iterdir():
            if entry.name not in needed:
                atomic.remove(entry)

    def _fetch_all(self, fetching: Download) -> None:
        """Fetch one file after another, in a thread, while there is room."""
        while (order := self._next(fetching.stop)) is not None:
            item: ConvertOrder | Unfetched | BaseException
            source, place = order.source, order.file.local
            try:
                bare = self._bare.get(source.path)
                if bare is not None and not place.exists() and fetching.is_right(source, bare):
                    place = bare
                else:
                    fetching.fetch(source, place, self._parts, order.source_index)
                item = replace(order, file=SourceFile(str(place), proven=source.sha256 is not None))
            except SourceError as error:
                item = Unfetched(order, Failure("unfetched", str(error)))
            except BaseException as error:  # noqa: BLE001  # raised again where the orders are taken
                item = error
            with self._changed:
                if fetching.stop.is_set():  # Nobody takes it any more.
                    return
                self._ready.append(item)
                self._is_lost = self._is_lost or isinstance(item, RemoteError)
            if isinstance(item, BaseException):
                return

    def _next(self, stop: threading.Event) -> ConvertOrder | None:
        """Wait for room; return what to fetch, or None if there is no more."""
        with self._changed:
            self._changed.wait_for(lambda: stop.is_set() or not self._waiting or self._may_begin())
            if stop.is_set() or not self._waiting:
                return None
            self._ahead += 1
            self._held += 1
            return self._waiting.popleft()

    def _may_begin(self) -> bool:
        terms = self._terms
        has_room = self._ahead < terms.prefetch and self._held < terms.prefetch + terms.workers
        return has_room and self._is_wanted(self._waiting[0])

    def _count(self, size: int) -> None:
        with self._changed:
            self._bytes += size
