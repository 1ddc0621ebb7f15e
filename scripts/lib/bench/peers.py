"""How other tools turn parquet into tokens, written here from what they publish.

Each is given its best case: only the text column is read, in pyarrow's
batches. Their encoders are made from the same rank table as ours, so all of
them must produce the same tokens. They neither hash, nor fsync, nor resume.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import chain, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
from numpy.typing import NDArray

from bench.limits import Counts, counts, rank_table, texts
from fwconvert.shards import shard
from fwconvert.tokens import tiktoken_kind
from fwconvert.tokens.tiktoken_kind import EOT_TEXT
from fwconvert.tokens.tokenizer import parse_ranks

Array = NDArray[Any]

_MAP_ROWS = 1_000
# The encoder of a process of the pool; set once in each.
_encoding: tiktoken.Encoding


def llmc(files: list[str], out: str, processes: int, tokenizer: str, shard_tokens: int) -> Counts:
    """Tokenize as llm.c's dev/data/fineweb.py does: a pool is fed single documents, one process writes.

    A document comes back as a pickled array with its EOT in front. The writer
    fills one buffer of a shard's size and writes it when it is full.
    """
    total: Counts = Counter()
    with _pool(processes, tokenizer) as pool:
        arrays = pool.imap(_encode_document, _documents(files, total), chunksize=16)
        written = _write_shards(arrays, Path(out), tokenizer, shard_tokens)
    return total + Counter(tokens=written)


def batches(files: list[str], out: str, processes: int, tokenizer: str) -> Counts:
    """Tokenize as scripts on datasets.map do: a pool gets 1,000 documents at a time, returns lists of ids."""
    total: Counts = Counter()
    kind = shard.numpy_type(tiktoken_kind.find(tokenizer).token_type)
    with _pool(processes, tokenizer) as pool, Path(out, "tokens.bin").open("wb") as file:
        for lists in pool.imap(_encode_batch, _runs(_documents(files, total))):
            tokens = np.concatenate([np.array(ids, kind) for ids in lists])
            file.write(tokens.data)
            total["tokens"] += len(tokens)
    return total


def huggingface(files: list[str], out: str, tokenizer: str, json_file: str) -> Counts:
    """Tokenize with the tokenizers package: encode_batch, multithreaded."""
    total: Counts = Counter()
    chosen = tiktoken_kind.find(tokenizer)
    engine = import_module("tokenizers").Tokenizer.from_file(json_file)
    kind = shard.numpy_type(chosen.token_type)
    with Path(out, "tokens.bin").open("wb") as file:
        for run in _runs(_documents(files, total)):
            found = engine.encode_batch(run, add_special_tokens=False)
            tokens = np.concatenate([np.array([chosen.eot, *one.ids], kind) for one in found])
            file.write(tokens.data)
            total["tokens"] += len(tokens)
    return total


def datatrove(files: list[str], out: str, processes: int, json_file: str) -> Counts:
    """Tokenize with datatrove itself: its reader, tokenizer step and executor; a task per file."""
    reader = import_module("datatrove.pipeline.readers").ParquetReader
    step = import_module("datatrove.pipeline.tokens").DocumentTokenizer
    executor = import_module("datatrove.executor").LocalPipelineExecutor
    folder = str(Path(files[0]).parent)
    steps = [
        reader(folder, glob_pattern="*.parquet", doc_progress=False),
        step(out, json_file, eos_token=EOT_TEXT, shuffle_documents=False, local_working_dir=f"{out}/work"),
    ]
    # Not forkserver, its default: the CPU time of those processes would not be counted as ours.
    how = {"workers": processes, "start_method": "spawn", "logging_dir": f"{out}/logs"}
    executor(steps, tasks=len(files), **how).run()
    written = sum(path.stat().st_size for path in Path(out).glob("*.ds"))
    width = 2 if len(json.loads(Path(json_file).read_text())["model"]["vocab"]) <= 2**16 else 4
    return Counter(tokens=written // width)


def _pool(processes: int, tokenizer: str) -> Any:
    # fork, the default of these scripts on Linux.
    return get_context("fork" if sys.platform == "linux" else None).Pool(processes, _load, (tokenizer,))


def _load(tokenizer: str) -> None:
    global _encoding  # noqa: PLW0603  # a pool gives its processes nothing else
    chosen = tiktoken_kind.find(tokenizer)
    _encoding = tiktoken.Encoding(
        chosen.name,
        pat_str=chosen.pattern,
        mergeable_ranks=parse_ranks(rank_table(chosen)),
        special_tokens={EOT_TEXT: chosen.eot},
    )


def _documents(files: Iterable[str], total: Counts) -> Iterator[str]:
    """Yield the texts one by one, and count them in `total`."""
    for batch in chain.from_iterable(texts(Path(path)) for path in files):
        seen = counts(batch)
        total += Counter(documents=seen["documents"], text_bytes=seen["text_bytes"])
        yield from filter(None, batch.to_pylist())


def _runs(documents: Iterator[str]) -> Iterator[list[str]]:
    run: list[str] = []
    for document in documents:
        run.append(document)
        if len(run) == _MAP_ROWS:
            yield run
            run = []
    if run:
        yield run


def _encode_document(text: str) -> Array:
    tokens = np.array([_encoding.eot_token, *_encoding.encode_ordinary(text)])
    kind = np.uint16 if _encoding.n_vocab <= 2**16 else np.uint32
    assert (tokens >= 0).all()
    assert (tokens <= np.iinfo(kind).max).all()
    return tokens.astype(kind)


def _encode_batch(run: list[str]) -> list[list[int]]:
    return [[_encoding.eot_token, *_encoding.encode_ordinary(text)] for text in run]


def _write_shards(arrays: Iterable[Array], folder: Path, tokenizer: str, size: int) -> int:
    """Fill and write shards of `size` tokens, the first of them for validation; return all tokens."""
    kind = tiktoken_kind.find(tokenizer).token_type
    buffer, filled, number = np.empty(size, shard.numpy_type(kind)), 0, 0
    for tokens in arrays:
        rest = tokens
        while filled + len(rest) >= size:
            room = size - filled
            buffer[filled:] = rest[:room]
            _write_shard(folder, number, kind, buffer)
            rest, filled, number = rest[room:], 0, number + 1
        buffer[filled : filled + len(rest)] = rest
        filled += len(rest)
    if filled:
        _write_shard(folder, number, kind, buffer[:filled])
    return number * size + filled


def _write_shard(folder: Path, number: int, kind: Any, tokens: Array) -> None:
    split = "train" if number else "val"
    with (folder / f"edu_fineweb_{split}_{number:06}.bin").open("wb") as file:
        file.write(shard.header(kind, len(tokens)))
        file.write(tokens.tobytes())


def describe(tokenizer: str, json_file: str) -> None:
    """Write the tokenizer.json of a vocabulary, for the tokenizers package and what builds on it.

    EOT has its id, but is no added token: a text that spells it out is text.
    """
    chosen = tiktoken_kind.find(tokenizer)
    ranks = parse_ranks(rank_table(chosen))
    letters = _byte_letters()
    spell = {piece: "".join(letters[byte] for byte in piece) for piece in ranks}
    merges = [[spell[part] for part in _last_merge(piece, ranks)] for piece in ranks if len(piece) > 1]
    vocab = {spell[piece]: rank for piece, rank in ranks.items()} | {EOT_TEXT: chosen.eot}
    split = {
        "type": "Split",
        "pattern": {"Regex": plain(chosen.pattern)},
        "behavior": "Isolated",
        "invert": False,
    }
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    made = {
        "version": "1.0",
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    Path(json_file).write_text(json.dumps(made), "utf-8")


def plain(pattern: str) -> str:
    """Return a split pattern of tiktoken's in the syntax of other regex engines.

    Its possessive quantifiers and its `\\s++$` only save time, and Oniguruma
    gives `}+` and `$` another meaning.
    """
    return re.sub(r"(?<!\\)([+*?}])\+", r"\1", pattern.replace(r"|\s++$", ""))


def _byte_letters() -> list[str]:
    """Return the printable letter that stands for each byte in byte-level vocabularies."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


def _last_merge(piece: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two parts that a piece is merged from, by merging with the ranks below its own."""
    parts = [piece[at : at + 1] for at in range(len(piece))]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, len(ranks) * 2) for left, right in pairwise(parts)]
        at = pairs.index(min(pairs))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
