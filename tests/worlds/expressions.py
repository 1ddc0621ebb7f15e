"""Random expressions for --where: how a user may spell them, their one form, and what they mean.

Written from FORMAT.md ("The language of --where") and sharing no code with fwconvert. An expression is
evaluated row by row with plain Python values; None is null, and logic is that of SQL.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Value = bool | int | float | str | None

# How tightly each binds, as in Python.
OR, AND, NOT, COMPARE, SUM, PRODUCT, SIGN, ATOM = range(8)


@dataclass(frozen=True)
class Node:
    """One operation; `parts` are other nodes, `given` what else it needs."""

    kind: str
    parts: tuple["Node", ...] = ()
    given: Any = None


def column(name: str) -> Node:
    return Node("column", (), name)


def constant(value: Value) -> Node:
    return Node("constant", (), value)


# --- what it means ---------------------------------------------------------------------------------------


def is_kept(node: Node, row: Mapping[str, Any]) -> bool:
    """Tell whether the expression is true for a row; null is not."""
    return value_of(node, row) is True


def value_of(node: Node, row: Mapping[str, Any]) -> Value:
    if node.kind == "column":
        found: Value = row[node.given]
        return found
    if node.kind == "constant":
        told: Value = node.given
        return told
    values = [value_of(part, row) for part in node.parts]
    if node.kind == "is":
        return (values[0] is None) != bool(node.given)
    if node.kind in ("and", "or"):
        return _kleene(values, deciding=node.kind == "or")
    if node.kind == "chain":
        pairs = zip(values, node.given, values[1:], strict=False)
        return _kleene([_compared(left, sign, right) for left, sign, right in pairs], deciding=False)
    return None if None in values else _OF_VALUES[node.kind](node.given, *values)


def _kleene(values: list[Value], *, deciding: bool) -> Value:
    """Return the truth of all (deciding False) or of any (deciding True) of the values."""
    if deciding in values:
        return deciding
    return None if None in values else not deciding


def _compared(left: Any, sign: str, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    compare = {
        "==": left == right, "!=": left != right,
        **({} if isinstance(left, bool) else {
            "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right,
        }),
    }  # fmt: skip
    return bool(compare[sign])


def _arithmetic(sign: str, left: Any, right: Any) -> int | float:
    if sign == "/":
        return _divided(float(left), float(right))
    result: int | float = {"+": left + right, "-": left - right, "*": left * right}[sign]
    return result


def _divided(left: float, right: float) -> float:
    """Divide as IEEE 754 has it."""
    if right:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1, right)


def _among(given: tuple[tuple[Value, ...], bool], value: Any) -> bool:
    values, negated = given
    return any(_compared(value, "==", one) for one in values) != negated


_OF_VALUES: dict[str, Callable[..., Value]] = {
    "not": lambda _, value: not value,
    "minus": lambda _, value: -value,
    "arithmetic": _arithmetic,
    "among": _among,
    "len": lambda _, text: len(text),
    "contains": lambda wanted, text: wanted in text,
    "startswith": lambda wanted, text: text.startswith(wanted),
    "endswith": lambda wanted, text: text.endswith(wanted),
}


# --- how it is spelt -------------------------------------------------------------------------------------


def text(node: Node) -> str:
    """Return the one form that stands in the rules."""
    return _Speller(None).spell(node, OR)


def as_typed(node: Node, rng: random.Random) -> str:
    """Return the expression as somebody may type it: with needless brackets and blanks, either quote."""
    return _Speller(rng).spell(node, OR)


@dataclass(frozen=True)
class _Speller:
    """Spells as the rules do, or loosely by chance."""

    rng: random.Random | None

    def spell(self, node: Node, least: int) -> str:
        binds = _binds(node)
        found = self._spelt(node, binds)
        loosely = self.rng is not None and self.rng.random() < 0.15
        if binds < least or (loosely and node.kind != "constant"):
            return f"( {found})" if loosely else f"({found})"
        return found

    def _spelt(self, node: Node, binds: int) -> str:
        if binds == COMPARE:
            return self._comparison(node)
        if node.kind in ("and", "or"):
            return f" {node.kind} ".join(self.spell(part, binds + 1) for part in node.parts)
        if node.kind in ("not", "minus"):
            return ("not " if node.kind == "not" else "-") + self.spell(node.parts[0], binds)
        if node.kind == "arithmetic":
            left, right = node.parts
            return f"{self.spell(left, binds)} {node.given} {self.spell(right, binds + 1)}"
        return self._atom(node)

    def _comparison(self, node: Node) -> str:
        parts, given = node.parts, node.given
        if node.kind == "chain":
            rest = zip(given, parts[1:], strict=True)
            return self.spell(parts[0], SUM) + "".join(f" {sign} {self.spell(p, SUM)}" for sign, p in rest)
        if node.kind == "is":
            return f"{self.spell(parts[0], SUM)} is {'not ' if given else ''}None"
        values, negated = given
        listed = ", ".join(map(self.quoted, values)) + ("," if len(values) == 1 else "")
        return f"{self.spell(parts[0], SUM)} {'not in' if negated else 'in'} ({listed})"

    def _atom(self, node: Node) -> str:
        if node.kind == "constant":
            return self.quoted(node.given)
        if node.kind == "column":
            return str(node.given) if _is_plain(node.given) else f"column({self.quoted(node.given)})"
        more = "" if node.given is None else f", {self.quoted(node.given)}"
        return f"{node.kind}({self.spell(node.parts[0], OR)}{more})"

    def quoted(self, value: Value) -> str:
        if not isinstance(value, str):
            return repr(value)
        quote = '"' if self.rng is not None and self.rng.random() < 0.3 else "'"
        return quote + value.replace("\\", "\\\\").replace(quote, f"\\{quote}") + quote


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isidentifier()


def _binds(node: Node) -> int:
    if node.kind == "arithmetic":
        return SUM if node.given in "+-" else PRODUCT
    if node.kind == "constant":
        value = node.given
        return SIGN if not isinstance(value, str) and math.copysign(1, value) < 0 else ATOM
    levels = {"or": OR, "and": AND, "not": NOT, "chain": COMPARE, "is": COMPARE, "among": COMPARE}
    return levels.get(node.kind, SIGN if node.kind == "minus" else ATOM)


# --- by chance -------------------------------------------------------------------------------------------

TEXTS = ("a", "en", "de", "e", "", "ä", "it's", "The", "\\")
WHOLE = (0, 1, 2, 3, 4, 5, -1, 10)
FLOATS = (0.0, 0.5, 2.5, -1.25, 3.0, -0.0, 100.0)
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def truth(rng: random.Random, columns: Mapping[str, str], depth: int = 3) -> Node:
    """Return a random expression that is a truth and reads at least one of the columns.

    `columns` tells the kind of each: number, text, truth or any (nothing but nulls).
    """
    name = rng.choice(sorted(columns))
    if depth > 0 and rng.random() < 0.5:
        return _logic(rng, columns, depth)
    if rng.random() < 0.15:
        return Node("is", (column(name),), rng.random() < 0.5)
    kind = columns[name]
    if kind == "any":
        kind = rng.choice(("number", "text", "truth"))
    maker = {"number": _about_number, "text": _about_text, "truth": _about_truth}[kind]
    return maker(rng, column(name), columns)


def _logic(rng: random.Random, columns: Mapping[str, str], depth: int) -> Node:
    if rng.random() < 0.25:
        return Node("not", (truth(rng, columns, depth - 1),))
    word = rng.choice(("and", "or"))
    parts: list[Node] = []
    for _ in range(rng.choice((2, 2, 3))):
        part = truth(rng, columns, depth - 1)
        # Brackets within a row of the same word say nothing, and the one form has none.
        parts += part.parts if part.kind == word else [part]
    return Node(word, tuple(parts))


def _about_number(rng: random.Random, of: Node, columns: Mapping[str, str]) -> Node:
    number = _number(rng, of, columns, 2)
    if rng.random() < 0.25:
        values = tuple(rng.choice(WHOLE + FLOATS) for _ in range(rng.randint(1, 3)))
        return Node("among", (number,), (values, rng.random() < 0.5))
    others = [_number(rng, constant(rng.choice(WHOLE + FLOATS)), columns, 1)]
    if rng.random() < 0.3:
        others.append(constant(rng.choice(WHOLE + FLOATS)))
    return Node("chain", (number, *others), tuple(rng.choice(COMPARISONS) for _ in others))


def _number(rng: random.Random, of: Node, columns: Mapping[str, str], depth: int) -> Node:
    if depth == 0 or rng.random() < 0.6:
        return of
    if of.kind != "constant" and rng.random() < 0.2:
        return Node("minus", (of,))
    texts = [name for name in sorted(columns) if columns[name] == "text"]
    other = constant(rng.choice(WHOLE + FLOATS))
    if texts and rng.random() < 0.3:
        other = Node("len", (column(rng.choice(texts)),))
    other = _number(rng, other, columns, depth - 1)
    pair = (of, other) if rng.random() < 0.5 else (other, of)
    return Node("arithmetic", pair, rng.choice("+-*/"))


def _about_text(rng: random.Random, of: Node, columns: Mapping[str, str]) -> Node:
    way = rng.choice(("chain", "among", "test", "len"))
    if way == "chain":
        return Node("chain", (of, constant(rng.choice(TEXTS))), (rng.choice(COMPARISONS),))
    if way == "among":
        values = tuple(rng.choice(TEXTS) for _ in range(rng.randint(1, 3)))
        return Node("among", (of,), (values, rng.random() < 0.5))
    if way == "test":
        return Node(rng.choice(("contains", "startswith", "endswith")), (of,), rng.choice(TEXTS))
    return _about_number(rng, Node("len", (of,)), columns)


def _about_truth(rng: random.Random, of: Node, _: Mapping[str, str]) -> Node:
    if rng.random() < 0.6:
        return of
    return Node("chain", (of, constant(rng.random() < 0.5)), (rng.choice(("==", "!=")),))
