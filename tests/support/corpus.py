"""Parquet files for the tests, with documents that prove themselves.

Document 17 says "document 17" a number of times and nothing else, so that a
token out of place is seen by reading. Among them stand the documents that
break converters: null, empty, emoji, a spelt-out separator, and one that is
longer than three token shards.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

# With every tokenizer, one document below is longer than three shards of this many tokens.
LONG_SHARD_TOKENS = 1000

ODD: tuple[str | None, ...] = (
    None,
    "",
    "\U0001f469\u200d\U0001f680 emoji \U0001f1e9\U0001f1ea \u2764\ufe0f and \u6f22\u5b57",
    "before <|endoftext|> after",
    "<|endoftext|>",
    " ",
    "\x00 nul, tab\t, and line\r\nends\n\n",
    None,
    "",
)


def document(number: int, times: int | None = None) -> str:
    """Return document `number`, which says its name so many times, by default 1 to 40."""
    return f"document {number} " * (1 + number * 7 % 40 if times is None else times)


def documents(first: int, count: int) -> list[str]:
    """Return the documents from number `first` on."""
    return [document(number) for number in range(first, first + count)]


def write(
    path: Path, texts: Iterable[str | bytes | None], *, kind: pa.DataType | None = None, **how: Any
) -> Path:
    """Write a parquet file with a column `text` between two others."""
    column = pa.array(list(texts), kind or pa.string())
    numbers = pa.array(range(len(column)), pa.int64())
    table = pa.table({"id": numbers, "text": column, "score": numbers})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **how)
    return path


def write_columns(path: Path, **columns: list[Any]) -> Path:
    """Write a parquet file with these columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def varied(folder: Path) -> Path:
    """Make a folder of small sources, no two of a kind. In order of their names:

    ordinary and odd documents; no row at all; one tiny document; one document longer than three shards;
    nothing but nulls; a row group for each row; a dictionary; bytes that call themselves nothing else.
    """
    long = document(7000, times=3 * LONG_SHARD_TOKENS // 2)
    write(folder / "00.parquet", [*documents(0, 40), *ODD, *documents(40, 20)], compression="snappy")
    write(folder / "01.parquet", [])
    write(folder / "02.parquet", ["x"], compression="none")
    write(folder / "03.parquet", [*documents(3000, 3), long, *documents(3003, 5)], compression="zstd")
    write(folder / "04.parquet", [None, "", None])
    write(folder / "05.parquet", [*ODD, *documents(5000, 25)], compression="gzip", row_group_size=1)
    write(
        folder / "06.parquet",
        [text for text in documents(6000, 15) for _ in range(2)],
        kind=pa.dictionary(pa.int32(), pa.string()),
        compression="brotli",
    )
    texts = [text if text is None else text.encode() for text in (*documents(8000, 12), *ODD)]
    write(folder / "07.parquet", texts, kind=pa.large_binary(), compression="lz4", data_page_version="2.0")
    return folder


def tiny(folder: Path) -> Path:
    """Make a folder of sources with a few dozen tokens, for token shards of a handful of them."""
    write(folder / "a.parquet", ["ab", "", "cde", None, "fghijklmno"])
    write(folder / "b.parquet", [])
    write(folder / "c.parquet", ["p", "q", "rstuvwxyz" * 4, "\u20ac"])
    return folder


def equal_sources(folder: Path, *, files: int, rows: int) -> Path:
    """Make a folder of so many like sources, for runs that are to be disturbed."""
    for number in range(files):
        write(folder / f"{number:02d}.parquet", documents(number * 1000, rows))
    return folder
