"""What other columns say about a few rows of a source: their URLs and scores, for people who look at a run.

Of parquet read page by page like the text (`pages`), in bounded memory, and only where the
columns are laid out as FineWeb-Edu's are; of other files only the first rows are
looked at: nothing depends on them, so nothing about them may fail a job, and a
column that would cost more is left alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fwconvert import files
from fwconvert.errors import FwconvertError
from fwconvert.sources import arrow, lines, parquet, readers
from fwconvert.sources.pages import first_values

URL, SCORE = "url", "score"
_FEW_ROWS = 1024
_LEAST_ROWS, _MOST_ROWS, _ONE_ROW_IN = 256, 4096, 256
_MOST_GROUPS, _ONE_GROUP_IN = 16, 64


@dataclass(frozen=True)
class Stretch:
    """The first rows of a row group, or of a file that has none."""

    group: int
    first: int
    rows: int


@dataclass(frozen=True)
class Labels:
    """What is known of the rows of a stretch, from its first one on."""

    urls: list[str]
    scores: NDArray[np.float64]


def stretches(path: Path) -> tuple[tuple[Stretch, ...], pq.FileMetaData | None]:
    """Return the rows to look at, spread over the source, and its footer; none if it cannot be read."""
    try:
        if readers.kind_of(path.name, path) != "parquet":
            return (Stretch(0, 0, _FEW_ROWS),), None
        with _footer(path) as metadata:
            groups, all_rows = metadata.num_row_groups, int(metadata.num_rows)
            # A hundredth of a worker's time is little: of a small source few rows are looked at.
            most, rows = min(_MOST_GROUPS, groups), all_rows
            if all_rows > _FEW_ROWS:
                most = max(1, min(_MOST_GROUPS, groups // _ONE_GROUP_IN))
                rows = -(-max(_LEAST_ROWS, min(_MOST_ROWS, all_rows // _ONE_ROW_IN)) // most)
            chosen = {at * groups // most for at in range(most)} if groups else set()
            found, first = [], 0
            for number in range(groups):
                there = int(metadata.row_group(number).num_rows)
                if number in chosen:
                    found.append(Stretch(number, first, min(there, rows)))
                first += there
            return tuple(one for one in found if one.rows > 0), metadata
    except (FwconvertError, OSError, ValueError, pa.ArrowException):
        return (), None


def read(path: Path, footer: pq.FileMetaData | None, wanted: Sequence[Stretch]) -> list[Labels]:
    """Return what the columns say about the rows of each stretch, or about its first ones.

    Nothing where there is no such column, or where it is not as expected. Raises OSError or SourceError
    if the file cannot be read.
    """
    if footer is None:
        look = lines.first_labels if readers.kind_of(path.name, path) == "jsonl" else arrow.first_labels
        pairs = [look(path, one.rows) for one in wanted]
        return [Labels(urls, np.array(scores, np.float64)) for urls, scores in pairs]
    found = []
    with files.open_to_read(path) as file:
        for one in wanted:
            urls = first_values(file, footer, URL, one.group, one.rows)
            scores = first_values(file, footer, SCORE, one.group, one.rows)
            found.append(
                Labels(
                    _texts(urls) if isinstance(urls, pa.Array) else [],
                    np.empty(0) if isinstance(scores, pa.Array) else scores.astype(np.float64),
                )
            )
    return found


def _texts(values: pa.Array) -> list[str]:
    return [value.decode(errors="replace") for value in values.cast(pa.large_binary()).to_pylist()]


@contextmanager
def _footer(path: Path) -> Iterator[pq.FileMetaData]:
    with pq.ParquetFile(pa.BufferReader(parquet.read_footer(path, str(path)))) as opened:
        yield opened.metadata
