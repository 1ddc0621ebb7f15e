"""Tokens that are lost on the way are noticed before anything has a name, whatever lost them.

Not by an assertion, which `python -O` leaves out.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import corpus
import engines
import pytest
import runner

from fwconvert.errors import FwconvertError
from fwconvert.job import worker
from fwconvert.shards import cutting


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return corpus.equal_sources(tmp_path / "sources", files=2, rows=5)


def without_the_last(pieces: Iterator[Any]) -> Iterator[Any]:
    kept = list(pieces)
    yield from islice(kept, len(kept) - 1)


def test_a_source_that_loses_tokens_is_given_up_and_nothing_of_it_published(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = cutting.cut
    monkeypatch.setattr(cutting, "cut", lambda *words: without_the_last(cut(*words)))

    done = runner.convert(
        sources, tmp_path / "out", engine=engines.inline(), tokenizer="bytes", shard_tokens=100
    )

    assert not done.complete
    assert {job.path for job in done.failed} == {"00.parquet", "01.parquet"}
    assert all("not as many tokens were written" in job.reason for job in done.failed)
    assert list((tmp_path / "out").glob("*.bin")) == []


def test_a_join_that_loses_tokens_publishes_nothing(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = worker.joined_pieces
    monkeypatch.setattr("fwconvert.job.worker.joined_pieces", lambda *words: without_the_last(pieces(*words)))

    # All is tail: nothing but the join makes a shard.
    with pytest.raises(FwconvertError, match="not as many tokens were written"):
        runner.convert(
            sources,
            tmp_path / "out",
            engine=engines.inline(),
            tokenizer="bytes",
            shard_tokens=100_000,
            val_tokens=0,
        )

    assert list((tmp_path / "out").glob("*.bin")) == []
