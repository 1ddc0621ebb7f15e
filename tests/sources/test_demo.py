"""The demo corpus: FineWeb-Edu's shape, the same texts everywhere, and mended after any crash."""

import hashlib
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fwconvert
from fwconvert import records
from fwconvert.errors import OutputError
from fwconvert.sources import demo
from fwconvert.store import atomic

# Of all texts in order, each followed by a zero byte. Another value needs another demo.NAME.
TEXTS_SHA256 = "5b33ab3e39d58b7970d65d556ff5779fd5ac8b74c7b204b90e87c16fa6d831bd"

COLUMNS = {
    "text": pa.string(),
    "id": pa.string(),
    "dump": pa.string(),
    "url": pa.string(),
    "file_path": pa.string(),
    "language": pa.string(),
    "language_score": pa.float64(),
    "token_count": pa.int64(),
    "score": pa.float64(),
    "int_score": pa.int64(),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    demo.make(folder)
    return folder


@pytest.fixture(scope="module")
def texts(made: Path) -> list[str]:
    return [text for path in demo.make(made) for text in pq.read_table(path)["text"].to_pylist()]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a corpus to damage, of few rows so that mending it is quick."""
    monkeypatch.setattr(demo, "ROWS", 30)
    demo.make(tmp_path)
    return tmp_path


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    """Tell files apart by inode and time of change, so that an equal rewrite shows."""
    stats = {path.name: path.stat() for path in (folder / demo.NAME).iterdir()}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def start_making(folder: Path, then: str = "", **environment: str) -> "subprocess.Popen[bytes]":
    """Make the corpus in a fresh interpreter."""
    make = "import sys, pathlib; from fwconvert.sources import demo; demo.make(pathlib.Path(sys.argv[1]))"
    script = f"{make}; {then}"
    package = str(Path(fwconvert.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": package} | environment
    return subprocess.Popen([sys.executable, "-c", script, str(folder)], env=environment)


def test_files_look_like_those_of_fineweb_edu(made: Path) -> None:
    paths = demo.make(made)
    assert [path.relative_to(made).as_posix() for path in paths] == [
        f"demo-1/{number:03}_00000.parquet" for number in range(4)
    ]
    for path in paths:
        file = pq.ParquetFile(path)
        assert dict(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True)) == COLUMNS
        assert file.schema_arrow.names == list(COLUMNS)
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        assert [group.num_rows for group in groups] == [1_000, 1_000, 100]
        assert {group.column(i).compression for group in groups for i in range(10)} == {"SNAPPY"}


def test_every_column_holds_what_its_name_says(made: Path) -> None:
    rows = [row for path in demo.make(made) for row in pq.read_table(path).to_pylist()]
    assert all(value is not None for row in rows for value in row.values())
    assert len({row["id"] for row in rows}) == len({row["url"] for row in rows}) == len(rows)
    for row in rows:
        assert row["id"].startswith("<urn:uuid:")
        assert row["id"].endswith(">")
        assert row["url"].isascii()
        assert row["token_count"] == len(row["text"].split())
        assert row["int_score"] == round(row["score"]) >= 3
        assert 0.65 <= row["language_score"] < 1


def test_the_text_is_large_enough_and_its_lengths_have_a_heavy_tail(texts: list[str]) -> None:
    lengths = [len(text.encode()) for text in texts]
    assert 10_000_000 <= sum(lengths) <= 15_000_000
    assert min(lengths) > 0
    assert 500 <= statistics.median(lengths) <= 1_500
    assert max(lengths) >= 50 * statistics.median(lengths)
    assert sum(length > 100_000 for length in lengths) >= 3


@pytest.mark.parametrize(
    "piece", ["\n\n", "\t", "   ", "\r\n", "n't ", "'ll ", "1,", "%", "é", "は", "🙂", "\u200d", "?", "The "]
)
def test_the_texts_have_what_tokenizers_stumble_over(texts: list[str], piece: str) -> None:
    assert sum(piece in text for text in texts) >= 10


def test_one_document_has_the_end_of_text_marker_as_text(texts: list[str]) -> None:
    assert [number for number, text in enumerate(texts) if "<|endoftext|>" in text] == [17]


def test_the_texts_are_the_pinned_ones(texts: list[str]) -> None:
    joined = "".join(f"{text}\0" for text in texts)
    assert hashlib.sha256(joined.encode()).hexdigest() == TEXTS_SHA256


def test_fresh_interpreters_that_make_it_at_once_agree(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    racers = [start_making(folder, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    assert [racer.wait(timeout=300) for racer in racers] == [0, 0]
    assert hashes(folder) == hashes(made)


def test_a_second_call_changes_nothing(made: Path) -> None:
    before = identities(made)
    demo.make(made)
    assert identities(made) == before


def test_the_record_names_every_file_with_its_size_and_hash(made: Path) -> None:
    files = records.read(made / demo.NAME / demo.RECORD, demo.Corpus).files
    contents = {path.name: path.read_bytes() for path in demo.make(made)}
    assert {file.path: (file.bytes, file.sha256) for file in files} == {
        name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in contents.items()
    }


def truncate(home: Path) -> None:
    os.truncate(home / "001_00000.parquet", 1_000)


def lose_a_file(home: Path) -> None:
    (home / "003_00000.parquet").unlink()


def lose_the_record(home: Path) -> None:
    (home / demo.RECORD).unlink()


def cut_the_record(home: Path) -> None:
    (home / demo.RECORD).write_bytes((home / demo.RECORD).read_bytes()[:-20])


def empty_the_record(home: Path) -> None:
    (home / demo.RECORD).write_bytes(records.lines(records.fields(demo.Corpus(()))))


@pytest.mark.parametrize("damage", [truncate, lose_a_file, lose_the_record, cut_the_record, empty_the_record])
def test_damage_is_mended_and_what_was_right_is_left_alone(
    small: Path, damage: Callable[[Path], None]
) -> None:
    whole, right = hashes(small), identities(small)
    damage(small / demo.NAME)
    hurt = {name for name, identity in right.items() if identities(small).get(name) != identity}
    demo.make(small)
    assert hashes(small) == whole
    changed = {name for name, identity in identities(small).items() if right[name] != identity}
    assert changed == hurt | {demo.RECORD}


def test_a_crash_half_way_leaves_no_record_and_the_next_call_finishes(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hashes(small)
    for name in ("001_00000.parquet", "002_00000.parquet"):
        (small / demo.NAME / name).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "replace", fail_at_the_third_file(atomic.replace))
        with pytest.raises(OutputError):
            demo.make(small)
    left = sorted(path.name for path in (small / demo.NAME).iterdir())
    assert left == ["000_00000.parquet", "001_00000.parquet", "003_00000.parquet"]
    demo.make(small)
    assert hashes(small) == whole


def fail_at_the_third_file(replace: Callable[[Path, bytes], None]) -> Callable[[Path, bytes], None]:
    def replace_or_fail(path: Path, content: bytes) -> None:
        if path.name.startswith("002"):
            raise OutputError("no space is left")
        replace(path, content)

    return replace_or_fail


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FWCONVERT_CACHE", str(tmp_path))
    assert demo.cache_folder() == tmp_path
    monkeypatch.setenv("FWCONVERT_CACHE", "")
    assert demo.cache_folder().name == "fwconvert"


def test_a_corpus_that_is_made_needs_no_pyarrow(made: Path) -> None:
    assert start_making(made, "assert 'pyarrow' not in sys.modules").wait(timeout=300) == 0
