"""The one door to files that other people may have put in our way.

A run folder may lie on a shared machine, and a source may come from anywhere.
So whoever opens a file that already has a name does it here: for reading only
a regular file is opened, and a pipe or a device is refused before it can keep
us waiting; for writing, links and second names are refused too, before a byte
changes. New files are made by `atomic`, under names that nobody has.

A name is given by renaming (`atomic`, `fetch`), which opens nothing: a link
that lies in that place is replaced itself, and what it leads to stays.

All of it raises OSError, which callers turn into an error of their own; what
is no file of ours to open is the OSError `Refused`.
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

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
}


class Refused(OSError):
    """What lies there is not opened: no regular file, or one that is not ours alone to write to."""

    def __str__(self) -> str:
        """Leave out the number, which is none of the system's."""
        return f"{self.strerror}: {self.filename}"


class TooLarge(OSError):
    """A file has more bytes than whoever asked for it takes; nothing of it was read."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(errno.EFBIG, "it is too large", str(path))
        self.size = size


def state_of(path: Path) -> os.stat_result:
    """Return what the system knows of a regular file, or of what a link to one leads to; opens nothing."""
    return _regular(path, path.stat())


def open_to_read(path: Path) -> io.FileIO:
    """Open a regular file, or what a link to one leads to; anything else is an OSError, at once."""
    state_of(path)  # Before it is opened, too: for some devices that alone does something.
    return _opened(path, os.O_RDONLY | _SAFE)


def open_to_write(path: Path, *, create: bool = True, append: bool = False) -> io.FileIO:
    """Open a regular file for reading and writing, as it is; a link, or a file with two names, is an OSError.

    What we write goes into the file of this name and into no other.
    """
    flags = os.O_RDWR | _SAFE | getattr(os, "O_NOFOLLOW", 0)
    flags |= (os.O_CREAT if create else 0) | (os.O_APPEND if append else 0)
    # O_NOFOLLOW alone would say "too many levels of symbolic links", and Windows has no such flag.
    if path.is_symlink():
        raise refused("it is a link, and we write through none", path)
    if path.exists():
        state_of(path)
    file = _opened(path, flags)
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        raise refused("it has another name elsewhere (a hard link)", path)
    return file


def has_its_name(file: io.FileIO, path: Path) -> bool:
    """Return whether an open file still has its name: somebody may have moved or removed it since."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def create(path: Path) -> io.FileIO:
    """Make a file that nobody else has made; if there is anything of that name, that is an OSError."""
    return _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE | getattr(os, "O_NOFOLLOW", 0))


def read(path: Path, most: int) -> bytes:
    """Return the content of a regular file, or its first `most` bytes if there are more."""
    with open_to_read(path) as file:
        left, parts = min(most, os.fstat(file.fileno()).st_size), []
        while left and (part := file.read(left)):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


def read_whole(path: Path, most: int) -> bytes:
    """Return the content of a regular file; one of more than `most` bytes is TooLarge."""
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise TooLarge(path, size)
        return file.read(size) or b""


def holds(path: Path, content: bytes) -> bool:
    """Return whether there is a regular file with this content; what cannot be read holds something else."""
    try:
        return state_of(path).st_size == len(content) and read(path, len(content)) == content
    except OSError:
        return False


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
        _regular(path, os.fstat(descriptor))
        return io.FileIO(descriptor, "r+b" if flags & os.O_RDWR else "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _regular(path: Path, state: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(state.st_mode):
        kind = _KINDS.get(stat.S_IFMT(state.st_mode), "something else")
        raise refused(f"it is {kind}, not a regular file", path)
    return state


def refused(what: str, path: Path) -> Refused:
    """Return the error that says why a file is not opened."""
    return Refused(errno.EINVAL, what, str(path))
