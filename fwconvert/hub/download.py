"""Fetch one file from the hub: resumed at the exact byte after a crash, verified before it is published.

What has arrived is kept in a part file named after the content, so a later call
finds it and never mistakes it for another. Its sha256 is computed as bytes
arrive. If a server ignores ranges, the bytes that we already have are skipped.
"""

import hashlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fwconvert import files
from fwconvert.errors import SourceError, Stopped, message
from fwconvert.hub.client import endpoint
from fwconvert.hub.remote import Remote
from fwconvert.hub.retry import Retry, TransientError
from fwconvert.recipes import SourceShard
from fwconvert.store import atomic, layout

if sys.platform != "win32":
    import fcntl

_READ_BYTES = 4 * 2**20
_CONTENT_TRIES = 2
# How often to check whether another user of a part is done with it.
_LOOK_SECONDS = 1.0

# The parts in use by threads of this process: two sources may have equal content, and not every file
# system has locks.
_IN_USE: set[Path] = set()
_IN_USE_LOCK = threading.Lock()


class _ContentMismatch(Exception):
    """The server sent something other than what the manifest lists."""


@dataclass(frozen=True)
class Download:
    """How a file is fetched: from where, for how long to retry, and where to report progress."""

    remote: Remote
    patience: float
    stop: threading.Event
    # Called with the number of bytes received, and with notices for the user.
    count: Callable[[int], None]
    tell: Callable[[str], None]
    # Files are kept in a folder of the user's. Nothing there is ever replaced, because it may not be ours;
    # so each file is synced before it gets its name, and a power cut cannot leave a damaged one.
    keeps: bool = False

    def fetch(self, file: SourceShard, place: Path, parts: Path) -> None:
        """Put the whole, verified file at `place`; raise SourceError if it cannot be fetched.

        HubError means that no file can be fetched now, OutputError that there is
        no space for it. What has arrived stays in the folder `parts` for the next call.
        """
        while not self._is_there(file, place):
            atomic.refuse_link(parts)
            for folder in (parts, place.parent):
                atomic.have_folder(folder)
            with _Part.opened(parts / part_name(file, self.remote.revision), self._pause) as part:
                if not self._is_there(file, place):
                    try:
                        self._download_verified(file, part)
                    except BaseException:
                        part.discard_if_empty()
                        raise
                if self._publish(file, part, place):
                    return

    def _publish(self, file: SourceShard, part: "_Part", place: Path) -> bool:
        """Move a part to its place, unless the file is there already; return whether it is there now."""
        if self.keeps:
            part.sync()
        if self._is_there(file, place):
            part.discard()
            return True
        published = part.publish(place)
        if published and self.keeps:
            atomic.sync_folder(place.parent)
        return published

    def is_right(self, file: SourceShard, place: Path) -> bool:
        """Return whether the file at `place` is the right one, by its size and, if known, its sha256."""
        try:
            if files.state_of(place).st_size != file.bytes:
                return False
            return file.sha256 is None or files.sha256_of(place, self._tick) == file.sha256
        except OSError:  # A file that cannot be read cannot be verified.
            return False

    def _is_there(self, file: SourceShard, place: Path) -> bool:
        """Return whether the file is in its place; raise SourceError if another one is, which must stay."""
        if self.is_right(file, place):
            return True
        if self.keeps and os.path.lexists(place):
            raise SourceError(_occupied_message(file, place))
        return False

    def _download_verified(self, file: SourceShard, part: "_Part") -> None:
        for attempt in range(1, _CONTENT_TRIES + 1):
            try:
                self._download(file, part)
                part.verify(file)
            except _ContentMismatch as wrong:
                part.restart()
                if attempt == _CONTENT_TRIES:
                    part.discard()
                    raise SourceError(self._mismatch_message(file, wrong)) from None
                self.tell(f"{file.path}: {wrong}; fetching it again")
            else:
                return

    def _download(self, file: SourceShard, part: "_Part") -> None:
        retry = Retry(self.patience, self.stop, self.tell)
        while part.bytes < file.bytes:
            try:
                self._append_response(file, part, retry)
            except TransientError as error:
                retry.wait_or_raise(error, file.path)

    def _append_response(self, file: SourceShard, part: "_Part", retry: Retry) -> None:
        """Append what one request returns."""
        with self.remote.open_range(file.path, part.bytes) as answer:
            if answer.is_past_end:
                raise _ContentMismatch(f"the server's file ends before byte {part.bytes:,} of {file.bytes:,}")
            if answer.total is not None and answer.total != file.bytes:
                raise _ContentMismatch(f"the server has {answer.total:,} bytes instead of {file.bytes:,}")
            if answer.begin > part.bytes:
                raise TransientError(f"the server sent bytes from {answer.begin:,} on, not {part.bytes:,}")
            # Skip what we already have.
            skip = part.bytes - answer.begin
            for chunk in answer:
                self._pause(0)
                new, skip = chunk[skip:], max(0, skip - len(chunk))
                if part.bytes + len(new) > file.bytes:
                    raise _ContentMismatch(f"the server sent more than {file.bytes:,} bytes")
                part.add(new)
                self.count(len(new))
                retry.received(len(chunk), file.path, new=bool(new))
        if part.bytes < file.bytes:
            raise TransientError(f"the response ended after {part.bytes:,} of {file.bytes:,} bytes")

    def _pause(self, seconds: float) -> None:
        if self.stop.wait(seconds) if seconds else self.stop.is_set():
            raise Stopped("stopped by the user")

    def _tick(self, _: int) -> None:
        self._pause(0)

    def _mismatch_message(self, file: SourceShard, wrong: _ContentMismatch) -> str:
        return message(
            f"the server sent bytes that do not match the manifest, {_CONTENT_TRIES} times",
            "a mirror or proxy may serve corrupt bytes: use another HF_ENDPOINT",
            file=file.path,
            wanted=f"{file.bytes:,} bytes, sha256 {file.sha256 or 'any'}",
            found=wrong,
            endpoint=endpoint(),
        )


def part_name(file: SourceShard, revision: str) -> str:
    """Return the name of a file's part, which depends on its content alone, so that any run can use it.

    Where the sha256 is unknown, the revision and the path stand for the content.
    """
    return f"{file.sha256 or layout.job_key(f'{revision}/{file.bytes}/{file.path}')}.part"


def _occupied_message(file: SourceShard, place: Path) -> str:
    return message(
        "another file is where this source is to be kept; it is not replaced",
        "move it away, or choose another --keep-source; then run the same command again",
        place=place,
        wanted=f"{file.bytes:,} bytes, sha256 {file.sha256 or 'any'}",
        found=_described(place, file.bytes),
    )


def _described(place: Path, wanted: int) -> str:
    try:
        size = files.state_of(place).st_size
        return f"{size:,} bytes" if size != wanted else f"{size:,} bytes, sha256 {files.sha256_of(place)}"
    except FileNotFoundError:
        return "a broken link"
    except OSError as error:
        return f"something that cannot be read: {error.strerror}"


class _Part:
    """What has arrived of a file, and its sha256. It is locked while it is open.

    Windows can neither rename nor remove an open file, so on every system a part
    is closed first. Between the two it is not locked, and another process may
    open it: a part that is whole and verified, or one that is empty. After reading
    it, that process checks whether the part still has its name; if not, it finds
    the file in its place. If it checks before the rename, it has nothing to add to
    a whole part, its own rename fails, and it looks for the file again. So this
    race may cost a second fetch, but what is published was always verified.
    """

    def __init__(self, path: Path, file: io.FileIO) -> None:
        self._path = path
        self._file = file
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    @classmethod
    @contextmanager
    def opened(cls, path: Path, pause: Callable[[float], None]) -> Iterator["_Part"]:
        """Open an existing part or create one. Two threads or processes never write to the same."""
        with _reserved(path, pause):
            while True:
                with atomic.writing(path):
                    file = files.open_to_write(path, append=True)
                with file:
                    if _locked(file):
                        part = cls(path, file)
                        part._resume(pause)
                        if _still_has_its_name(file, path):
                            yield part
                            return
                # Closed while waiting, or Windows would not let it be renamed.
                pause(_LOOK_SECONDS)

    def add(self, content: bytes) -> None:
        """Append bytes that arrived."""
        view = memoryview(content)
        with atomic.writing(self._path, self.bytes):
            while view:
                view = view[self._file.write(view) or 0 :]
        self._sha256.update(content)
        self.bytes += len(content)

    def verify(self, file: SourceShard) -> None:
        """Raise _ContentMismatch if this is not the whole file."""
        found = self._sha256.hexdigest()
        if self.bytes != file.bytes:
            raise _ContentMismatch(f"it has {self.bytes:,} bytes, not {file.bytes:,}")
        if file.sha256 not in (None, found):
            raise _ContentMismatch(f"the sha256 is {found}, not {file.sha256}")
        # The hash covers what we wrote. Without file locks, another process may have written as well.
        written = os.fstat(self._file.fileno()).st_size
        if written != self.bytes:
            raise _ContentMismatch(f"it has {written:,} bytes on disk, not {file.bytes:,}")

    def restart(self) -> None:
        """Throw away everything that has arrived."""
        with atomic.writing(self._path):
            self._file.truncate(0)
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    def discard(self) -> None:
        """Remove the file."""
        self._file.close()
        atomic.remove(self._path)

    def discard_if_empty(self) -> None:
        """Remove the file if nothing has arrived."""
        if not self.bytes:
            self.discard()

    def sync(self) -> None:
        """Flush the content to disk."""
        atomic.sync_file(self._path, self._file.fileno())

    def publish(self, place: Path) -> bool:
        """Move the file to its place; return whether it still existed.

        Unless it is to be kept, it need not be synced: it is verified again before it is used.
        """
        self._file.close()
        with atomic.writing(place):
            try:
                self._path.replace(place)
            except FileNotFoundError:
                return False
        return True

    def _resume(self, pause: Callable[[float], None]) -> None:
        self._file.seek(0)
        while content := self._file.read(_READ_BYTES):
            self._sha256.update(content)
            self.bytes += len(content)
            pause(0)


@contextmanager
def _reserved(path: Path, pause: Callable[[float], None]) -> Iterator[None]:
    """Reserve a part for this thread during the block; wait while another thread has it."""
    while not _reserve(path):
        pause(_LOOK_SECONDS)
    try:
        yield
    finally:
        _IN_USE.discard(path)


def _reserve(path: Path) -> bool:
    with _IN_USE_LOCK:
        if path in _IN_USE:
            return False
        _IN_USE.add(path)
        return True


def _locked(file: io.FileIO) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # A file system without locks: a part that two have written to fails verification.
    return True


def _still_has_its_name(file: io.FileIO, path: Path) -> bool:
    """Return whether the open file still has its name; the last holder of the lock may have published it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False
