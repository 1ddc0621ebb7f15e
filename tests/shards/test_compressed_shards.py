"""One zstd frame a shard: the same bytes with any number of threads, and no damage that goes unnoticed."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from fwconvert.errors import ShardError, Stopped
from fwconvert.shards import zstd
from fwconvert.store.atomic import Output

CONTENT = np.random.default_rng(1).zipf(1.5, 3_000_000).astype(np.uint16).tobytes()


def frame(
    folder: Path, content: bytes = CONTENT, threads: int = 1, tick: Callable[[], None] = lambda: None
) -> Path:
    plain = folder / "plain"
    plain.write_bytes(content)
    with Output(folder, "frame") as output:
        zstd.zip_file(plain, output.write, threads, tick)
        output.publish_at(folder / "shard.zst")
    return folder / "shard.zst"


@pytest.mark.parametrize("content", [b"", b"x", CONTENT[:1025], CONTENT], ids=len)
def test_what_is_zipped_comes_back(content: bytes, tmp_path: Path) -> None:
    path = frame(tmp_path, content)
    assert zstd.unzip(path, len(content)).tobytes() == content
    assert zstd.content_size(path) == len(content)
    with zstd.unzipping(path) as stream:
        assert stream.read() == content
    assert zstd.head(path, 1000) == content[:1000]


def test_the_number_of_threads_changes_no_byte(tmp_path: Path) -> None:
    assert len({frame(tmp_path, threads=threads).read_bytes() for threads in (0, 1, 2, 5)}) == 1


def test_a_large_shard_ticks_while_it_is_packed_and_unpacked_and_a_tick_may_stop_it(tmp_path: Path) -> None:
    ticks: list[None] = []
    path = frame(tmp_path, bytes(5 * zstd.STEP), tick=lambda: ticks.append(None))
    assert len(ticks) >= 5
    ticks.clear()
    zstd.unzip(path, 5 * zstd.STEP, lambda: ticks.append(None))
    assert ticks

    def stop() -> None:
        raise Stopped("stopped")

    with pytest.raises(Stopped):
        frame(tmp_path, tick=stop)


def test_the_zstd_command_reads_it(tmp_path: Path) -> None:
    if shutil.which("zstd") is None:
        pytest.skip("the command zstd is not installed")
    read = subprocess.run(["zstd", "-dc", frame(tmp_path)], capture_output=True, check=True)
    assert read.stdout == CONTENT


@pytest.mark.parametrize("keep", [0, 3, 17, 1000, -1])
def test_a_frame_that_is_cut_short_is_an_error(keep: int, tmp_path: Path) -> None:
    path = frame(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ShardError, match=r"shard\.zst"):
        zstd.unzip(path, len(CONTENT))


def test_the_head_of_a_frame_that_ends_before_it_is_an_error(tmp_path: Path) -> None:
    path = frame(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    with pytest.raises(ShardError, match="cut short"):
        zstd.head(path, 1024)
    # What is cut off behind it is not looked at.
    path.write_bytes(whole[:-1])
    assert zstd.head(path, 1024) == CONTENT[:1024]


def test_a_flipped_bit_is_an_error(tmp_path: Path) -> None:
    path = frame(tmp_path)
    raw = path.read_bytes()
    # Byte 5 tells only how much memory a reader may use.
    for at in (0, 4, 6, 9, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
        with pytest.raises(ShardError, match=r"shard\.zst"):
            zstd.unzip(path, len(CONTENT))


def test_a_frame_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard.zst"
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    path.write_bytes(compressor.compress(bytes(50_000_000)))
    with pytest.raises(ShardError, match="50,000,000"):
        zstd.unzip(path, 1_000_000)


def test_what_follows_a_frame_is_an_error(tmp_path: Path) -> None:
    path = frame(tmp_path)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ShardError, match="follows"):
        zstd.unzip(path, len(CONTENT))


@pytest.mark.parametrize(("size", "checksum"), [(False, True), (True, False)])
def test_a_frame_that_proves_nothing_is_refused(size: bool, checksum: bool, tmp_path: Path) -> None:
    path = tmp_path / "shard.zst"
    compressor = zstandard.ZstdCompressor(write_content_size=size, write_checksum=checksum)
    path.write_bytes(compressor.compress(CONTENT))
    with pytest.raises(ShardError):
        zstd.unzip(path, len(CONTENT))
