"""A record half understood would mean wrong bytes later: reading refuses, writing is canonical."""

import hashlib
import importlib
import importlib.util
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from examples import RULES, SOURCE, rules_with, unhurried
from hypothesis import given, settings
from hypothesis import strategies as st

import fwconvert
from fwconvert import records
from fwconvert.errors import ManifestError
from fwconvert.recipes import Recipe
from fwconvert.records import Part, Record


class Bit(Part, frozen=True):
    size: int
    note: str | None = None


class Sample(Record, frozen=True, tag="sample 1"):
    name: str
    count: int
    bits: tuple[Bit, ...]
    pairs: tuple[tuple[int, int], ...]
    versions: dict[str, str]


SAMPLE = Sample("näme", 7, (Bit(1), Bit(2, "zwei")), ((0, 1), (2, 3)), {"a": "2"})
# Written by hand: `format` comes first, then the fields as they are declared, nothing between them.
SAMPLE_JSON = (
    '{"format":"sample 1","name":"näme","count":7,"bits":[{"size":1,"note":null},{"size":2,"note":"zwei"}],'
    '"pairs":[[0,1],[2,3]],"versions":{"a":"2"}}'
)
PLAIN = json.loads(SAMPLE_JSON)

BAD = {
    "empty file": b"",
    "only white space": b" \n",
    "not JSON": b"<html>Not Found</html>",
    "cut short": SAMPLE_JSON.encode()[:-1],
    "cut in the middle": SAMPLE_JSON.encode()[:60],
    "something behind the end": SAMPLE_JSON.encode() + b"{}",
    "nul bytes, as a crash leaves them": bytes(300),
    "byte order mark": b"\xef\xbb\xbf" + SAMPLE_JSON.encode(),
    "utf-16": SAMPLE_JSON.encode("utf-16"),
    "no object": b"[1, 2]",
    "null": b"null",
    "a number": b"12",
    "invalid UTF-8 in a value": SAMPLE_JSON.encode().replace("ä".encode(), b"\xff"),
    "invalid UTF-8 in a key": SAMPLE_JSON.encode().replace(b'"name"', b'"na\xffe"'),
    "invalid UTF-8 in the format": SAMPLE_JSON.encode().replace(b"sample 1", b"sample \xff"),
    "half a surrogate pair": SAMPLE_JSON.encode().replace("ä".encode(), rb"\ud800"),
    "deep nesting": b'{"format":"sample 1","bits":' + b"[" * 1_000_000,
    "deep nesting in an unknown key": b'{"x":' + b'{"x":' * 500_000,
    "an infinite number": SAMPLE_JSON.encode().replace(b":7", b":1e400"),
    "a whole number of 10,000 digits": SAMPLE_JSON.encode().replace(b":7", b":" + b"9" * 10_000),
    "a number with a part": SAMPLE_JSON.encode().replace(b":7", b":7.5"),
    "not a number": SAMPLE_JSON.encode().replace(b":7", b":NaN"),
}


def changed(**changes: object) -> bytes:
    return json.dumps({**PLAIN, **changes}).encode()


def without(key: str) -> bytes:
    return json.dumps({name: value for name, value in PLAIN.items() if name != key}).encode()


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD.keys())
def test_what_is_not_a_record_is_refused(raw: bytes) -> None:
    with pytest.raises(ManifestError, match="receipts/x"):
        records.decode(raw, Sample, "receipts/x")


@pytest.mark.parametrize(
    "raw",
    [
        changed(count="7"),
        changed(count=True),
        changed(count=None),
        changed(count=[7]),
        changed(count=7.0),
        changed(name=7),
        changed(name=None),
        changed(bits={}),
        changed(bits=[1]),
        changed(bits=[{"size": "1"}]),
        changed(bits=[{}]),
        changed(pairs=[[1, 2, 3]]),
        changed(pairs=[[1]]),
        changed(versions={"a": 1}),
        changed(versions=[]),
    ],
)
def test_a_wrong_type_is_refused(raw: bytes) -> None:
    with pytest.raises(ManifestError):
        records.decode(raw, Sample, "x")


@pytest.mark.parametrize("key", ["name", "count", "bits", "pairs", "versions", "format"])
def test_a_missing_key_is_refused_and_named(key: str) -> None:
    with pytest.raises(ManifestError, match=key):
        records.decode(without(key), Sample, "x")


@pytest.mark.parametrize("raw", [changed(colour="red"), changed(bits=[{"size": 1, "colour": "red"}])])
def test_an_unknown_key_is_refused_and_named(raw: bytes) -> None:
    with pytest.raises(ManifestError, match="colour"):
        records.decode(raw, Sample, "x")


@pytest.mark.parametrize("other", ["sample 2", "sample", "", "Sample 1", "sample 1 "])
def test_another_format_is_refused_before_its_fields_are_looked_at(other: str) -> None:
    raw = json.dumps({"format": other, "fields": "of the future"}).encode()

    with pytest.raises(ManifestError) as caught:
        records.decode(raw, Sample, "receipts/x")

    assert "receipts/x" in str(caught.value)
    assert "sample 1" in str(caught.value)
    assert f"found   {other}" in str(caught.value)
    assert "use the version of fwconvert that wrote it" in str(caught.value)


def test_writing_is_compact_and_in_the_order_of_declaration() -> None:
    assert records.encode(SAMPLE) == SAMPLE_JSON.encode()
    assert records.digest(SAMPLE) == hashlib.sha256(SAMPLE_JSON.encode()).hexdigest()


def test_equal_records_are_equal_bytes() -> None:
    one = Sample("x", 1, (), (), {"a": "1", "b": "2"})
    other = Sample("x", 1, (), (), {"b": "2", "a": "1"})

    assert one == other
    assert records.encode(one) == records.encode(other)


def test_a_record_read_in_any_layout_is_the_record_that_was_written() -> None:
    for raw in (records.encode(SAMPLE), json.dumps(PLAIN, indent=3).encode(), json.dumps(PLAIN).encode()):
        assert records.decode(raw, Sample, "x") == SAMPLE


def test_lines_give_every_element_of_a_list_a_line_of_its_own() -> None:
    text = records.lines(records.fields(SAMPLE)).decode()

    assert json.loads(text) == PLAIN
    assert records.decode(text.encode(), Sample, "x") == SAMPLE
    assert text.splitlines() == [
        "{",
        '"format": "sample 1",',
        '"name": "näme",',
        '"count": 7,',
        '"bits": [',
        '{"size":1,"note":null},',
        '{"size":2,"note":"zwei"}',
        "],",
        '"pairs": [',
        "[0,1],",
        "[2,3]",
        "],",
        '"versions": {"a":"2"}',
        "}",
    ]


def test_lines_keep_an_empty_list_on_its_line() -> None:
    assert records.lines({"none": (), "one": ["a\nb"]}) == b'{\n"none": [],\n"one": [\n"a\\nb"\n]\n}\n'


def test_fields_begin_with_the_format() -> None:
    assert list(records.fields(SAMPLE)) == ["format", "name", "count", "bits", "pairs", "versions"]
    assert records.fields(SAMPLE)["format"] == records.format_of(Sample) == "sample 1"


@pytest.mark.parametrize("make", ["missing", "folder", "too large"])
def test_a_file_that_cannot_be_a_record_is_refused_by_name(tmp_path: Path, make: str) -> None:
    path = tmp_path / "record.json"
    if make == "folder":
        path.mkdir()
    elif make == "too large":
        with path.open("wb") as file:  # A hole: it takes no disk, and must not be read into memory.
            file.truncate(records.MOST_BYTES + 1)

    with pytest.raises(ManifestError, match=r"record\.json"):
        records.read(path, Sample)


def test_a_file_is_read_as_a_record(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(SAMPLE_JSON.encode() + b"\n")

    assert records.read(path, Sample) == SAMPLE


def decoded(raw: bytes) -> Sample | None:
    """Return the record, or None if it was refused; any other exception is a failure of the test."""
    try:
        return records.decode(raw, Sample, "x")
    except ManifestError as error:
        assert "x" in str(error)  # noqa: PT017  # a refusal must name the file
        return None


@given(st.binary(max_size=400))
@unhurried
def test_random_bytes_are_refused_and_never_raise_anything_else(raw: bytes) -> None:
    assert decoded(raw) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(sorted(PLAIN)),
)
@unhurried
def test_random_values_in_a_record_are_refused_or_of_the_declared_type(value: object, key: str) -> None:
    found = decoded(json.dumps({**PLAIN, key: value}).encode())

    if found is not None:
        assert json.loads(records.encode(found))[key] == value or key == "bits"  # there a key may be left out


@given(st.data())
@settings(unhurried, max_examples=400)
def test_a_mutated_record_is_refused_or_read_but_never_raises_anything_else(data: st.DataObject) -> None:
    raw = bytearray(SAMPLE_JSON.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        length = data.draw(st.integers(0, 6))
        raw[at : at + length] = data.draw(st.binary(max_size=6))

    found = decoded(bytes(raw))

    assert found is None or isinstance(found, Sample)


def structs(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from structs(inner)


def test_what_is_left_out_does_not_depend_on_where_a_value_comes_from() -> None:
    """msgspec leaves a default out if the value is the same object, not if it is equal."""
    for found in pkgutil.walk_packages(fwconvert.__path__, "fwconvert."):
        if found.name not in {"fwconvert.__main__", "fwconvert.loader.torch"} and not (
            found.name == "fwconvert.tokens.sentence_pieces" and not importlib.util.find_spec("sentencepiece")
        ):
            importlib.import_module(found.name)
    omitting = [kind for kind in structs(records.Part) if kind.__struct_config__.omit_defaults]
    assert {kind.__name__ for kind in omitting} >= {"Rules", "Headline", "JobLine", "ShardLine", "Counts"}

    for kind in omitting:
        # Of these values Python has one each, wherever they come from.
        one_each = all(default in (None, False, 0, ()) for default in kind.__struct_defaults__)
        assert one_each or hasattr(kind, "__post_init__"), kind


@pytest.mark.parametrize("last", ["keep", "xkeep"[1:], json.loads('"keep"')])
def test_a_word_is_equal_to_itself_wherever_it_comes_from(last: Any) -> None:
    rules = rules_with(last=last)

    assert records.encode(rules) == records.encode(RULES)
    assert Recipe(SOURCE, rules).recipe_id == Recipe(SOURCE, RULES).recipe_id
