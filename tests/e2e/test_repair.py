"""A run that was damaged, or whose source was mended, is made whole: a trainer reads what is listed."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import corpus
import pytest
import runner
from runner import PRIVATE

SIZE = ("--tokenizer", "bytes", "--shard-tokens", "10", "--val-tokens", "0", "--workers", "1")
FIRST, SECOND = "edu_fineweb_train_00000_000.bin", "edu_fineweb_train_00000_001.bin"


def convert(sources: Path, out: Path, *words: str, code: int = 0) -> str:
    ended = runner.command_line("--source", str(sources), "--out", str(out), *(words or SIZE))
    runner.assert_tidy_end(ended, code)
    return ended.stdout + ended.stderr


def listed(out: Path) -> set[str]:
    return {line["name"] for line in json.loads((out / "manifest.json").read_bytes())["shards"]}


def globbed(out: Path) -> set[str]:
    """Return what a trainer finds."""
    return {path.name for split in ("train", "val") for path in out.glob(f"edu_fineweb_{split}_*.bin")}


def assert_whole(out: Path, wanted: Path) -> None:
    assert globbed(out) == listed(out)
    assert runner.tree(out) == runner.tree(wanted)
    assert runner.litter(out) == []
    runner.assert_tidy_end(runner.command_line("verify", str(out)), 0)


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """One source of 25 tokens: two full shards and a tail, which takes in the second."""
    return corpus.write(tmp_path / "source" / "one.parquet", ["x" * 24]).parent


@pytest.fixture
def whole(one: Path, tmp_path: Path) -> Path:
    convert(one, tmp_path / "whole")
    assert listed(tmp_path / "whole") == {FIRST, "edu_fineweb_train_00001_000.bin"}
    return tmp_path / "whole"


def damaged_copy(whole: Path) -> Path:
    return Path(shutil.copytree(whole, whole.with_name("out")))


# --- what a trainer's glob finds is what the manifest lists


def test_a_source_that_is_converted_again_leaves_no_shard_that_was_taken_in(one: Path, whole: Path) -> None:
    out = damaged_copy(whole)
    (out / FIRST).unlink()

    said = convert(one, out)

    assert "will be converted again" in said
    assert_whole(out, whole)


@pytest.mark.parametrize("last", ["keep", "merge", "drop"])
def test_shards_of_a_longer_source_that_was_replaced_before_its_receipt_go(tmp_path: Path, last: str) -> None:
    words = (*SIZE, "--last", last)
    source, out = tmp_path / "source", tmp_path / "out"
    corpus.write(source / "one.parquet", ["x" * 95])
    convert(source, out, *words)
    # As a kill between the names and the receipt leaves it.
    for path in [*(out / PRIVATE / "receipts").iterdir(), *(out / PRIVATE / "joins").iterdir()]:
        path.unlink()
    (out / "manifest.json").unlink()
    runner.cut_off(out)
    corpus.write(source / "one.parquet", ["x" * 24])

    convert(source, out, *words)

    convert(source, tmp_path / "whole", *words)
    assert_whole(out, tmp_path / "whole")


def test_a_stray_of_ours_in_a_complete_run_goes_and_a_stranger_is_told(one: Path, whole: Path) -> None:
    out = damaged_copy(whole)
    (out / SECOND).write_bytes(b"as a version left it that did not look")
    convert(one, out)
    assert_whole(out, whole)

    (out / "edu_fineweb_train_mine.bin").write_bytes(b"precious")
    for _ in range(2):
        said = convert(one, out, code=1)
        assert "edu_fineweb_train_mine.bin" in said
        assert "move them out of the folder" in said
    assert "edu_fineweb_train_mine.bin" in convert(one, out, *SIZE, "--quiet", code=1)
    assert (out / "edu_fineweb_train_mine.bin").read_bytes() == b"precious"
    (out / "edu_fineweb_train_mine.bin").unlink()
    convert(one, out)
    assert_whole(out, whole)


def test_a_folder_with_a_file_that_a_trainer_would_read_is_refused_before_the_work(
    one: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "edu_fineweb_train_mine.bin").write_bytes(b"precious")

    assert "edu_fineweb_train_mine.bin" in convert(one, out, code=2)
    assert [path.name for path in out.iterdir()] == ["edu_fineweb_train_mine.bin"]


def test_the_tails_of_dropped_tokens_do_not_stay(tmp_path: Path) -> None:
    source, out, words = tmp_path / "source", tmp_path / "out", (*SIZE, "--last", "drop")
    for number in range(3):
        corpus.write(source / f"{number}.parquet", ["x" * 23, "y"])
    convert(source, out, *words)
    assert runner.litter(out) == []
    before = runner.state(out)

    convert(source, out, *words)
    assert runner.state(out) == before, "what was dropped is not missing"
    wanted = Path(shutil.copytree(out, tmp_path / "whole"))
    (out / "edu_fineweb_train_00001_000.bin").unlink()
    convert(source, out, *words)
    assert_whole(out, wanted)


# --- damage


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(bytes([file.read(1)[0] ^ 1, 0x77]))


def flip_unseen(path: Path) -> None:
    """Change two bytes as a failing disk does: no time tells of it."""
    before = path.stat()
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGE: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "deleted": (Path.unlink, ()),
    "cut short": (lambda path: os.truncate(path, 5), ()),
    "two bytes": (flip, ()),
    "two bytes, unseen": (flip_unseen, ("--rehash",)),
}
FILES = (FIRST, "edu_fineweb_train_00001_000.bin", "index/edu_fineweb_train_00000_000.docs")


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_made_again_and_verify_says_how(
    one: Path, whole: Path, name: str, damage: Callable[[Path], object], words: tuple[str, ...]
) -> None:
    out = damaged_copy(whole)
    damage(out / name)

    told = runner.command_line("verify", str(out))
    runner.assert_tidy_end(told, 1)
    assert "fwconvert repair " in told.stdout
    said = convert(one, out, *SIZE, *words)
    assert Path(name).name in said
    assert_whole(out, whole)


def test_hashing_everything_changes_no_byte_of_a_run_that_is_right(one: Path, whole: Path) -> None:
    out = damaged_copy(whole)

    for _ in range(2):
        convert(one, out, *SIZE, "--rehash")
        assert_whole(out, whole)


def test_an_export_hashes_everything_if_asked_and_makes_again_what_is_damaged(whole: Path) -> None:
    new = whole.with_name("new")
    words = ("export", whole, "-o", new, "--name", "new", "--workers", "1")
    runner.assert_tidy_end(runner.command_line(*words), 0)
    right = runner.tree(new)
    flip_unseen(new / "new_train_00000_000.bin")

    for _ in range(2):
        runner.assert_tidy_end(runner.command_line(*words, "--rehash"), 0)
        assert runner.tree(new) == right


def test_damage_that_no_time_shows_is_left_until_somebody_asks(one: Path, whole: Path) -> None:
    out = damaged_copy(whole)
    flip_unseen(out / FIRST)

    assert "already complete" in convert(one, out)
    runner.assert_tidy_end(runner.command_line("verify", str(out)), 1)


def test_files_that_were_only_copied_are_hashed_once(one: Path, whole: Path) -> None:
    out = damaged_copy(whole)
    for path in out.glob("edu_fineweb_*"):
        path.touch()

    assert "already complete" in convert(one, out)
    before = runner.state(out)
    convert(one, out)
    assert runner.state(out) == before
    assert_whole(out, whole)


def test_a_run_with_a_missing_shard_is_not_complete_for_status(whole: Path) -> None:
    told = json.loads(runner.command_line("status", "--json", str(whole)).stdout)
    assert (told["complete"], told["shards"]) == (True, 2), "the shard that was taken in does not count"
    (whole / FIRST).unlink()

    ended = runner.command_line("status", str(whole))

    runner.assert_tidy_end(ended, 1)
    assert "incomplete" in ended.stdout
    assert FIRST in ended.stdout


def test_a_run_without_a_joined_shard_and_its_receipt_is_not_complete_for_status(whole: Path) -> None:
    next((whole / PRIVATE / "joins").iterdir()).write_bytes(b"")
    (whole / "edu_fineweb_train_00001_000.bin").unlink()

    ended = runner.command_line("status", str(whole))

    runner.assert_tidy_end(ended, 1)
    assert "edu_fineweb_train_00001_000.bin" in ended.stdout


def test_rot_in_a_shard_that_is_to_be_taken_in_does_not_become_right(tmp_path: Path) -> None:
    source, out, whole = tmp_path / "source", tmp_path / "out", tmp_path / "whole"
    corpus.write(source / "0.parquet", ["x" * 24])
    convert(source, out)
    corpus.write(source / "1.parquet", ["yy"])
    convert(source, whole)
    shutil.rmtree(out)
    # A first session ends cleanly with the first source, because the second is broken.
    good = (source / "1.parquet").read_bytes()
    (source / "1.parquet").write_bytes(b"broken")
    convert(source, out, code=1)
    flip_unseen(out / SECOND)
    (source / "1.parquet").write_bytes(good)

    said = convert(source, out)

    assert "0.parquet will be converted again" in said
    assert_whole(out, whole)


# --- sources that are mended, and names that sort


def test_a_source_that_was_mended_is_of_the_same_recipe_whatever_its_size(tmp_path: Path) -> None:
    source, out, whole = tmp_path / "source", tmp_path / "out", tmp_path / "whole"
    words = ("--tokenizer", "bytes", "--shard-tokens", "20", "--workers", "1")
    corpus.write(source / "0.parquet", ["zero"])
    corpus.write(source / "1.parquet", [os.urandom(20).hex() for _ in range(600)], compression="none")
    good = (source / "1.parquet").read_bytes()
    assert len(good) // 20 > 1000, "its size once gave more digits"
    (source / "1.parquet").write_bytes(good[:2000])
    convert(source, out, *words, code=1)

    (source / "1.parquet").write_bytes(good)
    convert(source, out, *words)

    convert(source, whole, *words)
    assert runner.tree(out) == runner.tree(whole)


def test_names_sort_in_the_order_of_the_stream_however_many_there_are(tmp_path: Path) -> None:
    texts = [f"hello world {number % 10}" for number in range(1600)]
    source = corpus.write_columns(tmp_path / "source" / "one.parquet", text=texts)
    words = ("--tokenizer", "bytes", "--shard-tokens", "20", "--val-tokens", "0", "--last", "keep")
    assert source.stat().st_size // 20 < 1000, "its size promises fewer"
    convert(tmp_path / "source", tmp_path / "out", *words)

    names = sorted(globbed(tmp_path / "out"))
    tokens = b"".join((tmp_path / "out" / name).read_bytes()[1024:] for name in names)
    stream = b"".join(b"\0\1" + b"".join(bytes([byte, 0]) for byte in text.encode()) for text in texts)
    assert len(names) > 1000
    assert tokens == stream


def test_a_run_of_the_first_version_keeps_its_names_of_more_digits(tmp_path: Path) -> None:
    texts = [f"hello world {number}" for number in range(1500)]
    for number in range(2):
        corpus.write(tmp_path / "source" / f"{number}.parquet", texts)
    words = ("--tokenizer", "bytes", "--shard-tokens", "20", "--last", "keep", "--workers", "1")
    out = tmp_path / "out"
    convert(tmp_path / "source", out, *words)
    runner.name_plainly(out)
    before = runner.shards(out)
    runner.assert_tidy_end(runner.command_line("verify", str(out)), 0)
    convert(tmp_path / "source", out, *words)
    assert runner.shards(out) == before

    (out / "edu_fineweb_train_00001_1001.bin").unlink()
    convert(tmp_path / "source", out, *words)
    assert runner.shards(out) == before


def test_more_shards_than_a_manifest_can_describe_are_refused_before_the_work(tmp_path: Path) -> None:
    corpus.write(tmp_path / "source" / "one.parquet", [os.urandom(1000).hex()] * 1000, use_dictionary=False)
    words = ("--tokenizer", "bytes", "--shard-tokens", "1", "--workers", "1")

    said = convert(tmp_path / "source", tmp_path / "out", *words, code=2)

    assert "larger --shard-tokens" in said
    assert not (tmp_path / "out").exists()


def test_a_limited_run_with_many_shards_ends(tmp_path: Path) -> None:
    for number in range(3):
        corpus.write(tmp_path / "source" / f"{number}.parquet", ["x" * 999] * 3)
    words = ("--tokenizer", "bytes", "--shard-tokens", "2", "--limit-tokens", "5,001", "--workers", "2")

    convert(tmp_path / "source", tmp_path / "out", *words)

    assert globbed(tmp_path / "out") == listed(tmp_path / "out")
    assert len(listed(tmp_path / "out")) == 2500


def test_what_went_wrong_behind_the_limit_does_not_stay(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    corpus.write(source / "0.parquet", ["x" * 99])
    (source / "1.parquet").write_bytes(b"broken")
    (source / "2.parquet").write_bytes(b"broken, too")
    words = (*SIZE, "--limit-tokens", "50")
    # As a session leaves it that fetched ahead and was killed.
    convert(source, out, *SIZE, "--limit-tokens", "1000", code=1)
    assert any((out / PRIVATE / "quarantine").iterdir())
    kept = [path.read_bytes() for path in (out / PRIVATE / "quarantine").iterdir()]
    names = [path.name for path in (out / PRIVATE / "quarantine").iterdir()]
    shutil.rmtree(out)
    convert(source, out, *words)
    for name, content in zip(names, kept, strict=True):
        (out / PRIVATE / "quarantine" / name).write_bytes(content)
    (out / "manifest.json").unlink()

    assert "failed" not in convert(source, out, *words)
    assert runner.litter(out) == []
    assert not any((out / PRIVATE / "quarantine").iterdir())


def test_a_document_that_spans_more_shards_than_files_may_be_open_is_traced(tmp_path: Path) -> None:
    corpus.write(tmp_path / "source" / "one.parquet", ["x" * 399])
    words = ("--tokenizer", "bytes", "--shard-tokens", "1", "--val-tokens", "0", "--workers", "1")
    convert(tmp_path / "source", tmp_path / "out", *words)

    for command in (("trace", "train_00000_005:0"), ("show", "--document", "1")):
        verb, *rest = command
        ended = runner.command_line(verb, str(tmp_path / "out"), *rest, preexec_fn=few_open_files)
        runner.assert_tidy_end(ended, 0)


def few_open_files() -> None:
    import resource  # noqa: PLC0415  # absent on Windows

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


# --- stopping while what is there is hashed


def test_a_session_that_hashes_what_is_there_can_be_stopped(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    corpus.write(source / "one.parquet", ["x" * 2_000_000] * 150, compression="zstd")
    words = ("--tokenizer", "bytes", "--shard-tokens", "100M")
    convert(source, out, *words)
    before = runner.shards(out)

    lock = out / PRIVATE / "lock"
    for number in (signal.SIGINT, signal.SIGTERM):
        with runner.running(source, out, *words, "--rehash", "--threads", "1") as process:
            runner.wait_until(lambda pid=str(process.pid): pid in lock.read_text(), process)  # type: ignore[misc]
            process.send_signal(number)
            ended = runner.finish(process)

        runner.assert_tidy_end(ended, 128 + number)
        assert runner.shards(out) == before
    convert(source, out, *words)
