"""Read a text column page by page where it is laid out as FineWeb-Edu's is: a third faster than pyarrow.

Half of pyarrow's time goes into its snappy, the rest into copies: a page into
the dictionary, the dictionary into the column. cramjam's snappy is faster, and
a text needs to be copied once, from its page to its place in the batch. So the
one layout that nearly all text comes in is read here: a flat column of byte
arrays, compressed with snappy, in pages of the first version, plain or by
dictionary, without nulls.

Nothing is decided here about what is wrong with a file. Whatever is not
exactly as expected, from a null to a damaged byte, ends the reading before
that page, and pyarrow continues at that row: it knows every other layout, and
its errors are the ones that a user sees.
"""

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

# Larger pages and headers are pyarrow's. Writers aim at pages of 1 MB, but a single text may be longer.
_MOST_PAGE_BYTES = 64 * 2**20
_MOST_HEADER_BYTES = 2**18
_READ_BYTES = 4 * 2**20
# Runs that take more are not remembered.
_MOST_REMEMBERED_BYTES = 2**16

# Numbers of the format (parquet.thrift): types of pages, encodings, and the types of the compact protocol.
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_TRUE, _FALSE, _INTEGERS, _BINARY, _STRUCT = 1, 2, (4, 5, 6), 8, 12

_length_at = struct.Struct("<I").unpack_from


class _UnexpectedError(Exception):
    """What comes next is for pyarrow to read, or to refuse."""


# What damaged bytes may raise on their way through this module.
_WRONG = (_UnexpectedError, ValueError, IndexError, KeyError, struct.error, cramjam.DecompressionError)


def texts(
    file: io.RawIOBase, metadata: pq.FileMetaData, column: str, most_bytes: int, most_rows: int
) -> Iterator[pa.Array]:
    """Yield the texts of a column from the first row on, in batches, for as long as they are as expected.

    The texts are not checked to be UTF-8. A batch has at most `most_rows`, and
    ends at the latest with the page that brings it to `most_bytes`. Raises
    OSError if the file cannot be read.
    """
    with closing(_Window(file)) as window, closing(_Batch()) as batch:
        pages = _pages(window, metadata, column, batch)
        while True:
            try:
                found = next(pages, None)
            except _WRONG:
                found = None
            if found is None:
                break
            batch.add(found)
            if batch.bytes >= most_bytes or batch.rows >= most_rows:
                yield from _split(batch.take(), most_rows)
        if batch.rows:
            yield from _split(batch.take(), most_rows)


def first_values(
    file: io.RawIOBase, metadata: pq.FileMetaData, column: str, group: int, rows: int
) -> pa.Array | NDArray[Any]:
    """Return the first values of a column in a row group: `rows` of them, or as many as are as expected.

    Texts as an array that was not checked to be UTF-8, numbers as numpy's. Raises OSError if the file cannot
    be read. For columns that nothing depends on: what is unusual about them is never an error.
    """
    with closing(_Window(file)) as window, closing(_Batch()) as batch:
        found: list[NDArray[Any]] = []
        try:
            width = _number_type(metadata, column)
            if width is None:
                values = _pages(window, metadata, column, batch, range(group, group + 1))
                while batch.rows < rows and (one := next(values, None)) is not None:
                    batch.add(one)
            else:
                for numbers in _numbers(window, metadata, column, batch, group, width):
                    found.append(numbers)
                    if sum(map(len, found)) >= rows:
                        break
        except _WRONG:
            pass
        if batch.rows:
            return batch.take()[:rows]
        return np.concatenate([np.empty(0), *found])[:rows]


def _number_type(metadata: pq.FileMetaData, column: str) -> np.dtype[Any] | None:
    """Return the type of a flat column of numbers, or None if it may be one of texts."""
    kinds = {"DOUBLE": "<f8", "FLOAT": "<f4", "INT64": "<i8", "INT32": "<i4"}
    schema = metadata.schema
    found = [one for one in map(schema.column, range(len(schema))) if one.path == column]
    _expect(len(found) == 1)
    kind = kinds.get(found[0].physical_type)
    return None if kind is None else np.dtype(kind)


def _numbers(
    window: "_Window",
    metadata: pq.FileMetaData,
    column: str,
    batch: "_Batch",
    group: int,
    kind: np.dtype[Any],
) -> Iterator[NDArray[Any]]:
    """Yield the numbers of each data page of a row group; raise one of _WRONG if one is not as expected."""
    index, is_optional = _place_of(metadata, column, kind)
    left = _enter(window, metadata, index, group)
    dictionary = np.empty(0, kind)
    while left > 0:
        header, content = _page(window, batch)
        if header[1] == _DICTIONARY_PAGE:
            _expect(not len(dictionary) and header[7][2] in (_PLAIN, _PLAIN_DICTIONARY))
            dictionary = np.frombuffer(content, kind, header[7][1]).copy()
            continue
        rows, encoding = header[5][1], header[5][2]
        _expect(0 < rows <= left)
        if is_optional:
            content = _without_levels(content, rows, header[5][3])
        if encoding == _PLAIN:
            yield np.frombuffer(content, kind, rows).copy()
        else:
            _expect(encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY) and 0 < content[0] <= 32)
            yield dictionary[_runs(content[1:], content[0], rows)]
        left -= rows


def _split(texts: pa.Array, most_rows: int) -> Iterator[pa.Array]:
    return (texts.slice(at, most_rows) for at in range(0, len(texts), most_rows))


@dataclass(frozen=True)
class _Values:
    """Some texts: where they lie in an unpacked page, and how long each is."""

    page: memoryview
    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]


# Memory of pages that is free to be used again, by the next file too. Fresh memory is expensive: the kernel
# has to find and clear it.
_spare: list[bytearray] = []
_MOST_SPARE = 16
_LARGEST_SPARE = 8 * 2**20


def _take_memory(size: int) -> bytearray:
    found = _spare.pop() if _spare else bytearray()
    # A power of two is likely to be enough for the next page, too.
    return found if len(found) >= size else bytearray(1 << max(20, (size - 1).bit_length()))


def _give_back(memory: bytearray) -> None:
    if len(_spare) < _MOST_SPARE and 0 < len(memory) <= _LARGEST_SPARE:
        _spare.append(memory)


class _Batch:
    """Texts that are still where they were unpacked, and the memory they lie in."""

    def __init__(self) -> None:
        self._values: list[_Values] = []
        self.rows = self.bytes = 0
        self._used: list[bytearray] = []
        # Later batches may need it, too.
        self._dictionary = bytearray()

    def memory(self, size: int, *, dictionary: bool) -> memoryview:
        """Return memory for an unpacked page: of the batch, or of the dictionary, which replaces the last."""
        found = _take_memory(size)
        if dictionary:
            self._dictionary, last = found, self._dictionary
            self._used.append(last)
        else:
            self._used.append(found)
        return memoryview(found)[:size]

    def add(self, values: _Values) -> None:
        self._values.append(values)
        self.rows += len(values.lengths)
        self.bytes += int(values.lengths.sum(dtype=np.int64))

    def take(self) -> pa.Array:
        """Return all texts as one array, copied, and forget them."""
        views = np.concatenate([_views(values, number) for number, values in enumerate(self._values)])
        pages = [pa.py_buffer(values.page) for values in self._values]
        viewed = pa.Array.from_buffers(pa.string_view(), self.rows, [None, pa.py_buffer(views), *pages])
        array = viewed.cast(pa.large_string())
        self._values.clear()
        self.rows = self.bytes = 0
        while self._used:
            _give_back(self._used.pop())
        return array

    def close(self) -> None:
        """Give all memory back."""
        for memory in (*self._used, self._dictionary):
            _give_back(memory)


# Arrow's view of a text: its length, and up to 12 bytes the text itself, otherwise four of them, the number
# of its page and its place there.
_VIEW = np.dtype([("length", "<i4"), ("head", "V4"), ("page", "<i4"), ("start", "<i4")])
_SHORT = 12


def _views(values: _Values, page: int) -> NDArray[Any]:
    views = np.zeros(len(values.lengths), _VIEW)  # What copies the texts does not ask for their heads.
    views["length"], views["page"], views["start"] = values.lengths, page, values.starts
    short = np.flatnonzero(values.lengths <= _SHORT)
    if len(short):
        places = values.starts[short, None] + np.arange(_SHORT, dtype=np.int32)
        content = np.frombuffer(values.page, np.uint8)
        found = content[np.minimum(places, len(content) - 1)]
        found[np.arange(_SHORT) >= values.lengths[short, None]] = 0
        views.view(np.uint8).reshape(-1, _VIEW.itemsize)[short, 4:] = found
    return views


def _pages(
    window: "_Window",
    metadata: pq.FileMetaData,
    column: str,
    batch: _Batch,
    groups: range | None = None,
) -> Iterator[_Values]:
    """Yield the texts of each data page; raise one of _WRONG at the first that is not as expected."""
    index, is_optional = _place_of(metadata, column)
    for number in range(metadata.num_row_groups) if groups is None else groups:
        left = _enter(window, metadata, index, number)
        dictionary = _Values(memoryview(b""), np.empty(0, np.int32), np.empty(0, np.int32))
        while left > 0:
            header, content = _page(window, batch)
            if header[1] == _DICTIONARY_PAGE:
                _expect(not len(dictionary.lengths) and header[7][2] in (_PLAIN, _PLAIN_DICTIONARY))
                dictionary = _plain(content, header[7][1])
                continue
            rows, encoding = header[5][1], header[5][2]
            _expect(0 <= rows <= left)
            if is_optional:
                content = _without_levels(content, rows, header[5][3])
            if encoding == _PLAIN:
                yield _plain(content, rows)
            else:
                _expect(encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY))
                yield _looked_up(dictionary, content, rows)
            left -= rows


def _enter(window: "_Window", metadata: pq.FileMetaData, column: int, number: int) -> int:
    """Go to the pages of a column in a row group; return how many rows it has."""
    group = metadata.row_group(number)
    _expect(group.num_columns == metadata.num_columns)
    chunk = group.column(column)
    # Asking for its codec would let a damaged footer end the process (pyarrow 26).
    _expect(chunk.num_values == group.num_rows and not chunk.file_path)
    begin, size, first = chunk.data_page_offset, chunk.total_compressed_size, chunk.dictionary_page_offset
    if chunk.has_dictionary_page and first is not None and 0 < first < begin:
        begin = first
    end = window.file_bytes - metadata.serialized_size
    _expect(begin >= 0 and 0 <= size <= end - begin)
    window.move(begin, size)
    return int(group.num_rows)


def _expect(holds: bool) -> None:  # noqa: FBT001  # reads as a sentence
    if not holds:
        raise _UnexpectedError


def _place_of(
    metadata: pq.FileMetaData, column: str, numbers: np.dtype[Any] | None = None
) -> tuple[int, bool]:
    """Return the index of a flat column, of texts or of `numbers`, and whether its rows may be null."""
    schema = metadata.schema
    found = [index for index in range(len(schema)) if schema.column(index).path == column]
    _expect(len(found) == 1)
    described = schema.column(found[0])
    _expect(numbers is not None or described.physical_type == "BYTE_ARRAY")
    _expect(described.max_repetition_level == 0 and described.max_definition_level in (0, 1))
    return found[0], described.max_definition_level == 1


class _Window:
    """The bytes of a column chunk, read as they are needed."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self.file_bytes = file.seek(0, io.SEEK_END)
        self._memory = bytearray()
        # Where the file is read next, and how much of the chunk is left there.
        self._at = self._left = 0
        # What was read and not skipped yet.
        self._begin = self._end = 0

    def move(self, begin: int, size: int) -> None:
        """Go to a chunk."""
        self._at, self._left = begin, size
        self._begin = self._end = 0

    def ahead(self, wanted: int) -> memoryview:
        """Return the next bytes: at least as many as wanted, or all there are."""
        there = self._end - self._begin
        if there < wanted and self._left:
            rest = bytes(memoryview(self._memory)[self._begin : self._end])
            most = min(max(wanted, _READ_BYTES), there + self._left)
            if len(self._memory) < most:
                _give_back(self._memory)
                self._memory = _take_memory(most)
            self._memory[:there] = rest
            self._begin, self._end = 0, there
            self._fill()
        return memoryview(self._memory)[self._begin : self._end]

    def skip(self, size: int) -> None:
        self._begin += size

    def close(self) -> None:
        """Give the memory back."""
        _give_back(self._memory)

    def _fill(self) -> None:
        self._file.seek(self._at)
        with memoryview(self._memory) as memory:
            while self._left and self._end < len(memory):
                most = min(len(memory) - self._end, self._left)
                read = self._file.readinto(memory[self._end : self._end + most])
                _expect(bool(read))
                self._end, self._at, self._left = self._end + read, self._at + read, self._left - read


def _page(window: _Window, batch: _Batch) -> tuple[dict[int, Any], memoryview]:
    """Return the header of the next page and its content, checked and unpacked."""
    header, begin = _struct(window.ahead(_MOST_HEADER_BYTES), 0, 0)
    kind, size, packed_size, checksum = header[1], header[2], header[3], header.get(4)
    _expect(kind in (_DATA_PAGE, _DICTIONARY_PAGE))
    _expect(0 < size <= _MOST_PAGE_BYTES and 0 < packed_size <= _MOST_PAGE_BYTES)
    packed = window.ahead(begin + packed_size)[begin : begin + packed_size]
    _expect(len(packed) == packed_size)
    _expect(checksum is None or zlib.crc32(packed) == checksum & 0xFFFFFFFF)
    # Whether it is snappy shows here: what is not compressed has this size, and what is compressed otherwise
    # does not unpack to it.
    _expect(packed_size != size)
    content = batch.memory(size, dictionary=kind == _DICTIONARY_PAGE)
    _expect(cramjam.snappy.decompress_raw_into(packed, content) == size)
    window.skip(begin + packed_size)
    return header, content


def _struct(content: memoryview, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return a struct of thrift's compact protocol, by its fields' numbers, and where it ends."""
    _expect(depth < 4)
    fields: dict[int, Any] = {}
    number = 0
    while (head := content[at]) != 0:
        step, kind = head >> 4, head & 15
        at += 1
        if step:
            number += step
        else:
            number, at = _integer(content, at)
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        elif kind in _INTEGERS:
            fields[number], at = _integer(content, at)
        elif kind == _BINARY:  # The least and the greatest text: not needed.
            size, at = _unsigned(content, at)
            at += size
        elif kind == _STRUCT:
            fields[number], at = _struct(content, at, depth + 1)
        else:
            raise _UnexpectedError
    return fields, at + 1


def _unsigned(content: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = content[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        _expect(shift < 64)


def _integer(content: memoryview, at: int) -> tuple[int, int]:
    number, at = _unsigned(content, at)
    return (number >> 1) ^ -(number & 1), at


def _plain(content: memoryview, count: int) -> _Values:
    """Return byte arrays that lie one after the other, each after its length."""
    at, ends = 0, [0]
    _expect(0 <= count <= len(content) // 4)
    for _ in range(count):
        at += 4 + _length_at(content, at)[0]
        ends.append(at)
    _expect(at == len(content))
    bounds = np.array(ends, np.int32)
    return _Values(content, bounds[:-1] + np.int32(4), np.diff(bounds) - np.int32(4))


def _looked_up(dictionary: _Values, content: memoryview, rows: int) -> _Values:
    """Return the entries of the dictionary whose numbers are in a page."""
    _expect(0 < content[0] <= 32)
    numbers = _runs(content[1:], content[0], rows)
    _expect(rows == 0 or int(numbers.max()) < len(dictionary.lengths))
    return _Values(dictionary.page, dictionary.starts[numbers], dictionary.lengths[numbers])


def _without_levels(content: memoryview, rows: int, encoding: int) -> memoryview:
    """Return a page without the levels that tell its nulls, of which there may be none."""
    size = 4 + _length_at(content, 0)[0]
    _expect(encoding == _RLE and size <= len(content) and bool(_runs(content[4:size], 1, rows).all()))
    return content[size:]


def _runs(content: memoryview, width: int, count: int) -> NDArray[np.int64]:
    """Return `count` numbers of `width` bits, as runs of equal ones or packed by eight."""
    # They are often those of the last page: all levels are 1, all texts are new.
    if len(content) <= _MOST_REMEMBERED_BYTES:
        return _remembered_runs(bytes(content), width, count)
    return _new_runs(content, width, count)


@lru_cache(8)
def _remembered_runs(content: bytes, width: int, count: int) -> NDArray[np.int64]:
    return _new_runs(memoryview(content), width, count)


def _new_runs(content: memoryview, width: int, count: int) -> NDArray[np.int64]:
    numbers, done, at = np.empty(count, np.int64), 0, 0
    while done < count:
        head, at = _unsigned(content, at)
        if head & 1:
            size = (head >> 1) * width
            _expect(0 < size <= len(content) - at)
            packed = np.frombuffer(content, np.uint8, size, at)
            bits = np.unpackbits(packed, bitorder="little").reshape(-1, width)
            found = bits[: count - done] @ (1 << np.arange(width, dtype=np.int64))
            numbers[done : done + len(found)] = found
            done += len(found)
        else:
            size, length = (width + 7) // 8, min(head >> 1, count - done)
            _expect(length > 0 and at + size <= len(content))
            numbers[done : done + length] = int.from_bytes(content[at : at + size], "little")
            done += length
        at += size
    return numbers
