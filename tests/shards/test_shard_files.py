"""The bytes of token shards and document indexes, against bytes built by hand from llm.c's description."""

import errno
import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from examples import rules_with, unhurried
from hypothesis import given, settings
from hypothesis import strategies as st

from fwconvert import formats
from fwconvert.errors import OutputError, ShardError
from fwconvert.recipes import Rules, TokenType
from fwconvert.shards import shard
from fwconvert.shards.cutting import Piece
from fwconvert.shards.shard import ShardWriter, header, map_array, read_index, read_tokens, tail_index_type
from fwconvert.store import layout
from fwconvert.store.local import LocalStore

TYPES: tuple[TokenType, ...] = get_args(TokenType)

# llm.c, dev/data/data_common.py: magic and version of gpt-2 and of llama-3 shards.
MAGIC = {"uint16": (20240520, 1), "uint32": (20240801, 7)}
LETTER = {"uint16": "H", "uint32": "I"}
LARGEST = {"uint16": 2**16 - 1, "uint32": 2**32 - 1}


def llmc_file(token_type: TokenType, tokens: Sequence[int]) -> bytes:
    """Return a shard as llm.c writes it: 256 int32, then the tokens."""
    head = struct.pack("<256i", *MAGIC[token_type], len(tokens), *([0] * 253))
    return head + struct.pack(f"<{len(tokens)}{LETTER[token_type]}", *tokens)


def index_file(documents: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack("<II", start, row) for start, row in documents)


def piece_of(tokens: Any, documents: Sequence[tuple[int, int]] = ()) -> Piece:
    starts, rows = np.array([start for start, _ in documents]), np.array([row for _, row in documents])
    return Piece(tokens, starts.astype(np.int64), rows.astype(np.int64), ends_block=False)


def write(
    folder: Path, token_type: TokenType, tokens: Sequence[int], documents: Sequence[tuple[int, int]]
) -> None:
    rules = rules_with(token_type=token_type)
    with ShardWriter(store_in(folder), "label", rules, len(tokens)) as writer:
        writer.write(piece_of(np.array(tokens, token_type), documents))
        writer.finish()
        writer.publish("shard", "index")


def store_in(folder: Path) -> LocalStore:
    (folder / layout.TEMPORARY).mkdir(parents=True, exist_ok=True)
    return LocalStore(folder)


def litter(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("token_type", TYPES)
def test_a_header_is_llm_c_s_to_the_byte(token_type: TokenType) -> None:
    for tokens in (0, 1, 100_000_000, 2**31 - 1):
        wanted = struct.pack("<256i", *MAGIC[token_type], tokens, *([0] * 253))
        assert header(token_type, tokens) == wanted
        assert len(wanted) == 1024


def test_the_first_bytes_of_a_header_are_known_by_heart() -> None:
    # 20240520 is 0x134d888 and 20240801 is 0x134d9a1; 100,000,000 is 0x5f5e100.
    assert header("uint16", 100_000_000)[:16].hex(" ", 4) == "88d83401 01000000 00e1f505 00000000"
    assert header("uint32", 100_000_000)[:16].hex(" ", 4) == "a1d93401 07000000 00e1f505 00000000"


@given(data=st.data(), token_type=st.sampled_from(TYPES))
@settings(unhurried, max_examples=40)
def test_a_shard_is_written_as_llm_c_writes_it_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, token_type: TokenType
) -> None:
    folder = tmp_path_factory.mktemp("shard")
    pieces = data.draw(st.lists(st.lists(st.integers(0, LARGEST[token_type]), max_size=20), max_size=5))
    tokens = [token for piece in pieces for token in piece]
    starts = sorted(data.draw(st.sets(st.integers(0, max(0, len(tokens) - 1)), max_size=len(tokens))))
    documents = [(start, 3 * start + 1) for start in starts]

    with ShardWriter(store_in(folder), "label", rules_with(token_type=token_type), len(tokens)) as writer:
        position = 0
        for piece in pieces:
            inside = [entry for entry in documents if position <= entry[0] < position + len(piece)]
            writer.write(piece_of(np.array(piece, token_type), inside))
            position += len(piece)
        writer.finish()
        writer.publish("shard", "index")

    assert (folder / "shard").read_bytes() == llmc_file(token_type, tokens)
    assert (folder / "index").read_bytes() == index_file(documents)
    assert (writer.tokens, writer.documents) == (len(tokens), len(documents))
    assert writer.body.sha256 == hashlib.sha256(llmc_file(token_type, tokens)).hexdigest()
    assert writer.index.sha256 == hashlib.sha256(index_file(documents)).hexdigest()
    assert read_tokens(folder / "shard", token_type).tolist() == tokens
    assert read_index(folder / "index").tolist() == documents
    assert litter(folder) == ["index", "shard"]


@pytest.mark.parametrize("token_type", TYPES)
def test_tokens_are_little_endian_and_in_order_whatever_the_array_looks_like(
    tmp_path: Path, token_type: TokenType
) -> None:
    numbers = np.arange(1, 2001, dtype=token_type)
    swapped = numbers.astype(numbers.dtype.newbyteorder(">"))

    for at, array in enumerate((numbers, swapped, numbers[::2], numbers[::-1], swapped[3::7])):
        rules = rules_with(token_type=token_type)
        with ShardWriter(store_in(tmp_path), "label", rules, len(array)) as writer:
            writer.write(piece_of(array))
            writer.publish(f"shard{at}", f"index{at}")
        assert (tmp_path / f"shard{at}").read_bytes() == llmc_file(token_type, array.tolist())


def test_an_index_entry_is_two_little_endian_uint32(tmp_path: Path) -> None:
    write(tmp_path, "uint16", [1, 2, 3], [(0, 2**32 - 1), (2, 258)])

    assert (tmp_path / "index").read_bytes() == bytes.fromhex("00000000 ffffffff 02000000 02010000")
    assert shard.INDEX_TYPE.itemsize == 8


def test_a_tail_of_unknown_length_has_room_for_starts_behind_four_gigatokens(tmp_path: Path) -> None:
    rules = rules_with(layout="contiguous")
    with ShardWriter(store_in(tmp_path), "label", rules, 0) as writer:
        writer.write(piece_of(np.array([5], np.uint16), [(2**33, 7)]))
        writer.publish("tail", "index")

    assert (tmp_path / "index").read_bytes() == struct.pack("<QI", 2**33, 7)
    assert map_array(tmp_path / "index", tail_index_type(rules), 0).tolist() == [(2**33, 7)]


def test_the_index_of_one_stream_has_room_for_them_too(tmp_path: Path) -> None:
    rules = rules_with(format="raw", layout="contiguous", shard_tokens=0, name="")
    with ShardWriter(store_in(tmp_path), "label", rules, 1) as writer:
        writer.write(piece_of(np.array([5], np.uint16), [(2**33, 7)]))
        writer.complete([0])
        writer.publish("train.bin", "train.docs")

    assert (tmp_path / "train.bin").read_bytes() == b"\x05\x00"
    assert (tmp_path / "train.docs").read_bytes() == struct.pack("<QI", 2**33, 7)
    assert read_index(tmp_path / "train.docs", formats.RAW).tolist() == [(2**33, 7)]


@pytest.mark.parametrize("token_type", TYPES)
def test_an_npy_shard_is_what_numpy_saves(tmp_path: Path, token_type: TokenType) -> None:
    tokens = np.array([0, 1, LARGEST[token_type]], token_type)
    np.save(tmp_path / "numpy.npy", tokens)
    with ShardWriter(
        store_in(tmp_path), "label", rules_with(format="npy", token_type=token_type), 3
    ) as writer:
        writer.write(piece_of(tokens, [(0, 0)]))
        writer.complete([0])
        writer.publish("ours.npy", "ours.docs")

    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()
    assert read_tokens(tmp_path / "numpy.npy", token_type, formats.NPY).tolist() == tokens.tolist()


@pytest.mark.parametrize("kind", [formats.NPY, formats.RAW], ids=lambda kind: kind.name)
@pytest.mark.parametrize("change", [b"\0", -1], ids=["a byte more", "a byte less"])
def test_a_shard_of_any_format_that_ends_within_a_token_is_refused(
    tmp_path: Path, kind: formats.Format, change: Any
) -> None:
    whole = kind.header_of(2, 3) + bytes(6)
    (tmp_path / "some.shard").write_bytes(whole + change if change == b"\0" else whole[:change])

    with pytest.raises(ShardError, match=r"some\.shard"):
        read_tokens(tmp_path / "some.shard", "uint16", kind)


@pytest.mark.parametrize("nth", [3, 4])
def test_a_file_beside_a_shard_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    real, calls = os.fsync, 0

    def failing(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OutputError):
        complete(tmp_path, rules_with(format="datatrove"))

    assert calls == nth
    assert litter(tmp_path) == []


def complete(folder: Path, rules: Rules) -> None:
    with ShardWriter(store_in(folder), "label", rules, 2) as writer:
        writer.write(piece_of(np.array([1, 2], np.uint16), [(0, 0)]))
        writer.complete([0])


def test_a_tail_is_the_beginning_of_the_shard_that_it_would_have_become(tmp_path: Path) -> None:
    with ShardWriter(store_in(tmp_path), "label", rules_with(), 4) as writer:
        writer.write(piece_of(np.array([1, 2], np.uint16), [(0, 0)]))
        writer.publish("tail", "index")

    assert (tmp_path / "tail").read_bytes() == llmc_file("uint16", [1, 2, 3, 4])[:-4]
    with pytest.raises(ShardError):  # And nobody can take it for a shard.
        read_tokens(tmp_path / "tail", "uint16")


def test_a_shard_without_a_document_start_has_an_empty_index(tmp_path: Path) -> None:
    write(tmp_path, "uint16", [1, 2], [])

    assert (tmp_path / "index").read_bytes() == b""
    assert read_index(tmp_path / "index").tolist() == []
    assert read_index(tmp_path / "index").dtype.names == ("start", "row")


def test_a_writer_that_does_not_publish_leaves_nothing(tmp_path: Path) -> None:
    def begin() -> None:
        with ShardWriter(store_in(tmp_path), "label", rules_with(), 2) as writer:
            writer.write(piece_of(np.array([1, 2], np.uint16)))
            writer.finish()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert litter(tmp_path) == []


@pytest.mark.parametrize(("call", "nth"), [("open", 1), ("open", 2), ("write", 1)])
def test_a_writer_that_cannot_begin_or_end_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    real, calls = getattr(os, call), 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    with monkeypatch.context() as full:
        full.setattr(os, call, failing)
        with pytest.raises(OutputError):
            write_and_finish(tmp_path)

    assert litter(tmp_path) == []


def write_and_finish(folder: Path) -> None:
    with ShardWriter(store_in(folder), "label", rules_with(), 2) as writer:
        writer.write(piece_of(np.array([1, 2], np.uint16)))
        writer.finish()


GOOD = {token_type: llmc_file(token_type, [1, 2, 3]) for token_type in TYPES}


# What may stand under a shard's name instead of the shard.
WRONG: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "three bytes": lambda raw: raw[:3],
    "a short header": lambda raw: raw[:1023],
    "only the header": lambda raw: raw[:1024],
    "one byte short": lambda raw: raw[:-1],
    "one trailing byte": lambda raw: raw + b"\0",
    "one token more": lambda raw: raw + b"\0\0\0\0",
    "another magic": lambda raw: struct.pack("<i", 20240522) + raw[4:],
    "magic in the other byte order": lambda raw: raw[3::-1] + raw[4:],
    "another version": lambda raw: raw[:4] + struct.pack("<i", 2) + raw[8:],
    "a larger count": lambda raw: raw[:8] + struct.pack("<i", 4) + raw[12:],
    "a smaller count": lambda raw: raw[:8] + struct.pack("<i", 2) + raw[12:],
    "a negative count": lambda raw: raw[:8] + struct.pack("<i", -1) + raw[12:],
    "the largest count": lambda raw: raw[:8] + struct.pack("<i", 2**31 - 1) + raw[12:],
    "zeros, as a crash leaves them": lambda raw: bytes(len(raw)),
    "HTML": lambda _: b"<html>" * 400,
}


@pytest.mark.parametrize("token_type", TYPES)
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_a_file_that_is_not_a_shard_is_refused_by_name(
    tmp_path: Path, token_type: TokenType, change: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "edu_fineweb_train_000001.bin"
    path.write_bytes(change(GOOD[token_type]))

    with pytest.raises(ShardError, match=r"edu_fineweb_train_000001\.bin"):
        read_tokens(path, token_type)


def test_a_shard_of_the_other_type_is_refused(tmp_path: Path) -> None:
    for wrong, token_type in (TYPES, reversed(TYPES)):
        (tmp_path / "shard").write_bytes(GOOD[wrong])
        with pytest.raises(ShardError, match=token_type):
            read_tokens(tmp_path / "shard", token_type)


@pytest.mark.parametrize("token_type", TYPES)
def test_a_shard_without_tokens_is_read_as_such(tmp_path: Path, token_type: TokenType) -> None:
    (tmp_path / "shard").write_bytes(llmc_file(token_type, []))

    assert read_tokens(tmp_path / "shard", token_type).tolist() == []


@pytest.mark.parametrize("place", ["missing", "a folder"])
def test_what_cannot_be_opened_is_a_shard_error_that_names_it(tmp_path: Path, place: str) -> None:
    path = tmp_path / "shard.bin"
    if place == "a folder":
        path.mkdir()

    with pytest.raises(ShardError, match=r"shard\.bin"):
        read_tokens(path, "uint16")
    with pytest.raises(ShardError, match=r"shard\.bin"):
        read_index(path)


@pytest.mark.parametrize("size", [1, 7, 9, 15])
def test_an_index_that_is_cut_short_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "some.docs").write_bytes(bytes(size))

    with pytest.raises(ShardError, match=r"some\.docs"):
        read_index(tmp_path / "some.docs")


def test_reading_maps_the_file_and_nobody_can_write_through_it(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(GOOD["uint16"])

    tokens = read_tokens(tmp_path / "shard", "uint16")

    assert isinstance(tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 9
