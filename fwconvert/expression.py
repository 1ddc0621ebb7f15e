"""Expressions over the columns of a source, as trees: the columns they read, their kind, their text.

Equal expressions have one text, whatever white space and brackets they were
written with. It is part of the recipe, so it must not depend on the version of
Python.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind = Literal["number", "text", "truth", "any"]
Constant: TypeAlias = int | float | str | bool


@dataclass(frozen=True)
class Column:
    """What a column has in each row."""

    name: str


@dataclass(frozen=True)
class Value:
    """A number, a text, True or False."""

    value: Constant


@dataclass(frozen=True)
class Logic:
    """All of some truths, or any of them."""

    word: Literal["and", "or"]
    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Not:
    """The opposite of a truth."""

    part: "Node"


@dataclass(frozen=True)
class Chain:
    """Comparisons: a < b <= c."""

    first: "Node"
    rest: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True)
class Among:
    """Whether something is, or is not, one of some values."""

    part: "Node"
    values: tuple[Constant, ...]
    negated: bool


@dataclass(frozen=True)
class IsNull:
    """Whether something is, or is not, null."""

    part: "Node"
    negated: bool


@dataclass(frozen=True)
class Arithmetic:
    """Two numbers made one; `sign` is + - * or /."""

    sign: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True)
class Negative:
    """A number with its sign turned."""

    part: "Node"


@dataclass(frozen=True)
class Call:
    """A function of a text, and of a constant text unless it is len."""

    name: str
    part: "Node"
    text: str | None = None


Node = Column | Value | Logic | Not | Chain | Among | IsNull | Arithmetic | Negative | Call


def columns(node: Node) -> Iterator[str]:
    """Yield the names of the columns that an expression reads, each as often as it does."""
    if isinstance(node, Column):
        yield node.name
    for part in operands(node):
        yield from columns(part)


def operands(node: Node) -> Sequence[Node]:
    """Return the expressions that stand in an expression."""
    match node:
        case Logic(_, parts):
            return parts
        case Chain(first, rest):
            return [first, *(operand for _, operand in rest)]
        case Arithmetic(_, left, right):
            return [left, right]
        case Not() | Among() | IsNull() | Negative() | Call():
            return [node.part]
    return []


class KindError(Exception):
    """An expression that makes no sense: a text compared with a number, for example."""


def kind(node: Node, kind_of: Callable[[str], Kind], *, top: bool = False) -> Kind:
    """Return what an expression is; `kind_of` says it of a column. Raises KindError if it makes no sense."""
    parts = [kind(part, kind_of) for part in operands(node)]
    match node:
        case Column(name):
            found = kind_of(name)
        case Value(value):
            found = _kind_of_value(value)
        case Arithmetic() | Negative():
            found = _all("number", parts, node)
        case Call(name):
            _all("text", parts, node)
            found = "number" if name == "len" else "truth"
        case Logic() | Not():
            found = _all("truth", parts, node)
        case _:
            _comparable(node, parts)
            found = "truth"
    if top and found not in ("truth", "any"):
        raise KindError(f"a row is kept if this is true, but it is a {found}: {text(node)}")
    return found


def _kind_of_value(value: Constant) -> Kind:
    if isinstance(value, bool):
        return "truth"
    return "text" if isinstance(value, str) else "number"


def _all(wanted: Kind, parts: Sequence[Kind], node: Node) -> Kind:
    for found in parts:
        if found not in (wanted, "any"):
            raise KindError(f"a {found} stands where a {wanted} should: {text(node)}")
    return wanted


def _comparable(node: Node, parts: list[Kind]) -> None:
    if isinstance(node, Among):
        parts = [*parts, *(_kind_of_value(value) for value in node.values)]
    known = {part for part in parts if part != "any"}
    if len(known) > 1:
        raise KindError(f"a {' and a '.join(sorted(known))} cannot be compared: {text(node)}")
    ordered = isinstance(node, Chain) and any(sign not in ("==", "!=") for sign, _ in node.rest)
    if ordered and "truth" in known:
        raise KindError(f"True is neither larger nor smaller than False: {text(node)}")


# How tightly each binds, as in Python.
_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _SIGN, _ATOM = range(8)


def text(node: Node) -> str:
    """Return the one text of an expression; `parse` makes the same expression of it."""
    return _text(node, _OR)


def _text(node: Node, least: int) -> str:
    found, binds = _spelt(node)
    return found if binds >= least else f"({found})"


def _spelt(node: Node) -> tuple[str, int]:
    match node:
        case Logic(word, parts):
            binds = _AND if word == "and" else _OR
            return f" {word} ".join(_text(part, binds + 1) for part in parts), binds
        case Not(part):
            return f"not {_text(part, _NOT)}", _NOT
        case Negative(part):
            return f"-{_text(part, _SIGN)}", _SIGN
        case Arithmetic(sign, left, right):
            binds = _SUM if sign in "+-" else _PRODUCT
            return f"{_text(left, binds)} {sign} {_text(right, binds + 1)}", binds
        case Chain() | Among() | IsNull():
            return _comparison(node), _COMPARE
    return _atom(node)


def _comparison(node: Chain | Among | IsNull) -> str:
    match node:
        case Chain(first, rest):
            signs = "".join(f" {sign} {_text(operand, _SUM)}" for sign, operand in rest)
            return f"{_text(first, _SUM)}{signs}"
        case Among(part, values, negated):
            word, listed = "not in" if negated else "in", ", ".join(map(_quoted, values))
            comma = "," if len(values) == 1 else ""
            return f"{_text(part, _SUM)} {word} ({listed}{comma})"
        case IsNull(part, negated):
            return f"{_text(part, _SUM)} is {'not ' if negated else ''}None"


def _atom(node: Column | Value | Call) -> tuple[str, int]:
    match node:
        case Column(name):
            return _column(name), _ATOM
        case Value(value):
            return _quoted(value), _SIGN if _has_sign(value) else _ATOM
        case Call(name, part, argument):
            more = "" if argument is None else f", {_quoted(argument)}"
            return f"{name}({_text(part, _OR)}{more})", _ATOM


def _has_sign(value: Constant) -> bool:
    return not isinstance(value, str) and math.copysign(1, value) < 0


def _column(name: str) -> str:
    # Letters beyond ASCII would be folded by the parser.
    plain = re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) and name not in _RESERVED
    return name if plain else f"column({_quoted(name)})"


# Of all versions of Python, so that a recipe means the same in each.
_RESERVED = {
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def",
    "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda",
    "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
}  # fmt: skip


def _quoted(value: Constant) -> str:
    if not isinstance(value, str):
        return repr(value)
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + re.sub(r"[\x00-\x1f\x7f\u2028\u2029\x85]", lambda c: f"\\u{ord(c[0]):04x}", escaped) + "'"
