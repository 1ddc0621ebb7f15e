import threading
from collections.abc import Iterator

import pytest
from examples import unhurried
from hypothesis import given
from hypothesis import strategies as st

from fwconvert.job.encoded import read_ahead


@given(st.lists(st.none() | st.integers(), max_size=30), st.integers(1, 5))
@unhurried
def test_order_is_kept_and_nothing_is_lost(items: list[int | None], most: int) -> None:
    assert list(read_ahead(items, most)) == items


def test_what_making_an_item_raises_is_raised_at_its_place() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ZeroDivisionError("third")

    found: list[int] = []
    with pytest.raises(ZeroDivisionError, match="third"):
        found.extend(read_ahead(items(), 4))
    assert found == [1, 2]


def test_no_more_than_so_many_are_made_before_they_are_wanted() -> None:
    made = []

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    reader = read_ahead(items(), 3)
    for wanted in range(10):
        assert next(reader) == wanted
        assert len(made) <= wanted + 1 + 3
    reader.close()  # type: ignore[attr-defined]


def test_a_reader_that_goes_away_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    reader = read_ahead(iter(range(1000)), 2)
    assert next(reader) == 0
    reader.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) <= before
