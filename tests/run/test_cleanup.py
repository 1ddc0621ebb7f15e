"""What is not needed any more goes, and nothing else."""

from pathlib import Path

import corpus
import runner

from fwconvert import records
from fwconvert.store import layout
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import JoinReceipt, Receipt


def finished(tmp_path: Path) -> tuple[LocalStore, dict[str, str]]:
    """Convert four sources whose tails make several joined shards."""
    sources = tmp_path / "sources"
    for number in range(4):
        corpus.write(sources / f"{number}.parquet", corpus.documents(100 * number, 60))
    return convert(tmp_path), runner.tree(tmp_path / "out")


def convert(tmp_path: Path) -> LocalStore:
    result = runner.convert(
        tmp_path / "sources", tmp_path / "out", tokenizer="bytes", shard_tokens=2_000, layout="contiguous"
    )
    assert result.complete
    return LocalStore(tmp_path / "out")


def test_no_tail_is_left_of_a_finished_run(tmp_path: Path) -> None:
    folder, _ = finished(tmp_path)
    joins = [records.read(path, JoinReceipt) for path in folder.local(layout.JOINS).iterdir()]
    assert len(joins) > 4
    assert {segment.source for join in joins for segment in join.segments} == {0, 1, 2, 3}
    assert [*folder.local(layout.TAILS).iterdir()] == []


def test_a_tail_that_a_cut_off_session_left_goes_although_nothing_is_to_be_done(tmp_path: Path) -> None:
    folder, tree = finished(tmp_path)
    key = next(folder.local(layout.RECEIPTS).iterdir()).stem
    for path in (
        folder.local(layout.tail(key)),
        folder.local(layout.tail_index(key)),
        folder.local(layout.quarantined(key)),
    ):
        path.write_bytes(b"left behind")
    folder.local(layout.MANIFEST).unlink()
    convert(tmp_path)
    assert runner.tree(tmp_path / "out") == tree
    assert [*folder.local(layout.TAILS).iterdir(), *folder.local(layout.QUARANTINE).iterdir()] == []


def test_a_job_that_is_converted_again_after_the_join_leaves_no_tail(tmp_path: Path) -> None:
    folder, tree = finished(tmp_path)
    first = min(folder.local(layout.RECEIPTS).iterdir())
    assert records.read(first, Receipt).tail.tokens > 0
    first.unlink()
    convert(tmp_path)
    assert runner.tree(tmp_path / "out") == tree
    assert [*folder.local(layout.TAILS).iterdir()] == []


def test_a_joined_shard_that_is_made_again_needs_its_tails_again(tmp_path: Path) -> None:
    folder, tree = finished(tmp_path)
    lost = sorted(folder.local(layout.JOINS).iterdir())[2]
    (folder.root / lost.stem).unlink()
    convert(tmp_path)
    assert runner.tree(tmp_path / "out") == tree
    assert [*folder.local(layout.TAILS).iterdir(), *folder.local(layout.TEMPORARY).iterdir()] == []
