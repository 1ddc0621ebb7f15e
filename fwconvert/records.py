"""JSON records: strict on the way in, canonical on the way out.

Every JSON file that fwconvert keeps is one `Record`: a frozen msgspec struct
whose first key, `format`, names its kind and version. Reading refuses what it does not know (an
unknown key, a wrong type, another format) instead of guessing, because a
record half understood on resume would mean wrong bytes later. Writing is
canonical, so that equal records are equal bytes and may be hashed.

A record may come from anywhere. Before it is read its size is held against what
its kind can have, and before it is decoded what it would take in memory.

Values that a Python program passes are held to their declared types, too
(`check_values`): a record written with another type could not be read again.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from fwconvert import files
from fwconvert.errors import ManifestError, UsageError, message

# Large enough for the full FineWeb-Edu run (about 30,000 token shards), small
# enough that a hostile file cannot fill the memory.
MOST_BYTES = 256 * 2**20
_MOST_NUMBER = 2**63
# Numbers are never in quotes, so what stands before one is none of a name's or a hash's characters.
_LONG_NUMBER = re.compile(rb"[-:,\[\s][0-9]{19}")

# What a decoded value takes at the most, about, but for its text: an entry of a dictionary, two texts, 190.
# A line of a token shard with its 12 values takes 735 bytes.
_VALUE_BYTES = 100
# What a record may take, whatever it says: 110,000 token shards, or 250,000 sources. And what it may take
# besides for each file that lies there: a token shard has a line in it, and so has a file beside it.
_MOST_MEMORY = 200 * 10**6
_MEMORY_FOR_A_FILE = 2000


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a record."""


class Record(Part, frozen=True, tag_field="format"):
    """A whole JSON file. The struct's tag is what its `format` field says."""

    # What a file of this kind cannot exceed.
    most_bytes: ClassVar[int] = MOST_BYTES


R = TypeVar("R", bound=Record)


def use_own_defaults(part: Part) -> None:
    """Put the declared default in place of every value that equals it.

    For `__post_init__` of a part that leaves its defaults out. msgspec takes a
    value for the default only if it is the very same object, and a word from a
    command line never is: equal parts would be written as different bytes.
    """
    defaults = part.__struct_defaults__
    names = part.__struct_fields__[len(part.__struct_fields__) - len(defaults) :]
    for name, default in zip(names, defaults, strict=True):
        value = getattr(part, name)
        if value is not default and type(value) is type(default) and value == default:
            msgspec.structs.force_setattr(part, name, default)


def encode(value: object) -> bytes:
    """Return `value` as canonical JSON: compact; fields as declared, keys of dictionaries sorted."""
    return msgspec.json.encode(value, order="deterministic")


def as_builtin(value: object) -> dict[str, Any]:
    """Return a record or a dataclass as a plain dictionary."""
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


def digest(value: object) -> str:
    """Return the sha256 of `value` as canonical JSON."""
    return hashlib.sha256(encode(value)).hexdigest()


def lines(fields: dict[str, object]) -> bytes:
    """Return a JSON object in which every element of a list has a line of its own.

    So that grep, wc -l and git diff work on it.
    """
    rows = [b'"%s": %s' % (name.encode(), _rows(value)) for name, value in fields.items()]
    return b"{\n" + b",\n".join(rows) + b"\n}\n"


def _rows(value: object) -> bytes:
    if not isinstance(value, (list, tuple)) or not value:
        return encode(value)
    return b"[\n" + b",\n".join(encode(row) for row in value) + b"\n]"


def fields(record: Record) -> dict[str, Any]:
    """Return the format and the fields of a record by name, in the order of their declaration."""
    named = {name: getattr(record, name) for name in record.__struct_fields__}
    return {"format": format_of(type(record)), **named}


def format_of(kind: type[Record]) -> str:
    """Return what the `format` field of such a record says."""
    return str(kind.__struct_config__.tag)


def decode(raw: bytes, kind: type[R], where: str, there: Callable[[], int] = lambda: 0) -> R:
    """Return the record in `raw`, or raise ManifestError that names `where` and what is wrong.

    `there` counts the files that it may describe; it is asked only if the record is a large one.
    """
    memory = _memory(raw)
    if memory > _MOST_MEMORY and memory > _MOST_MEMORY + there() * _MEMORY_FOR_A_FILE:
        raise ManifestError(
            message(
                "this record has far more entries than there are files, so it is not read",
                file=where,
                bytes=f"{len(raw):,}",
                would_take=f"{memory:,} bytes of memory",
            )
        )
    try:
        found = msgspec.json.decode(raw, type=_Head).format
        if found != format_of(kind):
            raise ManifestError(_other_format(where, found, format_of(kind)))
        record = msgspec.json.decode(raw, type=kind)
        if _LONG_NUMBER.search(raw):
            _refuse_monsters(record)
        return record
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ManifestError(
            message("this file is not a readable record", file=where, wanted=format_of(kind), reason=error)
        ) from error


def read(path: Path, kind: type[R], there: Callable[[], int] = lambda: 0) -> R:
    """Return the record in the file `path`, or raise ManifestError. `there` is as for `decode`."""
    return decode(content(partial(files.read_whole, path), kind, str(path)), kind, str(path), there)


def content(read_whole: Callable[[int], bytes], kind: type[R], where: str) -> bytes:
    """Return the content of a record's file, or raise ManifestError that names `where`.

    `read_whole` returns all of it; it is told how much such a record has at the most.
    """
    try:
        return read_whole(kind.most_bytes)
    except files.TooLarge as error:
        raise ManifestError(
            message(
                "this file is too large for a record",
                file=where,
                bytes=f"{error.size:,}",
                at_most=f"{kind.most_bytes:,} bytes",
            )
        ) from error
    except OSError as error:
        raise ManifestError(message("this file cannot be read", file=where, reason=error)) from error


def can_be_read(raw: bytes) -> bool:
    """Return whether a record can be read though nothing that it describes is there yet."""
    return len(raw) <= MOST_BYTES and _memory(raw) <= _MOST_MEMORY


def _memory(raw: bytes) -> int:
    """Return what a record takes in memory at the most, about: itself, its text, and its values."""
    # With one character beyond ASCII a text takes up to 4 bytes for each.
    width = 1 if raw.isascii() and b"\\u" not in raw else 4
    return (1 + width) * len(raw) + _VALUE_BYTES * sum(raw.count(sign) for sign in (b",", b"[", b"{"))


def _refuse_monsters(value: object) -> None:
    """Raise ValueError if there is a number that no file or count can have."""
    if isinstance(value, int) and not -_MOST_NUMBER < value < _MOST_NUMBER:
        raise ValueError("a number is too large")
    if isinstance(value, msgspec.Struct):
        value = [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for inner in value:
            _refuse_monsters(inner)


class _Head(msgspec.Struct):
    format: str


def _other_format(where: str, found: str, wanted: str) -> str:
    return message(
        "this file has another format than this version of fwconvert reads",
        "use the version of fwconvert that wrote it",
        file=where,
        found=found,
        wanted=wanted,
    )


def check(given: object) -> None:
    """Raise UsageError if a field of a dataclass or a struct is not what its declaration says."""
    types = get_type_hints(type(given))
    check_values({name: getattr(given, name) for name in types}, types)


def check_values(values: Mapping[str, object], types: Mapping[str, Any]) -> None:
    """Raise UsageError if a value is not of its declared type: it names the value and what is allowed.

    A whole float is not taken for an int: beyond 2**53 it may be another number than was written.
    """
    for name, value in values.items():
        kind = types.get(name)
        if kind is None:
            raise UsageError(message(f"there is no {name} to choose", choices=", ".join(types)))
        # msgspec knows no PathLike.
        if isinstance(value, os.PathLike) and os.PathLike[str] in get_args(kind):
            continue
        try:
            msgspec.convert(value, _without_paths(kind))
        except (msgspec.ValidationError, OverflowError, UnicodeError):
            raise UsageError(
                message(
                    f"{name} has an invalid value",
                    *_advice(value, kind),
                    given=f"{value!r:.500} ({type(value).__name__})",
                    allowed=_allowed(kind),
                )
            ) from None


def _without_paths(kind: Any) -> Any:
    others = [one for one in get_args(kind) if one != os.PathLike[str]]
    return Union[tuple(others)] if len(others) < len(get_args(kind)) else kind  # noqa: UP007


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
