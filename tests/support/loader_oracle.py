"""What a loader must serve, said in the simplest way, with lists. It shares no code with fwconvert."""

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import naive

T = TypeVar("T")

WORD = 2**64
EOT = 256
# Magic number and version of llm.c's shards, and the struct code of a token, by the bytes of a token.
LLMC = {2: (20240520, 1, "H"), 4: (20240801, 7, "I")}


def hashed(number: int) -> int:
    """Return splitmix64's last step."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % WORD
    number = (number ^ number >> 27) * 0x94D049BB133111EB % WORD
    return number ^ number >> 31


def permuted(size: int, seed: int, epoch: int, position: int) -> int:
    """Return the number at a position of the shuffled order, by FORMAT.md and plain integers."""
    digest = hashlib.blake2b(f"fwconvert permutation 1 {seed} {epoch}".encode()).digest()
    keys = [int.from_bytes(digest[at : at + 8], "little") for at in range(0, 64, 8)]
    bits = 2
    while 2**bits < size:
        bits += 1
    low_values, high_values = 1 << bits // 2, 1 << bits - bits // 2
    number = position
    while True:
        high, low = divmod(number, low_values)
        for turn in range(4):
            low ^= hashed(high ^ keys[2 * turn]) % low_values
            high ^= hashed(low ^ keys[2 * turn + 1]) % high_values
        number = high * low_values + low
        if number < size:
            return number


def shuffled(items: Sequence[T], seed: int, epoch: int) -> list[T]:
    """Return the items in the order of (seed, epoch)."""
    return [items[permuted(len(items), seed, epoch, at)] for at in range(len(items))]


def windows(shards: Sequence[Sequence[int]], seq_len: int) -> list[list[int]]:
    """Return all windows of the shards, as llm.c cuts them."""
    found = []
    for tokens in shards:
        start = 0
        while start + seq_len + 1 <= len(tokens):
            found.append(list(tokens[start : start + seq_len + 1]))
            start += seq_len
    return found


def step_sizes(windows: int, batch: int, ranks: int, drop_last: bool | None) -> list[int]:
    """Return how many windows each step of an epoch, or of the rest of one, has on all ranks together."""
    least = {None: ranks, True: batch * ranks, False: 1}[drop_last]
    sizes = []
    while windows >= least:
        sizes.append(min(windows, batch * ranks))
        windows -= sizes[-1]
    return sizes


def packed(documents: Sequence[Sequence[int]], seq_len: int) -> list[list[int]]:
    """Fill windows with documents; what does not fit is left out, and so is a last that is not full."""
    found: list[list[int]] = []
    window: list[int] = []
    for document in documents:
        window = [*window, *document][: seq_len + 1]
        if len(window) == seq_len + 1:
            found.append(window)
            window = []
    return found


def documents(folder: Path, *, shard_tokens: int, layout: str, eot: str, last: str) -> list[list[int]]:
    """Return the documents of a run, each as far as it stands in the shard where it starts.

    In the order of their shards' names, and within a shard in order. No validation.
    """
    encode = naive.encoder("bytes")
    streams = [naive.read(path, encode, EOT, eot) for path in sorted(folder.rglob("*.parquet"))]
    whole: list[tuple[int, list[int]]] = []
    tails: list[tuple[int, list[int]]] = []
    joined = 0
    for stream in streams:
        full = 0 if layout == "contiguous" else len(stream.tokens) // shard_tokens * shard_tokens
        ends = [*(start.position for start in stream.starts[1:]), len(stream.tokens)]
        for start, end in zip(stream.starts, ends, strict=bool(stream.starts)):
            tokens = stream.tokens[start.position : end]
            if start.position < full:
                whole.append((start.position, tokens))
            else:
                tails.append((joined + start.position - full, tokens))
        joined += len(stream.tokens) - full
    cuts = [*range(0, joined, shard_tokens), joined]
    if last == "merge" and joined % shard_tokens:
        assert joined > shard_tokens, "the last shard of a job would be merged too"
        del cuts[-2]
    found = [tokens[: shard_tokens - start % shard_tokens] for start, tokens in whole]
    return found + [tokens[: next(cut for cut in cuts if cut > start) - start] for start, tokens in tails]


def llmc(tokens: Sequence[int], width: int = 2) -> bytes:
    """Return a shard as llm.c writes it."""
    magic, version, code = LLMC[width]
    head = struct.pack("<256i", magic, version, len(tokens), *[0] * 253)
    return head + struct.pack(f"<{len(tokens)}{code}", *tokens)


def write(folder: Path, shards: Sequence[Sequence[int]], split: str = "train", width: int = 2) -> Path:
    """Write shards under the names that llm.c would give them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, tokens in enumerate(shards, 1):
        (folder / f"fineweb_{split}_{number:06d}.bin").write_bytes(llmc(tokens, width))
    return folder


def told(lengths: Sequence[int], width: int = 2) -> list[list[int]]:
    """Return shards of these lengths in which every token tells where it is, as far as it can."""
    most = 256**width
    return [[(100_003 * shard + at) % most for at in range(length)] for shard, length in enumerate(lengths)]
