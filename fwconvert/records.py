"""JSON records: strict on the way in, canonical on the way out.

Every JSON file that fwconvert keeps is one `Record`: a frozen msgspec struct
whose first key, `format`, names its kind and version. Reading refuses what it does not know (an
unknown key, a wrong type, another format) instead of guessing, because a
record half understood on resume would mean wrong bytes later. Writing is
canonical, so that equal records are equal bytes and may be hashed.
"""

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fwconvert import files
from fwconvert.errors import ManifestError, message

# Large enough for the full FineWeb-Edu run (about 30,000 token shards), small
# enough that a hostile file cannot fill the memory.
MOST_BYTES = 256 * 2**20
_MOST_NUMBER = 2**63


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a record."""


class Record(Part, frozen=True, tag_field="format"):
    """A whole JSON file. The struct's tag is what its `format` field says."""


R = TypeVar("R", bound=Record)


def use_own_defaults(part: Part) -> None:
    """Put the declared default in the place of every value that equals it.

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


def decode(raw: bytes, kind: type[R], where: str) -> R:
    """Return the record in `raw`, or raise ManifestError that names `where` and what is wrong."""
    try:
        found = msgspec.json.decode(raw, type=_Head).format
        if found != format_of(kind):
            raise ManifestError(_other_format(where, found, format_of(kind)))
        record = msgspec.json.decode(raw, type=kind)
        _refuse_monsters(record)
        return record
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ManifestError(
            message("this file is not a readable record", file=where, wanted=format_of(kind), reason=error)
        ) from error


def read(path: Path, kind: type[R]) -> R:
    """Return the record in the file `path`, or raise ManifestError."""
    try:
        raw = _content(path)
        if len(raw) > MOST_BYTES:
            raise ManifestError(message("this file is too large for a record", file=path))
    except OSError as error:
        raise ManifestError(message("this file cannot be read", file=path, reason=error)) from error
    return decode(raw, kind, str(path))


def _content(path: Path) -> bytes:
    """Return what is in a file, and a byte more than a record may have if there is more."""
    return files.read(path, MOST_BYTES + 1)


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
