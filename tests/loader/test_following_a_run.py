"""Waiting for a run ends when there is more, after the timeout, or when nobody makes it any more."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import corpus
import pytest
import runner

from fwconvert.errors import NotReady
from fwconvert.loader import Loader
from fwconvert.loader import shards as loader_shards
from fwconvert.loader.shards import Waiting
from fwconvert.store import layout, sessions
from fwconvert.store.local import LocalStore


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(loader_shards, "time", made)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> LocalStore:
    """Return the folder of a run at which somebody worked."""
    made = LocalStore(tmp_path)
    made.prepare()
    with LocalStore(made.root, "first").lock():
        pass
    return made


def waiting(folder: LocalStore, timeout: float | None = None) -> Waiting:
    return Waiting(folder, timeout, poll=5)


def at(clock: Clock, seconds: float) -> Callable[[], bool]:
    """Return what becomes true after so many seconds."""
    return lambda: clock.now >= seconds


@pytest.mark.parametrize("timeout", [None, 3600])
@pytest.mark.parametrize("outcome", ["2 jobs failed", ""])
def test_a_run_that_nobody_makes_any_more_is_not_waited_for(
    folder: LocalStore, clock: Clock, outcome: str, timeout: float | None
) -> None:
    past = sessions.new()
    sessions.write(folder, sessions.ended(past, outcome) if outcome else past)

    with pytest.raises(
        NotReady, match=rf"(?s)no session is working on it.*{outcome or 'interrupted'}.*run its command again"
    ):
        waiting(folder, timeout).until(lambda: False)
    assert clock.now == 60


def test_what_was_made_before_everybody_left_is_seen(folder: LocalStore, clock: Clock) -> None:
    lock = LocalStore(folder.root, "second").lock()

    def leaves_at_once() -> bool:
        if clock.now < 1000:
            return False
        lock.__exit__(None, None, None)
        return True

    waiting(folder).until(leaves_at_once)
    assert clock.now == 1000


def test_a_run_that_is_being_made_is_waited_for(folder: LocalStore, clock: Clock) -> None:
    with LocalStore(folder.root, "second").lock():
        waiting(folder).until(at(clock, 10_000))
        with pytest.raises(NotReady, match=r"(?s)nothing new.*100"):
            waiting(folder, timeout=100).until(lambda: False)
    assert clock.now == 10_100


@pytest.mark.parametrize("lock", ["", "pid 7 on host elsewhere, session s\n", None])
def test_a_run_of_which_nobody_knows_who_makes_it_is_waited_for(
    folder: LocalStore, clock: Clock, lock: str | None
) -> None:
    path = folder.local(layout.PRIVATE) / "lock"
    path.unlink()
    if lock is not None:
        path.write_text(lock)

    waiting(folder).until(at(clock, 10_000))


def test_a_session_that_begins_within_a_minute_is_waited_for(folder: LocalStore, clock: Clock) -> None:
    locks: list[AbstractContextManager[object]] = []

    def begins() -> bool:
        if clock.now == 50:
            locks.append(LocalStore(folder.root, "second").lock())
        return clock.now >= 10_000

    waiting(folder).until(begins)
    locks[0].__exit__(None, None, None)


@pytest.mark.parametrize("timeout", [None, 3600])
@pytest.mark.parametrize("there", [False, True])
def test_that_nobody_has_begun_a_run_is_told_once_where_the_loader_is_made(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, there: bool, timeout: float | None
) -> None:
    out = tmp_path / "out"
    if there:
        out.mkdir()
    choices: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 2000, "val_tokens": 0}

    def sleep(seconds: float) -> None:
        clock.now += seconds
        if clock.now == 1000:
            source = corpus.equal_sources(tmp_path / "source", files=1, rows=30)
            assert runner.convert(source, out, **choices).complete

    monkeypatch.setattr(clock, "sleep", sleep)
    said = rf"(?s)no run in this folder yet.*{out}.*exists +{'yes' if there else 'no'}.*path is right"
    with pytest.warns(UserWarning, match=said) as warned:
        loader = Loader(out, seq_len=50, order="sequential", follow=True, timeout=timeout)
    assert [Path(one.filename).name for one in warned] == [Path(__file__).name]
    assert [row for batch in loader for row in batch.tolist()] != []


@pytest.mark.filterwarnings("ignore:there is no run:UserWarning")
@pytest.mark.parametrize("timeout", [5, 100])
def test_a_run_that_nobody_begins_is_waited_for_until_the_timeout(
    tmp_path: Path, clock: Clock, timeout: float
) -> None:
    with pytest.raises(NotReady, match=rf"(?s)gave up waiting.*nowhere.*{timeout} seconds.*path is right"):
        Loader(tmp_path / "nowhere", order="sequential", follow=True, timeout=timeout)
    assert clock.now == timeout


def test_a_follower_of_a_run_with_a_bad_source_is_told(tmp_path: Path) -> None:
    source, out = corpus.equal_sources(tmp_path / "source", files=4, rows=30), tmp_path / "out"
    (source / "02.parquet").write_bytes(b"no parquet")
    choices: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 2000, "val_tokens": 0}
    assert not runner.convert(source, out, **choices).complete
    served: list[Any] = []

    with pytest.raises(NotReady, match=r"(?s)no session is working on it.*1 jobs failed") as told:
        served.extend(Loader(out, seq_len=50, order="sequential", follow=True))
    assert str(out) in str(told.value)
    assert served
