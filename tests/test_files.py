"""Only regular files are opened, nothing is waited for, and nothing is written through a link."""

import os
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
