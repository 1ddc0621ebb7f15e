"""The same command again: it leaves alone what is right, mends what is wrong, refuses what is another's."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus
import engines
import pytest
import runner
from runner import PRIVATE, Notices, cut_off, litter, state, tree

import fwconvert
from fwconvert.errors import UsageError
from fwconvert.run.engines.executor import ExecutorEngine
from fwconvert.run.events import StopSwitch
from fwconvert.store.receipts import JoinReceipt

RECIPE: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 3000}

SHARD = "edu_fineweb_train_00001_001"
VALIDATION = "edu_fineweb_val_00000_000"
JOINED = "edu_fineweb_train_00004_000"


@dataclass(frozen=True)
class Finished:
    """A finished run, to be copied before it is damaged."""

    sources: Path
    out: Path
    tree: dict[str, str]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("golden")
    sources = corpus.equal_sources(folder / "sources", files=4, rows=30)
    assert runner.convert(sources, folder / "out", **RECIPE).complete
    finished = Finished(sources, folder / "out", tree(folder / "out"))
    assert {f"{name}.bin" for name in (SHARD, VALIDATION, JOINED)} <= finished.tree.keys()
    return finished


@pytest.fixture
def out(golden: Finished, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return Path(shutil.copytree(golden.out, tmp_path / "out"))


def flip(path: Path) -> None:
    """Change one byte in the middle of a file; its size stays."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0\0")


def only(out: Path, pattern: str) -> Path:
    """Return the one file of that pattern."""
    (path,) = out.glob(pattern)
    return path


def assert_mended(golden: Finished, out: Path) -> Notices:
    """Run again: the folder is that of an undisturbed run. Returns what was said meanwhile."""
    notices = Notices()
    assert runner.convert(golden.sources, out, notices=notices, **RECIPE).complete
    assert tree(out) == golden.tree
    assert litter(out) == []
    return notices


def test_a_finished_run_is_left_alone_to_the_last_mtime(golden: Finished) -> None:
    before = state(golden.out)
    ended = runner.run(golden.sources, golden.out, workers=2, **RECIPE)
    runner.assert_tidy_end(ended, 0)
    assert state(golden.out) == before


def test_sources_that_were_touched_but_are_the_same_change_nothing(out: Path, golden: Finished) -> None:
    before = state(out)
    os.utime(golden.sources / "01.parquet")
    assert runner.convert(golden.sources, out, **RECIPE).complete
    assert state(out) == before


@pytest.mark.parametrize(
    "file",
    [
        f"{SHARD}.bin",
        f"{VALIDATION}.bin",
        f"{JOINED}.bin",
        f"index/{SHARD}.docs",
        f"index/{JOINED}.docs",
    ],
)
def test_a_missing_file_is_made_again_and_this_is_said(file: str, out: Path, golden: Finished) -> None:
    (out / file).unlink()
    assert assert_mended(golden, out).mention(Path(file).name)


@pytest.mark.parametrize(
    ("damage", "file"),
    [(truncate, f"{SHARD}.bin"), (lengthen, f"{JOINED}.bin"), (truncate, f"index/{VALIDATION}.docs")],
)
def test_a_file_of_another_size_is_made_again_and_this_is_said(
    damage: Callable[[Path], None], file: str, out: Path, golden: Finished
) -> None:
    damage(out / file)
    assert assert_mended(golden, out).mention(Path(file).name)


@pytest.mark.parametrize("file", [f"{SHARD}.bin", f"{JOINED}.bin", f"index/{JOINED}.docs"])
def test_a_changed_byte_is_found_after_a_session_that_was_cut_off(
    file: str, out: Path, golden: Finished
) -> None:
    cut_off(out)
    flip(out / file)
    assert assert_mended(golden, out).mention(Path(file).name)


def test_a_session_that_was_cut_off_at_its_very_end_costs_no_work(out: Path, golden: Finished) -> None:
    cut_off(out)
    before = {name: entry for name, entry in state(out).items() if name.endswith((".bin", ".docs"))}
    assert_mended(golden, out)
    after = state(out)
    assert {name: after[name] for name in before} == before


def test_half_written_records_of_a_session_that_was_cut_off_are_swept_away(
    out: Path, golden: Finished
) -> None:
    """A kill may fall between the writing of a record and its renaming; tests of kills have met this."""
    cut_off(out)
    for name in ("manifest", "some.parquet-0123456789ab", "edu_fineweb_train_00000_000.bin"):
        (out / PRIVATE / "temporary" / f"{name}-{'0' * 32}").write_text("{")
    assert_mended(golden, out)


@pytest.mark.parametrize(
    "record",
    [
        f"{PRIVATE}/receipts/02.parquet-*.json",
        f"{PRIVATE}/joins/{JOINED}.bin.json",
        "manifest.json",
    ],
)
def test_a_missing_record_is_made_again(record: str, out: Path, golden: Finished) -> None:
    only(out, record).unlink()
    assert_mended(golden, out)


@pytest.mark.parametrize(
    "record", [f"{PRIVATE}/receipts/02.parquet-*.json", f"{PRIVATE}/joins/{JOINED}.bin.json"]
)
def test_a_receipt_with_a_changed_byte_is_not_believed_and_this_is_said(
    record: str, out: Path, golden: Finished
) -> None:
    path = only(out, record)
    path.write_text(path.read_text().replace('"tokens":', '"tokens":1', 1))
    assert assert_mended(golden, out).mention(path.name)


def test_all_receipts_may_be_lost(out: Path, golden: Finished) -> None:
    shutil.rmtree(out / PRIVATE / "receipts")
    shutil.rmtree(out / PRIVATE / "joins")
    assert_mended(golden, out)


def test_a_manifest_that_nobody_can_read_is_made_again(out: Path, golden: Finished) -> None:
    (out / "manifest.json").write_text('{"format": "fwcon')
    assert_mended(golden, out)


def test_everything_may_be_damaged_at_once(out: Path, golden: Finished) -> None:
    cut_off(out)
    for path in [*out.glob("*.bin"), *out.glob("index/*")]:
        path.write_bytes(b"")
    assert_mended(golden, out)


def test_another_recipe_is_refused_before_anything_is_written(out: Path, golden: Finished) -> None:
    before = state(out)
    other = {"tokenizer": "gpt2", "shard_tokens": 2000, "eot": "after", "layout": "contiguous", "name": "x"}
    ended = runner.run(golden.sources, out, **other)
    runner.assert_tidy_end(ended, 2)
    said = ended.stderr.split()
    differing = ("bytes", "gpt2", "3000", "2000", "before", "after", "independent", "contiguous")
    assert [word for word in differing if word not in said] == []
    assert "text" not in said, "a field that does not differ"
    assert state(out) == before


def test_another_list_of_sources_is_another_recipe(out: Path, golden: Finished, tmp_path: Path) -> None:
    more = Path(shutil.copytree(golden.sources, tmp_path / "more"))
    corpus.write(more / "99.parquet", ["one more"])
    before = state(out)
    with pytest.raises(UsageError, match=r"99\.parquet"):
        runner.convert(more, out, **RECIPE)
    assert state(out) == before


@pytest.mark.skipif(os.name == "nt", reason="processes are found by their POSIX session")
def test_a_second_session_at_the_same_time_is_refused_and_told_who_is_first(
    golden: Finished, tmp_path: Path
) -> None:
    with runner.running(golden.sources, tmp_path, workers=1, **RECIPE) as first:
        runner.wait_until(lambda: runner.workers(first), first)
        (worker,) = runner.workers(first)
        worker.suspend()  # so that the first cannot end before the second has begun
        second = runner.run(golden.sources, tmp_path, workers=1, **RECIPE)
        runner.assert_tidy_end(second, 2)
        assert f"pid {first.pid} on host {runner.HOST}" in second.stderr
        worker.resume()
        runner.assert_tidy_end(runner.finish(first), 0)
    assert tree(tmp_path) == golden.tree


def test_a_folder_with_shards_of_somebody_else_is_refused(golden: Finished, tmp_path: Path) -> None:
    (tmp_path / "edu_fineweb_train_000001.bin").write_bytes(b"precious")
    before = state(tmp_path)
    with pytest.raises(UsageError, match="edu_fineweb_train_000001"):
        runner.convert(golden.sources, tmp_path, **RECIPE)
    assert state(tmp_path) == before


def test_files_of_other_names_in_the_folder_are_left_alone(golden: Finished, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".hidden").write_text("mine too")
    assert runner.convert(golden.sources, tmp_path, **RECIPE).complete
    assert {(tmp_path / name).read_text() for name in ("notes.txt", ".hidden")} == {"mine", "mine too"}


def test_an_output_that_is_a_file_is_refused(golden: Finished, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    runner.assert_tidy_end(runner.run(golden.sources, path, **RECIPE), 2)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("{}")], ids=["lost", "damaged"])
def test_a_plan_that_is_lost_is_made_again_from_the_other_records(
    out: Path, golden: Finished, spoil: Callable[[Path], object]
) -> None:
    plan = out / PRIVATE / "plan.json"
    whole, before = plan.read_bytes(), runner.tree(out)
    spoil(plan)

    for words in (["status", str(out)], ["verify", str(out)]):
        assert runner.command_line(*words).returncode == 0
    runner.assert_tidy_end(runner.run(golden.sources, out, **RECIPE), 0)
    assert plan.read_bytes() == whole
    assert runner.tree(out) == before


def test_a_damaged_plan_is_no_licence_for_another_recipe(out: Path, golden: Finished) -> None:
    (out / PRIVATE / "plan.json").write_text("{}")
    before = state(out)
    ended = runner.run(golden.sources, out, **{**RECIPE, "shard_tokens": 777})
    runner.assert_tidy_end(ended, 2)
    assert "shard tokens in folder" in ended.stderr
    assert state(out) == before


class Slow(ExecutorEngine):
    """Has done every order when somebody asks, and tells it of joined shards when it is to stop."""

    def __init__(self) -> None:
        super().__init__(engines.AtOnce(), slots=100)
        self.waiting: list[tuple[Future[Any], Any]] = []

    def submit(self, order: Any) -> "Future[Any]":
        done, future = super().submit(order).result(), Future[Any]()
        self.waiting.append((future, done))
        return future

    def enforce_limits(self) -> None:
        if not any(isinstance(done, JoinReceipt) for _, done in self.waiting):
            self.stop()

    def stop(self) -> None:
        for future, done in self.waiting:
            future.set_result(done)
        self.waiting = []

    kill = stop


class StopAtTheJoin(Notices):
    """Asks to stop while the last joined shard is being made."""

    def __init__(self) -> None:
        super().__init__()
        self.switch = StopSwitch()

    def update(self, snapshot: Any) -> None:
        if snapshot.phase == "join":
            self.switch.ask()


def test_a_stop_that_comes_too_late_leaves_a_run_that_is_complete(golden: Finished, tmp_path: Path) -> None:
    recipe = fwconvert.recipe(source=str(golden.sources), **RECIPE)
    observer = StopAtTheJoin()

    result = fwconvert.convert(
        recipe, tmp_path / "out", engine=Slow(), observer=observer, stop=observer.switch
    )

    assert observer.switch.asked
    assert (result.complete, result.stopped) == (True, False)
    assert tree(tmp_path / "out") == golden.tree
