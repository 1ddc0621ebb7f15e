"""The timeline of a session is small, however long the session, and never holds it up."""

from pathlib import Path

import pytest
from runner import Notices

from fwconvert.run import recorder
from fwconvert.run.events import Snapshot
from fwconvert.store import statistics
from fwconvert.store.local import LocalStore


def snapshot(number: int, phase: str = "convert") -> Snapshot:
    return Snapshot(
        phase=phase,  # type: ignore[arg-type]
        units=1000,
        units_done=number,
        session_units=number,
        session_tokens=10 * number,
        jobs=4,
        jobs_done=1,
        tokens=10 * number,
        running=(),
        fetched=number,
        bottleneck="network",
    )


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = LocalStore(tmp_path, "session")
    made.prepare()
    return made


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time of the clock, which the test sets."""
    now = [0.0]
    monkeypatch.setattr("fwconvert.run.recorder.time.monotonic", lambda: now[0])
    return now


def test_a_long_session_is_thinned_and_keeps_its_beginning_and_end(
    store: LocalStore, seconds: list[float]
) -> None:
    made = recorder.Recorder(store, "session", Notices())
    for number in range(20_000):
        seconds[0] = float(number)
        made.update(snapshot(number))
    for number in range(1000):
        made.notice(f"notice {number}")
    made.finish("complete")

    found = statistics.of_session(store, "session")

    assert found is not None
    assert 100 < len(found.moments) <= statistics.MOST_MOMENTS
    assert (found.moments[0].seconds, found.moments[-1].seconds) == (0.0, 19_999.0)
    assert found.moments[-1].tokens == 199_990
    gaps = [b.seconds - a.seconds for a, b in zip(found.moments[:-2], found.moments[1:-1], strict=True)]
    assert max(gaps) <= 4 * min(gaps)
    texts = [notice.text for notice in found.notices]
    assert (texts[0], texts[-1]) == ("notice 0", "notice 999")
    assert len(texts) + found.notices_left_out == 1000
    assert found.outcome == "complete"


def test_it_passes_everything_on_and_keeps_addresses_to_itself(store: LocalStore) -> None:
    notices = Notices()
    made = recorder.Recorder(store, "session", notices)
    made.notice("fetching https://user:secret@hub.example/a?signature=1 \x1b[31m" + "x" * 5000)
    made.finish("stopped")

    found = statistics.of_session(store, "session")

    assert notices.texts[0].endswith("x" * 5000)
    assert found is not None
    (notice,) = found.notices
    assert "secret" not in notice.text
    assert "signature" not in notice.text
    assert "\x1b" not in notice.text
    assert len(notice.text) <= statistics.MOST_NOTICE


def test_a_folder_that_cannot_be_written_to_is_no_trouble(store: LocalStore, seconds: list[float]) -> None:
    place = store.local(".fwconvert/timelines")
    place.write_text("a file where a folder belongs")
    made = recorder.Recorder(store, "session", Notices())
    for number in range(10):
        seconds[0] = float(number)
        made.update(snapshot(number, "join"))
    made.finish("complete")

    assert statistics.of_session(store, "session") is None
    assert not [*store.list(".fwconvert/temporary")]
