"""What each source of a run with a limit may give, and handing out its orders by that.

To let workers go ahead, a source may be converted whole, on trial, while those
before it are under way, if everything is expected to fit. Whether it did is
decided when they are done: what does not fit is converted again, up to the
limit. So an expectation costs time when it is wrong, and never a byte.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fwconvert.errors import RemoteError
from fwconvert.job.orders import ConvertOrder, Ready, Unfetched
from fwconvert.limits import NOTHING, Amount, Counted, amount_of, limit_of
from fwconvert.limits import settled as settled_by
from fwconvert.recipes import Rules

# Sources on trial may give so many times what is expected before they do not fit; and a source is
# fetched ahead unless those before it give all, even if they give so many times less.
_MARGIN = 1.5


@dataclass(frozen=True)
class Allowance:
    """What a source may give; None: all that it has."""

    documents: int | None = None
    tokens: int | None = None


Answer = Allowance | Literal["wait", "unneeded"]


class Limiter:
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
        self._state = settled_by(self._gave, *self._state)

    def undone(self, index: int) -> None:
        """Take note that a source is to be done again, or could not be done."""
        self._under_way.discard(index)
        self._gave[index] = None
        self._scale.remove(index)
        if index < self.settled:
            self._state = settled_by(self._gave, 0, limit_of(self._rules))

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
        """Return whether a source should be fetched already: those before it may not be enough."""
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
        return self._expected[index] * scale if found is None else amount_of(found)


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
        gave = amount_of(counts)
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


def _whole(number: float) -> int | None:
    return None if math.isinf(number) else int(number)


@dataclass
class Rations:
    """Holds back what has come until the limit lets it go."""

    limits: Limiter
    # What waits, and what came: that does not come again.
    _here: dict[int, ConvertOrder] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _is_ending: bool = False
    _trouble: RemoteError | None = None

    def ready(self, coming: Ready) -> Ready:
        """Yield the orders that may be carried out; None: nothing just now.

        Ends when the limit is reached, and when the next source in order will
        not come: it failed, or is to be converted again. Raises RemoteError as
        `coming` does, once nothing more can be handed out.
        """
        while self._goes_on():
            item = None if self._is_ending else self._take(coming)
            yield item if isinstance(item, Unfetched) else self._next()
        if self._trouble is not None:
            raise self._trouble

    def _take(self, coming: Ready) -> Unfetched | None:
        try:
            item = next(coming)
        except StopIteration:
            self._is_ending = True
            return None
        except RemoteError as error:
            self._is_ending, self._trouble = True, error
            return None
        if item is None:
            return None
        order = item.order if isinstance(item, Unfetched) else item
        self._seen.add(order.source_index)
        if isinstance(item, Unfetched):
            return item
        self._here[order.source_index] = item
        return None

    def _goes_on(self) -> bool:
        limits = self.limits
        if limits.reached or limits.settled == limits.extent:
            return False
        index = limits.next
        if index is None or index in self._here:  # What is under way decides on what is behind it.
            return True
        return not self._is_ending and index not in self._seen

    def _next(self) -> ConvertOrder | None:
        index = self.limits.next
        if index is None or index not in self._here:
            return None
        answer = self.limits.answer(index)
        if isinstance(answer, str):
            return None
        self.limits.begun(index)
        order = self._here.pop(index)
        return replace(order, allowed_documents=answer.documents, allowed_tokens=answer.tokens)
