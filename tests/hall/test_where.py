"""The language of --where: what it takes has one text, and everything else is refused with its place."""

import re

import pytest
from examples import unhurried
from hypothesis import given
from hypothesis import strategies as st

from fwconvert import where
from fwconvert.errors import UsageError
from fwconvert.where import (
    Among,
    Arithmetic,
    Call,
    Chain,
    Column,
    IsNull,
    Logic,
    Negative,
    Node,
    Not,
    TypeMismatch,
    Value,
)

NAMES = st.sampled_from(
    ["a", "score", "len", "in", "two words", "2nd", "é", "\ufb01", "it's", "", "\\", "x\ny"]
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
CONSTANTS = NUMBERS | TEXTS | st.booleans()


def number(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    signed = parts.map(Negative).filter(lambda node: not isinstance(node.part, Value))
    return st.builds(Arithmetic, st.sampled_from("+-*/"), parts, parts) | signed


def numbers() -> st.SearchStrategy[Node]:
    lengths: st.SearchStrategy[Node] = st.builds(Call, st.just("len"), st.builds(Column, NAMES))
    return st.recursive(st.builds(Column, NAMES) | st.builds(Value, NUMBERS) | lengths, number, max_leaves=6)


def joined(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    def flat(word: str, found: list[Node]) -> Node:
        inner = [part.parts if isinstance(part, Logic) and part.word == word else (part,) for part in found]
        return Logic("and" if word == "and" else "or", tuple(part for group in inner for part in group))

    both = st.builds(flat, st.sampled_from(["and", "or"]), st.lists(parts, min_size=2, max_size=3))
    compared = st.builds(
        lambda a, sign, b: Chain(a, ((sign, b),)), parts, st.sampled_from(["==", "!="]), parts
    )
    return both | st.builds(Not, parts) | compared | st.builds(IsNull, parts, st.booleans())


def truths() -> st.SearchStrategy[Node]:
    signs = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    rest = st.lists(st.tuples(signs, numbers()), min_size=1, max_size=3).map(tuple)
    values = st.lists(NUMBERS, min_size=1, max_size=4).map(tuple)
    tests = st.sampled_from(["contains", "startswith", "endswith"])
    leaves: st.SearchStrategy[Node] = st.one_of(
        st.builds(Chain, numbers(), rest),
        st.builds(Among, numbers(), values, st.booleans()),
        st.builds(Call, tests, st.builds(Column, NAMES), TEXTS),
        st.builds(Column, NAMES),
        st.builds(IsNull, numbers(), st.booleans()),
    )
    return st.recursive(leaves, joined, max_leaves=8)


@given(truths())
@unhurried
def test_the_text_of_an_expression_is_read_as_that_expression(node: Node) -> None:
    # Who parses makes an `and` in an `and` one, so no other expressions are asked for.
    named = _flat(Logic("and", (Column("x"), node))) if not [*where.columns(node)] else node

    spelt = where.text(named)

    assert where.parse(spelt) == named
    assert where.text(where.parse(spelt)) == spelt
    assert all(c.isprintable() or ord(c) > 0x7F for c in spelt)


def _flat(node: Logic) -> Logic:
    """Return the expression with an `and` in its last place made one with it."""
    last = node.parts[-1]
    if isinstance(last, Logic) and last.word == node.word:
        return Logic(node.word, (*node.parts[:-1], *last.parts))
    return node


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("a>1", "a > 1"),
        ("  ( a>1 )and(b  ==\t'x')  ", "a > 1 and b == 'x'"),
        ("(a > 1 and b) and c", "a > 1 and b and c"),
        ("a or b and c", "a or b and c"),
        ("(a or b) and c", "(a or b) and c"),
        ("not (a and b)", "not (a and b)"),
        ("(1 < x) == y", "(1 < x) == y"),
        ("1 < x < 2", "1 < x < 2"),
        ("x - (y - 1) > 0x10", "x - (y - 1) > 16"),
        ("(x - y) - 1 > 1_000", "x - y - 1 > 1000"),
        ("x in [1]", "x in (1,)"),
        ("x not in (\"a\", 'b')", "x not in ('a', 'b')"),
        ("column('x') is None", "x is None"),
        ("column('x y') is not None", "column('x y') is not None"),
        ("column('class') == 1.50", "column('class') == 1.5"),
        ("len(text) > 1e3", "len(text) > 1000.0"),
        ('contains(url, "it\'s \\n")', "contains(url, 'it\\'s \\u000a')"),
        ("x > -1", "x > -1"),
        ("x > - - 1", "x > 1"),
        ("-x > 1", "-x > 1"),
    ],
)
def test_white_space_brackets_and_quotes_make_no_other_recipe(written: str, text: str) -> None:
    assert where.text(where.parse(written)) == text


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("x > 2 ** 3", "2 ** 3"), ("9**9**9 > x", "9**9**9"), ("x.y > 1", "x.y"), ("x[0] > 1", "x[0]"),
        ("x and (lambda: 1)", "lambda: 1"), ("[y for y in x]", "[y for y in x]"), ("f'{x}' == x", "f'{x}'"),
        ("x if x else x", "x if x else x"), ("(x := 3) > 1", "x := 3"), ("x > 1e999", "1e999"),
        ("x > 9223372036854775808", "9223372036854775808"), ("x == None", "None"), ("x == b'a'", "b'a'"),
        ("x > 1j", "1j"), ("x == ...", "..."), ("~x > 1", "~x"), ("+x > 1", "+x"), ("x // 2 > 1", "x // 2"),
        ("x % 2 == 1", "x % 2"), ("x & y", "x & y"), ("x is y", "y"), ("x is True", "True"),
        ("x in ()", "()"), ("x in y", "y"), ("x in 'abc'", "'abc'"), ("x in (1, y)", "y"),
        ("x in (1, None)", "None"), ("x in {1: 2}", "{1: 2}"), ("__import__('os')", "__import__"),
        ("eval('x')", "eval"), ("x.__class__()", "x.__class__"), ("len(x, x) > 1", "len(x, x)"),
        ("len() > 1", "len()"), ("contains(x, y)", "y"), ("contains(x, 1)", "1"), ("column(x) > 1", "x"),
        ("contains(x, 'a', n=1)", "contains(x, 'a', n=1)"), ("len(*x) > 1", "*x"),
        ("x < y in (1, 2)", "x < y in (1, 2)"),
        ("x == '\\ud800'", "'\\ud800'"), ("é == 'é' and y ** 2 > 1", "y ** 2"),
    ],
)  # fmt: skip
def test_what_is_not_of_the_language_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(UsageError) as refused:
        where.parse(text)

    lines = str(refused.value).splitlines()
    shown, mark = (
        next(line[9:] for line in lines if line.startswith(word)) for word in ("  where", "  here")
    )
    assert shown == text
    assert shown[mark.index("^") : mark.rindex("^") + 1] == place


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "x >", "> 1", "x > 1; y", "x\n> 1", "import os", "x = 1", "x > 1)", "(x > 1", "'a",
        "x\0 > 1",
        "1 < 2", "True", "'a' == 'b'", "x > 'a' + 1", "'a' < 3 and x", "True < x", "x + 1", "len(x)", "'a'",
        "not 1 and x", "x and 'a'", "-'a' > x", "x in (1, 'a')", "len(1) > x", "contains(1, 'a') or x",
        "not len(x)", "(x > 1) + 1 > 2", "(x > 1) < True", "x\ud800 > 1", "1 in (1,) and 'b' < x < 3",
    ],
)  # fmt: skip
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--where"):
        where.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 3999, "x" * 4001, "-" * 3999 + "x", "not " * 990 + "x",
        "1+" * 1900 + "x > 1", "x" + " == x" * 700 + " == (" * 60, "9" * 3990, "1" * 3000 + ".0 < x",
        "[" * 3999,
        "x in (" + "1," * 1001 + ")", "((((x < 1) == x) == x) == x)" * 2, "'" + "a" * 4000 + "' == x",
        "\\" * 3999,
        "x if " * 700 + "x", "lambda:" * 500 + "x", "a." * 1900 + "b", "f(" * 1300, "{" * 3999,
        "x" + "[0]" * 1300,
    ],
)  # fmt: skip
def test_a_monster_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--where"):
        where.parse(text)


@given(st.text(max_size=40) | st.text("x1'()<>=+-*/. \n[]{}:,andotris\\", max_size=40))
@unhurried
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    try:
        found = where.parse(text)
    except UsageError:
        return
    assert where.parse(where.text(found)) == found


def test_nested_chains_do_not_double() -> None:
    text = "x"
    for _ in range(40):
        text = f"(x == {text} == x)"

    assert len(where.text(where.parse(text))) < 1000


def test_the_columns_are_told_where_they_stand() -> None:
    found = where.parse("a > b and len(c) in (1, 2) or column('d e') is None and -a < a / f")

    assert [*where.columns(found)] == ["a", "b", "c", "d e", "a", "a", "f"]


@pytest.mark.parametrize(
    ("text", "kinds", "wrong"),
    [
        ("x > 1", {"x": "text"}, "x > 1"),
        ("y and x == 'a'", {"x": "number", "y": "truth"}, "x == 'a'"),
        ("x", {"x": "number"}, "is a number: x"),
        ("x in (1, 2)", {"x": "text"}, "x in (1, 2)"),
        ("len(x) > 1", {"x": "number"}, "len(x)"),
        ("x < y", {"x": "truth", "y": "truth"}, "x < y"),
        ("x + 1 > 2", {"x": "truth"}, "x + 1"),
    ],
)
def test_kinds_that_do_not_go_together_are_told(
    text: str, kinds: dict[str, where.ValueType], wrong: str
) -> None:
    found = where.parse(text)

    with pytest.raises(TypeMismatch, match=re.escape(wrong)):
        where.value_type(found, lambda name: kinds[name], top=True)
