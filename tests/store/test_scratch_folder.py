"""A scratch folder: many sessions share it, none harms another, and what a dead one left is taken over."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import runner

from fwconvert.errors import OutputError
from fwconvert.store.scratch import Scratch

RUN, OTHER = "/runs/one", "/runs/other"


def put(folder: Path, name: str = "a.part") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"12345")
    return folder / name


def test_sessions_of_a_run_have_folders_of_their_own(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "new" / "scratch", RUN)

    with scratch.held("s1") as one, scratch.held("s2") as two:
        assert one != two
        assert one.is_dir()
        assert two.is_dir()
        assert scratch.left() == []

    assert [*scratch.root.iterdir()] == []


def test_what_a_session_leaves_is_there_for_the_next_of_the_same_run_alone(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path, RUN)
    with scratch.held("s1") as folder:
        put(folder)
        assert scratch.left_bytes() == 0

    assert scratch.left() == [folder]
    assert scratch.left_bytes() == 5
    assert Scratch(tmp_path, OTHER).left() == []
    with Scratch(tmp_path, OTHER).held("s2"):
        assert scratch.left() == [folder]


def test_a_killed_session_is_over_and_a_live_one_in_another_process_is_not(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from fwconvert.store.scratch import Scratch\n"
        f"with Scratch(Path({str(tmp_path)!r}), {RUN!r}).held('s1') as own:\n"
        "    (own / 'a.part').write_bytes(b'12345'); print(own, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(runner.REPOSITORY)}
    scratch = Scratch(tmp_path, RUN)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().decode().strip())
        with scratch.held("s2"):
            assert scratch.left() == []
        process.kill()
        process.wait()

    assert scratch.left() == [folder]
    (folder / "a.part").unlink()
    scratch.is_done_with(folder)
    assert [*tmp_path.iterdir()] == []


def test_what_nobody_came_back_for_is_removed_after_a_day_and_nothing_else(tmp_path: Path) -> None:
    long_ago = time.time() - 25 * 60 * 60
    other = Scratch(tmp_path, OTHER)
    old, fresh = put(other.of("old")), put(other.of("fresh"))
    mine = put(tmp_path / "something of the user's")
    for path in (old, old.parent, fresh.parent, mine, mine.parent):
        os.utime(path, (long_ago, long_ago))

    with other.held("old, but at work") as busy:
        at_work = put(busy)
        os.utime(at_work, (long_ago, long_ago))
        os.utime(busy, (long_ago, long_ago))
        with Scratch(tmp_path, RUN).held("s1"):
            pass
        assert at_work.exists()

    assert not old.parent.exists()
    assert fresh.exists()
    assert mine.exists()


def test_a_lock_whose_session_never_had_a_folder_goes(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path, RUN)
    stray = scratch.of("s1").with_name(scratch.of("s1").name + ".lock")
    stray.touch()

    with scratch.held("s2"):
        pass

    assert not stray.exists()


def test_nothing_is_put_where_a_planted_link_leads(tmp_path: Path) -> None:
    scratch, elsewhere = Scratch(tmp_path / "scratch", RUN), tmp_path / "elsewhere"
    put(elsewhere)
    scratch.root.mkdir()
    scratch.of("s1").symlink_to(elsewhere)

    assert scratch.left() == []
    with pytest.raises(OutputError, match="made by somebody else"), scratch.held("s1"):
        pass

    assert [path.name for path in elsewhere.iterdir()] == ["a.part"]
