"""Whoever reads what is printed, in whatever encoding: the exit code says what came of the work."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import corpus
import pytest
import runner

from fwconvert.cli.console import escaped

WORDS = ["--tokenizer", "bytes", "--shard-tokens", "200", "--workers", "1"]


def fwconvert(
    *words: object, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
) -> "subprocess.CompletedProcess[str]":
    """Start the program for real: how Python itself ends is part of what is tried."""
    return subprocess.run(
        [sys.executable, "-m", "fwconvert", *map(str, words)],
        stdout=stdout,
        stderr=stderr,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=runner.PATIENCE,
        env={**os.environ, "PYTHONPATH": str(runner.REPOSITORY)},
    )


def in_encoding(encoding: str, *words: object) -> "subprocess.CompletedProcess[str]":
    """Run the program where the standard streams have this encoding."""
    return runner.command_line(*words, encoding=encoding, env={"PYTHONIOENCODING": encoding})


@contextmanager
def nobody_reads() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@contextmanager
def full_disk() -> Iterator[int]:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in it that has nothing wrong."""
    folder = tmp_path_factory.mktemp("whole")
    corpus.write(folder / "a.parquet", [corpus.document(number) for number in range(20)])
    ended = in_encoding("utf-8", "--source", folder, "--out", folder / "run", "--quiet", *WORDS)
    assert ended.returncode == 0
    return folder


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in it of which one source is not parquet."""
    folder = tmp_path_factory.mktemp("broken")
    corpus.write(folder / "a.parquet", [corpus.document(number) for number in range(20)])
    (folder / "b.parquet").write_bytes(b"<html>not found</html>")
    ended = in_encoding("utf-8", "--source", folder, "--out", folder / "run", "--quiet", *WORDS)
    assert ended.returncode == 1
    return folder


@pytest.fixture(scope="module")
def damaged(whole: Path) -> Path:
    """A run of which one shard lacks its last byte."""
    out = whole / "damaged"
    ended = in_encoding("utf-8", "--source", whole / "a.parquet", "--out", out, "--quiet", *WORDS)
    assert ended.returncode == 0
    shard = min(out.glob("*_train_*.bin"))
    shard.write_bytes(shard.read_bytes()[:-1])
    return out


def test_what_is_not_right_has_its_exit_code_though_nobody_reads(
    broken: Path, damaged: Path, tmp_path: Path
) -> None:
    converting = ["--source", broken, "--out", tmp_path / "o", *WORDS]
    for start, words in (
        (fwconvert, ["verify", damaged]),
        (runner.command_line, ["verify", damaged, "--json"]),
        (runner.command_line, ["status", broken / "run"]),
        (fwconvert, ["status", broken / "run", "--json"]),
        (fwconvert, converting),
        (runner.command_line, converting),  # again
    ):
        with nobody_reads() as pipe:
            ended = start(*words, stdout=pipe)
        assert ended.returncode == 1, words
        assert "Traceback" not in ended.stderr
        assert "BrokenPipe" not in ended.stderr


def test_what_is_right_has_its_exit_code_though_nobody_reads(whole: Path, tmp_path: Path) -> None:
    converting = ["--source", whole / "a.parquet", "--out", tmp_path / "o", *WORDS]
    for start, words in (
        (fwconvert, ["--help"]),
        (runner.command_line, ["plan", "--help"]),
        (runner.command_line, ["--about"]),
        (runner.command_line, ["status", whole / "run"]),
        (runner.command_line, ["verify", whole / "run", "--json"]),
        (fwconvert, ["show", whole / "run", "00000_001", "--documents", "1000"]),
        (runner.command_line, ["trace", whole / "run", "00000_001:3"]),
        (
            runner.command_line,
            ["plan", "--source", whole / "a.parquet", "--out", tmp_path / "p", "--workers", "1"],
        ),
        (runner.command_line, ["pin", whole, "-o", tmp_path / "pinned.json"]),
        (fwconvert, converting),
        (runner.command_line, converting),  # again
        (runner.command_line, ["export", whole / "run", "--format", "npy", "-o", tmp_path / "n"]),
    ):
        with nobody_reads() as pipe:
            ended = start(*words, stdout=pipe)
        assert ended.returncode == 0, words
        assert not re.search("Traceback|Broken|ignored|fwconvert:", ended.stderr)


def test_a_mistake_has_its_exit_code_though_nobody_reads_the_complaint(tmp_path: Path) -> None:
    for words in (["--version", "10C"], ["--unknown"], ["status", tmp_path / "nowhere"]):
        with nobody_reads() as pipe:
            assert fwconvert(*words, stderr=pipe).returncode == 2, words


@pytest.mark.parametrize("words", [["status"], ["verify", "--json"], ["--help"], ["--about"]])
def test_a_result_that_cannot_be_written_is_an_error(words: list[str], whole: Path) -> None:
    place = [] if words[0].startswith("-") else [whole / "run"]
    with full_disk() as disk:
        ended = fwconvert(*words[:1], *place, *words[1:], stdout=disk)
    assert ended.returncode == 1
    assert ended.stderr.startswith("fwconvert: the result cannot be printed\n")
    assert "No space left on device" in ended.stderr


def test_a_run_is_done_though_the_log_is_full(whole: Path, tmp_path: Path) -> None:
    """What was asked for is the folder, and it is there."""
    words = ["--source", whole / "a.parquet", "--out", tmp_path / "o", *WORDS]
    for start in (fwconvert, runner.command_line):
        with full_disk() as disk:
            ended = start(*words, stdout=disk)
        assert ended.returncode == 0
        assert "the result cannot be printed" in ended.stderr
        with full_disk() as disk:
            assert start(*words, stdout=disk, stderr=disk).returncode == 0
    assert runner.tree(tmp_path / "o") == runner.tree(whole / "run")


def test_no_standard_output_is_no_error(whole: Path, damaged: Path) -> None:
    for run, code in ((whole / "run", 0), (damaged, 1)):
        line = f'"{sys.executable}" -m fwconvert verify "{run}" >&-'
        ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (code, "")


@pytest.fixture(scope="module")
def umlauts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder and a file with names, and documents with letters, that ASCII lacks."""
    folder = tmp_path_factory.mktemp("über") / "Straße"
    corpus.write(folder / "ä\U0001f680.parquet", ["Übergrößenträger \U0001f680"] * 50)
    (folder / "schlecht ß.parquet").write_bytes(b"no parquet")
    return folder


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_encoding_makes_a_command_fail(encoding: str, umlauts: Path, tmp_path: Path) -> None:
    out, new = tmp_path / "Ausgabe ö", tmp_path / "ß"
    bad = ["--source", umlauts, "--out", tmp_path / "schlecht", *WORDS]
    good = ["--source", umlauts / "ä\U0001f680.parquet", "--out", out, *WORDS]
    for words, code in (
        (bad, 1),
        (bad, 1),
        (["status", tmp_path / "schlecht"], 1),
        (["plan", *good[:4]], 0),
        (good, 0),
        (good, 0),
        (["status", out], 0),
        (["verify", out], 0),
        (["show", out, "00000_001"], 0),
        (["trace", out, "00000_001:5"], 0),
        (["export", out, "--format", "npy", "-o", new], 0),
        (["export", out, "--format", "npy", "-o", new], 0),
        (["pin", umlauts, "-o", tmp_path / "ü.json"], 0),
        (["--version", "ü"], 2),
        (["--layout", "ü", "--version", "demo"], 2),
    ):
        ended = in_encoding(encoding, *words)
        assert ended.returncode == code, (words, ended.stdout, ended.stderr)
        assert "Error" not in ended.stderr + ended.stdout


def test_json_has_every_name_whatever_the_encoding(umlauts: Path, tmp_path: Path) -> None:
    out = tmp_path / "ö"
    in_encoding("utf-8", "--source", umlauts, "--out", out, "--quiet", *WORDS)
    for encoding in ("ascii", "utf-8"):
        status = json.loads(in_encoding(encoding, "status", out, "--json").stdout)
        assert [job["path"] for job in status["failed"]] == ["schlecht ß.parquet"]
        assert status["folder"] == str(out)
        place = ["trace", out, "00001_000:5", "--json", "--source", umlauts]
        assert json.loads(in_encoding(encoding, *place).stdout)["source"] == "ä\U0001f680.parquet"


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are UTF-8 here")
def test_a_folder_whose_name_is_not_utf_8_can_be_told_of(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / os.fsdecode(b"\xff\xfe")
    for words in (
        ["--source", whole / "a.parquet", "--out", out, *WORDS],
        ["status", out],
        ["verify", out, "--json"],
        ["plan", "--source", whole / "a.parquet", "--out", out, "--json"],
    ):
        ended = in_encoding("utf-8", *words)
        assert ended.returncode == 0, ended.stderr
    assert json.loads(in_encoding("utf-8", "status", out, "--json").stdout)["folder"] == str(out)


def test_a_character_is_spelt_only_where_the_encoding_lacks_it() -> None:
    assert escaped("grün \U0001f680", "utf-8") == "grün \U0001f680"
    assert escaped("grün \U0001f680", "latin-1") == "grün \\ud83d\\ude80"
    assert escaped("grün \U0001f680", "ascii") == "gr\\u00fcn \\ud83d\\ude80"
    assert escaped("\udcff", "utf-8") == "\\udcff"
