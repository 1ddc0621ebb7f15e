"""Compressed token shards that are small, and would become gigabytes."""

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

import bounded
import corpus
import numpy as np
import pytest
import zstandard

from fwconvert.errors import ShardError
from fwconvert.shards import zstd

RECIPE = ("--tokenizer", "bytes", "--shard-tokens", "1000", "--compress", "zstd")
TOKENS = 600 * 10**6
LOAD = """
import sys
from fwconvert import FwconvertError, Loader
try:
    loader = Loader(sys.argv[1], batch=1, seq_len=8)
    print("served", len(next(iter(loader))))
except FwconvertError as error:
    print(error)
"""


def bomb(path: Path, tokens: int = TOKENS) -> Path:
    """Write a shard in llm.c's format whose tokens are all 0, as one frame that tells the truth of it."""
    size, step = 1024 + 2 * tokens, bytes(2**20)
    frame = zstandard.ZstdCompressor(write_checksum=True).compressobj(size=size)
    content = frame.compress(struct.pack("<3i", 20240520, 1, tokens).ljust(1024, b"\0"))
    for _ in range(2 * tokens // len(step)):
        content += frame.compress(step)
    path.write_bytes(content + frame.compress(bytes(2 * tokens % len(step))) + frame.flush())
    assert path.stat().st_size < 100_000
    return path


def load(folder: Path) -> bounded.Ended:
    return bounded.run_line([sys.executable, "-c", LOAD, str(folder)])


def test_a_shard_of_others_that_is_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb(tmp_path / "a_train_0.bin.zst")

    ended = load(tmp_path)

    assert "implausible compression ratio" in ended.said
    assert "zstd -d" in ended.said


def forge(out: Path, **numbers: Any) -> str:
    """Put a bomb in the place of a training shard, and say so in its line; return its name."""
    manifest = json.loads((out / "manifest.json").read_bytes())
    line = next(line for line in manifest["shards"] if line["split"] == "train")
    path = bomb(out / line["name"])
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    line.update(bytes=path.stat().st_size, sha256=sha256, **numbers)
    (out / "manifest.json").write_text(json.dumps(manifest))
    return str(line["name"])


@pytest.mark.parametrize("numbers", [{}, {"tokens": TOKENS}], ids=["the line tells less", "the line agrees"])
def test_no_command_unpacks_a_bomb_among_the_shards_of_a_run(numbers: dict[str, int], tmp_path: Path) -> None:
    sources, out = corpus.equal_sources(tmp_path / "sources", files=1, rows=20), tmp_path / "out"
    assert bounded.run("--source", sources, "--out", out, *RECIPE, "--workers", "1").code == 0
    name = forge(out, **numbers)

    assert "token shard" in load(out).said
    for words in (("show", out, name), ("trace", out, f"{name}:5"), ("verify", out)):
        ended = bounded.run(*words)
        assert ended.code in {1, 2}, ended
    exported = bounded.run("export", out, "--compress", "none", "-o", tmp_path / "new", "--workers", "1")
    assert exported.code in {1, 2}, exported


def test_zeros_are_unpacked_up_to_the_size_of_an_ordinary_shard(tmp_path: Path) -> None:
    path = bomb(tmp_path / "a_train_0.bin.zst", 10**6)
    assert len(zstd.unzip(path, 2**30)) == 1024 + 2 * 10**6


# What may stand where a frame should.
def skipped(frame: bytes) -> bytes:
    return b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello" + frame


def twice(frame: bytes) -> bytes:
    return frame + frame


def followed_by_a_skipped_one(frame: bytes) -> bytes:
    return frame + skipped(b"")


@pytest.mark.parametrize("put", [skipped, twice, followed_by_a_skipped_one], ids=lambda put: put.__name__)
def test_more_than_one_frame_is_refused(put: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.bin.zst"
    path.write_bytes(put(zstandard.ZstdCompressor(write_checksum=True).compress(bytes(5000))))
    with pytest.raises(ShardError, match=r"x\.bin"):
        zstd.unzip(path, 10**6)


def test_a_frame_that_wants_a_dictionary_is_refused(tmp_path: Path) -> None:
    samples: list[bytes | bytearray | memoryview] = [
        np.random.default_rng(seed).bytes(200) for seed in range(100)
    ]
    known = zstandard.train_dictionary(1000, samples)
    path = tmp_path / "x.bin.zst"
    path.write_bytes(zstandard.ZstdCompressor(dict_data=known, write_checksum=True).compress(samples[0]))
    with pytest.raises(ShardError, match="dictionary"):
        zstd.unzip(path, 10**6)


def test_a_frame_whose_readers_must_remember_gigabytes_is_refused(tmp_path: Path) -> None:
    """The window of the frame is made 2 GB; its content stays what it is."""
    path = tmp_path / "x.bin.zst"
    content = np.random.default_rng(1).bytes(3 * 2**20)
    frame = bytearray(zstandard.ZstdCompressor(3, write_checksum=True).compress(content))
    assert not frame[4] & 0x20, "it has a byte for its window"
    frame[5] = (31 - 10) << 3
    path.write_bytes(frame)
    with pytest.raises(ShardError, match="memory"):
        zstd.unzip(path, 10**8)
    with pytest.raises(ShardError, match="memory"), zstd.unzipping(path, zstd.OWN_WINDOW) as stream:
        stream.read(10)
