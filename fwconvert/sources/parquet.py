"""Read the text of a source shard: parquet in, batches of valid UTF-8 out.

Memory does not grow with the file or with its row groups: pages are read as
they are needed. Whatever is wrong with a file (not parquet, cut short, no such
column, bad UTF-8) becomes a SourceError that names it, and never wrong text.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fwconvert import files
from fwconvert.errors import SourceError, message
from fwconvert.sources import columns, pages
from fwconvert.sources.catalog import Size
from fwconvert.sources.filters import Sieve
from fwconvert.sources.reading import (
    BATCH_BYTES,
    MOST_BATCH_ROWS,
    Row,
    Sampled,
    TextBatch,
    Wanted,
    as_text,
    documents,
    label,
    natively,
    reading,
)

# No larger footer is loaded just to look at it. One of a thousand columns in a hundred row groups has 9 MB.
MOST_FOOTER_BYTES = 64 * 2**20
_MAGIC, _ENCRYPTED_MAGIC = b"PAR1", b"PARE"
# After the footer: its length and the magic bytes, which are also at the start of the file.
_END_BYTES = 8


def footer_bytes(path: Path) -> int:
    """Return the declared length of the footer without parsing it; raise SourceError if it is impossible."""
    with reading(path), files.open_to_read(path) as file:
        return _footer_bytes(file)


def read_footer(file: Path | io.RawIOBase, name: str) -> bytes:
    """Return the footer of a local or remote file, with its length and magic bytes; nothing is parsed.

    Raises SourceError, with `name`, if there is none, or if it is too long.
    """
    with reading(Path(name)), ExitStack() as opened:
        if isinstance(file, Path):
            file = opened.enter_context(files.open_to_read(file))
        size = _footer_bytes(file)
        if size > MOST_FOOTER_BYTES:
            raise ValueError(f"its footer has {size:,} bytes, more than {MOST_FOOTER_BYTES:,}")
        file.seek(-size - _END_BYTES, io.SEEK_END)
        return file.read(size + _END_BYTES) or b""


def _footer_bytes(file: io.RawIOBase) -> int:
    """Return the length of a footer from the last bytes of its file; raise ValueError if it is impossible."""
    room = file.seek(0, io.SEEK_END) - len(_MAGIC) - _END_BYTES
    if room < 0:
        raise ValueError("it is too short to be parquet")
    file.seek(-_END_BYTES, io.SEEK_END)
    end = file.read(_END_BYTES) or b""
    size = int.from_bytes(end[:4], "little")
    if end[4:] == _ENCRYPTED_MAGIC:
        raise ValueError("its footer is encrypted, which is not supported")
    if end[4:] != _MAGIC:
        raise ValueError("it does not end with the magic bytes of parquet")
    if not 0 < size <= room:
        raise ValueError(f"its footer claims {size:,} bytes, but the file has room for {room:,}")
    return size


def footer(path: Path, most_elements: int | None = None) -> Size:
    """Return the size in the footer, or raise SourceError. No list in it may exceed `most_elements`."""
    with reading(path), _parsed(read_footer(path, str(path)), most_elements) as parquet:
        return Size(parquet.metadata.num_rows, _text_bytes(parquet.metadata))


def batch_rows(metadata: pq.FileMetaData) -> int:
    """Return how many rows to read at a time. A footer that lies costs speed, or some memory."""
    mean = _text_bytes(metadata) // max(1, int(metadata.num_rows))
    return min(MOST_BATCH_ROWS, max(1, BATCH_BYTES // max(1, mean)))


def _text_bytes(metadata: pq.FileMetaData) -> int:
    """Return the size of all columns in the footer; in FineWeb-Edu nearly all of it is text.

    Asking for one column lets a damaged footer end the process (pyarrow 26),
    and this is asked before anything is proven.
    """
    groups = range(metadata.num_row_groups)
    return sum(int(metadata.row_group(group).total_byte_size) for group in groups)


def extent(path: Path) -> int:
    """Return how much there is to read: the rows in the footer."""
    with reading(path), _opened(path) as parquet:
        return int(parquet.metadata.num_rows)


def check_columns(
    footer: bytes, name: str, text_column: str, sieve: Sieve | None, most_elements: int | None = None
) -> None:
    """Raise ColumnError if a file with this footer lacks a column.

    Raises SourceError, with `name`, if the footer cannot be read. No list in it may have more elements.
    """
    with reading(Path(name)), _parsed(footer, most_elements) as parquet:
        _wanted(parquet, Path(name), text_column, sieve)


def batches(path: Path, text_column: str, sieve: Sieve | None = None) -> Iterator[TextBatch]:
    """Yield the documents of a parquet file in order, with their rows.

    A row that the filter rejects is not a document, and is counted as neither null nor empty.
    """
    with reading(path), natively(path) as (regular, file), _opened(file) as parquet:
        wanted, first = _wanted(parquet, path, text_column, sieve), 0
        if sieve is None:
            for column in pages.texts(regular, parquet.metadata, text_column, BATCH_BYTES, MOST_BATCH_ROWS):
                yield documents(as_text(column, path, first), first)
                first += len(column)
        for read in _from_row(parquet, first, wanted):
            rows = columns.flat(read, wanted)
            column = as_text(rows.column(0), path, first)
            yield documents(column, first, None if sieve is None else sieve.kept(rows, path))
            first += rows.num_rows
        if first != parquet.metadata.num_rows:
            raise SourceError(
                message(
                    "a source file does not have the number of rows in its footer",
                    file=path,
                    rows_in_footer=parquet.metadata.num_rows,
                    rows_read=first,
                )
            )


def _from_row(parquet: pq.ParquetFile, first: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows from `first` on, by pyarrow."""
    group, place = _row_group(parquet, first)
    if group is None:
        return
    steps = {"batch_size": batch_rows(parquet.metadata), "row_groups": range(group, parquet.num_row_groups)}
    for rows in parquet.iter_batches(**steps, columns=names, use_threads=False):
        if place < rows.num_rows:
            yield rows.slice(place)
        place = max(0, place - rows.num_rows)


def sample(
    file: Path | io.RawIOBase, name: str, what: Wanted, is_new: Callable[[int], bool]
) -> Sampled | None:
    """Return the documents of a row group, and how large they are; None if it is not new.

    Raises SourceError, with `name`, if it cannot be read. Whoever does not know the file calls it in
    a process of its own.
    """
    text_column, sieve = what.text_column, what.sieve
    path, found = Path(name), []
    with reading(path), _opened(file) as parquet:
        wanted, metadata = _wanted(parquet, path, text_column, sieve), parquet.metadata
        size, groups = Size(metadata.num_rows, _text_bytes(metadata)), metadata.num_row_groups
        if not groups or not size.rows:
            return Sampled(size, (), 0, 0)
        chosen = min(groups - 1, int(groups * what.place))
        if not is_new(chosen):
            return None
        group = metadata.row_group(chosen)
        mean = max(1.0, int(group.total_byte_size) / max(1, group.num_rows))
        rows = max(1, min(batch_rows(metadata), int(what.most_bytes / mean)))
        steps = {"batch_size": rows, "row_groups": [chosen], "columns": wanted, "use_threads": False}
        seen = 0
        for read in parquet.iter_batches(**steps):
            batch = columns.flat(read, wanted)
            column = as_text(batch.column(0), path, seen)
            found.append(documents(column, seen, None if sieve is None else sieve.kept(batch, path)))
            seen += batch.num_rows
            if seen * mean >= what.most_bytes:
                break
    return Sampled(size, tuple(found), seen, round(seen * mean))


def identity(path: Path, row: int) -> str:
    """Return the column `id` of a row, for messages; "unknown" if it cannot be read."""
    try:
        with _opened(path) as parquet:
            group, place = _row_group(parquet, row)
            if group is not None:
                return str(parquet.read_row_group(group, ["id"])["id"][place])
    except (pa.ArrowException, OSError, ValueError, KeyError):
        pass
    return "unknown"


def read_row(file: Path | io.RawIOBase, name: str, row: int, text_column: str) -> Row:
    """Return a row of a local or remote parquet file; reads one row group of it.

    Raises SourceError, with `name`, if the file cannot be read or has no such row.
    """
    path = Path(name)
    with reading(path), _opened(file) as parquet:
        columns.check_text(parquet.schema_arrow, path, text_column)
        group, place = _row_group(parquet, row)
        if group is None:
            raise SourceError(message("a source file has no such row", file=name, row=f"{row:,}"))
        known = [column for column in ("id", "url") if parquet.schema_arrow.names.count(column) == 1]
        names = [*dict.fromkeys([text_column, *known])]
        steps = {"batch_size": batch_rows(parquet.metadata), "row_groups": [group], "columns": names}
        for rows in parquet.iter_batches(**steps, use_threads=False):
            if place < rows.num_rows:
                labels = {name: label(rows[name][place]) for name in known}
                text = as_text(columns.of(rows, text_column).slice(place, 1), path, row)
                return Row(text, labels.get("id"), labels.get("url"))
            place -= rows.num_rows
    raise SourceError(message("a source file has fewer rows than its footer says", file=name))


def _row_group(parquet: pq.ParquetFile, row: int) -> tuple[int | None, int]:
    """Return the row group that contains a row, and the row's index in it."""
    for group in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        if row < rows:
            return group, row
        row -= rows
    return None, row


@contextmanager
def _parsed(footer: bytes, most_elements: int | None) -> Iterator[pq.ParquetFile]:
    """Open a parquet file of which there is only the footer."""
    limits = {"thrift_string_size_limit": len(footer), "thrift_container_size_limit": most_elements}
    with pq.ParquetFile(pa.BufferReader(footer), **limits) as parquet:
        yield parquet


@contextmanager
def _opened(file: Path | io.RawIOBase | pa.NativeFile) -> Iterator[pq.ParquetFile]:
    if isinstance(file, Path):
        # Read by Python, not by pyarrow: a file that was just replaced by a pipe cannot block us, and Ctrl-C
        # works between two reads.
        with files.open_to_read(file) as opened, _opened(opened) as parquet:
            yield parquet
        return
    _footer_bytes(file)  # pyarrow would believe any length.
    # pre_buffer would hold the whole column in memory; buffer_size reads a large
    # row group page by page; checksums are verified where the writer left any.
    with pq.ParquetFile(
        file, pre_buffer=False, buffer_size=2**20, page_checksum_verification=True
    ) as parquet:
        yield parquet


def _wanted(parquet: pq.ParquetFile, path: Path, text_column: str, sieve: Sieve | None) -> list[str]:
    """Return the columns to read, each once, or raise ColumnError if one is missing."""
    columns.check_text(parquet.schema_arrow, path, text_column)
    if sieve is None:
        return [text_column]
    sieve.check(parquet.schema_arrow, path)
    return [*dict.fromkeys([text_column, *sieve.columns])]
