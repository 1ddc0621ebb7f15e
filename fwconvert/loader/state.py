"""Where a loader is, as a few numbers and words that outlive it.

What can be in a state is decided here, also for the loader itself: one that
serves must be able to save where it is, and to be resumed from that.
"""

import operator
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from fwconvert.errors import UsageError, message
from fwconvert.records import Part

Order = Literal["sequential", "shuffled", "documents"]
Count = Annotated[int, msgspec.Meta(ge=0)]


class State(Part, frozen=True):
    """Where a loader is: after so many windows of an epoch, on all ranks together."""

    order: Order
    seed: int
    seq_len: int
    # What tells the set of shards from others.
    shards: str
    epoch: Count = 0
    windows: Count = 0
    # Of document order: how many documents were taken, and how many of their tokens were passed over.
    documents: Count = 0
    passed: Count = 0
    # How many tokens were passed over in the epochs before.
    passed_before: Count = 0


def whole(name: str, value: object) -> int:
    """Return a whole number of any kind, numpy's too, as the int that a state can hold."""
    try:
        # True is an int to Python, but nobody means a number by it.
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]  # this is how one asks
    except TypeError:
        pass
    raise UsageError(message(f"{name} of a loader is a whole number", given=repr(value)))


def read(given: object, here: State) -> State:
    """Return a state that a loader which is as `here` can go on from, or raise UsageError with the reason."""
    wanted = _parsed(given)
    for name in ("shards", "order", "seed", "seq_len"):
        ours, theirs = getattr(here, name), getattr(wanted, name)
        if ours != theirs:
            raise UsageError(
                message(
                    f"this state is of a loader with other {name.replace('_', ' ')}",
                    "make the loader as it was made then; batch, rank and ranks may differ",
                    in_state=theirs,
                    here=ours,
                )
            )
    return wanted


def _parsed(given: object) -> State:
    advice = "give what Loader.state() returned"
    if not isinstance(given, Mapping):
        raise UsageError(message("this is not the state of a loader", advice, given=type(given).__name__))
    plain: dict[Any, Any] = dict(given)
    try:
        return msgspec.convert(plain, State)
    except (msgspec.ValidationError, UnicodeError) as error:  # Half a character is none to msgspec.
        raise UsageError(message("this is not the state of a loader", advice, reason=error)) from error
