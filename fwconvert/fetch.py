"""Fetch one file from the hub: resumed to the byte after any crash, and proven before anybody sees it.

What has come lies in a part file that is named by the content, so it is found
again and never mistaken for another. Its sha256 is computed as it comes. A
server that ignores ranges costs time, not bytes: what we have is skipped.
"""

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fwconvert import atomic, names
from fwconvert.config import SourceShard
from fwconvert.errors import SourceError, Stopped, message
from fwconvert.hub import Dataset
from fwconvert.hub_client import endpoint
from fwconvert.patience import Passing, Patience

if sys.platform != "win32":
    import fcntl

_READ_BYTES = 4 * 2**20
_CONTENT_TRIES = 2


class _OtherContent(Exception):
    """The server sends something else than the manifest lists."""


@dataclass(frozen=True)
class Fetching:
    """How a file is fetched: from where, how patiently, and who is told of it."""

    dataset: Dataset
    patience: float
    stop: threading.Event
    # Given how many bytes have come, and lines for a person.
    count: Callable[[int], None]
    tell: Callable[[str], None]

    def fetch(self, file: SourceShard, place: Path, parts: Path) -> None:
        """Have the whole file, proven, at `place`; raise SourceError if it is not to be had.

        HubError means that no file can be had now, OutputError that there is
        no space for it. What came is kept in the folder `parts` for the next call.
        """
        if place.is_file() and self._is_right(file, place):
            return
        for folder in (parts, place.parent):
            with atomic.writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
        with _Part.opened(parts / part_name(file, self.dataset.revision), self._pause) as part:
            if place.is_file() and self._is_right(file, place):
                part.discard()
                return  # Another process was fetching it, and has.
            try:
                self._until_right(file, part)
            except BaseException:
                part.discard_if_empty()
                raise
            part.publish(place)

    def _until_right(self, file: SourceShard, part: "_Part") -> None:
        for attempt in range(1, _CONTENT_TRIES + 1):
            try:
                self._fill(file, part)
                part.prove(file)
            except _OtherContent as wrong:
                part.restart()
                if attempt == _CONTENT_TRIES:
                    part.discard()
                    raise SourceError(self._other_content(file, wrong)) from None
                self.tell(f"{file.path}: {wrong}; fetching it again")
            else:
                return

    def _fill(self, file: SourceShard, part: "_Part") -> None:
        patience = Patience(self.patience, self.stop, self.tell)
        while part.bytes < file.bytes:
            try:
                self._pour(file, part, patience)
            except Passing as trouble:
                patience.endure(trouble, file.path)

    def _pour(self, file: SourceShard, part: "_Part", patience: Patience) -> None:
        """Append what one request brings."""
        with self.dataset.opened(file.path, part.bytes) as answer:
            if answer.nothing:
                raise _OtherContent(f"the server's file ends before byte {part.bytes:,} of {file.bytes:,}")
            if answer.total is not None and answer.total != file.bytes:
                raise _OtherContent(f"the server has {answer.total:,} bytes instead of {file.bytes:,}")
            if answer.begin > part.bytes:
                raise Passing(f"the server answers from byte {answer.begin:,} on, not {part.bytes:,}")
            for new in _after(answer, part.bytes - answer.begin):
                self._pause(0)
                if part.bytes + len(new) > file.bytes:
                    raise _OtherContent(f"the server sends more than {file.bytes:,} bytes")
                part.add(new)
                patience.progress()
                self.count(len(new))
        if part.bytes < file.bytes:
            raise Passing(f"the server ended after {part.bytes:,} of {file.bytes:,} bytes")

    def _is_right(self, file: SourceShard, place: Path) -> bool:
        """Tell whether the file that lies there is the one."""
        if place.stat().st_size != file.bytes:
            return False
        return file.sha256 is None or _sha256(place, self._pause) == file.sha256

    def _pause(self, seconds: float) -> None:
        if self.stop.wait(seconds) if seconds else self.stop.is_set():
            raise Stopped("stopped by the user")

    def _other_content(self, file: SourceShard, wrong: _OtherContent) -> str:
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
    return f"{file.sha256 or names.job_key(f'{revision}/{file.bytes}/{file.path}')}.part"


class _Part:
    """What has come of a file, with its sha256."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    @classmethod
    @contextmanager
    def opened(cls, path: Path, pause: Callable[[float], None]) -> Iterator["_Part"]:
        """Take up a part, or begin one. Two processes never write to the same."""
        while True:
            with atomic.writing(path):
                file = path.open("a+b", buffering=0)
            with file:
                while not _locked(file):
                    pause(1.0)
                if _is_still(file, path):
                    part = cls(path, file)
                    part._take_up(pause)
                    yield part
                    return

    def add(self, content: bytes) -> None:
        """Append what came."""
        view = memoryview(content)
        with atomic.writing(self._path, self.bytes):
            while view:
                view = view[self._file.write(view) or 0 :]
        self._sha256.update(content)
        self.bytes += len(content)

    def prove(self, file: SourceShard) -> None:
        """Raise _OtherContent if this is not the file."""
        found = self._sha256.hexdigest()
        if self.bytes != file.bytes:
            raise _OtherContent(f"there are {self.bytes:,} bytes, not {file.bytes:,}")
        if file.sha256 not in (None, found):
            raise _OtherContent(f"the sha256 is {found}, not {file.sha256}")

    def restart(self) -> None:
        """Throw everything away."""
        with atomic.writing(self._path):
            self._file.truncate(0)
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    def discard(self) -> None:
        """Remove the file."""
        atomic.remove(self._path)

    def discard_if_empty(self) -> None:
        """Remove the file if nothing has come."""
        if not self.bytes:
            self.discard()

    def publish(self, place: Path) -> None:
        """Give the file its name. It is proven again before it is used, so it need not be on the disk yet."""
        with atomic.writing(place):
            self._path.replace(place)

    def _take_up(self, pause: Callable[[float], None]) -> None:
        self._file.seek(0)
        while content := self._file.read(_READ_BYTES):
            self._sha256.update(content)
            self.bytes += len(content)
            pause(0)


def _locked(file: BinaryIO) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # A file system without locks; the proof at the end holds all the same.
    return True


def _is_still(file: BinaryIO, path: Path) -> bool:
    """Tell whether the open file has its name still; whoever had the lock may have published it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _after(chunks: Iterable[bytes], skip: int) -> Iterator[bytes]:
    """Yield what comes after the first `skip` bytes."""
    for chunk in chunks:
        if skip < len(chunk):
            yield chunk[skip:]
        skip = max(0, skip - len(chunk))


def _sha256(path: Path, pause: Callable[[float], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while content := file.read(_READ_BYTES):
            digest.update(content)
            pause(0)
    return digest.hexdigest()
