"""Records with paths that lead elsewhere, and words that would command a terminal."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import receipt_files
from spoiled_runs import Reader, Run, Runs, assert_clean, assert_survived, command, copy_of, resumed

from fwconvert import records
from fwconvert.errors import ManifestError
from fwconvert.sources import catalog
from fwconvert.store import layout, saved_recipe, sessions
from fwconvert.store.receipts import JoinReceipt, Receipt

TRICKS = (
    "..", "../x.parquet", "a/../../x.parquet", "/x.parquet", "//x", "a\\..\\x.parquet", "C:\\x", "a\0b",
    "\x1b[2Jx.parquet", "a\nb", "a\u202eb", "x" * 300, "/".join(["x" * 200] * 6), "", ".", "a//b",
)  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS, ids=ascii)
def test_a_source_manifest_with_a_trick_in_a_path_is_refused_in_printable_words(
    readers: dict[str, Reader], runs: Runs, trick: str
) -> None:
    reader = readers["source manifest"]
    document = json.loads(reader.good)
    document["files"][1]["path"] = trick
    reader.path.write_text(json.dumps(document))
    try:
        with pytest.raises(ManifestError):
            catalog.find(str(reader.path))
        flags = ("--version", reader.path, "--source", runs.finished.sources, "--out", "unused")
        ended = command("plan", *flags)
        assert ended.code == 1
        assert_clean(ended)
    finally:
        reader.path.write_bytes(reader.good)


@pytest.mark.parametrize("field", ["name", "dataset", "revision", "folder"])
def test_no_word_of_a_source_manifest_commands_the_terminal(
    readers: dict[str, Reader], runs: Runs, field: str
) -> None:
    reader = readers["source manifest"]
    document = {**json.loads(reader.good), field: "\x1b[2J\x07"}
    if field == "name":
        document["files"][0]["path"] = "../x"  # so that the name is told
    reader.path.write_text(json.dumps(document))
    try:
        flags = ("--version", reader.path, "--source", runs.finished.sources, "--out", "unused")
        assert_clean(command("plan", *flags))
    finally:
        reader.path.write_bytes(reader.good)


def first_shard(run: Run) -> tuple[Path, Receipt]:
    """Return the path and the content of the receipt of the first job."""
    path = next(run.folder.local(layout.RECEIPTS).glob("00*"))
    return path, receipt_files.read(path, Receipt, saved_recipe.read_plan(run.folder).recipe_id)


@pytest.fixture
def shard_elsewhere(runs: Runs, elsewhere: Path) -> Path:
    """A good token shard with its index, outside of the run."""
    run = runs.finished
    name = first_shard(run)[1].shards[0].name
    shutil.copy(run.folder.local(name), elsewhere / "x.bin")
    shutil.copy(run.folder.local(layout.index(name)), elsewhere / "x.docs")
    return elsewhere / "x.bin"


def test_a_receipt_is_not_believed_that_names_files_elsewhere(
    runs: Runs, tmp_path: Path, elsewhere: Path, shard_elsewhere: Path
) -> None:
    """All of it fits, to the digest and the sizes; only the name leads out of the folder."""
    run = copy_of(runs.finished, tmp_path / "out")
    path, made = first_shard(run)
    line = msgspec.structs.replace(made.shards[0], name=str(shard_elsewhere))
    receipt_files.write(msgspec.structs.replace(made, shards=(line, *made.shards[1:])), path)

    ended = assert_survived(run, elsewhere)

    assert ended.code == 0, ended.said
    assert str(elsewhere) not in (run.out / "manifest.json").read_text()


def test_the_receipt_of_a_joined_shard_is_not_believed_that_names_files_elsewhere(
    runs: Runs, tmp_path: Path, elsewhere: Path, shard_elsewhere: Path
) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    line = msgspec.structs.replace(first_shard(run)[1].shards[0], name=str(shard_elsewhere))
    path = next(run.folder.local(layout.JOINS).iterdir())
    made = receipt_files.read(path, JoinReceipt, saved_recipe.read_plan(run.folder).recipe_id)
    receipt_files.write(msgspec.structs.replace(made, shard=line, segments=()), path.with_name("x.json"))

    ended = assert_survived(run, elsewhere)

    assert ended.code == 0, ended.said
    assert str(elsewhere) not in (run.out / "manifest.json").read_text()


@pytest.mark.parametrize("absolute", [True, False])
def test_the_id_of_a_session_is_not_a_way_out_of_the_folder(
    runs: Runs, tmp_path: Path, elsewhere: Path, absolute: bool
) -> None:
    """A session that was cut off gets its end written into its record, and into no other file."""
    run = copy_of(runs.finished, tmp_path / "out")
    (elsewhere / "precious.json").write_bytes(b"precious")
    path = next(run.folder.local(layout.SESSIONS).iterdir())
    found = records.read(path, sessions.Session)
    way = str(elsewhere / "precious") if absolute else "../../../elsewhere/precious"
    path.write_bytes(records.encode(msgspec.structs.replace(found, id=way, ended="")))

    ended = assert_survived(run, elsewhere)

    assert ended.code == 0, ended.said
    # What the record said is settled: the next command has nothing left to do.
    assert "nothing was changed" in resumed(run).said


def test_show_reads_no_shard_outside_of_the_run(runs: Runs, tmp_path: Path, shard_elsewhere: Path) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    document = json.loads((run.out / "manifest.json").read_text())
    document["shards"][0]["name"] = str(shard_elsewhere)
    (run.out / "manifest.json").write_text(json.dumps(document))

    ended = command("show", run.out, shard_elsewhere.name)

    assert_clean(ended)
    assert ended.code in {1, 2}
    assert "document 1" not in ended.said


@pytest.mark.parametrize("segments", [[], [[99, 0]], [[-99, 0]], [[0, 5]], [[0, -1]], [[0, 10**6]]], ids=str)
def test_show_refuses_a_shard_that_is_of_no_source_where_it_begins(
    runs: Runs, tmp_path: Path, segments: list[list[int]]
) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    document = json.loads((run.out / "manifest.json").read_text())
    document["shards"][0]["segments"] = segments
    (run.out / "manifest.json").write_text(json.dumps(document))

    assert_clean(command("show", run.out, document["shards"][0]["name"]))


@pytest.mark.parametrize("start", [2000, 2**32 - 1])
def test_show_refuses_a_document_that_starts_behind_the_end(runs: Runs, tmp_path: Path, start: int) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    name = first_shard(run)[1].shards[0].name
    run.folder.local(layout.index(name)).write_bytes(start.to_bytes(4, "little") + bytes(4))

    assert_clean(command("show", run.out, name))


@pytest.mark.parametrize("field", ["path", "reason"])
def test_no_word_of_a_quarantine_record_commands_the_terminal(runs: Runs, tmp_path: Path, field: str) -> None:
    run = copy_of(runs.halted, tmp_path / "out")
    path = next(run.folder.local(layout.QUARANTINE).iterdir())
    path.write_text(json.dumps({**json.loads(path.read_text()), field: "\x1b[2J\x07 bad"}))

    assert_clean(command("status", run.out))


@pytest.mark.parametrize("way", [("jobs", 0, "path"), ("shards", 0, "name"), ("recipe_id",), ("format",)])
def test_no_word_of_a_run_manifest_commands_the_terminal(
    runs: Runs, tmp_path: Path, way: tuple[Any, ...]
) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    document = parent = json.loads((run.out / "manifest.json").read_text())
    for key in way[:-1]:
        parent = parent[key]
    parent[way[-1]] = "\x1b[2J\x07 bad"
    (run.out / "manifest.json").write_text(json.dumps(document))

    assert_clean(command("verify", run.out))
