"""What a run says at its end: what a trainer, or its user, would stumble over later."""

from pathlib import Path

import corpus
import pytest

from fwconvert.cli import main


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five documents of 120 tokens each, their separators among them."""
    folder = tmp_path_factory.mktemp("source")
    corpus.write(folder / "0.parquet", ["a" * 119] * 5)
    return folder


@pytest.mark.parametrize(
    ("words", "shards", "advice"),
    [
        (["--shard-tokens", "100"], "5 for training, 1 for validation", []),
        (["--shard-tokens", "200"], "2 for training, 1 for validation", []),
        (["--shard-tokens", "300"], "1 for training", ["modded-nanogpt needs two training shards"]),
        (["--shard-tokens", "300", "--format", "npy"], "1 for training", []),
        (["--shard-tokens", "300", "--val-tokens", "600"], "0 for training", ["no training shard"]),
        (["--shard-tokens", "700"], "1 for training", ["no validation shard", "modded-nanogpt"]),
        (["--format", "raw", "--val-tokens", "100"], "1 for training, 1 for validation", []),
        (["--where", "text == 'b'"], "0 for training, 0 for validation", ["not one document"]),
    ],
)
def test_what_somebody_would_stumble_over_is_said(
    words: list[str],
    shards: str,
    advice: list[str],
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--source", str(source), "--out", str(tmp_path / "o"), "--tokenizer", "bytes", "--workers", "1"]
    assert main([*given, *words]) == 0

    shown = capsys.readouterr().out
    assert shards in shown
    said = [line.strip() for line in shown.splitlines() if line.strip().startswith("->")]
    assert all(any(part in line for line in said) for part in advice)
    assert bool(said) == bool(advice)


def test_a_width_of_tokens_that_the_trainer_does_not_expect_is_said(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--source", str(source), "--format", "raw", "--val-tokens", "20", "--workers", "1"]
    for tokenizer, warned in (("gpt2", False), ("cl100k_base", True)):
        assert main([*words, "--tokenizer", tokenizer, "--out", str(tmp_path / tokenizer)]) == 0
        assert ("nanoGPT reads uint16, and these tokens are uint32" in capsys.readouterr().out) == warned
