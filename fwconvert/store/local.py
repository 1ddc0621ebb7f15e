"""A run in a folder of this machine, or of a file system that it has mounted.

What is written goes through `atomic` (a draft under a name that nobody else has,
fsync, rename, fsync of the folder), what is read through `files` (no pipe, no
device). A value: a worker makes its own from the same root and session.
"""

import errno
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from fwconvert import files
from fwconvert.errors import ShardError, UsageError, message
from fwconvert.store import atomic, layout, lock
from fwconvert.store.base import FileState, Store
from fwconvert.store.bucket import SCHEMES, Bucket, absolute, is_uri

__all__ = ["LocalStore", "absolute", "open_store"]

_STEP_BYTES = 4 * 2**20
_LONGEST_SILENCE_NS = 24 * 60 * 60 * 10**9


class LocalDraft(atomic.Output):
    """A draft in the run's private folder (see base.Draft)."""

    def __init__(self, store: "LocalStore", label: str) -> None:
        super().__init__(store.local(layout.TEMPORARY), label)
        self._store = store

    def publish(self, name: str, tick: Callable[[], None] = lambda: None) -> None:  # noqa: ARG002
        """Finish, then rename the file to its final name. Durable after `settle`."""
        self.finish()
        path = self._store.local(name)
        with atomic.writing(path):
            is_new = not path.parent.is_dir()
        if is_new:
            atomic.make_folder(path.parent)
        self.publish_at(path)


@dataclass(frozen=True)
class LocalStore:
    """The folder of a run (see base.Store)."""

    root: Path
    session: str = ""

    is_atomic = False
    is_remote = False

    @property
    def uri(self) -> str:
        """The folder."""
        return str(self.root)

    def address(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.root / name)

    def local(self, name: str) -> Path:
        """Return the path of a file; files.Refused if the name leads out of the folder."""
        if name.startswith("/") or ".." in name.split("/"):
            raise files.refused("its name leads out of the run's folder", self.root / name)
        return self.root / name

    @contextmanager
    def on_disk(self, name: str, sha256: str = "") -> Iterator[Path]:  # noqa: ARG002
        """Give the file itself."""
        yield self.local(name)

    def sha256(self, name: str, tick: Callable[[int], None] = lambda _: None) -> str:
        """Return the sha256 of a regular file."""
        return files.sha256_of(self.local(name), tick)

    def take(self, name: str, path: Path, sha256: str, tick: Callable[[], None] = lambda: None) -> None:
        """Copy a file that has this sha256."""
        with self.draft("copy") as draft, files.open_to_read(path) as file:
            while part := file.read(_STEP_BYTES):
                draft.write(part)
                tick()
            draft.finish()
            if draft.sha256 != sha256:
                raise ShardError(
                    message(
                        "a file of the run is damaged: its sha256 is not the one in its record",
                        "run the command that made the run again with --rehash: it remakes the file",
                        file=path,
                        expected=sha256,
                        found=draft.sha256,
                    )
                )
            draft.publish(name)

    def has(
        self,
        name: str,
        sha256: str,
        original: Callable[[], AbstractContextManager[Path]],  # noqa: ARG002
        tick: Callable[[], None] = lambda: None,
    ) -> bool:
        """Return whether a file has this sha256: it is hashed."""
        return self.sha256(name, lambda _: tick()) == sha256

    def read_range(self, name: str, begin: int, end: int) -> bytes:
        """Return a part of a regular file."""
        with files.open_to_read(self.local(name)) as file:
            file.seek(begin)
            return file.read(max(0, end - begin)) or b""

    def listed(self) -> Self:
        """Return the same: looking at a file costs next to nothing."""
        return self

    def push(self, folder: str) -> None:
        """Do nothing: it is there already."""

    def pull(self, folder: str) -> Path:
        """Return the folder itself."""
        return self.local(folder)

    def draft(self, label: str) -> LocalDraft:
        """Begin a file in the private folder."""
        return LocalDraft(self, self.draft_label(label))

    def write(self, name: str, content: bytes) -> None:
        """Replace a file durably and all at once."""
        folder, _, file_name = name.rpartition("/")
        with self.draft(file_name.rpartition(".")[0] or file_name) as draft:
            draft.write(content)
            draft.publish(name)
        self.settle(folder)

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a regular file; one of more than `most` bytes is files.TooLarge."""
        return files.read_whole(self.local(name), most)

    def state(self, name: str) -> FileState | None:
        """Return the size and the time of a regular file, or of what a link to one leads to."""
        try:
            found = files.state_of(self.local(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise files.refused("it is a link that leads nowhere", self.local(name)) from error
            raise
        return FileState(found.st_size, found.st_mtime_ns)

    def size(self, name: str) -> int | None:
        """Return the size of a regular file, or None if there is none."""
        found = self.state(name)
        return None if found is None else found.bytes

    def list(self, folder: str, *, folders: bool = False) -> Iterator[str]:
        """Yield the names of what is in a folder; of folders only if asked for."""
        try:
            with os.scandir(self.local(folder)) as entries:
                for entry in entries:
                    if folders or not _is_folder(entry):
                        yield entry.name
        except FileNotFoundError:
            return
        except NotADirectoryError:
            if not folder:  # The user named it and has to be told.
                raise

    def remove(self, *names: str) -> None:
        """Remove files, those that are there; of a link the link itself."""
        for name in names:
            atomic.remove(self.local(name))

    def clear(self, folder: str) -> int:
        """Remove all files in a folder, which must not be a link."""
        return atomic.sweep(self.local(folder))

    def settle(self, *folders: str) -> None:
        """Bring the names in these folders to the disk, in this order."""
        for folder in folders:
            atomic.sync_folder(self.local(folder))

    def set_changed_at(self, name: str, changed_at: int) -> None:
        """Set the time of a file, but not that of a file elsewhere to which a link leads."""
        path = self.local(name)
        if not path.is_symlink():
            with suppress(OSError):  # For example in a folder that may only be read.
                os.utime(path, ns=(changed_at, changed_at))

    def prepare(self) -> None:
        """Make all folders."""
        self.refuse_links()
        for folder in ("", *layout.FOLDERS):
            atomic.make_folder(self.local(folder))

    def refuse_links(self) -> None:
        """Raise OutputError if a folder of the run is a link; looks, and opens nothing.

        The output folder itself may be one: whoever names it chooses where it leads.
        """
        for folder in (*layout.FOLDERS, *layout.OPTIONAL_FOLDERS):
            atomic.refuse_link(self.local(folder))

    def lock(self, *, shared: bool = False) -> lock.Lock:
        """Hold the folder for this session alone, or with others that share it; or raise UsageError."""
        for folder in (layout.PRIVATE, layout.SESSIONS):
            atomic.refuse_link(self.local(folder))
            atomic.make_folder(self.local(folder))
        own = self.local(layout.session_lock(self.session))
        return lock.Lock(self.local(layout.LOCK), own, self.session, self.uri, shared=shared)

    def for_session(self, session: str) -> Self:
        """Return the same run for a session that writes to it."""
        return replace(self, session=session)

    def holder(self, session: str = "") -> str:
        """Return which session holds the lock of the run, or that of a session; "" if none does."""
        who = lock.holder(self.local(layout.session_lock(session) if session else layout.LOCK))
        return lock.sharers(self.local(layout.SESSIONS)) if who == lock.SHARED else who

    def is_deserted(self) -> bool:
        """Return whether it is certain that no session is at work in the folder."""
        return lock.is_deserted(self.local(layout.LOCK))

    def sweep(self, label: str = "") -> int:
        """Remove the drafts of this session, or only those of one label."""
        return atomic.sweep(self.local(layout.TEMPORARY), self.draft_label(f"{label}-" if label else ""))

    def sweep_abandoned(self) -> int:
        """Remove the drafts of sessions that are certainly dead. Hold the lock, alone or with others.

        Dead is a session whose own lock is gone or free on this machine. What has no session in
        its name was made by an earlier version, so by nobody who is at work now. Of a session that
        may live on another machine go the drafts that have not changed for a day: at work they are
        written to all the time.
        """
        atomic.refuse_link(self.local(layout.TEMPORARY))
        drafts: dict[str, list[str]] = defaultdict(list)
        # Before the locks: a session makes no draft before it has its lock.
        for name in self.list(layout.TEMPORARY):
            drafts[name.partition(".")[0]].append(f"{layout.TEMPORARY}/{name}")
        locks = {
            name.removesuffix(layout.LOCK_SUFFIX)
            for name in self.list(layout.SESSIONS)
            if name.endswith(layout.LOCK_SUFFIX)
        }
        swept = 0
        for session in (drafts.keys() | locks) - {self.session}:
            own, theirs = layout.session_lock(session), drafts[session]
            is_over = lock.is_over(self.local(own))
            stale = theirs if is_over else [name for name in theirs if self._is_forgotten(name)]
            self.remove(*stale)
            swept += len(stale)
            if is_over:  # Last: without it nobody would know whose the drafts were.
                self.remove(own)
        return swept

    def _is_forgotten(self, name: str) -> bool:
        try:
            found = self.state(name)
        except OSError:
            return False
        return found is not None and time.time_ns() - found.changed_at > _LONGEST_SILENCE_NS

    def draft_label(self, label: str) -> str:
        """Return how the names of this session's drafts begin."""
        return f"{self.session}.{label}" if self.session else label


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A link that leads to itself, for example: a file that cannot be read.
        return False


def open_store(
    place: str | os.PathLike[str], session: str = "", scratch: str | os.PathLike[str] | None = None
) -> Store:
    """Return the store of the run that lies in `place`: its `uri`, or a place as a user names it.

    The one place that decides what kind of store a run has. `scratch` is a folder of this machine for
    files on their way to and from a remote one.
    """
    if isinstance(place, Path) and place.parts[:1] in {(f"{scheme}:",) for scheme in SCHEMES}:
        raise UsageError(
            message(
                "an address of an object store cannot be a Path, which spoils it",
                "pass it as text",
                given=place,
            )
        )
    if is_uri(place):
        from fwconvert.store.objects import ObjectStore  # noqa: PLC0415  # most runs need none of it

        return ObjectStore(Bucket.at(str(place)), session, Path(scratch).absolute() if scratch else None)
    return LocalStore(Path(place), session)
