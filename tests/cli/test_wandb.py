"""--wandb by the real program and the real wandb: what is logged, and that nothing of it costs a run.

There is no service here: wandb logs into folders, and what it wrote is read back.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

import corpus
import forked
import hub_runs
import psutil
import pytest
import runner
import wandb_files
from hub_runs import conversion, miniature
from hub_server import HubServer

REFERENCE = (runner.REPOSITORY / "REFERENCE.md").read_text(encoding="utf-8")
WORDS = ["--tokenizer", "bytes", "--shard-tokens", "2000", "--workers", "1"]
needs_wandb = pytest.mark.skipif(util.find_spec("wandb") is None, reason="wandb is not installed")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for number in range(3):
        corpus.write(folder / f"{number}.parquet", [corpus.document(one) for one in range(40)])
    (folder / "3.parquet").write_bytes(b"no parquet")
    return folder


@pytest.fixture(scope="module")
def tree(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of the same run without wandb."""
    out = tmp_path_factory.mktemp("plain") / "o"
    runner.command_line("--source", source, "--out", out, *WORDS)
    return runner.tree(out)


def test_a_missing_package_is_named_before_anything_is_done(source: Path, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if not entry.name.startswith("wandb"):
                (packages / entry.name).symlink_to(entry)
    (tmp_path / "wandb").mkdir()  # As wandb itself leaves one where it was used.
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "fwconvert", "--source", source, "--out", "o", "--wandb", "p", *WORDS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{runner.REPOSITORY}:{packages}"},
        capture_output=True,
        text=True,
        check=False,
    )
    runner.assert_tidy_end(ended, 2)
    assert "--wandb needs the package wandb, which is not installed" in ended.stderr
    assert "pip install 'fwconvert[wandb]'" in ended.stderr
    assert not (tmp_path / "o").exists()
    assert "wandb" in (metadata.metadata("fwconvert").get_all("Provides-Extra") or [])


@needs_wandb
@pytest.mark.parametrize(
    "project",
    ["", "a/b/c", "/b", "a?b", "x" * 129],
    ids=["empty", "two slashes", "no entity", "sign", "long"],
)
def test_a_project_that_cannot_be_is_refused(project: str, tmp_path: Path) -> None:
    ended = runner.command_line("--source", tmp_path, "--out", tmp_path / "o", "--wandb", project)
    runner.assert_tidy_end(ended, 2)
    assert "--wandb is no project of Weights & Biases" in ended.stderr


@needs_wandb
def test_rates_progress_faults_notices_and_the_page_are_logged_by_each_session(
    source: Path, tree: dict[str, str], tmp_path: Path
) -> None:
    folder, out, copied = tmp_path / "w", tmp_path / "o", tmp_path / "in"
    shutil.copytree(source, copied)
    environment = wandb_files.environment(folder, WANDB_MODE="offline")
    line = [
        sys.executable, "-m", "fwconvert", "--source", str(copied), "--out", str(out), *WORDS, "--wandb", "p",
    ]  # fmt: skip

    def run_for_real() -> subprocess.CompletedProcess[str]:
        clean = {**os.environ, "PYTHONPATH": str(runner.REPOSITORY), **environment}
        return subprocess.run(line, env=clean, cwd=tmp_path, capture_output=True, text=True, check=False)

    first = run_for_real()
    runner.assert_tidy_end(first, 1)
    assert f"Weights & Biases: {folder}/wandb/offline-run-" in first.stderr
    assert runner.tree(out) == tree
    corpus.write(copied / "3.parquet", [corpus.document(7)])
    second = run_for_real()
    runner.assert_tidy_end(second, 0)
    exported = runner.command_line(
        "export", out, "--format", "npy", "-o", tmp_path / "b", "--workers", "1", "--wandb", "team/p",
        env=environment, capture_output=True,
    )  # fmt: skip
    runner.assert_tidy_end(exported, 0)

    one, two, three = wandb_files.runs(folder)
    assert [run.job_type for run in (one, two, three)] == ["convert", "convert", "export"]
    assert [run.exit_code for run in (one, two, three)] == [1, 0, 0]
    assert {run.project for run in (one, two, three)} == {"p"}
    assert one.group == two.group != three.group
    assert (one.config["shard_tokens"], one.config["tokenizer"], one.config["files"]) == (2000, "bytes", 4)
    tokens = sum(path.stat().st_size - 1024 for path in out.glob("*.bin")) // 2
    for run in (one, two, three):
        logged = [point["progress"] for point in run.history]
        assert logged == sorted(logged)
        assert {key for point in run.history for key in point if not key.startswith("_")} <= documented()
    assert one.history[-1]["tokens"] == one.summary["tokens"] < tokens == two.summary["tokens"]
    assert (one.history[-1]["faults/attempts"], one.summary["failed"], two.summary["failed"]) == (1, 1, 0)
    assert "3.parquet" in one.notices
    for run in (one, two, three):
        ((name, page),) = run.artifacts.items()
        assert name == f"{run.group}-page/page.html"
        assert page.startswith("<!doctype html>")
        assert "fwconvert" in page


def documented() -> set[str]:
    """Return the keys that REFERENCE.md gives for progress: faults by their names there."""
    (row,) = re.findall(r"^\| `progress` \| (.*) \|$", REFERENCE, re.MULTILINE)
    (faults,) = re.findall(r"`faults` counts .*: (.*)\.$", REFERENCE, re.MULTILINE)
    names = re.findall(r"(\w+)(?: \([^)]*\))?(?:, |$)", faults)
    return {*re.findall(r"`(\w+)`", row), *(f"faults/{name}" for name in names)}


@needs_wandb
def test_rates_and_faults_of_fetching_are_curves(tmp_path: Path) -> None:
    mini = miniature(tmp_path / "mini")
    folder = tmp_path / "w"
    with HubServer(mini.repository, rate=150_000) as hub:
        hub.fault("status", path=mini.names[1], status=503, times=2)
        words = conversion(mini.pinned, tmp_path / "o", "--max-connections", "2", "--wandb", "p")
        environment = wandb_files.environment(folder, WANDB_MODE="offline")
        line = [sys.executable, "-m", "fwconvert", *words]
        ended = forked.run(
            line, runner.PATIENCE, env={**hub_runs.environment(hub.endpoint), **environment}, text=True
        )
    runner.assert_tidy_end(ended, 0)
    (run,) = wandb_files.runs(folder)
    rates = ("tokens_per_second", "units_per_second", "fetched_bytes_per_second")
    assert all(any(point.get(rate, 0) > 0 for point in run.history) for rate in rates)
    assert run.history[-1]["fetched_bytes"] > 0
    assert run.history[-1]["faults/refusals"] == run.summary["faults/refusals"] == 2
    hub_runs.assert_whole(mini, tmp_path / "o")


@needs_wandb
def test_ranks_are_a_group_and_the_merge_has_the_page(source: Path, tmp_path: Path) -> None:
    folder, out, copied = tmp_path / "w", tmp_path / "o", tmp_path / "in"
    copied.mkdir()
    shutil.copy(source / "0.parquet", copied)
    environment = wandb_files.environment(folder, WANDB_MODE="offline")
    runner.command_line("plan", "--source", copied, "--out", out, *WORDS, "--save", "--no-disk-check")
    for words in (["--out", out, "--rank", "0", "--world", "1"], ["merge", out]):
        ended = runner.command_line(*words, "--workers", "1", "--wandb", "p", env=environment)
        runner.assert_tidy_end(ended, 0)
    rank, merge = wandb_files.runs(folder)
    assert (rank.job_type, rank.config["rank"], merge.job_type) == ("rank", "0 of 1", "merge")
    assert rank.group == merge.group
    assert ([*rank.artifacts], len(merge.artifacts)) == ([], 1)


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Have a server that takes every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    held.append(server.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for one in held:
            one.close()


@needs_wandb
@pytest.mark.parametrize("has_key", [False, True])
def test_without_a_key_or_an_answer_it_logs_into_a_folder_and_says_so(
    has_key: bool, source: Path, tree: dict[str, str], tmp_path: Path
) -> None:
    folder, out = tmp_path / "w", tmp_path / "o"
    key = {"WANDB_API_KEY": "0123456789" * 4} if has_key else {}
    with silent_server() as address:
        settings = {"WANDB_BASE_URL": address, "WANDB_INIT_TIMEOUT": "1", "WANDB_LOGIN_TIMEOUT": "1", **key}
        environment = wandb_files.environment(folder, **settings)
        words = ["--source", source, "--out", out, *WORDS, "--wandb", "p"]
        ended = runner.command_line(*words, env=environment)
    runner.assert_tidy_end(ended, 1)  # A source is no parquet.
    assert "trying again, into a folder" in ended.stderr
    assert key.get("WANDB_API_KEY", "no key") not in ended.stderr
    assert runner.tree(out) == tree
    run = wandb_files.runs(folder)[-1]
    assert run.summary["tokens"] > 0


@needs_wandb
@pytest.mark.parametrize(
    ("victim", "number"),
    [("its process", signal.SIGKILL), ("its service", signal.SIGKILL), ("its service", signal.SIGSTOP)],
)
def test_a_wandb_that_dies_or_hangs_costs_a_notice(
    victim: str, number: int, source: Path, tree: dict[str, str], tmp_path: Path
) -> None:
    out, log = tmp_path / "o", tmp_path / "log"
    environment = wandb_files.environment(tmp_path / "w", WANDB_MODE="offline")
    line = [*runner.command(source, out, *WORDS), "--wandb", "p"]
    clean = {**os.environ, "PYTHONPATH": str(runner.REPOSITORY), **environment}
    with log.open("w") as stderr, subprocess.Popen(line, env=clean, stderr=stderr, text=True) as process:
        runner.wait_until(lambda: services(process.pid), process, 0.01)
        (service,) = services(process.pid)
        ours = service.parent()
        assert ours is not None
        (ours if victim == "its process" else service).send_signal(number)
        if number == signal.SIGSTOP:
            # It is waited for, until somebody does not want to wait.
            runner.wait_until(lambda: "waiting until it has everything" in log.read_text(), process, 0.01)
            process.send_signal(signal.SIGINT)
        assert process.wait(runner.PATIENCE) == 1  # A source is no parquet.
    said = log.read_text()
    assert "Traceback" not in said
    assert re.search("Weights & Biases: .*(the run goes on|trying again, into a folder)", said)
    assert runner.tree(out) == tree
    with contextlib.suppress(psutil.NoSuchProcess):
        service.resume()
    psutil.wait_procs([ours, service], runner.PATIENCE)
    assert not ours.is_running()
    assert not service.is_running()


def services(pid: int) -> list[psutil.Process]:
    """Return the processes below `pid` that are wandb's service."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "wandb-core" in child.cmdline()[0]:
                    found.append(child)
    return found
