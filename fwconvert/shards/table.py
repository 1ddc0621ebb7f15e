"""Token shards as parquet: one column `input_ids`, a row for each document.

What a token shard cuts off a document is a row of its own, as is each part of a document that is longer than
ROW_TOKENS; so a token shard has exactly as many tokens as in any other format. How parquet is written differs
between versions of pyarrow, so its version is part of the recipe. Nothing is compressed: tokens are numbers
in a dictionary, which makes about 2 bytes of each, and no other library decides bytes.

A file may be a stranger's: what its footer declares is compared with what a row group of ours may have before
any of it is read, and row groups are read one by one.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert import files
from fwconvert.errors import ShardError, message
from fwconvert.formats import PARQUET, ROW_GROUP_ROWS, ROW_GROUP_TOKENS, ROW_TOKENS
from fwconvert.shards.sidecars import Spans

COLUMN = "input_ids"
# Many times what our own need: a few hundred bytes for each row group.
_MOST_FOOTER_STRING, _MOST_FOOTER_VALUES = 2**20, 2**22
# Every token of a row group once, and none falls back to 4 bytes.
_DICTIONARY_BYTES = 4 * (ROW_GROUP_TOKENS + ROW_TOKENS)


def is_table(path: Path) -> bool:
    """Return whether a token shard is parquet, by its name."""
    return path.suffix == PARQUET.suffix


def writer() -> str:
    """Return what decides the bytes of a table."""
    from importlib.metadata import version  # noqa: PLC0415  # only for those who write one

    return f"pyarrow {version('pyarrow')}"


def rows(spans: Spans) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the row groups: where the tokens of each begin, and the ends of its rows, counted from there."""
    begin, ends = 0, list[int]()
    for begins, finals in spans:
        for first, end in zip(begins.tolist(), finals.tolist(), strict=True):
            for stop in (*range(first + ROW_TOKENS, end, ROW_TOKENS), end):
                ends.append(stop - begin)
                if len(ends) == ROW_GROUP_ROWS or ends[-1] >= ROW_GROUP_TOKENS:
                    yield begin, np.array(ends)
                    begin, ends = stop, []
    if ends:
        yield begin, np.array(ends)


def write(
    tokens: Callable[[int, int], NDArray[Any]],
    spans: Spans,
    put: Callable[[bytes], None],
    tick: Callable[[], None],
) -> None:
    """Pass the bytes of a table to `put`. `tokens` returns those from one position to another."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    schema = _schema()
    how: dict[str, Any] = {"compression": "none", "write_statistics": False}
    how["dictionary_pagesize_limit"] = _DICTIONARY_BYTES
    with pq.ParquetWriter(_Sink(put), schema, **how) as table:
        for begin, ends in rows(spans):
            ids = pa.array(tokens(begin, begin + int(ends[-1])).astype(np.int32))
            offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
            column = pa.ListArray.from_arrays(offsets, ids, type=schema.field(COLUMN).type)
            table.write_table(pa.table([column], schema), row_group_size=ROW_GROUP_ROWS)
            tick()


def _schema() -> Any:
    import pyarrow as pa  # noqa: PLC0415

    element = pa.field("element", pa.int32(), nullable=False)
    return pa.schema([pa.field(COLUMN, pa.list_(element), nullable=False)])


class _Sink(io.RawIOBase):
    """A file for pyarrow, which passes on what is written to it."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self._put = put
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, content: Any) -> int:
        part = bytes(content)
        self._put(part)
        self._written += len(part)
        return len(part)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a table whose footer is that of one of ours; ShardError for any other, and for damage."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with files.open_to_read(path) as file:
            table = pq.ParquetFile(
                file,
                thrift_string_size_limit=_MOST_FOOTER_STRING,
                thrift_container_size_limit=_MOST_FOOTER_VALUES,
            )
            problem = _problem(table)
            if problem:
                raise _broken(path, problem)
            yield table
    except (pa.ArrowException, OSError) as error:
        raise _broken(path, str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def _problem(table: Any) -> str:
    if not table.schema_arrow.equals(_schema()):
        return f"it is no table with one column {COLUMN}, a list of int32"
    footer = table.metadata
    for at in range(footer.num_row_groups):
        group = footer.row_group(at)
        column = group.column(0)
        most = ROW_GROUP_TOKENS + ROW_TOKENS
        if column.compression != "UNCOMPRESSED" or not 0 < group.num_rows <= ROW_GROUP_ROWS:
            return f"row group {at} is compressed, or has {group.num_rows:,} rows"
        if not group.num_rows <= column.num_values <= most:
            return f"row group {at} has {column.num_values:,} tokens in {group.num_rows:,} rows"
    return ""


def token_count(path: Path) -> int:
    """Return how many tokens a table has, by its footer."""
    with _opened(path) as table:
        footer = table.metadata
        return sum(footer.row_group(at).column(0).num_values for at in range(footer.num_row_groups))


def parts(path: Path) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    """Yield the tokens of each row group, and the ends of its rows."""
    with _opened(path) as table:
        for at in range(table.metadata.num_row_groups):
            column = table.read_row_group(at, use_threads=False).column(0).combine_chunks()
            if isinstance(column, list) or column.null_count:
                raise _broken(path, f"row group {at} has rows without tokens")
            offsets = column.offsets.to_numpy().astype(np.int64)
            ids = column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
            if ids.null_count or np.any(offsets[1:] <= offsets[:-1]):
                raise _broken(path, f"row group {at} has rows without tokens")
            yield ids.to_numpy(), offsets[1:] - offsets[0]


def read(path: Path, dtype: "np.dtype[Any]", tick: Callable[[], None] = lambda: None) -> NDArray[Any]:
    """Return all tokens of a table as `dtype`; ShardError if one does not fit it."""
    tokens, done = np.empty(token_count(path), dtype), 0
    for part in _typed(path, dtype):
        tick()
        if done + len(part) > len(tokens):
            raise _broken(path, "it has more tokens than its footer says")
        tokens[done : done + len(part)] = part
        done += len(part)
    if done != len(tokens):
        raise _broken(path, "it has fewer tokens than its footer says")
    return tokens


def _typed(path: Path, dtype: "np.dtype[Any]") -> Iterator[NDArray[Any]]:
    most = np.iinfo(dtype).max
    for part, _ in parts(path):
        if len(part) and (int(part.min()) < 0 or int(part.max()) > most):
            raise _broken(path, f"it has tokens that are no {dtype.name}")
        yield part.astype(dtype)


def first_misfit(path: Path, spans: Spans) -> int:
    """Return the first token at which the rows of a table do not follow from `spans`; -1 if all do."""
    position, wanted = 0, rows(spans)
    for _, ends in parts(path):
        _, own = next(wanted, (0, np.empty(0, np.int64)))
        if not np.array_equal(ends, own):
            same = min(len(ends), len(own))
            falls = np.flatnonzero(ends[:same] != own[:same])
            return position + int(ends[falls[0]] if len(falls) else ends[same - 1] if same else 0)
        position += int(ends[-1])
    return -1 if next(wanted, None) is None else position


class Content(io.RawIOBase):
    """The tokens of a table as plain bytes, read row group by row group."""

    def __init__(self, path: Path, dtype: "np.dtype[Any]") -> None:
        self._parts = (part.view(np.uint8).data for part in _typed(path, dtype))
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a part of a buffer; return how much of it, 0 at the end."""
        while not len(self._rest):
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = memoryview(part)
        size = min(len(buffer), len(self._rest))
        memoryview(buffer).cast("B")[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _broken(path: Path, reason: object) -> ShardError:
    return ShardError(message("a token shard in parquet cannot be read", file=path, reason=reason))
