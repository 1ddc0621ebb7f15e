"""Things that somebody lays where a file of ours belongs, or where a source should be."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

PRECIOUS = b"precious"

posix = pytest.mark.skipif(os.name == "nt", reason="wants links, pipes and devices")


def link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def link_to_nothing(path: Path, target: Path) -> None:
    path.symlink_to(target.with_name("nothing there"))


def hard_link(path: Path, target: Path) -> None:
    path.hardlink_to(target)


def pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, _: Path) -> None:
    path.mkdir()


def device(path: Path, _: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root may make a device, and not everywhere")


def link_to_a_pipe(path: Path, target: Path) -> None:
    os.mkfifo(target.with_name("pipe"))
    path.symlink_to(target.with_name("pipe"))


def link_to_a_device(path: Path, _: Path) -> None:
    path.symlink_to("/dev/zero")


Plant = Callable[[Path, Path], None]

# What must not be written to, and what must not be read from.
UNWRITABLE: tuple[Plant, ...] = (link, link_to_nothing, hard_link, pipe, device, folder)
UNREADABLE: tuple[Plant, ...] = (pipe, device, folder, link_to_a_pipe, link_to_a_device)


def name(plant: Plant) -> str:
    """Return how a plant is called in the name of a test."""
    return plant.__name__


def elsewhere(folder: Path) -> Path:
    """Make a folder that belongs to somebody else, with a file in it; return the file."""
    folder.mkdir()
    (folder / "precious").write_bytes(PRECIOUS)
    return folder / "precious"


def assert_untouched(precious: Path) -> None:
    """Fail if anything was changed, made or removed elsewhere, apart from what a test has laid there."""
    assert precious.read_bytes() == PRECIOUS
    assert {path.name for path in precious.parent.iterdir()} <= {"precious", "pipe"}


def remove(path: Path) -> None:
    """Remove what was planted, as the user is told to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
