"""Filter the rows of a source by the values of its columns, whole batches at a time.

A row is kept if the expression is true for it; if it is null, because a column
is, the row is not kept. Logic is that of SQL: `null or True` is true, `not null`
is null. Numbers are int64 where all of them are whole and float64 otherwise;
whole numbers that overflow are an error, never another number.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fwconvert import where
from fwconvert.errors import ColumnError, SourceError, message
from fwconvert.recipes import Rules
from fwconvert.sources import columns
from fwconvert.where import (
    Among,
    Arithmetic,
    Call,
    Chain,
    Column,
    Constant,
    IsNull,
    Logic,
    Negative,
    Node,
    Not,
    TypeMismatch,
    Value,
    ValueType,
)

# An Arrow array or scalar; pyarrow has no types to check.
Values = Any

_COMPARE = {
    "==": pc.equal, "!=": pc.not_equal, "<": pc.less,
    "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_ARITHMETIC = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
# Bytes that are UTF-8 are text here as in the text column.
_TEXTS = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
)  # fmt: skip
_TESTS = {"contains": pc.match_substring, "startswith": pc.starts_with, "endswith": pc.ends_with}


@dataclass(frozen=True)
class Sieve:
    """A filter expression that can be applied to batches."""

    node: Node

    @property
    def columns(self) -> list[str]:
        """The names of the columns that it reads, each once."""
        return [*dict.fromkeys(where.columns(self.node))]

    def check(self, schema: pa.Schema, path: Path | str) -> None:
        """Raise ColumnError if a file lacks a column that it reads, or has one of the wrong type."""
        types = {name: columns.type_of(schema, name) for name in self.columns}
        for name, kind in types.items():
            if kind is None:
                raise ColumnError(_unfit("a source file has no such column", self, path, schema, name))
        try:
            where.value_type(self.node, lambda name: _value_type(types[name]), top=True)
        except TypeMismatch as error:
            wrong = f"a source file has columns of other types than the filter needs: {error}"
            raise ColumnError(_unfit(wrong, self, path, schema)) from None

    def kept(self, rows: pa.RecordBatch, path: Path | str) -> NDArray[np.int64]:
        """Return which of the rows are kept, counted from 0."""
        try:
            values = {name: _plain(columns.of(rows, name)) for name in self.columns}
            mask = _evaluated(self.node, values)
            sure = pc.fill_null(_truth(mask), pa.scalar(value=False))
            return np.flatnonzero(sure.to_numpy(zero_copy_only=False))
        except pa.ArrowException as error:
            wrong = f"the filter fails on a source file: {' '.join(str(error).split())[:500]}"
            raise SourceError(_unfit(wrong, self, path, rows.schema)) from error


def of(rules: Rules) -> Sieve | None:
    """Return the filter of some rules, or None if they keep every row."""
    parts: list[Node] = []
    if rules.min_score is not None:
        parts.append(Chain(Column("score"), ((">=", Value(rules.min_score)),)))
    if rules.min_int_score is not None:
        parts.append(Chain(Column("int_score"), ((">=", Value(rules.min_int_score)),)))
    if rules.where is not None:
        parts.append(where.parse(rules.where))
    return Sieve(Logic("and", tuple(parts))) if parts else None


def _unfit(wrong: str, sieve: Sieve, path: Path | str, schema: pa.Schema, missing: str = "") -> str:
    found = ", ".join(f"{field.name} ({field.type})" for field in schema)
    wanted = {"missing": missing} if missing else {}
    return message(
        wrong,
        "see --where, --min-score and --min-int-score",
        file=path,
        filter=where.text(sieve.node),
        **wanted,
        columns=found[:2000],
    )


def _value_type(column: pa.DataType) -> ValueType:
    if pa.types.is_dictionary(column):
        column = column.value_type
    if pa.types.is_integer(column) or pa.types.is_floating(column):
        return "number"
    if any(is_type(column) for is_type in _TEXTS):
        return "text"
    if pa.types.is_boolean(column):
        return "truth"
    if pa.types.is_null(column):
        return "any"
    raise TypeMismatch(f"a column is neither number, text nor truth, but {column}")


def _plain(column: Values) -> Values:
    """Return a column as int64, float64, text or bool."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if pa.types.is_floating(column.type):
        return column.cast(pa.float64())
    if any(is_type(column.type) for is_type in _TEXTS):
        if not pa.types.is_string(column.type):
            column = column.cast(pa.large_string())
        column.validate(full=True)  # Parquet's reader does not check that strings are UTF-8.
    return column


def _evaluated(node: Node, values: Mapping[str, Values]) -> Values:
    match node:
        case Column(name):
            return values[name]
        case Value(value):
            return pa.scalar(value)
    parts = [_evaluated(part, values) for part in where.operands(node)]
    return _computed(node, parts) if isinstance(node, Negative | Arithmetic | Call) else _decided(node, parts)


def _decided(node: Node, parts: list[Values]) -> Values:
    match node:
        case Logic(word):
            return functools.reduce(pc.and_kleene if word == "and" else pc.or_kleene, map(_truth, parts))
        case Not():
            return pc.invert(_truth(parts[0]))
        case Chain(_, rest):
            return _chain(parts, [sign for sign, _ in rest])
        case Among(_, values, negated):
            found = _among(parts[0], values)
            return pc.invert(found) if negated else found
        case IsNull(_, negated):
            return pc.is_valid(parts[0]) if negated else pc.is_null(parts[0])
    raise AssertionError(node)


def _computed(node: Negative | Arithmetic | Call, parts: list[Values]) -> Values:
    match node:
        case Negative():
            return pc.negate_checked(_number(parts[0]))
        case Arithmetic("/"):
            return pc.divide(*(_number(part).cast(pa.float64()) for part in parts))
        case Arithmetic(sign):
            return _ARITHMETIC[sign](*map(_number, parts))
        case Call("len"):
            return pc.utf8_length(_as(parts[0], pa.string())).cast(pa.int64())
        case Call(name, _, text):
            return _TESTS[name](_as(parts[0], pa.string()), text)


def _chain(operands: list[Values], signs: list[str]) -> Values:
    pairs = zip(operands, signs, operands[1:], strict=False)
    return functools.reduce(pc.and_kleene, (_compared(a, sign, b) for a, sign, b in pairs))


def _compared(a: Values, sign: str, b: Values) -> Values:
    """Compare; with a column of nulls only, which has no type, the result is null."""
    untyped = next((part for part in (a, b) if pa.types.is_null(part.type)), None)
    return _truth(_COMPARE[sign](a, b) if untyped is None else untyped)


def _among(part: Values, values: tuple[Constant, ...]) -> Values:
    """Return which are among the values; null stays null."""
    if pa.types.is_null(part.type):
        return part.cast(pa.bool_())
    wanted = pa.array([*values]) if len({*map(type, values)}) == 1 else pa.array([*map(float, values)])
    if pa.types.is_floating(part.type) or pa.types.is_floating(wanted.type):
        # Arrow takes -0.0 and 0.0 for two values; a sum is never -0.0 unless both are.
        zero = pa.scalar(0.0)
        part, wanted = pc.add(part.cast(pa.float64()), zero), pc.add(wanted.cast(pa.float64()), zero)
    elif not pa.types.is_boolean(part.type):
        wanted = wanted.cast(part.type)
    found = pc.is_in(part, value_set=wanted)
    return pc.if_else(pc.is_valid(part), found, pa.scalar(None, pa.bool_()))


def _as(values: Values, kind: pa.DataType) -> Values:
    """Give nulls without a type the type that they need here."""
    return values.cast(kind) if pa.types.is_null(values.type) else values


def _truth(values: Values) -> Values:
    return _as(values, pa.bool_())


def _number(values: Values) -> Values:
    return _as(values, pa.int64())
