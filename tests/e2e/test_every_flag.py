"""Every flag of a recipe, as words of a command line: run, repeated, looked at, exported, killed, resumed.

A word from a command line is another object than the one in the source, and a
program must not notice. So nothing here calls a function of the package.
"""

import json
import shutil
import signal
from pathlib import Path

import corpus
import pytest
import runner
import small_tokenizers
from runner import PRIVATE

SIZE = ("--tokenizer", "bytes", "--shard-tokens", "700")

# All words of every choice, and a value for every other flag.
FLAGS: dict[str, tuple[str, ...]] = {
    "nothing": SIZE,
    # What is the case anyway, in words.
    "defaults": (*SIZE, "--last", "merge", "--layout", "independent", "--eot", "before", "--compress", "none",
                 "--format", "llmc", "--text-column", "text", "--name", "edu_fineweb"),
    **{f"last {word}": (*SIZE, "--last", word) for word in ("keep", "drop")},
    "layout contiguous": (*SIZE, "--layout", "contiguous"),
    "eot after": (*SIZE, "--eot", "after"),
    "compress zstd": (*SIZE, "--compress", "zstd"),
    **{f"format {word}": (*SIZE, "--format", word)
       for word in ("npy", "megatron", "datatrove", "nemo", "litdata", "parquet")},
    "format mds": (*SIZE, "--format", "mds", "--sequence-length", "32"),
    "format raw": ("--tokenizer", "bytes", "--format", "raw", "--val-tokens", "500"),
    "format raw zstd": ("--tokenizer", "bytes", "--format", "raw", "--val-tokens", "0", "--compress", "zstd"),
    **{f"tokenizer {word}": ("--tokenizer", word, "--shard-tokens", "200")
       for word in ("gpt2", "r50k_base", "cl100k_base")},
    "tokenizer FILE": ("--tokenizer", "tokenizer.json", "--shard-tokens", "700"),
    **{f"separators {' '.join(words)}": ("--tokenizer", "cl100k_base", "--shard-tokens", "200", *words)
       for words in (("--eot-token", "<|fim_prefix|>"), ("--bos-token", "100256"),
                     ("--bos-token", "<|endofprompt|>", "--eot-token", "100257"))},
    "as llm.c": (*SIZE, "--layout", "contiguous", "--last", "keep"),
    "val-tokens": (*SIZE, "--val-tokens", "0"),
    "name": (*SIZE, "--name", "other"),
    "min-score": (*SIZE, "--min-score", "3"),
    "min-int-score": (*SIZE, "--min-int-score", "3"),
    "where": (*SIZE, "--where", "len(text) > 20 and score < 20"),
    "limit-documents": (*SIZE, "--limit-documents", "40"),
    "limit-tokens": (*SIZE, "--limit-tokens", "3,000", "--last", "keep"),
    "encoder": ("--tokenizer", "gpt2", "--shard-tokens", "200", "--encoder", "reference", "--threads", "2"),
}  # fmt: skip
every = pytest.mark.parametrize("words", FLAGS.values(), ids=FLAGS.keys())


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for number in range(3):
        texts = corpus.documents(100 * number, 20)
        corpus.write_columns(
            folder / f"{number}.parquet", text=texts, score=[*range(20)], int_score=[*range(20)]
        )
    return folder


@pytest.fixture(autouse=True)
def _tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Have the file of a tokenizer where the program is started."""
    if "tokenizer FILE" in request.node.name:
        pytest.importorskip("tokenizers", reason="the extra hf is not installed")
        small_tokenizers.written(tmp_path, "tokenizer.json", small_tokenizers.byte_level())
        monkeypatch.chdir(tmp_path)


def convert(sources: Path, out: Path, *words: str) -> None:
    ended = runner.command_line("--source", str(sources), "--out", str(out), "--workers", "1", *words)
    runner.assert_tidy_end(ended, 0)


def exported_words(words: tuple[str, ...]) -> list[str]:
    """Return what makes another run of it: another name, or for a stream the shards of llm.c."""
    return ["--format", "llmc", "--shard-tokens", "500"] if "raw" in words else ["--name", "another"]


@every
def test_a_run_can_be_repeated_looked_at_exported_killed_and_resumed(
    sources: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    convert(sources, out, *words)
    before = runner.state(out)

    convert(sources, out, *words)
    assert runner.state(out) == before, "the same command again changed something"
    for command in ("status", "verify"):
        runner.assert_tidy_end(runner.command_line(command, str(out)), 0)
    assert_exported(out, tmp_path / "new", words)

    with runner.running(sources, again, "--workers", "1", *words) as process:
        runner.wait_until(lambda: runner.steps(again), process)
        process.send_signal(signal.SIGKILL)
        runner.finish(process)
    convert(sources, again, *words)
    assert runner.tree(again) == runner.tree(out)


def assert_exported(out: Path, new: Path, words: tuple[str, ...]) -> None:
    """Fail unless the run can be exported, or is refused because tokens were dropped."""
    dropped = json.loads((out / "manifest.json").read_bytes())["headline"].get("dropped_tokens", 0)
    ended = runner.command_line("export", str(out), "-o", str(new), *exported_words(words))
    runner.assert_tidy_end(ended, 2 if dropped else 0)


# --- runs that the command line of the first version made, with another id


def as_the_first_version_made_it(out: Path) -> str:
    """Give a run the id, everywhere, that `--last keep` gave it: of the rules with `last` written out."""
    manifest = json.loads((out / "manifest.json").read_bytes())
    first = [*manifest["rules"].items()]
    at = [name for name, _ in first].index("block_digits") + 1
    rules = dict([*first[:at], ("last", "keep"), *first[at:]])
    files = [[source["path"]] for source in manifest["sources"]]
    old = runner.digest_json([manifest["dataset"], manifest["revision"], files, rules])
    for path in [out / "manifest.json", *(out / PRIVATE).rglob("*.json")]:
        text = path.read_text().replace(manifest["recipe_id"], old)
        if path.name in {"manifest.json", "plan.json"}:
            text = text.replace('"block_digits":3', '"block_digits":3,"last":"keep"')
        record = json.loads(text)
        if "digest" in record:
            text = json.dumps({**record, "digest": ""}, separators=(",", ":"), ensure_ascii=False)
            text = json.dumps({**record, "digest": runner.sha256_text(text)}, separators=(",", ":"))
        path.write_text(text)
    return old


@pytest.mark.parametrize("words", [(), ("--layout", "contiguous")], ids=["independent", "contiguous"])
def test_a_run_of_the_first_version_with_last_keep_is_accepted_and_finished(
    sources: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    words = (*SIZE, "--last", "keep", *words)
    convert(sources, whole, *words)
    shutil.copytree(whole, out)
    old = as_the_first_version_made_it(out)
    before = runner.state(out)

    for command in ("status", "verify"):
        runner.assert_tidy_end(runner.command_line(command, str(out)), 0)
    convert(sources, out, *words)
    assert runner.state(out) == before
    export = runner.command_line("export", str(out), "-o", str(tmp_path / "new"), "--name", "new")
    runner.assert_tidy_end(export, 0)

    # And one that was cut off: a job is missing, and so is what was made of it.
    next((out / PRIVATE / "receipts").glob("1.parquet*")).unlink()
    for join in (out / PRIVATE / "joins").iterdir():
        join.unlink()
    runner.cut_off(out)
    convert(sources, out, *words)
    assert runner.shards(out) == runner.shards(whole)
    assert json.loads((out / "manifest.json").read_bytes())["recipe_id"] == old
    runner.assert_tidy_end(runner.command_line("verify", str(out)), 0)
