"""What jobs write down about their sources is exact where it says so, and never fails one."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runner
from runner import PRIVATE

from fwconvert.store import layout, statistics
from fwconvert.store.local import LocalStore

TEXTS = [*corpus.documents(0, 300), None, "", "x" * 5000]
URLS = [f"https://www.host{number % 7}.example/page/{number}" for number in range(len(TEXTS))]
SCORES = [2.5 + number % 20 / 10 for number in range(len(TEXTS))]


def records(out: Path) -> list[dict[str, Any]]:
    found = sorted((out / PRIVATE / "statistics").glob("*.json"))
    return [json.loads(path.read_text()) for path in found]


def converted(folder: Path, *, rows: int = 64, columns: dict[str, Any] | None = None, **choices: Any) -> Path:
    columns = {"url": URLS, "score": SCORES} if columns is None else columns
    source = folder / "source"
    source.mkdir(parents=True)
    pq.write_table(pa.table({"text": TEXTS, **columns}), source / "0.parquet", row_group_size=rows)
    how = {"tokenizer": "bytes", "shard_tokens": 900, "val_tokens": 0, **choices}
    assert runner.convert(source, folder / "out", **how).complete
    return folder / "out"


@pytest.mark.parametrize("eot", ["before", "after"])
def test_lengths_hosts_and_scores_are_those_of_the_documents(eot: str, tmp_path: Path) -> None:
    out = converted(tmp_path, eot=eot)
    kept = [at for at, text in enumerate(TEXTS) if text]
    lengths = [len((TEXTS[at] or "").encode()) for at in kept]

    (seen,) = records(out)

    assert seen["lengths"]["count"] == len(kept) == seen["documents"]
    assert (seen["lengths"]["least"], seen["lengths"]["most"]) == (min(lengths), max(lengths))
    assert seen["lengths"]["sum"] == sum(lengths)
    bins = Counter(math.floor(math.log2(length) * 8) for length in lengths)
    assert dict(seen["lengths"]["bins"]) == bins
    assert dict(seen["domains"]) == Counter(URLS[at].split("/")[2].removeprefix("www.") for at in kept)
    assert seen["urls_counted"] == len(kept)
    assert dict(seen["scores"]["bins"]) == Counter(round(SCORES[at] * 10) for at in kept)
    assert 0.8 < seen["tokens_counted"] * 64 / seen["tokens"] < 1.2
    for sample in seen["sampled"]:
        assert sample["url"] == URLS[sample["row"]]
        assert sample["tokens"] == len((TEXTS[sample["row"]] or "").encode()) + 1


def test_only_documents_that_a_filter_keeps_are_counted(tmp_path: Path) -> None:
    out = converted(tmp_path, min_score=4.0)
    kept = [at for at, text in enumerate(TEXTS) if text and SCORES[at] >= 4.0]

    (seen,) = records(out)

    assert seen["documents"] == seen["lengths"]["count"] == seen["scores"]["count"] == len(kept)
    assert seen["scores"]["least"] == min(SCORES[at] for at in kept)


def test_a_document_that_a_limit_cuts_is_as_long_as_it_is_left(tmp_path: Path) -> None:
    out = converted(tmp_path, limit_tokens=1000, shard_tokens=100)

    (seen,) = records(out)

    assert seen["tokens"] == 1000
    assert seen["lengths"]["sum"] == 1000 - seen["documents"]


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"url": [None, *URLS[1:]], "score": [None, *SCORES[1:]]},
        {"url": [*range(len(TEXTS))], "score": ["high"] * len(TEXTS)},
        {"url": [{"a": 1}] * len(TEXTS), "score": [[1.0]] * len(TEXTS)},
        {"url": ["no address"] * len(TEXTS), "score": [math.nan] * len(TEXTS)},
    ],
    ids=["missing", "nulls", "other types", "nested", "senseless"],
)
def test_columns_that_are_not_as_expected_are_unknown_and_fail_nothing(
    columns: dict[str, Any], tmp_path: Path
) -> None:
    (seen,) = records(converted(tmp_path, columns=columns, rows=1000))

    assert seen["lengths"]["count"] == 301
    assert (seen["urls_counted"], seen["domains"], seen["scores"]) == (0, [], None)


def test_damaged_pages_of_such_a_column_fail_nothing(tmp_path: Path) -> None:
    out = converted(tmp_path)
    source = tmp_path / "source" / "0.parquet"
    chunk = pq.ParquetFile(source).metadata.row_group(0).column(1)
    content = bytearray(source.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content[begin : begin + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    source.write_bytes(content)

    assert runner.convert(
        tmp_path / "source", tmp_path / "again", tokenizer="bytes", shard_tokens=900, val_tokens=0
    ).complete

    assert runner.shards(tmp_path / "again") == runner.shards(out)
    (seen,) = records(tmp_path / "again")
    assert 0 < seen["urls_counted"] < 301
    assert seen["scores"]["count"] == 301


def test_an_export_knows_the_lengths_too(tmp_path: Path) -> None:
    out = converted(tmp_path)
    ended = runner.command_line(
        "export", out, "--format", "npy", "--workers", "1", "-o", tmp_path / "new", capture_output=True
    )
    assert ended.returncode == 0, ended.stderr

    (seen,), (exported,) = records(out), records(tmp_path / "new")

    assert exported["lengths"] == seen["lengths"]
    assert exported["urls_counted"] == 0


def test_a_worker_that_cannot_write_them_converts_all_the_same(tmp_path: Path) -> None:
    out = converted(tmp_path)
    wanted = runner.tree(out)
    (out / PRIVATE / "receipts").joinpath(next((out / PRIVATE / "receipts").iterdir()).name).unlink()
    record = next((out / PRIVATE / "statistics").iterdir())
    record.unlink()
    record.mkdir()
    (record / "something").touch()

    assert runner.convert(
        tmp_path / "source", out, tokenizer="bytes", shard_tokens=900, val_tokens=0
    ).complete

    assert runner.tree(out) == wanted


SOUND: dict[str, Any] = {
    "format": "fwconvert source statistics 1",
    "recipe_id": "id",
    "path": "a.parquet",
    "documents": 3,
    "tokens": 100,
    "lengths": {"count": 3, "sum": 97.0, "least": 1.0, "most": 90.0, "bins": [[0, 1], [50, 2]]},
    "tokens_counted": 4,
    "top_tokens": [[1, 2]],
    "urls_counted": 2,
    "domains": [["a.example", 2]],
    "scores": {"count": 2, "sum": 3.0, "least": 1.0, "most": 2.0, "bins": [[10, 1], [20, 1]]},
    "score_step": -1,
    "sampled": [{"row": 0, "position": 0, "tokens": 5, "url": ""}],
}


def known(folder: Path, content: bytes) -> bool:
    store = LocalStore(folder)
    name = store.local(layout.statistics(layout.job_key("a.parquet")))
    name.parent.mkdir(parents=True, exist_ok=True)
    name.write_bytes(content)
    return statistics.of_source(store, "a.parquet", "id", 3, 100) is not None


@pytest.mark.parametrize(
    "lies",
    [
        {"recipe_id": "other"},
        {"path": "b.parquet"},
        {"tokens": 101},
        {"documents": "3"},
        {"score_step": 10**6},
        {"lengths": {**SOUND["lengths"], "bins": [[10**9, 1]]}},
        {"lengths": {**SOUND["lengths"], "bins": [[1, -1]]}},
        {"lengths": {**SOUND["lengths"], "least": 1e308}},
        {"lengths": {**SOUND["lengths"], "bins": [[1, 1]] * 2000}},
        {"scores": {**SOUND["scores"], "bins": [[10**17, 1]]}},
        {"domains": [["a" * 300, 1]]},
        {"domains": [["a", 1]] * 100},
        {"domains": [["a", 5]]},
        {"top_tokens": [[2**40, 1]]},
        {"tokens_counted": -1},
        {"sampled": [{"row": 0, "position": 99, "tokens": 50, "url": ""}]},
        {"sampled": [{"row": -1, "position": 0, "tokens": 5, "url": ""}]},
        {"more": 1},
    ],
)
def test_a_record_that_cannot_be_is_as_if_it_were_not_there(lies: dict[str, Any], tmp_path: Path) -> None:
    assert known(tmp_path, json.dumps(SOUND).encode())
    assert not known(tmp_path, json.dumps({**SOUND, **lies}).encode())


@pytest.mark.parametrize("content", [b"", b"{", b"\x00" * 100, b'{"a":' * 10_000, b" " * 2**19])
def test_a_file_that_is_no_record_is_as_if_it_were_not_there(content: bytes, tmp_path: Path) -> None:
    assert not known(tmp_path, content)


def test_bins_cover_all_lengths() -> None:
    for length in (1, 2, 3, 100, 10**6, 2**40):
        number = statistics.length_bin(length)
        assert (
            statistics.bin_begins(number)
            <= length * (1 + 1e-12)
            < statistics.bin_begins(number + 1) * (1 + 1e-9)
        )
    assert np.isfinite(statistics.bin_begins(0))
