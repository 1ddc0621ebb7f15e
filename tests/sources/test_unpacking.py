"""Packed files are read whole or refused: every way to cut, join, pad and damage them."""

import gzip
import io
import itertools
import os
import random
from collections.abc import Callable

import pytest
import zstandard

from fwconvert.sources import unpacking

TEXT = b"".join(b'{"text": "line %d of many"}\n' % number for number in range(6_000))
CONTENTS = [b"", b"x", TEXT, os.urandom(200_000), bytes(1_000_000)]


def streamed(content: bytes) -> bytes:
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return packer.compress(content) + packer.flush()


def several_frames(content: bytes) -> bytes:
    one = zstandard.ZstdCompressor(write_checksum=True)
    skippable = b"\x5e\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"any"
    return one.compress(content[:9]) + skippable + one.compress(b"") + one.compress(content[9:])


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "gzip, stored": lambda content: gzip.compress(content, 0),
    "gzip, members": lambda content: b"".join(map(gzip.compress, (content[:9], b"", content[9:]))),
    "zstd": zstandard.ZstdCompressor().compress,
    "zstd, 9, checksum": zstandard.ZstdCompressor(9, write_checksum=True).compress,
    "zstd, two threads": zstandard.ZstdCompressor(threads=2, write_checksum=True).compress,
    "zstd, no size": streamed,
    "zstd, frames": several_frames,
}  # fmt: skip


def unpacked(packed: bytes, most: int = 1 << 20) -> bytes:
    content = unpacking.opened(io.BytesIO(packed))  # type: ignore[arg-type]  # it reads like a raw file
    parts = [*itertools.takewhile(len, (content.read(most) for _ in itertools.count()))]
    assert all(len(part) <= most for part in parts)
    assert content.consumed == len(packed)
    return b"".join(parts)


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: f"{len(content)} bytes")
def test_what_was_packed_comes_out_again(packer: str, content: bytes) -> None:
    packed = PACKERS[packer](content)

    assert unpacked(packed) == content
    assert unpacked(packed, most=1000) == content
    assert unpacked(packed + packed) == content + content


def test_a_plain_file_is_itself() -> None:
    for content in (*CONTENTS, b"\x1f", b"\x28\xb5\x2f"):
        assert unpacked(content) == content


@pytest.mark.parametrize("packer", PACKERS)
def test_no_cut_gives_a_shorter_text(packer: str) -> None:
    packed, rng = PACKERS[packer](TEXT), random.Random(1)
    borders = {len(PACKERS[packer](TEXT[:9])), *range(5, 40), *range(len(packed) - 12, len(packed))}
    for end in (*borders, *(rng.randrange(5, len(packed)) for _ in range(100))):
        try:
            found = unpacked(packed[:end])
        except ValueError:
            continue
        # Members and frames may end there: the file is as whole as one that was never longer.
        assert "members" in packer or "frames" in packer
        assert found in (b"", TEXT[:9]), end


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("rest", [b"x", b"\n", b"\x1f", b"\x1f\x8b", b"\x28\xb5\x2f", b'{"text": "more"}\n'])
def test_what_stands_after_the_end_is_an_error(packer: str, rest: bytes) -> None:
    with pytest.raises(ValueError, match=r"something else after|cut short"):
        unpacked(PACKERS[packer](TEXT) + rest)


def test_zeros_after_gzip_are_padding() -> None:
    assert unpacked(gzip.compress(TEXT) + bytes(1_000_000)) == TEXT
    assert unpacked(gzip.compress(TEXT) + bytes(10) + gzip.compress(TEXT)) == TEXT + TEXT


@pytest.mark.parametrize("packer", ["gzip", "zstd, 9, checksum", "zstd, two threads"])
def test_a_changed_byte_is_an_error_or_changes_nothing(packer: str) -> None:
    packed, rng = bytearray(PACKERS[packer](TEXT)), random.Random(2)
    for at in (rng.randrange(4, len(packed)) for _ in range(100)):
        damaged = bytes([*packed[:at], packed[at] ^ 1 << rng.randrange(8), *packed[at + 1 :]])
        try:
            found = unpacked(damaged)
        except ValueError:
            continue
        assert found == TEXT, at  # Times and names in gzip's header, unused bits.


def test_a_window_that_takes_too_much_memory_is_refused() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=28, compression_level=1)
    packer = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    with pytest.raises(ValueError, match="window of more than 134,217,728 bytes"):
        unpacked(packer.compress(os.urandom(1000)) + packer.flush())


def test_a_bomb_comes_in_small_pieces() -> None:
    """A MB of zstd that stands for 30 GB: whoever stops reading has not paid for the rest."""
    frame = zstandard.ZstdCompressor().compress(bytes(32 * 2**20))
    content = unpacking.opened(io.BytesIO(frame * 1000))  # type: ignore[arg-type]
    for _ in range(100):
        assert 0 < len(content.read(6 * 2**20)) <= 2**18
    assert content.consumed < 2 * len(frame)
