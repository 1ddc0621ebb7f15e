"""The example: training that is stopped and resumed is the training that was never stopped."""

import subprocess
import sys
from pathlib import Path

import child
import corpus
import runner

SCRIPT = Path(__file__).parent.parent / "scripts/train_bigram.py"


def train(out: Path, save: Path, steps: int) -> list[str]:
    command = [sys.executable, str(SCRIPT), str(out), str(save), str(steps)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=child.environment())
    return ended.stdout.splitlines()


def test_a_resumed_training_has_the_losses_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    source = corpus.equal_sources(tmp_path / "source", files=2, rows=30)
    assert runner.convert(source, tmp_path / "out", tokenizer="bytes", shard_tokens=2000).complete

    whole = train(tmp_path / "out", tmp_path / "whole.npz", 50)
    first = train(tmp_path / "out", tmp_path / "part.npz", 20)
    rest = train(tmp_path / "out", tmp_path / "part.npz", 50)

    assert first + rest == whole
    assert [line.split()[0] for line in whole] == [str(step) for step in range(1, 51)]
    losses = [float(line.split()[1]) for line in whole]
    # It begins with knowing nothing of 257 tokens, ln 257 = 5.549, and learns.
    assert round(losses[0], 3) == 5.549
    assert losses[-1] < 3
