"""Synthetic text for the benchmark: long-tailed, the same on every machine, fast to generate.

A word's frequency falls with its rank as in English (half of all words are
among the first hundred, one in two hundred is beyond the first million) and
there is no last word, so an encoder that caches words never has them all; the
demo corpus, with its fixed vocabulary, would flatter it. The first words are
those of GPT-2's vocabulary, in its order; later ones are composed of its
syllables, which are the digits of the rank.

Only random integers and arithmetic that IEEE 754 rounds exactly are used.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fwconvert.sources import parquet, reading
from fwconvert.tokens import tiktoken_kind, tokenizer

ROW_GROUP = 1_000
DOCUMENT_BYTES = 4_900  # about the mean, as in FineWeb-Edu

# Rank r or later has the share 1 / sqrt(1 + r / _BEND).
_BEND = 20
_RAREST = 2.0**-21
_BASE = 2_048
_DIGITS = 4  # _BASE ** _DIGITS is more than the rank of the rarest word
_DIGIT_BYTES = 6
_SEPARATORS = (
    *(" ",) * 170, *(", ",) * 12, *(". ",) * 8, *(".\n",) * 2, "\n\n", "; ", ": ", " (", ") ", " 12 ",
    " 1998 ", "'s ", "\u2019s ", " \u2013 ", "? ", "-", "-", ' "', '" ', "/", "  ", " A ", " The ",
)  # fmt: skip
_SEPARATOR_BYTES = 8
# A word and the separator before it, in machine words: numpy copies those faster than bytes.
_ROW_WORDS = (_SEPARATOR_BYTES + _DIGITS * _DIGIT_BYTES) // 8
# Other short entries of GPT-2's vocabulary are parts of words.
_SHORT = frozenset(b"a an as at be by do he if in is it my no of on or so to up us we".split())

_SCHEMA = pa.schema(
    dict.fromkeys(("text", "id", "dump", "url", "file_path", "language"), pa.string())
    | {"language_score": pa.float64(), "token_count": pa.int64()}
    | {"score": pa.float64(), "int_score": pa.int64()}
)
_CONSTANT: dict[str, Any] = {
    "dump": "made-up", "file_path": "made-up/0.warc.gz", "language": "en", "language_score": 0.9,
    "token_count": 0, "score": 3.0, "int_score": 3,
}  # fmt: skip


@dataclass(frozen=True)
class Letters:
    """The building blocks of text; each row is padded with zeros."""

    words: NDArray[np.uint64]
    syllables: NDArray[np.uint8]
    separators: NDArray[np.uint64]


def generate(folder: str, text_bytes: int, files: int, processes: int) -> None:
    """Write parquet files with at least this much text in all, evenly distributed."""
    Path(folder).mkdir(parents=True)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        paths = [Path(folder) / f"{number:03}_00000.parquet" for number in range(files)]
        list(pool.map(write_file, paths, range(files), [-(-text_bytes // files)] * files))


def write_file(path: Path, seed: int, text_bytes: int) -> None:
    """Write one file with at least this much text in FineWeb-Edu's schema."""
    random = np.random.Generator(np.random.PCG64(seed))
    with _Writer(path) as writer:
        while (missing := text_bytes - writer.text_bytes) > 0:
            writer.write(documents(random, min(ROW_GROUP, -(-missing // DOCUMENT_BYTES))))


def documents(random: np.random.Generator, count: int) -> pa.Array:
    """Return this many texts, with lengths distributed as on the web."""
    words = (40 + 950 * (1 / np.sqrt(_uniform(random, count)) - 1)).astype(np.int64)
    padded = _words(random, int(words.sum())).view(np.uint8).reshape(-1)
    kept = padded != 0
    ends = np.cumsum(words) * (_ROW_WORDS * 8)
    sizes = [0, *(int(np.count_nonzero(document)) for document in np.split(kept, ends[:-1]))]
    offsets = np.cumsum(sizes, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(padded[kept]))


def cut(sources: list[str], folder: str, files: int, rows: int) -> None:
    """Write the first texts of `sources` as `files` files of `rows` rows each.

    If there are too few texts, they are repeated.
    """
    Path(folder).mkdir(parents=True)
    texts = _in_runs(_endless(sources), rows)
    for number in range(files):
        with _Writer(Path(folder) / f"{number:04}.parquet") as writer:
            writer.write(next(texts))


class _Writer:
    """A parquet file in FineWeb-Edu's schema."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetWriter(path, _SCHEMA, compression="snappy")
        self._rows = self.text_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, texts: pa.Array) -> None:
        rows = range(self._rows, self._rows + len(texts))
        self._rows += len(texts)
        self.text_bytes += reading.TextBatch(texts, np.empty(0, np.int64), 0, 0, 0).text_bytes
        columns = {name: [value] * len(rows) for name, value in _CONSTANT.items()}
        columns["text"] = texts
        columns["id"] = [f"<urn:uuid:{row:032x}>" for row in rows]
        columns["url"] = [f"https://made.example/{row}.html" for row in rows]
        self._file.write_table(pa.table(columns, _SCHEMA), row_group_size=ROW_GROUP)


def _uniform(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return random numbers above 0, up to 1."""
    return 1 - random.random(count)


def _words(random: np.random.Generator, count: int) -> NDArray[np.uint64]:
    """Return this many words, each after its separator, padded with zeros."""
    letters = _letters()
    chance = np.maximum(_uniform(random, count), _RAREST)
    ranks = (_BEND * (1 / (chance * chance) - 1)).astype(np.int64)
    rows = np.empty((count, _ROW_WORDS), np.uint64)
    rows[:, :1] = letters.separators[random.integers(0, len(letters.separators), count)]
    rows[:, 1:] = letters.words[np.minimum(ranks, len(letters.words) - 1)]
    unknown = np.flatnonzero(ranks >= len(letters.words))
    rows[unknown, 1:] = _spelt(ranks[unknown], letters.syllables)
    return rows


def _spelt(ranks: NDArray[np.int64], syllables: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return a distinct word for each rank: the rank written with syllables as digits."""
    digits = ranks[:, None] // _BASE ** np.arange(_DIGITS) % _BASE
    spelt: NDArray[np.uint8] = syllables[digits]
    spelt[digits == 0] = 0  # The digit zero is silent.
    return spelt.reshape(len(ranks), _DIGITS * _DIGIT_BYTES).view(np.uint64)


@lru_cache(maxsize=1)
def _letters() -> Letters:
    pieces = list(tokenizer.parse_ranks(tiktoken_kind.read_table(tiktoken_kind.find("gpt2"), Path())))
    width = _DIGITS * _DIGIT_BYTES
    words = [piece[1:] for piece in pieces if piece[:1] == b" " and _is_word(piece[1:], width)]
    syllables = [piece for piece in pieces if len(piece) > 1 and _is_plain(piece, _DIGIT_BYTES)]
    separators = [separator.encode() for separator in _SEPARATORS]
    return Letters(
        _padded(words, width).view(np.uint64),
        _padded(syllables[:_BASE], _DIGIT_BYTES),
        _padded(separators, _SEPARATOR_BYTES).view(np.uint64),
    )


def _is_word(piece: bytes, most: int) -> bool:
    return piece in _SHORT or (len(piece) > 2 and _is_plain(piece, most))


def _is_plain(piece: bytes, most: int) -> bool:
    return len(piece) <= most and piece.isalpha() and piece.islower()


def _padded(pieces: list[bytes], width: int) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(piece.ljust(width, b"\0") for piece in pieces), np.uint8).reshape(-1, width)


def _endless(sources: list[str]) -> Iterator[pa.Array]:
    while True:
        for path in sources:
            for batch in parquet.batches(Path(path), "text"):
                yield batch.texts


def _in_runs(texts: Iterator[pa.Array], rows: int) -> Iterator[pa.Array]:
    """Yield the texts in arrays of exactly `rows`."""
    parts = [next(texts)]
    while True:
        missing = rows - sum(len(part) for part in parts)
        while missing > 0:
            parts.append(next(texts))
            missing -= len(parts[-1])
        joined = pa.concat_arrays(parts)
        yield joined[:rows]
        parts = [joined[rows:]]
