"""manifest.json is the deterministic merge of the receipts, made for grep, wc -l and git diff."""

import json
from itertools import permutations
from pathlib import Path

import msgspec
import pytest
from examples import FILES, RECIPE

from fwconvert.errors import ManifestError, UsageError
from fwconvert.store import layout, run_manifest
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import Counts, JoinReceipt, Receipt, Segment, ShardLine, Tail
from fwconvert.store.run_manifest import RunManifest
from fwconvert.store.sessions import Session


def line(name: str, split: str, tokens: int) -> ShardLine:
    return ShardLine(name, split, tokens, 1, 1024 + 2 * tokens, "ab" * 32, "cd" * 32, ((0, 0),))


def job(path: str, *shards: ShardLine, tail: int, session: str = "s") -> Receipt:
    tokens = sum(shard.tokens for shard in shards) + tail
    counts = Counts(rows=9, documents=6, null_rows=2, empty_rows=1, text_bytes=99, tokens=tokens)
    sizes = Tail(tail, 1, 1024, "", 8, "")
    return Receipt(RECIPE.recipe_id, path, 10, "ef" * 32, 7, counts, shards, sizes, session)


VAL, TRAIN = line("a_val_00000_000.bin", "val", 5), line("a_train_00000_001.bin", "train", 5)
JOINED = line("a_train_00002_000.bin", "train", 7)
JOBS = {
    FILES[0].path: job(FILES[0].path, VAL, TRAIN, tail=3),
    FILES[1].path: job(FILES[1].path, tail=4),
}
JOINS = {JOINED.name: JoinReceipt(RECIPE.recipe_id, (Segment(0, 0, 0, 3), Segment(1, 3, 0, 4)), JOINED, "s")}
SESSIONS = [
    Session("one", "then", "host", 1, 2, 1, "fast", {"python": "3"}),
    Session("two", "later", "host", 1, 2, 1, "reference", {}),
]


def manifest() -> RunManifest:
    return run_manifest.build(RECIPE, JOBS, JOINS, SESSIONS, complete=True)


@pytest.fixture
def folder(tmp_path: Path) -> LocalStore:
    folder = LocalStore(tmp_path)
    folder.prepare()
    return folder


def test_the_headline_adds_up() -> None:
    headline = manifest().headline

    assert (headline.complete, headline.jobs, headline.jobs_done) == (True, 2, 2)
    assert (headline.train_shards, headline.val_shards) == (2, 1)
    assert (headline.documents, headline.null_rows, headline.empty_rows) == (12, 4, 2)
    assert headline.tokens == 17 == VAL.tokens + TRAIN.tokens + JOINED.tokens


def test_an_unfinished_run_says_so_and_lists_what_is_done() -> None:
    (first, _) = JOBS
    found = run_manifest.build(RECIPE, {first: JOBS[first]}, {}, SESSIONS, complete=False)

    assert (found.headline.complete, found.headline.jobs, found.headline.jobs_done) == (False, 2, 1)
    assert [each.path for each in found.jobs] == [first]
    assert [each.name for each in found.shards] == [TRAIN.name, VAL.name]


def test_the_order_in_which_jobs_finished_does_not_matter(folder: LocalStore) -> None:
    written = set()
    for order in permutations(JOBS):
        jobs = {path: JOBS[path] for path in order}
        run_manifest.write(folder, run_manifest.build(RECIPE, jobs, JOINS, SESSIONS, complete=True))
        written.add(folder.local(layout.MANIFEST).read_bytes())

    assert len(written) == 1


def test_two_runs_agree_in_every_byte_but_the_sessions(folder: LocalStore) -> None:
    run_manifest.write(folder, manifest())
    one = folder.local(layout.MANIFEST).read_bytes()
    jobs = {
        path: msgspec.structs.replace(made, session="t", source_mtime_ns=8) for path, made in JOBS.items()
    }
    joins = {name: msgspec.structs.replace(made, session="t") for name, made in JOINS.items()}
    others = [Session("three", "today", "elsewhere", 5, 64, 2, "fast", {"python": "4"})]
    run_manifest.write(folder, run_manifest.build(RECIPE, jobs, joins, others, complete=True))
    other = folder.local(layout.MANIFEST).read_bytes()

    assert one != other
    assert one.partition(b'"sessions"')[0] == other.partition(b'"sessions"')[0]
    assert one.partition(b'"sessions"')[1]


def test_every_job_shard_source_and_session_has_a_line_of_its_own(folder: LocalStore) -> None:
    run_manifest.write(folder, manifest())
    lines = folder.local(layout.MANIFEST).read_text().splitlines()

    for name in (VAL.name, TRAIN.name, JOINED.name):
        assert sum(f'"name":"{name}"' in each for each in lines) == 1
    for file in FILES:
        assert sum(f'"path":"{file.path}"' in each for each in lines) == 2  # as a source, and as a job
    for each in SESSIONS:
        assert sum(f'"id":"{each.id}"' in text for text in lines) == 1
    assert json.loads("\n".join(lines))["headline"]["tokens"] == 17


def test_a_manifest_is_read_as_it_was_written(folder: LocalStore) -> None:
    run_manifest.write(folder, manifest())

    assert run_manifest.read(folder) == manifest()


def test_a_manifest_gives_back_the_recipe(folder: LocalStore) -> None:
    run_manifest.write(folder, manifest())
    found = run_manifest.read(folder)

    assert found.recipe().recipe_id == RECIPE.recipe_id == found.recipe_id
    assert found.recipe().rules == RECIPE.rules
    assert found.recipe().source.files == FILES


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match=r"manifest\.json"):
            run_manifest.read(LocalStore(place))


@pytest.mark.parametrize("spoil", [b"", b"{}", b'{"format":"fwconvert run manifest 2"}'])
def test_a_manifest_that_cannot_be_believed_is_refused(folder: LocalStore, spoil: bytes) -> None:
    folder.local(layout.MANIFEST).write_bytes(spoil)

    with pytest.raises(ManifestError, match=r"manifest\.json"):
        run_manifest.read(folder)
