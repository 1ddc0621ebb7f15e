"""A shuffled order that needs no table: a keyed permutation of the numbers below any size.

The number at position 5 of the shuffled order is computed, not looked up, so the
order of a billion windows takes no memory and can be entered anywhere. It is a
pure function of (size, seed, epoch), the same on every machine and in every
version of fwconvert; FORMAT.md describes it, and tests hold it to that text.

It is a Feistel network: the bits of a number are cut into two parts, and each
round changes one part by a hash of the other, which can be undone, so no two
numbers meet. The bits reach up to the next power of two; a number that lands
beyond the size goes through again until it does not (cycle walking), at most
twice on average.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

_ROUNDS = 8
# The multipliers of splitmix64's last step.
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


class Permutation:
    """The numbers from 0 to `size` - 1 in the order of (seed, epoch)."""

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        bits = max(2, (size - 1).bit_length())
        self._low = np.uint64(bits // 2)
        self._low_mask = np.uint64((1 << bits // 2) - 1)
        self._high_mask = np.uint64((1 << bits - bits // 2) - 1)
        text = f"fwconvert permutation 1 {seed} {epoch}"
        self._keys = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8 * _ROUNDS).digest(), "<u8")

    def __call__(self, positions: Numbers) -> Numbers:
        """Return the numbers that stand at these positions, each of which is below the size."""
        numbers = self._once(positions.astype(np.uint64))
        size = np.uint64(self.size)
        while len(beyond := np.flatnonzero(numbers >= size)):
            numbers[beyond] = self._once(numbers[beyond])
        return numbers.astype(np.int64)

    def _once(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low, high = numbers & self._low_mask, numbers >> self._low
        for number, key in enumerate(self._keys):
            if number % 2:
                high ^= _mixed(low ^ key) & self._high_mask
            else:
                low ^= _mixed(high ^ key) & self._low_mask
        return high << self._low | low


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each number, in its place."""
    numbers ^= numbers >> _SHIFTS[0]
    numbers *= _FIRST
    numbers ^= numbers >> _SHIFTS[1]
    numbers *= _SECOND
    numbers ^= numbers >> _SHIFTS[2]
    return numbers
