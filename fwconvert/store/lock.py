"""Which sessions are at work on a run's folder.

Correctness needs no lock: receipts are idempotent, and a draft that was removed
while a session uses it cannot be published. Locks save work. The run's lock keeps
out a second session that would do everything twice; ranks, which convert a share
each, hold it together. Each session holds one of its own as well, which tells
others that its drafts are in use. The kernel frees both when their holder dies,
however it dies.
"""

import errno
import io
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
# What stands in the run's lock while ranks share it. Who they are, the locks of their sessions say.
SHARED = "ranks"
_MOST_NAMED = 3
# What file systems answer that have no locks, as some network ones.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


class Lock:
    """The run's lock, and the lock of the session itself; both are held until `release`."""

    def __init__(
        self, run: Path, of_session: Path, session: str, folder: str, *, shared: bool = False
    ) -> None:
        with ExitStack() as held:
            try:
                held.enter_context(_take(run, session, shared=shared))
            except _Held as taken:
                who = sharers(of_session.parent) if taken.text == SHARED else taken.text
                raise _held_by(who or "unknown", folder, ranks=taken.text == SHARED) from None
            if session:
                held.enter_context(own(of_session, session, folder))
            self._held = held.pop_all()

    def release(self) -> None:
        """Free both locks. Calling it again does nothing."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def own(path: Path, session: str, folder: str) -> Iterator[None]:
    """Hold the lock of a session, which tells others that what it has is in use."""
    while True:
        try:
            taken = _take(path, session)
        except _Held as held:
            raise _held_by(held.text, folder) from None
        with taken as file:
            # Whoever looked for dead sessions before we had it may have removed it.
            if files.has_its_name(file, path):
                try:
                    yield
                finally:
                    # Before it is free: nobody is to find it and take its holder for a dead one.
                    atomic.remove(path)
                return


def holder(path: Path) -> str:
    """Return which session holds a lock ("pid 7 on host h, session s"), or "" if none does."""
    try:
        file = _opened_to_look(path)
    except OSError:
        return ""
    with file:
        return "" if _try_lock(file.fileno()) else _text(file.fileno()) or "unknown"


def sharers(sessions: Path) -> str:
    """Return which sessions are at work, from the locks in the folder of their records."""
    found = sorted(filter(None, (holder(path) for path in sessions.glob("*.lock"))))
    named = "; ".join(found[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
    many = "1 rank" if len(found) == 1 else f"{len(found):,} ranks"
    return f"{many}: {named}{more}" if found else SHARED


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

    Only a session that has not begun or has ended has none: it takes it before it makes
    anything. One that is just beginning notices if its lock is removed, and takes it again.
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
            return error.errno in _NO_LOCKS and is_dead(_text(file.fileno()))
        text = _text(file.fileno())
        return not text or _is_of_this_host(text)  # Without a text it was killed while it began.


class _Held(Exception):
    """Another one has the lock."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _held_by(who: str, folder: str, *, ranks: bool = False) -> UsageError:
    at_work = "ranks are at work on this folder" if ranks else "another session is at work on this folder"
    them = "them" if ranks else "it"
    advice = f"wait for {them} to end, or stop {them} with Ctrl-C or kill"
    return UsageError(message(at_work, advice, folder=folder, held_by=who))


def _take(path: Path, session: str, *, shared: bool = False) -> io.FileIO:
    """Return the open file of a lock that is ours until it is closed, or raise _Held."""
    with atomic.writing(path), ExitStack() as opened:
        file = opened.enter_context(files.open_to_write(path))
        if not _lock_soon(file.fileno(), shared=shared):
            raise _Held(_text(file.fileno()) or "unknown")
        text = SHARED if shared else f"pid {os.getpid()} on host {socket.gethostname()}, session {session}"
        if not shared or _text(file.fileno()) != SHARED:  # All who share it write the same.
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            file.truncate(0)
            file.write(f"{text}\n".encode())
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


def is_dead(text: str) -> bool:
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


def _lock_soon(descriptor: int, *, shared: bool) -> bool:
    """Try for half a second: `status` holds the lock for an instant when it looks."""
    for _ in range(10):
        if _try_lock(descriptor, shared=shared):
            return True
        time.sleep(0.05)
    return False


def _try_lock(descriptor: int, *, shared: bool = False) -> bool:
    try:
        _take_lock(descriptor, shared=shared)
    except OSError as error:
        return error.errno in _NO_LOCKS  # Go on: correctness needs no lock.
    return True


def _take_lock(descriptor: int, *, shared: bool = False) -> None:
    if sys.platform == "win32":
        if shared:  # It has no such lock; correctness needs none.
            return
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
