"""A file that is written in large blocks by a thread beside, and past the page cache where possible.

Token shards are written once and read by somebody else, later. Keeping a copy
of them in the page cache costs a worker more than hashing them, and pushes
out what the machine could use. So whole blocks are written with O_DIRECT from
memory that is used again and again; where the system has no such thing, they
are written the ordinary way. Small files never fill a block, and are written
the ordinary way when they are finished.
"""

import errno
import hashlib
import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

BLOCK_BYTES = 4 * 2**20
# What O_DIRECT wants addresses, places and lengths to be multiples of: a page suits all devices we know of.
_ALIGNMENT = 4096
_MOST_IN_FLIGHT = 2
_DIRECT = getattr(os, "O_DIRECT", 0)
# What may lie in the page cache before it is brought to the disk. Otherwise the last fsync of a large file
# might take as long as writing it, and nobody could tell it from a disk that hangs.
_MOST_CACHED_BYTES = 2**30
# What a system says that cannot do a thing, as opposed to a disk on which it went wrong.
UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY})

# Blocks that nobody uses now. Fresh memory is dear: the system has to find and clear it.
_spare: list[mmap.mmap] = []


class File:
    """A file opened for writing from its beginning to its end. Any method may raise OSError."""

    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, flags, 0o644)
        self._open = True
        self._direct = False
        self._sha256 = hashlib.sha256()
        self._block = _take()
        self._filled = 0
        self._cached = 0
        self._in_flight: deque[Future[None]] = deque()

    @property
    def sha256(self) -> str:
        """The sha256 of all that was written; `finish` first."""
        return self._sha256.hexdigest()

    def write(self, content: memoryview) -> None:
        """Append all of `content`. A failure may show in a later call."""
        while content:
            end = min(self._filled + len(content), BLOCK_BYTES)
            taken = end - self._filled
            self._block[self._filled : end] = content[:taken]
            self._filled = end
            content = content[taken:]
            if end == BLOCK_BYTES:
                self._hand_over()

    def finish(self) -> None:
        """Bring everything to the disk and close the file. Again is no harm."""
        if not self._open:
            return
        self._wait(0)
        with memoryview(self._block) as block, block[: self._filled] as rest:
            whole = self._filled - self._filled % _ALIGNMENT if self._direct else 0
            self._put(rest[:whole])
            self._set_direct(wanted=False)
            self._put(rest[whole:])
        sync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Close the file as it is. Again is no harm."""
        if not self._open:
            return
        self._open = False
        while self._in_flight:  # Nobody may write to a descriptor that is somebody else's by then.
            with suppress(OSError):
                self._wait(len(self._in_flight) - 1)
        _spare.append(self._block)
        os.close(self._descriptor)

    def _hand_over(self) -> None:
        """Let the thread write the full block, and take another."""
        if not self._in_flight:
            self._set_direct(wanted=True)
        self._wait(_MOST_IN_FLIGHT - 1)
        full, self._block, self._filled = self._block, _take(), 0
        self._in_flight.append(_writer().submit(self._put_block, full))

    def _wait(self, remaining: int) -> None:
        while len(self._in_flight) > remaining:
            self._in_flight.popleft().result()

    def _put_block(self, block: mmap.mmap) -> None:
        try:
            with memoryview(block) as content:
                self._put(content)
            self._cached += 0 if self._direct else BLOCK_BYTES
            if self._cached >= _MOST_CACHED_BYTES:
                os.fsync(self._descriptor)
                self._cached = 0
        finally:
            _spare.append(block)

    def _put(self, content: memoryview) -> None:
        self._sha256.update(content)
        done = 0
        while done < len(content):
            try:
                done += os.write(self._descriptor, content[done:])
            except OSError as error:
                # This device wants another alignment, or a short write has spoilt ours.
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._set_direct(wanted=False)

    def _set_direct(self, *, wanted: bool) -> None:
        if not _DIRECT or wanted == self._direct:
            return
        import fcntl  # noqa: PLC0415  # absent where O_DIRECT is

        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~_DIRECT
        with suppress(OSError):  # Not every file system can.
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | (_DIRECT if wanted else 0))
            self._direct = wanted


def sync(descriptor: int) -> None:
    """Bring what was written to a file, or the names in a folder, to the disk. Raises OSError."""
    if os.name == "posix":
        import fcntl  # noqa: PLC0415  # absent on Windows

        # On macOS fsync leaves the content in the disk's own cache, which a power cut empties.
        full = getattr(fcntl, "F_FULLFSYNC", None)
        if full is not None:
            try:
                fcntl.fcntl(descriptor, full)
                return
            except OSError as error:  # Network drives have only the other, as SQLite and Go know too.
                if error.errno not in UNSUPPORTED:
                    raise
    os.fsync(descriptor)


def _take() -> mmap.mmap:
    try:
        return _spare.pop()
    except IndexError:
        # Pages of its own, as O_DIRECT wants; by default they would be shared with forked processes.
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        return mmap.mmap(-1, BLOCK_BYTES, **private)


@cache
def _writer() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "writer")
