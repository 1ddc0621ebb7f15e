"""Whether values that come from a Python program are of the types that are declared for them.

A command line is read by argparse, which refuses what is none of its choices
and no number. A program may pass anything, and a record that is written with
it could not be read again: reading is strict. So this is as strict.
"""

from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from fwconvert.errors import UsageError, message


def check(given: object) -> None:
    """Raise UsageError if a field of a dataclass or a struct is not what its declaration says.

    It names the field, the value and what is allowed. A whole float is not
    taken for an int: beyond 2**53 it may be another number than was written.
    """
    for name, kind in get_type_hints(type(given)).items():
        value = getattr(given, name)
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, OverflowError, UnicodeError):
            raise UsageError(
                message(
                    f"{name} cannot be this",
                    *_advice(value, kind),
                    given=f"{value!r:.500} ({type(value).__name__})",
                    allowed=_allowed(kind),
                )
            ) from None


def _advice(value: object, kind: Any) -> list[str]:
    if isinstance(value, float) and value.is_integer() and int in (kind, *get_args(kind)):
        return [f"write it as an int: {int(value):_}"]
    return ["choose what is allowed"]


def _allowed(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(map(repr, get_args(kind)))
    if get_args(kind):
        return " or ".join(map(_allowed, get_args(kind)))
    return "None" if kind is NoneType else str(kind.__name__)
