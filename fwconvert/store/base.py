"""Where a run lies, as the rest of the package sees it.

A run is a set of files under relative names ("manifest.json", "index/...docs"), which `layout`
makes and nobody else. A store keeps them: `LocalStore` in a folder, and any other that holds to
the promises below. Everything that survives a crash rests on three of them: a file has its name
only when it is whole, a name is safe once it is settled, and nothing is retried on a draft that
failed.

Reading raises OSError, which callers turn into an error of their own; writing raises OutputError.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar

from fwconvert import files, records
from fwconvert.records import Record

Content = bytes | memoryview


class FileState(NamedTuple):
    """What a store knows of a file without reading it."""

    bytes: int
    # When its content last changed, in nanoseconds since 1970.
    changed_at: int


class Draft(Protocol):
    """A file under construction, hashed while it is written.

    It has no name that a reader of the run could find until `publish`. Leaving the `with` block,
    for whatever reason, removes it unless it was published. A crash leaves it behind, and
    `Store.sweep` or `Store.sweep_abandoned` removes it.
    """

    @property
    def path(self) -> Path:
        """The file on this machine's disk while it is a draft; complete after `finish`."""
        ...

    @property
    def bytes(self) -> int:
        """How many bytes were written."""
        ...

    @property
    def sha256(self) -> str:
        """The sha256 of all that was written; `finish` first."""
        ...

    def write(self, content: Content) -> None:
        """Append all of `content`. A failure shows in `finish` at the latest."""
        ...

    def finish(self) -> None:
        """Make the content durable. After a failure this raises: nothing is retried on the same file."""
        ...

    def publish(self, name: str, tick: Callable[[], None] = lambda: None) -> None:
        """Finish, then give the file its name at once, in place of any other file of that name.

        A crash leaves the old file or the whole new one, never a part. That it is the new one is
        certain only after `Store.settle` of the folder that the name is in. `tick` is called now and
        then where that takes long.
        """
        ...

    def discard(self) -> None:
        """Remove the draft unless it was published. Calling it again does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Store(Protocol):
    """The files of one run, by relative POSIX names; "" is the run's own folder."""

    @property
    def uri(self) -> str:
        """Where the run lies; `open_store` opens the same run from it."""
        ...

    @property
    def session(self) -> str:
        """The id of the session that writes here; "" for a reader."""
        ...

    @property
    def is_atomic(self) -> bool:
        """Whether what was published is whole and stays, though its writer or its machine dies just then.

        Otherwise the files of a session that was cut off are doubtful until they were hashed.
        """
        ...

    @property
    def is_remote(self) -> bool:
        """Whether files are elsewhere, so that reading one is a transfer."""
        ...

    def address(self, name: str) -> str:
        """Return what messages call a file."""
        ...

    def draft(self, label: str) -> Draft:
        """Begin a file. `label` tells the drafts of one order from those of others."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Replace the content of a file, durably and all at once.

        After a crash the file has the old content or the new, and the new if this has returned.
        """
        ...

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a file. One of more than `most` bytes is not read: files.TooLarge."""
        ...

    def state(self, name: str) -> FileState | None:
        """Return what is known of a file, or None if there is none; files.Refused if it is not regular."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of a file, or None if there is none; files.Refused if it is not regular."""
        ...

    def list(self, folder: str, *, folders: bool = False) -> Iterator[str]:
        """Yield the names of the files in a folder, without the folder's, in no order.

        A folder that is missing has no files, and there may be a million that somebody else put
        there. Folders in it are left out, unless `folders` asks for them: one may lie where a file
        belongs. NotADirectoryError if the run's own folder is none.
        """
        ...

    def local(self, name: str) -> Path:
        """Return where this machine keeps what belongs to a folder of the run.

        Of a remote store that is a folder of this process, in which nothing is that was not put there.
        """
        ...

    def on_disk(self, name: str, sha256: str = "") -> AbstractContextManager[Path]:
        """Have a file where it can be opened and mapped on this machine, during the block.

        A remote store gives a copy, and raises ShardError if that has not the `sha256`. What is on this
        machine is given as it is.
        """
        ...

    def sha256(self, name: str, tick: Callable[[int], None] = lambda _: None) -> str:
        """Return the sha256 of a file. `tick` is given how many bytes were read, and may raise to stop."""
        ...

    def take(self, name: str, path: Path, sha256: str, tick: Callable[[], None] = lambda: None) -> None:
        """Make a file of the run from one on this machine, all at once; ShardError if it has another sha256.

        `tick` is called often, and may raise to stop. Durable after `settle`.
        """
        ...

    def has(
        self,
        name: str,
        sha256: str,
        original: Callable[[], AbstractContextManager[Path]],
        tick: Callable[[], None] = lambda: None,
    ) -> bool:
        """Return whether a file has this sha256. A remote store compares it with the `original`."""
        ...

    def read_range(self, name: str, begin: int, end: int) -> bytes:
        """Return the bytes of a file from `begin` to before `end`, or as many of them as there are."""
        ...

    def listed(self) -> Self:
        """Return the same run for whoever is about to look at very many files, as it is at this moment."""
        ...

    def push(self, folder: str) -> None:
        """Let all machines have what this process has put into `local(folder)`."""
        ...

    def pull(self, folder: str) -> Path:
        """Return a folder of this machine with all files of a folder of the run, which are few and small."""
        ...

    def remove(self, *names: str) -> None:
        """Remove files, those that are there. Durable after `settle`."""
        ...

    def clear(self, folder: str) -> int:
        """Remove all files in a folder; return how many. Durable after `settle`."""
        ...

    def settle(self, *folders: str) -> None:
        """Make durable which names are in these folders: what was published and removed stays so."""
        ...

    def set_changed_at(self, name: str, changed_at: int) -> None:
        """Set when a file last changed, where that is possible. It saves time; nothing may rest on it."""
        ...

    def prepare(self) -> None:
        """Make all folders of a run, durably; raises as `refuse_links` does."""
        ...

    def refuse_links(self) -> None:
        """Raise OutputError if a folder of the run is a link: what is made there would be somewhere else."""
        ...

    def lock(self, *, shared: bool = False) -> AbstractContextManager[object]:
        """Hold the run for this session alone, or raise UsageError that says who holds it.

        Ranks, which convert a share each, hold it together (`shared`), and nobody else meanwhile.

        The lock is free as soon as its holder is dead, however it died.
        """
        ...

    def for_session(self, session: str) -> Self:
        """Return the same run for a session that writes to it."""
        ...

    def holder(self, session: str = "") -> str:
        """Return who holds the lock of the run, or that of a session; "" if nobody does.

        As "pid 7 on host h, session s". A session that does not hold its lock is over.
        """
        ...

    def is_deserted(self) -> bool:
        """Return whether it is certain that no session is at work: the last one is over, on this machine."""
        ...

    def sweep(self, label: str = "") -> int:
        """Remove the drafts of this session, or only those of one label; return how many."""
        ...

    def sweep_abandoned(self) -> int:
        """Remove the drafts of sessions that are certainly dead; return how many. Hold the lock.

        A live session keeps its drafts. Should one lose a draft all the same, its `publish` fails and
        nothing wrong gets a name.
        """
        ...


R = TypeVar("R", bound=Record)


def exists(store: Store, name: str) -> bool:
    """Return whether there is a regular file of that name. Raises OSError if it cannot be determined."""
    try:
        return store.state(name) is not None
    except files.Refused:
        return False


def refuse_missing(store: Store) -> None:
    """Raise OutputError if there is no run because there is no such bucket: no look at a name tells that."""
    if store.is_remote:
        next(iter(store.list("")), None)


def holds(store: Store, name: str, content: bytes) -> bool:
    """Return whether a file has this content; one that cannot be read has another."""
    try:
        return store.size(name) == len(content) and store.read(name, len(content)) == content
    except OSError:
        return False


def read_record(store: Store, name: str, kind: type[R], described: Callable[[], int] = lambda: 0) -> R:
    """Return a record, or raise ManifestError that says what is wrong with the file.

    `described` counts the files that it may describe (see records.decode).
    """
    where = store.address(name)
    raw = records.content(lambda most: store.read(name, most), kind, where)
    return records.decode(raw, kind, where, described)


def count(store: Store, folder: str) -> int:
    """Return how many files are in a folder; 0 if it cannot be listed."""
    try:
        return sum(1 for _ in store.list(folder))
    except OSError:
        return 0


def record_names(store: Store, folder: str) -> Iterator[str]:
    """Yield the names of the records in a folder, without the folder's, in no order.

    Whatever has the name of a record counts as one: if it cannot be read, it is a damaged one.
    """
    return (name for name in store.list(folder, folders=True) if name.endswith(".json"))
