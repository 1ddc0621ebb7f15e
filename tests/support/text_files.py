"""The same documents in every kind of file that is read.

rows = text_files.rows(corpus.documents(0, 40))
for kind in text_files.KINDS:
    text_files.write(folder / kind, kind, rows)
"""

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as pf
import pyarrow.parquet as pq
import zstandard

# By kind: how the name of its files ends.
KINDS = {
    "parquet": ".parquet",
    "jsonl": ".jsonl",
    "ndjson": ".ndjson",
    "jsonl.gz": ".jsonl.gz",
    "json.gz": ".json.gz",
    "jsonl.zst": ".jsonl.zst",
    "jsonl.zstd": ".jsonl.zstd",
    "arrow file": ".arrow",
    "arrow file, zstd": ".ipc",
    "arrow stream": ".arrow",
    "arrow stream, dictionary": ".arrow",
    "arrow stream, view": ".arrow",
    "feather": ".feather",
}


def rows(texts: Iterable[str | None]) -> list[dict[str, Any]]:
    """Return rows with an id, a URL, a score, and the text again in a struct."""
    return [
        {
            "id": f"id-{number}",
            "url": f"https://example.org/{number}",
            "text": text,
            "score": None if number % 11 == 5 else number % 7 / 2,
            "meta": {"text": text, "language": "en" if number % 3 else "de"},
        }
        for number, text in enumerate(texts)
    ]


def lines(rows: Sequence[dict[str, Any]]) -> bytes:
    """Return the rows as lines of JSON, every other one in ASCII, and nulls now written, now left out."""
    found = []
    for number, row in enumerate(rows):
        given = {name: value for name, value in row.items() if value is not None or number % 4}
        found.append(json.dumps(given, ensure_ascii=bool(number % 2)).encode() + b"\n")
    return b"".join(found)


def write(folder: Path, kind: str, rows: Sequence[dict[str, Any]], stem: str = "a", batch: int = 7) -> Path:
    """Write rows into a file of this kind, in batches of so many rows where it has batches."""
    path = folder / f"{stem}{KINDS[kind]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if "js" in kind:
        path.write_bytes(_packed(kind, lines(rows)))
        return path
    table = pa.Table.from_pylist([*rows])
    if "dictionary" in kind:
        table = table.set_column(2, "text", table["text"].dictionary_encode())
    if "view" in kind:
        table = table.set_column(2, "text", table["text"].cast(pa.string_view()))
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "feather":
        pf.write_feather(table, path, chunksize=batch)
    else:
        new = pa.ipc.new_stream if "stream" in kind else pa.ipc.new_file
        options = pa.ipc.IpcWriteOptions(compression="zstd" if "zstd" in kind else None)
        with new(str(path), table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=batch)
    return path


def _packed(kind: str, content: bytes) -> bytes:
    if kind.endswith(".gz"):
        return gzip.compress(content)
    return zstandard.ZstdCompressor().compress(content) if ".zst" in kind else content
