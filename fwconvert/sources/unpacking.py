"""Unpack a file as it is read: plain, gzip or zstd, told apart by its first bytes.

Little is in memory at a time, however far a file expands: gzip is unpacked up to
a size, zstd block by block, and a block has at most 128 KB. A file that is cut
short, or has something else after its end, is an error and never a shorter text.
"""

import io
import zlib
from typing import Any, Protocol

# Read of a packed file at a time, and unpacked of gzip.
_STEP = 2**18
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# The kernel of zstd's format: frames whose content is nobody's, and what a block may have.
_SKIPPABLE, _MOST_BLOCK = b"\x2a\x4d\x18", 2**17
_RAW, _RLE, _COMPRESSED = 0, 1, 2
# What a frame may make a reader remember: as much as `zstd -d` allows unless it is told otherwise.
_MOST_WINDOW = 2**27
_CUT_SHORT = "it is cut short: the packed data ends too early"
_NO_END = "there is something else after the end of the packed data"


class Unpacked(Protocol):
    """The content of a file as a stream."""

    @property
    def consumed(self) -> int:
        """How much of the file was needed for what was read."""

    def read(self, most: int) -> bytes:
        """Return some of the content, at most so much, or nothing at its end.

        Raises ValueError if the file is damaged, and OSError if it cannot be read.
        """


def opened(file: io.RawIOBase) -> Unpacked:
    """Return the content of a file, which is at its beginning."""
    source = _Packed(file)
    head = source.peek(4)
    if head.startswith(_GZIP):
        return _Gzip(source)
    if head == _ZSTD or _is_skippable(head):
        return _Zstd(source)
    return source


def is_packed(head: bytes) -> bool:
    """Return whether a file that begins so is packed."""
    return head.startswith(_GZIP) or head[:4] == _ZSTD or _is_skippable(head[:4])


def _is_skippable(magic: bytes) -> bool:
    return magic[1:] == _SKIPPABLE and magic[0] >> 4 == 5


class _Packed:
    """The bytes of a file, some ahead; as a stream it is a plain file."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self._ahead = b""
        self.consumed = 0

    def read(self, most: int) -> bytes:
        found, self._ahead = self._ahead, b""
        if not found:
            found = self._file.read(most) or b""
        elif len(found) > most:
            found, self._ahead = found[:most], found[most:]
        self.consumed += len(found)
        return found

    def give_back(self, rest: bytes) -> None:
        """Take back what was read and not needed."""
        self._ahead = rest + self._ahead
        self.consumed -= len(rest)

    def peek(self, size: int) -> bytes:
        """Return the next bytes, without having read them; fewer only at the end."""
        while len(self._ahead) < size and (more := self._file.read(_STEP)):
            self._ahead += more
        return self._ahead[:size]

    def take(self, size: int) -> bytes:
        """Read exactly so many bytes."""
        found = self.peek(size)
        if len(found) < size:
            raise ValueError(_CUT_SHORT)
        self._ahead = self._ahead[size:]
        self.consumed += size
        return found


class _Gzip:
    """The members of a gzip file, one after the other. Zeros may follow the last one, as tapes leave them."""

    def __init__(self, source: _Packed) -> None:
        self._source = source
        self._member: zlib._Decompress | None = None

    @property
    def consumed(self) -> int:
        return self._source.consumed

    def read(self, most: int) -> bytes:
        while (member := self._member or self._next()) is not None:
            self._member = member
            packed = self._source.read(_STEP)
            try:
                content = member.decompress(packed, min(most, _STEP))
            except zlib.error as error:
                raise ValueError(f"it is damaged: {error}") from None
            self._source.give_back(member.unused_data if member.eof else member.unconsumed_tail)
            if member.eof:
                self._member = None
            elif not packed and not content:
                raise ValueError(_CUT_SHORT)
            if content:
                return content
        return b""

    def _next(self) -> "zlib._Decompress | None":
        """Return what unpacks the next member, or None at the end of the file."""
        while (head := self._source.peek(1)) == b"\0":
            padding = self._source.read(_STEP)
            self._source.give_back(padding.lstrip(b"\0"))
        if not head:
            return None
        if self._source.peek(2) != _GZIP:
            raise ValueError(_NO_END)
        return zlib.decompressobj(31)


class _Zstd:
    """The frames of a zstd file, given to the library a block at a time: so it can make little at a time."""

    def __init__(self, source: _Packed) -> None:
        import zstandard  # noqa: PLC0415  # only for files that need it

        self._source = source
        self._library = zstandard
        self._frame = self._new()
        self._is_open = False
        self._has_checksum = False
        self._ready = b""

    @property
    def consumed(self) -> int:
        return self._source.consumed

    def read(self, most: int) -> bytes:
        while not self._ready:
            if not self._is_open and not self._begins():
                return b""
            self._ready = self._block()
        found, self._ready = self._ready[:most], self._ready[most:]
        return found

    def _begins(self) -> bool:
        """Begin the next frame; return False at the end of the file."""
        while _is_skippable(head := self._source.peek(4)):
            self._source.take(4)
            left = int.from_bytes(self._source.take(4), "little")
            while left:
                skipped = self._source.read(min(left, _STEP))
                if not skipped:
                    raise ValueError(_CUT_SHORT)
                left -= len(skipped)
        if not head:
            return False
        if head != _ZSTD:
            raise ValueError(_NO_END)
        described = self._source.peek(5)
        if len(described) < 5:
            raise ValueError(_CUT_SHORT)
        flags = described[4]
        is_single, dictionary = flags >> 5 & 1, (0, 1, 2, 4)[flags & 3]
        size = (is_single, 2, 4, 8)[flags >> 6]
        self._has_checksum = bool(flags & 4)
        header = self._source.take(5 + (1 - is_single) + dictionary + size)
        if dictionary:
            raise ValueError("it was packed with a dictionary, which is not in the file")
        self._frame, self._is_open = self._new(), True
        self._unpack(header)
        return True

    def _new(self) -> Any:
        return self._library.ZstdDecompressor(max_window_size=_MOST_WINDOW).decompressobj()

    def _block(self) -> bytes:
        """Return the content of the next block, and end the frame after its last one."""
        head = self._source.take(3)
        number = int.from_bytes(head, "little")
        is_last, kind, size = number & 1, number >> 1 & 3, number >> 3
        if size > _MOST_BLOCK or kind not in (_RAW, _RLE, _COMPRESSED):
            raise ValueError("it is damaged: a block is larger than a block can be, or of no known kind")
        content = self._unpack(head + self._source.take(1 if kind == _RLE else size))
        if is_last:
            if self._has_checksum:
                content += self._unpack(self._source.take(4))
            if not self._frame.eof:
                raise ValueError("it is damaged: a frame does not end where it says")
            self._is_open = False
        return content

    def _unpack(self, packed: bytes) -> bytes:
        try:
            return bytes(self._frame.decompress(packed))
        except self._library.ZstdError as error:
            raise ValueError(
                f"it is damaged, or needs a window of more than {_MOST_WINDOW:,} bytes: {error}"
            ) from None
