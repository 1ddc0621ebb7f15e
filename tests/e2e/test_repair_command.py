"""`fwconvert repair`: what verify complains of is made again, from where the sources were or are now."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import corpus
import forked
import hub_runs
import pytest
import runner
from hub_server import HubServer
from runner import PRIVATE

RECIPE = ("--tokenizer", "bytes", "--shard-tokens", "300", "--workers", "1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sources, in `data`, and their run, in `whole`."""
    home = tmp_path_factory.mktemp("home")
    for number in range(4):
        corpus.write(home / f"data/{number}.parquet", corpus.documents(100 * number, 25))
    ended = runner.command_line("--source", home / "data", "--out", home / "whole", *RECIPE)
    runner.assert_tidy_end(ended, 0)
    return home


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished / "whole", tmp_path / "out"))


def shards(out: Path) -> list[Path]:
    return sorted(out.glob("*.bin"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def change_unseen(path: Path) -> None:
    """Change a byte and keep the size and the time, as a failing disk does."""
    state, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a shard is missing": lambda out: shards(out)[1].unlink(),
    "a shard is cut": lambda out: cut(shards(out)[2]),
    "a byte is another": lambda out: change_unseen(shards(out)[3]),
    "the last shard, which is joined": lambda out: cut(shards(out)[-1]),
    "an index": lambda out: change_unseen(min(out.glob("index/*"))),
    "the manifest": lambda out: (out / "manifest.json").write_text("{"),
    "the plan": lambda out: (out / PRIVATE / "plan.json").write_text("{"),
    "a receipt": lambda out: next((out / PRIVATE / "receipts").iterdir()).unlink(),
    "everything": lambda out: remove(shards(out)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_made_again(damage: str, finished: Path, out: Path) -> None:
    DAMAGE[damage](out)
    found = runner.command_line("verify", out)
    if damage not in {"the plan", "a receipt"}:  # Private records are not what verify is about.
        assert found.returncode == 1
    if "-> to repair it" in found.stdout:
        assert f"-m fwconvert repair {out}" in found.stdout

    for said in ("repaired: the run is whole", "nothing is damaged: the run is whole"):
        ended = runner.command_line("repair", out)
        runner.assert_tidy_end(ended, 0)
        if damage not in {"the manifest", "the plan"}:
            assert said in ended.stdout

    assert runner.tree(out) == runner.tree(finished / "whole")
    runner.assert_tidy_end(runner.command_line("verify", out), 0)


def test_sources_that_have_moved_are_asked_for_and_nothing_is_changed_meanwhile(
    finished: Path, out: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(finished / "data", tmp_path / "moved"))
    place = out / PRIVATE / "places.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "root": str(tmp_path / "gone")}))
    cut(shards(out)[1])
    before = runner.tree(out)

    refused = runner.command_line("repair", out)
    runner.assert_tidy_end(refused, 2)
    assert "pass --source DIR" in refused.stderr
    assert str(tmp_path / "gone") in refused.stderr
    assert runner.tree(out) == before
    assert len([*(out / PRIVATE / "receipts").iterdir()]) == 4

    runner.assert_tidy_end(runner.command_line("repair", out, "--source", moved), 0)
    assert runner.tree(out) == runner.tree(finished / "whole")


def test_a_source_that_has_changed_is_not_taken(finished: Path, out: Path, tmp_path: Path) -> None:
    others = Path(shutil.copytree(finished / "data", tmp_path / "others"))
    corpus.write(others / "0.parquet", ["something else"])
    for shard in shards(out):
        if "_00000_" in shard.name:
            shard.unlink()

    ended = runner.command_line("repair", out, "--source", others)

    assert ended.returncode in {1, 2}
    assert runner.command_line("repair", out, "--source", finished / "data").returncode == 0
    assert runner.tree(out) == runner.tree(finished / "whole")


@pytest.mark.skipif(os.name == "nt", reason="processes are found by their POSIX session")
def test_a_repair_that_is_killed_and_repeated_ends_in_the_same_bytes(finished: Path, out: Path) -> None:
    for shard in shards(out):
        cut(shard)
    steps = runner.steps(out)
    words = [*runner.command(finished / "data", out)[:3], "repair", str(out), "--workers", "1"]
    for left in (steps - 1, 1, 2):
        process = forked.start(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(runner.REPOSITORY)},
        )
        try:
            runner.wait_until(partial(_has_at_most, out, left), process)
        finally:
            runner.kill_all(process.pid)
            process.communicate(timeout=runner.PATIENCE)
        assert process.returncode in {-signal.SIGKILL, 0}

    runner.assert_tidy_end(runner.command_line("repair", out), 0)

    assert runner.tree(out) == runner.tree(finished / "whole")
    runner.assert_tidy_end(runner.command_line("verify", out), 0)


def _has_at_most(out: Path, steps: int) -> bool:
    return runner.steps(out) <= steps


def test_a_run_that_is_not_finished_is_finished(finished: Path, tmp_path: Path) -> None:
    some, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(finished / "data", some)
    shutil.move(some / "2.parquet", tmp_path / "kept.parquet")
    (some / "2.parquet").write_bytes(b"not yet")
    assert runner.command_line("--source", some, "--out", out, *RECIPE).returncode == 1
    shutil.move(tmp_path / "kept.parquet", some / "2.parquet")

    runner.assert_tidy_end(runner.command_line("repair", out), 0)

    assert runner.shards(out) == runner.shards(finished / "whole")


def test_the_demo_needs_no_sources(tmp_path: Path) -> None:
    words = ("--version", "demo", "--out", tmp_path / "out", "--tokenizer", "bytes")
    first = {"FWCONVERT_CACHE": str(tmp_path / "first")}
    runner.assert_tidy_end(runner.command_line(*words, env=first), 0)
    before = runner.tree(tmp_path / "out")
    shutil.rmtree(tmp_path / "first")
    cut(shards(tmp_path / "out")[0])

    second = {"FWCONVERT_CACHE": str(tmp_path / "second")}
    runner.assert_tidy_end(runner.command_line("repair", tmp_path / "out", env=second), 0)

    assert runner.tree(tmp_path / "out") == before


def test_what_came_from_the_hub_is_fetched_again(tmp_path: Path) -> None:
    mini = hub_runs.miniature(tmp_path / "mini")
    out = tmp_path / "out"
    with HubServer(mini.repository) as hub:
        runner.assert_tidy_end(hub_runs.run(hub_runs.conversion(mini.pinned, out), hub.endpoint), 0)
        before = runner.tree(out)
        cut(shards(out)[0])
        fetched = len(hub.log)
        runner.assert_tidy_end(hub_runs.run(["repair", str(out)], hub.endpoint), 0)
        again = {seen.path.rpartition("/")[2] for seen in hub.log[fetched:] if seen.path.endswith(".parquet")}
    assert runner.tree(out) == before
    assert len(again) == 1, "only the source of what was damaged"
