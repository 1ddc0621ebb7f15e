"""The command line as a person meets it: what it prints, where, and with which exit code."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import corpus
import pytest
from runner import REPOSITORY

from fwconvert.cli import commands, main

WORDS = ["--tokenizer", "bytes", "--shard-tokens", "200", "--workers", "1", "--last", "keep"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    corpus.write(folder / "a.parquet", ["hello world", None, "", "a second document"])
    corpus.write(folder / "b.parquet", [corpus.document(number) for number in range(20)])
    return folder


@pytest.fixture(scope="module")
def out(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["--source", str(source), "--out", str(folder), "--quiet", *WORDS]) == 0
    return folder


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which one source is not parquet."""
    folder = tmp_path_factory.mktemp("bad")
    corpus.write(folder / "a.parquet", ["fine"])
    (folder / "b.parquet").write_bytes(b"<html>not found</html>")
    assert main(["--source", str(folder), "--out", str(folder / "run"), "--quiet", *WORDS]) == 1
    return folder / "run"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed as an error, after checking that it looks like one of ours."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fwconvert: ")
    assert "Traceback" not in captured.err
    return captured.err


def test_a_run_says_what_was_done_and_what_was_skipped(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--source", str(source), "--out", str(tmp_path / "o"), *WORDS]) == 0
    shown = capsys.readouterr().out
    assert "done: all 2 sources are converted" in shown
    assert "22 documents" in shown
    assert "1 null rows, 1 empty rows" in shown
    assert "no validation shard" in shown
    assert "training data" in shown


def test_a_second_run_says_that_all_is_done(
    source: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--source", str(source), "--out", str(out), *WORDS]) == 0
    assert "already complete; nothing was changed" in capsys.readouterr().out


def test_quiet_prints_nothing_at_all(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--source", str(source), "--out", str(tmp_path / "o"), "--quiet", *WORDS]) == 0
    assert capfd.readouterr() == ("", "")


def test_a_failed_source_is_named_with_its_reason(failed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--source", str(failed.parent / "*.parquet"), "--out", str(failed), "--quiet", *WORDS]
    assert main(words) == 1
    error = said(capsys)
    assert "b.parquet failed" in error
    assert "cannot be read as parquet" in error


def test_status_of_a_complete_run(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "complete" in shown
    assert "2 of 2 done (100% of the bytes)" in shown
    assert main(["status", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["complete"], facts["jobs_done"], facts["documents"], facts["failed"]) == (True, 2, 22, [])
    assert (facts["null_rows"], facts["empty_rows"], facts["at_work"]) == (1, 1, "")


def test_status_lists_failed_jobs_with_the_reason(failed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(failed)]) == 1
    shown = capsys.readouterr().out
    assert "incomplete" in shown
    assert "1 of 2 done" in shown
    reason, *values = shown[shown.index("failed  b.parquet (2 attempts): ") :].splitlines()
    assert reason.endswith(": a source file cannot be read as parquet")
    assert values
    assert all(line.startswith(" " * 10) for line in values), "what belongs to a failure stands below it"
    assert main(["status", str(failed), "--json"]) == 1
    assert [job["path"] for job in json.loads(capsys.readouterr().out)["failed"]] == ["b.parquet"]


def test_verify_finds_nothing_wrong_and_then_something(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--source", str(source), "--out", str(tmp_path / "o"), "--quiet", *WORDS])
    assert main(["verify", str(tmp_path / "o")]) == 0
    assert "no problems" in capsys.readouterr().out
    shard = min((tmp_path / "o").glob("*.bin"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert main(["verify", str(tmp_path / "o"), "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] is False
    assert any(problem["file"] == shard.name for problem in facts["problems"])
    assert main(["verify", str(tmp_path / "o")]) == 1
    assert shard.name in capsys.readouterr().out


def test_show_decodes_the_documents_of_a_shard(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(out), "00002_000", "--documents", "2"]) == 0
    shown = capsys.readouterr().out
    assert "document 1: row 0 of a.parquet, 12 tokens" in shown
    assert "<|endoftext|>hello world" in shown
    assert "document 2: row 3 of a.parquet, 18 tokens" in shown
    assert "a second document" in shown


def test_show_of_a_shard_in_the_middle_of_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus.write(tmp_path / "a.parquet", ["x" * 1000])
    main(["--source", str(tmp_path), "--out", str(tmp_path / "o"), "--val-tokens", "0", "--quiet", *WORDS])
    assert main(["show", str(tmp_path / "o"), "00000_002"]) == 0
    shown = capsys.readouterr().out
    assert "0 documents start in it" in shown
    assert "the middle of a document of a.parquet, 200 tokens" in shown
    assert "x" * 200 in shown


def test_show_never_lets_a_text_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus.write(tmp_path / "a.parquet", ["\x1b[2J\x1b]0;gotcha\x07 plain\ttext\u202e"])
    main(["--source", str(tmp_path), "--out", str(tmp_path / "o"), "--quiet", *WORDS])
    assert main(["show", str(tmp_path / "o"), "train"]) == 0
    shown = capsys.readouterr().out
    assert "plain\ttext" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


@pytest.mark.parametrize(("name", "wrong"), [("nothing", "no such token shard"), ("train", "several")])
def test_show_wants_one_shard(name: str, wrong: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(out), name]) == 2
    assert wrong in said(capsys)


def test_plan_shows_what_a_run_needs_and_changes_nothing(
    source: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "--source", str(source), "--out", "o", "--tokenizer", "bytes", "--shard-tokens", "200"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    for part in ("files", "token shards", "disk needed", "disk free"):
        assert part in shown
    assert re.search("largest job +b.parquet", shown)
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["plan"]["files"] == 2
    assert facts["plan"]["source_bytes"] == sum(path.stat().st_size for path in source.iterdir())
    assert facts["disk_free"] > 0
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["nothing to convert", "--version demo"]),
        (["--version", "10C"], ["no version with this name", "10B"]),
        (["--source", "nowhere", "--out", "o"], ["does not exist", "nowhere"]),
        (["--source", "."], ["--out is missing", "--out"]),
        (["--version", "demo", "--tokenizer", "gpt3"], ["gpt3", "gpt2"]),
        (["--source", ".", "--out", "o"], ["parquet"]),
        (["status", "nowhere"], ["not a run", "nowhere"]),
        (["verify", "nowhere"], ["manifest", "nowhere"]),
        (["show", "nowhere", "x"], ["manifest", "nowhere"]),
        (["stauts", "x"], ["unknown command", "did you mean status?"]),
        (
            ["--version", "demo", "--ray-address", "h:1"],
            ["--ray-address is for a Ray cluster", "--engine ray"],
        ),
        (["--version", "demo", "--job-cpus", "2"], ["--job-cpus is for a Ray cluster"]),
    ],
)
def test_a_mistake_of_the_caller_is_explained_and_nothing_is_written(
    words: list[str], parts: list[str], elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = said(capsys)
    for part in parts:
        assert part in error
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--version", "demo", "--out", ""], "--out"),
        (["plan", "--version", "demo", "--out="], "--out"),
        (["--version", "10B", "--keep-source", ""], "--keep-source"),
        (["--version", "", "--out", "o"], "--version"),
        (["--source", "", "--out", "o"], "--source"),
        (["--version", "demo", "-o", ""], "--out"),
        (["export", "RUN", "--format", "npy", "-o", ""], "--out"),
        (["export", "", "--format", "npy", "-o", "o"], "OUT"),
        (["pin", "SOURCE", "-o", ""], "--output"),
        (["pin", "", "-o", "o"], "REPO|DIR"),
        (["status", ""], "OUT"),
        (["verify", ""], "OUT"),
        (["show", "", "train"], "OUT"),
        (["trace", "", "train:1"], "OUT"),
        (["trace", "RUN", "00002_000:1", "--source", ""], "--source"),
    ],
)
def test_an_empty_path_is_a_mistake_and_not_the_current_folder(
    words: list[str], name: str, source: Path, out: Path, tmp_path: Path
) -> None:
    """In a folder that has all that could be found there: a run and its sources."""
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    words = [{"RUN": str(out), "SOURCE": str(source)}.get(word, word) for word in words]
    ended = subprocess.run(
        [sys.executable, "-m", "fwconvert", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"fwconvert: {name} is empty\n")
    assert "is a shell variable not set?" in ended.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there are no terminals to lose here")
def test_a_lost_terminal_asks_once_however_often_it_is_told() -> None:
    """The kernel says so, and the shell as well; somebody who presses Ctrl-C twice is in a hurry."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Under nohup it is ignored.
    try:
        for number, asked in ((signal.SIGHUP, 1), (signal.SIGTERM, 2), (signal.SIGINT, 2)):
            with commands._stopping() as stopping:
                os.kill(os.getpid(), number)
                os.kill(os.getpid(), number)
                assert (stopping.switch.asked, stopping.signal) == (asked, number)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "words",
    [
        ["--shard-tokens", "0"],
        ["--shard-tokens", "many"],
        ["--shard-tokens", "1.5"],
        ["--val-tokens", "-1"],
        ["--workers", "0"],
        ["--layout", "round"],
        ["--eot", "between"],
        ["--unknown"],
    ],
)
def test_a_wrong_value_is_refused_by_name(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version", "demo", *words]) == 2
    assert words[0] in said(capsys)


def test_a_shard_too_large_for_llm_c_is_refused(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--source", str(source), "--out", "never", "--shard-tokens", "2B"]) == 2
    assert "2 GiB" in said(capsys)


def test_an_unexpected_error_is_one_line_and_the_traceback_is_to_be_had(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> int:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("fwconvert.cli.commands.convert", broken)
    assert main(["--version", "demo"]) == 1
    assert "RuntimeError: unforeseen" in said(capsys)
    monkeypatch.setenv("FWCONVERT_DEBUG", "1")
    assert main(["--version", "demo"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(out: Path) -> None:
    show = [sys.executable, "-m", "fwconvert", "show", str(out), "00001_000", "--documents", "1000"]
    process = subprocess.Popen(show, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, error = process.communicate(timeout=300)
    assert (process.returncode, error) == (0, b"")


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"], ["--about"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    loaded = _modules_after(words)
    assert not {"numpy", "pyarrow", "tiktoken", "rich", "huggingface_hub", "ray"} & loaded


def test_without_ray_its_engine_names_the_extra_and_nothing_is_written(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--source", str(source), "--out", str(out), "--engine", "ray"]
    code = f"import sys; sys.modules['ray'] = None; from fwconvert.cli import main; sys.exit(main({words!r}))"
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        assert "--engine ray needs Ray, which is not installed" in ended.stderr
        assert "pip install 'fwconvert[ray]'" in ended.stderr
        assert not out.exists()


def test_status_loads_nothing_heavy(out: Path) -> None:
    loaded = _modules_after(["status", str(out)])
    assert not {"numpy", "pyarrow", "tiktoken", "rich", "huggingface_hub"} & loaded


def _modules_after(words: list[str]) -> set[str]:
    code = f"""
import sys
from fwconvert.cli import commands
from fwconvert.cli import main
try:
    main({words!r})
except SystemExit:
    pass
print("LOADED", *sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ended.stdout.split("LOADED", 1)[1].split())


def test_the_demo_runs_twice_offline_and_shows_what_to_do_next(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FWCONVERT_CACHE", str(elsewhere / "cache"))
    assert main(["--version", "demo"]) == 0
    shown = capsys.readouterr().out
    assert "The first line in edu_fineweb_train_" in shown
    assert "np.memmap" in shown
    before = {path: path.stat().st_mtime_ns for path in (elsewhere / "edu_finewebdemo").rglob("*")}
    assert main(["--version", "demo"]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in (elsewhere / "edu_finewebdemo").rglob("*")}
    snippet = [line.strip() for line in shown.splitlines() if " = np." in line or "import numpy" in line]
    code = "\n".join([*snippet, "print(len(tokens), len(starts), tokens[starts[0]])"])
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    tokens, starts, first = map(int, ended.stdout.split())
    assert (tokens, first) == (250_000, 50256)
    assert starts > 100
