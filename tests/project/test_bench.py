"""The benchmark's parts that can be wrong without anybody noticing: its text, its checks, its arithmetic."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import regex
import runner
from bench.corpus import cut, write_file
from bench.growth import Growth, Point, exponent
from bench.loader import loader
from bench.measure import BenchError, Measure, child, run
from bench.peers import plain
from bench.rows import Row, Setup, Way, measure, prepare, ways
from bench.stages import Clock
from bench.table import (
    growth_table,
    loader_table,
    markdown,
    network_table,
    rows_table,
    stages_table,
)

from fwconvert.tokens import tiktoken_kind

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the benchmark wants wait4")

SCRIPT = Path(__file__).parents[2] / "scripts/bench"


def way(key: str, group: str, processes: int) -> Way:
    return Way(group, key, key, [], processes)  # type: ignore[arg-type]


def took(seconds: float, peak_bytes: int = 10**8) -> Measure:
    return Measure(seconds, seconds / 2, peak_bytes)


def test_bash_can_run_the_script() -> None:
    assert os.access(SCRIPT, os.X_OK)
    subprocess.run(["bash", "-n", SCRIPT], check=True)


@pytest.mark.parametrize("power", [0, 0.5, 1, 2])
def test_the_exponent_of_a_power_is_that_power(power: float) -> None:
    assert exponent([1, 2, 4, 8], [3 * size**power for size in (1, 2, 4, 8)]) == pytest.approx(power)


def test_growth_is_fitted_without_the_fixed_costs() -> None:
    points = tuple(Point(size, str(size), took(5 + 2 * size)) for size in (10, 100, 1000))
    growth = Growth("sources", points, Point(0, "0", took(5)))
    assert growth.exponents() == pytest.approx({"time": 1, "CPU": 1, "memory": 0})
    assert "time 1.00, CPU 1.00, memory 0.00" in growth_table(growth)


def test_growth_hidden_by_fixed_costs_has_no_exponent() -> None:
    points = (Point(1, "1", took(4)), Point(2, "2", took(9)))
    growth = Growth("sources", points, Point(0, "0", took(5)))
    assert growth.exponents()["time"] is None
    assert "time indistinguishable" in growth_table(growth)


def test_a_network_is_measured_against_the_fastest_downloader_or_the_disk() -> None:
    rows = [
        ("fwconvert, from the hub", 6.0),
        ("fwconvert, from disk", 4.0),
        ("a: alone", 5.0),
        ("b: alone", 9.0),
    ]
    table = network_table([(title, Measure(seconds, 1.0, 0)) for title, seconds in rows])
    assert [line.split("|")[-2].strip() for line in table.splitlines()[2:]] == [
        "1.20",
        "0.80",
        "1.00",
        "1.80",
    ]


def test_a_row_stands_beside_the_llmc_way_and_the_ceiling_of_as_many_processes() -> None:
    rows = [
        Row(way("ours", "fwconvert", 2), 90_000_000, 400_000_000, took(1)),
        Row(way("ceiling-1", "ceiling", 1), 90_000_000, 400_000_000, took(2)),
        Row(way("ceiling-2", "ceiling", 2), 90_000_000, 400_000_000, took(0.9)),
        Row(way("llmc", "peers", 2), 9_000_000, 40_000_000, took(3)),
    ]
    lines = rows_table(rows).splitlines()
    assert lines[2] == "| ours | 400 | 1.00 | 0.50 | 100 | 400.0 | 90.00 | 30.0 | 90% |"
    assert lines[5].endswith("| 3.00 | 1.0 | 3% |")


def test_a_row_without_anything_to_compare_with_has_no_ratio() -> None:
    lone = Row(way("ours", "fwconvert", 2), 10**6, 10**6, took(1))
    assert rows_table([lone]).rstrip().endswith("| - | - |")


def test_a_table_is_markdown() -> None:
    assert markdown(("a", "b"), [("x", "1")]) == "| a | b |\n| --- | --: |\n| x | 1 |\n"


def test_stages_are_listed_by_size_and_the_rest_comes_last() -> None:
    table = stages_table({"cpu": {"other": 5.0, "decode": 1.0, "encode": 2.0}, "passed": {"decode": 9.0}})
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| encode", "| decode", "| other"]
    assert "| decode | 12.5% | 1.00 | 9.00 |" in table


def test_a_stage_within_a_stage_is_not_counted_twice() -> None:
    clock = Clock()
    items = clock.generator("outer", lambda: iter([clock.function("inner", time.sleep)(0.2)]))
    assert list(items()) == [None]
    assert clock.passed["inner"] >= 0.2
    assert clock.passed["outer"] < 0.02


def test_made_up_text_is_the_same_every_time_and_as_much_as_was_asked_for(tmp_path: Path) -> None:
    tables = []
    for name in ("once", "again"):
        write_file(tmp_path / name, 7, 300_000)
        tables.append(pq.read_table(tmp_path / name))
    assert tables[0].equals(tables[1])
    texts = tables[0]["text"].to_pylist()
    assert sum(len(text.encode()) for text in texts) >= 300_000
    assert tables[0].schema.names[:3] == ["text", "id", "dump"]
    words = Counter(word for text in texts for word in text.split())
    assert words["the"] > 100
    assert sum(count == 1 for count in words.values()) > 1000


def test_cutting_gives_files_of_equal_length_and_begins_again_at_the_end(tmp_path: Path) -> None:
    write_file(tmp_path / "source.parquet", 1, 100_000)
    texts = pq.read_table(tmp_path / "source.parquet")["text"].to_pylist()
    cut([str(tmp_path / "source.parquet")], str(tmp_path / "cut"), 3, len(texts) - 1)
    found = [pq.read_table(path)["text"].to_pylist() for path in sorted((tmp_path / "cut").iterdir())]
    assert [len(part) for part in found] == [len(texts) - 1] * 3
    assert list(chain.from_iterable(found)) == (texts * 3)[: 3 * len(texts) - 3]


@pytest.mark.parametrize("name", ["gpt2", "cl100k_base"])
@pytest.mark.parametrize(
    "text", ["we'LL  go\n\n on 12345 \u00e9!!\n x", "end \n\n", "  \n", "a\r\n\r\nb   ", "'s"]
)
def test_a_pattern_for_another_engine_splits_alike(name: str, text: str) -> None:
    pattern = tiktoken_kind.find(name).pattern
    assert regex.findall(plain(pattern), text) == regex.findall(pattern, text)
    assert "++" not in plain(pattern)


def test_a_program_that_fails_is_shown_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"exit code 3\nwhy"):
        run([sys.executable, "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)"], tmp_path)


def test_the_llmc_way_makes_the_bytes_of_the_contiguous_layout(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", 1, 100_000)
    write_file(tmp_path / "b.parquet", 2, 100_000)
    files = (tmp_path / "a.parquet", tmp_path / "b.parquet")
    setup = Setup(tmp_path, files, "gpt2", "reference", 2, peer_shard_tokens=10_000)
    setup = prepare(setup, few_bytes=10**9)
    assert 50_000 < setup.of_few["tokens"] <= setup.of_all["tokens"]
    assert len(setup.of_few["sha256"]) == 6
    chosen = [one for one in ways(setup, peers=False) if one.key in ("llmc", "map")]
    rows = measure(setup, chosen, 1, [])  # Raises if the tokens are not those of fwconvert.
    assert [row.way.key for row in rows] == ["llmc", "map"]


def test_the_loader_serves_as_much_as_plain_numpy(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", 1, 300_000)
    choices: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 20_000, "val_tokens": 0, "last": "keep"}
    runner.convert(tmp_path, tmp_path / "out", **choices)
    found = loader(str(tmp_path / "out"), 1)
    served = {name: best["bytes"] for name, best in found.items()}
    # Of 20,000 tokens there are 19 windows; what is left makes a shard of its own.
    count, left = divmod(found["plain numpy: copy the shards in order"]["bytes"] // 2, 20_000)
    windows = count * 19 + (left - 1) // 1024
    assert served["loader, sequential"] == served["loader, shuffled"] == windows * 1025 * 2
    assert served["plain numpy: gather from memory maps"] == windows * 1025 * 2
    assert 0 < served["loader, documents"] < windows * 1025 * 2


def test_the_loader_stands_beside_the_plain_way_that_does_the_same() -> None:
    found = {"plain a": (8e9, 2), "ours a": (6e9, 2), "plain b": (1e9, 1), "ours b": (3e9, 2)}
    table = loader_table({name: {"bytes": size, "seconds": 4, "cpu": s} for name, (size, s) in found.items()})
    assert "| ours a | 6,000 | 1.50 | 3.00 | 75% |" in table
    assert "| ours b | 3,000 | 0.75 | 1.50 | 150% |" in table


def test_a_way_that_makes_other_tokens_ends_the_benchmark(tmp_path: Path) -> None:
    counts = {"tokens": 2, "text_bytes": 1}
    setup = Setup(tmp_path, (), "gpt2", "auto", 1, counts, counts)
    liar = Way("peers", "liar", "a liar", [sys.executable, "-c", "print('{\"tokens\": 1}')"], 1)
    with pytest.raises(BenchError, match="a liar: other tokens"):
        measure(setup, [liar], 1, [])


def test_a_task_is_a_function_and_its_arguments() -> None:
    command = child("bench.limits.decode", files=[Path("a")])
    assert command[-2] == "bench.limits.decode"
    assert json.loads(command[-1]) == {"files": ["a"]}
