"""Random source files: rows, and the parquet that holds them, in every way that writers have.

A source knows its rows, so that the oracle need not read parquet.
"""

import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CODECS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
TEXT_TYPES = (
    "string", "string", "large_string", "string_view", "binary", "large_binary", "binary_view",
    "dictionary", "large_dictionary",
)  # fmt: skip
# By kind of column: the types that a file may have for it.
COLUMN_TYPES: dict[str, tuple[str, ...]] = {
    "number": ("int8", "int32", "int64", "uint16", "float32", "float64"),
    "whole": ("int8", "int32", "int64"),
    "fraction": ("float32", "float64"),
    "text": ("string", "large_string", "dictionary", "string_view"),
    "truth": ("bool",),
    "any": ("null",),
}
ARROW: dict[str, pa.DataType] = {
    "string": pa.string(), "large_string": pa.large_string(), "string_view": pa.string_view(),
    "binary": pa.binary(), "large_binary": pa.large_binary(), "binary_view": pa.binary_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "large_dictionary": pa.dictionary(pa.int32(), pa.large_string()),
    "int8": pa.int8(), "int32": pa.int32(), "int64": pa.int64(), "uint16": pa.uint16(),
    "float32": pa.float32(), "float64": pa.float64(), "bool": pa.bool_(), "null": pa.null(),
}  # fmt: skip

WORDS = (
    "a", "The", "cat", "sat.", "Hello world", "document", "x" * 30, "1234", "3.14", "it's", "\n", "\n\n",
    "\t", "  ", "   \n ", "<|endoftext|>", "<|endoftext|", "ä", "größe", "漢字", "😀", "👩\u200d🚀", "\u00a0",
    "\u2028",
    "e\u0301", "\ufeff", "\x00", "\x7f", "\x1b[31m", "\r\n", "\U0010ffff", "'ll", "DON'T", "_", "--", "{}[]",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A source file: its path below the root, its rows, its bytes, and how it was written."""

    path: str
    rows: tuple[Mapping[str, Any], ...]
    content: bytes
    how: str


@dataclass(frozen=True)
class Schema:
    """What the sources of a world have in common: the text column, and the kinds of the others."""

    text_column: str
    columns: Mapping[str, str]


def make(rng: random.Random, path: str, schema: Schema, texts: Sequence[str | None]) -> Source:
    """Write texts, with columns by chance beside them, as parquet."""
    types = {name: rng.choice(COLUMN_TYPES[kind]) for name, kind in schema.columns.items()}
    # Now and then a file has nothing in a column, and no type for it.
    types |= {name: "null" for name in types if rng.random() < 0.06}
    text_type = rng.choice(TEXT_TYPES) if any(texts) or rng.random() < 0.7 else "null"
    if text_type == "null":
        texts = [None] * len(texts)
    columns: dict[str, list[Any]] = {
        name: [_value(rng, name, kind, row) for row in range(len(texts))] for name, kind in types.items()
    }
    columns[schema.text_column] = [*texts]
    types[schema.text_column] = text_type
    order = sorted(columns)
    rng.shuffle(order)
    table = pa.table({name: _array(columns[name], types[name]) for name in order})
    writing = _writing(rng, len(texts))
    content = _parquet(table, **writing)
    rows = tuple(dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    told = ", ".join(f"{name}: {types[name]}" for name in order)
    settings = ", ".join(f"{name}={value}" for name, value in writing.items())
    return Source(path, rows, content, f"{len(texts)} rows; {told}; {settings}")


def _array(values: list[Any], kind: str) -> pa.Array:
    if "binary" in kind:
        values = [None if value is None else value.encode() for value in values]
    return pa.array(values, ARROW[kind])


def _value(rng: random.Random, name: str, kind: str, row: int) -> Any:
    if kind == "null" or rng.random() < 0.15:
        return None
    if name in ("id", "url"):
        return f"{name}-{row}"
    if kind == "bool":
        return rng.random() < 0.5
    if kind.startswith("float"):  # Exact in 32 bits.
        return rng.choice((0.0, 0.5, 1.0, 2.5, 3.0, 3.25, 4.0, -1.25, -0.0))
    if "int" in kind:
        return rng.randint(0 if kind.startswith("u") else -1, 5)
    return rng.choice(("en", "de", "fr", "", "ä", "it's"))


def _writing(rng: random.Random, rows: int) -> dict[str, Any]:
    return {
        "compression": rng.choice(CODECS),
        "row_group_size": rng.choice((1, 2, 3, 7, max(1, rows), 1000)),
        "data_page_version": rng.choice(("1.0", "2.0")),
        "use_dictionary": rng.random() < 0.5,
        "write_page_checksum": rng.random() < 0.3,
        "data_page_size": rng.choice((1, 100, 2**20)),
        "store_schema": rng.random() < 0.8,
        "version": rng.choice(("1.0", "2.4", "2.6")),
    }


def texts(rng: random.Random, shape: str) -> list[str | None]:
    """Return the texts of a source of a certain shape."""
    if shape == "no row":
        return []
    if shape == "nulls":
        return [None] * rng.randint(1, 5)
    if shape == "one row":
        return [text(rng, 6)]
    if shape == "huge document":
        return [*(text(rng, 3) for _ in range(rng.randint(0, 3))), text(rng, 150), text(rng, 3)]
    if shape == "tiny documents":
        return [rng.choice("abcdefgh ") for _ in range(rng.randint(20, 80))]
    return [_text_or_nothing(rng) for _ in range(rng.randint(1, 25))]


SHAPES = ("no row", "nulls", "one row", "huge document", "tiny documents", *["ordinary"] * 5)


def _text_or_nothing(rng: random.Random) -> str | None:
    chance = rng.random()
    return None if chance < 0.08 else "" if chance < 0.16 else text(rng, rng.choice((1, 3, 12)))


def text(rng: random.Random, words: int) -> str:
    """Return a text of some words; it may have white space alone."""
    return rng.choice(("", " ")).join(rng.choice(WORDS) for _ in range(rng.randint(1, words))) or "a"


def broken(rng: random.Random, source: Source, text_column: str) -> tuple[bytes, str]:
    """Return a source's bytes so that nobody can read them, and what was done to them."""
    content = source.content
    way = rng.choice(("cut short", "empty", "garbage", "no end", "zeros", "no text", "numbers", "no utf-8"))
    made = {
        "cut short": content[: rng.randint(5, len(content) - 9)],
        "empty": b"",
        "garbage": rng.randbytes(rng.randint(1, 300)),
        "no end": content[:-4] + b"PARX",
        "zeros": bytes(len(content)),
        "no text": _parquet(pa.table({"another": ["a"]})),
        "numbers": _parquet(pa.table({text_column: [1, 2]})),
        "no utf-8": _parquet(pa.table({text_column: pa.array([b"fine", b"\xff\xfe"], pa.binary())})),
    }
    return made[way], way


def _parquet(table: pa.Table, **writing: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **writing)
    return file.getvalue()


FOLDERS = ("", "", "", "data", "a b", "Üben", "2024=10#%", "a", "a-")
NAMES = (
    "train", "Train", "TRAIN", "000_00000", "001_00000", "a b", "ümläut", "漢字", "emoji 😀", "x=1#2%20",
    "[0]", "a", "a.b", "-dash", "~tilde", "'quote'", "$HOME", "n" * 200, "train-00000-of-00001", "10", "9",
    "+", "name,;&",
)  # fmt: skip


def paths(rng: random.Random, count: int, *, flat: bool) -> list[str]:
    """Return different paths for so many sources."""
    found: set[str] = set()
    while len(found) < count:
        folder = "" if flat else rng.choice(FOLDERS)
        ending = rng.choice((".parquet", ".parquet", ".parquet", ".PARQUET"))
        name = rng.choice(NAMES) + ending
        found.add(f"{folder}/{name}" if folder else name)
    return sorted(found)
