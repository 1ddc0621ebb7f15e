"""What is said of a run: jobs, tokens, speeds, what limits it and the time left."""

import time
from collections.abc import Iterator

import pytest
from snapshots import at, joining

from fwconvert.cli import screen
from fwconvert.run.engines import Progress
from fwconvert.run.outlook import Forecast

UNKNOWN = Forecast(0.0, None, None, None)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not hasattr(time, "tzset"):
        pytest.skip("this system cannot change its time zone")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_empty_sources_count_by_number() -> None:
    assert screen.fraction(at(0, units=0, units_done=0, jobs=4, jobs_done=1)) == 0.25
    assert screen.fraction(at(0, units=0, units_done=0, jobs=0, jobs_done=0)) == 0


def test_the_join_counts_tokens() -> None:
    known = Forecast(0.99, 4.0, 5e7, 5e7)
    assert screen.counts(joining(0.5), known) == [
        "8/8 jobs", "200M tokens joined", "50.0M tokens/s",
    ]  # fmt: skip


def test_a_run_on_several_machines_says_how_many() -> None:
    jobs = [
        Progress("a", "000.parquet", 0.5, 1_000_000, 10, "node-a"),
        Progress("b", "001.parquet", 0.25, 1_000_000, 10, "node-bb"),
    ]
    assert screen.counts(at(0.5, running=jobs), UNKNOWN)[0] == "4/8 jobs on 2 nodes"
    assert screen.counts(at(0.5, running=jobs[:1]), UNKNOWN)[0] == "4/8 jobs"


def test_a_run_from_local_files_says_nothing_of_fetching() -> None:
    assert screen.limits(at(0.5), UNKNOWN) == []
    assert screen.limits(joining(0.5, fetched=1), UNKNOWN) == []


def test_a_run_that_fetches_says_what_limits_it_before_all_else() -> None:
    now = at(0.5, fetched=2_000_000_000, bottleneck="network", connections=24, to_fetch=1_500_000_000)
    known = Forecast(0.5, 75.0, 1.0, 1e6, 68.2e6)
    assert screen.limits(now, known) == [
        "limit: network", "fetching 68.2 MB/s over 24 connections", "1,500 MB to come",
    ]  # fmt: skip
    ended = at(1.0, fetched=8_000_000_000, bottleneck="network")
    assert screen.limits(ended, known)[:2] == ["limit: network", "fetching 68.2 MB/s"]
    assert screen.status(now, known)[:3] == ["convert 50.0%", "0:01:15 left", "limit: network"]


def test_a_resumed_run_says_what_was_done_before() -> None:
    assert screen.resuming(at(0.9, jobs=96, jobs_found=87)) == "resuming: 87 of 96 were done before"
    assert screen.resuming(joining(0.9, jobs=96, jobs_found=87)) == "resuming: 87 of 96 were done before"
    assert not screen.resuming(at(0.9, jobs=96))
    assert not screen.resuming(at(0.9, jobs=96, jobs_found=87, phase="check"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""), (float("inf"), ""), (0, "00:00"), (90, "00:01"), (9 * 3600, "09:00"),
        (30 * 3600, "Fri 06:00"), (30 * 86400, "1970-01-31"), (1e300, ""),
    ],
)  # fmt: skip
def test_the_end_is_a_time_of_day_or_a_day(seconds: float | None, text: str) -> None:
    assert screen.finish(seconds, 0.0) == text
