"""Only regular files are opened, nothing is waited for, and nothing is written through a link."""

import os
import pickle
from pathlib import Path

import pytest
import runner

from fwconvert import files

pytestmark = pytest.mark.skipif(os.name == "nt", reason="wants links, pipes and devices")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.write_bytes(b"precious")
    return path


def test_a_link_to_a_file_is_read(target: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(target)
    with files.open_to_read(link) as file:
        assert file.read() == b"precious"
    assert files.sha256_of(link) == runner.sha256(target)


def test_a_pipe_and_a_device_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            files.open_to_read(path)
        with pytest.raises(OSError, match="not a regular file"):
            files.open_to_write(path)


def test_nothing_is_written_through_a_link_of_either_kind(target: Path, tmp_path: Path) -> None:
    soft, hard, dangling = (tmp_path / name for name in ("soft", "hard", "dangling"))
    soft.symlink_to(target)
    dangling.symlink_to(tmp_path / "nothing there")
    for link in (soft, dangling):
        with pytest.raises(OSError, match="is a link"):
            files.open_to_write(link)
    hard.hardlink_to(target)
    with pytest.raises(OSError, match="another name elsewhere"):
        files.open_to_write(hard)
    assert target.read_bytes() == b"precious"
    assert not (tmp_path / "nothing there").exists()


def test_a_file_is_opened_as_it_is_and_made_only_if_asked(target: Path, tmp_path: Path) -> None:
    with files.open_to_write(target, append=True) as file:
        file.write(b" and more")
        file.seek(0)
        assert file.read() == b"precious and more"
    with pytest.raises(FileNotFoundError):
        files.open_to_write(tmp_path / "new", create=False)
    with files.open_to_write(tmp_path / "new") as file:
        file.write(b"new")
    assert (tmp_path / "new").read_bytes() == b"new"


def test_an_empty_file_has_its_sha256_and_whoever_counts_may_stop(target: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    assert files.sha256_of(empty) == runner.sha256(empty)

    def tick(size: int) -> None:
        assert size == len(b"precious")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.sha256_of(target, tick)


def test_a_new_file_is_made_only_where_nothing_is(target: Path, tmp_path: Path) -> None:
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nothing there")
    for path in (target, dangling, tmp_path):
        with pytest.raises(FileExistsError):
            files.create(path)
    with files.create(tmp_path / "new") as file:
        file.write(b"new")
    assert (tmp_path / "new").read_bytes() == b"new"
    assert target.read_bytes() == b"precious"
    assert not (tmp_path / "nothing there").exists()


def test_no_more_is_read_than_was_asked_for(target: Path, tmp_path: Path) -> None:
    assert files.read(target, 3) == b"pre"
    assert files.read(target, 300) == b"precious"
    hole = tmp_path / "hole"
    hole.touch()
    os.truncate(hole, 2**34)
    assert files.read(hole, 3) == bytes(3)


def test_a_file_holds_its_content_and_nothing_else_does(target: Path, tmp_path: Path) -> None:
    assert files.holds(target, b"precious")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, content in (
        (target, b"preciou"), (target, b"precious "), (target, b"Precious"),
        (pipe, b""), (tmp_path, b""), (tmp_path / "nothing", b""), (target / "x", b""),
    ):  # fmt: skip
        assert not files.holds(path, content)


def test_what_is_refused_says_what_it_is_also_between_processes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(files.Refused) as caught:
        files.state_of(pipe)

    again = pickle.loads(pickle.dumps(caught.value))

    assert str(again) == str(caught.value) == f"it is a pipe, not a regular file: {pipe}"
    assert again.strerror == "it is a pipe, not a regular file"
