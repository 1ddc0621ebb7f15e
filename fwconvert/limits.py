"""Where a run with a limit ends, and what each of its sources may give.

The limit counts documents and tokens from the first source on, so what is left
for a source follows from all sources before it. To let workers go ahead all
the same, a source may be converted whole, on trial, while those before it are
under way, if everything is expected to fit. Whether it did is decided when
they are done: what does not fit is converted again, up to the limit. So an
expectation costs time when it is wrong, and never a byte.

Pure: no input, no output, no clock.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, Protocol

from fwconvert.recipe import Recipe, Rules
from fwconvert.store.receipts import Receipt

# Sources on trial may give so many times what is expected before they do not fit; and a source is
# fetched ahead unless those before it give all, even if they give so many times less.
_MARGIN = 1.5


class Counted(Protocol):
    """What a source gave: of a receipt, or of a line of the run manifest."""

    @property
    def documents(self) -> int:
        """How many documents."""

    @property
    def tokens(self) -> int:
        """How many tokens, separators included."""

    @property
    def limited(self) -> bool:
        """Whether the limit ended it."""


@dataclass(frozen=True)
class Amount:
    """Some documents and some tokens; infinite where there is no limit."""

    documents: float
    tokens: float

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.documents + other.documents, self.tokens + other.tokens)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.documents - other.documents, self.tokens - other.tokens)

    def __mul__(self, times: "Amount") -> "Amount":
        return Amount(self.documents * times.documents, self.tokens * times.tokens)

    def __truediv__(self, other: "Amount") -> "Amount":
        return Amount(self.documents / other.documents, self.tokens / other.tokens)

    def or_more(self, other: "Amount") -> "Amount":
        """Return the larger of both, each by itself."""
        return Amount(max(self.documents, other.documents), max(self.tokens, other.tokens))

    def holds(self, other: "Amount") -> bool:
        """Tell whether the other is not more than this."""
        return other.documents <= self.documents and other.tokens <= self.tokens

    @property
    def is_used_up(self) -> bool:
        """Tell whether nothing is left of one of the two."""
        return self.documents <= 0 or self.tokens <= 0


NOTHING = Amount(0, 0)


@dataclass(frozen=True)
class Allowance:
    """What a source may give; None: all that it has."""

    documents: int | None = None
    tokens: int | None = None


Answer = Allowance | Literal["wait", "unneeded"]


def limit_of(rules: Rules) -> Amount:
    """Return what a run may give in all."""
    documents, tokens = rules.limit_documents, rules.limit_tokens
    return Amount(math.inf if documents is None else documents, math.inf if tokens is None else tokens)


def is_reached(rules: Rules, gave: Iterable[Counted]) -> bool:
    """Tell whether these sources together reach the limit."""
    return (limit_of(rules) - _sum(map(_amount, gave))).is_used_up


def extent(rules: Rules, gave: Iterable[Counted | None], sources: int) -> int:
    """Return how many sources a run has: all, or those up to the limit if it was reached.

    `gave` tells of the sources in order; None: not done.
    """
    left = limit_of(rules)
    for number, counts in enumerate(takewhile(lambda counts: counts is not None, gave), 1):
        left -= _amount(counts)
        if left.is_used_up:
            return min(number, sources)
    return sources


def counted(recipe: Recipe, receipts: Mapping[str, Receipt]) -> Mapping[str, Receipt]:
    """Return the receipts that stay what they are, whatever the other sources give."""
    if not recipe.rules.is_limited:
        return receipts
    limits = Limits(recipe.rules, [NOTHING] * len(recipe.source.files))
    paths = [file.path for file in recipe.source.files]
    for index, path in enumerate(paths):
        if path in receipts:
            limits.done(index, receipts[path].counts)
    return {path: receipts[path] for path in paths[: limits.settled]}


class Limits:
    """What is known of a run's sources; is told of receipts, and says what a source may give.

    `expected` is what each source may hold; without a limit nobody asks.
    """

    def __init__(self, rules: Rules, expected: Sequence[Amount]) -> None:
        self._rules = rules
        self._expected = expected
        self._gave: list[Counted | None] = [None] * len(expected)
        self._under_way: set[int] = set()
        self._scale = _Scale()
        # How many sources from the first on are done and fit, and what they leave of the limit.
        # One value, because fetching threads look at it.
        self._state = (0, limit_of(rules))

    @property
    def settled(self) -> int:
        """How many sources, from the first on, are as they have to be."""
        return self._state[0]

    @property
    def reached(self) -> bool:
        """Whether the limit is reached: nothing more is needed."""
        return self._state[1].is_used_up

    @property
    def extent(self) -> int:
        """How many sources the run has, as far as is known."""
        return self.settled if self.reached else len(self._gave)

    @property
    def unfit(self) -> list[int]:
        """The sources that are done and cannot stay so: too much for what is left, or behind the limit."""
        if self.reached:
            return [index for index in range(self.settled, len(self._gave)) if self._gave[index]]
        here = self._gave[self.settled : self.settled + 1]
        return [self.settled] if here and here[0] is not None else []

    @property
    def next(self) -> int | None:
        """The first source that is neither done nor under way."""
        open_ones = (index for index in range(self.settled, len(self._gave)) if self._is_open(index))
        return next(open_ones, None)

    def _is_open(self, index: int) -> bool:
        return self._gave[index] is None and index not in self._under_way

    def done(self, index: int, counts: Counted) -> None:
        """Take note of what a source gave."""
        self.undone(index)
        self._gave[index] = counts
        self._scale.add(index, counts, self._expected[index])
        settled, left = self._state
        while settled < len(self._gave) and not left.is_used_up:
            found = self._gave[settled]
            if found is None or not _fits(found, left):
                break
            settled, left = settled + 1, left - _amount(found)
        self._state = (settled, left)

    def undone(self, index: int) -> None:
        """Take note that a source is to be done again, or could not be done."""
        self._under_way.discard(index)
        self._gave[index] = None
        self._scale.remove(index)

    def begun(self, index: int) -> None:
        """Take note that a source is under way."""
        self._under_way.add(index)

    def answer(self, index: int) -> Answer:
        """Say what the source may give, or that this is not known yet, or that it is not needed."""
        settled, left = self._state
        if left.is_used_up:
            return "unneeded"
        if index == settled:
            return Allowance(_whole(left.documents), _whole(left.tokens))
        most = self._scale.largest * Amount(_MARGIN, _MARGIN)
        for before in range(settled, index):
            if self._is_open(before):
                return "wait"
            left -= self._gave_or(before, most)
        return Allowance() if left.holds(self._expected[index] * most) else "wait"

    def is_wanted_soon(self, index: int) -> bool:
        """Tell whether a source should be fetched already: those before it may not be enough."""
        settled, left = self._state
        least = self._scale.of_all * Amount(1 / _MARGIN, 1 / _MARGIN)
        for before in range(settled, index):
            left -= self._gave_or(before, least)
        return not left.is_used_up

    def share(self, documents: int, tokens: int) -> float:
        """Return how much of the limit so many are, from 0 to 1."""
        whole = limit_of(self._rules)
        return min(1.0, max(documents / whole.documents, tokens / whole.tokens))

    def _gave_or(self, index: int, scale: Amount) -> Amount:
        found = self._gave[index]
        return self._expected[index] * scale if found is None else _amount(found)


class _Scale:
    """How many times what was expected the sources gave. Asked for each order, so kept up to date."""

    def __init__(self) -> None:
        # Of each source that tells something: what it gave, and what was expected.
        self._told: dict[int, tuple[Amount, Amount]] = {}
        self._gave = self._expected = NOTHING
        self._largest: Amount | None = None

    def add(self, index: int, counts: Counted, expected: Amount) -> None:
        """Take in a source, unless the limit ended it, or nothing was expected of it."""
        if counts.limited or expected.documents <= 0 or expected.tokens <= 0:
            return
        gave = _amount(counts)
        self._told[index] = gave, expected
        self._gave, self._expected = self._gave + gave, self._expected + expected
        if self._largest is not None:
            self._largest = self._largest.or_more(gave / expected)

    def remove(self, index: int) -> None:
        """Forget a source."""
        gave, expected = self._told.pop(index, (NOTHING, NOTHING))
        self._gave, self._expected = self._gave - gave, self._expected - expected
        if expected is not NOTHING:
            self._largest = None

    @property
    def largest(self) -> Amount:
        """The most that one of them gave."""
        if not self._told:
            return Amount(1, 1)
        if self._largest is None:
            ratios = (gave / expected for gave, expected in self._told.values())
            self._largest = functools.reduce(Amount.or_more, ratios)
        return self._largest

    @property
    def of_all(self) -> Amount:
        """What all of them gave together."""
        return self._gave / self._expected if self._told else Amount(1, 1)


def _fits(counts: Counted, left: Amount) -> bool:
    """Tell whether a source gave what it had to: all it has, or exactly what was left."""
    amount = _amount(counts)
    return left.holds(amount) and (not counts.limited or (left - amount).is_used_up)


def _amount(counts: Counted | None) -> Amount:
    return NOTHING if counts is None else Amount(counts.documents, counts.tokens)


def _sum(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, NOTHING)


def _whole(number: float) -> int | None:
    return None if math.isinf(number) else int(number)
