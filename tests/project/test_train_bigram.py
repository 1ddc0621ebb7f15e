"""The example: training that is stopped and resumed is the training that was never stopped."""

import subprocess
import sys
from pathlib import Path

import child
import corpus
import pytest
import runner

SCRIPT = Path(__file__).parents[2] / "scripts/train_bigram.py"


def run(out: Path, save: Path, steps: int) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(SCRIPT), str(out), str(save), str(steps)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=child.environment())


def train(out: Path, save: Path, steps: int) -> list[str]:
    ended = run(out, save, steps)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    source = corpus.equal_sources(folder / "source", files=2, rows=30)
    assert runner.convert(source, folder / "out", tokenizer="bytes", shard_tokens=2000).complete
    return folder / "out"


def test_a_resumed_training_has_the_losses_of_one_that_was_not_stopped(out: Path, tmp_path: Path) -> None:
    whole = train(out, tmp_path / "whole.npz", 50)
    first = train(out, tmp_path / "part.npz", 20)
    rest = train(out, tmp_path / "part.npz", 50)

    assert first + rest == whole
    assert [line.split()[0] for line in whole] == [str(step) for step in range(1, 51)]
    losses = [float(line.split()[1]) for line in whole]
    # It begins with knowing nothing of 257 tokens, ln 257 = 5.549, and learns.
    assert round(losses[0], 3) == 5.549
    assert losses[-1] < 3


def test_what_is_saved_has_the_name_that_was_given(out: Path, tmp_path: Path) -> None:
    first, rest = train(out, tmp_path / "c", 3), train(out, tmp_path / "c", 6)

    assert [line.split()[0] for line in first + rest] == ["1", "2", "3", "4", "5", "6"]
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_run_of_a_larger_vocabulary_is_refused_in_words(tmp_path: Path) -> None:
    source = corpus.equal_sources(tmp_path / "source", files=1, rows=30)
    assert runner.convert(source, tmp_path / "out", tokenizer="gpt2", shard_tokens=500, val_tokens=0).complete
    ended = run(tmp_path / "out", tmp_path / "save.npz", 5)

    runner.assert_tidy_end(ended, 1)
    assert "--tokenizer bytes" in ended.stderr
