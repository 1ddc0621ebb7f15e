"""Pipes, devices and folders in the place of files keep nobody waiting: neither as a source nor in a run."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import bounded
import corpus
import planted
import pytest
import receipt_files
import runner
from msgspec.structs import replace
from planted import Plant, posix
from runner import PRIVATE

from fwconvert.store import layout, saved_recipe
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import Receipt
from fwconvert.tokens import tiktoken_kind

pytestmark = posix

# A folder among files is looked into.
UNREADABLE = tuple(plant for plant in planted.UNREADABLE if plant is not planted.folder)
RECIPE = ("--tokenizer", "bytes", "--shard-tokens", 500, "--workers", 1)


@dataclass(frozen=True)
class Sources:
    """Three sources on this machine, pinned, and what becomes of them."""

    folder: Path
    pinned: Path
    # The same list, of which nobody knows the sha256.
    unpinned: Path
    tree: dict[str, str]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    base = tmp_path_factory.mktemp("sources")
    folder = corpus.equal_sources(base / "sources", files=3, rows=20)
    pinned, unpinned = base / "pinned.json", base / "unpinned.json"
    assert bounded.run("pin", folder, "-o", pinned).code == 0
    listed = json.loads(pinned.read_text())
    for file in listed["files"]:
        del file["sha256"]
    unpinned.write_text(json.dumps(listed))
    assert bounded.run("--version", pinned, "--source", folder, *RECIPE, "--out", base / "out").code == 0
    return Sources(folder, pinned, unpinned, runner.tree(base / "out"))


@pytest.fixture
def copy(sources: Sources, tmp_path: Path) -> Path:
    """The sources for a test to spoil."""
    return Path(shutil.copytree(sources.folder, tmp_path / "sources"))


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    return planted.elsewhere(tmp_path / "elsewhere")


def replaced(path: Path, plant: Plant, precious: Path) -> None:
    path.unlink()
    plant(path, precious)


# --- as a source


@pytest.mark.parametrize("plant", planted.UNREADABLE, ids=planted.name)
def test_a_source_that_is_no_file_is_named_and_the_others_are_converted(
    sources: Sources, copy: Path, plant: Plant, precious: Path, tmp_path: Path
) -> None:
    words = ("--version", sources.pinned, "--source", copy, *RECIPE, "--out", tmp_path / "out")
    replaced(copy / "01.parquet", plant, precious)

    assert bounded.run("plan", *words).code == 0
    ended = bounded.run(*words)
    assert ended.code == 1, ended.said
    assert "not a regular file" in ended.stderr
    assert str(copy / "01.parquet") in ended.stderr
    assert len([*(tmp_path / "out" / PRIVATE / "receipts").iterdir()]) == 2

    planted.remove(copy / "01.parquet")
    shutil.copy(sources.folder / "01.parquet", copy)
    assert bounded.run(*words).code == 0
    assert runner.tree(tmp_path / "out") == sources.tree


@pytest.mark.parametrize("plant", planted.UNREADABLE, ids=planted.name)
def test_a_converted_source_that_is_no_file_any_more_is_named(
    sources: Sources, copy: Path, plant: Plant, precious: Path, tmp_path: Path
) -> None:
    """Of a source that nobody pinned the hash is looked at again, should it look like another file."""
    words = ("--version", sources.unpinned, "--source", copy, *RECIPE, "--out", tmp_path / "out")
    assert bounded.run(*words).code == 0
    replaced(copy / "01.parquet", plant, precious)

    ended = bounded.run(*words)

    assert ended.code == 1, ended.said
    assert "not a regular file" in ended.stderr
    assert str(copy / "01.parquet") in ended.stderr


@pytest.mark.parametrize("plant", UNREADABLE, ids=planted.name)
def test_a_source_that_is_named_itself_or_found_in_a_folder_is_refused(
    copy: Path, plant: Plant, precious: Path, tmp_path: Path
) -> None:
    replaced(copy / "01.parquet", plant, precious)
    out = ("--out", tmp_path / "out")
    lines: list[tuple[object, ...]] = [
        ("pin", copy, "-o", tmp_path / "pinned.json"),
        ("plan", "--source", copy / "01.parquet", *RECIPE, *out),
        ("--source", copy, *RECIPE, *out),
    ]
    for words in lines:
        ended = bounded.run(*words)
        assert ended.code == 2, ended.said
        assert "not a regular file" in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("plant", planted.UNREADABLE, ids=planted.name)
def test_whoever_traces_a_token_does_not_wait_for_its_source(
    sources: Sources, copy: Path, plant: Plant, precious: Path, tmp_path: Path
) -> None:
    words = ("--version", sources.pinned, "--source", copy, *RECIPE, "--out", tmp_path / "out")
    assert bounded.run(*words).code == 0
    replaced(copy / "00.parquet", plant, precious)
    shard = min(path.name for path in (tmp_path / "out").glob("*.bin"))

    for flags in ((), ("--source", copy)):
        assert bounded.run("trace", tmp_path / "out", f"{shard}:0", *flags).code in {0, 1}


# All ways in which a worker, or who looks before it, reads a source.
READERS = """
import sys
from pathlib import Path
from fwconvert.sources import parquet, reading
from fwconvert.errors import SourceError
path = Path(sys.argv[1])
for read in (
    lambda: reading.prove(path, lambda: None),
    lambda: reading.look(path, "0" * 64),
    lambda: reading.size_of(path),
    lambda: parquet.footer(path),
    lambda: parquet.extent(path),
    lambda: parquet.read_footer(path, str(path)),
    lambda: [*parquet.batches(path, "text")],
    lambda: parquet.read_row(path, str(path), 0, "text"),
):
    try:
        print("read", read())
    except SourceError as error:
        print(str(error).splitlines()[0])
print(parquet.identity(path, 0))
"""


@pytest.mark.parametrize("plant", planted.UNREADABLE, ids=planted.name)
def test_a_file_that_was_exchanged_before_its_job_is_refused_however_it_is_read(
    plant: Plant, precious: Path, tmp_path: Path
) -> None:
    plant(tmp_path / "x.parquet", precious)

    ended = bounded.run_line([sys.executable, "-c", READERS, str(tmp_path / "x.parquet")])

    assert ended.stdout.splitlines() == ["a source is not a regular file"] * 8 + ["unknown"], ended.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_plan_of_pipes_ends_by_itself_or_when_it_is_told_to(
    sources: Sources, copy: Path, number: signal.Signals, precious: Path, tmp_path: Path
) -> None:
    for path in copy.glob("*.parquet"):
        replaced(path, planted.pipe, precious)
    words = ("plan", "--version", sources.pinned, "--source", copy, *RECIPE, "--out", tmp_path / "out")
    process = subprocess.Popen(
        [sys.executable, "-m", "fwconvert", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(runner.REPOSITORY)},
    )
    try:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        _, said = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode in {0, 1, 2, 128 + number, -number}
    assert "Traceback" not in said


# --- in a run


# Where a file of a run lies, and whether the run is finished that has it.
PLACES = {
    "a token shard": ("*_train_*.bin", True),
    "a token shard of an unfinished run": ("*_train_00000_*.bin", False),
    "a document index": ("index/*_train_*", True),
    "a tail": (f"{PRIVATE}/tails/*.tail", False),
    "the index of a tail": (f"{PRIVATE}/tails/*.docs", False),
    "a receipt": (f"{PRIVATE}/receipts/*.json", True),
    "the receipt of a joined shard": (f"{PRIVATE}/joins/*.json", True),
    "a session": (f"{PRIVATE}/sessions/*.json", True),
    "a quarantine record": (f"{PRIVATE}/quarantine/*.json", False),
    "the plan": (f"{PRIVATE}/plan.json", True),
    "the places of the sources": (f"{PRIVATE}/places.json", True),
    "the run manifest": ("manifest.json", True),
}


@pytest.fixture(scope="module")
def runs(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A finished run, and one that lacks its last source and with it its joined shards."""
    base = tmp_path_factory.mktemp("runs")
    folder = Path(shutil.copytree(sources.folder, base / "sources"))
    words = ("--version", sources.pinned, "--source", folder, *RECIPE, "--out")
    assert bounded.run(*words, base / "finished").code == 0
    (folder / "02.parquet").unlink()
    assert bounded.run(*words, base / "halted").code == 1
    return {True: base / "finished", False: base / "halted"}


@pytest.mark.parametrize("plant", [planted.pipe, planted.link_to_a_device], ids=planted.name)
@pytest.mark.parametrize("cut_off", [False, True], ids=["ended well", "cut off"])
@pytest.mark.parametrize("place", PLACES)
def test_a_file_of_a_run_that_is_none_is_told_of_or_made_again(
    runs: dict[bool, Path], sources: Sources, place: str, plant: Plant, *, cut_off: bool, tmp_path: Path
) -> None:
    """Also after a crash, when all files are hashed that the last session made."""
    pattern, finished = PLACES[place]
    out = Path(shutil.copytree(runs[finished], tmp_path / "out"))
    if cut_off:
        runner.cut_off(out)
    replaced(min(out.glob(pattern)), plant, tmp_path / "unused")

    if not cut_off:
        for words in (("status", out), ("verify", out), ("show", out, "--document", 1)):
            bounded.run(*words)
    again = ("--version", sources.pinned, "--source", sources.folder, *RECIPE, "--out", out)
    assert bounded.run(*again).code == 0
    assert runner.tree(out) == sources.tree
    left = [path.name for path in out.rglob("*") if not (path.is_file() or path.is_dir())]
    # A run in which nothing is left to do is not touched, and that is a hint that nothing rests on.
    assert left in ([], ["places.json"])


@pytest.mark.parametrize("what", ["shard", "tail"])
def test_a_pipe_is_not_hashed_though_a_forged_receipt_tells_its_size(
    runs: dict[bool, Path], sources: Sources, what: str, tmp_path: Path
) -> None:
    """A pipe has no bytes; a receipt that says so, and whose digest fits, has impossible numbers."""
    out = Path(shutil.copytree(runs[False], tmp_path / "out"))
    runner.cut_off(out)
    folder = LocalStore(out)
    path = min(folder.local(layout.RECEIPTS).iterdir())
    made = receipt_files.read(path, Receipt, saved_recipe.read_plan(folder).recipe_id)
    if what == "tail":
        forged = replace(made, tail=replace(made.tail, bytes=0))
        replaced(folder.local(layout.tail(layout.job_key(made.path))), planted.pipe, tmp_path)
    else:
        forged = replace(made, shards=(replace(made.shards[0], bytes=0), *made.shards[1:]))
        replaced(folder.local(made.shards[0].name), planted.pipe, tmp_path)
    receipt_files.write(forged, path)

    again = ("--version", sources.pinned, "--source", sources.folder, *RECIPE, "--out", out)
    ended = bounded.run(*again)

    assert ended.code == 0, ended.said
    assert "has impossible numbers" in ended.stderr
    assert runner.tree(out) == sources.tree


def test_an_export_of_a_run_with_pipes_names_one(runs: dict[bool, Path], tmp_path: Path) -> None:
    out = Path(shutil.copytree(runs[True], tmp_path / "out"))
    path = min(out.glob("*_train_*.bin"))
    replaced(path, planted.pipe, tmp_path)

    ended = bounded.run("export", out, "--format", "npy", "--workers", 1, "-o", tmp_path / "new")

    assert ended.code == 1
    assert str(path) in ended.stderr


def test_a_rank_table_that_is_a_pipe_is_not_waited_for(sources: Sources, tmp_path: Path) -> None:
    """Neither beside the output nor in tiktoken's cache, which has a place that everybody knows."""
    known, out, cache = tiktoken_kind.find("o200k_base"), tmp_path / "out", tmp_path / "cache"
    tables = out / PRIVATE / "vocabularies"
    for path in (tables / tiktoken_kind.provided_name(known), cache / tiktoken_kind._cached_name(known)):
        path.parent.mkdir(parents=True)
        os.mkfifo(path)
    words = ("--source", sources.folder, "--tokenizer", known.name, "--workers", 1, "--out", out)

    # Should it ask the network all the same, that is in vain.
    nobody = {"TIKTOKEN_CACHE_DIR": str(cache), "HTTPS_PROXY": "http://127.0.0.1:9"}
    ended = bounded.run(*words, env={**os.environ, **nobody})

    assert ended.code == 2
    assert "not a regular file" in ended.stderr


# --- for the loader

LOADER = """
import sys
from fwconvert import Loader
from fwconvert.errors import FwconvertError
for path in sys.argv[1:]:
    try:
        next(iter(Loader(path, batch=1, seq_len=8, order="documents")))
    except FwconvertError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("ending", [".bin", ".npy", ".bin.zst"])
@pytest.mark.parametrize("plant", UNREADABLE, ids=planted.name)
def test_the_loader_waits_for_no_pipe(ending: str, plant: Plant, precious: Path, tmp_path: Path) -> None:
    """In a folder of others, named itself, and by a pattern."""
    (tmp_path / "shards").mkdir()
    shard = tmp_path / "shards" / f"x_train_000{ending}"
    plant(shard, precious)
    given = [str(shard.parent), str(shard), str(shard.parent / "*_train_*")]

    ended = bounded.run_line([sys.executable, "-c", LOADER, *given])

    assert ended.stderr == ""
    assert ended.stdout.split() == ["UsageError", "ShardError", "ShardError"]


@pytest.mark.parametrize("pattern", ["*_train_*.bin", "index/*_train_*", "manifest.json"])
def test_the_loader_refuses_a_run_with_a_pipe_in_it(
    runs: dict[bool, Path], pattern: str, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(runs[True], tmp_path / "out"))
    replaced(min(out.glob(pattern)), planted.pipe, tmp_path)

    ended = bounded.run_line([sys.executable, "-c", LOADER, str(out)])

    assert ended.stderr == ""
    assert ended.stdout.split() == ["UsageError" if pattern == "manifest.json" else "ShardError"]
