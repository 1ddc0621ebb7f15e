"""A run in a folder of this machine, or of a file system that it has mounted.

What is written goes through `atomic` (a draft under a name that nobody else has,
fsync, rename, fsync of the folder), what is read through `files` (no pipe, no
device). A value: a worker makes its own from the same root and session.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fwconvert import files
from fwconvert.store import atomic, layout, lock
from fwconvert.store.base import Content, FileState


class LocalDraft:
    """A draft in the run's private folder (see base.Draft)."""

    def __init__(self, store: "LocalStore", label: str) -> None:
        self._store = store
        self._output = atomic.Output(store.local(layout.TEMPORARY), label)

    @property
    def path(self) -> Path:
        """Where the draft lies."""
        return self._output.temporary

    @property
    def bytes(self) -> int:
        """How many bytes were written."""
        return self._output.bytes

    @property
    def sha256(self) -> str:
        """The sha256 of the finished file."""
        return self._output.sha256

    def write(self, content: Content) -> None:
        """Append all of `content`. A failure shows in `finish` at the latest."""
        self._output.write(content)

    def finish(self) -> None:
        """Bring the content to the disk."""
        self._output.finish()

    def publish(self, name: str) -> None:
        """Finish, then rename the file to its final name. Durable after `settle`."""
        self._output.finish()
        path = self._store.local(name)
        with atomic.writing(path):
            is_new = not path.parent.is_dir()
        if is_new:
            atomic.make_folder(path.parent)
        self._output.publish(path)

    def discard(self) -> None:
        """Remove the draft unless it was published."""
        self._output.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


@dataclass(frozen=True)
class LocalStore:
    """The folder of a run (see base.Store)."""

    root: Path
    session: str = ""

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

    def draft(self, label: str) -> LocalDraft:
        """Begin a file in the private folder."""
        return LocalDraft(self, self._label(label))

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
        return FileState(found.st_size, found.st_mtime_ns)

    def size(self, name: str) -> int | None:
        """Return the size of a regular file, or None if there is none."""
        found = self.state(name)
        return None if found is None else found.bytes

    def list(self, folder: str) -> Iterator[str]:
        """Yield the names of what is in a folder and is no folder itself."""
        try:
            with os.scandir(self.local(folder)) as entries:
                for entry in entries:
                    if not entry.is_dir():
                        yield entry.name
        except (FileNotFoundError, NotADirectoryError):
            return

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

    def touch(self, name: str, changed_at: int) -> None:
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

    def lock(self) -> AbstractContextManager[object]:
        """Hold the folder as this session's alone, or raise UsageError that says who holds it."""
        atomic.make_folder(self.local(layout.PRIVATE))
        return lock.Lock(self.root, self.local(layout.LOCK), self.session)

    def holder(self) -> str:
        """Return which session holds the lock, or "" if none does."""
        return lock.holder(self.local(layout.LOCK))

    def is_deserted(self) -> bool:
        """Tell whether it is certain that no session is at work in the folder."""
        return lock.is_deserted(self.local(layout.LOCK))

    def sweep(self, label: str = "") -> int:
        """Remove the drafts of this session, or only those of one label."""
        prefix = self._label(f"{label}-") if label else self._label("")
        return atomic.sweep(self.local(layout.TEMPORARY), prefix)

    def sweep_abandoned(self) -> int:
        """Remove the drafts of all other sessions: whoever holds the lock is the only one at work."""
        return atomic.sweep(self.local(layout.TEMPORARY))

    def _label(self, label: str) -> str:
        return f"{self.session}.{label}" if self.session else label
