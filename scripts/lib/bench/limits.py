"""What limits fwconvert: the ceiling of its libraries, and what decoding, hashing and writing cost alone.

The ceiling cannot be passed with the libraries that fwconvert uses: the same
files are distributed over as many spawned processes, which decode the text as
fwconvert does, hand it to the fast encoder, and discard the result.
"""

import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from importlib import import_module, util
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fwconvert.processes import claim
from fwconvert.sources import pages, reading
from fwconvert.sources import parquet as source
from fwconvert.tokens import flat, registry, tiktoken_kind
from fwconvert.tokens.tokenizer import text_bytes

Counts: TypeAlias = "Counter[str]"
Encode: TypeAlias = Callable[[pa.Array], int]

_BLOCK_BYTES = 4 * 2**20


def texts(path: Path) -> Iterator[pa.Array]:
    """Yield the text column as fwconvert.sources.parquet reads it, without its checks."""
    with (
        path.open("rb", buffering=0) as file,
        pq.ParquetFile(file, page_checksum_verification=True) as parquet,
    ):
        size, first = source.batch_rows(parquet.metadata), 0
        for column in pages.texts(
            file, parquet.metadata, "text", reading.BATCH_BYTES, reading.MOST_BATCH_ROWS
        ):
            first += len(column)
            yield column
        if first == 0:  # Another layout: all of it is pyarrow's.
            for rows in parquet.iter_batches(size, columns=["text"], use_threads=False):
                yield rows.column(0)
                first += rows.num_rows
        assert first == parquet.metadata.num_rows, path


def counts(text: pa.Array, tokens: int = 0) -> Counts:
    """Return the counts of a row: a document is a non-empty text, and has one EOT token on top."""
    sizes = pc.fill_null(pc.binary_length(text), 0)
    documents = int(np.count_nonzero(sizes.to_numpy(zero_copy_only=False)))
    return Counter(documents=documents, text_bytes=pc.sum(sizes).as_py() or 0, tokens=tokens + documents)


def ceiling(files: list[str], processes: int, tokenizer: str) -> Counts:
    """Decode and encode, in this many processes."""
    # Processes like its workers: in those a batch reaches the encoder by the shortest way.
    with ProcessPoolExecutor(processes, get_context("spawn"), claim) as pool:
        return sum(pool.map(_encode_file, files, [tokenizer] * len(files)), Counter())


def _encode_file(path: str, name: str) -> Counts:
    encode = fast_encoder(name)
    return sum((counts(text, encode(text)) for text in texts(Path(path))), Counter())


def encode_files(files: list[str], threads: int, tokenizer: str) -> Counts:
    """Let gigatoken read and encode the files by itself, one after the other, and discard the tokens.

    What a user would pick instead of us for speed. It keeps a file's text and tokens in memory, and an
    EOT token for each document, an output, hashes and an audit are missing.
    """
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # Its pool is the process's and is made on first use.
    engine, source = _gigatoken(tiktoken_kind.find(tokenizer)), import_module("gigatoken").ParquetFileSource
    total: Counts = Counter()
    for path in files:
        layout = engine.encode_files(source([path]), parallel=threads > 1).layout
        total.update(tokens=len(layout.content.data) + int(np.count_nonzero(np.diff(layout.offsets.data))))
    return total


def has_gigatoken(tokenizer: str) -> bool:
    """Return whether gigatoken is here and knows the tokenizer."""
    known = tiktoken_kind.find(tokenizer).table in tiktoken_kind.PRETOKENIZERS
    return known and util.find_spec("gigatoken") is not None


def rank_table(chosen: tiktoken_kind.Vocabulary) -> bytes:
    """Return a rank table: the package's, or tiktoken's (see TIKTOKEN_CACHE_DIR)."""
    with tempfile.TemporaryDirectory() as folder:
        tiktoken_kind.provide_table(chosen, Path(folder))
        return tiktoken_kind.read_table(chosen, Path(folder))


@lru_cache(maxsize=1)
def fast_encoder(name: str) -> Encode:
    """Return a function that encodes texts and returns the number of tokens.

    gigatoken alone: no check for characters on which it is wrong, no limit to its
    cache. Where it is missing, fwconvert falls back on the reference, and so does this.
    """
    chosen = tiktoken_kind.find(name)
    if not has_gigatoken(name):
        slow = registry.load(chosen, Path())
        return lambda text: len(slow.encode(text.drop_null()).tokens)
    engine = _gigatoken(chosen)
    return lambda text: len(flat.encode(engine, *text_bytes(text.cast(pa.large_string())), parallel=False)[0])


def _gigatoken(chosen: tiktoken_kind.Vocabulary) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.tiktoken"
        path.write_bytes(rank_table(chosen))
        kind = tiktoken_kind.PRETOKENIZERS[chosen.table]
        make = import_module("gigatoken").Tokenizer.from_tiktoken
        return make(path, pretokenizer=kind, special_tokens={})


def decode(files: list[str]) -> Counts:
    """Decode the text, and nothing else."""
    return sum((counts(text) for path in files for text in texts(Path(path))), Counter())


def sha256(files: list[str]) -> None:
    """Hash the sources."""
    for path in files:
        digest = hashlib.sha256()
        with Path(path).open("rb", buffering=0) as file:
            while part := file.read(_BLOCK_BYTES):
                digest.update(part)


def write(out: str, size: int) -> None:
    """Write as many bytes as the output has, and fsync them."""
    block = memoryview(os.urandom(_BLOCK_BYTES))
    with Path(out).open("wb", buffering=0) as file:
        file.writelines(block[: size - done] for done in range(0, size, _BLOCK_BYTES))
        os.fsync(file.fileno())
