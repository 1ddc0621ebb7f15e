"""Where a loader is in an epoch, as a few numbers and words that outlive it.

What a state can hold is decided here, for the loader's own arguments too: any
loader that serves batches can save where it is and be resumed from that.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from fwconvert.errors import UsageError, message
from fwconvert.records import Part

ReadingOrder = Literal["sequential", "shuffled", "documents"]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Position(NamedTuple):
    """A place in an epoch, the same on all ranks."""

    windows: int = 0
    # In document order: how many documents were taken, and how many of their tokens were left out.
    documents: int = 0
    passed: int = 0


@dataclass(frozen=True)
class RankShare:
    """The part of each step that is one rank's."""

    batch: int
    rank: int = 0
    ranks: int = 1

    @property
    def step_windows(self) -> int:
        """How many windows a step has on all ranks together."""
        return self.batch * self.ranks

    def of(self, windows: int) -> range:
        """Return which windows of a step are ours; those of a short last step are dealt out evenly."""
        return range(windows * self.rank // self.ranks, windows * (self.rank + 1) // self.ranks)


class State(Part, frozen=True):
    """What `Loader.state` returns: the position in an epoch, and what the loader must agree on."""

    order: ReadingOrder
    seed: int
    seq_len: int
    # Identifies the set of shards.
    shards: str
    epoch: Count = 0
    windows: Count = 0
    documents: Count = 0
    passed: Count = 0
    # How many tokens the epochs before have left out.
    passed_before: Count = 0


def whole(name: str, value: object) -> int:
    """Return a whole number of any type, numpy's too, as the int that a state can hold."""
    try:
        # True is an int in Python, but never meant as a number.
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]  # raises TypeError if it has no index
    except TypeError:
        pass
    raise UsageError(message(f"{name} must be a whole number", given=repr(value)))


def read(given: object, here: State) -> State:
    """Return a state from which a loader with the identity `here` can resume, or raise UsageError."""
    advice = "pass what Loader.state() returned"
    if not isinstance(given, Mapping):
        raise UsageError(message("this is not the state of a loader", advice, given=type(given).__name__))
    plain: dict[Any, Any] = dict(given)
    try:
        found = msgspec.convert(plain, State)
    except (msgspec.ValidationError, UnicodeError) as error:  # msgspec rejects lone surrogates.
        raise UsageError(message("this is not the state of a loader", advice, reason=error)) from error
    for name in ("shards", "order", "seed", "seq_len"):
        ours, theirs = getattr(here, name), getattr(found, name)
        if ours != theirs:
            raise UsageError(
                message(
                    f"this state was taken from a loader with a different {name}",
                    "create the loader with the same arguments; batch, rank and ranks may differ",
                    in_state=theirs,
                    here=ours,
                )
            )
    return found
