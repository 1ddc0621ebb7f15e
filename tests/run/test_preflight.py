"""A column that no source has is told before a run begins; one that some sources lack costs only those."""

import threading
from pathlib import Path
from typing import Any

import corpus
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runner

from fwconvert.errors import HubError, UsageError
from fwconvert.hub import retry

BASE: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 1000}
# What is asked for, and what must be told of it.
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"where": "scor > 3"}, "scor"),
    ({"where": "len(score) > 3"}, "other types"),
    ({"min_int_score": 3}, "int_score"),
    ({"text_column": "txt"}, "--text-column"),
    ({"text_column": "score"}, "--text-column"),
]


def others(path: Path) -> None:
    """Write a source whose columns have other names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"body": ["text"], "quality": [5]}), path)


@pytest.mark.parametrize(("mistake", "told"), MISTAKES, ids=str)
def test_a_column_that_no_source_has_is_refused_before_anything_is_written(
    mistake: dict[str, Any], told: str, tmp_path: Path
) -> None:
    sources = corpus.equal_sources(tmp_path / "sources", files=30, rows=2)
    with pytest.raises(UsageError, match=told) as refused:
        runner.convert(sources, tmp_path / "out", **BASE, **mistake)
    assert "id (int64), text (string), score (int64)" in str(refused.value)
    assert "of 30 sources" in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_source_that_lacks_a_column_alone_is_set_aside_alone(lacking: int, tmp_path: Path) -> None:
    sources = corpus.equal_sources(tmp_path / "sources", files=3, rows=5)
    others(sources / f"{lacking:02d}.parquet")
    for _ in range(2):  # Again, when all the others are done.
        result = runner.convert(sources, tmp_path / "out", **BASE, where="score > 1")
        assert [failed.path for failed in result.failed] == [f"{lacking:02d}.parquet"]
        assert result.headline.jobs_done == 2


@pytest.mark.parametrize("damage", [b"", b"no parquet", b"PAR1 cut PAR1"])
def test_a_first_source_that_cannot_be_read_is_set_aside_alone(damage: bytes, tmp_path: Path) -> None:
    sources = corpus.equal_sources(tmp_path / "sources", files=3, rows=5)
    (sources / "00.parquet").write_bytes(damage)
    result = runner.convert(sources, tmp_path / "out", **BASE, where="score > 1")
    assert [failed.path for failed in result.failed] == ["00.parquet"]


def test_where_none_can_be_read_each_is_set_aside_with_its_reason(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / "sources").mkdir(exist_ok=True)
        (tmp_path / f"sources/{number}.parquet").write_bytes(b"no parquet")
    result = runner.convert(tmp_path / "sources", tmp_path / "out", **BASE, where="scor > 1")
    assert len(result.failed) == 2


def test_a_damaged_source_does_not_hide_a_mistake(tmp_path: Path) -> None:
    sources = corpus.equal_sources(tmp_path / "sources", files=3, rows=5)
    (sources / "00.parquet").write_bytes(b"no parquet")
    with pytest.raises(UsageError, match="scor"):
        runner.convert(sources, tmp_path / "out", **BASE, where="scor > 1")


def test_a_run_that_has_begun_is_looked_at_again_while_nothing_is_done(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "0.parquet").write_bytes(b"no parquet")
    assert runner.convert(sources, tmp_path / "out", **BASE).failed
    others(sources / "0.parquet")
    before = runner.state(tmp_path / "out")
    with pytest.raises(UsageError, match=r"body \(string\), quality \(int64\)"):
        runner.convert(sources, tmp_path / "out", **BASE)
    assert runner.state(tmp_path / "out") == before


class Unwaited(threading.Event):
    """A stop request that must not be waited for."""

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError(timeout)


@pytest.mark.parametrize("trouble", ["an answer that does not come", "a server that asks for a minute"])
def test_a_look_is_over_in_time(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "endpoint", lambda: "https://example.org")
    patient = retry.Retry(99, Unwaited(), lambda _: None, deadline=0.2)
    over = threading.Event()

    def ask() -> None:
        if "asks" in trouble:
            raise retry.TransientError("the server answers 429", 60)
        over.wait()

    with pytest.raises(HubError, match="too long"):
        retry.with_retries(ask, "a footer", patient)
    over.set()
