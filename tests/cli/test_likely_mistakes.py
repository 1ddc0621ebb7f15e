"""The mistakes that a new user is most likely to make: each is answered once, with what to do.

All through the real program. Most end before anything is looked at, and write nothing.
"""

import shutil
import subprocess
from pathlib import Path

import corpus
import pytest
import runner

RECIPE = ("--tokenizer", "bytes", "--shard-tokens", "200", "--workers", "1")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a user may have lying around, and a finished run."""
    home = tmp_path_factory.mktemp("home")
    for number in range(3):
        texts = corpus.documents(100 * number, 20)
        corpus.write_columns(home / f"data/{number}.parquet", text=texts, score=[*range(20)])
    text = (
        "csvs/a.csv",
        "lines/a.jsonl",
        "lines/b.jsonl",
        "mixed/a.jsonl",
        "mixed/b.arrow",
        "tables/a.parquet",
    )
    for name in text:
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text('{"text": "hello"}\n')
    (home / "empty").mkdir()
    for number in range(3):  # The names of FineWeb-Edu's files, and other bytes.
        shutil.copy(home / "data/0.parquet", home / f"{number:03}_00000.parquet")
    (home / "fake").mkdir()
    for number in range(3):
        (home / f"{number:03}_00000.parquet").rename(home / f"fake/{number:03}_00000.parquet")
    ended = runner.command_line("--source", "data", "--out", "tokens", *RECIPE, cwd=home)
    runner.assert_tidy_end(ended, 0)
    return home


# What is typed, and what must be answered.
MISTAKES: list[tuple[str, list[str]]] = [
    # --- commands
    ("10B", ["unknown command", "10B", "did you mean fwconvert --version 10B?"]),
    ("demo --out x", ["did you mean fwconvert --version demo --out x?"]),
    ("data", ["did you mean fwconvert --source data --out OUT?"]),
    ("data/0.parquet -o x", ["did you mean fwconvert --source data/0.parquet -o x?"]),
    ("verfy tokens", ["unknown command", "verfy", "did you mean verify?"]),
    ("stats tokens", ["did you mean status?"]),
    ("run --version demo", ["unknown command", "the commands are plan, pin,"]),
    ("version", ["did you mean fwconvert --version?"]),
    ("--version 10B plan", ["the command comes first", "did you mean fwconvert plan --version 10B?"]),
    ("plan 10B", ["did you mean --version 10B?"]),
    ("", ["nothing to convert", "--version demo", "--source DIR"]),
    # --- flags
    ("--sorce data -o x", ["no such flag", "--sorce", "did you mean --source?"]),
    ("--version demo --tokeniser gpt2", ["--tokeniser", "did you mean --tokenizer?"]),
    ("--source data --output x", ["--output", "did you mean --out?"]),
    ("--source data -o x --shard_tokens 1M", ["did you mean --shard-tokens?"]),
    ("--source data -o x --num-workers 4", ["did you mean --workers?"]),
    ("--source data -out x", ["two hyphens", "-out", "did you mean --out?"]),
    ("\N{EN DASH}version demo", ["hyphens", "\N{EN DASH}version", "did you mean --version?"]),
    ("--version demo --resume", ["no such flag", "the same command again continues"]),
    ("--version demo --force", ["no such flag", "remove the folder"]),
    ("--version demo --dry-run", ["fwconvert plan"]),
    ("--version demo --json", ["no such flag", "fwconvert plan, fwconvert status"]),
    ("verify tokens --workers 2", ["fwconvert verify has no such flag", "--workers"]),
    ("--source data -o x --quiet=yes", ["--quiet takes no value", "yes"]),
    ("--version demo --out", ["--out needs a value"]),
    ("--out x --version", ["--version needs a value", "10B"]),
    ("verify", ["OUT is missing", "fwconvert verify OUT"]),
    ("export tokens --format npy", ["--out is missing", "fwconvert export OUT -o DIR"]),
    ("show tokens", ["name a token shard, or pass --document N"]),
    ("verify tokens other", ["belongs to no flag", "other"]),
    # --- values
    ("--version 10b", ["no version with this name", "10b", "did you mean 10B?"]),
    ("--version 10BT", ["did you mean 10B?"]),
    ("--version demo --tokenizer gpt4", ["no such tokenizer", "gpt4", "did you mean cl100k_base?"]),
    ("--version demo --tokenizer llama3", ["no such tokenizer", "llama3", "gpt2"]),
    ("--version demo --tokenizer gone/tokenizer.json", ["does not exist", "check the path"]),
    ("--source data -o x --tokenizer ./data", ["no file that defines a tokenizer", "tokenizer.json"]),
    ("--source data -o x --tokenizer data/0.parquet", ["no file that defines a tokenizer", "OWNER/NAME"]),
    ("--version demo --tokenizer gpt2 --eot-token <|fin|>", ["no special token", "<|endoftext|> (50256)"]),
    ("--version demo --format llm.c", ["--format", "llm.c", "did you mean llmc?"]),
    ("--version demo --format nanogpt", ["did you mean raw?"]),
    ("--version demo --eot end", ["--eot", "did you mean after?"]),
    ("--version demo --shard-tokens 200MB", ["counts tokens, not bytes", "100,000,000 tokens of gpt2"]),
    ("--version demo --limit-tokens 2GiB", ["counts tokens, not bytes", "2GiB"]),
    ("--version demo --shard-tokens many", ["--shard-tokens is not a number", "many", "100M"]),
    ("--version demo --shard-tokens 1.5", ["not a whole number", "1.5"]),
    ("--version demo --workers 0", ["--workers must be at least 1", "0"]),
    ("--version demo --worker-memory lots", ["--worker-memory is not a size", "lots", "4GB"]),
    ("--version demo --min-score high", ["--min-score is not a number", "high"]),
    ("plan --version demo --bandwidth 100", ["--bandwidth is not the speed of a line", "100M", "12MB/s"]),
    ("--source data -o x --where score=3", ["score=3"]),
    ("--source data -o x --where scor>3", ["no such column", "scor", "score (int64)"]),
    ("--source data -o x --text-column body", ["no such text column", "text (string)", "--text-column"]),
    ("--source data -o x --shard-tokens 2B", ["out of range", "2,000,000,000"]),
    ("--source data -o x --rank 1", ["--rank is one of how many?", "--world"]),
    # --- sources
    ("--source data", ["--out is missing", "--out DIR"]),
    ("--source nowhere -o x", ["does not exist", "nowhere"]),
    ("--source empty -o x", ["no parquet, jsonl or Arrow files here", "none"]),
    ("--source csvs -o x", ["no parquet, jsonl or Arrow files here", "1 .csv", "make parquet of it"]),
    ("--source lines -o x --text-column body", ["no such text column", "text", "--text-column"]),
    ("--source mixed -o x", ["files of two kinds", "jsonl", "arrow", "name the ones that are meant"]),
    ("--source csvs/a.csv -o x", ["not one of the parquet, jsonl or Arrow", "csvs/a.csv", "csv.read_csv"]),
    ("--source data/0.parquet data/1.parquet data/2.parquet -o x",
     ["has the shell expanded a pattern?", "3 paths", "--source 'data/*.parquet'"]),
    ("--version 10B --source fake -o x",
     ["not those of 10B", "fake", "2,152,819,114 bytes", "3 of another size, 11 are missing"]),
    ("--version 10B --source data -o x", ["0 of the 14 files are there", "sample/10BT/000_00000.parquet"]),
    ("--version demo --source data -o x", ["--source cannot be combined with --version demo"]),
    # --- the folder of a run
    ("status data", ["not a run of fwconvert", "data"]),
    ("verify empty", ["manifest"]),
    ("repair empty", ["not a run of fwconvert"]),
    ("--source data -o tokens --tokenizer gpt2", ["another recipe", "tokenizer in folder"]),
    ("--source data -o data/0.parquet --tokenizer bytes", ["--out is a file, not a folder"]),
    ("show tokens nothing", ["no such token shard", "nothing"]),
    ("completion powershell", ["SHELL has no such choice", "powershell", "bash, zsh, fish"]),
]  # fmt: skip


def everything(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(("typed", "told"), MISTAKES, ids=[typed or "nothing" for typed, _ in MISTAKES])
def test_a_mistake_is_answered_once_with_what_to_do(typed: str, told: list[str], prepared: Path) -> None:
    before = everything(prepared)

    ended = runner.command_line(*typed.split(), cwd=prepared)

    runner.assert_tidy_end(ended, 2)
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert lines[0].startswith("fwconvert: ")
    assert all(line.startswith("  ") for line in lines[1:]), "more than one message"
    assert len(lines) == len({*lines}) <= 12
    assert "usage:" not in ended.stderr
    for part in told:
        assert part in ended.stderr
    assert everything(prepared) == before


def test_the_mistakes_are_many() -> None:
    assert len(MISTAKES) >= 40


# --- mistakes that show only in the end


def convert(home: Path, out: Path, *words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    ended = runner.command_line("--source", home / "data", "-o", out, *RECIPE, *words)
    runner.assert_tidy_end(ended, code)
    return ended


def test_a_filter_that_keeps_nothing_says_so_and_leaves_the_folder_free(
    prepared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    said = convert(prepared, out, "--where", "score > 100").stdout

    assert "the filter keeps none of 60 rows" in said
    planned = runner.command_line("plan", "--source", prepared / "data", *RECIPE, "--where", "score > 100")
    assert "the filter keeps nothing of what was looked at" in planned.stdout
    assert "60 documents" in convert(prepared, out).stdout
    runner.assert_tidy_end(runner.command_line("verify", out), 0)
    assert runner.tree(out) == runner.tree(prepared / "tokens")


def test_a_first_try_that_made_nothing_does_not_claim_the_folder(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    failed = runner.command_line("--source", prepared / "tables", "-o", out, *RECIPE)
    runner.assert_tidy_end(failed, 1)
    assert failed.stderr.count("failed: a source file cannot be read as parquet") == 1

    convert(prepared, out)

    assert runner.tree(out) == runner.tree(prepared / "tokens")


def test_a_limit_that_is_not_reached_is_told(prepared: Path, tmp_path: Path) -> None:
    said = convert(prepared, tmp_path / "out", "--limit-documents", "61").stdout
    assert "the limit was not reached: --limit-documents 61, and there are 60" in said
    planned = runner.command_line("plan", "--source", prepared / "data", *RECIPE, "--limit-documents", "61")
    assert "61 documents: not reached" in planned.stdout
    assert "not reached" not in convert(prepared, tmp_path / "less", "--limit-documents", "60").stdout


def test_a_large_run_without_validation_is_told_before_and_after(prepared: Path, tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    corpus.write(sources / "a.parquet", ["too small"])
    corpus.write(sources / "b.parquet", corpus.documents(0, 60))
    words = ("--source", sources, "-o", tmp_path / "out", *RECIPE, "--shard-tokens", "2000")

    ended = runner.command_line(*words)

    runner.assert_tidy_end(ended, 0)
    assert ended.stderr.count("there will be no validation shard: it comes from the first source") == 1
    assert "there is no validation shard" in ended.stdout
    planned = runner.command_line("plan", *words).stdout
    assert (
        "none: it comes from the first source, which has fewer tokens than that (a.parquet: about 10 of 2k)"
        in planned
    )
    assert "--layout contiguous" in planned
    assert "no validation shard" not in convert(prepared, tmp_path / "large").stderr


def test_many_sources_that_fail_alike_are_told_together(tmp_path: Path) -> None:
    sources, out = tmp_path / "sources", tmp_path / "out"
    sources.mkdir()
    for number in range(9):
        (sources / f"{number}.parquet").write_text("no parquet at all")

    ended = runner.command_line("--source", sources, "-o", out, *RECIPE)

    runner.assert_tidy_end(ended, 1)
    assert ended.stderr.count("failed: a source file cannot be read as parquet") == 3
    assert "6 more failed in the same way" in ended.stderr
    assert f"fwconvert status {out}" in ended.stderr


def test_words_that_are_no_mistake(prepared: Path, tmp_path: Path) -> None:
    """The word convert, -o for --out, sizes with a unit of bytes where bytes are meant."""
    words = ("--source", prepared / "data", "-o", tmp_path / "out", *RECIPE, "--worker-memory", "4GiB")
    for _ in range(2):
        runner.assert_tidy_end(runner.command_line("convert", *words), 0)
    assert runner.tree(tmp_path / "out") == runner.tree(prepared / "tokens")
    told = runner.command_line("help", "plan")
    runner.assert_tidy_end(told, 0)
    assert told.stdout.startswith("usage: fwconvert plan [flags]")


def test_version_alone_names_the_versions_of_the_data() -> None:
    for words in (["--version"], ["-V"]):
        ended = runner.command_line(*words)
        runner.assert_tidy_end(ended, 0)
        assert ended.stdout.startswith("fwconvert ")
        for name in ("demo", "10B", "100B", "350B", "full", "28.5 GB"):
            assert name in ended.stdout
    assert len(runner.command_line("--about").stdout.splitlines()) == 1


def test_a_pattern_in_quotes_is_taken(prepared: Path) -> None:
    quoted = runner.command_line("plan", "--source", "data/*.parquet", *RECIPE, cwd=prepared)
    runner.assert_tidy_end(quoted, 0)
    assert "files" in quoted.stdout
