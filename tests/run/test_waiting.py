"""What a run says of what holds it up, by a clock that the tests move."""

from fwconvert.run.events import Bottleneck
from fwconvert.run.inputs import Traffic
from fwconvert.run.tracker import Waits


def traffic(here: int, *, coming: bool = True) -> Traffic:
    return Traffic(bytes=0, here=here, coming=coming, connections=16)


def watch(waits: Waits, seconds: float, now: float, seen: Traffic, busy: int, usable: int = 2) -> float:
    """Look four times a second, as the scheduler does; return the time after it."""
    for _ in range(round(4 * seconds)):
        now += 0.25
        waits.look(now, seen, busy, usable)
    return now


def both(waits: Waits) -> tuple[Bottleneck, Bottleneck]:
    return waits.lately, waits.altogether


def test_workers_that_have_no_source_wait_for_the_network() -> None:
    waits = Waits()
    watch(waits, 10, 100.0, traffic(here=1), busy=1)
    assert both(waits) == ("network", "network")


def test_workers_that_are_always_busy_are_the_limit_though_no_source_is_ready() -> None:
    # It comes as fast as it is converted: a faster network would change nothing.
    waits = Waits()
    watch(waits, 10, 100.0, traffic(here=2), busy=2)
    assert both(waits) == ("workers", "workers")


def test_workers_are_the_limit_if_sources_wait_for_them() -> None:
    waits = Waits()
    watch(waits, 10, 100.0, traffic(here=6), busy=2)
    assert both(waits) == ("workers", "workers")


def test_the_last_seconds_count_now_and_all_of_them_in_the_end() -> None:
    waits = Waits()
    now = watch(waits, 20, 100.0, traffic(here=1), busy=1)
    # All has come, and the workers finish what they have: so it was at the end of a slow download.
    watch(waits, 5, now, traffic(here=2, coming=False), busy=2)
    assert both(waits) == ("workers", "network")


def test_a_moment_without_a_source_is_not_the_network_s_fault() -> None:
    waits, now = Waits(), 100.0
    for _ in range(5):
        now = watch(waits, 2.75, now, traffic(here=4), busy=2)
        now = watch(waits, 0.25, now, traffic(here=1), busy=1)
    assert both(waits) == ("workers", "workers")


def test_a_slot_for_which_no_source_is_left_waits_for_nothing() -> None:
    waits = Waits()
    watch(waits, 10, 100.0, traffic(here=1, coming=False), busy=1, usable=1)
    assert both(waits) == ("workers", "workers")


def test_sources_that_a_limit_holds_back_are_not_the_network_s_fault() -> None:
    waits = Waits()
    watch(waits, 10, 100.0, traffic(here=3, coming=False), busy=1)
    assert both(waits) == ("--limit", "--limit")


def test_time_that_nobody_saw_is_not_counted_in_full() -> None:
    waits = Waits()
    now = watch(waits, 10, 100.0, traffic(here=4), busy=2)
    waits.look(now + 10_000.0, traffic(here=1), 1, 2)  # A laptop was closed.
    assert waits.altogether == "workers"


def test_before_the_first_second_nothing_is_said_against_the_network() -> None:
    assert both(Waits()) == ("workers", "workers")
