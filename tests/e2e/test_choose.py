"""Filters and limits: the output is that of a naive writer that asks row by row and counts token by token."""

import json
import os
import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import corpus
import hub_runs
import hub_server
import naive
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runner
from hub_server import HubServer

import fwconvert
from fwconvert import cli
from fwconvert.inspection.verify import verify
from fwconvert.recipes import Layout
from fwconvert.run.engines.executor import ExecutorEngine

Row = dict[str, Any]
LAYOUTS: tuple[Layout, ...] = ("independent", "contiguous")


def quickly(source: Path, out: Path, *, workers: int = 1, **choices: Any) -> fwconvert.Result:
    """Convert in threads: as real as processes for what is written, and many times sooner."""
    with ThreadPoolExecutor(workers) as threads:
        return runner.convert(source, out, engine=ExecutorEngine(threads, workers), **choices)


def write_rows(path: Path, chance: random.Random, rows: int) -> None:
    """Write documents with the columns of FineWeb-Edu, some of them null."""
    texts = [
        chance.choice([None, "", *[corpus.document(chance.randrange(999), chance.randrange(1, 9))] * 9])
        for _ in range(rows)
    ]
    scores = [
        chance.choice([None, chance.uniform(0, 5)]) if chance.random() < 0.2 else chance.uniform(0, 5)
        for _ in range(rows)
    ]
    table = {
        "id": pa.array([f"<urn:uuid:{chance.getrandbits(64):x}>" for _ in range(rows)], pa.string()),
        "text": pa.array(texts, pa.string()),
        "language": pa.array([chance.choice(["en", "en", "de", None]) for _ in range(rows)], pa.string()),
        "language_score": pa.array([chance.random() for _ in range(rows)], pa.float64()),
        "score": pa.array(scores, pa.float64()),
        "int_score": pa.array([None if score is None else round(score) for score in scores], pa.int64()),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), path, row_group_size=chance.choice([7, 1000]))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, chance = tmp_path_factory.mktemp("sources"), random.Random(1)
    for number, rows in enumerate([60, 0, 90, 1, 40, 70, 5]):
        write_rows(folder / f"{number}.parquet", chance, rows)
    return folder


# What the command is told, and what the naive writer asks of a row.
FILTERS: dict[str, tuple[dict[str, Any], Callable[[Row], bool] | None]] = {
    "none": ({}, None),
    "min_score": ({"min_score": 2.5}, lambda row: row["score"] is not None and row["score"] >= 2.5),
    "min_int_score": ({"min_int_score": 3}, lambda row: (row["int_score"] or 0) >= 3),
    "where": (
        {"where": "language == 'en' and language_score > 0.3 or len(text) < 20"},
        lambda row: (row["language"] == "en" and row["language_score"] > 0.3)
        or (row["text"] is not None and len(row["text"]) < 20),
    ),
    "all of them": (
        {"min_score": 0.5, "min_int_score": 2, "where": "not (language == 'de') and not contains(id, 'ff')"},
        lambda row: row["score"] is not None
        and row["score"] >= 0.5
        and row["int_score"] >= 2
        and row["language"] not in ("de", None)
        and "ff" not in row["id"],
    ),
    "nothing is left": ({"where": "score < 0"}, lambda _: False),
}  # fmt: skip


def oracle(sources: Path, out: Path, keep: Callable[[Row], bool] | None, **recipe: Any) -> dict[str, str]:
    """Return the sha256 of what the naive writer makes."""
    known = ("tokenizer", "shard_tokens", "layout", "eot", "limit_documents", "limit_tokens")
    naive.convert(
        sources,
        out,
        val_tokens=recipe.get("val_tokens", recipe["shard_tokens"]),
        keep=keep,
        **{name: value for name, value in recipe.items() if name in known},
    )
    return runner.shards(out)


def assert_right(out: Path, wanted: dict[str, str]) -> dict[str, Any]:
    """Fail unless the output is what it should be and proves itself; return the run manifest."""
    assert runner.shards(out) == wanted
    assert verify(out).problems == ()
    assert runner.litter(out) == []
    manifest: dict[str, Any] = json.loads((out / "manifest.json").read_text())
    for job in manifest["jobs"]:
        skipped = job["null_rows"] + job["empty_rows"] + job.get("filtered_rows", 0)
        assert job["rows"] == job["documents"] + skipped
    assert manifest["headline"]["complete"] is True
    assert manifest["headline"]["jobs"] == manifest["headline"]["jobs_done"] == len(manifest["jobs"])
    return manifest


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_keeps_what_the_naive_writer_keeps(
    name: str, layout: Layout, sources: Path, tmp_path: Path
) -> None:
    choice, keep = FILTERS[name]
    recipe: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 700, "layout": layout, **choice}
    assert quickly(sources, tmp_path / "out", workers=2, **recipe).complete

    manifest = assert_right(tmp_path / "out", oracle(sources, tmp_path / "naive", keep, **recipe))

    rows = [row for path in sorted(sources.iterdir()) for row in pq.read_table(path).to_pylist()]
    kept = [row for row in rows if keep is None or keep(row)]
    head = manifest["headline"]
    assert head.get("filtered_rows", 0) == len(rows) - len(kept)
    assert head["null_rows"] == sum(row["text"] is None for row in kept)
    assert head["empty_rows"] == sum(row["text"] == "" for row in kept)
    assert head["documents"] == sum(bool(row["text"]) for row in kept)


def limits_of(sources: Path) -> list[dict[str, int]]:
    """Return limits of every kind: within a source, at its end, at a document's end, beyond everything."""
    streams = [naive.read(path, naive.encoder("bytes"), 256, "before") for path in sorted(sources.iterdir())]
    tokens, documents = len(streams[0].tokens), len(streams[0].starts)
    boundary = tokens + streams[2].starts[5].position
    everything = sum(len(stream.tokens) for stream in streams)
    return [
        {"limit_tokens": 1}, {"limit_tokens": tokens - 1}, {"limit_tokens": tokens},
        {"limit_tokens": tokens + 1}, {"limit_tokens": boundary}, {"limit_tokens": boundary + 1},
        {"limit_tokens": boundary - 1}, {"limit_tokens": everything - 3}, {"limit_tokens": everything},
        {"limit_tokens": everything + 1}, {"limit_documents": 1}, {"limit_documents": documents},
        {"limit_documents": documents + 1}, {"limit_documents": 100}, {"limit_documents": 10**9},
        {"limit_documents": 100, "limit_tokens": 10**9}, {"limit_documents": 10**9, "limit_tokens": boundary},
        {"limit_documents": documents + 5, "limit_tokens": boundary},
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(18))
def test_a_limit_ends_the_stream_where_the_naive_writer_ends_it(
    number: int, sources: Path, tmp_path: Path
) -> None:
    limit = limits_of(sources)[number]
    trees = []
    for workers, layout, eot in (
        (1, "independent", "before"),
        (2, "contiguous", "after"),
        (2, "independent", "before"),
    ):
        recipe: dict[str, Any] = {
            "tokenizer": "bytes",
            "shard_tokens": 300,
            "layout": layout,
            "eot": eot,
            **limit,
        }
        out = tmp_path / f"{workers}-{layout}"
        result = quickly(sources, out, workers=workers, **recipe)
        assert result.complete
        manifest = assert_right(out, oracle(sources, tmp_path / f"naive {out.name}", None, **recipe))
        trees.append(runner.tree(out))
        assert result.headline.tokens <= limit.get("limit_tokens", result.headline.tokens)
        assert result.headline.documents <= limit.get("limit_documents", result.headline.documents)
        done = [job["path"] for job in manifest["jobs"]]
        assert done == [f"{index}.parquet" for index in range(len(done))]
        assert sum(job.get("limited", False) for job in manifest["jobs"][:-1]) == 0
    assert trees[0] == trees[2]


def test_the_number_of_limits_is_that_of_the_tests(sources: Path) -> None:
    assert len(limits_of(sources)) == 18


@pytest.mark.parametrize("seed", range(40))
def test_filters_and_limits_together_at_random(seed: int, sources: Path, tmp_path: Path) -> None:
    recipe, keep = chosen_at_random(seed)
    assert quickly(sources, tmp_path / "out", workers=seed % 3 + 1, **recipe).complete
    assert_right(tmp_path / "out", oracle(sources, tmp_path / "naive", keep, **recipe))


def chosen_at_random(seed: int) -> tuple[dict[str, Any], Callable[[Row], bool] | None]:
    chance = random.Random(seed)
    choice, keep = FILTERS[chance.choice([*FILTERS][:-1])]
    limit = {chance.choice(["limit_documents", "limit_tokens"]): chance.choice([3, 40, 900, 4000])}
    recipe: dict[str, Any] = {
        "tokenizer": chance.choice(["bytes", "gpt2"]),
        "layout": chance.choice(LAYOUTS),
        "eot": chance.choice(["before", "after"]),
        "shard_tokens": chance.choice([50, 333]),
        **choice,
        **limit,
    }
    return recipe, keep


@pytest.mark.parametrize("seed", [3])
def test_workers_and_threads_change_no_byte(seed: int, sources: Path, tmp_path: Path) -> None:
    recipe, keep = chosen_at_random(seed)
    wanted = oracle(sources, tmp_path / "naive", keep, **recipe)
    trees = []
    for workers, threads in ((1, 1), (1, 2), (2, 1)):
        out = tmp_path / f"{workers}x{threads}"
        flags = {"workers": workers, "threads": threads}
        runner.assert_tidy_end(runner.run(sources, out, **recipe, **flags), 0)
        assert_right(out, wanted)
        trees.append(runner.tree(out))
    assert trees[0] == trees[1] == trees[2]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_limit_beyond_everything_changes_no_shard(layout: Layout, sources: Path, tmp_path: Path) -> None:
    recipe: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 500, "layout": layout}
    quickly(sources, tmp_path / "all", **recipe)
    quickly(sources, tmp_path / "limited", limit_tokens=10**9, limit_documents=10**9, **recipe)

    assert runner.shards(tmp_path / "all") == runner.shards(tmp_path / "limited")


def misleading(folder: Path) -> Path:
    """Make sources that are far larger than their footers say: the same long text again and again."""
    for number in range(5):
        corpus.write(folder / f"{number}.parquet", [corpus.document(number, 50)] * 400, use_dictionary=True)
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("limit_tokens", [100_000, 300_000, 500_000])
def test_a_source_that_gives_more_than_was_expected_costs_time_and_no_byte(
    layout: Layout, limit_tokens: int, tmp_path: Path
) -> None:
    sources, notices = misleading(tmp_path / "sources"), runner.Notices()
    recipe: dict[str, Any] = {
        "tokenizer": "bytes",
        "shard_tokens": 60_000,
        "layout": layout,
        "limit_tokens": limit_tokens,
    }
    result = quickly(sources, tmp_path / "out", workers=4, notices=notices, **recipe)

    assert result.complete
    assert notices.mention("is withdrawn")
    assert_right(tmp_path / "out", oracle(sources, tmp_path / "naive", None, **recipe))
    again = quickly(sources, tmp_path / "out", workers=1, **recipe)
    assert again.untouched


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_and_run_again_the_bytes_are_the_same(layout: Layout, tmp_path: Path) -> None:
    sources = misleading(tmp_path / "sources")
    recipe: dict[str, Any] = {
        "tokenizer": "bytes",
        "shard_tokens": 30_000,
        "layout": layout,
        "limit_tokens": 700_000,
    }
    recipe["where"] = "id != 7"
    runner.convert(sources, tmp_path / "whole", workers=2, **recipe)
    wanted = runner.tree(tmp_path / "whole")
    assert runner.shards(tmp_path / "whole") == oracle(
        sources, tmp_path / "naive", lambda row: bool(row["id"] != 7), **recipe
    )
    for step in (1, 3):
        out = tmp_path / f"out {step}"
        with runner.running(sources, out, workers=3, **recipe) as process:
            runner.wait_until(lambda out=out, step=step: runner.steps(out) >= step, process)  # type: ignore[misc]
            runner.kill_all(process.pid)
            process.wait(timeout=runner.PATIENCE)
        runner.assert_tidy_end(runner.run(sources, out, workers=2, **recipe), 0)
        assert runner.tree(out) == wanted
        assert runner.litter(out) == []
        assert verify(out).problems == ()


def test_what_was_converted_on_trial_when_the_session_was_cut_off_is_withdrawn(tmp_path: Path) -> None:
    sources = corpus.equal_sources(tmp_path / "sources", files=4, rows=50)
    recipe: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 1000}
    size = quickly(sources, tmp_path / "all", **recipe).headline.tokens // 4
    recipe["limit_tokens"] = size * 2 + size // 2
    out = tmp_path / "out"
    quickly(sources, out, **recipe)
    wanted = runner.tree(out)
    assert [path.name[:2] for path in sorted((out / runner.PRIVATE / "receipts").iterdir())] == [
        "00",
        "01",
        "02",
    ]
    # As if 00 were never done, and 03 had been converted whole, on trial: its receipt and files are there.
    large = {**recipe, "limit_tokens": size * 5}
    quickly(sources, tmp_path / "large", **large)
    recipe_id = json.loads((out / "manifest.json").read_text())["recipe_id"]
    forged = forged_receipt(tmp_path / "large", "03", recipe_id)
    (out / runner.PRIVATE / "receipts" / forged[0]).write_bytes(forged[1])
    for path in (tmp_path / "large").rglob("*_00003_*"):
        (out / path.relative_to(tmp_path / "large")).write_bytes(path.read_bytes())
    receipt_of(out, "00").unlink()
    (out / "manifest.json").unlink()

    notices = runner.Notices()
    assert quickly(sources, out, notices=notices, **recipe).complete
    assert notices.mention("03.parquet lies beyond the limit") or notices.mention("03.parquet will be")
    assert runner.tree(out) == wanted
    assert verify(out).problems == ()


def receipt_of(out: Path, name: str) -> Path:
    return next((out / runner.PRIVATE / "receipts").glob(f"{name}*.json"))


def forged_receipt(out: Path, name: str, recipe_id: str) -> tuple[str, bytes]:
    """Return a receipt as if it were of another recipe, with a digest that fits."""
    import msgspec  # noqa: PLC0415

    from fwconvert import records  # noqa: PLC0415
    from fwconvert.store import receipts  # noqa: PLC0415

    path = receipt_of(out, name)
    made = msgspec.structs.replace(records.read(path, receipts.Receipt), recipe_id=recipe_id, digest="")
    sealed = msgspec.structs.replace(made, digest=records.digest(made))
    return path.name, records.encode(sealed) + b"\n"


def test_a_damaged_source_before_the_limit_ends_the_run_with_a_word(tmp_path: Path) -> None:
    sources = corpus.equal_sources(tmp_path / "sources", files=5, rows=40)
    good = (sources / "01.parquet").read_bytes()
    (sources / "01.parquet").write_bytes(good[:-100])
    recipe: dict[str, Any] = {
        "tokenizer": "bytes",
        "shard_tokens": 1000,
        "limit_documents": 130,
        "workers": 1,
    }
    ended = runner.run(sources, tmp_path / "out", **recipe)
    runner.assert_tidy_end(ended, 1)
    assert "sources after a failed one cannot be finished" in ended.stdout
    done = {path.name[:2] for path in (tmp_path / "out" / runner.PRIVATE / "receipts").iterdir()}
    assert "04" not in done
    assert runner.run(sources, tmp_path / "out", **recipe).returncode == 1

    (sources / "01.parquet").write_bytes(good)
    runner.assert_tidy_end(runner.run(sources, tmp_path / "out", **recipe), 0)
    assert_right(tmp_path / "out", oracle(sources, tmp_path / "naive", None, **recipe))


def test_a_damaged_source_behind_the_limit_is_not_even_looked_at(tmp_path: Path) -> None:
    sources = corpus.equal_sources(tmp_path / "sources", files=4, rows=40)
    (sources / "03.parquet").write_bytes(b"no parquet")
    recipe: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 1000, "limit_documents": 41, "workers": 1}
    runner.assert_tidy_end(runner.run(sources, tmp_path / "out", **recipe), 0)
    assert runner.run(sources, tmp_path / "out", **recipe).stdout.startswith("already complete")


def test_a_lost_shard_of_a_limited_run_is_made_again(sources: Path, tmp_path: Path) -> None:
    recipe: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 300, "limit_documents": 130}
    quickly(sources, tmp_path, **recipe)
    wanted = runner.tree(tmp_path)
    for name in wanted:
        if name.endswith(".bin"):
            (tmp_path / name).unlink()
            assert quickly(sources, tmp_path, **recipe).complete
            assert runner.tree(tmp_path) == wanted


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--where", "score >"], "invalid --where"),
        (["--where", "__import__('os').system('x')"], "no such function"),
        (["--where", "9**9**9 > score"], "^^^^^^^"),
        (["--where", "1 < 2"], "names no column"),
        (["--min-score", "nan"], "is not a number"),
        (["--min-score", "high"], "is not a number"),
        (["--min-int-score", "2.5"], "is not a whole number"),
        (["--limit-documents", "0"], "must be at least 1"),
        (["--limit-tokens", "-5"], "--limit-tokens"),
        (["--limit-tokens", "99999999999T"], "out of range"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(
    flags: list[str], told: str, sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--source", str(sources), "--out", str(tmp_path / "out"), "--tokenizer", "bytes", *flags]
    try:
        code = cli.main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_column_that_is_not_there_is_named_with_those_that_are(sources: Path, tmp_path: Path) -> None:
    ended = runner.run(sources, tmp_path / "out", tokenizer="bytes", where="quality > 3", workers=1)
    runner.assert_tidy_end(ended, 2)
    for word in ("0.parquet", "quality", "language_score (double)", "int_score (int64)"):
        assert word in ended.stderr


def test_another_choice_is_another_recipe_and_the_difference_is_told(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = runner.command(sources, tmp_path / "out", tokenizer="bytes", workers=1)[3:]
    first = ["--where", "score>1 and language=='en'", "--limit-documents", "9", "--min-score", "1"]
    assert cli.main([*words, *first]) == 0
    same = ["--where", '(score > 1) and (language == "en")', "--limit-documents", "9", "--min-score", "1.0"]
    assert cli.main([*words, *same]) == 0
    assert "already complete" in capsys.readouterr().out
    assert cli.main([*words, "--where", "score > 2", "--limit-documents", "10"]) == 2
    told = capsys.readouterr().err
    for line in ("where in folder", "score > 1 and language == 'en'", "where in command", "score > 2"):
        assert line in told
    assert "limit documents in folder   9" in told
    assert "min score in command        None" in told


def test_the_summary_the_status_and_the_plan_tell_of_the_choice(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = runner.command(sources, tmp_path / "out", tokenizer="bytes", workers=1)[3:]
    choice = ["--min-int-score", "3", "--limit-documents", "20"]
    assert cli.main(["plan", *words, *choice]) == 0
    assert re.search(r"filter +keeps about [0-9]+ % of the rows", capsys.readouterr().out)
    assert cli.main([*words, *choice]) == 0
    said = capsys.readouterr().out
    assert "the limit was reached after 1 of 7 sources" in said
    assert "rows rejected by the filter" in said
    assert cli.main(["status", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "complete" in said
    assert "1 of 1 done (100% of the bytes)" in said
    assert "rows rejected by the filter" in said
    assert cli.main(["plan", *words, "--limit-tokens", "100"]) == 0
    said = capsys.readouterr().out
    assert re.search("files +1\n", said)
    assert "about 100 (bytes)" in said


@pytest.mark.skipif(os.name == "nt", reason="processes are found by their POSIX session")
def test_a_run_with_a_limit_fetches_no_more_than_it_may_need(tmp_path: Path) -> None:
    mini = hub_runs.miniature(tmp_path / "mini")
    streams = [
        naive.read(mini.repository / file.path, naive.encoder("bytes"), 256, "before")
        for file in mini.manifest.files
    ]
    sizes = [len(stream.tokens) for stream in streams]
    for name, limit, needed in (("one", sizes[0] // 2, 1), ("three", sizes[0] + sizes[1] + sizes[2] // 3, 3)):
        out = tmp_path / name
        with HubServer(mini.repository) as hub:
            flags = ("--limit-tokens", str(limit), "--prefetch", "8", "--workers", "2")
            runner.assert_tidy_end(
                hub_runs.run(hub_runs.conversion(mini.pinned, out, *flags), hub.endpoint), 0
            )
            fetched = [file for file in mini.names if hub_runs.bodies(hub.log, file)]
        assert fetched[:needed] == mini.names[:needed]
        assert len(fetched) <= needed + (name == "three") * 3
        assert hub_runs.receipts(out) == mini.names[:needed]
        assert hub_runs.sources(out) == {}
        assert not (out / runner.PRIVATE / "sources").exists()
        # From the disk, with the same manifest, the same bytes come.
        recipe: dict[str, Any] = {
            "version": str(mini.pinned),
            "tokenizer": "bytes",
            "shard_tokens": hub_runs.SHARD_TOKENS,
        }
        runner.convert(mini.repository, tmp_path / f"{name} from disk", limit_tokens=limit, **recipe)
        assert runner.tree(out) == runner.tree(tmp_path / f"{name} from disk")
        assert verify(out).problems == ()


@pytest.mark.skipif(os.name == "nt", reason="processes are found by their POSIX session")
def test_a_source_of_the_hub_that_gives_more_than_was_expected_is_fetched_again(tmp_path: Path) -> None:
    repository, pinned, out = tmp_path / "repository", tmp_path / "pinned.json", tmp_path / "out"
    misleading(repository / hub_runs.FOLDER)
    with HubServer(repository) as hub:
        words = ["pin", hub_server.REPO, hub_runs.FOLDER, "-o", str(pinned)]
        runner.assert_tidy_end(hub_runs.run(words, hub.endpoint), 0)
        # The first comes last, so that the others are there when it is begun; its footer comes at once.
        hub.fault("late", path="0.parquet", times=None, until=lambda: _fetched(out) == 4, skip=1)
        flags = ("--limit-tokens", "350000", "--workers", "3", "--prefetch", "5")
        ended = hub_runs.run(hub_runs.conversion(pinned, out, *flags), hub.endpoint)
    runner.assert_tidy_end(ended, 0)
    assert "is withdrawn" in ended.stderr
    recipe: dict[str, Any] = {
        "tokenizer": "bytes",
        "shard_tokens": hub_runs.SHARD_TOKENS,
        "limit_tokens": 350_000,
    }
    assert_right(out, oracle(repository / hub_runs.FOLDER, tmp_path / "naive", None, **recipe))
    assert not (out / runner.PRIVATE / "sources").exists()


def _fetched(out: Path) -> int:
    """Return how many sources lie there whole."""
    return sum(name.endswith(".parquet") for name in hub_runs.sources(out))
