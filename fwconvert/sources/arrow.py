"""Read the text of Arrow files: IPC files (.arrow, .feather), and streams as `datasets` writes them.

A batch of the file is in memory at a time, and no larger one than a stated
size is begun (`messages`). Its text is given on in the same portions as
parquet's. All that is used of a batch is validated before it is looked at, since
offsets of strangers may point anywhere.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fwconvert import files
from fwconvert.errors import FwconvertError, SourceError, message
from fwconvert.sources import columns, messages
from fwconvert.sources.catalog import Size
from fwconvert.sources.filters import Sieve
from fwconvert.sources.messages import BATCH, Message
from fwconvert.sources.reading import (
    BATCH_BYTES,
    MOST_BATCH_ROWS,
    MOST_DOCUMENT_BYTES,
    Row,
    Sampled,
    TextBatch,
    Wanted,
    as_text,
    documents,
    label,
    reading,
)

KIND = "Arrow"
# Of which the unpacked size is looked at, to guess that of the others.
_LOOKED_AT = 4


def extent(path: Path) -> int:
    """Return how much there is to read: rows."""
    with reading(path, KIND), _opened(path) as file:
        return sum(one.rows for one in messages.batches_of(file) if one.kind == BATCH)


def batches(path: Path, text_column: str, sieve: Sieve | None = None) -> Iterator[TextBatch]:
    """Yield the documents of a file in order, with their rows.

    A row that the filter rejects is not a document, and is counted as neither null nor empty.
    """
    with reading(path, KIND), _opened(path) as file:
        names, first = _wanted(_schema(file), path, text_column, sieve), 0
        for rows in _read(file, messages.batches_of(file), names):
            yield from _portions(columns.flat(rows, names), path, first, sieve)
            first += rows.num_rows


def _portions(rows: pa.RecordBatch, path: Path, first: int, sieve: Sieve | None) -> Iterator[TextBatch]:
    """Yield the documents of a batch, about as much text at a time as of parquet."""
    ends, at = np.cumsum(_lengths(rows.column(0), path, first)), 0
    while at < rows.num_rows:
        done = ends[at - 1] if at else 0
        most = int(np.searchsorted(ends, done + BATCH_BYTES, side="right"))
        part = rows.slice(at, min(max(1, most - at), MOST_BATCH_ROWS))
        column = as_text(part.column(0), path, first + at)
        yield documents(column, first + at, None if sieve is None else sieve.kept(part, path))
        at += part.num_rows


def _lengths(column: pa.Array, path: Path, first: int) -> NDArray[np.int64]:
    """Return how long each text is; raise SourceError if one is longer than a document may be."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    if pa.types.is_dictionary(column.type):
        lengths = _lengths(column.dictionary, path, first)
        indices = pc.fill_null(column.indices, 0).to_numpy()
        found = lengths[indices] if len(lengths) else np.zeros(len(column), np.int64)
    elif pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        views = np.frombuffer(column.buffers()[1] or b"", "<i4")
        found = views[4 * column.offset :: 4][: len(column)].astype(np.int64)
    else:
        found = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    if column.null_count:
        found = np.where(column.is_valid().to_numpy(zero_copy_only=False), found, 0)
    if len(found) and found.max() > MOST_DOCUMENT_BYTES:
        raise SourceError(
            message(
                f"a source file has a text of more than {MOST_DOCUMENT_BYTES:,} bytes,"
                " which is more than a document may have",
                "divide it, or replace the file, then run the same command again",
                file=path,
                row=f"{first + int(found.argmax()):,}",
            )
        )
    return found


def check_columns(file: Path | io.RawIOBase, name: str, text_column: str, sieve: Sieve | None) -> None:
    """Raise ColumnError if a file lacks a column; only its schema is read.

    Raises SourceError, with `name`, if that cannot be read.
    """
    with reading(name, KIND), _opened(file) as opened:
        _wanted(_schema(opened), Path(name), text_column, sieve)


def size(path: Path) -> Size:
    """Return how many rows a file has, and about how much is in its columns."""
    with reading(path, KIND), _opened(path) as file:
        return _size(file, [one for one in messages.batches_of(file) if one.kind == BATCH])


def _size(file: io.RawIOBase, found: Sequence[Message]) -> Size:
    some = found[:: -(-len(found) // _LOOKED_AT) or 1]
    unpacked = sum(messages.unpacked_bytes(file, one) for one in some) / max(
        1, sum(one.body_bytes for one in some)
    )
    return Size(sum(one.rows for one in found), round(unpacked * sum(one.body_bytes for one in found)))


def sample(
    file: Path | io.RawIOBase, name: str, what: Wanted, is_new: Callable[[int], bool]
) -> Sampled | None:
    """Return the documents of a batch, and how large they are; None if it is not new.

    Of a stream that is elsewhere only the beginning is looked at: where a batch is, the one before it
    tells. Raises SourceError, with `name`, if it cannot be read.
    """
    path, is_far = Path(name), not isinstance(file, Path)
    with reading(path, KIND), _opened(file) as opened:
        names = _wanted(_schema(opened), path, what.text_column, what.sieve)
        others, found, seen = list[Message](), list[Message](), 0
        for one in messages.batches_of(opened):
            (found if one.kind == BATCH else others).append(one)
            seen += one.body_bytes if one.kind == BATCH else 0
            if is_far and seen >= what.most_bytes:
                break
        if not found:
            return Sampled(Size(0, 0), (), 0, 0)
        chosen = min(len(found) - 1, int(len(found) * what.place))
        if not is_new(chosen):
            return None
        batch, whole = found[chosen], _size(opened, found)
        if is_far:
            share = opened.seek(0, io.SEEK_END) / max(1, found[-1].end - found[0].begin)
            whole = Size(round(whole.rows * max(1.0, share)), round(whole.text_bytes * max(1.0, share)))
        mean = messages.unpacked_bytes(opened, batch) / max(1, batch.rows)
        rows = max(1, min(batch.rows, int(what.most_bytes / max(1.0, mean))))
        documents_ = list[TextBatch]()
        for read in _read(opened, [*others, batch], names):
            documents_ += _portions(columns.flat(read, names).slice(0, rows), path, 0, what.sieve)
    return Sampled(whole, tuple(documents_), min(rows, batch.rows), round(min(rows, batch.rows) * mean))


def identity(path: Path, row: int) -> str:
    """Return the column `id` of a row, for messages; "unknown" if it cannot be read."""
    try:
        with _opened(path) as file:
            rows, at = _rows_with(file, row, ["id"])
            return str(rows.column(rows.schema.names.index("id"))[at])
    except (pa.ArrowException, FwconvertError, OSError, ValueError, KeyError):
        return "unknown"


def read_row(file: Path | io.RawIOBase, name: str, row: int, text_column: str) -> Row:
    """Return a row of a local or remote file; reads one batch of it.

    Raises SourceError, with `name`, if the file cannot be read or has no such row.
    """
    path = Path(name)
    with reading(path, KIND), _opened(file) as opened:
        schema = _schema(opened)
        columns.check_text(schema, path, text_column)
        known = [column for column in ("id", "url") if schema.names.count(column) == 1]
        rows, at = _rows_with(opened, row, [text_column, *known])
        labels = {column: label(columns.of(rows, column)[at]) for column in known}
        text = as_text(columns.of(rows, text_column).slice(at, 1), path, row)
        return Row(text, labels.get("id"), labels.get("url"))


def first_labels(path: Path, rows: int) -> tuple[list[str], list[float]]:
    """Return the URLs and the scores of the first rows; nothing of those that not all of them have."""
    with reading(path, KIND), _opened(path) as file:
        schema = _schema(file)
        known = [name for name in ("url", "score") if columns.type_of(schema, name) is not None]
        first = next(iter(_read(file, messages.batches_of(file), known)), None) if known else None
        if first is None:
            return [], []
        values = {name: columns.of(first, name).slice(0, rows).to_pylist() for name in known}
    urls = [one if isinstance(one, str) else "" for one in values.get("url", ())]
    scores = [one for one in values.get("score", ()) if isinstance(one, int | float)]
    return urls, scores if len(scores) == min(rows, first.num_rows) else []


@contextmanager
def _opened(file: Path | io.RawIOBase) -> Iterator[io.RawIOBase]:
    if isinstance(file, Path):
        with files.open_to_read(file) as opened:
            yield opened
    else:
        yield file


def _wanted(schema: pa.Schema, path: Path, text_column: str, sieve: Sieve | None) -> list[str]:
    """Return the columns to read, each once, or raise ColumnError if one is missing."""
    columns.check_text(schema, path, text_column)
    if sieve is None:
        return [text_column]
    sieve.check(schema, path)
    return [*dict.fromkeys([text_column, *sieve.columns])]


def _schema(file: io.RawIOBase) -> pa.Schema:
    first = next(messages.batches_of(file), None)
    if first is None or first.kind != messages.SCHEMA:
        raise ValueError("it does not begin with a schema")
    return pa.ipc.read_schema(pa.BufferReader(b"".join(messages.parts(file, first))))


def _rows_with(file: io.RawIOBase, row: int, names: Sequence[str]) -> tuple[pa.RecordBatch, int]:
    """Return the batch with a row, and the row's index in it; nothing else of the file is unpacked."""
    others = list[Message]()
    for one in messages.batches_of(file):
        if one.kind != BATCH:
            others.append(one)
        elif row < one.rows:
            return next(iter(_read(file, [*others, one], names))), row
        else:
            row -= one.rows
    raise SourceError(message("a source file has no such row", row=f"{row:,}"))


def _read(file: io.RawIOBase, wanted: Iterable[Message], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the batches among some messages, the schema first; validated, and of these columns alone."""
    schema = _schema(file)
    first = [name if name in schema.names else name.partition(".")[0] for name in names]
    # Whatever is not needed is not unpacked.
    fields = sorted({schema.names.index(name) for name in first})
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
    with pa.ipc.open_stream(pa.PythonFile(_Feed(file, wanted), mode="r"), options=options) as stream:
        for rows in stream:
            rows.validate(full=True)
            yield rows


class _Feed(io.RawIOBase):
    """Messages as a stream, each looked at before any of it is given away."""

    def __init__(self, file: io.RawIOBase, wanted: Iterable[Message]) -> None:
        super().__init__()
        self._parts = chain.from_iterable(self._checked(file, wanted))
        self._left = b""

    @staticmethod
    def _checked(file: io.RawIOBase, wanted: Iterable[Message]) -> Iterator[Iterator[bytes]]:
        total = 0
        for one in wanted:
            size = messages.unpacked_bytes(file, one)
            total += size if one.kind == messages.DICTIONARY else 0  # They stay in memory.
            if total > messages.MOST_BATCH_BYTES:
                raise ValueError(f"its dictionaries have more than {messages.MOST_BATCH_BYTES:,} bytes")
            yield messages.parts(file, one)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> Any:
        """Return so many bytes, without a copy if they are exactly what comes next; fewer only at the end."""
        found = self._left or next(self._parts, b"")
        while len(found) < size and (more := next(self._parts, b"")):
            found += more
        self._left = found[size:] if size >= 0 else b""
        return found if len(found) <= size else found[:size]
