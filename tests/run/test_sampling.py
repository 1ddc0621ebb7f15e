"""A plan looks at some of the text, and is close to what the run then gives."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hub_runs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runner
from hub_faults import nobody
from hub_server import HubServer

from fwconvert import options
from fwconvert.cli import plan_text

RECIPE = ("--tokenizer", "gpt2", "--shard-tokens", "20k", "--workers", "1")


def planned(*words: object, code: int = 0, **how: Any) -> dict[str, Any]:
    ended = runner.command_line("plan", *words, "--json", **how)
    runner.assert_tidy_end(ended, code)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def made(out: Path) -> dict[str, Any]:
    headline: dict[str, Any] = json.loads((out / "manifest.json").read_bytes())["headline"]
    return headline


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of several row groups: prose, numbers, and short texts, with columns to choose by."""
    folder, random = tmp_path_factory.mktemp("sources"), np.random.default_rng(5)
    for number in range(3):
        texts = []
        for row in range(900):
            words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "while", "run"]
            length = int(random.integers(5, 200))
            text = (
                " ".join(random.choice(words, length)) if number != 1 else str(random.integers(0, 9, length))
            )
            texts.append(f"{row} {text}")
        table = pa.table({"text": texts, "score": random.random(900), "url": ["https://a.example/"] * 900})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=100)
    return folder


def test_the_demo_is_planned_within_five_percent(tmp_path: Path) -> None:
    plan = planned("--version", "demo", cwd=tmp_path)
    runner.assert_tidy_end(runner.command_line("--version", "demo", "-o", "out", cwd=tmp_path), 0)
    headline = made(tmp_path / "out")

    assert plan["plan"]["tokens"] == pytest.approx(headline["tokens"], rel=0.05)
    assert plan["plan"]["documents_without_limit"] == pytest.approx(headline["documents"], rel=0.01)
    assert plan["plan"]["shards"] == headline["train_shards"] + headline["val_shards"]
    assert plan["validation"]["shard"] is True
    size = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert plan["disk_at_end"] == pytest.approx(size, rel=0.05)
    assert plan["disk_needed"] > plan["disk_at_end"]


@pytest.mark.parametrize("tokenizer", ["gpt2", "cl100k_base", "bytes"])
def test_sources_that_differ_are_planned_within_five_percent(
    tokenizer: str, sources: Path, tmp_path: Path
) -> None:
    words = ("--source", sources, *RECIPE, "--tokenizer", tokenizer)
    plan = planned(*words)
    runner.assert_tidy_end(runner.command_line(*words, "-o", tmp_path / "out"), 0)

    assert plan["plan"]["tokens"] == pytest.approx(made(tmp_path / "out")["tokens"], rel=0.05)
    assert (plan["sampled_from"], plan["sampled_files"], plan["is_encoded"]) == ("files", 3, True)
    assert 3 <= plan["sampled_row_groups"] <= 27
    assert plan["out"] == ""
    pace = plan["pace"]
    assert (pace["bottleneck"], pace["bandwidth"], pace["fetch_seconds"]) == ("processor", "", None)
    assert pace["seconds"] > pace["convert_seconds"] > 0
    assert pace["tokens_per_second"] > 0


def test_what_a_filter_keeps_is_known_and_bounds_all_that_follows(sources: Path, tmp_path: Path) -> None:
    words = ("--source", sources, *RECIPE, "--where", "score > 0.75")
    plan, every = planned(*words), planned(*words[:-2])
    runner.assert_tidy_end(runner.command_line(*words, "-o", tmp_path / "out"), 0)

    assert every["filtered"] is None
    assert plan["filtered"]["share"] == pytest.approx(0.25, abs=0.08)
    assert plan["plan"]["tokens"] == pytest.approx(made(tmp_path / "out")["tokens"], rel=0.25)
    assert plan["disk_at_end"] < 0.5 * every["disk_at_end"]
    told = runner.command_line("plan", *words)
    assert "of the rows (" in told.stdout


def test_a_limit_bounds_a_filtered_plan_too(sources: Path) -> None:
    words = ("--source", sources, *RECIPE, "--where", "score > 0.5")
    plan = planned(*words, "--limit-documents", "100")
    assert (plan["plan"]["files"], plan["plan"]["rows"], plan["limit_reached"]) == (1, 100, True)
    assert planned(*words, "--limit-tokens", "1B")["limit_reached"] is False


def test_a_plan_tells_why_there_is_no_validation_and_what_gives_one(sources: Path) -> None:
    words = ("--source", sources, "--tokenizer", "bytes", "--shard-tokens", "1M")
    ended = runner.command_line("plan", *words)
    runner.assert_tidy_end(ended, 0)
    assert (
        "none: it comes from the first source, which has fewer tokens than that (0.parquet: " in ended.stdout
    )
    (advice,) = [line for line in ended.stdout.splitlines() if "for a validation shard pass" in line]
    smaller = advice.partition("--val-tokens, ")[2].split()[0]
    assert planned(*words, "--val-tokens", smaller)["validation"]["shard"] is True
    none = planned(*words, "--val-tokens", "0")["validation"]
    assert (none["shard"], none["why_not"]) == (False, "none was asked for (--val-tokens 0)")


@pytest.fixture
def nowhere() -> Iterator[dict[str, str]]:
    """The address of a hub that does not answer."""
    with nobody() as address:
        yield {"HF_ENDPOINT": address}


def test_a_disk_that_is_too_small_is_exit_code_1_after_the_whole_answer(
    nowhere: dict[str, str], tmp_path: Path
) -> None:
    manifest = {
        "format": "fwconvert source manifest 1", "name": "huge", "dataset": "a/b",
        "revision": "0" * 40, "folder": "",
        "files": [{"path": "a.parquet", "bytes": 10**14, "sha256": "ab" * 32}],
        "totals": {"files": 1, "bytes": 10**14},
    }  # fmt: skip
    (tmp_path / "huge.json").write_text(json.dumps(manifest))
    words = ("--version", tmp_path / "huge.json", "--out", tmp_path / "out", "--shard-tokens", "500M")

    ended = runner.command_line("plan", *words, env=nowhere)

    runner.assert_tidy_end(ended, 1)
    assert "too few)" in ended.stdout
    assert ended.stderr.count("fwconvert: there is not enough disk space for this run") == 1
    found = planned(*words, code=1, env=nowhere)
    assert "not enough disk space" in found["disk_problem"]
    assert planned(*words, "--no-disk-check", env=nowhere)["disk_problem"] == ""
    assert not (tmp_path / "out").exists()


def test_a_version_on_the_hub_is_sampled_by_ranges_and_nothing_is_written(tmp_path: Path) -> None:
    mini = hub_runs.miniature(tmp_path / "mini")
    (tmp_path / "here").mkdir()
    words = [*hub_runs.conversion(mini.pinned, tmp_path / "here/out"), "--json"]
    with HubServer(mini.repository) as hub:
        sampled = hub_runs.run(["plan", *words], hub.endpoint)
        stated = hub_runs.run(["plan", *words, "--bandwidth", "8k"], hub.endpoint)
        runner.assert_tidy_end(hub_runs.run(words[:-1], hub.endpoint), 0)
    runner.assert_tidy_end(sampled, 0)
    runner.assert_tidy_end(stated, 0)
    tokens = made(tmp_path / "here/out")["tokens"]
    found, told = json.loads(sampled.stdout), json.loads(stated.stdout)
    assert found["sampled_from"] == "remote"
    assert found["plan"]["tokens"] == pytest.approx(tokens, rel=0.05)
    assert (found["pace"]["bandwidth"], told["pace"]["bandwidth"]) == ("measured", "stated")
    assert told["pace"]["bytes_per_second"] == 1000
    assert told["pace"]["fetch_seconds"] == pytest.approx(mini.manifest.bytes / 1000)
    assert told["pace"]["bottleneck"] == "network"


def test_without_the_hub_the_averages_are_said_to_be_averages(
    nowhere: dict[str, str], tmp_path: Path
) -> None:
    words = ("--version", "10B", "--bandwidth", "1G", "--no-disk-check")
    found = planned(*words, env=nowhere, cwd=tmp_path)
    assert (found["sampled_from"], found["sampled_row_groups"]) == ("averages", 0)
    assert found["why_not_sampled"]
    assert found["plan"]["tokens"] == pytest.approx(9_982_590_278, rel=0.01)
    assert found["pace"]["tokens_per_second"] > 0, "this machine is measured all the same"
    assert found["pace"]["fetch_seconds"] == pytest.approx(28_518_193_415 / 125e6)
    assert [*tmp_path.iterdir()] == []


# --- numbers


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("1G", 125e6), ("100M", 12.5e6), ("1Gbit/s", 125e6), ("1 Gbps", 125e6), ("10Gb", 1.25e9),
        ("12MB/s", 12e6), ("1MiB/s", 2**20), ("1.5GBps", 1.5e9), ("8k", 1e3),
    ],
)  # fmt: skip
def test_a_line_has_bits_unless_bytes_are_said(text: str, speed: float) -> None:
    assert options.parse_bandwidth(text) == speed


@pytest.mark.parametrize("text", ["", "1", "G", "0M", "-1G", "fast", "1GG", "1 G B"])
def test_what_is_no_speed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="speed"):
        options.parse_bandwidth(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2 * 10**9), ("2GiB", 2**31), ("2G", 2 * 10**9), ("1.5 MB", 1_500_000), ("512", 512), ("7B", 7)],
)
def test_a_size_is_read_as_it_is_written(text: str, size: int) -> None:
    assert options.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1.5", "2XB", "2 G iB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole"):
        options.parse_bytes(text)


def test_estimates_are_rounded_as_people_say_them() -> None:
    numbers = (9_982_590_278, 999_600, 999_499, 12, 0, 1_580_000_000_000)
    assert [*map(plan_text.number, numbers)] == ["9.98B", "1M", "999k", "12", "0", "1.58T"]
    assert [*map(plan_text.size, (28_518_193_415, 999_999_999, 12))] == ["28.5 GB", "1 GB", "12 bytes"]
    assert [*map(plan_text.line, (125e6, 12_345_678, 999e6))] == ["1 Gbit/s", "99 Mbit/s", "8 Gbit/s"]
    times = (0.2, 45, 600, 5400, 11_700, 86_400 * 2.5)
    assert [*map(plan_text.duration, times)] == [
        "1 s",
        "45 s",
        "10 min",
        "1 h 30 min",
        "3 h 20 min",
        "2.5 days",
    ]
