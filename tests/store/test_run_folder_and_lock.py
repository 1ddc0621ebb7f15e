"""Where everything in a run's folder lies, and that only one session at a time works there."""

import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import child
import pytest

from fwconvert.errors import OutputError, UsageError
from fwconvert.store import layout
from fwconvert.store.local import LocalStore

HOLD = """
    import sys
    from pathlib import Path
    from fwconvert.store.local import LocalStore
    with LocalStore(Path(sys.argv[1]), "theirs").lock():
        print("locked", flush=True)
        sys.stdin.readline()
    print("freed", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path: Path) -> LocalStore:
    folder = LocalStore(tmp_path / "out")
    folder.prepare()
    return folder


@pytest.fixture
def other(folder: LocalStore) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lock until it is sent a line."""
    with child.start(HOLD, folder.root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_make_makes_every_folder_and_can_be_repeated(folder: LocalStore) -> None:
    folder.prepare()

    wanted = {"receipts", "joins", "quarantine", "tails", "temporary", "sessions", "logs"}
    assert {path.name for path in folder.local(layout.PRIVATE).iterdir()} == wanted
    assert {path.name for path in folder.root.iterdir()} == {".fwconvert", "index"}


def test_nothing_in_the_output_folder_but_shards_looks_like_a_shard_to_a_loader(folder: LocalStore) -> None:
    # build-nanogpt loads every name in the folder that contains "train" or "val".
    places = [folder.local(layout.PRIVATE), folder.local(layout.INDEX), folder.local(layout.MANIFEST)]

    assert all("train" not in place.name and "val" not in place.name for place in places)
    assert all(place.parent == folder.root for place in places)


def test_every_record_of_a_run_has_a_name_of_its_own(folder: LocalStore) -> None:
    shard = "edu_fineweb_train_00000_000.bin"
    names = [
        layout.shard(shard), layout.index(shard), layout.join_receipt(shard), layout.receipt("key"),
        layout.quarantined("key"), layout.tail("key"), layout.tail_index("key"), layout.session("key"),
        layout.session_lock("key"), layout.PLAN, layout.PLACES, layout.MANIFEST, layout.LOCK,
    ]  # fmt: skip

    assert len(set(names)) == len(names)
    assert all(folder.local(name).parent.is_dir() for name in names)
    assert folder.local(layout.shard(shard)) == folder.root / shard
    assert folder.local(layout.index(shard)) == folder.root / "index" / "edu_fineweb_train_00000_000.docs"
    assert folder.local(layout.MANIFEST) == folder.root / "manifest.json"


def test_nobody_holds_a_folder_that_is_new_or_missing(tmp_path: Path, folder: LocalStore) -> None:
    assert folder.holder() == ""
    assert LocalStore(tmp_path / "missing").holder() == ""
    assert not (folder.local(layout.PRIVATE) / "lock").exists()


def test_a_second_session_is_refused_with_the_pid_and_the_host_of_the_first(
    folder: LocalStore, other: "subprocess.Popen[str]"
) -> None:
    with pytest.raises(UsageError) as caught:
        LocalStore(folder.root, "ours").lock()

    assert f"pid {other.pid} on host {socket.gethostname()}, session theirs" in str(caught.value)
    assert str(folder.root) in str(caught.value)
    # The refused one has not put its own name there.
    assert folder.holder() == f"pid {other.pid} on host {socket.gethostname()}, session theirs"


def test_a_lock_is_free_after_its_holder_has_left(folder: LocalStore, other: "subprocess.Popen[str]") -> None:
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdin.write("\n")
    other.stdin.flush()
    assert other.stdout.readline() == "freed\n"

    assert folder.holder() == ""  # Though the process lives.
    with LocalStore(folder.root, "ours").lock():
        pass


def test_a_folder_is_deserted_when_its_last_holder_has_left_and_it_was_of_this_machine(
    folder: LocalStore,
) -> None:
    lock = folder.local(layout.PRIVATE) / "lock"
    assert not folder.is_deserted()  # Somebody may be about to begin.
    assert not lock.exists()
    with LocalStore(folder.root, "ours").lock():
        assert not folder.is_deserted()
    assert folder.is_deserted()
    with LocalStore(folder.root, "again").lock():  # Looking takes nothing away.
        assert not folder.is_deserted()

    for text in (
        "",
        "pid 7 on host elsewhere, session s\n",
        f"pid 7 on host {socket.gethostname()}.x, session s\n",
    ):
        lock.write_text(text)
        assert not folder.is_deserted()


@pytest.mark.skipif(os.name == "nt", reason="needs flock")
def test_where_there_are_no_locks_nobody_knows_whether_a_folder_is_deserted(
    folder: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl  # noqa: PLC0415

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    with LocalStore(folder.root, "ours").lock():
        pass
    monkeypatch.setattr(fcntl, "flock", refuse)

    assert not folder.is_deserted()


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_lock_is_free_after_its_holder_was_killed(
    folder: LocalStore, other: "subprocess.Popen[str]"
) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait(10)

    assert folder.holder() == ""
    with LocalStore(folder.root, "ours").lock():
        assert folder.holder() == f"pid {os.getpid()} on host {socket.gethostname()}, session ours"


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_child_that_outlives_a_killed_holder_does_not_keep_the_lock(folder: LocalStore) -> None:
    code = """
        import subprocess, sys
        from pathlib import Path
        from fwconvert.store.local import LocalStore
        with LocalStore(Path(sys.argv[1]), "theirs").lock():
            sleeper = subprocess.Popen(
                [sys.executable, "-c", "import sys; sys.stdin.read()"], stdout=subprocess.DEVNULL
            )
            print(sleeper.pid, flush=True)
            sleeper.wait()
    """
    with child.start(code, folder.root) as process:
        assert process.stdout is not None
        sleeper = int(process.stdout.readline())
        assert folder.holder()
        process.kill()
        process.wait(10)
        os.kill(sleeper, 0)  # It is alive: our end of its input is still open.

        assert folder.holder() == ""
        with LocalStore(folder.root, "ours").lock():
            pass


def test_a_lock_is_free_after_an_exception(folder: LocalStore) -> None:
    with pytest.raises(ValueError, match="failed"), LocalStore(folder.root, "ours").lock():
        raise ValueError("failed")

    assert folder.holder() == ""


def test_a_lock_holds_within_one_process_as_well(folder: LocalStore) -> None:
    with LocalStore(folder.root, "first").lock(), pytest.raises(UsageError, match="session first"):
        LocalStore(folder.root, "second").lock()


def test_the_next_holder_replaces_the_whole_text(folder: LocalStore) -> None:
    with LocalStore(folder.root, "a session with quite a long name").lock():
        pass
    with LocalStore(folder.root, "short").lock():
        assert folder.holder().endswith("session short")


def test_a_lock_file_full_of_rubbish_is_no_obstacle(folder: LocalStore) -> None:
    (folder.local(layout.PRIVATE) / "lock").write_bytes(b"\xff\x00" * 5000)

    assert folder.holder() == ""
    with LocalStore(folder.root, "ours").lock():
        assert folder.holder().endswith("session ours")


def test_looking_at_the_holder_does_not_make_a_session_fail(folder: LocalStore) -> None:
    look = """
        import sys, time
        from pathlib import Path
        from fwconvert.store.local import LocalStore
        folder = LocalStore(Path(sys.argv[1]))
        print("looking", flush=True)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            folder.holder()
            time.sleep(0.002)
    """
    (folder.local(layout.PRIVATE) / "lock").write_bytes(b"")
    with child.start(look, folder.root) as process:
        assert process.stdout is not None
        process.stdout.readline()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            with LocalStore(folder.root, "ours").lock():
                pass


def test_a_lock_makes_its_folder_and_where_that_cannot_be_it_is_an_output_error(tmp_path: Path) -> None:
    with LocalStore(tmp_path / "new", "ours").lock():
        assert (tmp_path / "new" / ".fwconvert" / "lock").is_file()

    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"\.fwconvert"):
        LocalStore(tmp_path / "file", "ours").lock()
