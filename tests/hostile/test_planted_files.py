"""What lies where we are going to write is refused before a byte changes, and its removal mends all."""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bounded
import corpus
import hub_runs
import planted
import pytest
import runner
from hub_server import REPO, HubServer
from planted import Plant, posix
from runner import PRIVATE

pytestmark = posix

SHARD_TOKENS = 2000


@dataclass(frozen=True)
class Dataset:
    """Two small sources on a hub, and what becomes of them."""

    hub: HubServer
    repository: Path
    pinned: Path
    tree: dict[str, str]
    # Of the content of the first source, by which its part is named.
    sha256: str

    def convert(self, out: Path, *flags: object) -> bounded.Ended:
        """Fetch and convert as a user does."""
        recipe = ("--version", self.pinned, "--tokenizer", "bytes", "--shard-tokens", SHARD_TOKENS)
        env = hub_runs.environment(self.hub.endpoint)
        return bounded.run(*recipe, "--out", out, "--workers", 1, *flags, env=env)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    base = tmp_path_factory.mktemp("dataset")
    repository, pinned = base / "repository", base / "small.json"
    corpus.equal_sources(repository / "sample", files=2, rows=60)
    with HubServer(repository) as hub:
        runner.assert_tidy_end(hub_runs.run(["pin", REPO, "sample", "-o", str(pinned)], hub.endpoint), 0)
        choices: dict[str, Any] = {"version": str(pinned), "tokenizer": "bytes", "shard_tokens": SHARD_TOKENS}
        assert runner.convert(repository, base / "from disk", **choices).complete
        first = runner.sha256(repository / "sample/00.parquet")
        yield Dataset(hub, repository, pinned, runner.tree(base / "from disk"), first)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    return planted.elsewhere(tmp_path / "elsewhere")


def assert_refused(ended: bounded.Ended, path: Path) -> None:
    """Fail unless the program named what lies there, and what to do about it."""
    assert ended.code == 1, ended.said
    assert str(path) in ended.stderr
    assert "remove" in ended.stderr


# --- the parts of sources that are fetched


@pytest.mark.parametrize("plant", planted.UNWRITABLE, ids=planted.name)
@pytest.mark.parametrize("kept", [False, True], ids=["in the run", "in --keep-source"])
def test_a_part_that_somebody_laid_there_is_refused_and_its_target_unchanged(
    dataset: Dataset, plant: Plant, *, kept: bool, precious: Path, tmp_path: Path
) -> None:
    out, keep = tmp_path / "out", tmp_path / "keep"
    flags = ("--keep-source", keep) if kept else ()
    part = (keep / ".parts" if kept else out / PRIVATE / "sources") / f"{dataset.sha256}.part"
    part.parent.mkdir(parents=True)
    plant(part, precious)

    assert_refused(dataset.convert(out, *flags), part)
    planted.assert_untouched(precious)

    planted.remove(part)
    assert dataset.convert(out, *flags).code == 0
    assert runner.tree(out) == dataset.tree
    assert runner.litter(out) == []
    planted.assert_untouched(precious)
    if kept:
        assert runner.sha256(keep / "sample/00.parquet") == dataset.sha256


@pytest.mark.parametrize("kept", [False, True], ids=["in the run", "in --keep-source"])
def test_a_folder_for_parts_that_is_a_link_is_refused(
    dataset: Dataset, *, kept: bool, precious: Path, tmp_path: Path
) -> None:
    out, keep = tmp_path / "out", tmp_path / "keep"
    flags = ("--keep-source", keep) if kept else ()
    parts = keep / ".parts" if kept else out / PRIVATE / "sources"
    parts.parent.mkdir(parents=True)
    parts.symlink_to(precious.parent)

    assert_refused(dataset.convert(out, *flags), parts)
    planted.assert_untouched(precious)

    parts.unlink()
    assert dataset.convert(out, *flags).code == 0
    assert runner.tree(out) == dataset.tree
    planted.assert_untouched(precious)


def test_a_link_in_the_place_of_a_fetched_source_is_replaced_and_not_written_through(
    dataset: Dataset, precious: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    place = out / PRIVATE / "sources" / hub_runs.place_name("sample/00.parquet")
    place.parent.mkdir(parents=True)
    place.symlink_to(precious)

    assert dataset.convert(out).code == 0

    assert runner.tree(out) == dataset.tree
    planted.assert_untouched(precious)


# --- the lock, and the folder that it is in


@dataclass(frozen=True)
class Work:
    """The words of a conversion from disk or of an export, and what it comes to."""

    words: tuple[object, ...]
    tree: dict[str, str]

    def run(self, out: Path) -> bounded.Ended:
        return bounded.run(*self.words, out)


@pytest.fixture(scope="module", params=["convert", "export"])
def work(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Work:
    base = tmp_path_factory.mktemp("work")
    sources = corpus.equal_sources(base / "sources", files=2, rows=20)
    assert runner.convert(sources, base / "run", tokenizer="bytes", shard_tokens=500).complete
    if request.param == "convert":
        recipe = ("--tokenizer", "bytes", "--shard-tokens", 500, "--workers", 1)
        return Work(("--source", sources, *recipe, "--out"), runner.tree(base / "run"))
    done = Work(("export", base / "run", "--format", "npy", "--workers", 1, "-o"), {})
    assert done.run(base / "exported").code == 0
    return Work(done.words, runner.tree(base / "exported"))


def test_a_private_folder_that_is_a_link_is_refused_before_anything_in_it_is_opened(
    work: Work, tmp_path: Path
) -> None:
    out, theirs = tmp_path / "out", tmp_path / "elsewhere"
    theirs.mkdir()
    (theirs / "lock").write_bytes(planted.PRECIOUS)
    out.mkdir()
    (out / PRIVATE).symlink_to(theirs)
    before = runner.state(theirs)

    assert_refused(work.run(out), out / PRIVATE)
    assert runner.state(theirs) == before
    assert [path.name for path in out.iterdir()] == [PRIVATE], "nothing was made"

    (out / PRIVATE).unlink()
    assert work.run(out).code == 0
    assert runner.tree(out) == work.tree


@pytest.mark.parametrize("plant", planted.UNWRITABLE, ids=planted.name)
def test_a_lock_that_somebody_laid_there_is_refused_and_its_target_unchanged(
    work: Work, plant: Plant, precious: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (out / PRIVATE).mkdir(parents=True)
    plant(out / PRIVATE / "lock", precious)

    assert_refused(work.run(out), out / PRIVATE / "lock")
    planted.assert_untouched(precious)

    planted.remove(out / PRIVATE / "lock")
    assert work.run(out).code == 0
    assert runner.tree(out) == work.tree


@pytest.mark.parametrize("plant", planted.UNWRITABLE, ids=planted.name)
def test_who_only_reads_a_run_leaves_a_planted_lock_alone(
    plant: Plant, precious: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    source = corpus.write(tmp_path / "a.parquet", corpus.documents(0, 20))
    assert runner.convert(source, out, tokenizer="bytes", shard_tokens=500).complete
    (out / PRIVATE / "lock").unlink()
    plant(out / PRIVATE / "lock", precious)
    before = sorted(out.rglob("*"))
    shard = min(path.name for path in out.glob("*.bin"))

    for words in (("status", out), ("verify", out), ("show", out, shard), ("trace", out, f"{shard}:0")):
        assert bounded.run(*words).code == 0

    planted.assert_untouched(precious)
    assert sorted(out.rglob("*")) == before


def test_a_link_in_place_of_a_rank_table_folder_is_refused(precious: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = corpus.write(tmp_path / "a.parquet", corpus.documents(0, 20))
    (out / PRIVATE).mkdir(parents=True)
    (out / PRIVATE / "vocabularies").symlink_to(precious.parent)

    words = ("--source", source, "--out", out, "--tokenizer", "o200k_base", "--workers", 1)
    # Should it ask the network for the table all the same, that is in vain.
    ended = bounded.run(*words, env={**os.environ, "HTTPS_PROXY": "http://127.0.0.1:9"})

    assert_refused(ended, out / PRIVATE / "vocabularies")
    planted.assert_untouched(precious)


def test_the_time_of_a_receipt_elsewhere_is_not_set(work: Work, tmp_path: Path) -> None:
    """A receipt is given the time of its files once they were found right; a link to one leads elsewhere."""
    out, theirs = tmp_path / "out", tmp_path / "receipt.json"
    assert work.run(out).code == 0
    receipt = min((out / PRIVATE / "receipts").iterdir())
    shutil.move(receipt, theirs)
    os.utime(theirs, ns=(0, 0))  # Its files are newer, so they are hashed.
    receipt.symlink_to(theirs)

    assert work.run(out).code == 0

    assert theirs.stat().st_mtime_ns == 0
    assert runner.tree(out) == work.tree


# --- the logs of workers


# What a worker process begins with, and what libraries may print in it.
WORKER = """
import os, sys
from fwconvert import processes
processes.prepare(sys.argv[1])
os.write(1, b"a word\\n")
os.write(2, b"another\\n")
"""


@pytest.mark.parametrize("plant", planted.UNWRITABLE, ids=planted.name)
def test_a_worker_prints_through_no_link_into_no_pipe_and_works_all_the_same(
    plant: Plant, precious: Path, tmp_path: Path
) -> None:
    log = tmp_path / "worker-0.log"
    plant(log, precious)

    ended = bounded.run_line([sys.executable, "-c", WORKER, str(log)])

    assert (ended.code, ended.said) == (0, "")
    planted.assert_untouched(precious)


def test_a_worker_prints_into_its_log(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.write_bytes(b"before\n")

    assert bounded.run_line([sys.executable, "-c", WORKER, str(log)]).code == 0

    assert log.read_bytes() == b"before\na word\nanother\n"
