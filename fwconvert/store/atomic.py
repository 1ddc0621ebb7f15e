"""Write output files to this machine's disk so that a crash leaves no half-written one.

Every file is written under a temporary name, flushed to the disk, and only
then given its final name, so that a crash at any instant leaves either the old
state or the whole new file. Any failure of the operating system becomes an
OutputError, which stops a run cleanly and is never blamed on a job. After a
failed fsync nothing is retried on the same file: the kernel may already have
dropped the pages and would report success (fsyncgate).

Content is written in large blocks by a thread, past the page cache where that
is possible. Token shards are written once and read later, by a trainer; a copy
in the page cache costs a worker more than hashing them. So blocks are
written with O_DIRECT from memory that is used again and again. Small files
are written the ordinary way when they are finished.
"""

import errno
import hashlib
import mmap
import os
import sys
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Self

from fwconvert import files
from fwconvert.errors import OutputError, message

BLOCK_BYTES = 4 * 2**20
# O_DIRECT needs addresses, offsets and lengths that are multiples of this; a page suits all known devices.
_ALIGNMENT = 4096
# What does not fill a block is written like this, too, if it is as large; below, the page cache costs less.
_LEAST_DIRECT = 2**18
_MOST_IN_FLIGHT = 2
_DIRECT = getattr(os, "O_DIRECT", 0)
# What may lie in the page cache before it is brought to the disk. Otherwise the last fsync of a large file
# might take as long as writing it, and would look like a disk that hangs.
_MOST_CACHED_BYTES = 2**30
# Errors that mean "not supported here", as opposed to a disk that fails.
UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY})

# Blocks that are free to be used again. Fresh memory is expensive: the kernel has to find and clear it.
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
        """Bring everything to the disk and close the file. Calling it again is harmless."""
        if not self._open:
            return
        self._wait(0)
        if self._filled >= _LEAST_DIRECT:
            self._set_direct(wanted=True)
        with memoryview(self._block) as block, block[: self._filled] as rest:
            whole = self._filled - self._filled % _ALIGNMENT if self._direct else 0
            self._put(rest[:whole])
            self._set_direct(wanted=False)
            self._put(rest[whole:])
        sync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Close the file as it is. Calling it again is harmless."""
        if not self._open:
            return
        self._open = False
        while (
            self._in_flight
        ):  # After os.close the descriptor may belong to another file, so no write may still be pending.
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
        self._in_flight.append(_writer(os.getpid()).submit(self._put_block, full))

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
                # This device needs another alignment, or a short write has broken ours.
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._set_direct(wanted=False)

    def _set_direct(self, *, wanted: bool) -> None:
        if not _DIRECT or wanted == self._direct:
            return
        import fcntl  # noqa: PLC0415  # absent where O_DIRECT is

        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~_DIRECT
        with suppress(OSError):  # Not every file system supports it.
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
            except OSError as error:
                # Network drives support only fsync; SQLite and Go fall back to it as well.
                if error.errno not in UNSUPPORTED:
                    raise
    os.fsync(descriptor)


def _take() -> mmap.mmap:
    try:
        return _spare.pop()
    except IndexError:
        # Private pages, as O_DIRECT needs them; by default they would be shared with forked processes.
        if sys.platform == "win32":
            return mmap.mmap(-1, BLOCK_BYTES)
        return mmap.mmap(-1, BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


@cache
def _writer(_process: int) -> ThreadPoolExecutor:
    # One for each process: a forked one has its parent's memory, but not its threads.
    return ThreadPoolExecutor(1, "writer")


# O_BINARY exists on Windows only; O_NOFOLLOW and O_CLOEXEC do not exist there.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_FLAGS |= getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)

# Never writable by others, whatever the umask; a team that shares a folder sets its umask for the group.
_FOLDER_MODE = 0o775


class Output:
    """A file under construction, hashed while it is written.

    It lies under a unique temporary name in `folder` until it is published. Leaving
    the `with` block, for whatever reason, removes it unless it was published.

    What is written is collected in blocks. A full one is hashed and written by
    another thread, past the page cache where the file system allows that.
    """

    def __init__(self, folder: Path, label: str) -> None:
        self.path = folder / f"{label}-{uuid.uuid4().hex}"
        self.bytes = 0
        with writing(self.path):
            self._file = File(self.path, _FLAGS)
        self._exists = True
        self._spoilt = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    @property
    def sha256(self) -> str:
        """The sha256 of the finished file."""
        return self._file.sha256

    def write(self, content: bytes | memoryview) -> None:
        """Append all of `content`, a run of bytes. A failure shows in `finish` at the latest."""
        self.bytes += len(content)
        with self._spoiling():
            self._file.write(memoryview(content))

    def finish(self) -> None:
        """Bring the content to the disk. After this the file only awaits its name."""
        if self._spoilt:
            raise OutputError(message("a file whose writing failed cannot be finished", file=self.path))
        with self._spoiling():
            self._file.finish()

    def publish_at(self, path: Path) -> None:
        """Give the finished file its final name. Durable after `sync_folder(path.parent)`."""
        self.finish()
        move(self.path, path)
        self._exists = False

    def discard(self) -> None:
        """Remove the file unless it was published."""
        with suppress(OSError):  # It is discarded anyway.
            self._file.close()
        if self._exists:
            self._exists = False
            remove(self.path)

    @contextmanager
    def _spoiling(self) -> Iterator[None]:
        """Remember a failure in the block: nothing may be tried again on this file."""
        self._spoilt = True
        with writing(self.path, self.bytes):
            yield
        self._spoilt = False


def replace(path: Path, content: bytes, temporary: Path | None = None) -> None:
    """Replace the content of the file `path`, durably and all at once.

    It is written in the folder `temporary`, which is swept after a
    crash, or beside the file under a hidden name.
    """
    place, label = (path.parent, f".{path.name}") if temporary is None else (temporary, path.stem)
    with Output(place, label) as output:
        output.write(content)
        output.publish_at(path)
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents, durably; none of them is writable by others."""
    for made in have_folder(path):
        sync_folder(made.parent)


def have_folder(path: Path) -> list[Path]:
    """Make a folder and its missing parents, not durably yet; return those that were missing."""
    with writing(path):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in (*reversed(missing), path):  # mkdir(parents=True) has a mode of its own for parents.
            folder.mkdir(_FOLDER_MODE, exist_ok=True)
    return missing


def refuse_link(path: Path) -> None:
    """Raise OutputError if a folder of the run is a link: files would be made and removed somewhere else."""
    if path.is_symlink():
        raise OutputError(
            message("a folder of ours is a link", "remove the link, then run again", folder=path)
        )


def sync_file(path: Path, descriptor: int) -> None:
    """Bring the content of an open file to the disk."""
    with writing(path):
        sync(descriptor)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk, where the system can (Windows has no such call).

    Some file systems cannot (vboxsf, older CIFS, some of FUSE): their names are
    as safe after a power cut as these systems make them. PostgreSQL does the
    same: it ignores EINVAL and EBADF. A failing disk gives other errors.
    """
    if os.name == "nt":
        return
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            sync(descriptor)
        except OSError as error:
            if error.errno not in {*UNSUPPORTED, errno.EBADF}:
                raise
        finally:
            os.close(descriptor)


def move(path: Path, new: Path, *, missing_ok: bool = False) -> None:
    """Give a file another name, all at once, and instead of whatever has it. Durable after `sync_folder`."""
    with writing(new), suppress(*([FileNotFoundError] if missing_ok else [])):
        path.replace(new)


def remove_if_empty(folder: Path) -> None:
    """Remove a folder unless there is something in it, or it is in use, or it is not there."""
    with suppress(OSError):
        folder.rmdir()


def remove(path: Path) -> None:
    """Remove a file if it is there."""
    with writing(path):
        path.unlink(missing_ok=True)


def sweep(folder: Path, prefix: str = "") -> int:
    """Remove the files in `folder` whose names begin with `prefix`; return how many."""
    refuse_link(folder)
    if not folder.is_dir():
        return 0
    stale = [path for path in folder.iterdir() if path.name.startswith(prefix) and not path.is_dir()]
    for path in stale:
        remove(path)
    return len(stale)


@contextmanager
def writing(path: Path, needed: int = 0) -> Iterator[None]:
    """Turn any failure of the operating system in the block into an OutputError that names `path`."""
    try:
        yield
    except OSError as error:
        raise OutputError(_what_failed(path, error, needed)) from error


def _what_failed(path: Path, error: OSError, needed: int) -> str:
    if isinstance(error, files.Refused):
        return message(
            "the output cannot be written: something else lies where a file of ours belongs",
            "find out who put it there and remove it, then run the same command again:"
            " it continues where it stopped",
            file=path,
            found=error.strerror,
        )
    name = errno.errorcode.get(error.errno or 0, "error")
    reason = f"{error.strerror or error} ({name})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        action = "free some space, then run the same command again: it continues where it stopped"
        return message(
            "no space is left for the output", action, file=path, reason=reason, bytes_so_far=f"{needed:,}"
        )
    return message(
        "the output cannot be written",
        "fix this, then run the same command again: it continues where it stopped",
        file=path,
        reason=reason,
    )
