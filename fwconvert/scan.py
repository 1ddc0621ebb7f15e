"""One pass over the bytes of a token shard: their hash, their ids, and where documents start."""

import hashlib
import io
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert.errors import ShardError
from fwconvert.recipe import Rules
from fwconvert.shards import shard
from fwconvert.tokens.vocabulary import Vocabulary

# Tokens at a time: a few MB for each thread, whatever the size of a shard.
STEP = 2**20


@dataclass
class Tally:
    """How many tokens are wrong in some way, and where the first is."""

    count: int = 0
    first: int = -1

    def add(self, positions: NDArray[np.int64]) -> None:
        """Count these positions too."""
        if len(positions) and not self.count:
            self.first = int(positions[0])
        self.count += len(positions)


class Scan:
    """One pass over the bytes of a token shard."""

    def __init__(
        self, file: io.BufferedReader, rules: Rules, vocabulary: Vocabulary, starts: NDArray[Any] | None
    ) -> None:
        self.digest = hashlib.sha256()
        self.unknown, self.missing, self.unfounded = Tally(), Tally(), Tally()
        self._file = file
        self._vocabulary = vocabulary
        self._header_bytes = rules.kind.header_bytes
        self._starts = starts
        # A document starts with an EOT, or right behind one.
        self._shift = 0 if rules.eot == "before" else 1
        self._buffer = np.empty(STEP, shard.numpy_type(rules.token_type))

    def read_header(self) -> bytes:
        """Return what stands before the tokens."""
        head = self._file.read(self._header_bytes)
        self.digest.update(head)
        return head

    def read(self, first: int, end: int) -> tuple[int, bool]:
        """Read the tokens of a segment; return how many EOTs it has and whether it ends with one."""
        eots, ends_with_eot = 0, False
        for begin in range(first, end, STEP):
            tokens = self._next(min(STEP, end - begin))
            if int(tokens.max()) >= self._vocabulary.size:
                self.unknown.add(np.flatnonzero(tokens >= self._vocabulary.size) + begin)
            positions = np.flatnonzero(tokens == self._vocabulary.eot)
            # Behind the last EOT of a segment another source goes on, perhaps within a document.
            stop = min(begin + len(tokens) + self._shift, end)
            self._compare(positions + (begin + self._shift), begin + self._shift, stop)
            eots += len(positions)
            ends_with_eot = bool(tokens[-1] == self._vocabulary.eot)
        return eots, ends_with_eot

    def _next(self, count: int) -> NDArray[Any]:
        tokens = self._buffer[:count]
        content = tokens.view(np.uint8).data
        if self._file.readinto(content) != len(content):
            raise ShardError("was cut short while it was read")
        self.digest.update(content)
        return tokens

    def _compare(self, wanted: NDArray[np.int64], begin: int, stop: int) -> None:
        """Compare the starts that the EOTs ask for with those in the index."""
        if self._starts is None:
            return
        low, high = bisect_left(self._starts, begin), bisect_left(self._starts, stop)
        found = self._starts[low:high].astype(np.int64)
        wanted = wanted[wanted < stop]
        if not np.array_equal(found, wanted):
            self.missing.add(np.setdiff1d(wanted, found, assume_unique=True))
            self.unfounded.add(np.setdiff1d(found, wanted, assume_unique=True))
