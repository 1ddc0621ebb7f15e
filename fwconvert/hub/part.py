"""What has arrived of a file: a part file, named after its content, that any later call can complete.

Several connections bring several ranges of one file at once, so a part has gaps.
It is divided into pieces; of each piece a prefix has arrived, whose length stands
in a small file beside the part. Data is written before its count, so after a
killed process every counted byte is there. After a power cut that is not certain,
which is one reason why a file is published only once its sha256 is right.

The sha256 is computed in order while the file grows.
"""

import hashlib
import io
import os
import struct
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fwconvert import files, machine
from fwconvert.recipes import SourceShard
from fwconvert.store import atomic, layout

if sys.platform != "win32":
    import fcntl

PART, PIECES = ".part", ".pieces"
# How often to check whether another user of a part is done with it.
_LOOK_SECONDS = 1.0
# A mark, the size of the file and of its pieces, and which start of the machine wrote it.
_HEAD = struct.Struct("<8sQQ40s")
_MAGIC = b"fwpiece1"

# The parts in use by threads of this process: two sources may have equal content, and not every file
# system has locks.
_IN_USE: set[Path] = set()
_IN_USE_LOCK = threading.Lock()


class ContentMismatch(Exception):
    """The server sent something other than what the manifest lists."""


def part_name(file: SourceShard, revision: str) -> str:
    """Return the name of a file's part, which depends on its content alone, so that any run can use it.

    Where the sha256 is unknown, the revision and the path stand for the content.
    """
    return f"{file.sha256 or layout.job_key(f'{revision}/{file.bytes}/{file.path}')}{PART}"


class Part:
    """What has arrived of a file. It is locked while it is open.

    Windows can neither rename nor remove an open file, so on every system a part
    is closed first. Between the two it is not locked, and another process may
    open it: a part that is whole and verified, or one that is empty. After reading
    it, that process checks whether the part still has its name; if not, it finds
    the file in its place. If it checks before the rename, it has nothing to add to
    a whole part, its own rename fails, and it looks for the file again. So this
    race may cost a second fetch, but what is published was always verified.

    One thread calls `hash_more`; any number of threads may call `write`.
    """

    piece_bytes = 2 * 2**20

    def __init__(self, path: Path, content: SourceShard, file: io.FileIO) -> None:
        self._path = path
        self._content = content
        self._file = file
        self._record: io.FileIO | None = None
        # Guards the file's position, and the counts.
        self._lock = threading.Lock()
        self._counts = array("I", bytes(4 * -(-content.bytes // self.piece_bytes)))
        self._sha256 = hashlib.sha256()
        self._hashed = 0

    @classmethod
    @contextmanager
    def opened(cls, path: Path, content: SourceShard, pause: Callable[[float], None]) -> Iterator["Part"]:
        """Open an existing part or create one. Two processes, or two of these blocks, never have the same."""
        with _reserved(path, pause):
            while True:
                with atomic.writing(path):
                    file = files.open_to_write(path)
                with file:
                    if _locked(file):
                        part = cls(path, content, file)
                        part._resume()
                        if files.has_its_name(file, path):
                            try:
                                yield part
                            finally:
                                part._close()
                            return
                        part._close()
                # Closed while waiting, or Windows would not let it be renamed.
                pause(_LOOK_SECONDS)

    @property
    def pieces(self) -> int:
        """How many pieces the file has."""
        return len(self._counts)

    @property
    def arrived(self) -> int:
        """How many bytes have arrived."""
        with self._lock:
            return sum(self._counts)

    @property
    def is_whole(self) -> bool:
        """Whether all bytes have arrived and are hashed."""
        return self._hashed == self._content.bytes

    @property
    def first_missing(self) -> int:
        """Where the first bytes are missing; the size of the file if none are."""
        ends = ((self.piece_begin(piece), self.piece_end(piece)) for piece in range(self.pieces))
        return next((begin for begin, end in ends if begin < end), self._content.bytes)

    def piece_begin(self, piece: int) -> int:
        """Return where the missing bytes of a piece begin; where the next piece does if none is missing."""
        return piece * self.piece_bytes + self._counts[piece]

    def piece_end(self, piece: int) -> int:
        """Return where a piece ends."""
        return min((piece + 1) * self.piece_bytes, self._content.bytes)

    def write(self, position: int, content: memoryview) -> None:
        """Write bytes that arrived; those before them in the same piece have arrived already."""
        with self._lock:
            while content:
                piece = position // self.piece_bytes
                size = min(len(content), self.piece_end(piece) - position)
                self._write_to_piece(piece, position, content[:size])
                content, position = content[size:], position + size

    def _write_to_piece(self, piece: int, position: int, content: memoryview) -> None:
        with atomic.writing(self._path, position):
            self._file.seek(position)
            while content:
                written = self._file.write(content) or 0
                content, position = content[written:], position + written
                # After each call: a disk that is full may take a part of it.
                self._counts[piece] = max(self._counts[piece], position - piece * self.piece_bytes)
                self._note(piece)

    def hash_more(self, tick: Callable[[], None]) -> bool:
        """Hash what has arrived without a gap behind what is hashed; return whether that was anything."""
        begun = self._hashed
        while self._hashed < self._content.bytes:
            piece = self._hashed // self.piece_bytes
            size = self.piece_begin(piece) - self._hashed
            if not size:
                break
            with self._lock:  # The position in the file is one for all.
                self._file.seek(self._hashed)
                content = self._file.read(size) or b""
            if not content:
                raise ContentMismatch(f"it has {self._hashed:,} bytes on disk, not {self._content.bytes:,}")
            self._sha256.update(content)
            self._hashed += len(content)
            tick()
        return self._hashed > begun

    def verify(self) -> None:
        """Raise ContentMismatch if this is not the whole file."""
        wanted, found = self._content, self._sha256.hexdigest()
        if self._hashed != wanted.bytes:
            raise ContentMismatch(f"it has {self._hashed:,} bytes, not {wanted.bytes:,}")
        if wanted.sha256 not in (None, found):
            raise ContentMismatch(f"the sha256 is {found}, not {wanted.sha256}")
        # A part may have been longer, and without file locks another process may have written as well.
        size = os.fstat(self._file.fileno()).st_size
        if size != wanted.bytes:
            raise ContentMismatch(f"it has {size:,} bytes on disk, not {wanted.bytes:,}")

    def restart(self) -> None:
        """Throw away everything that has arrived."""
        with self._lock, atomic.writing(self._path):
            self._counts = array("I", bytes(4 * len(self._counts)))
            self._write_record()  # First: a count without its data would be believed.
            self._file.truncate(0)
            self._sha256 = hashlib.sha256()
            self._hashed = 0

    def discard(self) -> None:
        """Remove the files."""
        self._close()
        # In this order: counts beyond the end of the part are not believed.
        atomic.remove(self._path)
        self._remove_record()

    def discard_if_empty(self) -> None:
        """Remove the files if nothing has arrived."""
        if not self.arrived:
            self.discard()

    def sync(self) -> None:
        """Flush the content to disk."""
        atomic.sync_file(self._path, self._file.fileno())

    def publish(self, place: Path) -> bool:
        """Move the file to its place; return whether it still existed.

        Unless it is to be kept, it need not be synced: it is verified again before it is used.
        """
        self._close()
        self._remove_record()  # First: a whole part needs no counts.
        with atomic.writing(place):
            try:
                self._path.replace(place)
            except FileNotFoundError:
                return False
        return True

    def _remove_record(self) -> None:
        if self._record is not None:
            atomic.remove(self._path.with_suffix(PIECES))

    def _close(self) -> None:
        with self._lock:
            self._file.close()
            if self._record is not None:
                self._record.close()

    def _resume(self) -> None:
        """Find out what an earlier call has left; a part without counts has no gaps."""
        size = os.fstat(self._file.fileno()).st_size
        path = self._path.with_suffix(PIECES)
        if len(self._counts) <= 1:
            self._count_prefix(size)
            return
        with atomic.writing(path):
            self._record = files.open_to_write(path)
            saved = self._record.read(_HEAD.size + 4 * len(self._counts)) or b""
        if saved:
            self._believe(saved, size)
        elif self._content.sha256 is not None:
            self._count_prefix(size)
        with atomic.writing(path):
            self._write_record()

    def _count_prefix(self, size: int) -> None:
        for piece in range(len(self._counts)):
            begin = piece * self.piece_bytes
            self._counts[piece] = max(0, min(size, self.piece_end(piece)) - begin)

    def _believe(self, saved: bytes, size: int) -> None:
        """Take over saved counts if they can be right."""
        if len(saved) != _HEAD.size + 4 * len(self._counts):
            return
        *head, boot = _HEAD.unpack_from(saved)
        if head != [_MAGIC, self._content.bytes, self.piece_bytes]:
            return
        # After a power cut there may be counts of data that never reached the disk; only a sha256 tells.
        if self._content.sha256 is None and (not boot.strip(b"\0") or boot != _boot_id()):
            return
        counts = array("I", saved[_HEAD.size :])
        if sys.byteorder == "big":
            counts.byteswap()
        for piece, count in enumerate(counts):
            begin = piece * self.piece_bytes
            if count and begin + count > min(size, self.piece_end(piece)):
                return
        self._counts = counts

    def _note(self, piece: int) -> None:
        """Save the count of one piece."""
        if self._record is not None:
            self._record.seek(_HEAD.size + 4 * piece)
            self._record.write(self._counts[piece].to_bytes(4, "little"))

    def _write_record(self) -> None:
        if self._record is None:
            return
        counts = array("I", self._counts)
        if sys.byteorder == "big":
            counts.byteswap()
        self._record.seek(0)
        self._record.write(
            _HEAD.pack(_MAGIC, self._content.bytes, self.piece_bytes, _boot_id()) + counts.tobytes()
        )
        self._record.truncate()


def _boot_id() -> bytes:
    return machine.boot_id().encode()[:40].ljust(40, b"\0")


@contextmanager
def _reserved(path: Path, pause: Callable[[float], None]) -> Iterator[None]:
    """Reserve a part for this block; wait while another one has it."""
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
        pass  # A file system without locks: what two processes have written is verified as a whole.
    return True
