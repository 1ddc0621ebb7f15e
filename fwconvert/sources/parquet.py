"""Read the text of a source shard: parquet in, batches of valid UTF-8 out.

Memory does not grow with the file or with its row groups: pages are read as
they are needed. Whatever is wrong with a file (not parquet, cut short, no such
column, bad UTF-8) becomes a SourceError that names it, and never wrong text.
"""

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fwconvert import files
from fwconvert.errors import ColumnError, SourceError, message
from fwconvert.sources import pages
from fwconvert.sources.catalog import Size
from fwconvert.sources.filters import Sieve

# The target size of a batch, over all columns. A batch costs the encoder about a millisecond, whatever is in
# it: batches of 0.8 MB took a quarter more CPU. From 3 to 24 MB no difference is clear of the noise.
BATCH_BYTES = 6 * 2**20
MOST_BATCH_ROWS = 8192

# No larger footer is loaded just to look at it. One of a thousand columns in a hundred row groups has 9 MB.
MOST_FOOTER_BYTES = 64 * 2**20
_MAGIC, _ENCRYPTED_MAGIC = b"PAR1", b"PARE"
# After the footer: its length and the magic bytes, which are also at the start of the file.
_END_BYTES = 8


@dataclass(frozen=True)
class TextBatch:
    """The documents among some rows. `texts` has no null and no empty text."""

    texts: pa.Array
    rows: NDArray[np.int64]
    seen: int
    null_rows: int
    empty_rows: int
    # The whole column, its first row in the source, and which of it the filter keeps; None: all.
    column: pa.Array = None
    first_row: int = 0
    kept: NDArray[np.int64] | None = None

    @property
    def filtered_rows(self) -> int:
        """How many rows the filter rejects."""
        return 0 if self.kept is None else self.seen - len(self.kept)

    def until(self, row: int) -> "TextBatch":
        """Return the batch as if it ended before this row of the source."""
        seen = row - self.first_row
        kept = None if self.kept is None else self.kept[self.kept < seen]
        return _documents(self.column.slice(0, seen), self.first_row, kept)

    @property
    def text_bytes(self) -> int:
        """The size of the texts in UTF-8."""
        return int(pc.sum(pc.binary_length(self.texts)).as_py() or 0)


@dataclass(frozen=True)
class Proof:
    """The state of a file when it was hashed."""

    sha256: str
    bytes: int
    mtime_ns: int


def prove(path: Path, tick: Callable[[], None]) -> Proof:
    """Hash a file. `tick` is called now and then and may raise to stop."""
    with reading(path), files.open_to_read(path) as file:
        sha256 = files.sha256_of_open(file, lambda _: tick())
        state = os.fstat(file.fileno())
    return Proof(sha256, state.st_size, state.st_mtime_ns)


def look(path: Path, sha256: str) -> Proof:
    """Return the state of a file whose sha256 is already known."""
    with reading(path):
        state = files.state_of(path)
    return Proof(sha256, state.st_size, state.st_mtime_ns)


def size_of(path: Path) -> int:
    """Return the size of a file."""
    with reading(path):
        return files.state_of(path).st_size


def unchanged(path: Path, proof: Proof) -> None:
    """Raise SourceError if the file has changed since it was hashed."""
    with reading(path):
        state = files.state_of(path)
    if (state.st_size, state.st_mtime_ns) != (proof.bytes, proof.mtime_ns):
        raise SourceError(
            message(
                "a source file was changed while it was read", "leave it unchanged and run again", file=path
            )
        )


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


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of reading into a SourceError that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SourceError(_unread(path, error)) from error


def _unread(path: Path, error: Exception) -> str:
    """Explain why a file was not read; an error of the system is not blamed on the content."""
    reason = " ".join(str(error).split())[:500]
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return message("a source file is missing", "put it back, then run the same command again", file=path)
    if isinstance(error, files.Refused):
        return message(
            "a source is not a regular file",
            "put the file itself there, then run the same command again",
            file=path,
            found=error.strerror,
        )
    if isinstance(error, PermissionError):
        return message(
            "a source file may not be read",
            "get the permission to read it, then run the same command again",
            file=path,
            reason=error.strerror or reason,
        )
    if isinstance(error, OSError) and error.errno is not None:
        return message(
            "a source file cannot be read",
            "check the disk or network that it is on, then run the same command again",
            file=path,
            reason=error.strerror or reason,
        )
    return message(
        "a source file cannot be read as parquet",
        "replace the file with a good copy, then run the same command again",
        file=path,
        reason=reason,
    )


def row_count(path: Path) -> int:
    """Return the number of rows in the footer."""
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
    with reading(path), _natively(path) as (regular, file), _opened(file) as parquet:
        wanted, first = _wanted(parquet, path, text_column, sieve), 0
        if sieve is None:
            for column in pages.texts(regular, parquet.metadata, text_column, BATCH_BYTES, MOST_BATCH_ROWS):
                yield _documents(_as_text(column, path, first), first)
                first += len(column)
        for rows in _from_row(parquet, first, wanted):
            column = _as_text(rows.column(rows.schema.names.index(text_column)), path, first)
            yield _documents(column, first, None if sieve is None else sieve.kept(rows, path))
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


def _from_row(parquet: pq.ParquetFile, first: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows from `first` on, by pyarrow."""
    group, place = _row_group(parquet, first)
    if group is None:
        return
    steps = {"batch_size": batch_rows(parquet.metadata), "row_groups": range(group, parquet.num_row_groups)}
    for rows in parquet.iter_batches(**steps, columns=columns, use_threads=False):
        if place < rows.num_rows:
            yield rows.slice(place)
        place = max(0, place - rows.num_rows)


@dataclass(frozen=True)
class Wanted:
    """What is looked at: the row group at some place of a file, from 0 to 1, but no more than some bytes."""

    place: float
    text_column: str
    sieve: Sieve | None
    most_bytes: int


def sample(
    file: Path | io.RawIOBase, name: str, what: Wanted, is_new: Callable[[int], bool]
) -> "Sampled | None":
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
        for batch in parquet.iter_batches(**steps):
            column = _as_text(batch.column(batch.schema.names.index(text_column)), path, seen)
            found.append(_documents(column, seen, None if sieve is None else sieve.kept(batch, path)))
            seen += batch.num_rows
            if seen * mean >= what.most_bytes:
                break
    return Sampled(size, tuple(found), seen, round(seen * mean))


@dataclass(frozen=True)
class Sampled:
    """Some documents of a file. `size` is that of the whole file, as its footer has it."""

    size: Size
    batches: tuple[TextBatch, ...]
    rows: int
    # About as many of the bytes that the footer counts belong to these rows.
    footer_bytes: int


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


@dataclass(frozen=True)
class Row:
    """One row: its text, as an array of one, and its columns `id` and `url`, if there are any."""

    text: pa.Array
    id: str | None
    url: str | None


def read_row(file: Path | io.RawIOBase, name: str, row: int, text_column: str) -> Row:
    """Return a row of a local or remote parquet file; reads one row group of it.

    Raises SourceError, with `name`, if the file cannot be read or has no such row.
    """
    path = Path(name)
    with reading(path), _opened(file) as parquet:
        _check_column(parquet, path, text_column)
        group, place = _row_group(parquet, row)
        if group is None:
            raise SourceError(message("a source file has no such row", file=name, row=f"{row:,}"))
        known = [column for column in ("id", "url") if parquet.schema_arrow.names.count(column) == 1]
        columns = [*dict.fromkeys([text_column, *known])]
        steps = {"batch_size": batch_rows(parquet.metadata), "row_groups": [group], "columns": columns}
        for rows in parquet.iter_batches(**steps, use_threads=False):
            if place < rows.num_rows:
                labels = {name: _label(rows[name][place]) for name in known}
                text = _as_text(rows[text_column].slice(place, 1), path, row)
                return Row(text, labels.get("id"), labels.get("url"))
            place -= rows.num_rows
    raise SourceError(message("a source file has fewer rows than its footer says", file=name))


def _label(value: pa.Scalar) -> str | None:
    return str(value) if value.is_valid else None


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


@contextmanager
def _natively(path: Path) -> Iterator[tuple[io.FileIO, pa.NativeFile]]:
    """Open a file for reading all of it, twice: letting pyarrow read by itself saves a tenth of decoding.

    If a pipe is put there in between, a worker blocks, and is killed as
    stalled; a different file is noticed.
    """
    with files.open_to_read(path) as regular, pa.OSFile(os.fsencode(path)) as file:
        # Windows has no such pipes, and its file ids differ between libraries.
        if os.name == "posix" and not os.path.samestat(os.fstat(regular.fileno()), os.fstat(file.fileno())):
            raise OSError(errno.ESTALE, "it was replaced while it was opened", str(path))
        yield regular, file


def _wanted(parquet: pq.ParquetFile, path: Path, text_column: str, sieve: Sieve | None) -> list[str]:
    """Return the columns to read, each once, or raise ColumnError if one is missing."""
    _check_column(parquet, path, text_column)
    if sieve is None:
        return [text_column]
    sieve.check(parquet.schema_arrow, path)
    return [*dict.fromkeys([text_column, *sieve.columns])]


def _check_column(parquet: pq.ParquetFile, path: Path, name: str) -> None:
    """Raise ColumnError unless the column is there. pyarrow itself reads nothing for a misspelt name."""
    schema = parquet.schema_arrow
    if schema.names.count(name) != 1 or not _is_text(schema.field(name).type):
        found = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise ColumnError(
            message(
                "a source file has no such text column",
                "name the column that holds the text with --text-column",
                file=path,
                wanted=f"{name} (string)",
                columns=found[:2000],
            )
        )


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    tests = (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
        pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
        pa.types.is_null,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def _as_text(column: pa.Array, path: Path, first_row: int) -> pa.Array:
    """Return the column as string or large_string, checked to be UTF-8."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    try:
        column = column.cast(pa.large_string() if large else pa.string())
        column.validate(full=True)  # Parquet's reader does not check that strings are UTF-8.
    except pa.ArrowInvalid as error:
        last_row = first_row + len(column) - 1
        raise SourceError(
            message(
                "a source file holds text that is not UTF-8",
                file=path,
                rows=f"{first_row:,} to {last_row:,}",
                reason=error,
            )
        ) from error
    return column


def _documents(column: pa.Array, first_row: int, kept: NDArray[np.int64] | None = None) -> TextBatch:
    chosen = column if kept is None else column.take(pa.array(kept))
    lengths, nulls = pc.binary_length(chosen), chosen.null_count
    if nulls:
        lengths = pc.fill_null(lengths, 0)
    full = np.flatnonzero(lengths.to_numpy())
    texts = chosen if len(full) == len(chosen) else chosen.take(pa.array(full))
    rows = full if kept is None else kept[full]
    empties = len(chosen) - len(full) - nulls
    return TextBatch(texts, rows + first_row, len(column), nulls, empties, column, first_row, kept)
