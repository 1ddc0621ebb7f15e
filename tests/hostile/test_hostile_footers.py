"""Footers that ask for more than they are worth: the driver believes none before it has looked at its end."""

from pathlib import Path

import bounded
import corpus
import hub_runs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runner
import thrift_footers as thrift
from hub_server import COMMIT, REPO, HubServer
from spoiled_runs import linux_only

from fwconvert import records
from fwconvert.errors import SourceError
from fwconvert.recipes import SourceManifest, SourceShard, Totals
from fwconvert.sources import footers, parquet

RECIPE = ("--tokenizer", "bytes", "--shard-tokens", "1000")
# Of the worker: the file that ends it must not take the machine with it.
LEAN = ("--workers", "1", "--worker-memory", "400M")

# Each takes about a gigabyte when it is parsed.
LARGE = {
    "empty column chunks": lambda: thrift.metadata([b"text"], [thrift.row_group(200_000)] * 10),
    "columns": lambda: thrift.metadata([b"a"] * 500_000),
}
# How long a footer says it is in a file that has 50 bytes for it, and the magic bytes behind it.
ENDS = {
    "none": (0, b"PAR1", "claims 0 bytes"),
    "longer than the file": (51, b"PAR1", "claims 51 bytes"),
    "of 4 GB": (2**32 - 1, b"PAR1", "claims 4,294,967,295 bytes"),
    "encrypted": (50, b"PARE", "encrypted"),
    "no magic bytes": (50, b"PAR2", "magic bytes"),
}


@linux_only
@pytest.mark.parametrize("kind", LARGE)
def test_a_footer_that_takes_gigabytes_is_not_parsed_in_the_driver(kind: str, tmp_path: Path) -> None:
    sources = corpus.equal_sources(tmp_path / "sources", files=1, rows=20)
    bad = thrift.write(sources / "bad.parquet", LARGE[kind]())
    assert bad.stat().st_size < 8 * 2**20

    planned = bounded.run("plan", "--source", sources, "--out", tmp_path / "out", *RECIPE)
    converted = bounded.run("--source", sources, "--out", tmp_path / "out", *RECIPE, *LEAN)

    assert planned.code == 0
    assert converted.code == 1
    assert "bad.parquet" in converted.said
    assert runner.steps(tmp_path / "out") == 1, "the other is converted"


def test_a_list_that_says_it_has_a_million_elements_takes_no_room_for_them(tmp_path: Path) -> None:
    sources = corpus.equal_sources(tmp_path / "sources", files=1, rows=20)
    footer = thrift.metadata([b"text"], [thrift.row_group(0)])
    cut = footer[: footer.rindex(thrift.row_group(0))]
    thrift.write(sources / "bad.parquet", cut + b"\x19\xfc" + thrift.number(999_999))

    planned = bounded.run("plan", "--source", sources, "--out", tmp_path / "out", *RECIPE)

    assert planned.code == 0


@pytest.mark.parametrize("end", ENDS)
def test_a_footer_whose_end_cannot_be_is_refused_by_name(end: str, tmp_path: Path) -> None:
    said, magic, reason = ENDS[end]
    sources = corpus.equal_sources(tmp_path / "sources", files=1, rows=20)
    bad = thrift.write(sources / "bad.parquet", bytes(50), said, magic)
    with pytest.raises(SourceError, match=reason):
        parquet.footer(bad)
    with pytest.raises(SourceError, match=reason):
        list(parquet.batches(bad, "text"))

    ended = bounded.run("--source", sources, "--out", tmp_path / "out", *RECIPE, "--workers", "1")

    assert ended.code == 1
    assert "bad.parquet" in ended.said
    assert reason in ended.said


def test_a_large_footer_of_an_honest_file_tells_what_it_has(tmp_path: Path) -> None:
    """As many columns as anybody has, in many row groups: it is parsed in a process of its own."""
    sources = tmp_path / "sources"
    sources.mkdir()
    wide = {f"a column with the number {number}": pa.array(["x"] * 20) for number in range(500)}
    table = pa.table({"text": corpus.documents(0, 20), **wide})
    pq.write_table(table, sources / "wide.parquet", row_group_size=1)
    assert parquet.footer_bytes(sources / "wide.parquet") > footers._SMALL_BYTES
    flags = ("--source", sources, "--out", tmp_path / "out", *RECIPE)

    planned = bounded.run("plan", *flags, "--json")
    misspelt = bounded.run(*flags, "--text-column", "txt")
    converted = bounded.run(*flags, "--workers", "1")

    assert planned.code == 0
    assert '"rows": 20' in planned.stdout or '"rows":20' in planned.stdout
    assert misspelt.code == 2
    assert "--text-column" in misspelt.said
    assert converted.code == 0


def test_a_length_from_the_hub_is_not_believed(tmp_path: Path) -> None:
    """The second file lacks the column, so that nothing is fetched once both were looked at."""
    repository, size = tmp_path / "repository", 600 * 10**6
    thrift.write(repository / "data/0.parquet", b"", size - 1000)
    with (repository / "data/0.parquet").open("r+b") as file:
        end = file.read()[4:]
        file.seek(size - len(end))
        file.write(end)
    corpus.write_columns(repository / "data/1.parquet", body=["a"])
    sizes = {name: (repository / name).stat().st_size for name in ("data/0.parquet", "data/1.parquet")}
    listed = tuple(SourceShard(name, size, "ab" * 32) for name, size in sizes.items())
    pinned = tmp_path / "pinned.json"
    manifest = SourceManifest("pinned", REPO, COMMIT, "data", listed, Totals(2, sum(sizes.values())))
    pinned.write_bytes(records.encode(manifest))
    with HubServer(repository) as hub:
        for name in sizes:
            hub._files.sha256(name)  # It takes seconds, and nobody waits so long for a look.
        words = ("--version", pinned, "--out", tmp_path / "out", "--tokenizer", "bytes", "--patience", "5")
        ended = bounded.run(*words, env=hub_runs.environment(hub.endpoint))
        looks = hub_runs.looks(hub.log, "0.parquet")

    # 2: the second lacks the column. On a machine that is too busy for a look, both are fetched, and refused.
    assert ended.code in {1, 2}
    assert "--text-column" in ended.said or "sha256" in ended.said
    assert len({look.range for look in looks}) <= 1, "no more than its end"


def test_a_row_that_is_a_bomb_is_unpacked_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The source that a document is traced to may be another file by now, of the same size."""
    sources = corpus.equal_sources(tmp_path / "sources", files=1, rows=500)
    good = sources / "00.parquet"
    assert bounded.run("--source", sources, "--out", tmp_path / "out", *RECIPE, "--workers", "1").code == 0
    size = good.stat().st_size
    bomb_of = pa.table({"text": ["x" * (300 * 10**6), *("y" * 600)]})
    pq.write_table(bomb_of, tmp_path / "bomb", compression="zstd", use_dictionary=False)
    bomb = (tmp_path / "bomb").read_bytes()
    assert len(bomb) <= size
    begin = parquet.footer_bytes(tmp_path / "bomb") + 8
    good.write_bytes(bomb[:-begin] + bytes(size - len(bomb)) + bomb[-begin:])

    place = min((tmp_path / "out").glob("*.bin")).name
    traced = bounded.run("trace", tmp_path / "out", f"{place}:5")

    assert traced.code == 0
    assert "not read" in traced.said


def test_the_smallest_of_sources_is_not_read_in_the_driver_either(tmp_path: Path) -> None:
    """One text of 900 KB stands once in the dictionary and 400 times in the rows: in 300 bytes."""
    sources = corpus.equal_sources(tmp_path / "sources", files=1, rows=60)
    good = sources / "00.parquet"
    assert bounded.run("--source", sources, "--out", tmp_path / "out", *RECIPE, "--workers", "1").code == 0
    once = pa.DictionaryArray.from_arrays(pa.array([0] * 400, pa.int32()), pa.array(["x" * 900_000]))
    how = {"compression": "zstd", "store_schema": False, "write_statistics": False}
    pq.write_table(pa.table({"text": once}), tmp_path / "bomb", **how)
    bomb, size = (tmp_path / "bomb").read_bytes(), good.stat().st_size
    assert len(bomb) < 1000 < size < 2**13
    begin = parquet.footer_bytes(tmp_path / "bomb") + 8
    good.write_bytes(bomb[:-begin] + bytes(size - len(bomb)) + bomb[-begin:])

    place = min((tmp_path / "out").glob("*.bin")).name
    traced = bounded.run("trace", tmp_path / "out", f"{place}:5")

    assert traced.code == 0
    assert "not read" in traced.said
