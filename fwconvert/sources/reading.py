"""What all readers of sources have in common: batches of text, the proof of a file, and what goes wrong.

Whatever is wrong with a file becomes a SourceError that names it, and never wrong text.
"""

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fwconvert import files
from fwconvert.errors import SourceError, message
from fwconvert.sources.catalog import Size
from fwconvert.sources.filters import Sieve

# The target size of a batch, over all columns. A batch costs the encoder about a millisecond, whatever is in
# it: batches of 0.8 MB took a quarter more CPU. From 3 to 24 MB no difference is clear of the noise.
BATCH_BYTES = 6 * 2**20
MOST_BATCH_ROWS = 8192
# Of a line of JSON, or of a text in an Arrow file; in memory it may take several times as much for a moment.
MOST_DOCUMENT_BYTES = 128 * 2**20


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
    # How much of the source is read after it, as the reader counts; None: its rows.
    read: int | None = None

    @property
    def done(self) -> int:
        """How much of the source is read after it; all of it is what the reader calls its extent."""
        return self.first_row + self.seen if self.read is None else self.read

    @property
    def filtered_rows(self) -> int:
        """How many rows the filter rejects."""
        return 0 if self.kept is None else self.seen - len(self.kept)

    def until(self, row: int) -> "TextBatch":
        """Return the batch as if it ended before this row of the source."""
        seen = row - self.first_row
        kept = None if self.kept is None else self.kept[self.kept < seen]
        return documents(self.column.slice(0, seen), self.first_row, kept, self.read)

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


@contextmanager
def reading(path: Path | str, kind: str = "parquet") -> Iterator[None]:
    """Turn errors of reading into a SourceError that names the file, and what it is read as."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SourceError(_unread(path, kind, error)) from error


def _unread(path: Path | str, kind: str, error: Exception) -> str:
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
        f"a source file cannot be read as {kind}",
        "replace the file with a good copy, then run the same command again",
        file=path,
        reason=reason,
    )


@contextmanager
def natively(path: Path) -> Iterator[tuple[io.FileIO, pa.NativeFile]]:
    """Open a file for reading all of it, twice: letting pyarrow read by itself saves a tenth of decoding.

    If a pipe is put there in between, a worker blocks, and is killed as
    stalled; a different file is noticed.
    """
    with files.open_to_read(path) as regular, pa.OSFile(os.fsencode(path)) as file:
        # Windows has no such pipes, and its file ids differ between libraries.
        if os.name == "posix" and not os.path.samestat(os.fstat(regular.fileno()), os.fstat(file.fileno())):
            raise OSError(errno.ESTALE, "it was replaced while it was opened", str(path))
        yield regular, file


@dataclass(frozen=True)
class Wanted:
    """What is looked at: the part at some place of a file, from 0 to 1, but no more than some bytes.

    A part is a row group, or what is like one in other kinds of files.
    """

    place: float
    text_column: str
    sieve: Sieve | None
    most_bytes: int


@dataclass(frozen=True)
class Sampled:
    """Some documents of a file. `size` is that of the whole file, as its footer has it or as they suggest."""

    size: Size
    batches: tuple[TextBatch, ...]
    rows: int
    # About as many of the bytes that `size` counts belong to these rows.
    footer_bytes: int


@dataclass(frozen=True)
class Row:
    """One row: its text, as an array of one, and its columns `id` and `url`, if there are any."""

    text: pa.Array
    id: str | None
    url: str | None


def label(value: pa.Scalar) -> str | None:
    """Return a value for people; None for null."""
    return str(value) if value.is_valid else None


def as_text(column: pa.Array, path: Path | str, first_row: int) -> pa.Array:
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


def documents(
    column: pa.Array, first_row: int, kept: NDArray[np.int64] | None = None, read: int | None = None
) -> TextBatch:
    """Return the documents of a column of text that begins at some row of its source."""
    chosen = column if kept is None else column.take(pa.array(kept))
    lengths, nulls = pc.binary_length(chosen), chosen.null_count
    if nulls:
        lengths = pc.fill_null(lengths, 0)
    full = np.flatnonzero(lengths.to_numpy())
    texts = chosen if len(full) == len(chosen) else chosen.take(pa.array(full))
    rows = full if kept is None else kept[full]
    empties = len(chosen) - len(full) - nulls
    return TextBatch(texts, rows + first_row, len(column), nulls, empties, column, first_row, kept, read)
