"""Where a run with a limit ends.

The limit counts documents and tokens from the first source on, so what is left
for a source follows from all sources before it.

Pure: no input, no output, no clock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol, TypeVar

from fwconvert.recipes import Recipe, Rules


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
        """Return whether the other is not more than this."""
        return other.documents <= self.documents and other.tokens <= self.tokens

    @property
    def is_used_up(self) -> bool:
        """Return whether nothing is left of one of the two."""
        return self.documents <= 0 or self.tokens <= 0


NOTHING = Amount(0, 0)


def limit_of(rules: Rules) -> Amount:
    """Return what a run may give in all."""
    documents, tokens = rules.limit_documents, rules.limit_tokens
    return Amount(math.inf if documents is None else documents, math.inf if tokens is None else tokens)


def is_reached(rules: Rules, gave: Iterable[Counted]) -> bool:
    """Return whether these sources together reach the limit."""
    return (limit_of(rules) - _sum(map(amount_of, gave))).is_used_up


def settled(gave: Sequence[Counted | None], begin: int, left: Amount) -> tuple[int, Amount]:
    """Return how many sources from the first on are as they have to be, and what they leave of the limit.

    Those before `begin` are, and leave `left`.
    """
    while begin < len(gave) and not left.is_used_up:
        found = gave[begin]
        if found is None or not fits(found, left):
            break
        begin, left = begin + 1, left - amount_of(found)
    return begin, left


def extent(rules: Rules, gave: Iterable[Counted | None], sources: int) -> int:
    """Return how many sources a run has: all, or those up to the limit if it was reached.

    `gave` tells of the sources in order; None: not done.
    """
    left = limit_of(rules)
    for number, counts in enumerate(takewhile(lambda counts: counts is not None, gave), 1):
        left -= amount_of(counts)
        if left.is_used_up:
            return min(number, sources)
    return sources


def fits(counts: Counted, left: Amount) -> bool:
    """Return whether a source gave what it had to: all it has, or exactly what was left."""
    amount = amount_of(counts)
    return left.holds(amount) and (not counts.limited or (left - amount).is_used_up)


def amount_of(counts: Counted | None) -> Amount:
    """Return what a source gave; nothing if it is not done."""
    return NOTHING if counts is None else Amount(counts.documents, counts.tokens)


def _sum(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, NOTHING)


class HasCounts(Protocol):
    """A record that says what a source gave."""

    @property
    def counts(self) -> Counted:
        """What it gave."""


H = TypeVar("H", bound=HasCounts)


def counted(recipe: Recipe, receipts: Mapping[str, H]) -> Mapping[str, H]:
    """Return the receipts that stay what they are, whatever the other sources give."""
    if not recipe.rules.is_limited:
        return receipts
    paths = [file.path for file in recipe.source.files]
    gave = [receipts[path].counts if path in receipts else None for path in paths]
    return {path: receipts[path] for path in paths[: settled(gave, 0, limit_of(recipe.rules))[0]]}
