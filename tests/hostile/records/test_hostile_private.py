"""Private files of a run that are something else, or have no end."""

import contextlib
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import child
import pytest
from runner import PRIVATE
from spoiled_runs import Runs, assert_clean, assert_survived, command, copy_of, linux_only, posix, resumed

from fwconvert import records
from fwconvert.errors import FwconvertError
from fwconvert.shards import shard
from fwconvert.store.receipts import Quarantined
from fwconvert.store.saved_recipe import SavedPlan


def garbage(path: Path, _: Path) -> None:
    path.write_bytes(random.Random(7).randbytes(3000))


def nothing(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path, _: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def deep_json(path: Path, _: Path) -> None:
    path.write_bytes(b'{"format":' + b'{"a":[' * 300_000)


def huge_json(path: Path, _: Path) -> None:
    """A hole: it takes no disk, and must not be read into memory."""
    with path.open("r+b") as file:
        file.truncate(records.MOST_BYTES + 1)


def folder_of_files(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_bytes(b"precious")


def link_to_a_file(path: Path, elsewhere: Path) -> None:
    path.unlink()
    path.symlink_to(elsewhere / "precious")


def link_to_its_copy(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere / "copy")
    path.symlink_to(elsewhere / "copy")


def link_to_nothing(path: Path, elsewhere: Path) -> None:
    path.unlink()
    path.symlink_to(elsewhere / "nothing")


def link_to_itself(path: Path, _: Path) -> None:
    path.unlink()
    path.symlink_to(path)


SPOILS = (
    garbage, nothing, zeros, deep_json, huge_json, folder_of_files,
    link_to_a_file, link_to_its_copy, link_to_nothing, link_to_itself,
)  # fmt: skip
# Where a record lies, and whether the run is finished that has it.
PLACES = {
    "a receipt": (f"{PRIVATE}/receipts/00*.json", True),
    "the receipt of a joined shard": (f"{PRIVATE}/joins/*.json", True),
    "a session": (f"{PRIVATE}/sessions/*.json", True),
    "the lock": (f"{PRIVATE}/lock", False),
    "the plan": (f"{PRIVATE}/plan.json", True),
    "the run manifest": ("manifest.json", True),
    "a quarantine record": (f"{PRIVATE}/quarantine/*.json", False),
    "a tail": (f"{PRIVATE}/tails/00*.tail", False),
    "the index of a tail": (f"{PRIVATE}/tails/00*.docs", False),
}


@posix
@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_a_private_file_that_is_something_else_never_ends_a_command_badly(
    runs: Runs, tmp_path: Path, elsewhere: Path, place: str, spoil: Callable[[Path, Path], None]
) -> None:
    pattern, finished = PLACES[place]
    run = copy_of(runs.finished if finished else runs.halted, tmp_path / "out")
    path = next(run.out.glob(pattern))
    spoil(path, elsewhere)

    ended = assert_survived(run, elsewhere)

    if spoil is folder_of_files:
        # Nobody removes a folder that is not ours: it is named, and the user decides.
        assert ended.code in {1, 2}
        assert (path / "file").read_bytes() == b"precious"
        assert str(path) in ended.said or place == "the plan"
    elif place == "the plan":
        assert ended.code == 0, ended.said
        assert records.format_of(SavedPlan) in path.read_text(), "it is made again"
    elif place == "the lock" and path.is_symlink():
        assert ended.code == 1, "whoever writes into it writes elsewhere"
        assert str(path) in ended.said
    else:
        assert ended.code == 0, ended.said


@posix
@pytest.mark.parametrize("spoil", [garbage, deep_json, link_to_a_file], ids=lambda spoil: spoil.__name__)
def test_all_private_files_but_the_plan_may_be_something_else_at_once(
    runs: Runs, tmp_path: Path, elsewhere: Path, spoil: Callable[[Path, Path], None]
) -> None:
    run = copy_of(runs.halted, tmp_path / "out")
    for path in [path for path in (run.out / PRIVATE).rglob("*") if path.is_file()]:
        if path.name not in {"plan.json", "lock"}:
            spoil(path, elsewhere)

    assert assert_survived(run, elsewhere).code == 0


@posix
@pytest.mark.parametrize(
    "name", ["receipts", "joins", "sessions", "quarantine", "tails", "temporary", "logs"]
)
def test_what_lies_in_a_folder_elsewhere_is_not_removed_though_a_link_leads_there(
    runs: Runs, tmp_path: Path, elsewhere: Path, name: str
) -> None:
    run = copy_of(runs.halted, tmp_path / "out")
    shutil.rmtree(run.out / PRIVATE / name)
    (run.out / PRIVATE / name).symlink_to(elsewhere)

    for ended in (command("status", run.out), command("verify", run.out), resumed(run)):
        assert_clean(ended)

    assert (elsewhere / "precious").exists(), "a file elsewhere was removed"
    assert (elsewhere / "precious").read_bytes() == b"precious"


@posix
@pytest.mark.parametrize(
    "name", ["receipts", "joins", "sessions", "quarantine", "tails", "temporary", "logs"]
)
def test_a_file_in_the_place_of_a_private_folder_is_named(runs: Runs, tmp_path: Path, name: str) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    shutil.rmtree(run.out / PRIVATE / name)
    (run.out / PRIVATE / name).write_bytes(b"a file")
    (run.out / "manifest.json").unlink()  # so that there is something to do

    ended = assert_survived(run, runs.finished.sources)

    assert ended.code == 1
    assert str(run.out / PRIVATE / name) in ended.said


@linux_only
@pytest.mark.parametrize("name", ["receipts", "joins", "sessions", "quarantine", "temporary", "tails"])
def test_a_file_whose_name_is_no_text_never_ends_a_command_badly(
    runs: Runs, tmp_path: Path, elsewhere: Path, name: str
) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    (run.out / PRIVATE / name / os.fsdecode(b"\xff\x1b[2J.json")).write_bytes(b"garbage")

    assert_clean(command("status", "--json", run.out))
    assert_clean(command("verify", "--json", run.out))
    assert assert_survived(run, elsewhere).code == 0


# --- files that have no end


def in_time(read: Callable[[], object], pipe: Path) -> object:
    """Return what `read` returns or raises; fail if it waits for somebody to write into the pipe."""
    outcome: list[object] = []

    def target() -> None:
        try:
            outcome.append(read())
        except Exception as error:  # noqa: BLE001  # told by its type
            outcome.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(3)
    waited = thread.is_alive()
    with contextlib.suppress(OSError):  # ENXIO: nobody waits.
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    thread.join(10)
    assert not waited, "the reader waits for a writer that never comes"
    return outcome[0]


PIPE_READERS: dict[str, Callable[[Path], object]] = {
    "a record": lambda path: records.read(path, Quarantined),
    "a token shard": lambda path: shard.read_tokens(path, "uint16"),
    "a document index": shard.read_index,
}


@posix
@pytest.mark.parametrize("read", PIPE_READERS.values(), ids=PIPE_READERS.keys())
def test_a_pipe_is_refused_and_not_waited_for(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    assert isinstance(in_time(lambda: read(path), path), FwconvertError)


@linux_only
def test_a_device_without_an_end_is_refused_and_not_read_into_memory(tmp_path: Path) -> None:
    code = """
        import resource, sys
        from pathlib import Path
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        from fwconvert import records
        from fwconvert.errors import ManifestError
        from fwconvert.store.receipts import Quarantined
        try:
            records.read(Path(sys.argv[1]), Quarantined)
        except ManifestError:
            print("refused")
    """
    (tmp_path / "record.json").symlink_to("/dev/zero")

    assert child.run(code, tmp_path / "record.json") == "refused\n"
