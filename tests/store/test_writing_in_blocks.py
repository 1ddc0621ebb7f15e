"""Files written in blocks: what is on the disk is what was written, whatever the system can and does."""

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fwconvert.store import atomic
from fwconvert.store.atomic import BLOCK_BYTES, File

FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
SIZES = [
    0,
    1,
    4095,
    4096,
    2**18,
    2**18 + 7,
    BLOCK_BYTES - 1,
    BLOCK_BYTES,
    BLOCK_BYTES + 1,
    3 * BLOCK_BYTES + 4096 + 7,
]


def content_of(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def written(path: Path, content: bytes, step: int) -> File:
    file = File(path, FLAGS)
    for at in range(0, len(content), step):
        file.write(memoryview(content)[at : at + step])
    file.finish()
    return file


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [1_000_003, 9 * BLOCK_BYTES])
def test_what_is_written_is_there_and_hashed(tmp_path: Path, size: int, step: int) -> None:
    content = content_of(size)

    file = written(tmp_path / "file", content, step)

    assert (tmp_path / "file").read_bytes() == content
    assert file.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no O_DIRECT")
def test_a_file_system_without_direct_writing_gets_ordinary_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl  # noqa: PLC0415  # absent where O_DIRECT is

    real = fcntl.fcntl

    def refuse(descriptor: int, command: int, value: int = 0) -> int:
        if command == fcntl.F_SETFL and value & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return int(real(descriptor, command, value))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    content = content_of(2 * BLOCK_BYTES + 5)

    written(tmp_path / "file", content, BLOCK_BYTES)

    assert (tmp_path / "file").read_bytes() == content


@pytest.mark.parametrize("most", [1_000_000, 4096])
def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    # A million is no multiple of a page, so direct writing has to end there.
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:most]))
    content = content_of(BLOCK_BYTES + 12_345)

    written(tmp_path / "file", content, BLOCK_BYTES)

    assert (tmp_path / "file").read_bytes() == content


def test_a_failed_write_is_told_at_the_end_at_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    file = File(tmp_path / "file", FLAGS)
    file.write(memoryview(bytes(BLOCK_BYTES)))

    with pytest.raises(OSError, match="No space") as caught:
        file.finish()

    assert caught.value.errno == errno.ENOSPC
    file.close()


def gated_write(gate: threading.Event, seen: list[int]) -> Callable[[int, memoryview], int]:
    real = os.write

    def write(descriptor: int, data: memoryview) -> int:
        gate.wait(10)
        seen.append(descriptor)
        return real(descriptor, data)

    return write


def test_closing_waits_for_blocks_on_their_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A descriptor that is closed too early may belong to another file by the time of the write.
    gate, seen = threading.Event(), list[int]()
    monkeypatch.setattr(os, "write", gated_write(gate, seen))
    file = File(tmp_path / "file", FLAGS)
    file.write(memoryview(bytes(2 * BLOCK_BYTES)))

    closing = threading.Thread(target=file.close)
    closing.start()
    closing.join(0.2)
    still_waiting = closing.is_alive()
    gate.set()
    closing.join()

    assert still_waiting
    assert len(seen) == 2


def test_blocks_are_used_again(tmp_path: Path) -> None:
    atomic._spare.clear()  # What conversions within this process have left.
    written(tmp_path / "first", content_of(9 * BLOCK_BYTES), BLOCK_BYTES)
    spare = {id(block) for block in atomic._spare}

    written(tmp_path / "second", content_of(9 * BLOCK_BYTES), BLOCK_BYTES)

    assert {id(block) for block in atomic._spare} == spare
    assert len(spare) <= 4


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
    """Have macOS's call, which answers with an error number or 0; return which calls were made."""
    fcntl = pytest.importorskip("fcntl", reason="Windows has no fcntl")

    def answer(error: int) -> list[str]:
        calls: list[str] = []
        real = fcntl.fcntl

        def call(descriptor: int, command: int, value: int = 0) -> int:
            if command != 51:
                return int(real(descriptor, command, value))
            calls.append("F_FULLFSYNC")
            if error:
                raise OSError(error, os.strerror(error))
            return 0

        monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", call)
        monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
        return calls

    return answer


def test_on_a_mac_the_disk_empties_its_own_cache_too(tmp_path: Path, mac: Callable[[int], list[str]]) -> None:
    calls = mac(0)

    written(tmp_path / "file", b"content", 100)

    assert calls == ["F_FULLFSYNC"]


@pytest.mark.parametrize("error", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_drive_that_does_not_know_macs_gets_an_ordinary_fsync(
    error: int, tmp_path: Path, mac: Callable[[int], list[str]]
) -> None:
    calls = mac(error)

    written(tmp_path / "file", b"content", 100)

    assert calls == ["F_FULLFSYNC", "fsync"]


def test_a_sync_that_failed_on_a_mac_is_not_tried_another_way(
    tmp_path: Path, mac: Callable[[int], list[str]]
) -> None:
    calls = mac(errno.EIO)

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        written(tmp_path / "file", b"content", 100)

    assert calls == ["F_FULLFSYNC"]


def test_a_large_file_in_the_page_cache_is_brought_to_the_disk_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of it at the end would be one long call, in which a worker cannot show that it is alive.
    monkeypatch.setattr(atomic, "_DIRECT", 0)
    monkeypatch.setattr(atomic, "_MOST_CACHED_BYTES", 2 * BLOCK_BYTES)
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))

    written(tmp_path / "file", content_of(5 * BLOCK_BYTES + 7), BLOCK_BYTES)

    assert sizes == [2 * BLOCK_BYTES, 4 * BLOCK_BYTES, 5 * BLOCK_BYTES + 7]
