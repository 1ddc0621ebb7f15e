"""What sources may give under a limit, against a naive model: the beginning of one long list."""

import random
from dataclasses import dataclass
from typing import Any

import pytest
from examples import FILES, RULES, SOURCE, rules_with, unhurried
from hypothesis import given
from hypothesis import strategies as st

from fwconvert import limits
from fwconvert.errors import HubError
from fwconvert.job.orders import ConvertOrder, Failure, Ready, RunContext, SourceFile, Unfetched
from fwconvert.limits import Amount
from fwconvert.recipes import Recipe, Rules, SourceShard
from fwconvert.run.limiter import Allowance, Limiter, Rations
from fwconvert.store.receipts import Counts, Receipt, Tail

# Sources, each the lengths of its documents in tokens.
SOURCES = st.lists(st.lists(st.integers(1, 9), max_size=5), max_size=7)
LIMITS = st.none() | st.integers(1, 60)


@dataclass(frozen=True)
class Gave:
    """What a source gave, and whether it had more."""

    documents: int
    tokens: int
    limited: bool = False


def converted(source: list[int], allowance: Allowance) -> Gave:
    """Do what a worker does, token by token."""
    documents = tokens = 0
    for length in source:
        if documents == allowance.documents or tokens == allowance.tokens:
            return Gave(documents, tokens, limited=True)
        documents += 1
        for _ in range(length):
            if tokens == allowance.tokens:
                return Gave(documents, tokens, limited=True)
            tokens += 1
    return Gave(documents, tokens)


def model(sources: list[list[int]], rules: Rules) -> list[Gave]:
    """Return what each source of the run gives: the first so many of all documents and tokens."""
    found: list[Gave] = []
    documents, tokens = rules.limit_documents, rules.limit_tokens
    for source in sources:
        if documents == 0 or tokens == 0:
            break
        gave = converted(source, Allowance(documents, tokens))
        documents = None if documents is None else documents - gave.documents
        tokens = None if tokens is None else tokens - gave.tokens
        found.append(gave)
    return found


def rules_of(documents: int | None, tokens: int | None) -> Rules:
    return rules_with(limit_documents=documents, limit_tokens=tokens)


def expectations(sources: list[list[int]], chance: random.Random) -> list[Amount]:
    """Return what somebody may expect of sources: anything from the truth to nonsense."""
    times = chance.choice([0.0, 0.1, 1.0, 10.0])
    return [Amount(len(source) * times, sum(source) * chance.choice([times, 1.0])) for source in sources]


@given(sources=SOURCES, documents=LIMITS, tokens=LIMITS, seed=st.integers(0, 2**32), slots=st.integers(1, 4))
@unhurried
def test_whatever_is_expected_and_whoever_is_first_the_run_is_that_of_the_model(
    sources: list[list[int]], documents: int | None, tokens: int | None, seed: int, slots: int
) -> None:
    chance = random.Random(seed)
    rules = rules_of(documents, tokens)
    state = Limiter(rules, expectations(sources, chance))
    done: dict[int, Gave] = {}
    flying: dict[int, Allowance] = {}
    for _ in range(1000):
        while len(flying) < slots and (index := state.next) is not None:
            answer = state.answer(index)
            if isinstance(answer, str):
                break
            state.begun(index)
            flying[index] = answer
        if not flying:
            break
        index = chance.choice([*flying])
        if chance.random() < 0.1:  # The process is killed: what was under way was never begun.
            state = Limiter(rules, expectations(sources, chance))
            for other, gave in done.items():
                state.done(other, gave)
            flying.clear()
        else:
            done[index] = converted(sources[index], flying.pop(index))
            state.done(index, done[index])
        for unfit in state.unfit:
            del done[unfit]
            state.undone(unfit)

    wanted = model(sources, rules)
    assert [done[index] for index in sorted(done)] == wanted
    assert [*sorted(done)] == [*range(len(wanted))]
    assert state.settled == state.extent == len(wanted)
    assert state.unfit == []
    assert limits.extent(rules, wanted, len(sources)) == len(wanted)


def test_a_run_without_a_limit_has_all_its_sources_and_waits_for_nothing() -> None:
    state = Limiter(RULES, [Amount(10, 10)] * 3)

    assert [state.answer(index) for index in range(3)] == [Allowance()] + ["wait"] * 2
    state.begun(0)
    assert state.answer(1) == Allowance()
    assert (state.extent, state.reached, state.share(10, 10)) == (3, False, 0.0)


def test_sources_go_ahead_while_all_are_expected_to_fit_with_a_margin() -> None:
    state = Limiter(rules_of(None, 1000), [Amount(10, 200)] * 9)
    begun = []
    while (index := state.next) is not None and state.answer(index) != "wait":
        begun.append((index, state.answer(index)))
        state.begun(index)

    assert begun == [(0, Allowance(None, 1000)), (1, Allowance()), (2, Allowance())]  # 4 * 200 * 1.5 > 1000


def test_what_sources_give_teaches_what_to_expect() -> None:
    # A filter keeps an eighth, which nobody could know.
    state = Limiter(rules_of(None, 1000), [Amount(10, 1000)] * 9)
    state.begun(0)
    assert state.answer(1) == "wait"
    state.done(0, Gave(1, 125))

    begun = 0
    while (index := state.next) is not None and state.answer(index) != "wait":
        state.begun(index)
        begun += 1
    assert begun == 4  # 125 + 4 * 187.5 <= 1000


def test_the_next_source_gets_exactly_what_is_left() -> None:
    state = Limiter(rules_of(100, 1000), [Amount(10, 10)] * 3)
    state.done(0, Gave(30, 100))

    assert state.answer(1) == Allowance(70, 900)


def test_nothing_is_needed_behind_the_limit() -> None:
    state = Limiter(rules_of(None, 100), [Amount(1, 1)] * 3)
    state.done(0, Gave(5, 100))
    state.done(1, Gave(1, 1))

    assert (state.reached, state.extent, state.unfit, state.answer(2)) == (True, 1, [1], "unneeded")
    assert not state.is_wanted_soon(2)


def test_a_source_that_gave_more_than_there_is_room_for_is_done_again() -> None:
    state = Limiter(rules_of(None, 100), [Amount(1, 1)] * 3)
    for index in range(3):
        assert state.answer(index) == (Allowance(None, 100) if index == 0 else Allowance())
        state.begun(index)
    state.done(1, Gave(9, 60))
    assert state.unfit == []
    state.done(0, Gave(9, 70))

    assert state.unfit == [1]
    state.undone(1)
    assert (state.next, state.answer(1), state.settled) == (1, Allowance(None, 30), 1)


def test_a_receipt_that_was_ended_too_early_does_not_stay() -> None:
    state = Limiter(rules_of(None, 100), [Amount(1, 1)])
    state.done(0, Gave(9, 60, limited=True))

    assert (state.unfit, state.settled) == ([0], 0)


def test_no_more_is_fetched_ahead_than_may_be_needed() -> None:
    state = Limiter(rules_of(None, 1000), [Amount(10, 600)] * 9)

    assert [state.is_wanted_soon(index) for index in range(5)] == [True] * 3 + [False] * 2  # 600 / 1.5 each
    state.done(0, Gave(1, 60))
    assert all(state.is_wanted_soon(index) for index in range(9))


def receipt_of(path: str, gave: Gave) -> Receipt:
    counts = Counts(9, gave.documents, 0, 0, 99, gave.tokens, limited=gave.limited)
    return Receipt("id", path, 1, "00", 2, counts, (), Tail(0, 0, 0, "", 0, ""), "s")


@pytest.mark.parametrize(
    ("limit", "gave", "counted"),
    [
        (None, {0: 5, 1: 5}, [0, 1]),
        (None, {1: 5}, [1]),
        (100, {0: 5, 1: 5}, [0, 1]),
        (100, {1: 5}, []),
        (9, {0: 5, 1: 5}, [0]),
        (5, {0: 5, 1: 5}, [0]),
    ],
)
def test_what_may_still_be_withdrawn_is_not_counted(
    limit: int | None, gave: dict[int, int], counted: list[int]
) -> None:
    recipe = Recipe(SOURCE, rules_of(None, limit))
    receipts = {FILES[at].path: receipt_of(FILES[at].path, Gave(1, n)) for at, n in gave.items()}

    assert [*limits.counted(recipe, receipts)] == [FILES[at].path for at in counted]


def order_of(index: int) -> ConvertOrder:
    context = RunContext("out", "id", RULES, "session")
    return ConvertOrder(context, SourceShard(f"{index}.parquet", 1), index, SourceFile(f"{index}.parquet"))


def handed(item: ConvertOrder | Unfetched | None) -> object:
    return (item.source_index, item.allowed_tokens) if isinstance(item, ConvertOrder) else item


def test_orders_are_handed_out_in_order_though_their_files_come_otherwise() -> None:
    state = Limiter(rules_of(None, 100), [Amount(1, 20)] * 3)
    ready = Rations(state).ready(iter([order_of(1), None, order_of(0), order_of(2)]))

    assert [handed(next(ready)) for _ in range(4)] == [None, None, (0, 100), (1, None)]
    assert handed(next(ready)) == (2, None)
    assert next(ready) is None  # All are under way; one may be needed again.
    for index in range(3):
        state.done(index, Gave(1, 20))
    assert [*ready] == []


def test_handing_out_ends_with_the_limit() -> None:
    state = Limiter(rules_of(None, 100), [Amount(1, 90)] * 3)
    ready = Rations(state).ready(iter([order_of(0), order_of(1), order_of(2)]))

    assert [handed(next(ready)) for _ in range(2)] == [(0, 100), None]
    state.done(0, Gave(1, 100, limited=True))
    assert [*ready] == []


@pytest.mark.parametrize("withdrawn", [True, False])
def test_handing_out_ends_at_a_source_that_failed_or_is_to_be_done_again(*, withdrawn: bool) -> None:
    state = Limiter(rules_of(None, 100), [Amount(1, 1)] * 3)
    for_ever: Ready = iter(lambda: None, 0)
    coming: list[Ready] = [iter([order_of(0), order_of(1)]), for_ever]
    ready = Rations(state).ready(item for part in coming for item in part)
    assert [handed(next(ready)) for _ in range(2)] == [(0, 100), (1, None)]
    if withdrawn:
        state.done(0, Gave(1, 60))
        state.done(1, Gave(1, 60))
    for index in state.unfit or [0]:
        state.undone(index)

    assert [*ready] == []


def test_a_source_that_is_not_to_be_had_ends_it_too() -> None:
    state = Limiter(rules_of(None, 100), [Amount(1, 1)] * 3)
    lost = Unfetched(order_of(0), Failure("unfetched", "gone"))
    ready = Rations(state).ready(iter([order_of(1), lost, order_of(2)]))

    assert [next(ready) for _ in range(2)] == [None, lost]
    assert [*ready] == []


def test_trouble_of_the_hub_is_raised_when_what_came_was_handed_out() -> None:
    def coming() -> Ready:
        yield order_of(0)
        raise HubError("no way")

    state = Limiter(rules_of(None, 100), [Amount(1, 1)] * 2)
    ready = Rations(state).ready(coming())

    assert [handed(next(ready)) for _ in range(2)] == [(0, 100), None]
    with pytest.raises(HubError, match="no way"):
        next(ready)


class Looked(list[Amount]):
    """Expectations that count how often somebody looks at one."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)

    def __iter__(self) -> Any:
        self.looks += len(self)
        return super().__iter__()


def test_what_a_source_may_give_is_told_without_a_look_at_all_others() -> None:
    # With 100,000 sources a look at each took 63 ms, for every order.
    sources = 1000
    expected = Looked([Amount(10, 100)] * sources)
    limits = Limiter(rules_with(limit_tokens=10**9), expected)
    for index in range(sources // 2):
        limits.answer(index)
        limits.is_wanted_soon(index + 1)
        limits.begun(index)
        limits.done(index, Counts(10, 10, 0, 0, 500, 100))

    assert expected.looks < 10 * sources


@given(
    gave=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), min_size=1, max_size=9), data=st.data()
)
@unhurried
def test_the_scale_is_that_of_the_sources_that_are_done(
    gave: list[tuple[int, int]], data: st.DataObject
) -> None:
    expected = [Amount(data.draw(st.integers(0, 9)), data.draw(st.integers(1, 99))) for _ in gave]
    limits = Limiter(rules_with(limit_tokens=10**9), expected)
    for index, (documents, tokens) in enumerate(gave):
        limits.done(index, Counts(documents, documents, 0, 0, tokens, tokens))
    undone = data.draw(st.sets(st.integers(0, len(gave) - 1)))
    for index in undone:
        limits.undone(index)
    told = [at for at in range(len(gave)) if at not in undone and expected[at].documents > 0]

    scale = limits._scale
    wanted = max((gave[at][1] / expected[at].tokens for at in told), default=1)
    assert scale.largest.tokens == wanted
    together = sum(gave[at][1] for at in told) / sum(expected[at].tokens for at in told) if told else 1
    assert scale.of_all.tokens == pytest.approx(together)
