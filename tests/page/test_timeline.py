"""How fast a run was, as the page draws it: what sessions wrote down, one after the other."""

from fwconvert.page.timeline import SessionFacts, speed
from fwconvert.store.statistics import Moment, Notice, Timeline


def session(
    *moments: Moment, ended: str = "2026-01-01T00:01:00Z", notices: tuple[Notice, ...] = ()
) -> SessionFacts:
    told = moments[-1].seconds
    timeline = Timeline("id", 0.0, told, moments, notices, notices_left_out=0, latest=None)
    return SessionFacts(
        "id", "2026-01-01T00:00:00Z", ended, "", "host", 2, "fast", at_work=False, timeline=timeline
    )


def converting(seconds: float, tokens: int, limit: str = "workers", fetched: int = -1) -> Moment:
    return Moment(seconds, tokens, fetched, 0, limit, 2)


def test_tokens_that_were_made_before_the_join_are_not_its_speed() -> None:
    """All that is known of a short run is how far it was when the join began."""
    found = speed(
        [session(converting(0, 0), Moment(2, 4000, -1, 0, "join", 1), Moment(2.5, 4000, -1, 0, "join", 0))]
    )

    assert [(at, rate, limit) for at, rate, _, limit, _ in found["points"]] == [
        (2, 2000, "workers"),
        (2.5, 0, "join"),
    ]


def test_what_limited_longest_is_said_of_each_part() -> None:
    moments = [
        converting(second, 100 * second, "network" if second < 40 else "workers", 0) for second in range(81)
    ]

    points = speed([session(*moments)])["points"]

    assert {limit for at, _, _, limit, _ in points if at < 39} == {"network"}
    assert {limit for at, _, _, limit, _ in points if at > 41} == {"workers"}
    assert {rate for _, rate, *_ in points} == {100}


def test_sessions_follow_each_other_and_crashes_and_retries_are_marked() -> None:
    retry = Notice(3.0, "a.parquet: 503; retrying in 1 s")
    killed = session(converting(0, 0), converting(10, 1000), ended="", notices=(retry,))

    found = speed([killed, session(converting(0, 0), converting(5, 2000))])

    assert [(mark["x"], mark["kind"]) for mark in found["marks"]] == [
        (0, "session"), (3, "retry"), (10, "crash"), (10, "session"),
    ]  # fmt: skip
    assert [point[:2] for point in found["points"]] == [[10, 100], [15, 400]]
    assert found["sessions"] == 2
