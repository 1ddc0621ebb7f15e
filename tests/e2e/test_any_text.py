"""Text in every kind of file, by the program: the shards of parquet, and a fault is its own source's."""

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import bounded
import corpus
import hub_runs
import numpy as np
import pytest
import runner
import text_files
import zstandard
from hub_server import HubServer

TEXTS: list[str | None] = [*corpus.documents(0, 40), *corpus.ODD, *corpus.documents(40, 20)]
ROWS = text_files.rows(TEXTS)
RECIPE = ("--tokenizer", "bytes", "--shard-tokens", "1000", "--val-tokens", "0", "--workers", "1")
REFERENCE = (runner.REPOSITORY / "REFERENCE.md").read_text()


def each_kind(folder: Path, *kinds: str) -> list[str]:
    """Write the same rows as each kind of file; return the words that name them, in this order."""
    words = []
    for number, kind in enumerate(kinds):
        words += ["--source", str(text_files.write(folder / f"{number:02d}", kind, ROWS).parent)]
    return words


def assert_alike(out: Path, sources: int) -> None:
    """Assert that each source gave the tokens, the documents and the rows that the first one gave."""
    found = [
        [(out / f"{part}_{number:05d}_{block:03d}{end}").read_bytes() for part, end in PARTS]
        for number in range(sources)
        for block in range(len([*out.glob(f"edu_fineweb_train_{number:05d}_*.bin")]))
    ]
    blocks = len(found) // sources
    assert blocks > 3
    assert found == found[:blocks] * sources
    # What filled no shard of a source is joined, one tail after the other.
    paths = sorted(out.glob(f"edu_fineweb_train_{sources:05d}_*.bin"))
    joined = [token for path in paths for token in np.fromfile(path, "<u2", offset=1024).tolist()]
    assert joined
    assert joined == joined[: len(joined) // sources] * sources


PARTS = (("edu_fineweb_train", ".bin"), ("index/edu_fineweb_train", ".docs"))


def test_every_kind_gives_the_shards_of_parquet(tmp_path: Path) -> None:
    out, words = tmp_path / "out", each_kind(tmp_path / "sources", *text_files.KINDS)
    line = [*words, "--out", out, *RECIPE]

    runner.assert_tidy_end(runner.command_line(*line), 0)

    assert_alike(out, len(text_files.KINDS))
    made = runner.state(out)
    again = runner.command_line(*line)
    runner.assert_tidy_end(again, 0)
    assert "already" in again.stdout
    assert runner.state(out) == made
    runner.assert_tidy_end(runner.command_line("verify", out), 0)
    # A token of the separator, and one for each byte.
    row = next(at for at in range(40) if sum(len(text or "") + 1 for text in TEXTS[: at + 1]) > 500)
    for number, kind in enumerate(text_files.KINDS):
        told = runner.command_line("trace", out, f"train_{number:05d}_000:500").stdout
        assert f"a{text_files.KINDS[kind]}" in told
        assert f"  row       {row}\n" in told
        assert f"https://example.org/{row}\n" in told


def test_a_dotted_column_and_a_filter_choose_alike(tmp_path: Path) -> None:
    kinds = ("parquet", "jsonl.zst", "arrow stream, view", "feather", "jsonl.gz")
    words = each_kind(tmp_path / "sources", *kinds)
    chosen = ("--text-column", "meta.text", "--where", "column('meta.language') == 'en' and score > 0.4")

    ended = runner.command_line(*words, "--out", tmp_path / "out", *RECIPE, *chosen)

    runner.assert_tidy_end(ended, 0)
    assert_alike(tmp_path / "out", len(kinds))
    kept = [row for row in ROWS if row["meta"]["language"] == "en" and (row["score"] or 0) > 0.4]
    documents = json.loads((tmp_path / "out/manifest.json").read_text())["headline"]["documents"]
    assert documents == len(kinds) * sum(bool(row["text"]) for row in kept)


def test_a_killed_run_of_lines_ends_in_the_same_bytes(tmp_path: Path) -> None:
    for number in range(6):
        kind = ("jsonl", "jsonl.gz", "jsonl.zst")[number % 3]
        rows = text_files.rows(corpus.documents(100 * number, 60))
        text_files.write(tmp_path / "sources", kind, rows, stem=str(number))
    how: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 1000}
    assert runner.convert(tmp_path / "sources", tmp_path / "whole", **how).complete
    out = tmp_path / "killed"
    for steps in (2, 6):  # The last is when the join begins.
        with runner.running(tmp_path / "sources", out, workers=2, **how) as process:
            runner.wait_until(lambda least=steps: runner.steps(out) >= least, process)  # type: ignore[misc]

    runner.assert_tidy_end(runner.run(tmp_path / "sources", out, workers=2, **how), 0)

    assert runner.tree(out) == runner.tree(tmp_path / "whole")
    assert runner.litter(out) == []


def test_what_is_wrong_with_a_file_is_that_source_s_and_can_be_mended(tmp_path: Path) -> None:
    """A bad line, a file that is cut short, two bombs of one line: each is told, the rest is converted."""
    folder = tmp_path / "sources"
    for stem in "abde":
        text_files.write(folder, "jsonl.gz" if stem == "b" else "jsonl", ROWS, stem=stem)
    line = b'{"text": "' + bytes(135 * 2**20).replace(b"\0", b"x") + b'"}\n'
    wrong = {
        "b.jsonl.gz": (folder / "b.jsonl.gz").read_bytes()[:-9],
        "d.jsonl": b'{"text": "one"}\n{"text": "two"}\n{"text": three}\n',
        "f.jsonl.gz": gzip.compress(b'{"text": "one"}\n' + line, 1),
        "g.jsonl.zst": zstandard.ZstdCompressor().compress(line),
    }
    whole = {name: (folder / name).read_bytes() for name in ("b.jsonl.gz", "d.jsonl")}
    for name, content in wrong.items():
        (folder / name).write_bytes(content)
    # Unpacked, a line may take several times its size for a moment; a bomb would take far more.
    command = ("--source", folder, "--out", tmp_path / "out", *RECIPE, "--worker-memory", "1GB")

    ended = bounded.run(*command, seconds=runner.PATIENCE)

    assert ended.code == 1, ended.said
    told = json.loads(runner.command_line("status", tmp_path / "out", "--json").stdout)
    reasons = {Path(one["path"]).name: one["reason"] for one in told["failed"]}
    assert reasons.keys() == wrong.keys()
    assert "cut short" in reasons["b.jsonl.gz"]
    assert "  line    3\n" in reasons["d.jsonl"]
    assert "  line    2\n" in reasons["f.jsonl.gz"]
    assert "  line    1\n" in reasons["g.jsonl.zst"]
    assert all("134,217,728 bytes" in reasons[name] for name in ("f.jsonl.gz", "g.jsonl.zst"))
    for name in wrong:
        content = whole.get(name) or gzip.compress(b"") if name != "g.jsonl.zst" else b""
        (folder / name).write_bytes(content)
    runner.assert_tidy_end(runner.command_line(*command), 0)
    runner.assert_tidy_end(runner.command_line("--source", folder, "--out", tmp_path / "whole", *RECIPE), 0)
    assert runner.tree(tmp_path / "out") == runner.tree(tmp_path / "whole")


# What stands in the repositories that the reference names, in small, and the column that has the text.
CORPORA = {
    "HuggingFaceFW/fineweb": ("sample/10BT/000_00000", "parquet", "text"),
    "HuggingFaceFW/fineweb-edu": ("data/CC-MAIN-2024-10/000_00000", "parquet", "text"),
    "HuggingFaceFW/fineweb-2": ("data/deu_Latn/train/000_00000", "parquet", "text"),
    "karpathy/fineweb-edu-100b-shuffle": ("shard_00000", "parquet", "text"),
    "wikimedia/wikipedia": ("20231101.en/train-00000-of-00041", "parquet", "text"),
    "HuggingFaceTB/smollm-corpus": ("cosmopedia-v2/train-00000-of-00104", "parquet", "text"),
    "mlfoundations/dclm-baseline-1.0": (
        "global-shard_01_of_10/local-shard_0_of_10/shard_00000000_processed",
        "jsonl.zst",
        "text",
    ),
    "codeparrot/codeparrot-clean": ("file-000000000001", "json.gz", "content"),
}


def examples() -> list[list[str]]:
    """Return the lines of the reference that pin a dataset of the hub, as words."""
    block = REFERENCE.partition("## Other datasets")[2].partition("\n## ")[0]
    lines = [
        shlex.split(line, comments=True) for line in block.splitlines() if line.startswith("fwconvert pin")
    ]
    return [words[1:] for words in lines if "/" in words[2]]


def test_the_reference_pins_the_corpora_that_are_tried_here() -> None:
    assert {words[1] for words in examples()} == {*CORPORA}


@pytest.mark.parametrize("words", examples(), ids=lambda words: words[1])
def test_the_examples_of_the_reference_are_pinned_and_planned(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder on the hub has others beside the one that is named, and files of other kinds."""
    stem, kind, column = CORPORA[words[1]]
    rows = [{**row, column: row["text"], "id": row["id"]} for row in ROWS]
    for row in rows if column != "text" else ():
        del row["text"]
    repository = tmp_path / "repository"
    path = text_files.write(repository, kind, rows, stem=stem)
    text_files.write(repository, kind, rows, stem="other/000_00000")
    (path.parent / "README.md").write_text("a dataset")
    (path.parent / "dataset_infos.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with HubServer(repository, repo=words[1]) as hub:
        runner.assert_tidy_end(hub_runs.run(words, hub.endpoint), 0)
        recipe = ["--version", words[-1], *(["--text-column", column] if column != "text" else [])]
        planned = hub_runs.run(["plan", *recipe, "--json", "--bandwidth", "1G"], hub.endpoint)
        listed = json.loads((tmp_path / words[-1]).read_text())["files"]
        if kind != "parquet":
            fetched_as_from_disk(hub, recipe, [repository / file["path"] for file in listed])
    runner.assert_tidy_end(planned, 0)
    named = words[2] if not words[2].startswith("-") else ""
    assert [file["path"] for file in listed if not file["path"].startswith("other/")] == [
        str(path.relative_to(repository))
    ]
    assert all(file["path"].startswith(named) for file in listed)
    told = json.loads(planned.stdout)
    assert told["sampled_from"] == "remote"
    # Rows with a text, which are all that are seen in so small a file.
    assert told["plan"]["rows"] == len(listed) * sum(bool(text) for text in TEXTS)


def fetched_as_from_disk(hub: HubServer, recipe: list[str], files: list[Path]) -> None:
    """Convert what is fetched, twice; assert that the shards are those of the same files on the disk."""
    for _ in range(2):
        ended = hub_runs.run([*recipe, "--out", "fetched", *RECIPE], hub.endpoint)
        runner.assert_tidy_end(ended, 0)
    sources = [word for path in files for word in ("--source", path)]
    column = recipe[2:]
    runner.assert_tidy_end(runner.command_line(*sources, *column, "--out", "local", *RECIPE), 0)
    assert runner.shards(Path("fetched")) == runner.shards(Path("local"))
    assert ended.stdout.startswith("already complete; nothing was changed")
