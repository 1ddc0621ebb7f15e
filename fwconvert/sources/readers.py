"""Which reader a source has: by the ending of its name, and by its first bytes where that says nothing."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from fwconvert import files, kinds
from fwconvert.kinds import Kind
from fwconvert.sources import arrow, lines, messages, parquet, unpacking
from fwconvert.sources.filters import Sieve
from fwconvert.sources.reading import Row, Sampled, TextBatch, Wanted, reading

_PARQUET_MAGIC = b"PAR1"
_BLANK = b" \t\r\n"
_LOOKED_AT = 4096


class Reader(Protocol):
    """What can be asked of the files of one kind; `sources.parquet` is one."""

    def extent(self, path: Path) -> int:
        """Return how much there is to read, as `TextBatch.done` counts it."""

    def batches(self, path: Path, text_column: str, sieve: Sieve | None = None) -> Iterator[TextBatch]:
        """Yield the documents in order."""

    def sample(
        self, file: Path | io.RawIOBase, name: str, what: Wanted, is_new: Callable[[int], bool]
    ) -> Sampled | None:
        """Return the documents at some place of a local or remote file."""

    def identity(self, path: Path, row: int) -> str:
        """Return the `id` of a row, or "unknown"."""

    def read_row(self, file: Path | io.RawIOBase, name: str, row: int, text_column: str) -> Row:
        """Return a row of a local or remote file."""


_READERS: dict[Kind, Reader] = {"parquet": parquet, "jsonl": lines, "arrow": arrow}


def of(name: str, file: Path | io.RawIOBase) -> Reader:
    """Return the reader of a file, which has perhaps another name than its source.

    Raises SourceError if it cannot be read.
    """
    return _READERS[kind_of(name, file)]


def kind_of(name: str, file: Path | io.RawIOBase) -> Kind:
    """Return the kind of a file. What is of no known kind is parquet, whose reader says what is wrong."""
    return kinds.of(name) or _kind_within(name, file)


def _kind_within(name: str, file: Path | io.RawIOBase) -> Kind:
    with reading(name):
        if isinstance(file, Path):
            with files.open_to_read(file) as opened:
                head = opened.read(_LOOKED_AT)
        else:
            file.seek(0)
            head = file.read(_LOOKED_AT) or b""
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    if head.startswith((messages.MAGIC, messages.FEATHER_1, messages.CONTINUATION)):
        return "arrow"
    is_object = head.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK).startswith(b"{")
    return "jsonl" if is_object or unpacking.is_packed(head) else "parquet"
