"""Fetch sources ahead of the workers, and remove each one when it is converted.

Threads fetch while there is room; a file that has come is proven, and its order
is given to a worker. So a run needs disk for a few sources at a time, whatever
it converts.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from fwconvert import kinds
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
from fwconvert.run import events
from fwconvert.run.estimate import Needs, Sample, estimate_needs
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
from fwconvert.sources.objects import ObjectFiles
from fwconvert.store import atomic, layout, sessions
from fwconvert.store.base import Store
from fwconvert.store.scratch import Scratch

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


def open_input(recipe: Recipe, options: Options, store: Store, *, shared: bool = False) -> Input:
    """Return where the sources of a recipe come from: the user's files, or the hub.

    What ranks fetch into a folder that they share, each has in a folder of its own.
    """
    manifest, keep = recipe.source, options.keep_folder
    if recipe.root is not None:
        return LocalFiles(manifest, recipe.root)
    terms = Terms(options.prefetch_count, options.max_connections, options.worker_count, options.patience)
    remote: Remote = (
        ObjectFiles(recipe.remote) if recipe.remote else Dataset(manifest.dataset, manifest.revision)
    )
    private = store.local(layout.SOURCES)
    # What is fetched for a run in an object store has to lie somewhere else.
    shared_folder = private.parent if store.is_remote else private if shared else None
    folder = options.scratch_folder or shared_folder
    scratch = None if folder is None or keep is not None else Scratch(folder, store.uri)
    fetching = Prefetch(remote, manifest, terms, private, None if keep is None else keep.absolute(), scratch)
    fetching.root = fetching.root or recipe.remote or None
    return fetching


class Prefetch(Input):
    """Files of a remote, fetched ahead of the workers and removed when they are converted.

    `keep` is the folder of a user who wants them kept; what lies there already
    is used, once it is proven, and never replaced. Otherwise they lie in
    `private`, each under the name of its job, because two may have equal content
    and each goes when its own job is done. Parts are named by their content.
    With `scratch` each session has a private folder there instead.
    """

    def __init__(
        self,
        remote: Remote,
        manifest: SourceManifest,
        terms: Terms,
        private: Path,
        keep: Path | None,
        scratch: Scratch | None = None,
    ) -> None:
        self.root: Path | str | None = keep
        self._given = (remote, manifest, terms, private, keep, scratch)
        self._remote = remote
        self._files = manifest.files
        self._terms = terms
        self._private = private
        self._keep = keep
        self._scratch = scratch
        self._parts = private if keep is None else keep / ".parts"
        self._bare = {} if keep is None or not keep.is_dir() else catalog.bare(manifest, keep)
        self._sizes: Mapping[str, Size] | None = None
        self._notices: deque[str] = deque()
        self._bytes = 0
        self._faults: Counter[str] = Counter()
        self._connections = Connections(terms.connections, self._faults)
        # Guards all below. Threads wait on it for room, and say with it what is ready.
        self._changed = threading.Condition()
        self._begin()

    def __reduce__(self) -> "tuple[type[Prefetch], tuple[object, ...]]":
        return Prefetch, self._given  # On another machine, nothing is fetched yet.

    def _begin(self) -> None:
        """Forget what an earlier `with` block had fetched; its threads bring nothing any more."""
        self._stop = threading.Event()
        self._waiting: deque[ConvertOrder] = deque()
        self._is_wanted: IsWanted = always
        self._ready: deque[ConvertOrder | Unfetched | BaseException] = deque()
        # The bytes of the sources that wait, for whoever asks when so many did.
        self._waiting_bytes = (0, 0)
        # Of those that a thread has begun, until they are here.
        self._coming_bytes = 0
        # Begun by a thread, and not handed to a worker yet; and not released yet.
        self._ahead = self._held = 0
        # The remote cannot be used, so nothing more will come in this session.
        self._is_lost = False
        self._threads: list[threading.Thread] = []

    @contextmanager
    def held(self, session: str) -> Iterator[None]:
        """Have a folder for the session in the scratch folder, if there is one."""
        if self._scratch is None:
            yield
            return
        with self._scratch.held(session) as folder:
            self._private = self._parts = folder
            yield

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
            # The ending tells its reader; without one the content does.
            return (
                self._private / f"{layout.job_key(source.path)}{kinds.ending(source.path) or kinds.PARQUET}"
            )
        return self._keep / source.path

    def sizes(self) -> Mapping[str, Size]:
        """Return what the footers of files say that are here already."""
        if self._sizes is None:
            self._sizes = footer_sizes(self._files, self.location)
        return self._sizes

    def estimate(self, recipe: Recipe, options: Options, sample: Sample | None = None) -> Needs:
        """Return what a run will need; without a sample as if all sources were FineWeb-Edu."""
        workers = workers_at_once(recipe, options)
        every = len(recipe.source.files) or recipe.source.totals.files
        fetched = every if self._keep is not None else workers + options.prefetch_count
        return estimate_needs(recipe, {}, workers, fetched, sample=sample)

    def readable_apart(self, source: SourceShard) -> Path | Remote:
        """Return the file if it is here, or the remote that has it."""
        place = self.location(source)
        is_here = place.is_file() and place.stat().st_size == source.bytes
        return place if is_here else self._remote

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
        self.tidy(orders)
        self._is_wanted, self._waiting = is_wanted, deque(orders)
        fetching = self.downloading()
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

    def downloading(self) -> Download:
        """Return how files are fetched from now on, with connections of their own."""
        self._connections = Connections(self._terms.connections, self._faults)
        return Download(
            self._remote,
            self._terms.retry_seconds,
            self._stop,
            self._count,
            self._notices.append,
            keeps=self._keep is not None,
            connections=self._connections,
        )

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
        self.tidy([])
        atomic.remove_if_empty(self._private)

    def traffic(self) -> Traffic:
        """Return how fetching goes."""
        with self._changed:
            on_the_way = self._ahead - len(self._ready)
            # Among what is ready there may be errors that nobody has taken yet.
            ready = sum(isinstance(item, ConvertOrder) for item in self._ready)
            coming = on_the_way > 0 or self._is_lost or bool(self._waiting and self._may_begin())
            here = self._held - self._ahead + ready
            if self._waiting_bytes[0] != len(self._waiting):
                self._waiting_bytes = len(self._waiting), sum(one.source.bytes for one in self._waiting)
            fetched, waiting, coming_bytes = self._bytes, self._waiting_bytes[1], self._coming_bytes
        downloads = tuple(events.Download(*one) for one in self._connections.under_way)
        return Traffic(
            bytes=fetched,
            here=here,
            coming=coming,
            connections=self._connections.active,
            downloads=downloads,
            to_fetch=waiting + max(0, coming_bytes - sum(one.bytes for one in downloads)),
            faults=events.Faults(**self._faults),
        )

    def notices(self) -> list[str]:
        """Return what fetching had to say since this was last asked."""
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def tidy(self, orders: Sequence[ConvertOrder]) -> None:
        """Take over what sessions that were cut off have left, and remove what is not needed of it."""
        for folder in (self._private, self._parts):
            atomic.refuse_link(folder)
        if self._keep is not None:
            return
        needed = {name for order in orders for name in self._names(order)}
        if self._scratch is not None:
            # A rank leaves what other ranks may need; in the end `merge` removes it.
            rank = sessions.rank_in(self._private.name)
            for left in self._scratch.left():
                with suppress(FileNotFoundError):  # Another session is done with it just now.
                    self._take_over(left, needed)
                    if rank is None or sessions.rank_in(left.name) == rank:
                        atomic.sweep(left)
                self._scratch.is_done_with(left)
        if not self._private.is_dir():
            return
        for order in orders:
            # An earlier version of fwconvert gave a fetched file the name of its content.
            part, place = self._names(order)[-1], order.file.local
            left = (self._private / part).with_suffix(kinds.PARQUET)
            if left.is_file() and not place.exists():
                atomic.move(left, place)
        for entry in sorted(self._private.iterdir()):
            is_of_rank = sessions.rank_in(entry.name) is not None  # None is at work beside us.
            if is_of_rank and entry.is_dir() and not entry.is_symlink():
                self._take_over(entry, needed)
                atomic.sweep(entry)
                atomic.remove_if_empty(entry)
            elif entry.name not in needed:
                atomic.remove(entry)

    def started(self, orders: Sequence[ConvertOrder]) -> list[ConvertOrder]:
        """Return the orders of whose files something lies in our folder."""
        if self._keep is not None or not self._private.is_dir():
            return []
        there = {path.name for path in self._private.iterdir()}
        return [order for order in orders if there & {*self._names(order)}]

    def _take_over(self, left: Path, needed: Collection[str]) -> None:
        """Move what is needed of the folder of a dead session into our own."""
        # Counts first: without their part nobody believes them.
        for path in sorted(left.iterdir(), key=lambda path: path.suffix != PIECES):
            place = self._private / path.name
            if path.name in needed and path.is_file() and not place.exists():
                atomic.move(path, place, missing_ok=True)  # Another session may take it just now.

    def _names(self, order: ConvertOrder) -> tuple[str, str, str]:
        """Return what a source may be called in our folder: the counts of its part, the whole, the part."""
        part = part_name(order.source, self._remote.revision)
        return str(Path(part).with_suffix(PIECES)), order.file.local.name, part

    def _fetch_all(self, fetching: Download) -> None:
        """Fetch one file after another, in a thread, while there is room."""
        while (order := self._next(fetching.stop)) is not None:
            item: ConvertOrder | Unfetched | BaseException
            try:
                item = replace(order, file=self.fetched(order, fetching))
            except SourceError as error:
                item = Unfetched(order, Failure("unfetched", str(error)))
            except BaseException as error:  # noqa: BLE001  # raised again where the orders are taken
                item = error
            with self._changed:
                if fetching.stop.is_set():  # Nobody takes it any more.
                    return
                self._coming_bytes -= order.source.bytes
                self._ready.append(item)
                self._is_lost = self._is_lost or isinstance(item, RemoteError)
            if isinstance(item, BaseException):
                return

    def fetched(self, order: ConvertOrder, fetching: Download) -> SourceFile:
        """Have the file of an order in its place, proven; raises as Download.fetch does."""
        source, place = order.source, self.location(order.source)
        bare = self._bare.get(source.path)
        if bare is not None and not place.exists() and fetching.is_right(source, bare):
            place = bare
        else:
            fetching.fetch(source, place, self._parts, order.source_index)
        return SourceFile(str(place), proven=source.sha256 is not None)

    def _next(self, stop: threading.Event) -> ConvertOrder | None:
        """Wait for room; return what to fetch, or None if there is no more."""
        with self._changed:
            self._changed.wait_for(lambda: stop.is_set() or not self._waiting or self._may_begin())
            if stop.is_set() or not self._waiting:
                return None
            self._ahead += 1
            self._held += 1
            order = self._waiting.popleft()
            self._coming_bytes += order.source.bytes
            return order

    def _may_begin(self) -> bool:
        terms = self._terms
        has_room = self._ahead < terms.prefetch and self._held < terms.prefetch + terms.workers
        return has_room and self._is_wanted(self._waiting[0])

    def _count(self, size: int) -> None:
        with self._changed:
            self._bytes += size
