"""The messages of an Arrow file or stream, looked at before pyarrow reads them: how large, how many rows.

A file of 200 bytes may ask for the memory of 2**60. So the few numbers that
decide it are read here from the metadata, which is a flatbuffer: where a batch
lies, and what its buffers say they unpack to. What is within bounds is given to
pyarrow, which checks everything else.

Files (Feather too) and streams consist of the same messages; a file has a footer
that tells where they are, a stream is walked. What ends without saying so is cut
short.
"""

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAGIC = b"ARROW1"
FEATHER_1 = b"FEA1"
CONTINUATION = b"\xff\xff\xff\xff"
# Of one batch, packed or unpacked, with all its columns: Feather's batches have 65,536 rows.
MOST_BATCH_BYTES = 2**30
_MOST_METADATA = 4 * 2**20
_MOST_FOOTER = 64 * 2**20
_MOST_ROWS = 2**31 - 1
# Before the footer: the mark of the end, and padding.
_MOST_GAP = 128

# Numbers of the format (Message.fbs, File.fbs).
SCHEMA, DICTIONARY, BATCH = 1, 2, 3
_BLOCK, _BUFFER = struct.Struct("<qi4xq"), struct.Struct("<qq")


@dataclass(frozen=True)
class Message:
    """One message: where it lies, and how large it is."""

    kind: int
    begin: int
    head_bytes: int
    body_bytes: int
    rows: int
    # Of its buffers: where they begin in the body, and how long they are.
    buffers: tuple[tuple[int, int], ...]
    is_packed: bool

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.begin + self.head_bytes + self.body_bytes


def batches_of(file: io.RawIOBase) -> Iterator[Message]:
    """Yield the messages of a file or stream in the order in which they are to be read, the schema first.

    Raises ValueError if it is neither, or if one is impossible.
    """
    file.seek(0)
    head = file.read(8) or b""
    if head.startswith(FEATHER_1):
        raise ValueError("it is Feather of the first version: write it anew with pyarrow.feather")
    yield from _of_file(file) if head.startswith(MAGIC) else _of_stream(file)


def _of_stream(file: io.RawIOBase) -> Iterator[Message]:
    at = 0
    while (found := _message(file, at)) is not None:
        yield found
        at = found.end
    # The mark of its end has 8 bytes, or 4 in the oldest ones.
    left = file.seek(0, io.SEEK_END) - at
    if left == 0:
        raise ValueError("it is cut short: there is no end of the stream")
    if left > 8:
        raise ValueError("there is something else after the end of the stream")


def _of_file(file: io.RawIOBase) -> Iterator[Message]:
    size = file.seek(0, io.SEEK_END)
    end = _read(file, size - 10, 10) if size >= 18 else b""
    length = int.from_bytes(end[:4], "little")
    if end[4:] != MAGIC:
        raise ValueError("it is cut short: it does not end with the magic bytes of Arrow")
    if not 0 < length <= min(size - 18, _MOST_FOOTER):
        raise ValueError(f"its footer claims {length:,} bytes, but the file has room for {size - 18:,}")
    footer = _table_in(_read(file, size - 10 - length, length))
    first = _message(file, 8)
    if first is None or first.kind != SCHEMA:
        raise ValueError("it does not begin with a schema")
    yield first
    last = first.end
    for kind, field in ((DICTIONARY, 2), (BATCH, 3)):
        begin, count = footer.vector(field, _BLOCK.size)
        for number in range(count):
            at, _, _ = _BLOCK.unpack_from(footer.data, begin + number * _BLOCK.size)
            found = _message(file, at) if 8 <= at < size else None
            if found is None or found.kind != kind:
                raise ValueError("its footer names a message that is not there")
            yield found
            last = max(last, found.end)
    # Two files in one: the footer of the second would fit the messages of the first.
    if not 0 <= size - 10 - length - last <= _MOST_GAP:
        raise ValueError("there is something between its last batch and its footer")


def _message(file: io.RawIOBase, at: int) -> Message | None:
    """Return the message at some place, or None at the mark of the end, or where the file ends."""
    head = _upto(file, at, 8)
    if not head:
        return None
    prefix = 8 if head[:4] == CONTINUATION else 4
    length = int.from_bytes(head[prefix - 4 : prefix], "little", signed=True)
    if len(head) < prefix:
        raise ValueError("it is cut short")
    if length == 0:
        return None
    if not 0 < length <= _MOST_METADATA:
        raise ValueError("it is no Arrow file: a message has an impossible length")
    found = _table_in(_read(file, at + prefix, length))
    kind, header = found.number(1, "<B"), found.table(2)
    body, size = found.number(3, "<q"), file.seek(0, io.SEEK_END)
    if kind not in (SCHEMA, DICTIONARY, BATCH) or header is None:
        raise ValueError("it has a message that is neither a schema, a dictionary nor a batch")
    if not 0 <= body <= size - at - prefix - length:
        raise ValueError("it is cut short, or a message has an impossible length")
    batch = header.table(1) if kind == DICTIONARY else header if kind == BATCH else None
    if batch is None:
        return Message(kind, at, prefix + length, body, 0, (), is_packed=False)
    rows = batch.number(0, "<q")
    begin, count = batch.vector(2, _BUFFER.size)
    buffers = tuple(_BUFFER.unpack_from(batch.data, begin + at * _BUFFER.size) for at in range(count))
    if not 0 <= rows <= _MOST_ROWS or not all(_is_inside(one, body) for one in buffers):
        raise ValueError("it is damaged: a batch has impossible rows or buffers")
    if body > MOST_BATCH_BYTES:
        _refuse_large(body)
    return Message(kind, at, prefix + length, body, rows, buffers, batch.table(3) is not None)


def _is_inside(buffer: tuple[int, int], body: int) -> bool:
    begin, length = buffer
    return 0 <= begin <= body and 0 <= length <= body - begin


def unpacked_bytes(file: io.RawIOBase, message: Message) -> int:
    """Return what the buffers of a message say they unpack to; raise ValueError if that is too much."""
    if not message.is_packed:
        return message.body_bytes
    total, body = 0, message.begin + message.head_bytes
    for begin, length in message.buffers:
        # At its head stands the unpacked size; -1: it is not packed.
        size = int.from_bytes(_read(file, body + begin, 8), "little", signed=True) if length >= 8 else -1
        total += size if size >= 0 else length
    if total > MOST_BATCH_BYTES:
        _refuse_large(total)
    return total


def _refuse_large(size: int) -> None:
    raise ValueError(
        f"it has a batch of {size:,} bytes, more than {MOST_BATCH_BYTES:,}:"
        " write it anew with fewer rows in each"
    )


def parts(file: io.RawIOBase, message: Message) -> Iterator[bytes]:
    """Yield the bytes of a message, as a reader of streams asks for them."""
    prefix = 8 if _read(file, message.begin, 4) == CONTINUATION else 4
    yield _read(file, message.begin, prefix)
    yield _read(file, message.begin + prefix, message.head_bytes - prefix)
    if message.body_bytes:
        yield _read(file, message.begin + message.head_bytes, message.body_bytes)


def _upto(file: io.RawIOBase, at: int, size: int) -> bytes:
    file.seek(at)
    found = file.read(size) or b""
    while len(found) < size and (more := file.read(size - len(found))):
        found += more
    return found


def _read(file: io.RawIOBase, at: int, size: int) -> bytes:
    found = _upto(file, at, size)
    if len(found) < size:
        raise ValueError("it is cut short")
    return found


@dataclass(frozen=True)
class _Table:
    """A table in a flatbuffer: fields by number, each perhaps not there."""

    data: bytes
    at: int

    def _field(self, number: int) -> int:
        """Return where a field lies, or 0 if it is not there."""
        vtable = self.at - self._number(self.at, "<i")
        size, slot = self._number(vtable, "<H"), 4 + 2 * number
        offset = self._number(vtable + slot, "<H") if slot + 2 <= size else 0
        return self.at + offset if offset else 0

    def number(self, number: int, kind: str) -> int:
        """Return a field that is a number; 0 if it is not there."""
        place = self._field(number)
        return self._number(place, kind) if place else 0

    def table(self, number: int) -> "_Table | None":
        """Return a field that is a table."""
        place = self._field(number)
        return _Table(self.data, place + self._number(place, "<I")) if place else None

    def vector(self, number: int, item_bytes: int) -> tuple[int, int]:
        """Return where the items of a vector begin, and how many there are."""
        place = self._field(number)
        if not place:
            return 0, 0
        begin = place + self._number(place, "<I")
        count = self._number(begin, "<I")
        if begin + 4 + count * item_bytes > len(self.data):
            raise ValueError("it is damaged: a list is longer than its message")
        return begin + 4, count

    def _number(self, at: int, kind: str) -> int:
        if not 0 <= at <= len(self.data) - struct.calcsize(kind):
            raise ValueError("it is damaged: its metadata points outside itself")
        found: tuple[Any, ...] = struct.unpack_from(kind, self.data, at)
        return int(found[0])


def _table_in(data: bytes) -> _Table:
    return _Table(data, _Table(data, 0)._number(0, "<I"))  # noqa: SLF001  # of the same class
