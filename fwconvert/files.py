"""The one door to files that somebody else may have put in our way.

A run folder may lie on a shared machine, and a source may come from anywhere.
So whoever opens a file that already has a name does it here: for reading only
a regular file is opened, and a pipe or a device is refused before it can keep
us waiting; for writing, links and second names are refused too, before a byte
changes. New files are made by `atomic` alone, under names that nobody has.

All of it raises OSError, which callers turn into an error of their own.
"""

import errno
import hashlib
import io
import os
import stat
from collections.abc import Callable
from pathlib import Path

# Without O_NONBLOCK a pipe would be waited for. O_BINARY exists on Windows only, the others do not there.
_SAFE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_READ_BYTES = 4 * 2**20


def open_to_read(path: Path) -> io.FileIO:
    """Open a regular file, or what a link to one leads to; anything else is an OSError, at once."""
    # Before it is opened, too: for some devices that alone does something.
    _refuse_other_than_regular(path, path.stat())
    return _opened(path, os.O_RDONLY | _SAFE)


def open_to_write(path: Path, *, create: bool = True, append: bool = False) -> io.FileIO:
    """Open a regular file for reading and writing, as it is; a link, or a file with two names, is an OSError.

    What we write goes into the file of this name and into no other.
    """
    flags = os.O_RDWR | _SAFE | getattr(os, "O_NOFOLLOW", 0)
    flags |= (os.O_CREAT if create else 0) | (os.O_APPEND if append else 0)
    # O_NOFOLLOW alone would say "too many levels of symbolic links", and Windows has no such flag.
    if path.is_symlink():
        raise OSError(errno.EINVAL, "it is a link, and we write through none", str(path))
    if path.exists():
        _refuse_other_than_regular(path, path.stat())
    file = _opened(path, flags)
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        raise OSError(errno.EINVAL, "it has another name elsewhere (a hard link)", str(path))
    return file


def sha256_of(path: Path, tick: Callable[[int], None] = lambda _: None) -> str:
    """Return the sha256 of a regular file. `tick` is given how many were read, and may raise to stop."""
    with open_to_read(path) as file:
        return sha256_of_open(file, tick)


def sha256_of_open(file: io.FileIO, tick: Callable[[int], None] = lambda _: None) -> str:
    """Return the sha256 of an open file, from where it stands to its end."""
    digest = hashlib.sha256()
    part = memoryview(bytearray(min(_READ_BYTES, max(1, os.fstat(file.fileno()).st_size))))
    while size := file.readinto(part):
        digest.update(part[:size])
        tick(size)
    return digest.hexdigest()


def _opened(path: Path, flags: int) -> io.FileIO:
    descriptor = os.open(path, flags, 0o644)
    try:
        # What was looked at before may be another file by now.
        _refuse_other_than_regular(path, os.fstat(descriptor))
        return io.FileIO(descriptor, "r+b" if flags & os.O_RDWR else "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _refuse_other_than_regular(path: Path, state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
