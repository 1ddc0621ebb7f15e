"""The store in a folder: what a name means, what is left by whom, and whose drafts are swept."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import child
import pytest

from fwconvert import files
from fwconvert.errors import OutputError
from fwconvert.store import base, layout
from fwconvert.store.local import LocalStore

# A session that has begun two drafts and a record, and then does nothing until it is told to end.
WORK = """
    import sys
    from pathlib import Path
    from fwconvert.store.local import LocalStore
    store = LocalStore(Path(sys.argv[1]), sys.argv[2])
    store.prepare()
    with store.lock(), store.draft("one.parquet-0123") as one, store.draft("two") as two:
        one.write(b"half of it")
        print("begun", flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "out", "ours")
    store.prepare()
    return store


@pytest.fixture
def other(store: LocalStore) -> Iterator["subprocess.Popen[str]"]:
    """Another session with drafts, which holds its locks until it is killed or sent a line."""
    with child.start(WORK, store.root, "theirs") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
        process.kill()


def drafts(store: LocalStore) -> set[str]:
    return {name.rpartition("-")[0] for name in store.list(layout.TEMPORARY)}


THEIRS = {"theirs.one.parquet-0123", "theirs.two"}


def plant(store: LocalStore, *names: str) -> None:
    for name in names:
        store.local(f"{layout.TEMPORARY}/{name}").write_bytes(b"litter")


def test_a_session_leaves_the_drafts_of_one_that_lives(
    store: LocalStore, other: "subprocess.Popen[str]"
) -> None:
    with store.draft("mine"):
        plant(store, "dead.one-0", "dead.two.parquet-1")  # of a session that has left no lock
        assert store.sweep_abandoned() == 2
        assert drafts(store) == {"ours.mine"} | THEIRS

        assert store.sweep() == 1
        assert drafts(store) == THEIRS
    assert other.poll() is None


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_session_sweeps_the_drafts_of_one_that_was_killed_and_forgets_it(
    store: LocalStore, other: "subprocess.Popen[str]"
) -> None:
    lock = store.local(layout.session_lock("theirs"))
    assert lock.exists()
    other.send_signal(signal.SIGKILL)
    other.wait(10)

    with store.lock(), store.draft("mine"):
        assert store.sweep_abandoned() == 2
        assert drafts(store) == {"ours.mine"}
    assert not lock.exists()
    assert [*store.list(layout.SESSIONS)] == []
    assert [*store.list(layout.TEMPORARY)] == []


def test_a_session_that_ends_leaves_neither_drafts_nor_a_lock(
    store: LocalStore, other: "subprocess.Popen[str]"
) -> None:
    assert other.stdin is not None
    other.stdin.write("\n")
    other.stdin.flush()
    other.wait(30)

    assert [*store.list(layout.TEMPORARY)] == []
    assert [*store.list(layout.SESSIONS)] == []


def test_drafts_of_an_earlier_version_are_swept(store: LocalStore) -> None:
    # Their names have no session: the key of an order, or the stem of a record, and a number.
    plant(store, "000_00000.parquet-0123456789ab-77", "manifest-5", "ranks-6.tiktoken", ".hidden", "x")

    with store.lock():
        assert store.sweep_abandoned() == 5
    assert [*store.list(layout.TEMPORARY)] == []


def test_drafts_of_another_machine_stay_for_a_day(store: LocalStore) -> None:
    lock = store.local(layout.session_lock("far"))
    lock.write_text("pid 7 on host elsewhere, session far\n")
    plant(store, "far.one-0", "far.two-1")
    assert store.sweep_abandoned() == 0

    yesterday = time.time() - 25 * 60 * 60
    os.utime(store.local(f"{layout.TEMPORARY}/far.one-0"), (yesterday, yesterday))

    assert store.sweep_abandoned() == 1
    assert [*store.list(layout.TEMPORARY)] == ["far.two-1"]
    assert lock.exists()  # It may still be at work, with other drafts.


@pytest.mark.parametrize("text", ["", f"pid 7 on host {socket.gethostname()}, session far\n"])
def test_a_session_that_died_here_is_over_however_far_it_had_come(store: LocalStore, text: str) -> None:
    lock = store.local(layout.session_lock("far"))
    lock.write_text(text)
    plant(store, "far.one-0")

    assert store.sweep_abandoned() == 1
    assert not lock.exists()


@pytest.mark.skipif(os.name == "nt", reason="needs flock")
@pytest.mark.parametrize("lives", [True, False])
def test_where_there_are_no_locks_a_process_that_is_gone_is_dead(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    import errno  # noqa: PLC0415
    import fcntl  # noqa: PLC0415

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    with subprocess.Popen(["true"]) as gone:
        pass
    pid = os.getpid() if lives else gone.pid
    store.local(layout.session_lock("far")).write_text(
        f"pid {pid} on host {socket.gethostname()}, session far\n"
    )
    plant(store, "far.one-0")
    monkeypatch.setattr(fcntl, "flock", refuse)

    assert store.sweep_abandoned() == (0 if lives else 1)


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
def test_drafts_are_not_swept_through_a_link(store: LocalStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_bytes(b"")
    store.local(layout.TEMPORARY).rmdir()
    store.local(layout.TEMPORARY).symlink_to(elsewhere)

    for sweep in (store.sweep, store.sweep_abandoned, lambda: store.clear(layout.TEMPORARY)):
        with pytest.raises(OutputError, match="link"):
            sweep()
    assert (elsewhere / "precious").exists()


def test_only_the_drafts_of_one_label_are_swept(store: LocalStore) -> None:
    with store.draft("a"), store.draft("a"), store.draft("ab"):
        assert store.sweep("a") == 2
        assert drafts(store) == {"ours.ab"}


def test_a_draft_that_was_swept_cannot_be_published(store: LocalStore) -> None:
    with store.draft("a") as draft:
        draft.write(b"content")
        store.sweep()
        with pytest.raises(OutputError):
            draft.publish("name")
    assert base.count(store, "") == 0


def test_a_draft_has_no_name_until_it_is_published(store: LocalStore) -> None:
    with store.draft("a") as draft:
        draft.write(b"con")
        draft.write(memoryview(b"tent"))
        assert store.state("index/name") is None
        draft.finish()
        assert draft.path.read_bytes() == b"content"
        draft.publish("index/name")
    assert (draft.bytes, store.read("index/name", 7)) == (7, b"content")
    assert draft.sha256 == files.sha256_of(store.local("index/name"))
    assert [*store.list(layout.TEMPORARY)] == []


def test_a_draft_that_is_not_published_leaves_nothing(store: LocalStore) -> None:
    def fail() -> None:
        with store.draft("a") as draft:
            draft.write(b"content")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [*store.list(layout.TEMPORARY)] == []


def test_a_record_is_written_into_a_folder_that_is_not_there_yet(store: LocalStore) -> None:
    name = f"{layout.VOCABULARIES}/table"
    store.write(name, b"one")
    store.write(name, b"two")

    assert store.read(name, 3) == b"two"
    assert [*store.list(layout.TEMPORARY)] == []


def test_a_file_is_read_whole_or_not_at_all(store: LocalStore) -> None:
    store.write("name", b"12345")

    assert store.read("name", 5) == b"12345"
    with pytest.raises(files.TooLarge) as caught:
        store.read("name", 4)
    assert caught.value.size == 5
    with pytest.raises(FileNotFoundError):
        store.read("other", 5)


def test_what_is_known_of_a_file_is_its_size_and_its_time(store: LocalStore) -> None:
    store.write("name", b"12345")
    store.set_changed_at("name", 1_700_000_000_000_000_000)

    assert store.state("name") == (5, 1_700_000_000_000_000_000)
    assert store.size("name") == 5
    assert store.state("other") is None
    assert store.size("name/below") is None
    assert base.exists(store, "name")
    assert not base.exists(store, layout.INDEX)
    with pytest.raises(files.Refused, match="a folder"):
        store.size(layout.INDEX)


def test_only_files_are_listed_and_a_missing_folder_has_none(store: LocalStore, tmp_path: Path) -> None:
    store.write("name", b"")
    store.write("index/other", b"")

    assert {*store.list("")} == {"name"}
    assert {*store.list(layout.INDEX)} == {"other"}
    assert {*store.list("missing")} == {*store.list("name")} == set()
    with pytest.raises(NotADirectoryError):
        [*LocalStore(tmp_path / "out" / "name").list("")]


def test_removing_and_clearing_leave_other_files(store: LocalStore) -> None:
    for name in ("a", "b", "index/c", "index/d"):
        store.write(name, b"")
    store.remove("a", "missing")

    assert store.clear(layout.INDEX) == 2
    store.settle("", layout.INDEX)
    assert {*store.list("")} == {"b"}


@pytest.mark.parametrize("name", ["../name", "/name", "index/../../name", ".."])
def test_no_name_leads_out_of_the_folder(store: LocalStore, name: str) -> None:
    for use in (
        lambda: store.local(name),
        lambda: store.read(name, 1),
        lambda: store.state(name),
        lambda: store.remove(name),
        lambda: store.write(name, b""),
    ):
        with pytest.raises((files.Refused, OutputError)):
            use()
    assert [*store.list(layout.TEMPORARY)] == []


def test_holding_compares_the_whole_content(store: LocalStore) -> None:
    store.write("name", b"12345")

    assert base.holds(store, "name", b"12345")
    assert not any(base.holds(store, "name", other) for other in (b"", b"1234", b"12346", b"123456"))
    assert not base.holds(store, "missing", b"")
    assert not base.holds(store, layout.INDEX, b"")
