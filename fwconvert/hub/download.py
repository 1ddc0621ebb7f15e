"""Fetch one file from the hub: resumed to the byte after any crash, and proven before anybody sees it.

What has come lies in a part file that is named by the content, so it is found
again and never mistaken for another. Its sha256 is computed as it comes. A
server that ignores ranges costs time, not bytes: what we have is skipped.
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
# How often to look whether whoever has a part has done with it.
_LOOK_SECONDS = 1.0

# The parts that a thread of this process has: two sources may have equal content, and not every file
# system has locks.
_IN_USE: set[Path] = set()
_IN_USE_LOCK = threading.Lock()


class _ContentMismatch(Exception):
    """The server sends something else than the manifest lists."""


@dataclass(frozen=True)
class Download:
    """How a file is fetched: from where, for how long it is retried, and who is told of it."""

    remote: Remote
    patience: float
    stop: threading.Event
    # Given how many bytes have come, and lines for a person.
    count: Callable[[int], None]
    tell: Callable[[str], None]
    # The places are in a folder of the user's. What lies there is never replaced, since we cannot know
    # whose it is; so each file is on the disk before it has its name: a power cut leaves no wrong one.
    keeps: bool = False

    def fetch(self, file: SourceShard, place: Path, parts: Path) -> None:
        """Have the whole file, proven, at `place`; raise SourceError if it is not to be had.

        HubError means that no file can be had now, OutputError that there is
        no space for it. What came is kept in the folder `parts` for the next call.
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
        """Give a part its place, unless another process has the file there; tell whether it is there now."""
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
        """Tell whether the file that lies there is the one, as far as anybody can: by size and sha256."""
        try:
            if files.state_of(place).st_size != file.bytes:
                return False
            return file.sha256 is None or files.sha256_of(place, self._tick) == file.sha256
        except OSError:  # Nobody can tell of what cannot be read.
            return False

    def _is_there(self, file: SourceShard, place: Path) -> bool:
        """Tell whether the file is in its place; raise SourceError if something else is that is to stay."""
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
        """Append what one request brings."""
        with self.remote.open_range(file.path, part.bytes) as answer:
            if answer.is_past_end:
                raise _ContentMismatch(f"the server's file ends before byte {part.bytes:,} of {file.bytes:,}")
            if answer.total is not None and answer.total != file.bytes:
                raise _ContentMismatch(f"the server has {answer.total:,} bytes instead of {file.bytes:,}")
            if answer.begin > part.bytes:
                raise TransientError(f"the server answers from byte {answer.begin:,} on, not {part.bytes:,}")
            # What we have is passed over.
            skip = part.bytes - answer.begin
            for chunk in answer:
                self._pause(0)
                new, skip = chunk[skip:], max(0, skip - len(chunk))
                if part.bytes + len(new) > file.bytes:
                    raise _ContentMismatch(f"the server sends more than {file.bytes:,} bytes")
                part.add(new)
                self.count(len(new))
                retry.received(len(chunk), file.path, new=bool(new))
        if part.bytes < file.bytes:
            raise TransientError(f"the server ended after {part.bytes:,} of {file.bytes:,} bytes")

    def _pause(self, seconds: float) -> None:
        if self.stop.wait(seconds) if seconds else self.stop.is_set():
            raise Stopped("stopped by the user")

    def _tick(self, _: int) -> None:
        self._pause(0)

    def _mismatch_message(self, file: SourceShard, wrong: _ContentMismatch) -> str:
        return message(
            f"the server sent other bytes than the manifest lists, {_CONTENT_TRIES} times",
            "a mirror or proxy serves corrupt bytes: fetch from another HF_ENDPOINT",
            file=file.path,
            wanted=f"{file.bytes:,} bytes, sha256 {file.sha256 or 'any'}",
            found=wrong,
            endpoint=endpoint(),
        )


def part_name(file: SourceShard, revision: str) -> str:
    """Return the name of a file's part: its content's, so that it fits in any run.

    Where nobody knows the sha256, the revision and the path decide the content.
    """
    return f"{file.sha256 or layout.job_key(f'{revision}/{file.bytes}/{file.path}')}.part"


def _occupied_message(file: SourceShard, place: Path) -> str:
    return message(
        "something else lies where this source is to be kept, and is not replaced",
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
        return "a link that leads nowhere"
    except OSError as error:
        return f"something that cannot be read: {error.strerror}"


class _Part:
    """What has come of a file, with its sha256. It is locked while it is open.

    Windows neither renames nor removes a file that is open, so a part is closed
    first, on every system alike. Between the two nobody holds its lock, and
    another process may take it up: a part that is whole and proven, or one that
    is empty. When it has read it, it looks whether the part still has its name,
    and if not it finds the file in its place. Should it look before the name is
    gone, it has nothing to add to a whole part, its own renaming fails, and it
    looks for the file again. So that instant may cost a second fetch, but what
    is published is always what was proven.
    """

    def __init__(self, path: Path, file: io.FileIO) -> None:
        self._path = path
        self._file = file
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    @classmethod
    @contextmanager
    def opened(cls, path: Path, pause: Callable[[float], None]) -> Iterator["_Part"]:
        """Take up a part, or begin one. Two threads or processes never write to the same."""
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
                # Not open while it is waited for, or Windows would not let it be renamed.
                pause(_LOOK_SECONDS)

    def add(self, content: bytes) -> None:
        """Append what came."""
        view = memoryview(content)
        with atomic.writing(self._path, self.bytes):
            while view:
                view = view[self._file.write(view) or 0 :]
        self._sha256.update(content)
        self.bytes += len(content)

    def verify(self, file: SourceShard) -> None:
        """Raise _ContentMismatch if this is not the file."""
        found = self._sha256.hexdigest()
        if self.bytes != file.bytes:
            raise _ContentMismatch(f"there are {self.bytes:,} bytes, not {file.bytes:,}")
        if file.sha256 not in (None, found):
            raise _ContentMismatch(f"the sha256 is {found}, not {file.sha256}")
        # What was hashed is what we wrote. Where there are no locks, another process may have written too.
        written = os.fstat(self._file.fileno()).st_size
        if written != self.bytes:
            raise _ContentMismatch(f"there are {written:,} bytes on the disk, not {file.bytes:,}")

    def restart(self) -> None:
        """Throw everything away."""
        with atomic.writing(self._path):
            self._file.truncate(0)
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    def discard(self) -> None:
        """Remove the file."""
        self._file.close()
        atomic.remove(self._path)

    def discard_if_empty(self) -> None:
        """Remove the file if nothing has come."""
        if not self.bytes:
            self.discard()

    def sync(self) -> None:
        """Bring the content to the disk."""
        atomic.sync_file(self._path, self._file.fileno())

    def publish(self, place: Path) -> bool:
        """Give the file its name; tell whether it was still there.

        Unless it is to be kept, it need not be on the disk yet: it is proven again before it is used.
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
    """Have a part for this thread alone during the block; wait for another that has it."""
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
        pass  # A file system without locks; what two have written is not what either has proven.
    return True


def _still_has_its_name(file: io.FileIO, path: Path) -> bool:
    """Tell whether the open file has its name still; whoever had the lock may have published it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False
