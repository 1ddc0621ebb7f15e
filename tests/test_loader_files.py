"""What a loader opens, and what it refuses: files built by hand, by numpy and by zstandard."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from loader_oracle import llmc

from fwconvert.errors import ShardError
from fwconvert.loader_files import Expected, Kept, look

TOKENS = [7, 0, 65535, 1, 2]


def saved(path: Path, array: Any) -> Path:
    with path.open("wb") as file:
        np.save(file, array)
    return path


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def packed(path: Path) -> Path:
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(path.read_bytes())
    return write(path.with_name(path.name + ".zst"), frame)


def good(folder: Path) -> dict[str, tuple[Path, str]]:
    """Return a shard of each kind, and the type of its tokens."""
    return {
        "llm.c": (write(folder / "a_train_1.bin", llmc(TOKENS)), "uint16"),
        "llm.c of 4 bytes": (write(folder / "b_train_1.bin", llmc(TOKENS, 4)), "uint32"),
        "npy": (saved(folder / "a_train_1.npy", np.array(TOKENS, np.uint16)), "uint16"),
        "npy of 4 bytes": (saved(folder / "b_train_1.npy", np.array(TOKENS, np.uint32)), "uint32"),
        "raw": (write(folder / "train.bin", struct.pack("<5H", *TOKENS)), "uint16"),
    }


KINDS = ["llm.c", "llm.c of 4 bytes", "npy", "npy of 4 bytes", "raw"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_shard_is_known_by_what_it_says_of_itself(tmp_path: Path, kind: str, is_packed: bool) -> None:
    path, token_type = good(tmp_path)[kind]
    file = look(packed(path) if is_packed else path, Expected())

    assert (file.tokens, file.token_type) == (5, token_type)
    assert file.read().tolist() == TOKENS
    assert file.read().dtype == np.dtype(token_type)


def test_a_headerless_file_is_what_the_caller_says(tmp_path: Path) -> None:
    path = write(tmp_path / "mine_train.bin", struct.pack("<5I", *TOKENS))

    assert look(path, Expected("raw", "uint32")).read().tolist() == TOKENS
    with pytest.raises(ShardError, match=r"(?s)mine_train\.bin.*raw='uint16'"):
        look(path, Expected())


def test_mapped_tokens_cannot_be_written_through(tmp_path: Path) -> None:
    for path, _ in good(tmp_path).values():
        with pytest.raises(ValueError, match="read-only"):
            look(path, Expected()).read()[0] = 1


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "three bytes": lambda raw: raw[:3],
    "half": lambda raw: raw[: len(raw) // 2],
    "one byte short": lambda raw: raw[:-1],
    "one byte more": lambda raw: raw + b"\0",
    "four bytes more": lambda raw: raw + bytes(4),
    "zeros": lambda raw: bytes(len(raw)),
    "HTML": lambda _: b"<html>" * 400,
}


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_shard_is_refused_by_name(tmp_path: Path, kind: str, damage: str, is_packed: bool) -> None:
    path, _ = good(tmp_path)[kind]
    path = packed(path) if is_packed else path
    path.write_bytes(DAMAGE[damage](path.read_bytes()))

    with pytest.raises(ShardError, match=path.name):
        look(path, Expected()).read()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_shard_within_a_sound_frame_is_refused(tmp_path: Path, damage: str) -> None:
    path, _ = good(tmp_path)["llm.c"]
    path.write_bytes(DAMAGE[damage](path.read_bytes()))

    with pytest.raises(ShardError, match=r"a_train_1\.bin\.zst"):
        look(packed(path), Expected())


def test_a_frame_that_does_not_tell_its_size_is_refused(tmp_path: Path) -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    path = write(tmp_path / "a_train_1.bin.zst", compressor.compress(llmc(TOKENS)))

    with pytest.raises(ShardError, match="how large"):
        look(path, Expected())


@pytest.mark.parametrize(
    "array",
    [np.zeros((2, 2), np.uint16), np.zeros(3, ">u2"), np.zeros(3, np.int32), np.zeros(3), np.array("x")],
    ids=["two dimensions", "big endian", "signed", "floats", "text"],
)
def test_an_array_that_holds_no_tokens_is_refused(tmp_path: Path, array: Any) -> None:
    with pytest.raises(ShardError, match="x_train"):
        look(saved(tmp_path / "x_train.npy", array), Expected())


def test_an_array_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    path = saved(tmp_path / "x_train.npy", np.array([{}, []], object))

    with pytest.raises(ShardError, match="x_train"):
        look(path, Expected())


@pytest.mark.parametrize(
    "expected",
    [
        Expected(tokens=6),
        Expected(token_type="uint32"),
        Expected(bytes=1033),
        Expected(kind="npy"),
        Expected(kind="raw", token_type="uint16", tokens=5),
    ],
)
def test_a_shard_that_is_not_as_expected_is_refused(tmp_path: Path, expected: Expected) -> None:
    path, _ = good(tmp_path)["llm.c"]

    with pytest.raises(ShardError, match=r"a_train_1\.bin"):
        look(path, expected)


@pytest.mark.parametrize("what", ["missing", "a folder"])
def test_what_cannot_be_opened_is_named(tmp_path: Path, what: str) -> None:
    path = tmp_path / "a_train_1.bin"
    if what == "a folder":
        path.mkdir()

    with pytest.raises(ShardError, match=r"a_train_1\.bin"):
        look(path, Expected())


def test_a_shard_that_changes_after_it_was_looked_at_is_refused(tmp_path: Path) -> None:
    path, _ = good(tmp_path)["llm.c"]
    file = look(path, Expected())
    path.write_bytes(llmc([*TOKENS, 3]))

    with pytest.raises(ShardError, match="changed"):
        file.read()


def test_only_so_many_are_kept_and_the_oldest_goes() -> None:
    made: list[int] = []

    def make(shard: int) -> Any:
        made.append(shard)
        return np.array([shard])

    kept = Kept(make, 2)
    assert [int(kept[shard][0]) for shard in (1, 2, 1, 3, 2, 1)] == [1, 2, 1, 3, 2, 1]
    assert made == [1, 2, 3, 1]
    assert [*kept] == [3, 1]
