"""Which sessions are at work on a run's folder.

Correctness needs no lock: receipts are idempotent, and a draft that was removed
while a session uses it cannot be published. Locks save work. The run's lock keeps
out a second session that would do everything twice; each session holds one of its
own as well, which tells others that its drafts are in use. The kernel frees
both when their holder dies, however it dies.
"""

import errno
import io
import os
import re
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from fwconvert import files
from fwconvert.errors import UsageError, message
from fwconvert.store import atomic

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# Windows locks bytes, not files: lock one far behind the text, so that others can read who holds it.
_LOCKED_BYTE = 2**20
# What file systems answer that have no locks, as some network ones.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


class Lock:
    """The run's lock, and the lock `own` of the session; both are held until `release`."""

    def __init__(self, run: Path, own: Path, session: str, folder: str) -> None:
        with ExitStack() as held:
            held.enter_context(_take(run, session, folder))
            if session:
                # Removed before it is free: nobody is to find it and take its holder for a dead one.
                held.enter_context(_take(own, session, folder))
                held.callback(atomic.remove, own)
            self._held = held.pop_all()

    def release(self) -> None:
        """Free both locks. Calling it again does nothing."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def holder(path: Path) -> str:
    """Return which session holds a lock ("pid 7 on host h, session s"), or "" if none does."""
    try:
        file = _opened_to_look(path)
    except OSError:
        return ""
    with file:
        return "" if _try_lock(file.fileno()) else _text(file.fileno()) or "unknown"


def is_deserted(run: Path) -> bool:
    """Return whether it is certain that no session is at work: the last holder is gone, on this machine."""
    try:
        with _opened_to_look(run) as file:
            _take_lock(file.fileno())
            # A lock on a shared folder may be known to its own machine alone.
            return _is_of_this_host(_text(file.fileno()))
    except OSError:
        return False


def is_over(own: Path) -> bool:
    """Return whether it is certain that a session is over, from its own lock.

    Only a session that has not begun or has ended has none. Whoever asks holds the run's
    lock, so that no session is just beginning.
    """
    try:
        file = _opened_to_look(own)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    with file:
        try:
            _take_lock(file.fileno())
        except OSError as error:
            return error.errno in _NO_LOCKS and _is_dead(_text(file.fileno()))
        text = _text(file.fileno())
        return not text or _is_of_this_host(text)  # Without a text it was killed while it began.


def _take(path: Path, session: str, folder: str) -> io.FileIO:
    """Return the open file of a lock that is ours until it is closed."""
    with atomic.writing(path), ExitStack() as opened:
        file = opened.enter_context(files.open_to_write(path))
        if not _lock_soon(file.fileno()):
            raise UsageError(
                message(
                    "another session is at work on this folder",
                    "wait for it to end, or stop it with Ctrl-C or kill",
                    folder=folder,
                    held_by=_text(file.fileno()) or "unknown",
                )
            )
        file.truncate(0)
        file.write(f"pid {os.getpid()} on host {socket.gethostname()}, session {session}\n".encode())
        opened.pop_all()
        return file


def _opened_to_look(path: Path) -> io.FileIO:
    # Nothing is written, but NFS gives a lock of this kind only to whoever could.
    return files.open_to_write(path, create=False)


def _text(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 4096).decode(errors="replace").strip()


def _is_of_this_host(text: str) -> bool:
    return f" on host {socket.gethostname()}, session " in text


def _is_dead(text: str) -> bool:
    """Return whether the process that wrote this into its lock is gone from this machine."""
    found = re.match(r"pid ([0-9]{1,9}) on host ", text)
    if found is None or not _is_of_this_host(text) or os.name == "nt":  # os.kill ends a process there.
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


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
        return error.errno in _NO_LOCKS  # Go on: correctness needs no lock.
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
