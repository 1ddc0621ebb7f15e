"""A session without an end was cut off; so was one whose record cannot be read."""

import os
import re
import socket
from pathlib import Path

import pytest

from fwconvert.store import layout, sessions
from fwconvert.store.local import LocalStore


@pytest.fixture
def folder(tmp_path: Path) -> LocalStore:
    folder = LocalStore(tmp_path)
    folder.prepare()
    return folder


def test_a_new_session_says_who_runs_it_and_has_no_end() -> None:
    new = sessions.new(3)

    assert (new.host, new.pid, new.workers) == (socket.gethostname(), os.getpid(), 3)
    assert (new.ended, new.outcome) == ("", "")
    assert {"python", "numpy", "pyarrow", "tiktoken"} <= set(new.versions)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", new.started)


def test_two_sessions_in_one_second_differ_and_their_ids_are_file_names() -> None:
    ids = {sessions.new(1).id for _ in range(20)}

    assert len(ids) == 20
    assert all(re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{6}", each) for each in ids)


def test_sessions_are_read_in_order_as_they_were_written(folder: LocalStore) -> None:
    past = [
        sessions.Session(f"2025010{day}T000000Z-000000", f"day {day}", "h", 1, 1, 1, "fast", {})
        for day in (3, 1, 2)
    ]
    for each in past:
        sessions.write(folder, each)

    assert [each.started for each in sessions.all_of(folder)] == ["day 1", "day 2", "day 3"]


def test_an_end_replaces_the_record(folder: LocalStore) -> None:
    new = sessions.new(1)
    sessions.write(folder, new)
    sessions.write(folder, sessions.ended(new, "complete"))

    (found,) = sessions.all_of(folder)
    assert (found.id, found.outcome) == (new.id, "complete")
    assert found.ended >= found.started


@pytest.mark.parametrize("spoil", [b"", b"\0" * 300, b"{}", b'{"format":"fwconvert session 2"}'])
def test_a_session_whose_record_is_damaged_counts_as_cut_off(folder: LocalStore, spoil: bytes) -> None:
    new = sessions.new(1)
    sessions.write(folder, sessions.ended(new, "complete"))
    (folder.local(layout.SESSIONS) / f"{new.id}.json").write_bytes(spoil)

    (found,) = sessions.all_of(folder)
    assert found.id == new.id
    assert found.ended == ""


def test_a_folder_without_sessions_has_none(tmp_path: Path) -> None:
    assert sessions.all_of(LocalStore(tmp_path / "missing")) == []
