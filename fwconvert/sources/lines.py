"""Read the text of lines of JSON (jsonl), plain, gzip or zstd: a document is a line, a row its number.

Every line counts as a row, a blank one as a row without text, so that row N is
line N + 1 of the file, as editors count. A line is an object; where a name
stands twice in it the last one counts, as in Python. What is no JSON by the
letter (NaN, a lone surrogate, bytes that are not UTF-8), a text that is neither
a text nor null, or a line without end is an error that names the line.

A line is decoded by itself, and only what is asked for is kept of it: msgspec
checks the rest as it passes over it, at 600 MB a second. Memory does not grow
with the file, and for one line it is bounded.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from fwconvert import files
from fwconvert.errors import ColumnError, FwconvertError, SourceError, message
from fwconvert.sources import unpacking
from fwconvert.sources.catalog import Size
from fwconvert.sources.filters import Sieve
from fwconvert.sources.reading import (
    BATCH_BYTES,
    MOST_BATCH_ROWS,
    MOST_DOCUMENT_BYTES,
    Row,
    Sampled,
    TextBatch,
    Wanted,
    documents,
    reading,
    size_of,
)

KIND = "lines of JSON"
_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r"
# Looked at before anything is converted: to see which columns there are, and how much text.
_LOOKED_AT_BYTES, _LOOKED_AT_LINES = 2**20, 1000
_ARROW = {type(None): pa.null(), bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
# What a line that cannot be decoded raises.
_WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def extent(path: Path) -> int:
    """Return how much there is to read: the bytes of the file."""
    return size_of(path)


def batches(path: Path, text_column: str, sieve: Sieve | None = None) -> Iterator[TextBatch]:
    """Yield the documents of a file in order, with their rows.

    A row that the filter rejects is not a document, and is counted as neither null nor empty.
    """
    with reading(path, KIND), files.open_to_read(path) as file:
        source, content = _Source(str(path), text_column, sieve), unpacking.opened(file)
        for first, lines in _blocks(content, str(path)):
            yield from source.batches(first, lines, content.consumed)
        source.refuse_missing()


def check_columns(file: Path | io.RawIOBase, name: str, text_column: str, sieve: Sieve | None) -> None:
    """Raise ColumnError if none of the first lines of a file has a column, or has what it is needed for.

    Raises SourceError, with `name`, if they cannot be read.
    """
    with reading(name, KIND), _opened(file) as opened:
        source, lines = _Source(name, text_column, sieve, text_type=Any), _first_lines(opened, name)
        texts, *others = source.columns(0, lines)
        source.refuse_missing()
        wrong = [at for at, text in enumerate(texts) if not isinstance(text, str | None)]
        if wrong and not any(isinstance(text, str) for text in texts):
            source.refuse_column(
                text_column, f"line {wrong[0] + 1:,} has {type(texts[wrong[0]]).__name__} there"
            )
        if sieve is not None and lines:
            source.refuse_misfit(sieve, [texts, *others])


def size(path: Path) -> Size:
    """Return about how many lines a file has, and how large they are, judging by the first ones."""
    with reading(path, KIND), files.open_to_read(path) as file:
        content = unpacking.opened(file)
        seen = _filled(content, _LOOKED_AT_BYTES)
        return _whole(size_of(path), content.consumed, len(seen), max(1, seen.count(b"\n")), len(seen))


def _whole(all_bytes: int, consumed: int, unpacked: int, rows: int, read: int) -> Size:
    """Return the size of a file of which so many bytes gave so much content, and that so many rows."""
    content = all_bytes * unpacked / max(1, consumed)
    return Size(round(content * rows / max(1, read)), round(content))


def sample(
    file: Path | io.RawIOBase, name: str, what: Wanted, is_new: Callable[[int], bool]
) -> Sampled | None:
    """Return the documents at some place of a file, and how large they are; None if none is new.

    A packed file can be read from its beginning alone. Raises SourceError, with `name`, if it cannot be read.
    """
    with reading(name, KIND), _opened(file) as opened:
        all_bytes = opened.seek(0, io.SEEK_END)
        opened.seek(0)
        is_packed = unpacking.is_packed(opened.read(4) or b"")
        parts = 1 if is_packed else max(1, all_bytes // what.most_bytes)
        chosen = min(parts - 1, int(parts * what.place))
        if not is_new(chosen):
            return None
        begin = all_bytes * chosen // parts
        opened.seek(max(0, begin - 1))  # A line that begins exactly there begins after the end of another.
        content = unpacking.opened(opened)
        seen = _filled(content, what.most_bytes)
        consumed, unpacked = content.consumed, len(seen)
        begins = seen.find(b"\n") + 1 if begin else 0
        ends = len(seen) if not content.read(1) else seen.rfind(b"\n") + 1
        lines = _checked(name, chosen, seen[begins:ends].removesuffix(b"\n")) if begins < ends else []
        if not lines and all_bytes:
            return None
        source = _Source(name, what.text_column, what.sieve)
        found = tuple(source.batches(0, lines, 0))
        source.refuse_missing()
    read = max(0, ends - begins)
    return Sampled(_whole(all_bytes, consumed, unpacked, len(lines), read), found, len(lines), read)


def identity(path: Path, row: int) -> str:
    """Return the `id` of a row, for messages; "unknown" if it cannot be read."""
    try:
        with files.open_to_read(path) as file:
            line = _line(file, str(path), row)
        return _labels_of(line)[0] or "unknown"
    except (FwconvertError, OSError, ValueError, *_WRONG):
        return "unknown"


def read_row(file: Path | io.RawIOBase, name: str, row: int, text_column: str) -> Row:
    """Return a row of a local or remote file, which is read up to there.

    Raises SourceError, with `name`, if the file cannot be read or has no such row.
    """
    with reading(name, KIND), _opened(file) as opened:
        line = _line(opened, name, row)
        (texts,) = _Source(name, text_column, None).columns(row, [line])
        return Row(_text_array(texts), *_labels_of(line))


def first_labels(path: Path, rows: int) -> tuple[list[str], list[float]]:
    """Return the URLs and the scores of the first rows; nothing of those that not all of them have."""
    with reading(path, KIND), files.open_to_read(path) as file:
        lines = _first_lines(file, str(path))[:rows]
    found = [_decode_labels(line) if line.strip(_BLANK) else _Labels() for line in lines]
    scores = [one.score for one in found if isinstance(one.score, int | float)]
    return [_url(one) or "" for one in found], scores if len(scores) == len(found) else []


class _Labels(msgspec.Struct):
    """What people want to know of a document, where most corpora have it."""

    id: Any = None
    url: Any = None
    score: Any = None
    metadata: Any = None


_decode_labels = msgspec.json.Decoder(_Labels).decode


def _labels_of(line: bytes) -> tuple[str | None, str | None]:
    """Return the id and the URL of a line."""
    found = _decode_labels(line)
    return None if found.id is None else str(found.id), _url(found)


def _url(found: _Labels) -> str | None:
    within = found.metadata.get("url") if isinstance(found.metadata, dict) else None
    return next((url for url in (found.url, within) if isinstance(url, str)), None)


@contextmanager
def _opened(file: Path | io.RawIOBase) -> Iterator[io.RawIOBase]:
    if isinstance(file, Path):
        with files.open_to_read(file) as opened:
            yield opened
    else:
        file.seek(0)
        yield file


def _filled(content: unpacking.Unpacked, most: int) -> bytes:
    """Return so much of the content, or all that is left."""
    parts, left = [], most
    while left and (part := content.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _blocks(content: unpacking.Unpacked, name: str) -> Iterator[tuple[int, list[bytes]]]:
    """Yield some lines at a time, with the row of the first one: about a batch, or a longer line."""
    first, parts, size = 0, list[bytes](), 0
    while chunk := _filled(content, BATCH_BYTES):
        end = chunk.rfind(b"\n")
        size += chunk.find(b"\n") if end >= 0 else len(chunk)
        if size > MOST_DOCUMENT_BYTES:
            _refuse(
                name,
                first,
                f"it has more than {MOST_DOCUMENT_BYTES:,} bytes, which is more than a document may have",
            )
        if end < 0:
            parts.append(chunk)
            continue
        lines = _checked(name, first, b"".join([*parts, chunk[:end]]))
        yield first, lines
        first, parts = first + len(lines), [chunk[end + 1 :]]
        size = len(parts[0])
    if size:
        yield first, _checked(name, first, b"".join(parts))


def _checked(name: str, first: int, block: bytes) -> list[bytes]:
    """Return the lines of a block that is UTF-8, without the mark that some writers put before the first."""
    if not first:
        block = block.removeprefix(_BOM)
    lines = block.split(b"\n")
    ends = pa.py_buffer(np.array([0, len(block)], np.int32))
    try:
        pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(block)]).validate(full=True)
    except pa.ArrowInvalid:
        for at, line in enumerate(lines):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                _refuse(name, first + at, f"it is not UTF-8: {error}")
        raise
    return lines


def _first_lines(file: io.RawIOBase, name: str) -> list[bytes]:
    """Return the first lines of a file that are whole."""
    content = unpacking.opened(file)
    seen = _filled(content, _LOOKED_AT_BYTES)
    ends = seen.rfind(b"\n") if content.read(1) else len(seen)
    return _checked(name, 0, seen[:ends].removesuffix(b"\n"))[:_LOOKED_AT_LINES] if ends > 0 else []


def _line(file: io.RawIOBase, name: str, row: int) -> bytes:
    for first, lines in _blocks(unpacking.opened(file), name):
        if row < first + len(lines):
            return lines[row - first]
    raise SourceError(message("a source file has no such row", file=name, row=f"{row:,}"))


def _refuse(name: str, row: int, reason: object) -> NoReturn:
    raise SourceError(
        message(
            "a source file has a line that cannot be read",
            "correct it or replace the file, then run the same command again",
            file=name,
            line=f"{row + 1:,}",
            reason=reason,
        )
    )


def _text_array(texts: list[Any]) -> pa.Array:
    return pa.array([None if text is UNSET else text for text in texts], pa.string())


class _Source:
    """Takes what is needed from the lines of one file."""

    def __init__(self, name: str, text_column: str, sieve: Sieve | None, text_type: Any = str | None) -> None:
        self._name, self._sieve = name, sieve
        self._names = [*dict.fromkeys([text_column, *(sieve.columns if sieve else [])])]
        types = [text_type, *[Any] * (len(self._names) - 1)]
        self._line, self._getters = _struct_of(name, self._names, types)
        self._decode = msgspec.json.Decoder(self._line).decode
        # Columns that no line had so far; and the first line, to say which ones there are.
        self._unseen = {*self._names}
        self._first = b""

    def batches(self, first: int, lines: Sequence[bytes], read: int) -> Iterator[TextBatch]:
        """Yield the documents of lines that begin with a row. So much of the file is read after them."""
        for at in range(0, len(lines), MOST_BATCH_ROWS):
            part, row = lines[at : at + MOST_BATCH_ROWS], first + at
            texts, *others = self.columns(row, part)
            kept = None if self._sieve is None else self._kept(self._sieve, row, [texts, *others])
            yield documents(_text_array(texts), row, kept, read)

    def columns(self, first: int, lines: Sequence[bytes]) -> list[list[Any]]:
        """Return what the columns have in some lines; UNSET where a line, or what is around it, has none."""
        try:
            found = [*map(self._decode, lines)]
            columns = [[*map(get, found)] for get in self._getters]
        except _WRONG:
            rows = [self._by_itself(first + at, line) for at, line in enumerate(lines)]
            columns = [[*column] for column in zip(*rows, strict=True)]
        if self._unseen and lines:
            self._first = self._first or next((line for line in lines if line.strip(_BLANK)), b"")
            pairs = zip(self._names, columns, strict=True)
            self._unseen -= {name for name, column in pairs if any(one is not UNSET for one in column)}
        return columns

    def _by_itself(self, row: int, line: bytes) -> list[Any]:
        if not line.strip(_BLANK):
            return [UNSET for _ in self._getters]
        try:
            found = self._decode(line)
            return [get(found) for get in self._getters]
        except _WRONG as error:
            _refuse(self._name, row, error)

    def _kept(self, sieve: Sieve, first: int, columns: list[list[Any]]) -> NDArray[np.int64]:
        """Return which rows the filter keeps.

        A line has types of its own, so that lines of equal types are looked at together: what becomes
        of one does not depend on the others.
        """
        found = []
        for kinds, rows in _by_types(columns).items():
            lines = f"{self._name}, line {first + rows[0] + 1:,}"
            schema = _schema(self._names, kinds, lines)
            sieve.check(schema, lines)
            arrays = [
                _array([column[row] for row in rows], kind, lines)
                for column, kind in zip(columns, schema.types, strict=True)
            ]
            if len(rows) > 1:
                lines += f" to {first + rows[-1] + 1:,}"
            table = pa.RecordBatch.from_arrays(arrays, names=self._names)
            found.append(np.array(rows, np.int64)[sieve.kept(table, lines)])
        return np.sort(np.concatenate([np.empty(0, np.int64), *found]))

    def refuse_misfit(self, sieve: Sieve, columns: list[list[Any]]) -> None:
        """Raise ColumnError if the filter makes no sense of any of these lines."""
        misfit: ColumnError | None = None
        for kinds, rows in _by_types(columns).items():
            lines = f"{self._name}, line {rows[0] + 1:,}"
            try:
                sieve.check(_schema(self._names, kinds, lines), lines)
            except ColumnError as error:
                misfit = misfit or error
            else:
                return
        if misfit is not None:
            raise misfit

    def refuse_missing(self) -> None:
        """Raise ColumnError if there were lines, and none of them had one of the columns."""
        if self._unseen and self._first:
            self.refuse_column(next(name for name in self._names if name in self._unseen), "no line has it")

    def refuse_column(self, column: str, reason: str) -> NoReturn:
        """Raise ColumnError for a column that is not what it has to be."""
        is_text = column == self._names[0]
        try:
            known = ", ".join(msgspec.json.decode(self._first, type=dict[str, msgspec.Raw]))
        except _WRONG:
            known = "unknown"
        raise ColumnError(
            message(
                f"a source file has no such {'text ' if is_text else ''}column",
                "name the column that holds the text with --text-column"
                if is_text
                else "see --where, --min-score and --min-int-score",
                file=self._name,
                wanted=f"{column} (string)" if is_text else column,
                reason=reason,
                columns=known[:2000],
            )
        )


def _by_types(columns: list[list[Any]]) -> dict[tuple[type, ...], list[int]]:
    """Return the rows of equal types, which are those of their values."""
    groups: dict[tuple[type, ...], list[int]] = {}
    for row, kinds in enumerate(zip(*(map(type, column) for column in columns), strict=True)):
        groups.setdefault(kinds, []).append(row)
    return groups


def _schema(names: Sequence[str], kinds: Sequence[type], lines: str) -> pa.Schema:
    return pa.schema([(name, _arrow_type(kind, lines)) for name, kind in zip(names, kinds, strict=True)])


def _arrow_type(kind: type, lines: str) -> pa.DataType:
    found = pa.null() if kind is UnsetType else _ARROW.get(kind)
    if found is None:
        wrong = f"the filter needs a column that has {kind.__name__}: neither number, text nor truth"
        raise ColumnError(message(wrong, "see --where, --min-score and --min-int-score", file=lines))
    return found


def _array(values: list[Any], kind: pa.DataType, lines: str) -> pa.Array:
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    try:
        return pa.array(values, kind)
    except OverflowError:
        wrong = "the filter needs a column that has a number which is too large"
        raise SourceError(message(wrong, file=lines)) from None


def _struct_of(
    name: str, columns: Sequence[str], types: Sequence[Any]
) -> tuple[type[msgspec.Struct], list[Callable[[Any], Any]]]:
    """Return the type that a line is decoded to, and what takes each column from it.

    A column with a dot is looked for by its whole name, then by its path; what the path begins with
    is decoded only then.
    """
    fields: list[tuple[str, Any, Any]] = []
    keys: dict[str, str] = {}
    outer: dict[str, str] = {}
    getters: list[Callable[[Any], Any]] = []
    for number, (column, kind) in enumerate(zip(columns, types, strict=True)):
        whole = f"c{number}"
        keys[whole] = column
        fields.append((whole, kind | UnsetType if kind is not Any else Any, UNSET))
        first, dot, path = column.partition(".")
        if not dot:
            getters.append(attrgetter(whole))
            continue
        if first in columns:
            outer[first] = f"c{columns.index(first)}"
        if first not in outer:
            outer[first] = f"r{number}"
            keys[outer[first]] = first
            fields.append((outer[first], msgspec.Raw | UnsetType, UNSET))
        getters.append(_path_getter(whole, outer[first], path.split("."), kind))
    try:
        return msgspec.defstruct("Line", fields, rename=keys, gc=False), getters
    except ValueError as error:
        wrong = "a source file cannot be asked for a column of this name"
        raise ColumnError(message(wrong, file=name, reason=error)) from None


def _path_getter(whole: str, outer: str, path: Sequence[str], kind: Any) -> Callable[[Any], Any]:
    """Return what takes a column from a line: what has its whole name, or what the path leads to."""
    inner: Any = kind if kind is Any else kind | UnsetType
    for part in reversed(path):
        made = msgspec.defstruct("Path", [("value", inner, UNSET)], rename={"value": part}, gc=False)
        inner = made | None | UnsetType
    decode = msgspec.json.Decoder(made | None).decode

    def get(line: Any) -> Any:
        found = getattr(line, whole)
        if found is not UNSET:
            return found
        found = getattr(line, outer)
        if isinstance(found, msgspec.Raw):
            found = decode(found)
        for part in path:
            if found is UNSET or found is None:
                break
            if isinstance(found, dict):
                found = found.get(part, UNSET)
            elif isinstance(found, msgspec.Struct):
                found = found.value  # type: ignore[attr-defined]  # as every one that is made above
            else:
                raise msgspec.ValidationError(f"Expected `object` around `{part}`")
        return found

    return get
