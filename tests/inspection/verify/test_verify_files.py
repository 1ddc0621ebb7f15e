"""verify: whatever is done to the files of a run is told, each thing for itself."""

import os
import random
from pathlib import Path

import pytest
from verified import (
    HEADER_BYTES,
    Change,
    assert_told,
    edit,
    entries_of,
    index_of,
    read_manifest,
    tokens_of,
    told,
)

from fwconvert.formats import Format
from fwconvert.inspection import verify_shard
from fwconvert.recipes import TokenType
from fwconvert.shards import shard


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def change_magic(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def change_count(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] -= 1
    path.write_bytes(content)


def use_reserved(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES - 1] = 1
    path.write_bytes(content)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def break_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


HARM: list[tuple[Change, list[str]]] = [
    (Path.unlink, ["is missing"]),
    (break_link, ["is missing"]),
    (make_folder, ["is not a regular file"]),
    (cut_short, ["has 1,151 bytes instead of 1,152", "does not match its header"]),
    (lengthen, ["has 1,153 bytes instead of 1,152", "does not match its header"]),
    (empty, ["has 0 bytes instead of 1,152", "not a token shard in llm.c's format"]),
    (change_magic, ["not a token shard in llm.c's format"]),
    (change_count, ["does not match its header"]),
    (use_reserved, ["is damaged: its sha256", "bytes other than zero"]),
]


@pytest.mark.parametrize(("harm", "wanted"), HARM, ids=lambda part: getattr(part, "__name__", ""))
def test_a_damaged_shard_is_told(before: Path, harm: Change, wanted: list[str]) -> None:
    name = "t_train_00001_001.bin"
    harm(before / name)
    assert_told(before, *wanted)
    assert all(problem.startswith(name) for problem in told(before))


INDEX_HARM: list[tuple[Change, list[str]]] = [
    (Path.unlink, ["is missing"]),
    (make_folder, ["is not a regular file"]),
    (cut_short, ["has 31 bytes instead of 32", "sha256", "a file is cut short"]),
    (lengthen, ["has 33 bytes instead of 32", "sha256", "a file is cut short"]),
    (
        empty,
        ["has 0 bytes instead of 32", "sha256", "4 documents are missing", "where 2-all-tail.parquet begins"],
    ),
]


@pytest.mark.parametrize(("harm", "wanted"), INDEX_HARM, ids=lambda part: getattr(part, "__name__", ""))
def test_a_damaged_index_is_told(before: Path, harm: Change, wanted: list[str]) -> None:
    harm(index_of(before, "t_train_00009_000.bin"))
    found = [problem for problem in told(before) if problem.startswith("index/t_train_00009_000.docs")]
    assert len(found) == len(wanted)
    assert all(any(part in problem for problem in found) for part in wanted)


def test_one_wrong_byte_of_text_is_told_by_the_hash(before: Path) -> None:
    tokens_of(before, "t_train_00001_001.bin")[5] ^= 1
    assert_told(before, "t_train_00001_001.bin: is damaged: its sha256 is")


def test_one_wrong_byte_of_an_index_is_told_by_the_hash(before: Path) -> None:
    entries_of(before, "t_train_00000_001.bin")["row"][0] = 2
    assert_told(before, "index/t_train_00000_001.docs: is damaged: its sha256 is")


def test_no_damage_to_a_file_goes_unnoticed(before: Path) -> None:
    dice = random.Random(11)
    files = sorted(path for path in before.rglob("*") if path.suffix in {".bin", ".docs"})
    for _ in range(60):
        path = dice.choice(files)
        content = path.read_bytes()
        at = dice.randrange(len(content) + 1)
        path.write_bytes(
            content[:at] + dice.randbytes(dice.randrange(1, 9)) + content[at + dice.randrange(9) :]
        )
        assert told(before) or path.read_bytes() == content
        path.write_bytes(content)


def test_a_disk_that_cannot_be_read_is_told(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> str:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(verify_shard, "sha256_of", fail)
    monkeypatch.setattr(verify_shard.Scan, "read_header", fail)
    found = told(before)
    assert len(found) == 2 * len(read_manifest(before)["shards"])
    assert all("cannot be read (Input/output error)" in problem for problem in found)


def test_a_file_that_is_cut_while_it_is_read_is_told(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token_count = shard.token_count

    def count_then_cut(path: Path, token_type: TokenType, kind: Format) -> int:
        tokens = token_count(path, token_type, kind)
        if path.name == "t_train_00001_001.bin":
            os.truncate(path, HEADER_BYTES + 10)
        return tokens

    monkeypatch.setattr(shard, "token_count", count_then_cut)
    assert_told(before, "t_train_00001_001.bin: was cut short while it was read")


def test_every_problem_is_told_at_once(before: Path) -> None:
    (before / "t_train_00001_000.bin").unlink()
    cut_short(before / "t_train_00001_001.bin")
    (before / "index" / "t_train_00001_002.docs").unlink()
    tokens_of(before, "t_train_00005_000.bin")[7] = 300
    (before / "t_train_99999_000.bin").write_bytes(b"")
    edit(before, lambda manifest: manifest["headline"].update(tokens=1))
    assert_told(
        before,
        "t_train_00001_000.bin: is missing",
        "t_train_00001_001.bin: has 1,151 bytes",
        "t_train_00001_001.bin: the size of a token shard does not match",
        "index/t_train_00001_002.docs: is missing",
        "t_train_00005_000.bin: is damaged",
        "t_train_00005_000.bin: 1 ids are outside the vocabulary of 257, the first at token 7",
        "t_train_99999_000.bin: is not part of this run",
        "manifest.json: the headline's tokens is 1",
    )
