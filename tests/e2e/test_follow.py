"""A loader that follows a run while the real program makes it."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpus
import pytest
import runner

from fwconvert.errors import NotReady
from fwconvert.loader import Loader

CHOICES: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 2000, "val_tokens": 0}
SERVED: dict[str, Any] = {"seq_len": 50, "batch": 3, "order": "sequential"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return corpus.equal_sources(tmp_path / "source", files=6, rows=30)


def following(out: Path, **changes: Any) -> Loader:
    return Loader(out, **{**SERVED, "follow": True, "poll": 0.01, "timeout": 60, **changes})


def rows(batches: Iterator[Any] | Loader) -> list[list[int]]:
    return [row for batch in batches for row in batch.tolist()]


@pytest.mark.parametrize("layout", ["independent", "contiguous"])
def test_a_run_is_served_while_it_is_made_as_it_is_when_it_is_done(
    source: Path, tmp_path: Path, layout: str
) -> None:
    out = tmp_path / "out"
    with runner.running(source, out, workers=1, layout=layout, **CHOICES) as process:
        runner.wait_until((out / ".fwconvert").is_dir, process)
        served = rows(following(out))
        runner.assert_tidy_end(runner.finish(process), 0)

    assert served == rows(Loader(out, **SERVED))


@pytest.mark.parametrize("there", ["no folder", "an empty folder"])
def test_a_loader_may_start_before_the_run_that_it_follows(source: Path, tmp_path: Path, there: str) -> None:
    out = tmp_path / "new" / "out"
    if there == "an empty folder":
        out.mkdir(parents=True)
    served: list[list[int]] = []
    reader = threading.Thread(target=lambda: served.extend(rows(following(out))))
    reader.start()
    reader.join(1)
    assert reader.is_alive(), "it did not wait"
    runner.assert_tidy_end(runner.run(source, out, workers=1, **CHOICES), 0)
    reader.join(60)

    assert served == rows(Loader(out, **SERVED)) != []


def test_a_shard_that_the_join_takes_in_is_served_once(tmp_path: Path) -> None:
    source, out = corpus.equal_sources(tmp_path / "source", files=2, rows=12), tmp_path / "out"
    bad = source / "02.parquet"
    bad.write_bytes(b"no parquet")
    runner.assert_tidy_end(runner.run(source, out, **CHOICES), 1)
    before = {path.name for path in out.glob("*.bin")}
    loader = following(out, timeout=0.05)
    served: list[Any] = []
    with pytest.raises(NotReady):
        served.extend(batch.tolist() for batch in loader)
    corpus.write(bad, ["a last word"])
    runner.assert_tidy_end(runner.run(source, out, **CHOICES), 0)
    served.extend(batch.tolist() for batch in loader)

    assert len(before - {path.name for path in out.glob("*.bin")}) == 1, "no shard was taken in"
    assert [row for batch in served for row in batch] == rows(Loader(out, **SERVED))


def test_what_comes_before_a_source_that_is_not_done_is_served_and_the_rest_later(
    source: Path, tmp_path: Path
) -> None:
    out, bad = tmp_path / "out", source / "03.parquet"
    sound = bad.read_bytes()
    bad.write_bytes(b"no parquet")
    runner.assert_tidy_end(runner.run(source, out, workers=2, **CHOICES), 1)
    # The last might still be merged with what is left at the end of the run.
    ready = sum((path.stat().st_size // 2 - 513) // 50 for path in sorted(out.glob("*_0000[012]_*.bin"))[:-1])
    loader = following(out, timeout=0.05)
    first: list[Any] = []
    with pytest.raises(NotReady, match="nothing new"):
        first.extend(batch.tolist() for batch in loader)
    state = loader.state()
    assert [len(batch) for batch in first] == [3] * (ready // 3) != []
    with pytest.raises(TypeError):
        len(loader)

    bad.write_bytes(sound)
    ranks = [following(out, rank=rank, ranks=2).resume(state) for rank in range(2)]
    served: list[list[Any]] = [[], []]
    readers = [
        threading.Thread(target=lambda at=at: served[at].extend(batch.tolist() for batch in ranks[at]))
        for at in range(2)
    ]
    for reader in readers:
        reader.start()
    runner.assert_tidy_end(runner.run(source, out, workers=1, **CHOICES), 0)
    for reader in readers:
        reader.join(60)

    whole = rows(Loader(out, **SERVED))
    rest = [row for both in zip(*served, strict=True) for batch in both for row in batch]
    assert [row for batch in first for row in batch] + rest == whole
    assert rows(Loader(out, **SERVED).resume(state)) == whole[len(first) * 3 :]
