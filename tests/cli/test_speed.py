"""A speed is what this session does now, as far as there is evidence."""

import pytest
from snapshots import Clock, at, joining

from fwconvert.cli import screen
from fwconvert.cli.screen import Pace, Speed


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> Pace:
    return Pace(clock)


def test_two_seconds_of_evidence_are_needed(pace: Pace, clock: Clock) -> None:
    for done, known in ((0.01, False), (0.02, False), (0.03, True)):
        pace.add(at(done))
        assert (pace.recent() is not None) is known
        clock.now += 1


def test_the_speed_is_of_the_last_half_minute(pace: Pace, clock: Clock) -> None:
    done = 0.001
    for megabytes in [10] * 60 + [40] * 30:
        pace.add(at(done))
        clock.now += 1
        done += megabytes * 1e6 / 8e9
    pace.add(at(done))
    speed = pace.recent()
    assert speed is not None
    assert speed.units == pytest.approx(40e6)
    assert speed.tokens == pytest.approx(40e6 / 3, rel=1e-6)


def test_a_resumed_run_shows_only_its_own_speed(pace: Pace, clock: Clock) -> None:
    for seconds in range(6):
        pace.add(at(0.9, session_units=seconds * 5e6, session_tokens=seconds * 2_000_000))
        clock.now += 1
    assert pace.recent() == Speed(5e6, 2e6)


def test_the_start_of_the_workers_does_not_count(pace: Pace, clock: Clock) -> None:
    for done in [0.0] * 20 + [0.01, 0.02, 0.03, 0.04]:
        pace.add(at(done))
        clock.now += 1
    speed = pace.recent()
    assert speed is not None
    assert speed.units == pytest.approx(0.01 * 8e9)


def test_work_taken_back_by_a_failed_job_is_no_speed(pace: Pace, clock: Clock) -> None:
    for done in (0.5, 0.4, 0.3):
        pace.add(at(done))
        clock.now += 1
    assert pace.recent() == Speed(0, 0)
    assert screen.seconds_left(at(0.3), pace.recent()) is None


def test_a_run_that_hangs_shows_no_speed(pace: Pace, clock: Clock) -> None:
    for _ in range(40):
        pace.add(at(0.5))
        clock.now += 1
    assert pace.recent() == Speed(0, 0)


def test_the_join_is_measured_by_itself_in_tokens(pace: Pace, clock: Clock) -> None:
    pace.add(at(1.0))
    clock.now += 10
    for done in (0.25, 0.5, 0.75):
        assert pace.recent() is None
        pace.add(joining(done))
        clock.now += 1
    assert pace.recent() == Speed(1e8, 1e8)
    assert pace.average(joining(0.75)) == Speed(1e8, 1e8)


def test_memory_stays_small(pace: Pace, clock: Clock) -> None:
    for tick in range(10_000):
        pace.add(at(tick / 10_000))
        clock.now += 0.25
    assert len(pace._samples) < 130


def test_a_download_has_a_speed_before_the_first_token(pace: Pace, clock: Clock) -> None:
    for seconds in range(4):
        pace.add(at(0, fetched=seconds * 50_000_000, bottleneck="network"))
        clock.now += 1

    recent = pace.recent()
    assert recent is not None
    assert recent.fetched == pytest.approx(50e6)
    assert recent.tokens == 0
