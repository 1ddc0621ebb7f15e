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
from fwconvert.formats import NPY, RAW
from fwconvert.loader.files import ArrayCache, Claims, look

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
    file = look(packed(path) if is_packed else path, Claims())

    assert (file.tokens, file.token_type) == (5, token_type)
    assert file.read().tolist() == TOKENS
    assert file.read().dtype == np.dtype(token_type)


def test_a_headerless_file_is_what_the_caller_says(tmp_path: Path) -> None:
    path = write(tmp_path / "mine_train.bin", struct.pack("<5I", *TOKENS))

    assert look(path, Claims(raw="uint32")).read().tolist() == TOKENS
    with pytest.raises(ShardError, match=r"(?s)mine_train\.bin.*raw='uint16'"):
        look(path, Claims())


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("raw", ["uint16", "uint32"])
def test_a_header_is_not_served_as_tokens(tmp_path: Path, kind: str, is_packed: bool, raw: Any) -> None:
    path, _ = good(tmp_path)[kind]
    path = packed(path) if is_packed else path

    with pytest.raises(ShardError, match=rf"(?s)has a header.*{path.name}.*do not pass raw"):
        look(path, Claims(raw=raw))


def test_llm_c_s_magic_number_is_a_header_in_any_version(tmp_path: Path) -> None:
    path = write(tmp_path / "train.bin", struct.pack("<256i", 20240520, 2, 0, *[0] * 253))

    for raw in ("uint16", None):
        with pytest.raises(ShardError, match=r"train\.bin"):
            look(path, Claims(raw=raw))


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("highest", [100_277, 200_018])
def test_tokens_of_four_bytes_are_not_taken_for_twice_as_many(
    tmp_path: Path, highest: int, is_packed: bool
) -> None:
    ids = np.random.default_rng(1).integers(0, highest, 5000).astype("<u4")
    path = write(tmp_path / "train.bin", ids.tobytes())
    path = packed(path) if is_packed else path

    with pytest.raises(ShardError, match=r"(?s)4 bytes.*train\.bin.*raw='uint32', or raw='uint16'"):
        look(path, Claims())
    assert look(path, Claims(raw="uint32")).read().tolist() == ids.tolist()
    assert look(path, Claims(raw="uint16")).tokens == 10_000
    # The run manifest knows.
    assert look(path, Claims(RAW, "uint32")).tokens == 5000
    assert look(path, Claims(RAW, "uint16")).tokens == 10_000


SMALL: dict[str, list[int]] = {
    "nothing": [],
    "a few": [7, 0, 9, 1],
    "zeros": [0] * 5000,
    "ones and zeros": [0, 1] * 3000,
    "text of bytes": [256, *b"the cat sat on the mat and so on"],
    "one that is not small": [1000, 1] * 400 + [1000, 4] + [1000, 1] * 400,
}


@pytest.mark.parametrize("kind", SMALL)
def test_small_tokens_of_two_bytes_are_served_unasked(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "val.bin", struct.pack(f"<{len(SMALL[kind])}H", *SMALL[kind]))

    assert look(path, Claims()).read().tolist() == SMALL[kind]


def test_mapped_tokens_cannot_be_written_through(tmp_path: Path) -> None:
    for path, _ in good(tmp_path).values():
        with pytest.raises(ValueError, match="read-only"):
            look(path, Claims()).read()[0] = 1


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
        look(path, Claims()).read()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_shard_within_a_sound_frame_is_refused(tmp_path: Path, damage: str) -> None:
    path, _ = good(tmp_path)["llm.c"]
    path.write_bytes(DAMAGE[damage](path.read_bytes()))

    with pytest.raises(ShardError, match=r"a_train_1\.bin\.zst"):
        look(packed(path), Claims())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [10, 20, 1000])
def test_a_frame_that_is_cut_short_says_so(tmp_path: Path, kind: str, keep: int) -> None:
    path, token_type = good(tmp_path)[kind]
    head = path.read_bytes()[:-10]
    noise = np.random.default_rng(1).integers(0, 50_000, 5000).astype(token_type)
    path = packed(write(path, head + noise.tobytes()))
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(ShardError, match=r"(?s)cannot be read.*\.zst.*it is cut short"):
        look(path, Claims())


@pytest.mark.parametrize("claims", [Claims(), Claims(raw="uint32"), Claims(RAW, "uint32", 5)])
def test_a_headerless_shard_that_is_cut_short_does_not_speak_of_a_header(
    tmp_path: Path, claims: Claims
) -> None:
    path = write(tmp_path / "train.bin", bytes(19))

    with pytest.raises(ShardError, match=r"(?s)without a header is cut short.*train\.bin.*19"):
        look(path, claims)
    with pytest.raises(ShardError, match=r"(?s)match the run manifest.*train\.bin.*19.*20"):
        look(path, Claims(RAW, "uint32", 5, 20))


def test_a_frame_that_does_not_tell_its_size_is_refused(tmp_path: Path) -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    path = write(tmp_path / "a_train_1.bin.zst", compressor.compress(llmc(TOKENS)))

    with pytest.raises(ShardError, match="declare the size"):
        look(path, Claims())


@pytest.mark.parametrize(
    "array",
    [np.zeros((2, 2), np.uint16), np.zeros(3, ">u2"), np.zeros(3, np.int32), np.zeros(3), np.array("x")],
    ids=["two dimensions", "big endian", "signed", "floats", "text"],
)
def test_an_array_that_holds_no_tokens_is_refused(tmp_path: Path, array: Any) -> None:
    with pytest.raises(ShardError, match="x_train"):
        look(saved(tmp_path / "x_train.npy", array), Claims())


def test_an_array_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    path = saved(tmp_path / "x_train.npy", np.array([{}, []], object))

    with pytest.raises(ShardError, match="x_train"):
        look(path, Claims())


@pytest.mark.parametrize(
    "claims",
    [
        Claims(tokens=6),
        Claims(token_type="uint32"),
        Claims(bytes=1033),
        Claims(NPY),
        Claims(RAW, token_type="uint16", tokens=5),
    ],
)
def test_a_shard_that_is_not_as_expected_is_refused(tmp_path: Path, claims: Claims) -> None:
    path, _ = good(tmp_path)["llm.c"]

    with pytest.raises(ShardError, match=r"a_train_1\.bin"):
        look(path, claims)


@pytest.mark.parametrize("what", ["missing", "a folder"])
def test_what_cannot_be_opened_is_named(tmp_path: Path, what: str) -> None:
    path = tmp_path / "a_train_1.bin"
    if what == "a folder":
        path.mkdir()

    with pytest.raises(ShardError, match=r"a_train_1\.bin"):
        look(path, Claims())


def test_a_shard_that_changes_after_it_was_looked_at_is_refused(tmp_path: Path) -> None:
    path, _ = good(tmp_path)["llm.c"]
    file = look(path, Claims())
    path.write_bytes(llmc([*TOKENS, 3]))

    with pytest.raises(ShardError, match="changed"):
        file.read()


def test_only_so_many_are_kept_and_the_oldest_goes() -> None:
    made: list[int] = []

    def make(shard: int) -> Any:
        made.append(shard)
        return np.array([shard])

    kept = ArrayCache(make, 2)
    assert [int(kept[shard][0]) for shard in (1, 2, 1, 3, 2, 1)] == [1, 2, 1, 3, 2, 1]
    assert made == [1, 2, 3, 1]
    assert [*kept] == [3, 1]
