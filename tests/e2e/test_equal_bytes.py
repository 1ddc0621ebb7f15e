"""Equal recipe, equal bytes: whatever the number of workers, and equal to what a naive writer makes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import corpus
import naive
import pytest
import runner

from fwconvert.inspection.verify import verify

# A recipe, and how many validation shards it gives.
RECIPES: dict[str, tuple[dict[str, Any], int]] = {
    "llm.c's own recipe": (
        {"tokenizer": "gpt2", "layout": "contiguous", "shard_tokens": 1000, "last": "keep"}, 1,
    ),
    "a stream whose end is merged": ({"tokenizer": "gpt2", "layout": "contiguous", "shard_tokens": 1000}, 1),
    "a short last shard is kept": ({"tokenizer": "gpt2", "shard_tokens": 1000, "last": "keep"}, 1),
    "a short last shard is dropped": ({"tokenizer": "gpt2", "shard_tokens": 1000, "last": "drop"}, 1),
    "the end of one stream is dropped": (
        {"tokenizer": "gpt2", "layout": "contiguous", "shard_tokens": 900, "last": "drop", "eot": "after"}, 1,
    ),
    "the default recipe, cut small": ({"tokenizer": "gpt2", "shard_tokens": 1000}, 1),
    "nanoGPT's side of the separator": (
        {"tokenizer": "gpt2", "eot": "after", "shard_tokens": 700, "val_tokens": 120, "name": "nano"}, 1,
    ),
    "uint32": ({"tokenizer": "cl100k_base", "shard_tokens": 1000, "val_tokens": 0}, 0),
    "uint32 as one stream": (
        {"tokenizer": "cl100k_base", "layout": "contiguous", "eot": "after",
         "shard_tokens": 999, "val_tokens": 2500}, 1,
    ),
    "a validation shard of one token": (
        {"tokenizer": "bytes", "layout": "contiguous", "shard_tokens": 4096, "val_tokens": 1}, 1,
    ),
    "a validation shard longer than a shard": (
        {"tokenizer": "bytes", "eot": "after", "shard_tokens": 1000, "val_tokens": 2048}, 1,
    ),
    "a first source too small for validation": (
        {"tokenizer": "bytes", "shard_tokens": 5000, "val_tokens": 30_000}, 0,
    ),
    "a stream too small for validation": (
        {"tokenizer": "bytes", "layout": "contiguous", "shard_tokens": 50_000, "val_tokens": 10**7}, 0,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.varied(tmp_path_factory.mktemp("varied"))


def naive_shards(sources: Path, out: Path, **recipe: Any) -> dict[str, str]:
    """Return the sha256 of what the naive writer makes of a recipe."""
    naive.convert(sources, out, **{"val_tokens": recipe["shard_tokens"], **recipe})
    return runner.shards(out)


@pytest.mark.parametrize("tokenizer", ["gpt2", "cl100k_base"])
def test_either_encoder_and_any_number_of_threads_make_equal_folders(
    tokenizer: str, sources: Path, tmp_path: Path
) -> None:
    doubtful = ["\u088f \ua7ce", "plain", "x\U000323b0y", "\U00010940" * 300]
    corpus.write(tmp_path / "sources/0.parquet", doubtful)
    (tmp_path / "sources/1.parquet").write_bytes((sources / "00.parquet").read_bytes())
    ways = {
        "reference": ["--encoder", "reference", "--threads", "1"],
        "reference with threads": ["--encoder", "reference", "--threads", "3"],
        "auto": ["--threads", "1"],
        "auto with threads": ["--threads", "3"],
    }
    trees = []
    for name, flags in ways.items():
        recipe = {"tokenizer": tokenizer, "shard_tokens": 500, "workers": 1}
        ended = runner.run(tmp_path / "sources", tmp_path / name, *flags, **recipe)
        runner.assert_tidy_end(ended, 0)
        trees.append(runner.tree(tmp_path / name))
    assert all(tree == trees[0] for tree in trees)


@pytest.mark.parametrize(("recipe", "val_shards"), RECIPES.values(), ids=RECIPES.keys())
def test_the_output_equals_that_of_the_naive_writer(
    recipe: dict[str, Any], val_shards: int, sources: Path, tmp_path: Path
) -> None:
    result = runner.convert(sources, tmp_path / "out", **recipe)
    assert (result.complete, result.headline.val_shards) == (True, val_shards)
    assert runner.shards(tmp_path / "out") == naive_shards(sources, tmp_path / "naive", **recipe)


@pytest.mark.parametrize("eot", ["before", "after"])
@pytest.mark.parametrize("last", ["merge", "keep", "drop"])
def test_tails_that_fill_no_shard_end_as_asked(last: str, eot: str, tmp_path: Path) -> None:
    """With tails this short no joined shard is full: merged, they go into the last shard of a job."""
    sources = tmp_path / "sources"
    for number, length in enumerate((1023, 520, 60, 15)):
        texts = [f"{number} {row} ".ljust(29, "x") for row in range(length // 30)]
        corpus.write(sources / f"{number}.parquet", [*texts, "y" * (length % 30 or 1)])
    recipe: dict[str, Any] = {
        "tokenizer": "bytes",
        "shard_tokens": 250,
        "val_tokens": 100,
        "last": last,
        "eot": eot,
    }
    for out in (tmp_path / "one", tmp_path / "two"):
        result = runner.convert(sources, out, workers=2, **recipe)
        assert result.complete
        again = runner.convert(sources, out, workers=2, **recipe)
        assert again.untouched
        assert verify(out).problems == ()
    assert runner.shards(tmp_path / "one") == naive_shards(sources, tmp_path / "naive", **recipe)
    assert runner.tree(tmp_path / "one") == runner.tree(tmp_path / "two")
    manifest = json.loads((tmp_path / "one/manifest.json").read_text())
    told = manifest["headline"].get("dropped_tokens", 0)
    kept, given = (sum(line["tokens"] for line in manifest[key]) for key in ("shards", "jobs"))
    assert kept + told == given
    shortest = min(line["tokens"] for line in manifest["shards"] if line["split"] == "train")
    assert (shortest < 250) is (last == "keep")
    assert ("dropped_tokens" in manifest["headline"]) is (last == "drop")


@pytest.mark.parametrize("layout", ["independent", "contiguous"])
def test_one_two_and_four_workers_make_equal_folders(layout: str, sources: Path, tmp_path: Path) -> None:
    recipe: dict[str, Any] = {
        "tokenizer": "bytes",
        "layout": layout,
        "shard_tokens": corpus.LONG_SHARD_TOKENS,
    }
    for workers in (1, 2, 4):
        assert runner.convert(sources, tmp_path / str(workers), workers=workers, **recipe).complete
    one, two, four = (runner.tree(tmp_path / str(workers)) for workers in (1, 2, 4))
    assert one == two == four
    assert runner.shards(tmp_path / "1") == naive_shards(sources, tmp_path / "naive", **recipe)


@pytest.mark.parametrize("layout", ["independent", "contiguous"])
@pytest.mark.parametrize("shard_tokens", [1, 7])
def test_a_shard_may_have_a_handful_of_tokens(shard_tokens: int, layout: str, tmp_path: Path) -> None:
    sources = corpus.tiny(tmp_path / "sources")
    recipe: dict[str, Any] = {"tokenizer": "bytes", "layout": layout, "shard_tokens": shard_tokens}
    assert runner.convert(sources, tmp_path / "out", **recipe).complete
    assert runner.shards(tmp_path / "out") == naive_shards(sources, tmp_path / "naive", **recipe)


def test_a_document_longer_than_three_shards_goes_on_through_them(sources: Path, tmp_path: Path) -> None:
    runner.convert(sources, tmp_path, tokenizer="bytes", shard_tokens=corpus.LONG_SHARD_TOKENS, val_tokens=0)
    indexes = sorted((tmp_path / "index").glob("*_train_00003_*.docs"))
    starts = [path.stat().st_size // 8 for path in indexes]
    assert [0, 0, 0] in (starts[at : at + 3] for at in range(len(starts))), "no three shards without a start"


def test_a_single_file_is_a_source(sources: Path, tmp_path: Path) -> None:
    recipe: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 1000}
    alone = tmp_path / "alone" / "00.parquet"
    alone.parent.mkdir()
    alone.write_bytes((sources / "00.parquet").read_bytes())
    assert runner.convert(sources / "00.parquet", tmp_path / "out", **recipe).complete
    assert runner.shards(tmp_path / "out") == naive_shards(alone.parent, tmp_path / "naive", **recipe)


def test_sources_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    names = ("b/2", "b/10", "a", "b-", "B", "\u00fcber alles \U0001f680", "a b", "b/c/d")
    for number, name in enumerate(names):
        corpus.write(tmp_path / "sources" / f"{name}.parquet", corpus.documents(number * 100, 3))
    recipe: dict[str, Any] = {"tokenizer": "bytes", "layout": "contiguous", "shard_tokens": 100}
    assert runner.convert(tmp_path / "sources", tmp_path / "out", workers=2, **recipe).complete
    assert runner.shards(tmp_path / "out") == naive_shards(tmp_path / "sources", tmp_path / "naive", **recipe)


@pytest.mark.parametrize("layout", ["independent", "contiguous"])
def test_sources_without_a_document_give_a_complete_run_without_shards(layout: str, tmp_path: Path) -> None:
    corpus.write(tmp_path / "sources" / "a.parquet", [])
    corpus.write(tmp_path / "sources" / "b.parquet", [None, ""])
    result = runner.convert(tmp_path / "sources", tmp_path / "out", tokenizer="bytes", layout=layout)
    assert result.complete
    assert list(runner.tree(tmp_path / "out")) == ["manifest.json"]
    assert (result.headline.null_rows, result.headline.empty_rows) == (1, 1)


def test_a_script_without_a_main_guard_converts_and_nothing_is_printed(sources: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import fwconvert\n"
        f"source = {str(sources)!r}\n"
        "recipe = fwconvert.recipe(source=source, tokenizer='gpt2', shard_tokens=1000)\n"
        "assert fwconvert.convert(recipe, 'out', fwconvert.Options(workers=2)).complete\n"
    )
    surroundings = {**os.environ, "PYTHONPATH": str(runner.REPOSITORY)}
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False, timeout=runner.PATIENCE,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    expected = naive_shards(sources, tmp_path / "naive", tokenizer="gpt2", shard_tokens=1000)
    assert runner.shards(tmp_path / "out") == expected


def test_an_interactive_caller_converts_too(tmp_path: Path) -> None:
    """In `python -c` and in notebooks there is no script that a worker could import."""
    sources = corpus.tiny(tmp_path / "sources")
    program = (
        "import fwconvert, pathlib;"
        "recipe = fwconvert.recipe(source='sources', tokenizer='bytes', shard_tokens=7);"
        "fwconvert.convert(recipe, 'out', fwconvert.Options(workers=1))"
    )
    surroundings = {**os.environ, "PYTHONPATH": str(runner.REPOSITORY)}
    subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=surroundings, check=True, timeout=runner.PATIENCE
    )
    expected = naive_shards(sources, tmp_path / "naive", tokenizer="bytes", shard_tokens=7)
    assert runner.shards(tmp_path / "out") == expected
