"""Which session is at work on a run's folder.

Correctness needs no lock (receipts are idempotent); the lock is a guard rail
against a second session that would do all the work twice.
"""

import errno
import io
import os
import socket
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from fwconvert import files
from fwconvert.errors import OutputError, UsageError, message
from fwconvert.store import atomic

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# Windows locks bytes, not files: lock one far behind the text, so that others can read who holds it.
_LOCKED_BYTE = 2**20


class Lock:
    """The right to run a session on a folder; the kernel frees it when its holder dies."""

    def __init__(self, root: Path, path: Path, session: str) -> None:
        with atomic.writing(path):
            self._file = files.open_to_write(path)
        if not _lock_soon(self._file.fileno()):
            with self._file:
                who = _text(self._file.fileno())
            raise UsageError(
                message(
                    "another session is at work on this folder",
                    "wait for it, or stop it with Ctrl-C or kill",
                    folder=root,
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


def holder(path: Path) -> str:
    """Return who is at work on the folder ("pid 7 on host h, session s"), or "" if nobody is."""
    try:
        file = _opened_to_look(path)
    except OSError:
        return ""
    with file:
        return "" if _try_lock(file.fileno()) else _text(file.fileno())


def is_deserted(path: Path) -> bool:
    """Tell whether it is certain that nobody is at work on the folder: the last was, on this machine."""
    try:
        with _opened_to_look(path) as file:
            _take_lock(file.fileno())
            # A lock on a shared folder may be known to its own machine alone.
            return f" on host {socket.gethostname()}, session " in _text(file.fileno())
    except OSError:
        return False


def _opened_to_look(path: Path) -> io.FileIO:
    # Nothing is written, but NFS gives a lock of this kind only to whoever could.
    return files.open_to_write(path, create=False)


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
