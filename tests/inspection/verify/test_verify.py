"""verify: a good run is proven, one that is not finished is told, and so is what does not belong there."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verified import (
    AFTER,
    BEFORE,
    DOCUMENTS,
    EOT,
    HEADER_BYTES,
    KINDS,
    SIZE,
    SOURCES,
    TOKENS,
    Json,
    Kind,
    Run,
    assert_told,
    convert,
    copy,
    edit,
    entries_of,
    index_of,
    job_of,
    line_of,
    of,
    read_manifest,
    seal,
    tokens_of,
    told,
    write_sources,
)

from fwconvert.inspection import verify_shard
from fwconvert.inspection.verify import verify
from fwconvert.store import layout as names
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import ShardLine
from fwconvert.tokens.tiktoken_kind import find


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_good_run_is_proven_to_its_last_token(run: Run, kind: Kind) -> None:
    report = verify(run(kind))
    assert report.problems == ()
    assert report.ok
    assert (report.tokens, report.documents) == (TOKENS, DOCUMENTS)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_copy_without_the_private_folder_is_proven_too(run: Run, kind: Kind, tmp_path: Path) -> None:
    assert told(copy(run(kind), tmp_path)) == []


@pytest.mark.parametrize("kind", [BEFORE, AFTER, Kind("contiguous", "after")], ids=str)
@pytest.mark.parametrize("step", [1, 2, 7, SIZE])
def test_the_size_of_a_step_makes_no_difference(
    run: Run, kind: Kind, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_shard, "STEP", step)
    monkeypatch.setattr(verify_shard, "STEP", step)
    assert told(run(kind)) == []


def test_the_runs_have_the_borders_that_are_hard(run: Run) -> None:
    """Else the tests above would prove little."""
    out = run(AFTER)
    lines = [ShardLine(**line) for line in read_manifest(out)["shards"]]
    last = [tokens_of(out, line.name)[-1] == EOT for line in lines]
    first = [line.documents > 0 and entries_of(out, line.name)["start"][0] == 0 for line in lines]
    middle = [
        (begin in entries_of(out, line.name)["start"], tokens_of(out, line.name)[begin - 1] == EOT)
        for line in lines
        for _, begin in line.segments[1:]
    ]
    assert any(last)
    assert not all(last)
    assert any(first)
    assert not all(first)
    assert {(True, True), (False, True)} <= set(middle)
    assert any(line.documents == 0 for line in lines)


@pytest.mark.parametrize("layout", ["independent", "contiguous"])
@pytest.mark.parametrize("eot", ["before", "after"])
def test_shards_shorter_than_most_documents_are_proven(layout: Any, eot: Any, tmp_path: Path) -> None:
    dice = random.Random(7)
    sources = {f"{number:02d}": of(*dice.choices(range(2, 20), k=dice.randrange(8))) for number in range(9)}
    write_sources(tmp_path / "sources", sources)
    convert(tmp_path / "sources", tmp_path / "out", Kind(layout, eot, 8), shard_tokens=5)
    assert told(tmp_path / "out") == []


def test_tokens_of_four_bytes_are_proven(tmp_path: Path) -> None:
    write_sources(tmp_path / "sources", SOURCES)
    out, known = tmp_path / "out", find("cl100k_base")
    convert(tmp_path / "sources", out, Kind(eot="after", tokenizer=known.name))
    assert told(out) == []
    name = read_manifest(out)["shards"][0]["name"]
    np.memmap(out / name, "<u4", "r+", HEADER_BYTES)[1] = known.size
    assert_told(out, "is damaged", "1 ids are outside the vocabulary of 100,277, the first at token 1")


def test_symbolic_links_to_good_files_are_good(before: Path, tmp_path: Path) -> None:
    (before / "t_train_00001_000.bin").rename(tmp_path / "elsewhere")
    (before / "t_train_00001_000.bin").symlink_to(tmp_path / "elsewhere")
    assert told(before) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_makes_no_difference(before: Path, threads: int) -> None:
    (before / "t_train_00001_000.bin").unlink()
    alone = verify(before, threads)
    assert alone.problems == verify(before).problems
    assert not alone.ok


# --- runs that are not finished


SUMS = ("documents", "tokens", "null_rows", "empty_rows")


def unfinish(out: Path, sources: int) -> None:
    """Take the jobs of all but the first sources away, and the join."""

    def change(manifest: Json) -> None:
        del manifest["jobs"][sources:]
        kept = [line for line in manifest["shards"] if int(line["name"].split("_")[2]) < sources]
        for line in manifest["shards"]:
            if line not in kept:
                (out / line["name"]).unlink()
                index_of(out, line["name"]).unlink()
        manifest["shards"] = kept
        val = sum(line["split"] == "val" for line in kept)
        sums = {name: sum(job[name] for job in manifest["jobs"]) for name in SUMS}
        manifest["headline"].update(
            complete=False, jobs_done=sources, train_shards=len(kept) - val, val_shards=val, **sums
        )

    edit(out, change)


@pytest.mark.parametrize("kind", [BEFORE, AFTER], ids=str)
def test_a_run_that_is_not_finished_is_told_once(run: Run, kind: Kind, tmp_path: Path) -> None:
    out = copy(run(kind), tmp_path)
    unfinish(out, 5)
    assert_told(out, "manifest.json: the run is not finished: 5 of 9 jobs; run the same command again")


def test_joined_shards_wait_for_a_job_that_is_done_again(after: Path) -> None:
    """As after a shard was damaged, and its source was gone when the same command was run again."""
    edit(after, lambda manifest: manifest["jobs"].pop(2))
    edit(after, lambda manifest: manifest["headline"].update(complete=False, jobs_done=8))
    sums = {name: sum(job[name] for job in read_manifest(after)["jobs"]) for name in SUMS}
    edit(after, lambda manifest: manifest["headline"].update(sums))
    assert_told(after, "the run is not finished: 8 of 9 jobs")


def test_a_join_that_is_not_finished_is_told_once(after: Path) -> None:
    (after / "t_train_00009_001.bin").unlink()
    index_of(after, "t_train_00009_001.bin").unlink()
    edit(after, lambda m: m["shards"].remove(line_of(m, "t_train_00009_001.bin")))
    edit(after, lambda m: m["headline"].update(complete=False, train_shards=12))
    assert_told(after, "the run is not finished: 9 of 9 jobs, 2 of 3 joined token shards")


def test_what_there_is_of_an_unfinished_run_is_proven(before: Path) -> None:
    unfinish(before, 5)
    tokens_of(before, "t_train_00004_000.bin")[3] = EOT
    seal(before)
    edit(before, lambda manifest: job_of(manifest, 1).update(tokens=355, tail_tokens=35, text_bytes=351))
    assert_told(
        before,
        "the run is not finished: 5 of 9 jobs",
        "the headline's tokens is",
        "index/t_train_00004_000.docs: 1 documents are missing, the first at token 3",
    )


def test_a_run_with_a_broken_source_is_told(tmp_path: Path) -> None:
    write_sources(tmp_path / "sources", {"good": of(100, 100)})
    (tmp_path / "sources" / "bad.parquet").write_bytes(b"PAR1 nonsense PAR1")
    assert not convert(tmp_path / "sources", tmp_path / "out", AFTER).complete
    assert_told(tmp_path / "out", "manifest.json: the run is not finished: 1 of 2 jobs")


# --- other things in the folder


def test_files_that_the_manifest_does_not_know_are_told(before: Path) -> None:
    for stray in ("t_train_00009_003.bin", "t_val_000000.bin", "index/t_train_00009_003.docs"):
        (before / stray).write_bytes(b"")
    for harmless in ("notes.txt", "u_train_00009_003.bin", "index/notes.txt", "t_train.bin"):
        (before / harmless).write_bytes(b"")
    (before / "t_train_mine.bin").write_bytes(b"")
    assert_told(
        before,
        "t_train_00009_003.bin: is not in the run manifest",
        "index/t_train_00009_003.docs: is not in the run manifest",
        # A run of this layout never makes such names, but a trainer's glob finds them.
        "t_val_000000.bin: is not part of this run",
        "t_train_mine.bin: is not part of this run",
    )


def test_temporary_files_are_told_unless_somebody_is_at_work(whole: Path) -> None:
    folder = LocalStore(whole)
    (folder.local(names.TEMPORARY) / "litter").write_bytes(b"")
    (whole / "t_train_00009_003.bin").write_bytes(b"")
    with LocalStore(folder.root, "session-7").lock():
        assert_told(whole, ".fwconvert: a session is at work here, so nothing is final: pid")
    assert_told(
        whole,
        ".fwconvert/temporary/litter: was left behind by a crash",
        "t_train_00009_003.bin: is not in the run manifest",
    )


def test_a_receipt_that_is_damaged_is_told(whole: Path) -> None:
    folder = LocalStore(whole)
    path = folder.local(names.receipt(names.job_key("8-short.parquet")))
    path.write_bytes(path.read_bytes().replace(b'"rows":3', b'"rows":4'))
    join = folder.local(names.join_receipt("t_train_00009_002.bin"))
    join.write_bytes(b"{}")
    assert_told(
        whole,
        f".fwconvert/receipts/{path.name}: a receipt is damaged: its digest does not match its content",
        f".fwconvert/joins/{join.name}: this file is not a readable record",
        "manifest.json: the job 8-short.parquet does not match its receipt",
        "manifest.json: the token shard t_train_00009_002.bin does not match its receipt",
    )


def test_a_manifest_that_is_not_what_its_receipts_say_is_told(whole: Path) -> None:
    edit(whole, lambda manifest: job_of(manifest, 2).update(sha256="0" * 64))
    entries_of(whole, "t_train_00000_001.bin")["row"][0] = 2
    seal(whole)
    assert_told(
        whole,
        "manifest.json: the job 2-all-tail.parquet does not match its receipt",
        "manifest.json: the token shard t_train_00000_001.bin does not match its receipt",
    )


def test_looking_changes_nothing(whole: Path) -> None:
    def state() -> dict[str, bytes]:
        return {path.as_posix(): path.read_bytes() for path in whole.rglob("*") if path.is_file()}

    earlier = state()
    verify(whole)
    assert state() == earlier
