"""Lines of JSON: every line a row, read by the letter or refused by number; Python's json is the oracle."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pytest
import zstandard

from fwconvert.errors import ColumnError, SourceError
from fwconvert.recipes import Rules
from fwconvert.sources import filters, lines, reading
from fwconvert.sources.reading import Wanted

A, B = b'{"text": "one"}', b'{"text": "two"}'


def write(folder: Path, content: bytes, name: str = "a.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def read(path: Path, column: str = "text", where: str | None = None) -> list[tuple[int, str]]:
    """Return the documents of a file with their rows; checks what every batch promises."""
    found: list[tuple[int, str]] = []
    rows = 0
    for batch in lines.batches(path, column, chosen(where)):
        batch.texts.validate(full=True)
        assert batch.first_row == rows
        rows += batch.seen
        assert len(batch.rows) + batch.null_rows + batch.empty_rows + batch.filtered_rows == batch.seen
        assert batch.done <= lines.extent(path)
        found += zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
    return found


def chosen(where: str | None) -> filters.Sieve | None:
    rules = Rules("bytes", "", "before", "uint16", "text", 300, 0, "independent", "llmc", "a", 3, where=where)
    return filters.of(rules)


def refusal(path: Path, **how: Any) -> str:
    with pytest.raises(SourceError) as caught:
        read(path, **how)
    assert str(path) in str(caught.value)
    return str(caught.value)


# --- what a line is


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", []),
        (b"\n", []),
        (A, [(0, "one")]),
        (A + b"\n", [(0, "one")]),
        (A + b"\n" + B, [(0, "one"), (1, "two")]),
        (A + b"\r\n" + B + b"\r\n", [(0, "one"), (1, "two")]),
        (b"\n \t\r\n" + A + b"\n\n\n" + B + b"\n\n", [(2, "one"), (5, "two")]),
        (b"\xef\xbb\xbf" + A + b"\n" + B, [(0, "one"), (1, "two")]),
        (b"  " + A + b"  \n\t" + B + b"\t\n", [(0, "one"), (1, "two")]),
        (b'{"text": null}\n{"other": 1}\n{}\n{"text": ""}\n' + A, [(4, "one")]),
        (b'{"text": "one", "text": "two"}', [(0, "two")]),
        (b'{"x": {"text": "no"}, "text": "one", "y": [1, 2.5e3, {"text": 3}]}', [(0, "one")]),
        (b'{"te\\u0078t": "\\ud83d\\ude00 \\u00e9 \\u0000 \\/"}', [(0, "\U0001f600 \xe9 \x00 /")]),
        ('{"text": "\u2028 \x85 \x7f \U0001f600"}'.encode(), [(0, "\u2028 \x85 \x7f \U0001f600")]),
        (b'{"n": 1e400, "m": 123456789012345678901234567890, "text": "one"}', [(0, "one")]),
    ],
)  # fmt: skip
def test_a_row_is_a_line(tmp_path: Path, content: bytes, wanted: list[tuple[int, str]]) -> None:
    assert read(write(tmp_path, content)) == wanted
    assert read(write(tmp_path, gzip.compress(content), "a.jsonl.gz")) == wanted
    assert read(write(tmp_path, zstandard.ZstdCompressor().compress(content), "a.json.zst")) == wanted


BAD = {
    "no object": b'"one"',
    "a list": b"[]",
    "null": b"null",
    "two objects": A + b" " + B,
    "half an object": A[:-1],
    "a comma too many": b'{"text": "one",}',
    "single quotes": b"{'text': 'one'}",
    "a text that is a number": b'{"text": 3}',
    "a text that is true": b'{"text": true}',
    "a text that is a list": b'{"text": ["one"]}',
    "a text that is an object": b'{"text": {"text": "one"}}',
    "NaN": b'{"score": NaN, "text": "one"}',
    "Infinity": b'{"text": "one", "score": -Infinity}',
    "a zero before a number": b'{"text": "one", "score": 01}',
    "a control character": b'{"text": "a\x01b"}',
    "a control character elsewhere": b'{"x": "a\x1fb", "text": "one"}',
    "no escape": b'{"text": "\\q"}',
    "half a surrogate pair": b'{"text": "\\ud83d"}',
    "the other half": b'{"text": "\\ude00 more"}',
    "half a pair elsewhere": b'{"text": "one", "x": "\\ud83d"}',
    "Latin-1": b'{"text": "caf\xe9"}',
    "Latin-1 elsewhere": b'{"name": "caf\xe9", "text": "one"}',
    "Latin-1 in a name": b'{"caf\xe9": 1, "text": "one"}',
    "a surrogate in UTF-8": b'{"text": "\xed\xa0\x80"}',
    "an overlong form": b'{"text": "\xc0\x80"}',
    "a mark in the middle": b"\xef\xbb\xbf" + A,
    "a comment": b"// one",
    "nested without end": b'{"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("row", [1, 9000])
def test_a_bad_line_is_an_error_that_names_it(tmp_path: Path, name: str, row: int) -> None:
    good = json.dumps({"text": "a line that is good", "x": [1, 2]}).encode()
    path = write(tmp_path, b"\n".join([*[good] * row, BAD[name], *[good] * 5]))

    told = refusal(path)

    assert "a source file has a line that cannot be read" in told
    assert f"  line    {row + 1:,}\n" in told


def test_a_list_over_many_lines_is_refused_at_its_first(tmp_path: Path) -> None:
    documents = [{"text": "one"}, {"text": "two"}]
    assert "line    1\n" in refusal(write(tmp_path, json.dumps(documents, indent=1).encode(), "a.json"))


def test_pythons_json_agrees_on_what_a_line_says(tmp_path: Path) -> None:
    """Of random lines, many of them damaged, we read what Python reads, and refuse what it refuses."""
    rng, read_lines, refused = random.Random(3), 0, 0
    pieces = ["a", "\xe9", "\U0001f600", "\\", '"', "\n", "\u2028", " ", "\x00", "text", "}", ","]
    for _ in range(400):
        text = "".join(rng.choices(pieces, k=rng.randrange(8)))
        value: dict[str, Any] = {
            rng.choice(["x", "text", "\xe9"]): text,
            "n": rng.choice([1, -2.5, None, [{}]]),
        }
        line = bytearray(json.dumps(value, ensure_ascii=rng.random() < 0.5).encode())
        if rng.random() < 0.5:
            line[rng.randrange(len(line))] = rng.choice(b'"\\{}[],:0u\xe9 e-.tn')
        raw = bytes(line)
        path = write(tmp_path, A + b"\n" + raw + b"\n")
        try:
            theirs = json.loads(raw.decode(), parse_constant=lambda _: 1 / 0)
        except (ValueError, ZeroDivisionError):
            theirs = None
        try:
            ours = read(path)
        except SourceError:
            refused += 1
            # What Python lets pass: half a surrogate pair, and what is no text.
            half = b"\\u" in raw.lower() or b"\\d" in raw
            assert theirs is None or not isinstance(theirs.get("text"), str | None) or half, raw
        else:
            read_lines += 1
            assert theirs is not None, raw
            wanted = theirs.get("text")
            assert ours == [(0, "one"), *([(1, wanted)] if wanted else [])], raw
    assert min(read_lines, refused) > 80


def test_batches_are_as_large_as_those_of_parquet_and_lines_may_be_longer(tmp_path: Path) -> None:
    texts = [*corpus.documents(0, 9000), "x" * 7_000_000, "y" * 13_000_000, *corpus.documents(9000, 9000)]
    path = write(tmp_path, b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts))

    assert read(path) == [*enumerate(texts)]
    batches = [*lines.batches(path, "text")]
    assert max(batch.seen for batch in batches) == reading.MOST_BATCH_ROWS
    assert batches[-1].done == lines.extent(path) == path.stat().st_size


# --- columns and filters


ROWS = [
    b'{"a": {"b": "path"}, "a.b": "whole"}',
    b'{"a": {"b": "path"}}',
    b'{"a": {"c": "other"}, "x": 1}',
    b'{"a": null}',
    b"{}",
    b"",
    b'{"a": "no object", "a.b": "whole"}',
    b'{"a.b": null, "a": {"b": "hidden"}}',
]


def test_a_path_leads_into_objects_and_a_whole_name_goes_before(tmp_path: Path) -> None:
    path = write(tmp_path, b"\n".join(ROWS))
    assert read(path, "a.b") == [(0, "whole"), (1, "path"), (6, "whole")]
    deep = write(
        tmp_path, b'{"a": {"b": {"c": {"d": "deep"}}}}\n{"a": {"b": {"c": null}}}\n{"a": {"b": null}}'
    )
    assert read(deep, "a.b.c.d") == [(0, "deep")]


@pytest.mark.parametrize(
    "bad", [b'{"a": "text"}', b'{"a": [1]}', b'{"a": {"b": 3}}', b'{"a": {"b": {"c": 1}}}']
)
def test_a_path_that_leads_to_no_text_is_an_error_with_its_line(tmp_path: Path, bad: bytes) -> None:
    assert "  line    3\n" in refusal(write(tmp_path, b"\n".join([ROWS[0], ROWS[1], bad])), column="a.b")


def test_a_column_that_no_line_has_is_refused_with_those_there_are(tmp_path: Path) -> None:
    path = write(tmp_path, b'\n{"body": "one", "url": "x"}\n{"body": "two"}\n')
    with pytest.raises(ColumnError, match=r"(?s)no such text column.*columns +body, url"):
        read(path)
    with pytest.raises(ColumnError, match=r"(?s)no such column.*wanted +scor\n"):
        read(path, "body", where="scor > 1")
    for column, where in (("text", None), ("body", "scor > 1"), ("url.x", None)):
        with pytest.raises(SourceError):
            lines.check_columns(path, str(path), column, chosen(where))
    lines.check_columns(path, str(path), "body", chosen("url is None or url == 'x'"))


def test_the_filter_looks_at_each_line_as_it_is(tmp_path: Path) -> None:
    """Types differ from line to line, and what becomes of one does not depend on its neighbours."""
    values = ["1", "2", "2.5", "null", "-1", "9007", "7.0", "1e3", "2"]
    content = [b'{"text": "row %d", "n": %s}' % (at, value.encode()) for at, value in enumerate(values)]
    content.append(b'{"text": "row 9"}')
    path = write(tmp_path, b"\n".join(content))

    def rows(where: str) -> list[int]:
        return [row for row, _ in read(path, where=where)]

    assert rows("n >= 2") == [1, 2, 5, 6, 7, 8]
    assert rows("n is None") == [3, 9]
    assert rows("n > 4000") == [5]
    assert rows("not n > 1") == [0, 4]
    assert rows("len(text) == 5 and n in (1, 2.5)") == [0, 2]
    assert rows("column('n') * 2 == 5") == [2]


@pytest.mark.parametrize(
    ("line", "where", "told"),
    [
        (b'{"text": "x", "n": "two"}', "n > 1", "a number and a text cannot be compared"),
        (b'{"text": "x", "n": [1]}', "n > 1", "list"),
        (b'{"text": "x", "n": 9223372036854775808}', "n > 1", "too large"),
        (b'{"text": "x", "n": 9223372036854775807}', "n + 1 > 1", "overflow"),
    ],
)
def test_a_line_that_the_filter_cannot_judge_is_named(
    tmp_path: Path, line: bytes, where: str, told: str
) -> None:
    found = refusal(write(tmp_path, b'{"text": "x", "n": 1}\n' + line), where=where)
    assert told in found
    assert "line 2" in found or "lines 1 to 2" in found or "line 1 to 2" in found


# --- looking at single rows, and at samples


def test_a_row_is_found_with_its_id_and_its_url(tmp_path: Path) -> None:
    content = (
        b'{"id": 7, "url": "https://a", "text": "one"}\n\n{"text": "two", "metadata": {"url": "https://b"}}'
    )
    path = write(tmp_path, zstandard.ZstdCompressor().compress(content), "a.jsonl.zst")
    first, third = (lines.read_row(path, str(path), row, "text") for row in (0, 2))
    assert (first.text.to_pylist(), first.id, first.url) == (["one"], "7", "https://a")
    assert (third.text.to_pylist(), third.id, third.url) == (["two"], None, "https://b")
    assert lines.identity(path, 0) == "7"
    assert (lines.identity(path, 1), lines.identity(path, 99)) == ("unknown", "unknown")
    with pytest.raises(SourceError, match="no such row"):
        lines.read_row(path, str(path), 3, "text")


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_samples_together_are_the_file_or_its_beginning(tmp_path: Path, ending: str) -> None:
    rng = np.random.default_rng(4)
    texts = [f"{number} " + "x" * int(rng.integers(1, 400)) for number in range(3000)]
    content = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
    path = write(tmp_path, gzip.compress(content) if "gz" in ending else content, f"a{ending}")
    found, seen = [], set[int]()

    def is_new(part: int) -> bool:
        size = len(seen)
        seen.add(part)
        return len(seen) > size

    for at in range(100):
        one = lines.sample(path, str(path), Wanted(at / 100, "text", None, 50_000), is_new)
        if one is not None:
            assert abs(one.size.rows - 3000) < 300
            assert one.size.text_bytes == pytest.approx(len(content), rel=0.1)
            found += [text for batch in one.batches for text in batch.texts.to_pylist()]
    assert len({*found}) == len(found) >= (2400 if ending == ".jsonl" else 100)
    assert {*found} <= {*texts}


def test_labels_are_of_the_first_rows_and_never_an_error(tmp_path: Path) -> None:
    path = write(
        tmp_path, b'{"url": "https://a", "score": 1}\n{"metadata": {"url": "https://b"}, "score": 2.5}\n'
    )
    assert lines.first_labels(path, 10) == (["https://a", "https://b"], [1, 2.5])
    assert lines.first_labels(path, 1) == (["https://a"], [1])
