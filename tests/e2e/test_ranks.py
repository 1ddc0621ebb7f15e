"""Ranks and their merge, as words of a command line: in the end, the bytes are those of one session."""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import corpus
import hub_runs
import pytest
import runner
from hub_runs import Miniature
from hub_server import HubServer
from runner import PRIVATE, assert_tidy_end, command_line
from source_gates import Gates

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="Windows has no locks that are shared"),
    pytest.mark.xdist_group("ranks"),
]

RECIPE = ("--tokenizer", "bytes", "--shard-tokens", "2000")
SOURCES = 5
# Nobody listens there.
NO_HUB = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for number in range(SOURCES):
        corpus.write(folder / f"{number}.parquet", corpus.documents(1000 * number, 30 + 10 * number))
    return folder


@pytest.fixture(scope="module")
def whole(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("whole") / "out"
    assert_tidy_end(command_line("--source", str(sources), "--out", str(out), *RECIPE), 0)
    return runner.tree(out)


@pytest.fixture
def out(sources: Path, tmp_path: Path) -> Path:
    """The folder of a plan."""
    ended = command_line("plan", "--source", str(sources), "--out", str(tmp_path / "out"), "--save", *RECIPE)
    assert_tidy_end(ended, 0)
    assert "the plan is saved" in ended.stdout
    return tmp_path / "out"


def rank(out: Path, number: int | str, world: int, *words: str, code: int = 0) -> str:
    """Run a rank to its end; return all that it says."""
    ended = command_line("--out", str(out), "--rank", str(number), "--world", str(world), *words)
    assert_tidy_end(ended, code)
    return ended.stdout + ended.stderr


def merge(out: Path, *words: str, code: int = 0) -> str:
    """Run the merge to its end; return what it prints."""
    ended = command_line("merge", str(out), *words)
    assert_tidy_end(ended, code)
    return ended.stdout


def test_ranks_and_a_merge_make_the_bytes_of_one_session_and_nothing_twice(
    out: Path, whole: dict[str, str]
) -> None:
    for number in range(3):
        assert f"rank {number} of 3 is done" in rank(out, number, 3)
        assert not (out / "manifest.json").exists()
    receipts = runner.state(out / PRIVATE / "receipts")
    rank(out, 1, 3)  # It finds everything done.
    assert runner.state(out / PRIVATE / "receipts") == receipts

    assert "all 5 sources are converted" in merge(out)

    assert runner.tree(out) == whole
    assert runner.litter(out) == []
    before = runner.state(out)
    assert "already complete" in merge(out)
    assert "the run is complete" in rank(out, 2, 3)
    assert runner.state(out) == before
    for command in ("status", "verify"):
        assert_tidy_end(command_line(command, str(out)), 0)


def test_the_ordinary_command_finishes_what_ranks_began(
    out: Path, sources: Path, whole: dict[str, str]
) -> None:
    rank(out, 0, 2)

    assert_tidy_end(command_line("--source", str(sources), "--out", str(out), *RECIPE), 0)

    assert runner.tree(out) == whole


def test_ranks_finish_what_the_ordinary_command_began(
    sources: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    out = tmp_path / "out"
    with runner.running(sources, out, "--workers", "1", *RECIPE) as process:
        runner.wait_until(lambda: [*(out / PRIVATE / "receipts").glob("*.json")], process)
        process.send_signal(signal.SIGKILL)
        runner.finish(process)

    for number in range(2):
        rank(out, number, 2)
    merge(out)

    assert runner.tree(out) == whole


def test_a_merge_refuses_while_sources_are_missing_and_prints_the_array(
    out: Path, whole: dict[str, str]
) -> None:
    rank(out, 2, 5)

    said = merge(out, code=1).splitlines()
    assert said[0] == "--array=0-1,3-4"
    assert sorted(said[1:]) == sorted(f"{number}.parquet" for number in range(SOURCES) if number != 2)
    # In a world of two both ranks have something to do; in one of one, the only one.
    assert merge(out, "--world", "2", code=1).splitlines()[0] == "--array=0-1"
    assert merge(out, "--world", "1", code=1).splitlines()[0] == "--array=0"
    assert [*out.glob("*_00005_*")] == []

    for number in (0, 1):
        rank(out, number, 2)  # Another world than before.
    merge(out)
    assert runner.tree(out) == whole


def test_a_source_that_fails_is_named_by_its_rank_and_by_the_merge(
    sources: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    copied, out = tmp_path / "copied", tmp_path / "out"
    shutil.copytree(sources, copied)
    good = (copied / "3.parquet").read_bytes()
    words = ("--source", str(copied), "--out", str(out), *RECIPE)
    assert_tidy_end(command_line("plan", *words, "--save"), 0)
    (copied / "3.parquet").write_bytes(os.urandom(len(good)))

    ended = [command_line("--out", str(out), "--rank", str(number), "--world", "2") for number in range(2)]
    assert sorted(one.returncode for one in ended) == [0, 1]
    assert "3.parquet failed" in "".join(one.stderr for one in ended)
    missing = command_line("merge", str(out))
    assert_tidy_end(missing, 1)
    assert missing.stdout.splitlines()[1:] == ["3.parquet"]
    assert "3.parquet failed" in missing.stderr

    (copied / "3.parquet").write_bytes(good)
    failed = next(number for number, one in enumerate(ended) if one.returncode)
    rank(out, failed, 2)
    merge(out)
    assert runner.tree(out) == whole


def test_a_killed_rank_is_repeated_in_any_world(out: Path, whole: dict[str, str]) -> None:
    words = ["--out", str(out), "--rank", "0", "--world", "1", "--workers", "1"]
    with hub_runs.running(words, NO_HUB) as process:
        runner.wait_until(lambda: [*(out / PRIVATE / "receipts").glob("*.json")], process)
        process.send_signal(signal.SIGKILL)
        runner.finish(process)

    for number in range(3):
        rank(out, number, 3)
    merge(out)

    assert runner.tree(out) == whole
    assert runner.litter(out) == []


def test_a_merge_removes_what_a_rank_left_that_died_on_another_machine(
    out: Path, whole: dict[str, str]
) -> None:
    rank(out, 0, 1)
    dead = "20260101T000000Z-abcdef-r0of1"
    lock = out / PRIVATE / "sessions" / f"{dead}.lock"
    lock.write_text(f"pid 7 on host elsewhere, session {dead}\n")
    (out / PRIVATE / "temporary" / f"{dead}.0.parquet-0123").write_bytes(b"half a shard")
    # A rank cannot know whether it lives; a merge that has everything need not.
    rank(out, 0, 1)
    assert [*(out / PRIVATE / "temporary").iterdir()] != []

    merge(out)

    assert runner.tree(out) == whole
    assert_tidy_end(command_line("verify", str(out)), 0)


def test_the_same_rank_twice_at_once_does_no_harm(out: Path, whole: dict[str, str]) -> None:
    words = ["--out", str(out), "--rank", "0", "--world", "1", "--workers", "1"]
    with (
        hub_runs.running(words, NO_HUB) as one,
        hub_runs.running(words, NO_HUB) as other,
    ):
        for process in (one, other):
            assert_tidy_end(runner.finish(process), 0)

    merge(out)

    assert runner.tree(out) == whole
    assert runner.litter(out) == []


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_ranks_and_other_sessions_refuse_each_other_and_status_names_the_ranks(
    out: Path, sources: Path, whole: dict[str, str], tmp_path: Path
) -> None:
    words = ["--out", str(out), "--rank", "0", "--world", "2", "--workers", "1"]
    ordinary = ["--source", str(sources), "--out", str(out), *RECIPE]
    gates = Gates(tmp_path / "gates")
    # Whichever source a session begins with: it is at work until the gates are opened.
    gates.shut("hold-draft", *(path.name for path in sources.iterdir()))
    with hub_runs.running([*ordinary, "--workers", "1"], NO_HUB, **gates.environment) as process:
        hub_runs.wait_for(gates.held, process)
        refused = rank(out, 0, 2, code=2)
        assert "another session is at work on this folder" in refused
        assert f"pid {process.pid} on host" in refused

    assert runner.steps(out) == 0
    gates.forget()
    with hub_runs.running(words, NO_HUB, **gates.environment) as process:
        hub_runs.wait_for(gates.held, process)
        for others in (ordinary, ["merge", str(out)], ["plan", *ordinary, "--save"]):
            ended = command_line(*others)
            assert_tidy_end(ended, 2)
            assert "ranks are at work on this folder" in ended.stderr
            assert f"1 rank: pid {process.pid} on host" in ended.stderr
        status = json.loads(command_line("status", str(out), "--json").stdout)
        assert status["at_work"].startswith(f"1 rank: pid {process.pid} on host")
        rank(out, 1, 2)  # Another rank is welcome.
        gates.open()
        assert_tidy_end(runner.finish(process), 0)

    merge(out)
    assert runner.tree(out) == whole


def test_what_a_rank_is_told_must_agree_with_the_plan(out: Path, sources: Path) -> None:
    assert "tokenizer in folder" in rank(out, 0, 1, "--tokenizer", "gpt2", code=2)
    assert "shard tokens in command" in rank(out, 0, 1, "--shard-tokens", "3000", code=2)
    assert "sources missing now" in rank(out, 0, 1, "--source", str(sources / "1.parquet"), code=2)
    two = [word for name in ("1", "3") for word in ("--source", str(sources / f"{name}.parquet"))]
    assert "sources missing now" in rank(out, 0, 1, *two, code=2)
    assert "limit tokens in command" in rank(out, 0, 1, "--limit-tokens", "100", code=2)
    assert [*(out / PRIVATE / "receipts").iterdir()] == []

    rank(out, 0, 1, "--source", str(sources), *RECIPE)


def test_a_rank_without_a_plan_or_of_no_world_is_the_callers_mistake(tmp_path: Path, out: Path) -> None:
    assert "there is no plan in this folder" in rank(tmp_path / "nothing", 0, 2, code=2)
    assert not (tmp_path / "nothing").exists()
    assert "there is no such rank" in rank(out, 2, 2, code=2)
    for words, wrong in {
        ("--rank", "0"): "--rank is one of how many?",
        ("--world", "2"): "--world is for ranks",
        ("--rank", "first", "--world", "2"): "--rank is no rank",
        ("--rank", "auto"): "finds no rank in the environment",
    }.items():
        ended = command_line("--out", str(out), *words)
        assert_tidy_end(ended, 2)
        assert wrong in ended.stderr


def test_a_run_with_a_limit_is_not_divided(sources: Path, tmp_path: Path) -> None:
    words = ("--source", str(sources), "--out", str(tmp_path / "out"), *RECIPE, "--limit-tokens", "5000")
    ended = command_line("plan", *words, "--save")
    assert_tidy_end(ended, 2)
    assert "cannot be divided among ranks" in ended.stderr
    assert not (tmp_path / "out").exists()

    assert_tidy_end(command_line(*words), 0)
    assert "cannot be divided among ranks" in rank(tmp_path / "out", 0, 2, code=2)


@pytest.mark.parametrize(
    ("variables", "words", "expected"),
    [
        ({"ID": "1", "COUNT": "2", "MIN": "0", "MAX": "1"}, (), "rank 1 of 2 is done"),
        ({"ID": "3", "COUNT": "2", "MIN": "3", "MAX": "7"}, ("--world", "8"), "rank 3 of 8 is done"),
        ({"ID": "3", "COUNT": "2", "MIN": "3", "MAX": "7"}, (), "does not tell how many ranks there are"),
        ({"ID": "1", "COUNT": "2", "MIN": "1", "MAX": "2"}, (), "does not tell how many ranks there are"),
        ({"ID": "x", "COUNT": "2", "MIN": "0", "MAX": "1"}, (), "SLURM_ARRAY_TASK_ID is not a number"),
    ],
)
def test_auto_is_what_slurm_says(
    variables: dict[str, str], words: tuple[str, ...], expected: str, out: Path
) -> None:
    environment = {f"SLURM_ARRAY_TASK_{name}": value for name, value in variables.items()}

    ended = hub_runs.run(["--out", str(out), "--rank", "auto", *words], NO_HUB, **environment)

    assert expected in ended.stdout + ended.stderr
    assert ended.returncode == (0 if "done" in expected else 2)


def test_auto_is_what_kubernetes_says_with_the_world_that_it_does_not_say(out: Path) -> None:
    words = ["--out", str(out), "--rank", "auto"]
    ended = hub_runs.run(words, NO_HUB, JOB_COMPLETION_INDEX="1")
    assert_tidy_end(ended, 2)
    assert "pass --world, the same number as the job's completions" in ended.stderr

    ended = hub_runs.run([*words, "--world", "4"], NO_HUB, JOB_COMPLETION_INDEX="1")
    assert_tidy_end(ended, 0)
    assert "rank 1 of 4 is done" in ended.stdout


def test_the_job_for_kubernetes_that_is_shipped_runs_its_ranks(
    out: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    job = (runner.REPOSITORY / "scripts/kubernetes.yaml").read_text()
    (command,) = re.findall(r"command: \[fwconvert, (.*)\]", job)
    (completions,) = re.findall(r"completions: (\d+)", job)
    places = {"/out/edu_fineweb100B": str(out), "/scratch": str(tmp_path / "scratch")}
    words = [places.get(word, word) for word in command.replace('"', "").split(", ")]
    assert words[words.index("--world") + 1] == completions

    # Of five sources the ranks from the sixth on have none.
    for index in ("0", "1", "2", "3", "4", "15"):
        ended = hub_runs.run(words, NO_HUB, JOB_COMPLETION_INDEX=index)
        assert_tidy_end(ended, 0)
        assert f"rank {index} of {completions} is done" in ended.stdout
    merge(out)
    assert runner.tree(out) == whole


@pytest.mark.parametrize("words", [("--last", "drop"), ("--layout", "contiguous"), ("--format", "datatrove")])
def test_ranks_make_other_layouts_too_and_leave_a_finished_run_alone(
    words: tuple[str, ...], sources: Path, tmp_path: Path
) -> None:
    out, one = tmp_path / "out", tmp_path / "one"
    given = ("--source", str(sources), *RECIPE, *words)
    assert_tidy_end(command_line(*given, "--out", str(one)), 0)
    assert_tidy_end(command_line("plan", *given, "--out", str(out), "--save"), 0)
    for number in range(2):
        rank(out, number, 2)
    merge(out)
    assert runner.tree(out) == runner.tree(one)

    before = runner.state(out)
    rank(out, 0, 2)
    assert runner.state(out) == before


# --- from the hub


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    return hub_runs.miniature(tmp_path_factory.mktemp("miniature"))


@pytest.fixture
def hub(mini: Miniature) -> Iterator[HubServer]:
    with HubServer(mini.repository) as hub:
        yield hub


def has_come(out: Path, part: str, size: int) -> bool:
    """Tell whether so many bytes of a source have come, in the folder of any session."""
    return any(path.stat().st_size == size for path in (out / PRIVATE / "sources").glob(f"*/{part}"))


def planned(mini: Miniature, hub: HubServer, out: Path) -> None:
    assert_tidy_end(hub_runs.run(["plan", *hub_runs.conversion(mini.pinned, out), "--save"], hub.endpoint), 0)


@pytest.mark.parametrize("has_scratch", [True, False])
def test_ranks_fetch_their_own_sources_once_and_never_list_the_hub(
    has_scratch: bool, mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    planned(mini, hub, out)
    seen = len(hub.log)
    where = ["--scratch", str(scratch)] if has_scratch else []
    words = ["--out", str(out), "--world", "2", "--workers", "1", *where]
    with (
        hub_runs.running([*words, "--rank", "0"], hub.endpoint) as one,
        hub_runs.running([*words, "--rank", "1"], hub.endpoint) as other,
    ):
        for process in (one, other):
            assert_tidy_end(runner.finish(process), 0)
    log = hub.log[seen:]

    assert all(len(hub_runs.bodies(log, name)) == 1 for name in mini.names)
    assert not any("/api/" in entry.path for entry in log)
    assert hub_runs.looks(log) == []
    assert_tidy_end(hub_runs.run(["merge", str(out)], NO_HUB), 0)
    hub_runs.assert_whole(mini, out)
    assert not has_scratch or [*scratch.iterdir()] == []


def test_a_killed_rank_continues_its_part_and_the_merge_leaves_nothing(
    mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    out, name = tmp_path / "out", mini.names[3]
    planned(mini, hub, out)
    words = ["--out", str(out), "--rank", "0", "--world", "1", "--workers", "1", "--max-connections", "1"]
    looked = len(hub.log)  # The plan has looked into some sources, too.
    hub.fault("stall", path=name, after=60_000)
    part = f"{mini.sha256(name)}.part"
    with hub_runs.running(words, hub.endpoint) as process:
        hub_runs.wait_for(lambda: has_come(out, part, 60_000), process)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=runner.PATIENCE)

    assert_tidy_end(hub_runs.run(words, hub.endpoint), 0)

    assert hub_runs.ranges(hub.log[looked:], name) == [None, "bytes=60000-"]
    assert_tidy_end(hub_runs.run(["merge", str(out)], hub.endpoint), 0)
    hub_runs.assert_whole(mini, out)


def test_the_ordinary_command_takes_over_what_dead_ranks_have_fetched(
    mini: Miniature, hub: HubServer, tmp_path: Path
) -> None:
    out, name = tmp_path / "out", mini.names[3]
    planned(mini, hub, out)
    words = ["--out", str(out), "--rank", "0", "--world", "1", "--workers", "1", "--max-connections", "1"]
    looked = len(hub.log)  # The plan has looked into some sources, too.
    hub.fault("stall", path=name, after=60_000)
    part = f"{mini.sha256(name)}.part"
    with hub_runs.running(words, hub.endpoint) as process:
        hub_runs.wait_for(lambda: has_come(out, part, 60_000), process)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=runner.PATIENCE)

    assert_tidy_end(hub_runs.run(hub_runs.conversion(mini.pinned, out), hub.endpoint), 0)

    assert hub_runs.ranges(hub.log[looked:], name) == [None, "bytes=60000-"]
    hub_runs.assert_whole(mini, out)
