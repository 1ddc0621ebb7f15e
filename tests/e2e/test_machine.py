"""Machines that lack something: streams, open files, a temporary folder, an encoder that works.

The program makes do without, or says once, before anything is written, what it would need. No source is to
blame.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus
import forked
import pytest
import runner
from runner import PRIVATE, tree

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the limits of other systems are others")
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows starts processes in another way")

needs_gigatoken = pytest.mark.skipif(
    importlib.util.find_spec("gigatoken") is None,
    reason="gigatoken is not installed: there is no fast encoder",
)

RECIPE: dict[str, Any] = {"tokenizer": "gpt2", "shard_tokens": 500}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.equal_sources(tmp_path_factory.mktemp("machine") / "sources", files=4, rows=20)


@pytest.fixture(scope="module")
def golden(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a machine that has everything makes of the sources."""
    out = tmp_path_factory.mktemp("machine") / "out"
    assert runner.convert(sources, out, **RECIPE).complete
    return tree(out)


def run(
    words: list[str], at_start: Callable[[], object] | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command after something was done to its process, with these environment variables."""
    return forked.run(
        words,
        timeout=runner.PATIENCE,
        stdin=subprocess.DEVNULL,
        text=True,
        preexec_fn=at_start,
        env={**os.environ, "PYTHONPATH": str(runner.REPOSITORY), **environment},
    )


# --- closed streams


def closing(*numbers: int) -> Callable[[], None]:
    def close() -> None:
        for number in numbers:
            os.close(number)

    return close


@posix_only
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_a_daemon_s_closed_streams_do_not_matter(
    closed: tuple[int, ...], sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    # The fast encoder, which is tried in a process of its own, with all of them closed; that takes long.
    encoder = "auto" if closed == (0, 1, 2) else "reference"
    words = runner.command(sources, tmp_path / "out", workers=2, encoder=encoder, **RECIPE)

    first = run(words, closing(*closed))
    assert first.returncode == 0, first.stderr
    assert tree(tmp_path / "out") == golden
    before = runner.state(tmp_path / "out")

    assert run(words, closing(*closed)).returncode == 0
    assert runner.state(tmp_path / "out") == before


@posix_only
@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)], ids=str)
def test_errors_keep_their_exit_codes_when_nobody_can_read_them(
    closed: tuple[int, ...], tmp_path: Path
) -> None:
    status = [sys.executable, "-m", "fwconvert", "status", str(tmp_path / "missing")]
    unknown = [sys.executable, "-m", "fwconvert", "--no-such-flag"]

    assert run(status, closing(*closed)).returncode == run(status).returncode != 0
    assert run(unknown, closing(*closed)).returncode == 2


# A program that first opens files of its own, which get the numbers of streams that are closed.
DAEMON = """
import sys, fwconvert
encoder, source, out, *logs = sys.argv[1:]
opened = [open(log, "wb") for log in logs]
recipe = fwconvert.recipe(source=source, tokenizer="gpt2", shard_tokens=500)
options = fwconvert.Options(workers=2, encoder=encoder)
assert fwconvert.convert(recipe, out, options).complete
sys.exit(sum(file.fileno() for file in opened))
"""


@posix_only
@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)], ids=str)
def test_a_daemon_may_call_the_library(
    closed: tuple[int, ...], sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    encoder = "auto" if closed == (0, 1, 2) else "reference"
    words = [sys.executable, "-c", DAEMON, encoder, str(sources), str(tmp_path / "out")]

    assert run(words, closing(*closed)).returncode == 0
    assert tree(tmp_path / "out") == golden


@posix_only
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (1, 2)], ids=str)
def test_a_daemon_s_own_files_may_have_the_numbers_of_its_closed_streams(
    closed: tuple[int, ...], sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    logs = [tmp_path / f"{number}.log" for number in closed]
    words = [sys.executable, "-c", DAEMON, "reference", str(sources), str(tmp_path / "out"), *map(str, logs)]

    ended = run(words, closing(*closed))

    assert ended.returncode == sum(closed), ended.stderr
    assert tree(tmp_path / "out") == golden
    assert [log.read_bytes() for log in logs] == [b""] * len(closed)


# --- open files


def allowing_files(soft: int, hard: int) -> Callable[[], None]:
    import resource  # noqa: PLC0415  # absent on Windows

    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def many(tmp_path: Path) -> Path:
    return corpus.equal_sources(tmp_path / "many", files=24, rows=3)


@posix_only
def test_a_limit_of_open_files_that_may_be_raised_is_raised_for_many_workers(
    many: Path, tmp_path: Path
) -> None:
    recipe = {**RECIPE, "tokenizer": "bytes"}
    assert runner.convert(many, tmp_path / "wanted", **recipe).complete

    words = runner.command(many, tmp_path / "out", workers=12, **recipe)
    runner.assert_tidy_end(run(words, allowing_files(64, 1024)), 0)
    assert tree(tmp_path / "out") == tree(tmp_path / "wanted")


@posix_only
def test_more_workers_than_the_open_files_allow_are_refused_with_the_numbers(
    many: Path, tmp_path: Path
) -> None:
    recipe = {**RECIPE, "tokenizer": "bytes"}
    words = runner.command(many, tmp_path / "out", **recipe)
    refused = run([*words, "--workers", "12"], allowing_files(64, 100))

    runner.assert_tidy_end(refused, 2)
    assert "ulimit -n" in refused.stderr
    told = dict(re.findall(r"^  (.*?)  +(\d+)$", refused.stderr, re.MULTILINE))
    assert (told["workers"], told["open files allowed"]) == ("12", "100")
    assert int(told["open files needed"]) > 100
    assert not (tmp_path / "out").exists()

    # As many as it says that fit do fit.
    fit = told["workers that fit"]
    assert f"--workers {fit}" in refused.stderr
    runner.assert_tidy_end(run([*words, "--workers", fit], allowing_files(64, 100)), 0)


@posix_only
def test_workers_without_work_need_no_open_files(sources: Path, tmp_path: Path) -> None:
    words = runner.command(sources, tmp_path / "out", workers=500, **RECIPE)

    runner.assert_tidy_end(run(words, allowing_files(100, 100)), 0)


@posix_only
@pytest.mark.parametrize("shape", ["--format datatrove", "--format raw --compress zstd", "--compress zstd"])
def test_a_worker_keeps_few_files_open_in_every_format(shape: str, sources: Path, tmp_path: Path) -> None:
    words = runner.command(sources, tmp_path / "out", tokenizer="bytes", workers=1)
    few = ["--shard-tokens", "300"] if "raw" not in shape else []

    runner.assert_tidy_end(run([*words, *shape.split(), *few], allowing_files(64, 64)), 0)


# --- processes and temporary files


def assert_nobody_is_to_blame(ended: "subprocess.CompletedProcess[str]", out: Path, reason: str) -> None:
    runner.assert_tidy_end(ended, 1)
    assert ended.stderr.count("fwconvert: ") == 1
    assert reason in ended.stderr.partition("fwconvert: ")[2]
    assert "attempt" not in ended.stderr
    assert not list(out.glob(f"{PRIVATE}/quarantine/*"))


@linux_only
def test_a_machine_on_which_no_thread_can_be_started_is_told_so_once(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    import resource  # noqa: PLC0415  # absent on Windows

    def need_more_for_a_stack_than_there_is() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (2**33, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))

    out = tmp_path / "out"
    words = runner.command(sources, out, "--encoder", "reference", workers=2, **RECIPE)
    # numpy's own threads, which it does not need, would fail first.
    ended = run(words, need_more_for_a_stack_than_there_is, OPENBLAS_NUM_THREADS="1")
    assert_nobody_is_to_blame(ended, out, "a worker process cannot be started")

    runner.assert_tidy_end(run(words), 0)
    assert tree(out) == golden


# What happens to a worker when Python starts it, and what is said of it.
NO_START = {
    "it is ended": ("os._exit(7)", "a worker process died before it could begin"),
    "it has no memory": (
        "resource.setrlimit(resource.RLIMIT_AS, (150 * 2**20, 150 * 2**20))",
        "a worker process",
    ),
}


@linux_only
@pytest.mark.parametrize("happens", NO_START)
def test_workers_that_cannot_begin_are_blamed_on_no_source(
    happens: str, sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    code, said = NO_START[happens]
    hook = tmp_path / "hook/sitecustomize.py"
    hook.parent.mkdir()
    hook.write_text(f"import os, resource, sys\nif '--multiprocessing-fork' in sys.orig_argv:\n    {code}\n")
    out = tmp_path / "out"
    words = runner.command(sources, out, "--encoder", "reference", workers=2, **RECIPE)

    ended = run(words, PYTHONPATH=f"{hook.parent}{os.pathsep}{runner.REPOSITORY}")
    assert_nobody_is_to_blame(ended, out, said)

    runner.assert_tidy_end(run(words), 0)
    assert tree(out) == golden


@linux_only
def test_memory_that_is_too_little_for_any_source_is_blamed_on_none(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = runner.command(sources, out, workers=2, **RECIPE)

    # Python's variable makes it a started program: a forked worker begins its source before it is looked at.
    ended = run([*words, "--worker-memory", "10M"], PYTHONHASHSEED="0")
    assert_nobody_is_to_blame(ended, out, "too much memory")

    runner.assert_tidy_end(run(words), 0)
    assert tree(out) == golden


# --- a file system that cannot bring folders to the disk

NO_FOLDER_SYNC = """
import errno, os, stat
real = os.fsync
def fsync(descriptor):
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    real(descriptor)
os.fsync = fsync
"""


@posix_only
def test_a_file_system_whose_folders_cannot_be_synced_gets_the_same_bytes(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    hook = tmp_path / "hook/sitecustomize.py"
    hook.parent.mkdir()
    hook.write_text(NO_FOLDER_SYNC)
    words = runner.command(sources, tmp_path / "out", workers=2, **RECIPE)

    runner.assert_tidy_end(run(words, PYTHONPATH=f"{hook.parent}{os.pathsep}{runner.REPOSITORY}"), 0)
    assert tree(tmp_path / "out") == golden


# --- an encoder that does not work

OTHER_TOKENS = """
import awkward, numpy
class Tokenizer:
    @classmethod
    def from_tiktoken(cls, *_, **__):
        return cls()
    def encode_batch(self, texts, parallel):
        sizes = awkward.num(awkward.without_parameters(texts))
        return awkward.unflatten(numpy.ones(sum(sizes), numpy.uint32), sizes)
"""

# What a package does when it is imported, and what is said of it.
BROKEN = {
    "an import error": (
        "raise ImportError('libfoo.so.1: no version')",
        "ImportError: libfoo.so.1: no version",
    ),
    "an error of the system": ("raise OSError(28, 'no space')", "OSError: [Errno 28] no space"),
    "a panic": ("class Panic(BaseException): ...\nraise Panic('a Rust panic')", "Panic: a Rust panic"),
    "a crash": ("import os, signal\nos.kill(os.getpid(), signal.SIGILL)", "SIGILL"),
    "an exit": ("import os\nos._exit(3)", "exit code 3"),
    "other tokens": (OTHER_TOKENS, "other tokens than tiktoken"),
}


def with_package(folder: Path, name: str, code: str) -> str:
    """Make a package that is found before the installed one; return the PYTHONPATH that does it."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    return f"{folder}{os.pathsep}{runner.REPOSITORY}"


def assert_fell_back(
    ended: "subprocess.CompletedProcess[str]", out: Path, golden: dict[str, str], reason: str
) -> None:
    runner.assert_tidy_end(ended, 0)
    assert ended.stderr.count("the reference encoder is used") == 1
    assert reason in ended.stderr
    assert "attempt" not in ended.stderr
    assert tree(out) == golden


@needs_gigatoken
@posix_only
@pytest.mark.parametrize("broken", BROKEN)
def test_a_fast_encoder_that_is_there_and_fails_is_not_used(
    broken: str, sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    code, reason = BROKEN[broken]
    found_first = with_package(tmp_path / "packages", "gigatoken", code)
    words = runner.command(sources, tmp_path / "out", workers=2, **RECIPE)

    refused = run([*words, "--encoder", "fast"], PYTHONPATH=found_first)
    runner.assert_tidy_end(refused, 2)
    assert reason in refused.stderr
    assert not (tmp_path / "out").exists()

    assert_fell_back(run(words, PYTHONPATH=found_first), tmp_path / "out", golden, reason)


@needs_gigatoken
def test_the_fast_encoder_is_used_where_awkward_cannot_be_imported(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    found_first = with_package(tmp_path / "packages", "awkward", "raise ImportError('no awkward')")
    words = runner.command(sources, tmp_path / "out", workers=2, **RECIPE)

    for _ in range(2):
        ended = run([*words, "--encoder", "fast"], PYTHONPATH=found_first)
        runner.assert_tidy_end(ended, 0)
        assert "encoder" not in ended.stderr
        assert tree(tmp_path / "out") == golden


@needs_gigatoken
def test_another_version_of_the_fast_encoder_is_not_used(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    about = tmp_path / "packages/gigatoken-0.11.3.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gigatoken\nVersion: 0.11.3\n")
    found_first = f"{about.parent}{os.pathsep}{runner.REPOSITORY}"
    words = runner.command(sources, tmp_path / "out", **RECIPE)

    refused = run([*words, "--encoder", "fast"], PYTHONPATH=found_first)
    runner.assert_tidy_end(refused, 2)
    assert "gigatoken 0.11.3" in refused.stderr
    assert not (tmp_path / "out").exists()

    assert_fell_back(run(words, PYTHONPATH=found_first), tmp_path / "out", golden, "gigatoken 0.11.3")


def test_python_s_development_mode_changes_no_byte(
    sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    python, *words = runner.command(sources, tmp_path / "out", workers=2, **RECIPE)

    ended = run([python, "-X", "dev", *words])
    runner.assert_tidy_end(ended, 0)
    assert "Warning" not in ended.stderr
    assert tree(tmp_path / "out") == golden


@needs_gigatoken
def test_a_finished_run_tries_no_encoder(sources: Path, tmp_path: Path) -> None:
    words = runner.command(sources, tmp_path / "out", **RECIPE)
    runner.assert_tidy_end(run(words), 0)

    tried = tmp_path / "tried"
    found_first = with_package(tmp_path / "packages", "gigatoken", f"open({str(tried)!r}, 'w').close()")
    runner.assert_tidy_end(run(words, PYTHONPATH=found_first), 0)
    assert not tried.exists()
