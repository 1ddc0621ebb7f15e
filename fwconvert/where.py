"""The language of --where: a small part of Python's expressions, over the columns of a source.

An expression is read by Python's own parser and never run by it. Every kind of
node that may stand in one is listed here; anything else is refused, with its
place. Sizes are bounded, so that no expression costs more than a short one.

What is parsed is a tree that knows the columns it reads, the types of its
values, and its text. Equal expressions have one text, whatever white space and
brackets they were written with. The text is part of the recipe, so it does not
depend on the version of Python.
"""

import ast
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fwconvert.errors import UsageError, message

ValueType = Literal["number", "text", "truth", "any"]
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


class TypeMismatch(Exception):
    """An expression whose types do not go together: a text compared with a number, for example."""


def value_type(node: Node, column_type: Callable[[str], ValueType], *, top: bool = False) -> ValueType:
    """Return the type of an expression, given those of its columns; raise TypeMismatch if it makes no sense.

    At the top only a truth makes sense.
    """
    parts = [value_type(part, column_type) for part in operands(node)]
    match node:
        case Column(name):
            found = column_type(name)
        case Value(value):
            found = _constant_type(value)
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
        raise TypeMismatch(f"a row is kept if this is true, but it is a {found}: {text(node)}")
    return found


def _constant_type(value: Constant) -> ValueType:
    if isinstance(value, bool):
        return "truth"
    return "text" if isinstance(value, str) else "number"


def _all(wanted: ValueType, parts: Sequence[ValueType], node: Node) -> ValueType:
    for found in parts:
        if found not in (wanted, "any"):
            raise TypeMismatch(f"a {found} stands where a {wanted} should: {text(node)}")
    return wanted


def _comparable(node: Node, parts: list[ValueType]) -> None:
    if isinstance(node, Among):
        parts = [*parts, *(_constant_type(value) for value in node.values)]
    known = {part for part in parts if part != "any"}
    if len(known) > 1:
        raise TypeMismatch(f"a {' and a '.join(sorted(known))} cannot be compared: {text(node)}")
    ordered = isinstance(node, Chain) and any(sign not in ("==", "!=") for sign, _ in node.rest)
    if ordered and "truth" in known:
        raise TypeMismatch(f"True is neither larger nor smaller than False: {text(node)}")


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


MOST_CHARACTERS = 4000
MOST_VALUES = 1000
_MOST_DEPTH = 50
_LARGEST = sys.float_info.max
# Of a line, when a place in it is shown.
_MOST_SHOWN = 72

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_TESTS = ("contains", "startswith", "endswith")
_KNOWN = (
    "known are: columns, numbers, texts, True, False; < <= > >= == != and chains of them; and, or, not; "
    "in (…), not in (…), is None, is not None; + - * /; "
    "len(c), contains(c, 'x'), startswith(c, 'x'), endswith(c, 'x'), column('a name with blanks')"
)


class _Refused(Exception):
    """Something that does not belong into an expression, and where."""

    def __init__(self, wrong: str, place: ast.expr | None = None) -> None:
        super().__init__(wrong)
        # Of the line, counted from 1, the bytes from `begin` to `end`.
        self.line, self.begin, self.end = 1, 0, 0
        if place is not None:
            self.line, self.begin, self.end = place.lineno, place.col_offset, place.end_col_offset or 0


def parse(text: str) -> Node:
    """Return the expression that `text` spells, or raise UsageError that points at what is wrong."""
    if len(text) > MOST_CHARACTERS or not _is_encodable(text):
        raise UsageError(
            message(
                "the expression of --where is too long, or is not valid Unicode",
                f"use at most {MOST_CHARACTERS:,} characters",
                characters=f"{len(text):,}",
            )
        )
    text = text.strip()
    try:
        found = _sensible(_node(_parsed(text), 0))
    except _Refused as error:
        raise UsageError(_pointed(text, error)) from None
    except TypeMismatch as error:
        raise UsageError(message(f"invalid --where: {error}", _KNOWN, where=text)) from None
    return found


def _sensible(found: Node) -> Node:
    if not [*columns(found)]:
        raise _Refused("it names no column, so it is the same for every row")
    value_type(found, lambda _: "any", top=True)
    return found


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parsed(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of odd escapes and odd comparisons.
            return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        refused = _Refused(error.msg)
        refused.line = error.lineno or 1
        refused.begin = len(_line(text, refused.line)[: max(0, (error.offset or 1) - 1)].encode())
        raise refused from None
    except (ValueError, MemoryError, RecursionError):
        raise _Refused("it is nested too deeply, or has a null byte") from None


def _pointed(text: str, error: _Refused) -> str:
    """Return the message, with a mark below the place."""
    line = _line(text, error.line)
    begin = len(line.encode()[: error.begin].decode(errors="replace"))
    end = max(begin + 1, len(line.encode()[: error.end].decode(errors="replace")))
    shown = line if len(line) <= _MOST_SHOWN else line[max(0, begin - 20) :][:_MOST_SHOWN]
    skipped = 0 if shown == line else max(0, begin - 20)
    mark = " " * (begin - skipped) + "^" * (min(end - skipped, len(shown) + 1) - (begin - skipped))
    return message(f"invalid --where: {error}", _KNOWN, where=shown, here=mark)


def _line(text: str, number: int) -> str:
    lines = text.splitlines() or [""]
    return lines[min(number, len(lines)) - 1]


def _node(found: ast.expr, depth: int) -> Node:
    if depth > _MOST_DEPTH:
        raise _Refused("it is nested too deeply", found)
    makers: dict[type[ast.expr], Callable[..., Node]] = {
        ast.Name: lambda name, _: Column(name.id),
        ast.Constant: lambda constant, _: Value(_constant(constant)),
        ast.BoolOp: _logic,
        ast.UnaryOp: _unary,
        ast.Compare: _compare,
        ast.BinOp: _arithmetic,
        ast.Call: _call,
    }
    maker = makers.get(type(found))
    if maker is None:
        raise _Refused("this is not part of the language", found)
    return maker(found, depth + 1)


def _constant(found: ast.expr) -> Constant:
    """Return a number, a text or a truth; a number may have signs."""
    signs, plain = 0, found
    while isinstance(plain, ast.UnaryOp) and isinstance(plain.op, ast.USub):
        signs, plain = signs + 1, plain.operand
    if signs > _MOST_DEPTH:
        raise _Refused("it is nested too deeply", found)
    value = _unsigned(plain)
    if not signs:
        return value
    if isinstance(value, bool | str):
        raise _Refused("only numbers have a sign", found)
    return -value if signs % 2 else value


def _unsigned(found: ast.expr) -> Constant:
    value = found.value if isinstance(found, ast.Constant) else None
    if value is None and isinstance(found, ast.Constant):
        raise _Refused("say `is None` or `is not None` to ask for null", found)
    if not isinstance(value, bool | int | float | str):
        raise _Refused("this is not a number, a text, True or False", found)
    if not isinstance(value, str) and not abs(value) <= (2**63 - 1 if isinstance(value, int) else _LARGEST):
        raise _Refused("this number is too large", found)
    if isinstance(value, str) and not _is_encodable(value):
        raise _Refused("this text is not valid Unicode", found)
    return value


def _logic(found: ast.BoolOp, depth: int) -> Node:
    word: Literal["and", "or"] = "and" if isinstance(found.op, ast.And) else "or"
    parts: list[Node] = []
    for value in found.values:
        part = _node(value, depth)
        parts += part.parts if isinstance(part, Logic) and part.word == word else [part]
    return Logic(word, tuple(parts))


def _unary(found: ast.UnaryOp, depth: int) -> Node:
    if isinstance(found.op, ast.Not):
        return Not(_node(found.operand, depth))
    if not isinstance(found.op, ast.USub):
        raise _Refused("this is not part of the language", found)
    part = _node(found.operand, depth)
    if isinstance(part, Value) and not isinstance(part.value, bool | str):
        return Value(-part.value)
    return Negative(part)


def _compare(found: ast.Compare, depth: int) -> Node:
    first = _node(found.left, depth)
    if len(found.ops) == 1:
        special = _membership(first, found.ops[0], found.comparators[0])
        if special is not None:
            return special
    rest = []
    for operator, operand in zip(found.ops, found.comparators, strict=True):
        if type(operator) not in _COMPARISONS:
            raise _Refused("`in` and `is` cannot stand in a chain; use brackets and `and`", found)
        rest.append((_COMPARISONS[type(operator)], _node(operand, depth)))
    return Chain(first, tuple(rest))


def _membership(part: Node, operator: ast.cmpop, operand: ast.expr) -> Node | None:
    if isinstance(operator, ast.Is | ast.IsNot):
        if not isinstance(operand, ast.Constant) or operand.value is not None:
            raise _Refused("`is` is for None alone", operand)
        return IsNull(part, isinstance(operator, ast.IsNot))
    if not isinstance(operator, ast.In | ast.NotIn):
        return None
    if not isinstance(operand, ast.Tuple | ast.List) or not 0 < len(operand.elts) <= MOST_VALUES:
        raise _Refused(f"`in` takes 1 to {MOST_VALUES:,} constants in brackets: in ('a', 'b')", operand)
    values = tuple(_constant(element) for element in operand.elts)
    return Among(part, values, isinstance(operator, ast.NotIn))


def _arithmetic(found: ast.BinOp, depth: int) -> Node:
    if type(found.op) not in _SIGNS:
        raise _Refused("this is not part of the language", found)
    return Arithmetic(_SIGNS[type(found.op)], _node(found.left, depth), _node(found.right, depth))


def _call(found: ast.Call, depth: int) -> Node:
    name = found.func.id if isinstance(found.func, ast.Name) else ""
    wanted = {"len": 1, "column": 1, **dict.fromkeys(_TESTS, 2)}.get(name)
    if wanted is None:
        raise _Refused("there is no such function", found.func)
    if len(found.args) != wanted or found.keywords:
        raise _Refused(f"{name} takes {wanted} in its brackets", found)
    if name == "len":
        return Call(name, _node(found.args[0], depth))
    text = _constant(found.args[-1])
    if not isinstance(text, str):
        raise _Refused("this must be a text in quotes", found.args[-1])
    return Column(text) if name == "column" else Call(name, _node(found.args[0], depth), text)
