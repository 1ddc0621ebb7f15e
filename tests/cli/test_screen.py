"""What is said of a run: jobs, tokens, speeds and the time left."""

import re

from snapshots import at, join_job, joining

from fwconvert.cli import screen
from fwconvert.cli.screen import Speed


def test_empty_sources_count_by_number() -> None:
    assert screen.fraction(at(0, units=0, units_done=0, jobs=4, jobs_done=1)) == 0.25
    assert screen.fraction(at(0, units=0, units_done=0, jobs=0, jobs_done=0)) == 0


def test_the_time_left_is_unknown_without_speed_and_zero_without_work() -> None:
    assert screen.seconds_left(at(0.5), None) is None
    assert screen.seconds_left(at(0.5), Speed(0, 0)) is None
    assert screen.seconds_left(at(1.0), None) == 0
    assert screen.seconds_left(at(0.5), Speed(4e6, 1)) == 1000


def test_the_join_counts_tokens() -> None:
    lines = screen.screen(joining(0.5, [join_job()]), Speed(5e7, 5e7), 80, 24)
    head, numbers, line = ("".join(text for text, _ in spans) for spans in lines)
    assert re.fullmatch(r"join ━+─+  50\.0% · 0:00:04 left *", head)
    assert numbers == "8/8 jobs · 200M tokens joined · 50.0M tokens/s"
    assert re.fullmatch(r"  edu_train_000001\.bin ━+─+  25% 25\.0M tokens", line)


def test_a_run_from_local_files_says_nothing_of_fetching() -> None:
    assert not any("fetch" in part or "limit" in part for part in screen.counts(at(0.5), None))


def test_a_run_that_fetches_says_how_fast_over_how_many_connections_and_what_limits_it() -> None:
    now = at(0.5, fetched=2_000_000_000, bottleneck="network", connections=24)
    assert screen.counts(now, Speed(1e6, 1, 68.2e6))[-2:] == ["fetching 68.2 MB/s over 24", "limit: network"]
    ended = at(1.0, fetched=8_000_000_000, bottleneck="network")
    assert screen.counts(ended, Speed(1e6, 1, 68.2e6))[-2:] == ["fetching 68.2 MB/s", "limit: network"]


def test_the_time_left_is_that_of_the_slower_of_network_and_workers() -> None:
    # Of 8 GB half was done before; this session has fetched 2 GB and converted 1 GB.
    now = at(0.5 + 0.125, session_units=1e9, fetched=2_000_000_000, bottleneck="network")

    assert screen.seconds_left(now, Speed(0, 0, 1e6)) == 2000
    assert screen.seconds_left(now, Speed(1e6, 1, 1e6)) == 3000
    assert screen.seconds_left(now, Speed(4e6, 1, 1e6)) == 2000
    assert screen.seconds_left(now, Speed(0, 0, 0)) is None
