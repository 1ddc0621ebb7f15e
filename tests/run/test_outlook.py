"""The time left that is shown, against the one that it was, in runs that take place in a moment.

In a smooth run it is to be right within 20 % from the first tenth of the time on, or within two seconds where
that is more. `played_runs` plays them.
"""

import functools
import itertools

import pytest
from played_runs import MB, STEP, Played, World, growing, interrupted, steady, uneasy
from snapshots import at, joining

from fwconvert.run.events import Download
from fwconvert.run.outlook import Forecast, Outlook, makespan, progress

SLOW = "a slow link, 14 files, connections that grow"

SMOOTH = {
    SLOW: World([140 * MB] * 14, workers=2, converts=steady(20 * MB), network=growing(MB / 4, 16, 64)),
    "a slow link and few large files": World(
        [2000 * MB] * 4, workers=4, converts=steady(25 * MB), network=steady(20 * MB)
    ),
    "a link as fast as the workers": World(
        [500 * MB] * 20, workers=4, converts=steady(10 * MB), network=steady(40 * MB)
    ),
    "workers that are slower than the link": World(
        [500 * MB] * 24, workers=4, converts=steady(8 * MB), network=steady(200 * MB)
    ),
    "files that are here": World([300 * MB] * 40, workers=4, converts=steady(12 * MB)),
    "few large files, one more than the workers": World([2000 * MB] * 5, workers=4, converts=steady(20 * MB)),
    "fewer files than workers": World([2000 * MB] * 2, workers=8, converts=steady(20 * MB)),
    "many small files": World([2 * MB] * 1000, workers=4, converts=steady(10 * MB)),
    "many small files over a link": World(
        [5 * MB] * 300, workers=2, converts=steady(15 * MB), network=steady(12 * MB)
    ),
    "a resumed run": World(
        [300 * MB] * 96, workers=2, converts=steady(15 * MB), network=steady(10 * MB), found=87
    ),
    "a resumed run of files that are here": World([300 * MB] * 96, 2, steady(15 * MB), found=87),
    "a join of half of the tokens": World(
        [400 * MB] * 20, workers=2, converts=steady(20 * MB), joined_share=0.5
    ),
    "a join of all tokens, over a link": World(
        [400 * MB] * 20, workers=2, converts=steady(20 * MB), network=steady(15 * MB), joined_share=1.0
    ),
    "workers slower than guessed by fifty": World([30 * MB] * 8, workers=2, converts=steady(0.4 * MB)),
    "a link whose speed is half or double at random": World(
        [300 * MB] * 14, workers=2, converts=steady(20 * MB), network=uneasy(12 * MB)
    ),
}

ROUGH = {
    "files of very different sizes": World(
        [50 * MB + 77 * MB * (7 * number % 11) for number in range(33)], workers=4, converts=steady(11 * MB)
    ),
    "workers of whom nothing is heard until a source is done": World(
        [50 * MB] * 160, workers=8, converts=steady(10 * MB), is_silent=True
    ),
}


@functools.cache
def played(name: str) -> Played:
    return (SMOOTH | ROUGH)[name].play()


@pytest.mark.parametrize("name", SMOOTH)
def test_the_time_left_is_right_within_a_fifth_after_the_first_tenth(name: str) -> None:
    assert played(name).worst() < 0.2


@pytest.mark.parametrize("name", ROUGH)
def test_where_less_is_known_the_time_left_is_right_within_a_third(name: str) -> None:
    """All sources that wait are taken to be of equal size, and silent orders to be as fast as others were."""
    assert played(name).worst() < 0.33


@pytest.mark.parametrize("name", SMOOTH)
def test_the_time_left_does_not_jump(name: str) -> None:
    assert played(name).jumps() < 0.1


@pytest.mark.parametrize("name", SMOOTH)
def test_the_bar_moves_from_the_first_seconds_on_and_never_back(name: str) -> None:
    shares = [one.progress for _, one in played(name).said]
    assert all(before <= after + 1e-9 for before, after in itertools.pairwise(shares))
    assert shares[-1] == 1.0
    tenth = shares[len(shares) // 10]
    assert 0.02 * (1 - shares[0]) < tenth - shares[0] < 0.3


def test_the_time_left_does_not_stand_still() -> None:
    """It goes down in any ten seconds of a smooth run."""
    told = [one.seconds_left for when, one in played(SLOW).said if when > 12]
    assert all(left is not None for left in told)
    late = [left or 0.0 for left in told]
    assert all(after < left for left, after in zip(late, late[int(10 / STEP) :], strict=False))


@pytest.mark.parametrize("seconds", [10.0, 30.0])
def test_after_a_stall_the_time_left_comes_back(seconds: float) -> None:
    """Meanwhile nobody can know: it is taken for what it was before and what the stall has lasted."""
    link = interrupted(steady(20 * MB), 150.0, 150.0 + seconds)
    errors = World([200 * MB] * 40, workers=2, converts=steady(25 * MB), network=link).play().errors()
    assert max(error for when, error in errors if 45 < when < 150) < 0.2
    assert max(error for when, error in errors if 150 <= when <= 150 + seconds) < 0.25
    assert max(error for when, error in errors if when > 150 + seconds + 15) < 0.1


def test_a_link_that_never_comes_back_is_not_said_to_be_done_soon() -> None:
    link = interrupted(steady(20 * MB), 50, 1000)
    told = dict(World([200 * MB] * 10, workers=2, converts=steady(25 * MB), network=link).play().said)
    left = told[900.0].seconds_left
    assert left is not None
    assert left > 500


def test_a_join_slower_than_guessed_is_noticed_when_it_begins() -> None:
    """Until then its speed is a guess; what the error is then depends on its part of the time."""
    world = World([400 * MB] * 20, workers=2, converts=steady(20 * MB), joined_share=0.5, joins=50 * MB)
    ended = world.play()
    begins = 8000 / 2 / 20
    late = [error for when, error in ended.errors() if when > begins + 10]
    assert len(late) > 20
    assert max(late) < 0.2


def test_nothing_is_said_of_the_time_without_evidence() -> None:
    outlook = Outlook()
    assert outlook.forecast() == Forecast(0.0, None, None, None)
    for tick in range(4):
        outlook.see(at(0.0, session_units=0.0, units_done=0.0), tick / 4)
    assert outlook.forecast().seconds_left is None
    assert outlook.forecast().tokens is None


def test_a_run_that_is_done_has_no_time_left() -> None:
    outlook = Outlook()
    for tick in range(20):
        outlook.see(at(min(1.0, tick / 16)), tick / 4)
    assert outlook.forecast().seconds_left == 0
    assert outlook.forecast().progress == 1


def test_what_a_failed_job_takes_back_is_no_speed() -> None:
    outlook = Outlook()
    for tick in range(40):
        outlook.see(at(0.5 - tick / 1000), tick / 4)
    assert outlook.forecast().units == 0
    assert outlook.forecast().seconds_left is None


def test_sources_that_were_given_up_are_not_waited_for() -> None:
    outlook = Outlook()
    for tick in range(41):
        done = tick / 80
        outlook.see(at(done, jobs=8, jobs_done=4, jobs_failed=4, failed_bytes=4_000_000_000), tick / 4)
    assert outlook.forecast().seconds_left == 0


def test_a_resumed_run_shows_only_its_own_speed() -> None:
    outlook = Outlook()
    for second in range(30):
        outlook.see(at(0.9, session_units=second * 5e6, session_tokens=second * 2_000_000), second)
    found = outlook.forecast()
    assert found.units == pytest.approx(5e6)
    assert found.tokens == pytest.approx(2e6)


def test_the_bar_counts_bytes_that_have_come_but_are_not_converted() -> None:
    one = at(0.0, fetched=2_000_000_000, to_fetch=6_000_000_000, source_bytes=8_000_000_000)
    assert progress(one) == pytest.approx(2 / 16)


def test_empty_sources_count_by_number() -> None:
    assert progress(at(0, units=0, units_done=0, jobs=4, jobs_done=1)) == 0.25
    assert progress(at(0, units=0, units_done=0, jobs=0, jobs_done=0)) == 0


def test_the_join_goes_on_where_the_bar_was() -> None:
    ended = at(1.0, source_bytes=8_000_000_000, join_tokens=400_000_000)
    began = joining(0.0, source_bytes=8_000_000_000, join_tokens=400_000_000, joined_tokens=0)
    assert 0.9 < progress(ended) < 1
    assert progress(began) == progress(ended)
    assert progress(joining(1.0, source_bytes=8_000_000_000, join_tokens=4, joined_tokens=4)) == 1


def test_each_download_has_a_speed() -> None:
    outlook = Outlook()
    for second in range(8):
        one = Download("a.parquet", second * 3_000_000, 10**9)
        outlook.see(at(0.0, fetched=second * 3_000_000, downloads=[one]), second)
    assert outlook.download_rate("a.parquet") == pytest.approx(3e6)
    assert outlook.download_rate("b.parquet") is None


@pytest.mark.parametrize(
    ("running", "jobs", "slots", "seconds"),
    [
        ([], 0, 4, 0),
        ([5.0], 0, 4, 5),
        ([], 5, 4, 20),
        ([5.0, 5.0], 2, 2, 15),
        ([], 4, 8, 10),
        ([1.0] * 4, 1, 2, 11),
    ],
)
def test_the_longest_of_the_slots_decides(
    running: list[float], jobs: int, slots: int, seconds: float
) -> None:
    assert makespan(running, jobs, 10.0, slots) == seconds


def test_thousands_of_jobs_are_about_their_sum_divided() -> None:
    assert makespan([], 100_000, 2.0, 100) == pytest.approx(2000.0, rel=0.01)
    assert makespan([], 100_000, 0.001, 8, lambda number: number / 50) == pytest.approx(2000.0, rel=0.01)
