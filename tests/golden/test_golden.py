"""Equal recipes give equal bytes, whatever version of fwconvert makes them."""

import os
from pathlib import Path

import pytest
import runner
import zstandard
from golden import recorded
from runner import assert_tidy_end

# How zstd packs is its own affair, and may change with its version; so its version is part of a recipe.
ZSTD = "1.5.7"


def _needs(words: str) -> None:
    found = ".".join(map(str, zstandard.ZSTD_VERSION))
    if "zstd" in words and found != ZSTD:
        pytest.skip(f"the records were made with zstd {ZSTD}, and {found} may pack otherwise")


def made(world: str, out: Path) -> Path:
    assert_tidy_end(recorded.convert(world, out), 0)
    return out


@pytest.mark.parametrize("world", recorded.WORLDS)
def test_a_conversion_gives_what_it_gave_then(world: str, tmp_path: Path) -> None:
    _needs(recorded.WORLDS[world])
    assert recorded.measure(made(world, tmp_path / "run")) == recorded.record(world)


@pytest.mark.parametrize("name", recorded.EXPORTS)
def test_an_export_gives_what_it_gave_then(name: str, tmp_path: Path) -> None:
    world, words = recorded.EXPORTS[name]
    _needs(recorded.WORLDS[world] + words)
    assert_tidy_end(recorded.export(name, made(world, tmp_path / "run"), tmp_path / "out"), 0)
    assert recorded.measure(tmp_path / "out") == recorded.record(name)


@pytest.mark.parametrize("half", recorded.HALVES)
def test_a_run_that_was_killed_then_is_finished_to_the_same_bytes(half: str, tmp_path: Path) -> None:
    world = recorded.HALVES[half]
    recorded.unpack(half, tmp_path / "out")
    assert runner.steps(tmp_path / "out") < len(recorded.record(world)["receipts"])
    assert_tidy_end(recorded.convert(world, tmp_path / "out"), 0)
    assert recorded.measure(tmp_path / "out") == recorded.record(world)


def test_a_loader_serves_what_it_served_then(tmp_path: Path) -> None:
    run = made("plain", tmp_path)
    assert {order: recorded.batches(run, order) for order in recorded.ORDERS} == recorded.record("loader")


def test_a_state_that_was_saved_then_leads_to_the_same_rest(tmp_path: Path) -> None:
    run, saved = made("plain", tmp_path), recorded.record("loader state")
    assert recorded.rest_after(run, saved["state"]) == saved["rest"]
    assert recorded.state_of(run) == saved["state"]


def test_the_records_hold_no_trace_of_the_machine_that_made_them(tmp_path: Path) -> None:
    host = os.uname().nodename if hasattr(os, "uname") else ""
    for half in recorded.HALVES:
        recorded.unpack(half, tmp_path / half)
        texts = [path.read_text("utf-8", errors="replace") for path in (tmp_path / half).rglob("*.json")]
        assert texts
        assert not any(str(Path.home()) in text or f'"host":"{host}"' in text for text in texts)
