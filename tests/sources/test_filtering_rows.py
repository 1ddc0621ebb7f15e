"""Rows are chosen as Python would choose them, row by row, with SQL's rule for null."""

import json
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runner
from examples import rules_with, unhurried
from hypothesis import given
from hypothesis import strategies as st

from fwconvert import where
from fwconvert.errors import SourceError
from fwconvert.sources import filters, pages, parquet, reading
from fwconvert.where import Among, Arithmetic, Call, Chain, Column, IsNull, Logic, Negative, Node, Not, Value

Row = dict[str, Any]
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
SUMS: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def naive(node: Node, row: Row) -> Any:  # noqa: PLR0911  # a case for each kind of node
    """Return what an expression is for one row; None is null. Python's own arithmetic, nothing of Arrow's."""
    match node:
        case Column(name):
            return row[name]
        case Value(value):
            return value
        case Logic(word, parts):
            found = [naive(part, row) for part in parts]
            decisive = word == "or"
            if decisive in found:
                return decisive
            return None if None in found else not decisive
        case Not(part):
            truth = naive(part, row)
            return None if truth is None else not truth
        case IsNull(part, negated):
            return (naive(part, row) is None) != negated
        case Among(part, values, negated):
            value = naive(part, row)
            return None if value is None else any(value == other for other in values) != negated
        case Chain(first, rest):
            left, found = naive(first, row), []
            for sign, other in rest:
                right = naive(other, row)
                found.append(None if left is None or right is None else COMPARE[sign](left, right))
                left = right
            return False if False in found else None if None in found else True
    return naive_value(node, row)


def naive_value(node: Node, row: Row) -> Any:
    match node:
        case Negative(part):
            value = naive(part, row)
            return None if value is None else -value
        case Arithmetic(sign, left, right):
            one, two = naive(left, row), naive(right, row)
            if one is None or two is None:
                return None
            if sign == "/":
                with np.errstate(all="ignore"):
                    return float(np.float64(one) / np.float64(two))
            return SUMS[sign](one, two)
        case Call("len", part):
            value = naive(part, row)
            return None if value is None else len(value)
        case Call(name, part, text):
            value = naive(part, row)
            tests = {"contains": str.__contains__, "startswith": str.startswith, "endswith": str.endswith}
            return None if value is None else tests[name](value, text or "")
    raise AssertionError(node)


# Small numbers, so that nothing overflows and every float is exact.
INTS = st.integers(-4, 4)
FLOATS = st.sampled_from([-2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, float("inf"), float("nan")])
WORDS = st.sampled_from(["", "a", "ab", "b", "ü", "\U0001f680", "A"])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | INTS,
            "f": st.none() | FLOATS,
            "s": st.none() | WORDS,
            "t": st.none() | WORDS,
            "b": st.none() | st.booleans(),
        }
    ),
    max_size=12,
)
FINITE = st.sampled_from([-2.5, -1.0, 0.0, -0.0, 0.5, 3.0])
SCHEMA = pa.schema(
    {"i": pa.int32(), "f": pa.float64(), "s": pa.string(), "t": pa.large_string(), "b": pa.bool_()}
)

numbers: st.SearchStrategy[Node] = st.recursive(
    st.builds(Column, st.sampled_from(["i", "f"]))
    | st.builds(Value, INTS | FINITE)
    | st.builds(Call, st.just("len"), st.builds(Column, st.sampled_from(["s", "t"]))),
    lambda inner: st.builds(Negative, inner) | st.builds(Arithmetic, st.sampled_from("+-*/"), inner, inner),
    max_leaves=3,
)
words: st.SearchStrategy[Node] = st.builds(Column, st.sampled_from(["s", "t"])) | st.builds(Value, WORDS)


def chains(
    parts: st.SearchStrategy[Node], signs: tuple[str, ...] = tuple(COMPARE)
) -> st.SearchStrategy[Node]:
    rest = st.lists(st.tuples(st.sampled_from(signs), parts), min_size=1, max_size=2)
    return st.builds(Chain, parts, rest.map(tuple))


def lists(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, min_size=1, max_size=4).map(tuple)


truths: st.SearchStrategy[Node] = st.recursive(
    st.one_of(
        chains(numbers),
        chains(words),
        st.builds(Among, numbers, lists(INTS | FINITE), st.booleans()),
        st.builds(Among, st.builds(Column, st.sampled_from(["s", "t"])), lists(WORDS), st.booleans()),
        st.builds(Among, st.just(Column("b")), lists(st.booleans()), st.booleans()),
        st.builds(
            Call,
            st.sampled_from(["contains", "startswith", "endswith"]),
            st.builds(Column, st.sampled_from(["s", "t"])),
            WORDS,
        ),
        st.builds(IsNull, numbers | words | st.just(Column("b")), st.booleans()),
        st.just(Column("b")),
    ),
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(Logic, st.sampled_from(["and", "or"]), lists(inner)),
        chains(inner, ("==", "!=")),
        st.builds(IsNull, inner, st.booleans()),
    ),
    max_leaves=5,
)


@given(node=truths, rows=ROWS)
@unhurried
def test_batches_are_sieved_as_python_sieves_rows(node: Node, rows: list[Row]) -> None:
    node = Logic(
        "and",
        (node, Logic("or", (IsNull(Column("i"), negated=False), Chain(Column("i"), (("==", Column("i")),))))),
    )
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    made = filters.Sieve(node)

    made.check(SCHEMA, Path("x"))
    kept = made.kept(batch, Path("x")).tolist()

    assert kept == [at for at, row in enumerate(rows) if naive(node, row) is True]


def test_nothing_is_asked_of_rows_without_a_filter() -> None:
    assert filters.of(rules_with()) is None


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ({"min_score": 2.0}, [0, 3]),
        ({"min_int_score": 3}, [3, 4]),
        ({"where": "score != 9.0"}, [0, 1, 3, 4]),
        ({"min_score": 2.0, "min_int_score": 3}, [3]),
        ({"min_score": 1.0, "where": "int_score < 3 or score is None"}, [0]),
        ({"where": "score is None or int_score is None"}, [1, 2]),
    ],
)
def test_all_of_the_conditions_must_hold(rules: Row, kept: list[int]) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"score": [2.0, 1.9999, None, 2.5, float("nan")], "int_score": [2, None, None, 3, 3]}
    )
    made = filters.of(rules_with(**rules))

    assert made is not None
    assert made.kept(batch, Path("x")).tolist() == kept


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(), pa.int16(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(),
        pa.dictionary(pa.int8(), pa.int64()),
    ],
)  # fmt: skip
def test_any_type_of_number_is_a_number(kind: pa.DataType) -> None:
    values = pa.array([1, None, 3, 2], pa.int64() if pa.types.is_dictionary(kind) else kind)
    column = values.dictionary_encode() if pa.types.is_dictionary(kind) else values
    batch = pa.RecordBatch.from_arrays([column], ["x"])

    for text, kept in (
        ("x >= 2", [2, 3]),
        ("x in (1, 3)", [0, 2]),
        ("x * 2 > 5", [2]),
        ("x / 2 == 0.5", [0]),
    ):
        assert filters.Sieve(where.parse(text)).kept(batch, Path("x")).tolist() == kept


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_any_type_of_text_is_a_text(kind: pa.DataType) -> None:
    values = pa.array(["en", None, "de", "\U0001f680"])
    column = values.dictionary_encode() if pa.types.is_dictionary(kind) else values.cast(kind)
    batch = pa.RecordBatch.from_arrays([column], ["x"])

    for text, kept in (
        ("x == 'en'", [0]), ("x not in ('en', 'fr')", [2, 3]), ("len(x) == 1", [3]), ("'a' < x < 'e'", [2]),
        ("contains(x, 'e')", [0, 2]), ("startswith(x, 'e')", [0]), ("endswith(x, 'e')", [2]),
        ("x is None", [1]),
    ):  # fmt: skip
        assert filters.Sieve(where.parse(text)).kept(batch, Path("x")).tolist() == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("n > 1", []), ("n == 'a'", []), ("n", []), ("not n", []), ("n is None", [0, 1]), ("n or i > 1", [1]),
        ("len(n) > 1", []), ("contains(n, 'a')", []), ("n in (1, 2)", []), ("n not in ('a',)", []),
        ("n + 1 > i", []), ("n / i > 1", []), ("-n > 1", []), ("n == i", []), ("i < n < 3", []),
        ("(n == True) is None", [0, 1]),
    ],
)  # fmt: skip
def test_a_column_of_nulls_alone_is_null(text: str, kept: list[int]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(2), pa.array([1, 2])], ["n", "i"])
    made = filters.Sieve(where.parse(text))

    made.check(batch.schema, Path("x"))
    assert made.kept(batch, Path("x")).tolist() == kept


@pytest.mark.parametrize("text", ["x + 1 > 0", "x * 2 > 0", "-y > 0", "y - 1 < 0", "u > 1"])
def test_a_whole_number_that_overflows_is_an_error_and_no_other_number(text: str) -> None:
    columns = {"x": [2**63 - 1], "y": [-(2**63)], "u": pa.array([2**64 - 1], pa.uint64())}
    batch = pa.RecordBatch.from_pydict(columns)

    with pytest.raises(SourceError, match=r"overflow|not in range"):
        filters.Sieve(where.parse(text)).kept(batch, Path("some.parquet"))


def test_large_whole_numbers_are_compared_exactly() -> None:
    batch = pa.RecordBatch.from_pydict({"x": [2**53, 2**53 + 1]})

    assert filters.Sieve(where.parse("x > 9007199254740992")).kept(batch, Path("x")).tolist() == [1]
    assert filters.Sieve(where.parse("x in (9007199254740993,)")).kept(batch, Path("x")).tolist() == [1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return corpus.write(tmp_path / "a.parquet", ["zero", None, "", "three", "four"])


def sieved(file: Path, text: str) -> reading.TextBatch:
    (batch,) = parquet.batches(file, "text", filters.Sieve(where.parse(text)))
    return batch


def test_rows_keep_their_numbers_and_what_is_rejected_is_neither_null_nor_empty(file: Path) -> None:
    batch = sieved(file, "id < 2 or id == 4")

    assert batch.texts.to_pylist() == ["zero", "four"]
    assert batch.rows.tolist() == [0, 4]
    assert (batch.seen, batch.null_rows, batch.empty_rows, batch.filtered_rows) == (5, 1, 0, 2)


@pytest.mark.parametrize("text", ["id != 3", "id >= 0", "len(text) > 3"])
def test_a_batch_may_end_before_any_row(file: Path, text: str) -> None:
    batch = sieved(file, text)
    table = pq.read_table(file).to_pylist()
    for end in range(6):
        part = batch.until(end)
        rows = [row for row in table[:end] if naive(where.parse(text), row)]
        assert part.texts.to_pylist() == [row["text"] for row in rows if row["text"]]
        assert part.rows.tolist() == [row["id"] for row in rows if row["text"]]
        assert part.null_rows == sum(row["text"] is None for row in rows)
        assert part.empty_rows == sum(row["text"] == "" for row in rows)
        assert (part.seen, part.filtered_rows) == (end, end - len(rows))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nothing > 1", "missing"),
        ("column('no such') is None", "no such"),
        ("score == 'a'", "score == 'a'"),
        ("text > 1", "text > 1"),
        ("score", "is a number"),
        ("len(id) > 1", "len\\(id\\)"),
    ],
)
def test_a_file_without_the_columns_is_told_with_those_that_it_has(file: Path, text: str, told: str) -> None:
    with pytest.raises(SourceError, match=told) as error:
        sieved(file, text)
    for word in (str(file), "id (int64)", "text (string)", "score (int64)", "--where"):
        assert word in str(error.value)


def test_a_file_without_rows_must_have_the_columns_too(tmp_path: Path) -> None:
    empty = corpus.write(tmp_path / "a.parquet", [])

    with pytest.raises(SourceError, match="no such column"):
        list(parquet.batches(empty, "text", filters.Sieve(where.parse("nothing > 1"))))


@pytest.mark.parametrize(
    "column",
    [pa.array([[1]]), pa.array([{"a": 1}]), pa.array([b"x"], pa.binary(1)), pa.array([1], pa.timestamp("s"))],
)
def test_a_column_of_another_kind_is_refused(tmp_path: Path, column: pa.Array) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x"], "c": column}), path)

    with pytest.raises(SourceError, match="neither number, text nor truth"):
        sieved(path, "c == 1")


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.Table.from_arrays([pa.array(["x"]), pa.array([1]), pa.array([2])], ["text", "c", "c"])
    pq.write_table(table, path)

    with pytest.raises(SourceError, match="no such column"):
        sieved(path, "c == 1")


def test_text_that_is_not_utf_8_is_refused_where_the_filter_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    bad = pa.array([b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"text": ["x"], "c": bad}), path)

    with pytest.raises(SourceError, match=r"UTF-?8"):
        sieved(path, "len(c) == 1")


TEXTS = ["ab", None, "äöü€", "", "b" * 600]
TEXT_KINDS = [
    pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()),
    pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary()),
]  # fmt: skip


def documents_of(out: Path, *words: str) -> int:
    """Convert by the command line, twice; return how many documents there are."""
    for _ in range(2):
        ended = runner.run(out.parent / "source", out, "--quiet", *words, tokenizer="bytes", workers=1)
        runner.assert_tidy_end(ended, 0)
    return int(json.loads((out / "manifest.json").read_text())["headline"]["documents"])


@pytest.mark.parametrize("kind", TEXT_KINDS, ids=str)
def test_a_filter_takes_every_kind_of_text_that_the_text_column_may_have(
    kind: pa.DataType, tmp_path: Path
) -> None:
    encoded = [one if one is None or "string" in str(kind) else one.encode() for one in TEXTS]
    column = pa.array(encoded, getattr(kind, "value_type", kind)).cast(kind)
    table = pa.table({"text": column, "other": ["b", "b", "b", "b", "b"]})
    (tmp_path / "source").mkdir()
    pq.write_table(table, tmp_path / "source/a.parquet")

    each = [
        "len(text) > 500",
        "len(text) == 4 and contains(text, 'ö')",
        "text in ('ab', 'c') and text < other",
    ]
    assert documents_of(tmp_path / "out", "--where", " or ".join(each)) == 3


@pytest.mark.parametrize("column", ["text", "other"])
def test_bytes_that_are_not_utf_8_fail_their_source_alone(column: str, tmp_path: Path) -> None:
    for name, content in (("a", b"fine"), ("b", b"\xff\xfe")):
        values = {"text": [b"one"], "other": [b"two"]} | {column: [content]}
        (tmp_path / "source").mkdir(exist_ok=True)
        pq.write_table(pa.table(values), tmp_path / f"source/{name}.parquet")

    for _ in range(2):
        ended = runner.run(tmp_path / "source", tmp_path / "out", "--quiet", "--where", "len(other) < 9")
        runner.assert_tidy_end(ended, 1)
        assert "b.parquet failed" in ended.stderr
        assert re.search("UTF-?8", ended.stderr)
    head = json.loads((tmp_path / "out/manifest.json").read_text())["headline"]
    assert (head["jobs"], head["jobs_done"], head["documents"]) == (2, 1, 1)


NULLS = [
    "x > y", "x == y", "x != y", "x < y < 3", "3 > x >= y", "x == 'a'", "x == 1", "x == True", "x + y > 3",
    "-x < y", "x / y > 0", "len(x) > len(y)", "x in ('a', 'b')", "contains(x, 'a')", "x and y", "not x", "x",
    "other > x", "x is not None",
]  # fmt: skip


def test_columns_without_a_type_are_null_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    table = pa.table({"text": ["one", "two"], "x": pa.nulls(2), "y": pa.nulls(2), "other": ["a", "b"]})
    pq.write_table(table, tmp_path / "source/a.parquet")

    joined = " or ".join(f"({text})" for text in NULLS)
    assert documents_of(tmp_path / "none", "--where", joined) == 0
    assert documents_of(tmp_path / "one", "--where", f"other == 'a' or {joined}") == 1
    assert documents_of(tmp_path / "all", "--where", f"({NULLS[0]}) is None and x is None") == 2


def test_only_the_columns_that_are_asked_for_are_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    real = pq.ParquetFile.iter_batches

    def spied(self: Any, *args: Any, columns: list[str], **how: Any) -> Any:
        asked.append(columns)
        return real(self, *args, columns=columns, **how)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spied)
    monkeypatch.setattr(pages, "texts", lambda *_: iter(()))  # Or pyarrow would not be asked at all.
    list(parquet.batches(file, "text"))
    sieved(file, "score > 1 and len(text) > 0 and score < 9")
    assert asked == [["text"], ["text", "score"]]
