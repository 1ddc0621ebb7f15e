"""The keyed permutation, against one that is written from FORMAT.md with plain Python integers."""

import numpy as np
import pytest
from examples import unhurried
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_oracle import permuted

from fwconvert.loader.permutation import Permutation


def whole(size: int, seed: int, epoch: int) -> list[int]:
    return [int(number) for number in Permutation(size, seed, epoch)(np.arange(size))]


sizes = st.one_of(st.integers(1, 300), st.integers(1, 2**40), st.sampled_from([2**k for k in range(1, 41)]))
seeds = st.integers(-(2**70), 2**70)


@given(size=sizes, seed=seeds, epoch=st.integers(0, 10**6), draw=st.data())
@settings(unhurried)
def test_it_is_what_the_slow_way_says(size: int, seed: int, epoch: int, draw: st.DataObject) -> None:
    positions = draw.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))

    found = Permutation(size, seed, epoch)(np.array(positions)).tolist()

    assert found == [permuted(size, seed, epoch, position) for position in positions]


@pytest.mark.parametrize("size", [*range(1, 70), 255, 256, 257, 1000, 4096, 4097, 100_003])
def test_every_number_stands_at_one_position(size: int) -> None:
    assert sorted(whole(size, seed=3, epoch=1)) == [*range(size)]


def test_the_order_is_for_ever() -> None:
    # Made by `permuted`. If these change, no state of any training run fits any more.
    for (size, seed, epoch), numbers in VECTORS.items():
        positions = range(len(numbers))
        assert [permuted(size, seed, epoch, position) for position in positions] == numbers
        assert Permutation(size, seed, epoch)(np.array(positions)).tolist() == numbers


VECTORS = {
    (10, 0, 0): [1, 8, 3, 4, 7, 0, 2, 9, 5, 6],
    (10, 0, 1): [4, 0, 2, 6, 9, 7, 3, 8, 1, 5],
    (1000, 42, 3): [504, 574, 972, 149, 847],
    (97656249, 0, 0): [28620963, 39355744, 32010464, 1381535, 44983140],
    (1465384521, -7, 12): [733598315, 1365963586, 295833610, 534703133, 426022600],
    (2**33, 2**64, 1): [6799450320, 7433898048, 1496094347, 5686059814, 7050661453],
}


def test_seeds_and_epochs_give_other_orders() -> None:
    orders = [whole(1000, seed, epoch) for seed in (-1, 0, 1, 10) for epoch in (0, 1, 10)]

    assert len({tuple(order) for order in orders}) == 12


def test_neighbours_are_scattered_and_few_numbers_stay() -> None:
    order = np.array(whole(100_000, seed=0, epoch=0))

    # Of a random permutation: one fixed point on average, and steps of a third of the size.
    assert np.count_nonzero(order == np.arange(len(order))) < 10
    assert abs(np.abs(np.diff(order)).mean() / len(order) - 1 / 3) < 0.01


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_order_of_a_few_numbers_comes_up(size: int) -> None:
    found = {tuple(whole(size, seed, 0)) for seed in range(1200)}

    assert len(found) == {2: 2, 3: 6, 4: 24, 5: 120}[size]
