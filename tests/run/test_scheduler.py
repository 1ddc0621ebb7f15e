"""The policy for failures, on an engine of threads whose orders have scripted outcomes."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest
from examples import RECIPE, RULES

from fwconvert.errors import FwconvertError, HubError, OutputError, Stopped
from fwconvert.job.orders import (
    ConvertOrder,
    Failure,
    JoinOrder,
    Order,
    Outcome,
    RunContext,
    SourceFile,
    Unfetched,
)
from fwconvert.recipes import SourceShard
from fwconvert.run import scheduler
from fwconvert.run.engines import Progress
from fwconvert.run.engines.local import LocalEngine
from fwconvert.run.scheduler import JOB_TRIES, LOST_TRIES, carry_out
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import JoinReceipt, Receipt, Segment, ShardLine

CONTEXT = RunContext("out", "id", RULES, "session")


def order_of(name: str) -> JoinOrder:
    return JoinOrder(CONTEXT, name, "train", (Segment(0, 0, 0, 1),), ("key",))


def orders_of(*names: str) -> list[JoinOrder]:
    return [order_of(name) for name in names]


def receipt_of(name: str) -> JoinReceipt:
    return JoinReceipt("id", (), ShardLine(name, "train", 1, 1, 1026, "", "", ((0, 0),)), "session")


@dataclass
class ThreadEngine:
    """Carries out orders in threads. An attempt takes the next step of the order's script, or succeeds."""

    slots: int
    scripts: "dict[str, list[Step]]" = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    # For each start: how many orders had a slot then, itself included.
    crowds: list[int] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    killed: threading.Event = field(default_factory=threading.Event)
    nodes: None = None
    _flying: "dict[Future[Outcome], Order]" = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(max(1, self.slots))
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.killed.set()
        self._pool.shutdown()

    @property
    def at_work(self) -> int:
        return sum(not future.done() for future in self._flying)

    def submit(self, order: Order) -> "Future[Outcome]":
        assert len(self._flying) < self.slots, "there is no free slot"
        script = self.scripts.get(order.title, [])
        step = script.pop(0) if script else succeed
        future = self._pool.submit(step, self, order)
        self._flying[future] = order
        self.started.append(order.title)
        self.crowds.append(len(self._flying))
        return future

    def outcome(self, future: "Future[Outcome]") -> Outcome:
        assert future.done()
        self._flying.pop(future)
        return future.result()

    def progress(self) -> list[Progress]:
        return [Progress.of(order, 0.5, 1) for order in self._flying.values()]

    def enforce_limits(self) -> None:
        """Let everybody be."""

    def stop(self) -> None:
        self.stopping.set()

    def kill(self) -> None:
        self.killed.set()


Step = Callable[[ThreadEngine, Order], Outcome]


def succeed(_: ThreadEngine, order: Order) -> Outcome:
    return receipt_of(order.title)


def succeed_slowly(_: ThreadEngine, order: Order) -> Outcome:
    time.sleep(0.02)
    return receipt_of(order.title)


def fail(_: ThreadEngine, order: Order) -> Outcome:
    return Failure("job", f"{order.title} is corrupt")


def lose(_: ThreadEngine, order: Order) -> Outcome:
    return Failure("lost", f"the worker of {order.title} died")


def be_killed(_: ThreadEngine, order: Order) -> Outcome:
    return Failure("lost", f"the worker of {order.title} was killed", killed=True)


def lack_space(_: ThreadEngine, order: Order) -> Outcome:
    return Failure("output", f"no space is left for {order.title}")


def not_begin(_: ThreadEngine, order: Order) -> Outcome:
    return Failure("unready", f"no memory to begin {order.title}")


def stop_when_asked(engine: ThreadEngine, _: Order) -> Outcome:
    assert engine.stopping.wait(20)
    return Failure("stopped", "stopped at a safe place")


def finish_after_the_stop_request(engine: ThreadEngine, order: Order) -> Outcome:
    assert engine.stopping.wait(20)
    time.sleep(0.1)
    return receipt_of(order.title)


def fail_after_the_stop_request(engine: ThreadEngine, order: Order) -> Outcome:
    assert engine.stopping.wait(20)
    return Failure("job", f"{order.title} is corrupt")


def lack_space_after_the_stop_request(engine: ThreadEngine, order: Order) -> Outcome:
    assert engine.stopping.wait(20)
    return Failure("output", f"no space is left for {order.title} either")


def ignore_the_stop_request(engine: ThreadEngine, _: Order) -> Outcome:
    assert engine.killed.wait(20)
    return Failure("lost", "killed in the end", killed=True)


@dataclass
class Witness:
    """A watcher that notes what it is told."""

    finished: list[str] = field(default_factory=list)
    failures: list[tuple[str, str, bool]] = field(default_factory=list)
    ticks: int = 0
    # The user: wants to stop when this is true, and loses patience when that is true.
    wants_to_stop: Callable[[], bool] = lambda: False
    loses_patience: Callable[[], bool] = lambda: False

    def done(self, order: Order, receipt: Receipt | JoinReceipt) -> None:
        assert isinstance(receipt, JoinReceipt)
        assert receipt.shard.name == order.title
        self.finished.append(order.title)

    def failed(self, order: Order, failure: Failure, *, final: bool) -> None:
        self.failures.append((order.title, failure.kind, final))

    def notice(self, text: str) -> None:
        """Only an engine with nodes has something to say."""

    def tick(self, running: list[Progress]) -> None:
        assert all(isinstance(progress, Progress) for progress in running)
        self.ticks += 1
        if self.wants_to_stop():
            raise Stopped("stopped by the user")

    def stop_now(self) -> bool:
        return self.loses_patience()


@pytest.fixture
def witness() -> Witness:
    return Witness()


@pytest.mark.parametrize("slots", [1, 2, 4, 9])
def test_every_order_is_carried_out_once(slots: int, witness: Witness) -> None:
    names = [f"order {number}" for number in range(20)]
    with ThreadEngine(slots) as engine:
        carry_out(orders_of(*names), engine, witness)

    assert engine.started == names  # In their order, each once.
    assert sorted(witness.finished) == sorted(names)
    assert witness.failures == []
    assert max(engine.crowds) <= slots


def test_no_orders_are_no_work(witness: Witness) -> None:
    with ThreadEngine(2) as engine:
        carry_out([], engine, witness)

    assert engine.started == []


def test_all_slots_are_used_at_the_same_time(witness: Witness) -> None:
    together = threading.Barrier(4)

    def meet(_: ThreadEngine, order: Order) -> Outcome:
        together.wait(20)  # Fails unless four orders run side by side.
        return receipt_of(order.title)

    names = [f"order {number}" for number in range(8)]
    with ThreadEngine(4, {name: [meet] for name in names}) as engine:
        carry_out(orders_of(*names), engine, witness)

    assert sorted(witness.finished) == names


def test_an_order_that_fails_once_is_tried_again_later_and_done(witness: Witness) -> None:
    with ThreadEngine(1, {"a": [fail]}) as engine:
        carry_out(orders_of("a", "b", "c"), engine, witness)

    assert engine.started == ["a", "b", "c", "a"]
    assert witness.finished == ["b", "c", "a"]
    assert witness.failures == [("a", "job", False)]


@pytest.mark.parametrize("slots", [1, 3])
def test_an_order_s_own_error_is_tried_a_little_then_given_up_and_the_others_go_on(
    slots: int, witness: Witness
) -> None:
    with ThreadEngine(slots, {"bad": [fail] * 99}) as engine:
        carry_out(orders_of("a", "bad", "b", "c"), engine, witness)

    assert engine.started.count("bad") == JOB_TRIES
    assert [final for _, _, final in witness.failures] == [False] * (JOB_TRIES - 1) + [True]
    assert sorted(witness.finished) == ["a", "b", "c"]


def test_a_lost_worker_is_tried_more_often_and_then_given_up(witness: Witness) -> None:
    assert LOST_TRIES > JOB_TRIES
    with ThreadEngine(2, {"bad": [lose] * 99}) as engine:
        carry_out(orders_of("bad", "a", "b", "c"), engine, witness)

    assert engine.started.count("bad") == LOST_TRIES
    assert witness.failures == [("bad", "lost", False)] * (LOST_TRIES - 1) + [("bad", "lost", True)]
    assert sorted(witness.finished) == ["a", "b", "c"]


def test_a_worker_lost_a_few_times_is_no_reason_to_give_up(witness: Witness) -> None:
    with ThreadEngine(2, {"a": [lose] * (LOST_TRIES - 1)}) as engine:
        carry_out(orders_of("a"), engine, witness)

    assert witness.finished == ["a"]
    assert len(witness.failures) == LOST_TRIES - 1


def test_lost_workers_do_not_use_up_the_tries_of_an_order_s_own_errors(witness: Witness) -> None:
    with ThreadEngine(1, {"a": [lose, fail, lose, lose]}) as engine:
        carry_out(orders_of("a"), engine, witness)

    assert witness.finished == ["a"]
    assert not any(final for _, _, final in witness.failures)


def test_several_bad_orders_are_each_given_up_alone(witness: Witness) -> None:
    bad = {f"bad {number}": [fail] * 99 for number in range(5)}
    good = [f"good {number}" for number in range(5)]
    with ThreadEngine(3, dict(bad)) as engine:
        carry_out(orders_of(*bad, *good), engine, witness)

    assert Counter(name for name, _, final in witness.failures if final) == Counter(list(bad))
    assert sorted(witness.finished) == good


@pytest.mark.parametrize(("slots", "half"), [(1, 1), (2, 1), (4, 2), (5, 2)])
def test_after_a_kill_at_most_half_of_the_slots_work_until_the_suspect_is_done(
    slots: int, half: int, witness: Witness
) -> None:
    def take_long(engine: ThreadEngine, order: Order) -> Outcome:
        time.sleep(0.2)
        started_meanwhile.append(len(engine.started))
        return receipt_of(order.title)

    started_meanwhile: list[int] = []
    small = [f"small {number}" for number in range(60)]
    scripts: dict[str, list[Step]] = {
        "big": [be_killed, take_long],
        **{name: [succeed_slowly] for name in small},
    }
    with ThreadEngine(slots, scripts) as engine:
        carry_out(orders_of("big", *small), engine, witness)

    again, (end,) = engine.started.index("big", 1), started_meanwhile
    assert sorted(witness.finished) == sorted(["big", *small])
    assert max(engine.crowds[again:end]) <= half
    assert max(engine.crowds[end:]) == slots  # And all of them again afterwards.


def test_a_suspect_that_is_given_up_no_longer_holds_the_others_back(witness: Witness) -> None:
    small = [f"small {number}" for number in range(40)]
    scripts: dict[str, list[Step]] = {"big": [be_killed] * 99, **{name: [succeed_slowly] for name in small}}
    with ThreadEngine(4, scripts) as engine:
        carry_out(orders_of("big", *small), engine, witness)

    last = len(engine.started) - 1 - engine.started[::-1].index("big")
    assert engine.started.count("big") == LOST_TRIES
    assert max(engine.crowds[last + 3 :]) == 4


def test_a_worker_that_died_by_itself_costs_no_slots(witness: Witness) -> None:
    small = [f"small {number}" for number in range(20)]
    scripts: dict[str, list[Step]] = {"big": [lose], **{name: [succeed_slowly] for name in small}}
    with ThreadEngine(4, scripts) as engine:
        carry_out(orders_of("big", *small), engine, witness)

    assert max(engine.crowds) == 4


def test_workers_that_cannot_begin_stop_the_run_and_count_against_nobody(witness: Witness) -> None:
    names = [f"order {number}" for number in range(9)]
    with ThreadEngine(3, {name: [not_begin] * 99 for name in names}) as engine:
        with pytest.raises(FwconvertError, match="no memory to begin"):
            carry_out(orders_of(*names), engine, witness)

        assert engine.at_work == 0
    assert len(engine.started) == max(3, LOST_TRIES)
    assert [(kind, final) for _, kind, final in witness.failures] == [("unready", False)]  # Told once.


def test_a_worker_that_cannot_begin_uses_up_no_try_of_its_order(witness: Witness) -> None:
    script: list[Step] = [*[not_begin] * (LOST_TRIES - 1), *[fail] * (JOB_TRIES - 1)]
    with ThreadEngine(1, {"a": script}) as engine:
        carry_out(orders_of("a", "b"), engine, witness)

    assert sorted(witness.finished) == ["a", "b"]


def test_those_at_work_go_on_without_the_workers_that_cannot_begin(witness: Witness) -> None:
    tried = threading.Event()

    def go_on(_: ThreadEngine, order: Order) -> Outcome:
        assert tried.wait(20)
        time.sleep(0.3)  # Long enough for many tries, if there were any.
        return receipt_of(order.title)

    def not_begin_this(engine: ThreadEngine, order: Order) -> Outcome:
        tried.set()
        return not_begin(engine, order)

    with ThreadEngine(2, {"a": [go_on], "b": [not_begin_this]}) as engine:
        carry_out(orders_of("a", "b", "c"), engine, witness)

    assert engine.started == ["a", "b", "c", "b"]
    assert sorted(witness.finished) == ["a", "b", "c"]


def test_an_output_error_stops_at_once_and_counts_against_nobody(witness: Witness) -> None:
    scripts: dict[str, list[Step]] = {"a": [lack_space], "b": [stop_when_asked]}
    with ThreadEngine(2, scripts) as engine:
        with pytest.raises(OutputError, match="no space is left for a"):
            carry_out(orders_of("a", "b", "c", "d"), engine, witness)

        assert engine.at_work == 0
        assert engine.stopping.is_set()
        assert not engine.killed.is_set()
    assert engine.started == ["a", "b"]
    assert witness.failures == []


def test_the_first_output_error_is_the_one_that_is_told(witness: Witness) -> None:
    scripts: dict[str, list[Step]] = {
        "a": [lack_space],
        "b": [lack_space_after_the_stop_request],
        "c": [stop_when_asked],
    }
    with ThreadEngine(3, scripts) as engine, pytest.raises(OutputError, match=r"no space is left for a$"):
        carry_out(orders_of("a", "b", "c"), engine, witness)

    assert witness.failures == []


def test_what_finishes_while_winding_down_is_kept(witness: Witness) -> None:
    scripts: dict[str, list[Step]] = {
        "a": [lack_space],
        "b": [finish_after_the_stop_request],
        "c": [lack_space_after_the_stop_request],
        "d": [finish_after_the_stop_request],
    }
    with ThreadEngine(4, scripts) as engine, pytest.raises(OutputError):
        carry_out(orders_of("a", "b", "c", "d", "e"), engine, witness)

    assert sorted(witness.finished) == ["b", "d"]
    assert "e" not in engine.started


def test_a_stop_request_lets_the_workers_stop_at_a_safe_place(witness: Witness) -> None:
    witness.wants_to_stop = lambda: witness.ticks >= 2
    scripts: dict[str, list[Step]] = {"a": [stop_when_asked], "b": [finish_after_the_stop_request]}
    with ThreadEngine(2, scripts) as engine:
        with pytest.raises(Stopped, match="by the user"):
            carry_out(orders_of("a", "b", "c"), engine, witness)

        assert engine.at_work == 0
        assert not engine.killed.is_set()
    assert engine.started == ["a", "b"]
    assert witness.finished == ["b"]
    assert witness.failures == []


def test_an_order_that_fails_after_the_stop_request_is_not_started_again(witness: Witness) -> None:
    witness.wants_to_stop = lambda: True
    with ThreadEngine(1, {"a": [fail_after_the_stop_request]}) as engine, pytest.raises(Stopped):
        carry_out(orders_of("a", "b"), engine, witness)

    assert engine.started == ["a"]


def test_a_worker_that_says_it_was_stopped_stops_the_run(witness: Witness) -> None:
    def be_stopped(_: ThreadEngine, order: Order) -> Outcome:
        return Failure("stopped", f"{order.title} was stopped")

    with ThreadEngine(1, {"a": [be_stopped]}) as engine, pytest.raises(Stopped, match="a was stopped"):
        carry_out(orders_of("a", "b"), engine, witness)

    assert engine.started == ["a"]
    assert witness.failures == []


def test_a_second_stop_request_kills(witness: Witness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_GRACE_SECONDS", 60)  # It would last longer than "a" can wait.
    witness.wants_to_stop = lambda: True
    began = time.monotonic()
    witness.loses_patience = lambda: "b" in witness.finished
    with ThreadEngine(2, {"a": [ignore_the_stop_request], "b": [finish_after_the_stop_request]}) as engine:
        with pytest.raises(Stopped):
            carry_out(orders_of("a", "b", "c"), engine, witness)

        assert time.monotonic() - began < 5
        assert engine.killed.is_set()
        assert engine.at_work == 0
    assert engine.started == ["a", "b"]
    assert witness.finished == ["b"]  # It finished before the second stop request.


def test_a_worker_that_does_not_stop_in_time_is_killed(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_GRACE_SECONDS", 0.3)
    witness.wants_to_stop = lambda: True
    with ThreadEngine(1, {"a": [ignore_the_stop_request]}) as engine:
        with pytest.raises(Stopped):
            carry_out(orders_of("a"), engine, witness)

        assert engine.killed.is_set()
        assert engine.at_work == 0


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_whatever_is_raised_no_worker_is_at_work_after_it(
    kind: type[BaseException], witness: Witness
) -> None:
    def wants_to_stop() -> bool:
        raise kind("surprise")

    witness.wants_to_stop = wants_to_stop
    with ThreadEngine(2, {"a": [stop_when_asked], "b": [finish_after_the_stop_request]}) as engine:
        with pytest.raises(kind, match="surprise"):
            carry_out(orders_of("a", "b", "c"), engine, witness)

        assert engine.at_work == 0
    assert witness.finished == ["b"]


@dataclass
class Fussy(Witness):
    """A watcher that cannot go on without an order that is given up, as in the join."""

    def failed(self, order: Order, failure: Failure, *, final: bool) -> None:
        super().failed(order, failure, final=final)
        if final:
            raise FwconvertError(failure.message)


def test_a_second_failure_while_winding_down_does_not_leave_a_worker_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "_GRACE_SECONDS", 1.0)
    scripts: dict[str, list[Step]] = {
        "a": [fail, fail],
        "b": [fail, fail_after_the_stop_request],
        "c": [ignore_the_stop_request],
    }
    with ThreadEngine(3, scripts) as engine:
        with pytest.raises(FwconvertError) as caught:
            carry_out(orders_of("a", "b", "c"), engine, Fussy())

        assert engine.at_work == 0
    assert str(caught.value) == "a is corrupt"  # The first is the one to tell.


def test_a_disk_that_fails_the_driver_itself_winds_down() -> None:
    @dataclass
    class Full(Witness):
        def done(self, order: Order, receipt: Receipt | JoinReceipt) -> None:
            super().done(order, receipt)
            raise OutputError("no space is left for the manifest")

    full = Full()
    with ThreadEngine(2, {"b": [finish_after_the_stop_request]}) as engine:
        with pytest.raises(OutputError, match="manifest"):
            carry_out(orders_of("a", "b", "c", "d"), engine, full)

        assert engine.at_work == 0
    assert full.finished == ["a", "b"]


def test_the_watcher_hears_something_while_nothing_finishes(witness: Witness) -> None:
    def wait_for_ticks(_: ThreadEngine, order: Order) -> Outcome:
        deadline = time.monotonic() + 20
        while witness.ticks < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        return receipt_of(order.title)

    with ThreadEngine(1, {"a": [wait_for_ticks]}) as engine:
        carry_out(orders_of("a"), engine, witness)

    assert witness.ticks >= 3


def test_the_watcher_sees_the_end_however_quick_it_came(witness: Witness) -> None:
    done_at_ticks: list[int] = []
    seen = witness.tick

    def tick(running: list[Progress]) -> None:
        done_at_ticks.append(len(witness.finished))
        seen(running)

    witness.tick = tick  # type: ignore[method-assign]
    with ThreadEngine(2) as engine:
        carry_out(orders_of("a", "b", "c"), engine, witness)

    assert done_at_ticks[-1] == 3


def test_a_stop_request_that_comes_when_all_is_done_comes_too_late(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_LOOK_SECONDS", 0)  # It looks after every order, so after the last too.
    witness.wants_to_stop = lambda: len(witness.finished) == 3
    with ThreadEngine(1) as engine:
        carry_out(orders_of("a", "b", "c"), engine, witness)

    assert witness.finished == ["a", "b", "c"]


def test_an_engine_without_slots_is_an_error_and_no_endless_wait(witness: Witness) -> None:
    witness.wants_to_stop = lambda: witness.ticks > 100  # Or this would never end.

    with ThreadEngine(0) as engine, pytest.raises((FwconvertError, ValueError)) as caught:
        carry_out(orders_of("a"), engine, witness)

    assert not isinstance(caught.value, Stopped)


@pytest.fixture
def local_engine(tmp_path: Path) -> Iterator[LocalEngine]:
    folder = LocalStore(tmp_path / "out")
    folder.prepare()
    with LocalEngine(1) as engine:
        yield engine


def test_the_death_of_an_idle_worker_is_not_the_end_of_the_run(
    tmp_path: Path, local_engine: LocalEngine, witness: Witness
) -> None:
    context = RunContext(str(tmp_path / "out"), RECIPE.recipe_id, RULES, "session")
    order = ConvertOrder(
        context, SourceShard("x.parquet", 1), 0, SourceFile(str(tmp_path / "missing.parquet"))
    )
    carry_out([order], local_engine, witness)
    (slot,) = local_engine._slots
    assert slot.process is not None
    assert slot.executor is not None

    slot.process.kill()  # As the kernel does when memory runs out between two orders.
    with pytest.raises(BrokenProcessPool):
        slot.executor.submit(int).result(20)
    carry_out([order], local_engine, witness)

    assert [kind for _, kind, _ in witness.failures].count("job") == 2 * JOB_TRIES


def test_what_is_not_ready_is_waited_for_while_others_work(witness: Witness) -> None:
    def slowly() -> Iterator[JoinOrder | None]:
        for name in ("first", "second"):
            yield from [None] * 25
            yield order_of(name)

    with ThreadEngine(2) as engine:
        carry_out(slowly(), engine, witness)

    assert witness.finished == ["first", "second"]
    assert witness.ticks > 5


def test_a_failed_order_is_tried_again_while_nothing_else_is_ready(witness: Witness) -> None:
    # Its source takes up room on the disk, which the next source may be waiting for.
    def waiting_for_room() -> Iterator[JoinOrder | None]:
        yield order_of("bad")
        while ("bad", "job", True) not in witness.failures:
            yield None
        yield order_of("good")

    with ThreadEngine(1, {"bad": [fail, fail]}) as engine:
        carry_out(waiting_for_room(), engine, witness)

    assert engine.started == ["bad", "bad", "good"]


def test_an_order_without_its_source_is_given_up_and_the_others_go_on(witness: Witness) -> None:
    source = ConvertOrder(CONTEXT, SourceShard("gone.parquet", 1), 0, SourceFile("gone.parquet"))
    gone = Unfetched(source, Failure("unfetched", "404"))

    with ThreadEngine(2) as engine:
        carry_out([order_of("one"), gone, order_of("two")], engine, witness)

    assert witness.failures == [("gone.parquet", "unfetched", True)]
    assert sorted(witness.finished) == ["one", "two"]


def test_when_nothing_more_can_be_fetched_the_workers_finish_what_they_have(witness: Witness) -> None:
    def cut_off() -> Iterator[JoinOrder]:
        yield order_of("slow")
        raise HubError("the cable is cut")

    with ThreadEngine(2, {"slow": [succeed_slowly]}) as engine:
        with pytest.raises(HubError, match="cable"):
            carry_out(cut_off(), engine, witness)
        assert not engine.stopping.is_set()

    assert witness.finished == ["slow"]
