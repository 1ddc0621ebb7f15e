"""What lies in the folder of --keep-source is the user's: used once it is proven, and never replaced."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import corpus
import hub_runs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runner
from hub_runs import bodies, conversion, run
from hub_server import REPO, HubServer
from runner import assert_tidy_end

pytestmark = pytest.mark.skipif(os.name == "nt", reason="processes are found by their POSIX session")

# A name that half of the datasets on the hub have.
NAME = "train-00000-of-00001.parquet"
SOURCE = f"data/{NAME}"
OTHER = "data/other.parquet"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    corpus.write(folder / SOURCE, corpus.documents(0, 200))
    corpus.write(folder / OTHER, corpus.documents(1000, 200))
    return folder


@pytest.fixture
def hub(repository: Path) -> Iterator[HubServer]:
    with HubServer(repository) as hub:
        yield hub


@pytest.fixture
def pinned(hub: HubServer, tmp_path: Path) -> Path:
    assert_tidy_end(run(["pin", REPO, "-o", str(tmp_path / "pinned.json")], hub.endpoint), 0)
    return tmp_path / "pinned.json"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"


def converted(pinned: Path, hub: HubServer, out: Path, kept: Path) -> str:
    """Convert; return what was complained of, and fail unless all went well."""
    ended = run(conversion(pinned, out, "--keep-source", str(kept)), hub.endpoint)
    assert_tidy_end(ended, 0)
    return ended.stderr


@pytest.mark.parametrize("like", ["another", "of the same size", "no parquet"])
def test_a_file_of_the_user_with_the_name_of_a_source_is_left_alone(
    like: str, repository: Path, pinned: Path, hub: HubServer, kept: Path, tmp_path: Path
) -> None:
    mine = kept / NAME
    if like == "another":
        corpus.write(mine, corpus.documents(7000, 5))
    else:
        size = (repository / SOURCE).stat().st_size if like == "of the same size" else 100
        mine.write_bytes(os.urandom(size))
    before = (mine.stat().st_ino, mine.stat().st_mtime_ns, mine.read_bytes())

    converted(pinned, hub, tmp_path / "out", kept)

    assert (mine.stat().st_ino, mine.stat().st_mtime_ns, mine.read_bytes()) == before
    assert runner.sha256(kept / SOURCE) == runner.sha256(repository / SOURCE)
    assert sorted(path.name for path in kept.iterdir()) == ["data", NAME]


def test_a_file_that_is_proven_is_used_under_its_bare_name(
    repository: Path, pinned: Path, hub: HubServer, kept: Path, tmp_path: Path
) -> None:
    shutil.copy(repository / SOURCE, kept / NAME)

    converted(pinned, hub, tmp_path / "out", kept)

    assert bodies(hub.log, NAME) == []
    assert len(bodies(hub.log, OTHER)) == 1
    assert (kept / NAME).exists()
    assert not (kept / SOURCE).exists()


def test_a_bare_name_is_not_enough_where_no_sha256_is_known(
    repository: Path, pinned: Path, hub: HubServer, kept: Path, tmp_path: Path
) -> None:
    """Any file of that name and size would be taken for it."""
    fields = json.loads(pinned.read_text())
    fields["files"] = [{**file, "sha256": None} for file in fields["files"]]
    pinned.write_text(json.dumps(fields))
    other = bytearray((repository / SOURCE).read_bytes())
    other[100] ^= 1
    (kept / NAME).write_bytes(other)

    converted(pinned, hub, tmp_path / "out", kept)

    assert len(bodies(hub.log, NAME)) == 1
    assert (kept / NAME).read_bytes() == other
    assert runner.sha256(kept / SOURCE) == runner.sha256(repository / SOURCE)


def test_a_wrong_file_in_the_place_of_a_source_is_left_and_that_source_set_aside(
    repository: Path, pinned: Path, hub: HubServer, kept: Path, tmp_path: Path
) -> None:
    mine = corpus.write(kept / SOURCE, ["mine"])
    content = mine.read_bytes()
    words = conversion(pinned, tmp_path / "out", "--keep-source", str(kept))

    ended = run(words, hub.endpoint)

    assert_tidy_end(ended, 1)
    assert mine.read_bytes() == content
    assert f"fwconvert: {SOURCE} failed: another file is where this source is to be kept" in ended.stderr
    for word in (str(mine), f"{len(content):,} bytes", "-> move it away", "--keep-source"):
        assert ended.stderr.count(word) == 1
    assert hub_runs.bodies(hub.log, NAME) == []
    assert runner.steps(tmp_path / "out") == 1, "the other source is converted"
    mine.rename(kept / "mine.parquet")
    converted(pinned, hub, tmp_path / "out", kept)
    assert runner.sha256(kept / SOURCE) == runner.sha256(repository / SOURCE)


def test_a_wrong_file_in_the_place_of_a_source_is_not_asked_for_its_columns(
    pinned: Path, hub: HubServer, kept: Path, tmp_path: Path
) -> None:
    """Not the command is wrong but the file; were it believed, nobody would look at the hub."""
    fields = json.loads(pinned.read_text())
    fields["files"] = [file for file in fields["files"] if file["path"] == SOURCE]
    pinned.write_text(json.dumps(fields))
    (kept / SOURCE).parent.mkdir()
    pq.write_table(pa.table({"prose": ["mine"]}), kept / SOURCE)

    ended = run(conversion(pinned, tmp_path / "out", "--keep-source", str(kept)), hub.endpoint)

    assert_tidy_end(ended, 1)
    assert "another file is where this source is to be kept" in ended.stderr
    assert "no such text column" not in ended.stderr


def test_a_wrong_file_of_that_bare_name_in_a_folder_of_sources_is_said_with_what_it_is(
    repository: Path, pinned: Path, hub: HubServer, kept: Path, tmp_path: Path
) -> None:
    shutil.copy(repository / OTHER, kept / "other.parquet")
    mine = corpus.write(kept / NAME, ["mine"])

    ended = run(conversion(pinned, tmp_path / "out", "--source", str(kept)), hub.endpoint)

    assert_tidy_end(ended, 1)
    assert f"fwconvert: {SOURCE} failed: a source file is not the one that was asked for" in ended.stderr
    assert ended.stderr.count(f"  file    {mine}\n") == 1
    assert ended.stderr.count(f"  found   {mine.stat().st_size:,} bytes, sha256 {runner.sha256(mine)}") == 1
    assert runner.steps(tmp_path / "out") == 1
