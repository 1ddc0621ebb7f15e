"""What a run says at its end: what a trainer, or its user, would stumble over later."""

from pathlib import Path
from typing import get_args

import corpus
import pytest
import runner

from fwconvert.cli import main
from fwconvert.formats import FormatName


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
        (
            ["--shard-tokens", "300", "--format", "npy"],
            "1 for training",
            ["OLMo-core and MaxText take the header of these files for tokens: for them, --format megatron"],
        ),
        (["--shard-tokens", "300", "--val-tokens", "600"], "0 for training", ["no training shard"]),
        (["--shard-tokens", "700"], "1 for training", ["no validation shard", "modded-nanogpt"]),
        (["--format", "raw", "--val-tokens", "100"], "1 for training, 1 for validation", []),
        (["--where", "text == 'b'"], "0 for training, 0 for validation", ["there are no documents"]),
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


UINT32 = {
    "llmc": "uint32: llm.c's train_llama3.py reads them, its other programs, modded-nanogpt and NeMo "
    "Automodel read uint16 alone, as --tokenizer gpt2 gives it",
    "raw": "nanoGPT reads uint16, and these tokens are uint32: tell it so",
}


@pytest.mark.parametrize("kind", get_args(FormatName))
def test_a_width_of_tokens_that_trainers_do_not_expect_is_said_before_and_after(
    kind: str, source: Path, tmp_path: Path
) -> None:
    for tokenizer in ("gpt2", "cl100k_base") if kind in UINT32 else ("cl100k_base",):
        out = tmp_path / tokenizer
        words = ["--source", source, "--format", kind, "--val-tokens", "20", "--tokenizer", tokenizer]
        # Before the run; after it, and when it is done already.
        for command in [["plan"], *([[], []] if kind in UINT32 else [])]:
            ended = runner.command_line(*command, *words, "--out", out)
            runner.assert_tidy_end(ended, 0)
            wanted = tokenizer == "cl100k_base" and kind in UINT32
            assert (UINT32.get(kind, "uint16") in ended.stdout) == wanted, ended.stdout


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """A first source of 24 tokens and a second of 1,200."""
    corpus.write(tmp_path / "in/first.parquet", ["a" * 11] * 2)
    corpus.write(tmp_path / "in/second.parquet", ["b" * 119] * 10)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "why", "advice"),
    [
        (
            [],
            "it comes from the first source, and first.parquet has 24 tokens, fewer than --val-tokens (500)",
            "export the run with a smaller --val-tokens, or with --layout contiguous, which takes it from",
        ),
        (
            ["--limit-tokens", "300"],
            "first.parquet has 24 tokens, fewer than --val-tokens (500)",
            "export the run with a smaller --val-tokens\n",
        ),
        (
            ["--layout", "contiguous", "--val-tokens", "5000"],
            "the run has 1,224 tokens, fewer than --val-tokens (5,000)",
            "export the run with a smaller --val-tokens\n",
        ),
        (
            ["--last", "drop"],
            "first.parquet has 24 tokens, fewer than --val-tokens (500)",
            "convert again into another folder with a smaller --val-tokens, or with --layout contiguous",
        ),
    ],
)
def test_why_there_is_no_validation_is_said_with_its_source_and_what_to_do(
    words: list[str], why: str, advice: str, uneven: Path
) -> None:
    given = [
        "--source",
        uneven / "in",
        "--out",
        uneven / "o",
        "--tokenizer",
        "bytes",
        "--shard-tokens",
        "500",
    ]
    for _ in range(2):
        ended = runner.command_line(*given, *words)
        runner.assert_tidy_end(ended, 0)
        (said,) = [line for line in ended.stdout.splitlines() if "there is no validation shard: " in line]
        assert why in said
        assert f"to get one, {advice}" in ended.stdout
        assert ("everything is kept as training data" in ended.stdout) == ("drop" not in words)


def test_the_advice_gives_a_validation_shard(uneven: Path) -> None:
    given = ["--source", uneven / "in", "--tokenizer", "bytes", "--shard-tokens", "500", "--quiet"]
    runner.assert_tidy_end(runner.command_line(*given, "--out", uneven / "o"), 0)
    for name, words in (("smaller", ["--val-tokens", "24"]), ("stream", ["--layout", "contiguous"])):
        ended = runner.command_line("export", uneven / "o", "-o", uneven / name, *words)
        runner.assert_tidy_end(ended, 0)
        assert "1 for validation" in ended.stdout
