"""The run's folder: where everything in it lies, and who may write there.

Correctness needs no lock (receipts are idempotent); the lock is a guard rail
against a second session that would do all the work twice.
"""

import errno
import io
import os
import socket
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from fwconvert import files
from fwconvert.errors import OutputError, UsageError, message
from fwconvert.store import atomic, names

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# Windows locks bytes, not files: lock one far behind the text, so that others can read who holds it.
_LOCKED_BYTE = 2**20


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run."""

    path: Path

    @cached_property
    def private(self) -> Path:
        """Everything but the output."""
        return self.path / ".fwconvert"

    @cached_property
    def index(self) -> Path:
        """The document indexes."""
        return self.path / "index"

    @cached_property
    def manifest(self) -> Path:
        """The run manifest."""
        return self.path / "manifest.json"

    @cached_property
    def plan(self) -> Path:
        """The recipe with all its sources."""
        return self.private / "plan.json"

    @cached_property
    def places(self) -> Path:
        """Where the sources were on this machine: a hint."""
        return self.private / "places.json"

    @cached_property
    def lock(self) -> Path:
        """What the session at work holds."""
        return self.private / "lock"

    @cached_property
    def receipts(self) -> Path:
        """One receipt for each finished job."""
        return self.private / "receipts"

    @cached_property
    def joins(self) -> Path:
        """One receipt for each finished joined shard."""
        return self.private / "joins"

    @cached_property
    def quarantine(self) -> Path:
        """One record for each job that was given up."""
        return self.private / "quarantine"

    @cached_property
    def tails(self) -> Path:
        """The tails that wait for the join."""
        return self.private / "tails"

    @cached_property
    def sources(self) -> Path:
        """Fetched sources that are not converted yet."""
        return self.private / "sources"

    @cached_property
    def temporary(self) -> Path:
        """Files under construction."""
        return self.private / "temporary"

    @cached_property
    def sessions(self) -> Path:
        """One record for each session."""
        return self.private / "sessions"

    @cached_property
    def vocabularies(self) -> Path:
        """Rank tables that do not ship with the package."""
        return self.private / "vocabularies"

    @cached_property
    def logs(self) -> Path:
        """What workers and libraries print."""
        return self.private / "logs"

    def shard(self, name: str) -> Path:
        """Return the path of a token shard."""
        return self.path / name

    def shard_index(self, name: str) -> Path:
        """Return the path of the document index of a token shard."""
        return self.index / names.index(name)

    def receipt(self, key: str) -> Path:
        """Return the path of a job's receipt."""
        return self.receipts / f"{key}.json"

    def quarantined(self, key: str) -> Path:
        """Return the path of the record of a job that was given up."""
        return self.quarantine / f"{key}.json"

    def join(self, name: str) -> Path:
        """Return the path of the receipt of a joined shard."""
        return self.joins / f"{name}.json"

    def tail(self, key: str) -> Path:
        """Return the path of a job's tail."""
        return self.tails / f"{key}.tail"

    def tail_index(self, key: str) -> Path:
        """Return the path of the document index of a job's tail."""
        return self.tails / f"{key}.docs"

    def write(self, path: Path, content: bytes) -> None:
        """Make `content` the content of a record in the folder, durably and all at once."""
        atomic.replace(path, content, self.temporary)

    def remove_tail(self, key: str) -> None:
        """Remove a job's tail if it is there."""
        atomic.remove(self.tail(key))
        atomic.remove(self.tail_index(key))

    def make(self) -> None:
        """Make all the folders."""
        self.refuse_links()
        for folder in (
            self.path, self.private, self.index, self.receipts, self.joins, self.quarantine,
            self.tails, self.temporary, self.sessions, self.logs,
        ):  # fmt: skip
            atomic.make_folder(folder)

    def refuse_links(self) -> None:
        """Raise OutputError if a folder of ours is a link; looks, and opens nothing.

        The output folder itself may be one: whoever names it chooses where it leads.
        """
        for folder in (
            self.private, self.index, self.receipts, self.joins, self.quarantine, self.tails,
            self.sources, self.temporary, self.sessions, self.vocabularies, self.logs,
        ):  # fmt: skip
            atomic.refuse_link(folder)


class Lock:
    """The right to run a session on a folder; the kernel frees it when its holder dies."""

    def __init__(self, folder: RunFolder, session: str) -> None:
        path = folder.lock
        with atomic.writing(path):
            self._file = files.open_to_write(path)
        if not _lock_soon(self._file.fileno()):
            with self._file:
                who = _text(self._file.fileno())
            raise UsageError(
                message(
                    "another session is at work on this folder",
                    "wait for it, or stop it with Ctrl-C or kill",
                    folder=folder.path,
                    held_by=who,
                )
            )
        try:
            with atomic.writing(path):
                self._file.truncate(0)
                self._file.write(_who(session))
        except OutputError:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def holder(folder: RunFolder) -> str:
    """Return who is at work on the folder ("pid 7 on host h, session s"), or "" if nobody is."""
    try:
        file = _opened_to_look(folder)
    except OSError:
        return ""
    with file:
        return "" if _try_lock(file.fileno()) else _text(file.fileno())


def is_deserted(folder: RunFolder) -> bool:
    """Tell whether it is certain that nobody is at work on the folder: the last was, on this machine."""
    try:
        with _opened_to_look(folder) as file:
            _take_lock(file.fileno())
            # A lock on a shared folder may be known to its own machine alone.
            return f" on host {socket.gethostname()}, session " in _text(file.fileno())
    except OSError:
        return False


def _opened_to_look(folder: RunFolder) -> io.FileIO:
    # Nothing is written, but NFS gives a lock of this kind only to whoever could.
    return files.open_to_write(folder.lock, create=False)


def _who(session: str) -> bytes:
    return f"pid {os.getpid()} on host {socket.gethostname()}, session {session}\n".encode()


def _text(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 4096).decode(errors="replace").strip() or "unknown"


def _lock_soon(descriptor: int) -> bool:
    """Try for half a second: `status` holds the lock for an instant when it looks."""
    for _ in range(10):
        if _try_lock(descriptor):
            return True
        time.sleep(0.05)
    return False


def _try_lock(descriptor: int) -> bool:
    try:
        _take_lock(descriptor)
    except OSError as error:
        # A file system without locks (some network ones): go on, correctness does not need it.
        return error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
    return True


def _take_lock(descriptor: int) -> None:
    if sys.platform == "win32":
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
