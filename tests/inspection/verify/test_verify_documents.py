"""verify: files that are wrong although their hashes are right."""

from pathlib import Path

import numpy as np
import pytest
from verified import (
    AFTER,
    BEFORE,
    EOT,
    SIZE,
    Kind,
    Run,
    assert_told,
    copy,
    entries_of,
    index_of,
    read_manifest,
    seal,
    tokens_of,
    told,
    write_entries,
)

from fwconvert.inspection import verify_shard
from fwconvert.shards import shard
from fwconvert.store import layout
from fwconvert.tokens.registry import find

# --- EOT before each document


def test_an_eot_in_another_place_is_told(before: Path) -> None:
    tokens = tokens_of(before, "t_train_00001_000.bin")
    tokens[[9, 10]] = tokens[[10, 9]]
    seal(before)
    assert_told(
        before,
        "index/t_train_00001_000.docs: 1 documents are missing, the first at token 9",
        "index/t_train_00001_000.docs: 1 documents start where there is no EOT, the first at token 10",
    )


def test_a_lost_eot_is_told(before: Path) -> None:
    tokens_of(before, "t_train_00001_000.bin")[10] = 46
    seal(before)
    assert_told(
        before,
        "index/t_train_00001_000.docs: 1 documents start where there is no EOT, the first at token 10",
        "the job 1-longer-than-three-shards.parquet has 4 documents, its tokens 3 EOTs",
    )


def test_an_eot_too_many_is_told(before: Path) -> None:
    tokens_of(before, "t_train_00001_002.bin")[[7, 9]] = EOT
    seal(before)
    assert_told(
        before,
        "index/t_train_00001_002.docs: 2 documents are missing, the first at token 7",
        "the job 1-longer-than-three-shards.parquet has 4 documents, its tokens 6 EOTs",
    )


def test_ids_outside_the_vocabulary_are_told(before: Path) -> None:
    tokens_of(before, "t_train_00001_002.bin")[[3, 5]] = find("bytes").size, 2**16 - 1
    seal(before)
    what = "2 ids are outside the vocabulary of 257, the first at token 3"
    assert_told(before, f"t_train_00001_002.bin: {what}")


def test_a_start_that_is_off_by_one_is_told(before: Path) -> None:
    entries_of(before, "t_train_00001_000.bin")["start"][1] += 1
    seal(before)
    assert_told(
        before,
        "index/t_train_00001_000.docs: 1 documents are missing, the first at token 10",
        "index/t_train_00001_000.docs: 1 documents start where there is no EOT, the first at token 11",
    )


def test_starts_that_do_not_rise_are_told(before: Path) -> None:
    entries_of(before, "t_train_00009_000.bin")["start"][2] = 34
    seal(before)
    assert_told(before, "index/t_train_00009_000.docs: entry 2 does not start after the entry before it")


def test_a_start_outside_the_shard_is_told(before: Path) -> None:
    entries_of(before, "t_train_00009_000.bin")["start"][3] = SIZE
    seal(before)
    what = "a document starts at token 64, but there are only 64"
    assert_told(before, f"index/t_train_00009_000.docs: {what}")


def test_swapped_rows_are_told(before: Path) -> None:
    entries = entries_of(before, "t_train_00001_000.bin")
    entries["row"] = entries["row"][::-1].copy()
    seal(before)
    what = "the document at token 10 is not from a later row than the one before"
    assert_told(before, f"index/t_train_00001_000.docs: {what}")


def test_rows_that_go_back_from_shard_to_shard_are_told(before: Path) -> None:
    entries_of(before, "t_train_00000_002.bin")["row"][0] = 4
    seal(before)
    what = "begins with row 4 of 0-ends-with-its-shards.parquet, but row 4 came before it"
    assert_told(before, f"index/t_train_00000_002.docs: {what}")


def test_rows_that_go_back_from_a_source_to_its_joined_tail_are_told(before: Path) -> None:
    entries_of(before, "t_train_00009_000.bin")["row"][0] = 1
    seal(before)
    what = "begins with row 1 of 1-longer-than-three-shards.parquet, but row 2 came before it"
    assert_told(before, f"index/t_train_00009_000.docs: {what}")


def test_a_row_that_the_source_does_not_have_is_told(before: Path) -> None:
    entries_of(before, "t_train_00000_002.bin")["row"][0] = 6
    seal(before)
    what = "refers to row 6 of 0-ends-with-its-shards.parquet, which has 6 rows"
    assert_told(before, f"index/t_train_00000_002.docs: {what}")


def test_a_source_that_does_not_begin_with_a_document_is_told(before: Path) -> None:
    tokens_of(before, "t_train_00004_000.bin")[0] = 46
    write_entries(before, "t_train_00004_000.bin", [])
    seal(before)
    assert_told(
        before,
        "index/t_train_00004_000.docs: has no document where 4-tail-within-a-document.parquet begins",
        "the job 4-tail-within-a-document.parquet has 2 documents, its indexes 1",
        "the job 4-tail-within-a-document.parquet has 2 documents, its tokens 1 EOTs",
        "the token shards have 20 documents, but the jobs have 21",
    )


def test_a_document_given_to_another_source_is_told(before: Path) -> None:
    tokens = tokens_of(before, "t_train_00009_000.bin")
    tokens[[33, 34]] = tokens[[34, 33]]
    write_entries(before, "t_train_00009_000.bin", [(14, 3), (33, 4), (38, 2), (47, 3)])
    seal(before)
    assert_told(
        before,
        "index/t_train_00009_000.docs: refers to row 4 of 1-longer-than-three-shards.parquet, which has 4",
        "the job 1-longer-than-three-shards.parquet has 4 documents, its indexes 5",
        "the job 1-longer-than-three-shards.parquet has 4 documents, its tokens 5 EOTs",
        "index/t_train_00009_000.docs: has no document where 2-all-tail.parquet begins",
        "the job 2-all-tail.parquet has 3 documents, its indexes 2",
        "the job 2-all-tail.parquet has 3 documents, its tokens 2 EOTs",
    )


def test_two_files_that_changed_their_names_are_told(before: Path) -> None:
    one, other = before / "t_train_00001_001.bin", before / "t_train_00001_002.bin"
    one.rename(before / "x")
    other.rename(one)
    (before / "x").rename(other)
    assert_told(before, f"{one.name}: is damaged: its sha256", f"{other.name}: is damaged: its sha256")


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_a_fall_is_seen_within_a_step_and_between_two(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_shard, "STEP", step)
    assert shard.first_fall(np.arange(7)) == -1
    for at in range(1, 7):
        assert shard.first_fall(np.arange(7) - (np.arange(7) >= at)) == at


# --- EOT after each document


def test_an_eot_after_a_document_in_another_place_is_told(after: Path) -> None:
    tokens = tokens_of(after, "t_train_00001_000.bin")
    tokens[[9, 10]] = tokens[[10, 9]]
    seal(after)
    assert_told(
        after,
        "index/t_train_00001_000.docs: 1 documents start where there is no EOT, the first at token 10",
        "index/t_train_00001_000.docs: 1 documents are missing, the first at token 11",
    )


def test_an_eot_lost_at_the_end_of_a_shard_is_told(after: Path) -> None:
    tokens_of(after, "t_train_00000_001.bin")[-1] = 46
    seal(after)
    what = "begins a document here, though t_train_00000_001.bin ends without an EOT"
    assert_told(
        after,
        f"index/t_train_00000_002.docs: 0-ends-with-its-shards.parquet {what}",
        "the job 0-ends-with-its-shards.parquet has 4 documents, its tokens 3 EOTs",
    )


def test_an_eot_lost_at_the_end_of_a_source_is_told(after: Path) -> None:
    tokens_of(after, "t_train_00009_001.bin")[-1] = 46
    seal(after)
    assert_told(
        after,
        "t_train_00009_001.bin: 7-tail-fills-a-joined-shard.parquet ends in it without an EOT",
        "the job 7-tail-fills-a-joined-shard.parquet has 2 documents, its tokens 1 EOTs",
    )


@pytest.mark.parametrize(
    ("name", "entries", "source", "end"),
    [
        ("t_train_00000_002.bin", [], "0-ends-with-its-shards.parquet", "t_train_00000_001.bin"),
        ("t_train_00009_001.bin", [(33, 1)], "5-tail-begins-a-document.parquet", "t_train_00005_000.bin"),
    ],
)
def test_a_document_that_is_missing_behind_a_border_is_told(
    after: Path, name: str, entries: list[tuple[int, int]], source: str, end: str
) -> None:
    count = read_manifest(after)["headline"]["documents"]
    documents = next(job["documents"] for job in read_manifest(after)["jobs"] if job["path"] == source)
    write_entries(after, name, entries)
    seal(after)
    assert_told(
        after,
        f"{layout.index(name)}: {source} does not begin a document here, though {end} ends with an EOT",
        f"the job {source} has {documents} documents, its indexes {documents - 1}",
        f"the token shards have {count - 1} documents, but the jobs have {count}",
    )


@pytest.mark.parametrize(
    ("name", "entry", "source", "end"),
    [
        ("t_train_00001_001.bin", (0, 2), "1-longer-than-three-shards.parquet", "t_train_00001_000.bin"),
        ("t_train_00009_000.bin", (61, 1), "4-tail-within-a-document.parquet", "t_train_00004_000.bin"),
    ],
)
def test_a_document_that_starts_behind_a_border_within_another_is_told(
    after: Path, name: str, entry: tuple[int, int], source: str, end: str
) -> None:
    entries = shard.read_index(index_of(after, name)).tolist()
    write_entries(after, name, [*entries, entry])
    seal(after)
    found = told(after)
    what = f"{source} begins a document here, though {end} ends without an EOT"
    assert f"{layout.index(name)}: {what}" in found
    assert any(f"the job {source} has" in problem and "its indexes" in problem for problem in found)


@pytest.mark.parametrize("kind", [BEFORE, AFTER, Kind("contiguous", "after")], ids=str)
def test_no_eot_comes_or_goes_unnoticed(run: Run, kind: Kind, tmp_path: Path) -> None:
    """At the borders of documents, segments and shards, with every hash put right."""
    out = copy(run(kind), tmp_path)
    for line in read_manifest(out)["shards"]:
        tokens = tokens_of(out, line["name"])
        borders = {
            0,
            len(tokens),
            *np.flatnonzero(tokens == EOT).tolist(),
            *(at for _, at in line["segments"]),
        }
        for at in sorted({near for border in borders for near in (border - 1, border)}):
            if 0 <= at < len(tokens):
                old = tokens[at]
                tokens[at] = 46 if old == EOT else EOT
                seal(out)
                assert told(out), (line["name"], at)
                tokens[at] = old
    seal(out)
    assert told(out) == []
