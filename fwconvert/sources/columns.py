"""Columns of Arrow's tables, by their name or by a dotted path into structs.

`meta.text` is the column of that name if there is one, and otherwise the field
`text` of the struct `meta`. Where a struct is null, so is what is in it.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fwconvert.errors import ColumnError, message


def type_of(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Return the type of a column, or None unless there is exactly one."""
    if name in schema.names:
        return schema.field(name).type if schema.names.count(name) == 1 else None
    first, *rest = name.split(".")
    if not rest or schema.names.count(first) != 1:
        return None
    kind = schema.field(first).type
    for part in rest:
        at = kind.get_field_index(part) if pa.types.is_struct(kind) else -1
        if at < 0:
            return None
        kind = kind.field(at).type
    return kind


def of(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column that there is."""
    if name in rows.schema.names:
        return rows.column(rows.schema.names.index(name))
    first, *rest = name.split(".")
    return pc.struct_field(rows.column(rows.schema.names.index(first)), rest)


def flat(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return a table of these columns alone, which have their dotted paths as names."""
    return pa.RecordBatch.from_arrays([of(rows, name) for name in names], names=[*names])


def check_text(schema: pa.Schema, path: Path, name: str) -> None:
    """Raise ColumnError unless a file has a column of this name, and it is text."""
    kind = type_of(schema, name)
    if kind is None or not is_text(kind):
        found = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise ColumnError(
            message(
                "a source file has no such text column",
                "name the column that holds the text with --text-column",
                file=path,
                wanted=f"{name} (string)",
                columns=found[:2000],
            )
        )


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type can be read as text."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    tests = (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
        pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
        pa.types.is_null,
    )  # fmt: skip
    return any(test(kind) for test in tests)
