"""The bytes of a token shard, of its document index and of the files beside it, by FORMAT.md."""

import io
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import humanize
import numpy as np
import zstandard
from worlds.recipes import Rules

SIDECARS = {
    "megatron": (".idx",), "datatrove": (".ds.index", ".ds.metadata"), "nemo": (".bos.idx",),
}  # fmt: skip


@dataclass(frozen=True)
class Contents:
    """A token shard: its tokens, where documents start and their rows, where another source begins."""

    rules: Rules
    tokens: Sequence[int]
    starts: Sequence[tuple[int, int]]
    segments: Sequence[int]

    def shard(self) -> bytes:
        plain = self._plain()
        if not self.rules.compress:
            return plain
        # Of no threads at all the bytes are others than of one or more.
        frame = zstandard.ZstdCompressor(3, threads=1, write_checksum=True).compressobj(size=len(plain))
        return bytes(frame.compress(plain) + frame.flush())

    def _plain(self) -> bytes:
        size = self.rules.token_bytes
        tokens = np.array(self.tokens, f"<u{size}")
        if self.rules.format == "npy":
            file = io.BytesIO()
            np.save(file, tokens)
            return file.getvalue()
        if self.rules.format == "llmc":
            magic, version = {2: (20240520, 1), 4: (20240801, 7)}[size]
            return struct.pack("<3i", magic, version, len(tokens)).ljust(1024, b"\0") + tokens.tobytes()
        if self.rules.format == "nemo":
            return struct.pack("<4i", 278895051, 1, len(tokens), size).ljust(1024, b"\0") + tokens.tobytes()
        if self.rules.format == "mds":
            return self._mds_header() + tokens.tobytes()
        return tokens.tobytes()

    def index(self) -> bytes:
        entry = "<QI" if self.rules.format == "raw" else "<II"
        return b"".join(struct.pack(entry, start, row) for start, row in self.starts)

    def sidecars(self) -> dict[str, bytes]:
        """Return the files beside it, by what they have instead of its ending."""
        makers = {
            ".idx": self._megatron, ".ds.index": self._datatrove, ".ds.metadata": self._metadata,
            ".bos.idx": self._nemo,
        }  # fmt: skip
        return {suffix: makers[suffix]() for suffix in SIDECARS.get(self.rules.format, ())}

    def _pieces(self) -> list[tuple[int, int]]:
        """Return where each document, or what continues one, begins and ends."""
        begins = sorted({start for start, _ in self.starts} | set(self.segments))
        return list(pairwise([*begins, len(self.tokens)]))

    def _megatron(self) -> bytes:
        pieces = self._pieces()
        count, size = len(pieces), self.rules.token_bytes
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, {2: 8, 4: 4}[size], count, count + 1)
        lengths = struct.pack(f"<{count}i", *(end - begin for begin, end in pieces))
        places = struct.pack(f"<{count}q", *(begin * size for begin, _ in pieces))
        return head + lengths + places + struct.pack(f"<{count + 1}q", *range(count + 1))

    def _datatrove(self) -> bytes:
        return b"".join(struct.pack("<Q", end) for _, end in self._pieces())

    def _nemo(self) -> bytes:
        found = [at for at, token in enumerate(self.tokens) if token == self.rules.separator]
        return struct.pack(f"<{len(found)}i", *found)

    def _mds_header(self) -> bytes:
        """How many samples, where each begins and the last ends, what they are, and blanks."""
        rules, length = self.rules, self.rules.sequence_length or 0
        step, count = length * rules.token_bytes, len(self.tokens) // length
        longest = max(rules.val_tokens, rules.shard_tokens * (2 if rules.last == "merge" else 1))
        room = -(-(4 * (2 + longest // length) + 512) // 64) * 64
        columns = {
            "column_encodings": [f"ndarray:uint{8 * rules.token_bytes}:{length}"], "column_names": ["tokens"],
            "column_sizes": [step], "compression": None, "format": "mds", "hashes": [], "size_limit": None,
            "tokens": len(self.tokens), "version": 2,
        }  # fmt: skip
        head = struct.pack(f"<{count + 2}I", count, *(room + step * at for at in range(count + 1)))
        return (head + json.dumps(columns).encode()).ljust(room)

    def _metadata(self) -> bytes:
        tokens = len(self.tokens)
        head = f"{self.rules.tokenizer}|{self.rules.token_bytes}"
        return f"{head}\n{tokens}\n{humanize.metric(tokens, unit='T')}".encode()
