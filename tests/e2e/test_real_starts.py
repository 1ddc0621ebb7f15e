"""Each command is started once as users start it: a new interpreter, with its own imports and its own end.

Most tests fork their programs (see tests/support/forked.py), where neither the
start nor the end of the interpreter takes part.
"""

import signal
from pathlib import Path

import bounded
import corpus
import pytest
from serving import served

RECIPE = ("--shard-tokens", 1000, "--workers", 2)


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FWCONVERT_TESTS_FORK", "0")


def ended_well(*words: object) -> str:
    ended = bounded.run(*words)
    assert ended.code == 0, ended.said
    assert "Exception ignored" not in ended.stderr
    assert "Warning" not in ended.stderr
    return ended.stdout


def test_every_command_of_a_run_does_its_work(tmp_path: Path) -> None:
    sources, out, new = tmp_path / "sources", tmp_path / "out", tmp_path / "new"
    corpus.equal_sources(sources, files=3, rows=60)
    pinned = tmp_path / "pinned.json"

    ended_well("pin", sources, "-o", pinned)
    what = ("--version", pinned, "--source", sources, "--out", out, *RECIPE)
    assert "what the run needs" in ended_well("plan", *what)
    assert "converted" in ended_well(*what)
    assert "nothing was changed" in ended_well(*what)
    assert "complete" in ended_well("status", out)
    assert "no problems" in ended_well("verify", out)
    shard = min(path.name for path in out.glob("*_train_*.bin"))
    assert "document" in ended_well("show", out, shard)
    assert ".parquet" in ended_well("trace", out, f"{shard}:5")
    ended_well("export", out, "--format", "npy", "--workers", 1, "-o", new)
    assert "no problems" in ended_well("verify", new)
    assert "the page is written" in ended_well("report", out, "-o", tmp_path / "page.html")
    assert "equal" in ended_well("compare", out, out)
    with served(out) as (port, process):
        assert port > 0
        process.send_signal(signal.SIGTERM)
        said, complained = process.communicate(timeout=60)
        assert (process.returncode, said, complained) == (0, "", "")


def test_what_is_wrong_is_told_by_a_new_interpreter_too(tmp_path: Path) -> None:
    for words in (
        ("status", tmp_path),
        ("verify", tmp_path),
        ("--source", tmp_path, "--out", tmp_path / "o"),
    ):
        ended = bounded.run(*words)
        assert ended.code == 2
        assert ended.stderr.startswith("fwconvert: ")
