"""The oracle: a converter so simple that it can be seen to be right. It shares no code with fwconvert.

One process, everything in memory, a Python list of all tokens; concatenate,
cut, write. What fwconvert makes must equal what this makes, byte by byte.
"""

import base64
import importlib.resources
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import tiktoken
import zstandard

# Magic number, version and struct code of a token, by llm.c's two kinds of shard.
KINDS = {2: (20240520, 1, "H"), 4: (20240801, 7, "I")}

# By tokenizer: the EOT, the bytes of a token, the bundled rank table and the pattern (as in tiktoken).
R50K = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
CL100K = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"""
    r"""\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
TOKENIZERS = {
    "bytes": (256, 2, "", ""),
    "gpt2": (50256, 2, "r50k_base", R50K),
    "cl100k_base": (100257, 4, "cl100k_base", CL100K),
}


@dataclass(frozen=True)
class Start:
    """Where a document starts: its position in a list of tokens, and its row in its source."""

    position: int
    row: int


@dataclass(frozen=True)
class Stream:
    """Some tokens, and where documents start among them."""

    tokens: list[int]
    starts: list[Start]

    def part(self, begin: int, end: int) -> "Stream":
        """Return the tokens from `begin` to `end` and the documents that start there."""
        inside = [Start(s.position - begin, s.row) for s in self.starts if begin <= s.position < end]
        return Stream(self.tokens[begin:end], inside)


def convert(
    folder: Path,
    out: Path,
    *,
    tokenizer: str,
    shard_tokens: int,
    val_tokens: int,
    layout: str = "independent",
    eot: str = "before",
    eot_token: int | None = None,
    bos_token: int | None = None,
    name: str = "edu_fineweb",
    last: str = "merge",
    keep: Callable[[dict[str, Any]], bool] | None = None,
    limit_documents: int | None = None,
    limit_tokens: int | None = None,
) -> None:
    """Convert all parquet files below `folder`, in the order of their paths.

    `eot_token` and `bos_token` are ids: with both a document is BOS text EOT; one alone is the separator,
    and a BOS alone is before each document. `keep` is asked of each row, as a dictionary; the limits
    end the stream of all sources.
    """
    paths = sorted(folder.rglob("*.parquet"), key=lambda path: path.relative_to(folder).as_posix())
    encode = encoder(tokenizer)
    separator, bos = TOKENIZERS[tokenizer][0] if eot_token is None else eot_token, bos_token
    if bos is not None:
        separator, eot, bos = (bos, "before", None) if eot_token is None else (separator, "after", bos)
    streams = [read(path, encode, separator, eot, keep, bos) for path in paths]
    streams = limited(streams, limit_documents, limit_tokens)
    if layout == "contiguous":
        shards = contiguous(concatenate(streams), shard_tokens, val_tokens)
    else:
        shards = independent(streams, shard_tokens, val_tokens, max(3, len(str(len(paths)))))
    for stem, stream in settled([*shards], shard_tokens, last):
        write(out, f"{name}_{stem}", stream, TOKENIZERS[tokenizer][1])


def encoder(tokenizer: str) -> Callable[[str], list[int]]:
    """Return the function that turns a text into tokens."""
    if tokenizer == "bytes":
        return lambda text: list(text.encode())
    _, _, table, pattern = TOKENIZERS[tokenizer]
    file = importlib.resources.files("fwconvert") / "vocabularies" / f"{table}.tiktoken.zst"
    ranks = {}
    for line in zstandard.ZstdDecompressor().decompress(file.read_bytes(), 2**26).splitlines():
        piece, rank = line.split()
        ranks[base64.b64decode(piece)] = int(rank)
    return tiktoken.Encoding(table, pat_str=pattern, mergeable_ranks=ranks, special_tokens={}).encode_ordinary


def read(
    path: Path,
    encode: Callable[[str], list[int]],
    separator: int,
    eot: str,
    keep: Callable[[dict[str, Any]], bool] | None = None,
    bos: int | None = None,
) -> Stream:
    """Return a source as one stream; null and empty texts, and rows that are not kept, are no documents."""
    tokens: list[int] = []
    starts: list[Start] = []
    for row, values in enumerate(pq.read_table(path).to_pylist()):
        value = values["text"]
        text = value.decode() if isinstance(value, bytes) else value
        if not text or (keep is not None and not keep(values)):
            continue
        starts.append(Start(len(tokens), row))
        tokens += [] if bos is None else [bos]
        tokens += [separator, *encode(text)] if eot == "before" else [*encode(text), separator]
    return Stream(tokens, starts)


def limited(streams: Sequence[Stream], documents: int | None, tokens: int | None) -> list[Stream]:
    """Return the streams as if all after the first so many documents, and tokens, had never been."""
    found = []
    for stream in streams:
        end = len(stream.tokens)
        if documents is not None:
            end = min(end, *(start.position for start in stream.starts[documents:]), end)
            documents -= min(documents, len(stream.starts))
        if tokens is not None:
            end = min(end, tokens)
            tokens -= end
        found.append(stream.part(0, end))
    return found


def concatenate(streams: Sequence[Stream]) -> Stream:
    """Return all streams as one."""
    tokens: list[int] = []
    starts: list[Start] = []
    for stream in streams:
        starts += [Start(s.position + len(tokens), s.row) for s in stream.starts]
        tokens += stream.tokens
    return Stream(tokens, starts)


def cut(stream: Stream, size: int) -> list[Stream]:
    """Cut a stream into parts of `size` tokens; the last may be short."""
    return [stream.part(begin, begin + size) for begin in range(0, len(stream.tokens), size)]


def contiguous(stream: Stream, shard_tokens: int, val_tokens: int) -> Iterator[tuple[str, Stream]]:
    """Yield the shards of one long stream, with their names, as llm.c has them."""
    val = val_tokens if val_tokens <= len(stream.tokens) else 0
    if val:
        yield "val_000000", stream.part(0, val)
    for number, shard in enumerate(cut(stream.part(val, len(stream.tokens)), shard_tokens), start=1):
        yield f"train_{number:06d}", shard


def independent(
    streams: Sequence[Stream], shard_tokens: int, val_tokens: int, digits: int
) -> Iterator[tuple[str, Stream]]:
    """Yield the full shards of each source with their names, then those of all the tails joined."""
    tails = []
    for source, whole in enumerate(streams):
        val = val_tokens if source == 0 else 0
        if val > len(whole.tokens):  # Full or absent: what cannot fill it goes on to the join.
            tails.append(whole)
            continue
        parts = cut(whole.part(val, len(whole.tokens)), shard_tokens)
        full = [("train", part) for part in parts if len(part.tokens) == shard_tokens]
        tails += parts[len(full) :]
        for block, (split, shard) in enumerate([("val", whole.part(0, val))] * (val > 0) + full):
            yield f"{split}_{numbered(source, 5)}_{numbered(block, digits)}", shard
    for block, shard in enumerate(cut(concatenate(tails), shard_tokens)):
        yield f"train_{numbered(len(streams), 5)}_{numbered(block, digits)}", shard


def numbered(number: int, digits: int) -> str:
    """Return a number with so many digits; what does not fit is written so that it sorts behind."""
    return f"{number:0{digits}d}" if len(str(number)) <= digits else f"x{number:09d}"


def settled(shards: list[tuple[str, Stream]], size: int, last: str) -> list[tuple[str, Stream]]:
    """Keep a short last shard, drop it, or add it to the training shard before it, under the later name.

    Two joined shards, or two of one stream, become one under the earlier name.
    """
    if last == "keep" or not shards or len(shards[-1][1].tokens) == size or shards[-1][0].startswith("val"):
        return shards
    *before, (stem, short) = shards
    if last == "drop":
        return before
    if not before or before[-1][0].startswith("val"):
        return shards
    other, full = before.pop()
    same = other.rpartition("_")[0] == stem.rpartition("_")[0]
    return [*before, (other if same else stem, concatenate([full, short]))]


def write(out: Path, stem: str, stream: Stream, token_bytes: int) -> None:
    """Write a token shard and its document index."""
    magic, version, code = KINDS[token_bytes]
    (out / "index").mkdir(parents=True, exist_ok=True)
    header = struct.pack("<256i", magic, version, len(stream.tokens), *[0] * 253)
    body = struct.pack(f"<{len(stream.tokens)}{code}", *stream.tokens)
    (out / f"{stem}.bin").write_bytes(header + body)
    index = b"".join(struct.pack("<2I", start.position, start.row) for start in stream.starts)
    (out / "index" / f"{stem}.docs").write_bytes(index)
