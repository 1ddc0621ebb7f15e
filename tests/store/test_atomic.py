"""A crash, a full disk or a failing fsync at any instant leaves the old state or the whole new file."""

import errno
import hashlib
import os
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import child
import pytest
from examples import unhurried
from hypothesis import given, settings
from hypothesis import strategies as st

from fwconvert.errors import OutputError
from fwconvert.store import atomic
from fwconvert.store.atomic import BLOCK_BYTES, Output

posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX")

FIXED = uuid.UUID(int=7)


def litter(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def failing(error: int, calls: list[int]) -> Any:
    """Return a system call that notes its descriptor and fails."""

    def fail(descriptor: int, *_: object) -> None:
        calls.append(descriptor)
        raise OSError(error, os.strerror(error))

    return fail


def test_replace_writes_all_and_leaves_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file"

    atomic.replace(path, b"first")
    assert path.read_bytes() == b"first"

    atomic.replace(path, b"second, longer")
    assert path.read_bytes() == b"second, longer"
    assert litter(tmp_path) == ["file"]


def test_an_empty_content_makes_an_empty_file(tmp_path: Path) -> None:
    atomic.replace(tmp_path / "file", b"")

    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, OutputError])
def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, kind: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with Output(tmp_path, "file") as output:
            output.write(b"new")
            raise kind("failed")

    with pytest.raises(kind):
        write()
    assert path.read_bytes() == b"old"
    assert litter(tmp_path) == ["file"]


def test_an_output_that_is_not_published_is_removed(tmp_path: Path) -> None:
    with Output(tmp_path, "file") as output:
        output.write(b"finished, but nobody gave it a name")
        output.finish()
        assert len(litter(tmp_path)) == 1

    assert litter(tmp_path) == []


def test_an_output_may_be_discarded_twice(tmp_path: Path) -> None:
    output = Output(tmp_path, "file")
    output.discard()
    output.discard()

    assert litter(tmp_path) == []


def test_a_published_file_survives_a_later_failure_in_the_block(tmp_path: Path) -> None:
    def write() -> None:
        with Output(tmp_path, "file") as output:
            output.write(b"new")
            output.publish_at(tmp_path / "final")
            raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        write()
    assert (tmp_path / "final").read_bytes() == b"new"
    assert litter(tmp_path) == ["final"]


def test_two_outputs_of_one_label_do_not_meet(tmp_path: Path) -> None:
    with Output(tmp_path, "job") as one, Output(tmp_path, "job") as two:
        one.write(b"one")
        two.write(b"two")
        one.publish_at(tmp_path / "a")
        two.publish_at(tmp_path / "b")

    assert (tmp_path / "a").read_bytes() == b"one"
    assert (tmp_path / "b").read_bytes() == b"two"


@given(parts=st.lists(st.binary(max_size=50), max_size=10))
@settings(unhurried, max_examples=30)
def test_the_hash_and_the_size_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("hash")
    with Output(folder, "file") as output:
        for number, part in enumerate(parts):
            output.write(memoryview(part) if number % 2 else part)
        output.publish_at(folder / "final")

    written = (folder / "final").read_bytes()
    assert written == b"".join(parts)
    assert output.bytes == len(written)
    assert output.sha256 == hashlib.sha256(written).hexdigest()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def one_byte(descriptor: int, content: memoryview) -> int:
        return real(descriptor, content[:1])

    monkeypatch.setattr(os, "write", one_byte)
    content = bytes(range(256)) * 4
    with Output(tmp_path, "file") as output:
        output.write(content)
        output.publish_at(tmp_path / "final")

    assert (tmp_path / "final").read_bytes() == content
    assert output.bytes == 1024


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_soon_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    real, seen = os.fsync, []

    def watched(descriptor: int) -> None:
        kind = "file" if os.fstat(descriptor).st_size == len(b"new content") else "folder"
        seen.append((kind, path.read_bytes()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    atomic.replace(path, b"new content")

    wanted = [("file", b"old")] if os.name == "nt" else [("file", b"old"), ("folder", b"new content")]
    assert seen == wanted


def test_a_failed_fsync_leaves_the_old_file_and_no_litter_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", failing(errno.EIO, calls))

    with pytest.raises(OutputError, match="EIO"):
        atomic.replace(path, b"new")

    assert len(calls) == 1
    assert path.read_bytes() == b"old"
    assert litter(tmp_path) == ["file"]


def test_an_output_whose_fsync_failed_can_never_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Output(tmp_path, "file") as output:
        output.write(b"new")
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", failing(errno.EIO, []))
            with pytest.raises(OutputError):
                output.finish()

        # The kernel has dropped the pages and would now report success.
        with pytest.raises(OutputError):
            output.publish_at(tmp_path / "final")

    assert litter(tmp_path) == []


def test_an_output_whose_write_failed_can_never_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Output(tmp_path, "file") as output:
        output.write(b"first half")
        with monkeypatch.context() as broken:
            broken.setattr(os, "write", failing(errno.ENOSPC, []))
            with pytest.raises(OutputError):
                output.write(bytes(4 * BLOCK_BYTES))  # more than may be on its way at a time

        with pytest.raises(OutputError):
            output.publish_at(tmp_path / "final")

    assert litter(tmp_path) == []


def test_an_error_on_closing_leaves_no_final_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Network file systems may report a lost write only then.
    real = os.close

    def close(descriptor: int) -> None:
        real(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        output = Output(tmp_path, "file")
        output.write(b"new")
        broken.setattr(os, "close", close)
        with pytest.raises(OutputError, match="EIO"), output:
            output.publish_at(tmp_path / "final")

    assert litter(tmp_path) == []


def test_a_failed_fsync_of_the_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.EIO, []))

    if os.name == "nt":
        atomic.sync_folder(tmp_path)
    else:
        with pytest.raises(OutputError) as caught:
            atomic.sync_folder(tmp_path)
        assert str(tmp_path) in str(caught.value)


@posix
@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.ENOSYS])
def test_a_file_system_that_cannot_sync_folders_can_be_used(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, []

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            calls.append(descriptor)
            raise OSError(error, os.strerror(error))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    atomic.replace(tmp_path / "file", b"content")

    assert len(calls) == 1
    assert (tmp_path / "file").read_bytes() == b"content"


@posix
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_disk_that_fails_to_sync_a_folder_is_an_output_error(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(error, []))

    with pytest.raises(OutputError, match=errno.errorcode[error]):
        atomic.sync_folder(tmp_path)


@posix
def test_a_file_that_cannot_be_synced_is_an_output_error_whatever_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.EINVAL, []))

    with pytest.raises(OutputError, match="EINVAL"):
        atomic.replace(tmp_path / "file", b"content")


def test_no_descriptor_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = os.open(tmp_path, os.O_RDONLY) if os.name != "nt" else os.dup(1)
    os.close(probe)  # The lowest free descriptor: the next to be given out.

    atomic.replace(tmp_path / "file", b"content")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing(errno.EIO, []))
        with pytest.raises(OutputError):
            atomic.replace(tmp_path / "file", b"content")

    again = os.dup(1)
    os.close(again)
    assert again == probe


@posix
def test_a_link_at_the_temporary_name_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / f"label-{FIXED.hex}").symlink_to(victim)
    monkeypatch.setattr(uuid, "uuid4", lambda: FIXED)

    with pytest.raises(OutputError, match="EEXIST"):
        Output(tmp_path, "label")

    assert victim.read_bytes() == b"precious"


@posix
def test_a_dangling_link_at_the_temporary_name_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"label-{FIXED.hex}").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(uuid, "uuid4", lambda: FIXED)

    with pytest.raises(OutputError, match="EEXIST"):
        Output(tmp_path, "label")

    assert not (tmp_path / "elsewhere").exists()


@posix
def test_a_link_at_the_final_name_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_bytes(b"precious")
    link.symlink_to(victim)

    atomic.replace(link, b"new")

    assert victim.read_bytes() == b"precious"
    assert link.read_bytes() == b"new"
    assert not link.is_symlink()


def test_a_missing_folder_is_an_output_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        atomic.replace(tmp_path / "missing" / "file", b"")

    assert str(tmp_path / "missing") in str(caught.value)
    assert "ENOENT" in str(caught.value)


def test_a_final_name_that_cannot_be_taken_leaves_no_litter(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()

    with pytest.raises(OutputError) as caught:
        atomic.replace(tmp_path / "taken", b"new")

    assert str(tmp_path / "taken") in str(caught.value)
    assert litter(tmp_path) == ["taken"]


@posix
def test_a_file_that_grows_too_large_is_an_output_error_that_names_it(tmp_path: Path) -> None:
    code = """
        import resource, sys
        from pathlib import Path
        from fwconvert.store import atomic
        from fwconvert.errors import OutputError
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            atomic.replace(Path(sys.argv[1]), bytes(200_000))
        except OutputError as error:
            print(error)
    """
    (tmp_path / "file").write_bytes(b"old")

    told = child.run(code, tmp_path / "file")

    assert "EFBIG" in told
    assert str(tmp_path / ".file-") in told
    assert (tmp_path / "file").read_bytes() == b"old"
    assert litter(tmp_path) == ["file"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with 64 kB of room."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_an_output_error_and_the_old_file_stays(small_disk: Path) -> None:
    path = small_disk / "file"
    atomic.replace(path, b"old")

    with pytest.raises(OutputError) as caught:
        atomic.replace(path, bytes(200_000))

    assert "no space is left" in str(caught.value)
    assert "ENOSPC" in str(caught.value)
    assert str(small_disk / ".file-") in str(caught.value)
    assert "200,000" in str(caught.value)
    assert path.read_bytes() == b"old"
    assert litter(small_disk) == ["file"]

    atomic.replace(path, b"there is room again")
    assert path.read_bytes() == b"there is room again"


@posix
def test_a_kill_at_any_instant_leaves_a_whole_file(tmp_path: Path) -> None:
    code = """
        import sys
        from itertools import cycle
        from pathlib import Path
        from fwconvert.store import atomic
        for letter in cycle(range(65, 91)):
            atomic.replace(Path(sys.argv[1]), bytes([letter]) * 300_000)
    """
    path = tmp_path / "file"
    for delay in (0.01, 0.05, 0.08):
        path.unlink(missing_ok=True)
        with child.start(code, path) as writer:
            deadline = time.monotonic() + 30
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            end = time.monotonic() + delay
            seen: set[bytes] = set()
            # What a reader sees meanwhile is whole as well. Of one content nobody could tell.
            while time.monotonic() < end or (len(seen) < 2 and time.monotonic() < deadline):
                seen.add(path.read_bytes())
            writer.kill()
        assert len(seen) > 1
        seen.add(path.read_bytes())
        assert all(len(content) == 300_000 and len(set(content)) == 1 for content in seen)


def test_make_folder_makes_the_missing_parents_and_accepts_what_is_there(tmp_path: Path) -> None:
    atomic.make_folder(tmp_path / "a" / "b" / "c")
    atomic.make_folder(tmp_path / "a" / "b" / "c")

    assert (tmp_path / "a" / "b" / "c").is_dir()


@posix
def test_make_folder_brings_every_new_name_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(atomic, "sync_folder", synced.append)

    atomic.make_folder(tmp_path / "a" / "b")

    assert set(synced) == {tmp_path, tmp_path / "a"}


@pytest.mark.parametrize(
    "name", ["file", "file/below", "x" * 300], ids=["a file", "below a file", "too long"]
)
def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(OutputError) as caught:
        atomic.make_folder(tmp_path / name)

    assert str(tmp_path / name) in str(caught.value)


def test_sweep_removes_files_by_their_beginning_and_nothing_else(tmp_path: Path) -> None:
    for name in ("job-1", "job-2", "jobless", "other-job-1"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "job-folder").mkdir()
    (tmp_path / "job-folder" / "job-3").write_bytes(b"")

    assert atomic.sweep(tmp_path, "job-") == 2

    assert litter(tmp_path) == ["job-folder", "jobless", "other-job-1"]
    assert litter(tmp_path / "job-folder") == ["job-3"]
    assert atomic.sweep(tmp_path) == 2
    assert litter(tmp_path) == ["job-folder"]


@posix
def test_sweep_removes_links_and_not_what_they_point_at(tmp_path: Path) -> None:
    folder, victim = tmp_path / "folder", tmp_path / "victim"
    folder.mkdir()
    victim.write_bytes(b"precious")
    (folder / "link").symlink_to(victim)
    (folder / "dangling").symlink_to(tmp_path / "nowhere")

    assert atomic.sweep(folder) == 2
    assert victim.read_bytes() == b"precious"
    assert litter(folder) == []


def test_sweep_of_a_missing_folder_does_nothing(tmp_path: Path) -> None:
    assert atomic.sweep(tmp_path / "missing") == 0


def test_sweep_takes_away_what_a_killed_writer_left(tmp_path: Path) -> None:
    code = """
        import os, sys
        from pathlib import Path
        from fwconvert.store.atomic import Output
        output = Output(Path(sys.argv[1]), "job")
        output.write(b"half")
        os._exit(0)
    """
    child.run(code, tmp_path)
    assert len(litter(tmp_path)) == 1

    assert atomic.sweep(tmp_path, "job-") == 1


def test_remove_accepts_a_missing_file_and_refuses_a_folder(tmp_path: Path) -> None:
    atomic.remove(tmp_path / "missing")

    with pytest.raises(OutputError) as caught:
        atomic.remove(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_is_moved_takes_the_place_of_another(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"content")
    new.write_bytes(b"another")

    atomic.move(old, new)

    assert (old.exists(), new.read_bytes()) == (False, b"content")


def test_a_file_that_cannot_be_moved_is_an_output_error_that_names_its_new_place(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        atomic.move(tmp_path / "missing", tmp_path / "new")
    assert str(tmp_path / "new") in str(caught.value)


def test_only_an_empty_folder_is_removed(tmp_path: Path) -> None:
    empty, full, file = tmp_path / "empty", tmp_path / "full", tmp_path / "full" / "file"
    empty.mkdir()
    full.mkdir()
    file.write_bytes(b"")

    for path in (empty, full, file, tmp_path / "missing"):
        atomic.remove_if_empty(path)

    assert (empty.exists(), file.exists()) == (False, True)
