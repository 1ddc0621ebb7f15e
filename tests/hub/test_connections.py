"""How many connections fetch: more while that brings more, fewer when the server complains."""

import threading
import time

import pytest

from fwconvert.hub.connections import Pace
from fwconvert.hub.dataset import _Addresses


def settle(pace: Pace, *, each: float, link: float, seconds: float, begin: float = 0.0) -> float:
    """Let connections fetch for some seconds over a link with a limit; return the time after it."""
    now, step = begin, 0.05
    while now < begin + seconds:
        rate = min(link, each * pace.limit)
        now += step
        pace.received(round(rate * step), now, pace.limit)
    return now


@pytest.mark.parametrize("wanted", [1, 4, 10, 16, 40])
def test_a_link_is_filled_and_not_by_many_more_connections_than_that_takes(wanted: int) -> None:
    pace = Pace(64)
    settle(pace, each=5e6, link=wanted * 5e6, seconds=8)
    assert wanted <= pace.limit <= max(16, 2 * wanted)


def test_the_limit_is_reached_within_two_seconds() -> None:
    pace = Pace(64)
    settle(pace, each=5e6, link=1e12, seconds=2)
    assert pace.limit == 64


def test_the_most_is_never_exceeded() -> None:
    pace = Pace(3)
    assert pace.limit == 3
    settle(pace, each=5e6, link=1e12, seconds=60)
    assert pace.limit == 3


def test_a_link_that_becomes_faster_is_noticed() -> None:
    pace = Pace(64)
    now = settle(pace, each=5e6, link=40e6, seconds=20)
    before = pace.limit
    settle(pace, each=5e6, link=200e6, seconds=200, begin=now)
    assert before <= 20
    assert pace.limit * 5e6 >= 0.9 * 200e6


def test_trouble_halves_the_number_once_for_all_connections_that_meet_it() -> None:
    pace = Pace(64)
    now = settle(pace, each=5e6, link=1e12, seconds=3)
    for number in range(20):
        pace.trouble(now + number / 100)
    assert pace.limit == 32
    for _ in range(20):
        now += 3
        pace.trouble(now)
    assert pace.limit == 1


def test_after_trouble_it_grows_again_but_not_at_once() -> None:
    pace = Pace(64)
    now = settle(pace, each=5e6, link=1e12, seconds=3)
    pace.trouble(now)
    now = settle(pace, each=5e6, link=1e12, seconds=20, begin=now)
    assert pace.limit == 32
    settle(pace, each=5e6, link=1e12, seconds=60, begin=now)
    assert pace.limit > 32


def test_nothing_is_learnt_while_there_is_too_little_to_fetch() -> None:
    pace = Pace(64)
    for tick in range(1, 200):
        pace.received(1_000, tick * 0.05, active=2)
    assert pace.limit == 16


def test_requests_that_waited_for_an_address_then_go_on_together() -> None:
    addresses = _Addresses()
    together = threading.Barrier(2, timeout=20)
    found: list[str] = []

    def ask() -> None:
        with addresses.known("file") as (address, _):
            together.wait()  # None of them makes the other wait for its response.
            found.append(address)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    with addresses.known("file") as (address, learn):
        assert address == ""
        for thread in threads:
            thread.start()
        time.sleep(0.2)  # Both wait for the address by now.
        assert found == []
        learn("https://storage.example/file")
    for thread in threads:
        thread.join()
    assert found == ["https://storage.example/file"] * 2
