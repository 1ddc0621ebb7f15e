"""Two runs beside each other, through the command."""

import json
import shutil
from pathlib import Path

import corpus
import pytest
import runner

SIZE = ("--tokenizer", "bytes", "--shard-tokens", "500", "--val-tokens", "0", "--workers", "1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    corpus.write(folder / "source" / "0.parquet", corpus.documents(0, 40))
    corpus.write(folder / "source" / "1.parquet", corpus.documents(40, 40))
    convert(folder, "a")
    return folder


def convert(place: Path, name: str, *words: str, source: str = "source") -> Path:
    line = ("--source", place / source, "--out", place / name, *SIZE, *words)
    ended = runner.command_line(*line, capture_output=True)
    assert ended.returncode == 0, ended.stderr
    return place / name


def compared(place: Path, a: str, b: str, *words: str) -> tuple[int, str]:
    ended = runner.command_line("compare", place / a, place / b, *words, capture_output=True)
    assert not ended.stderr
    return ended.returncode, ended.stdout


def test_equal_runs_are_equal(place: Path) -> None:
    shutil.copytree(place / "a", place / "same", dirs_exist_ok=True)

    code, said = compared(place, "a", "same")

    assert code == 0
    assert said.startswith("the runs are equal: all ")
    assert json.loads(compared(place, "a", "same", "--json")[1])["equal"] is True


def test_a_changed_document_is_found(place: Path) -> None:
    texts = corpus.documents(40, 40)
    corpus.write(place / "changed" / "0.parquet", corpus.documents(0, 40))
    corpus.write(place / "changed" / "1.parquet", [*texts[:20], texts[20].replace("d", "D", 1), *texts[21:]])
    convert(place, "b", source="changed")
    position = sum(len(text) + 1 for text in texts[:20]) + 1

    code, said = compared(place, "a", "b")
    found = json.loads(compared(place, "a", "b", "--json")[1])

    assert code == 1
    first = found["first_difference"]
    wanted = f"edu_fineweb_train_00001_{position // 500:03d}.bin"
    assert (first["a"], first["token"]) == (wanted, position % 500)
    assert (first["a_token"], first["b_token"]) == (ord("d"), ord("D"))
    assert f"{wanted}:{position % 500}, token id 100" in said
    assert len(found["different_shards"]) == 1
    assert len(found["equal_shards"]) > 20


def test_other_names_and_formats_are_told_from_other_tokens(place: Path) -> None:
    convert(place, "named", "--name", "other")
    convert(place, "npy", "--format", "npy")

    named, npy = (json.loads(compared(place, "a", other, "--json")[1]) for other in ("named", "npy"))

    assert named["equal"]
    assert named["recipe"] == {"name": ["edu_fineweb", "other"]}
    assert not npy["equal"]
    assert npy["recipe"] == {"format": ["llmc", "npy"]}
    assert npy["first_difference"]["token"] is None
    assert "in another format" in npy["first_difference"]["note"]


def test_a_shorter_run_shows_where_it_ends(place: Path) -> None:
    convert(place, "short", "--limit-tokens", "1,250", "--last", "keep")

    code, said = compared(place, "a", "short")

    assert code == 1
    assert "limit tokens  A none  B 1,250" in said
    assert "only in A" in said


def test_what_is_no_run_is_refused(place: Path, tmp_path: Path) -> None:
    ended = runner.command_line("compare", place / "a", tmp_path, capture_output=True)

    assert ended.returncode == 2
    assert str(tmp_path) in ended.stderr
