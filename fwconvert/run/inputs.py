"""Where the tokens of a run come from: the seam between a run and its input.

An input takes the orders of a session and gives each one back when it can be
carried out. Source files on this machine are one (`LocalFiles`), a remote with
a prefetcher another (`prefetch`), a finished run a third (`export`).
"""

import errno
import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from fwconvert import files
from fwconvert.errors import SourceError
from fwconvert.hub.remote import Remote
from fwconvert.hub.retry import Retry
from fwconvert.job.orders import ConvertOrder, Failure, Ready, Unfetched
from fwconvert.options import Options
from fwconvert.processes import CallApart
from fwconvert.recipes import Recipe, SourceManifest, SourceShard
from fwconvert.run.estimate import Needs, Sample, estimate_needs
from fwconvert.run.events import NO_FAULTS, Download, Faults, Observer
from fwconvert.sources import catalog
from fwconvert.sources.catalog import Size
from fwconvert.store import layout, sessions
from fwconvert.store.base import Store
from fwconvert.store.receipts import Receipt
from fwconvert.tokens import registry

# Tells whether a source should be fetched already, though not all before it are converted.
IsWanted = Callable[[ConvertOrder], bool]

# Something that pyarrow can read a footer from, and what messages call it.
Readable = tuple[Path | io.RawIOBase, str]

_FOOTERS_READ = 100
# No honest text is packed tighter than this; a damaged footer may say anything.
_MOST_UNPACKED = 100


@dataclass(frozen=True)
class Traffic:
    """How fetching goes."""

    # Since the session began.
    bytes: int
    # Files that are fetched and not done with: at work, or waiting for a worker.
    here: int
    # More is on its way, or would be if the remote could be reached.
    coming: bool
    # At work now.
    connections: int
    # What is on its way, and the bytes that are not here yet of all that is to come.
    downloads: tuple[Download, ...] = ()
    to_fetch: int = 0
    faults: Faults = NO_FAULTS


def always(_: ConvertOrder) -> bool:
    """Want every source."""
    return True


class Input(Protocol):
    """Where the tokens of a run come from.

    Orders are handed out within a `with` block, which may be entered again.
    What has a body here is right for files that are on this machine and stay.
    """

    # Where the sources lie on this machine: a hint for whoever looks for a document in them later.
    root: Path | str | None

    def location(self, source: SourceShard) -> Path:
        """Return where the file of a source is on this machine, or will be."""

    def changed(self, source: SourceShard, receipt: Receipt) -> str | None:
        """Return the sha256 that a source has now if it is not the one that was converted."""
        return changed_file(self.location(source), receipt)

    def sizes(self) -> Mapping[str, Size]:
        """Return how large sources are that can be looked at before they are read, by path."""

    def estimate(self, recipe: Recipe, options: Options, sample: Sample | None = None) -> Needs:
        """Return what a run of the recipe will need; better known if some of its text was looked at."""
        return estimate_needs(recipe, self.sizes(), workers_at_once(recipe, options), sample=sample)

    def readable_apart(self, source: SourceShard) -> Path | Remote:
        """Return where another process can read a source now: a file, or the remote that has it."""
        return self.location(source)

    def open_footer(self, source: SourceShard, retry: Retry) -> Readable | None:  # noqa: ARG002
        """Return the file of a source, to read its footer; None if no column is needed from it."""
        place = self.location(source)
        return place, str(place)

    def choose_encoder(
        self, store: Store, recipe: Recipe, options: Options, apart: CallApart
    ) -> tuple[str, str]:
        """Return the encoder to use, and a notice ("" if none). What may end its process is tried `apart`."""
        spec = registry.of_rules(recipe.rules)

        def folder() -> Path:
            return store.pull(layout.VOCABULARIES)

        return registry.kind_of(spec).choose_encoder(spec, options.encoder, apart, folder)

    def new_session(
        self,
        store: Store,
        recipe: Recipe,
        options: Options,
        observer: Observer,  # noqa: ARG002
        encoder: str,
    ) -> sessions.Session:
        """Return a session that can begin: its encoder was chosen, and its vocabulary is there.

        Whatever fails here fails before the folder belongs to the recipe.
        """
        spec = registry.of_rules(recipe.rules)
        registry.kind_of(spec).provide(spec, store.pull(layout.VOCABULARIES))
        store.push(layout.VOCABULARIES)
        jobs = len(recipe.source.files)
        if recipe.rules.is_limited:  # Fewer sources are at work, and may have more threads each.
            jobs = self.estimate(recipe, options).files
        return sessions.new(options.worker_count, options.thread_count(jobs), encoder)

    def seen_by_workers(self) -> Path | str | None:
        """Return a file, or the address of a run, that every worker must see: what all read from."""
        return None

    def held(self, session: str) -> AbstractContextManager[object]:  # noqa: ARG002
        """Have what fetching needs on this node for a whole session, in the block."""
        return nullcontext()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def ready(self, orders: Sequence[ConvertOrder], is_wanted: IsWanted = always) -> Ready:
        """Yield the orders as they can be carried out; a file is fetched only once it is wanted."""

    def release(self, source: SourceShard) -> None:  # noqa: ARG002
        """Take back a file whose receipt is on the disk, or that was given up."""
        return

    def clear(self) -> None:
        """Remove files that were fetched and are not needed any more; after the `with` block."""
        return

    def traffic(self) -> Traffic | None:
        """Return how fetching goes, or None if nothing is fetched."""
        return None

    def notices(self) -> list[str]:
        """Return what a person should know since this was last asked."""
        return []


class LocalFiles(Input):
    """Source files that are on this machine already, and stay."""

    def __init__(self, manifest: SourceManifest, root: Path) -> None:
        self.root: Path = root
        self._files = manifest.files
        self._bare = catalog.bare(manifest, root)
        self._sizes: Mapping[str, Size] | None = None

    def location(self, source: SourceShard) -> Path:
        """Return where the file is, or where it was expected if it is missing."""
        return self._bare.get(source.path, self.root / source.path)

    def sizes(self) -> Mapping[str, Size]:
        """Return what the footers of a sample say; they are read once."""
        if self._sizes is None:
            self._sizes = footer_sizes(self._files, self.location)
        return self._sizes

    def seen_by_workers(self) -> Path | None:
        """Return the first file that is there."""
        return next((place for place in map(self.location, self._files) if place.is_file()), None)

    def ready(self, orders: Sequence[ConvertOrder], is_wanted: IsWanted = always) -> Ready:  # noqa: ARG002
        """Yield all orders; one whose file cannot be read as Unfetched, since no worker need try it."""
        from fwconvert.sources.reading import reading  # noqa: PLC0415  # loads pyarrow

        for order in orders:
            try:
                path = order.file.local
                with reading(path):
                    files.state_of(path)
                    if not os.access(path, os.R_OK):
                        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            except SourceError as error:
                yield Unfetched(order, Failure("unfetched", str(error)))
            else:
                yield order


def workers_at_once(recipe: Recipe, options: Options) -> int:
    """Return how many workers convert at the same time: no more than there are sources."""
    return max(1, min(options.worker_count, len(recipe.source.files) or recipe.source.totals.files))


def changed_file(path: Path, receipt: Receipt) -> str | None:
    """Return the sha256 of a file that is there and is not the one of the receipt.

    Hashed only if its size or its time differs: it may be a terabyte of files.
    """
    from fwconvert.sources.reading import prove  # noqa: PLC0415  # loads pyarrow

    if not path.exists():
        return None
    now = path.stat()
    if (now.st_size, now.st_mtime_ns) == (receipt.source_bytes, receipt.source_mtime_ns):
        return None
    found = prove(path, lambda: None).sha256
    return None if found == receipt.source_sha256 else found


def footer_sizes(
    sources: Sequence[SourceShard], location: Callable[[SourceShard], Path]
) -> Mapping[str, Size]:
    """Read the footers of a sample: one of a 2 GB source takes 15 ms, and there may be thousands."""
    from fwconvert.sources import footers  # noqa: PLC0415  # loads pyarrow

    sample = {source: location(source) for source in sources[:: max(1, len(sources) // _FOOTERS_READ)]}
    found = footers.sizes([*sample.values()])
    sizes: dict[str, Size] = {}
    for source, place in sample.items():
        # A bad source fails in its job; its size is estimated from the others.
        size, most = found.get(place), source.bytes * _MOST_UNPACKED
        if size is not None and 0 <= size.text_bytes <= most and 0 <= size.rows <= most:
            sizes[source.path] = size
    return sizes
