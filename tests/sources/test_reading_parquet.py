"""Any parquet that pyarrow reads gives its text; anything else is a SourceError that names the file."""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import child
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from examples import unhurried
from hypothesis import given, settings
from hypothesis import strategies as st

from fwconvert.errors import SourceError, Stopped
from fwconvert.sources import parquet, reading
from fwconvert.sources.catalog import Size

posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX")

TEXTS: list[str | None] = [
    "document 0", None, "", "emoji 🦜 and é", "", "<|endoftext|> literally", None, "a\0b\r\nc", " ",
    *(f"document {row} " * (row % 5) or None for row in range(9, 40)),
]  # fmt: skip

Found = list[tuple[int, str]]


def write(path: Path, column: Any, **options: Any) -> Path:
    """Write a file whose column `text` is `column`, between two columns that must not be read."""
    length = len(column)
    table = pa.table({"id": pa.array(range(length)), "text": column, "url": ["wrong"] * length})
    pq.write_table(table, path, **options)
    return path


def documents(path: Path, column: str = "text") -> Found:
    return [
        pair
        for batch in parquet.batches(path, column)
        for pair in zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
    ]


def naive(texts: Sequence[str | None]) -> Found:
    return [(row, text) for row, text in enumerate(texts) if text]


def refused(path: Path, column: str = "text") -> str:
    """Return what the SourceError says, which must name the file."""
    with pytest.raises(SourceError) as caught:
        documents(path, column)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_every_codec_row_group_size_and_page_version_is_read(
    tmp_path: Path, codec: str, rows: int, version: str, dictionary: bool
) -> None:
    path = write(
        tmp_path / "x.parquet",
        pa.array(TEXTS, pa.string()),
        compression=codec,
        row_group_size=rows,
        data_page_version=version,
        use_dictionary=dictionary,
        data_page_size=100,
    )

    assert documents(path) == naive(TEXTS)
    assert parquet.extent(path) == len(TEXTS)


def encoded(texts: Sequence[str | None]) -> list[bytes | None]:
    return [None if text is None else text.encode() for text in texts]


COLUMNS: dict[str, Callable[[Sequence[str | None]], Any]] = {
    "string": lambda texts: pa.array(texts, pa.string()),
    "large_string": lambda texts: pa.array(texts, pa.large_string()),
    "string_view": lambda texts: pa.array(texts, pa.string_view()),
    "binary": lambda texts: pa.array(encoded(texts), pa.binary()),
    "large_binary": lambda texts: pa.array(encoded(texts), pa.large_binary()),
    "binary_view": lambda texts: pa.array(encoded(texts), pa.binary_view()),
    "dictionary of string": lambda texts: pa.array(texts, pa.string()).dictionary_encode(),
    "dictionary of large_string": lambda texts: pa.array(texts, pa.large_string()).dictionary_encode(),
    "dictionary of binary": lambda texts: pa.array(encoded(texts), pa.binary()).dictionary_encode(),
    "dictionary with small indices": lambda texts: (
        pa.array(texts, pa.string()).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
    ),
    "several chunks": lambda texts: pa.chunked_array([texts[:10], [], texts[10:]], pa.string()),
    "a slice": lambda texts: pa.array(["before", *texts, "behind"], pa.string()).slice(1, len(texts)),
}


@pytest.mark.parametrize("make", COLUMNS.values(), ids=COLUMNS.keys())
@pytest.mark.parametrize("store_schema", [True, False])
@pytest.mark.parametrize("rows", [7, 1000])
def test_every_type_of_text_column_is_read(
    tmp_path: Path, make: Callable[[Sequence[str | None]], Any], store_schema: bool, rows: int
) -> None:
    path = write(tmp_path / "x.parquet", make(TEXTS), store_schema=store_schema, row_group_size=rows)

    assert documents(path) == naive(TEXTS)
    assert parquet.footer(path).rows == len(TEXTS)


def test_a_dictionary_column_comes_back_as_a_dictionary_and_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", COLUMNS["dictionary of string"](TEXTS))

    assert pa.types.is_dictionary(pq.ParquetFile(path).schema_arrow.field("text").type)
    assert documents(path) == naive(TEXTS)


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_every_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    column = pa.array(TEXTS, pa.string())
    path = write(tmp_path / "x.parquet", column, use_dictionary=False, column_encoding={"text": encoding})

    assert documents(path) == naive(TEXTS)


@given(
    texts=st.lists(st.none() | st.text(max_size=8), max_size=60),
    rows=st.integers(1, 20),
    step=st.integers(1, 9),
)
@settings(unhurried, max_examples=60)
def test_rows_and_counts_are_right_with_nulls_and_empty_texts_anywhere(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str | None], rows: int, step: int
) -> None:
    path = tmp_path_factory.mktemp("rows") / "x.parquet"
    write(path, pa.array(texts, pa.string()), row_group_size=rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "MOST_BATCH_ROWS", step)
        batches = list(parquet.batches(path, "text"))

    found = [pair for b in batches for pair in zip(b.rows.tolist(), b.texts.to_pylist(), strict=True)]
    assert found == naive(texts)
    assert sum(batch.seen for batch in batches) == len(texts)
    assert sum(batch.null_rows for batch in batches) == texts.count(None)
    assert sum(batch.empty_rows for batch in batches) == texts.count("")
    assert sum(batch.text_bytes for batch in batches) == sum(len((text or "").encode()) for text in texts)
    assert all(batch.texts.null_count == 0 for batch in batches)
    assert all(batch.rows.dtype == np.int64 for batch in batches)


@pytest.mark.parametrize(("size", "rows"), [(3, 8192), (1000, 6150), (100_000, 62), (10_000_000, 1)])
def test_a_batch_has_about_as_much_text_whatever_the_documents_are(
    size: int, rows: int, tmp_path: Path
) -> None:
    texts = [f"{number:03}".ljust(size, "x") for number in range(30_000_000 // max(size, 100_000))]
    path = write(tmp_path / "x.parquet", pa.array(texts), compression="none")
    found = parquet.batch_rows(pq.read_metadata(path))
    assert rows * 0.95 <= found <= rows * 1.05


@pytest.mark.parametrize("large", [False, True])
def test_texts_come_as_string_or_large_string(tmp_path: Path, large: bool) -> None:
    kind = pa.large_string() if large else pa.string()
    path = write(tmp_path / "x.parquet", pa.array(TEXTS, kind))

    assert {batch.texts.type for batch in parquet.batches(path, "text")} == {kind}


def test_a_text_longer_than_a_page_and_a_buffer_is_whole(tmp_path: Path) -> None:
    texts = ["short", "long " * 1_000_000, "short again"]
    path = write(tmp_path / "x.parquet", pa.array(texts), compression="zstd", data_page_size=1000)

    assert documents(path) == naive(texts)


@pytest.mark.parametrize(
    ("column", "nulls", "empties"),
    [
        (pa.array([], pa.string()), 0, 0),
        (pa.array([None] * 9, pa.string()), 9, 0),
        (pa.nulls(9), 9, 0),
        (pa.nulls(0), 0, 0),
        (pa.array([""] * 9, pa.string()), 0, 9),
        (pa.array(["", None] * 4, pa.string()), 4, 4),
        (pa.array(["", None] * 4, pa.string()).dictionary_encode(), 4, 4),
        (pa.array([None] * 9, pa.string()).dictionary_encode(), 9, 0),
    ],
)
def test_a_file_without_a_document_is_read_and_counted(
    tmp_path: Path, column: Any, nulls: int, empties: int
) -> None:
    path = write(tmp_path / "x.parquet", column, row_group_size=4)
    batches = list(parquet.batches(path, "text"))

    assert documents(path) == []
    assert sum(batch.seen for batch in batches) == len(column) == parquet.extent(path)
    assert sum(batch.null_rows for batch in batches) == nulls
    assert sum(batch.empty_rows for batch in batches) == empties
    assert sum(batch.text_bytes for batch in batches) == 0


def test_a_file_without_a_row_group_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())])):
        pass

    assert pq.ParquetFile(path).metadata.num_row_groups == 0
    assert documents(path) == []
    assert parquet.footer(path) == Size(0, 0)


def test_a_file_with_an_empty_row_group_between_others_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for texts in (["a"], [], ["b", None, "c"]):
            writer.write_table(pa.table({"text": texts}, schema))

    assert documents(path) == [(0, "a"), (1, "b"), (3, "c")]


NEIGHBOURS: dict[str, tuple[str, dict[str, Any]]] = {
    "a dot in the name": ("a.b", {"a.b": ["right"]}),
    "beginning with a dot": (".text", {".text": ["right"], "text": ["wrong"]}),
    "a longer name with a dot before it": ("text", {"text.clean": ["wrong"], "text": ["right"]}),
    "a longer name with a dot behind it": ("text", {"text": ["right"], "text.clean": ["wrong"]}),
    "a shorter name before it": ("text.clean", {"text": ["wrong"], "text.clean": ["right"]}),
    "a struct behind it": ("a.b", {"a.b": ["right"], "a": pa.array([{"b": "wrong"}])}),
    "a struct before it": ("a.b", {"a": pa.array([{"b": "wrong" * 99}]), "a.b": ["right"]}),
    "a struct with such a member": ("text", {"meta": pa.array([{"text": "wrong"}]), "text": ["right"]}),
    "a list before it": ("text", {"tags": pa.array([["wrong", "wrong"]]), "text": ["right"]}),
    "a map before it": (
        "text",
        {"map": pa.array([[("text", "wrong")]], pa.map_(pa.string(), pa.string())), "text": ["right"]},
    ),
    "another case": ("text", {"Text": ["wrong"], "text": ["right"], "TEXT": ["wrong"]}),
    "spaces": (" te xt ", {"text": ["wrong"], " te xt ": ["right"]}),
    "not ASCII": ("текст", {"text": ["wrong"], "текст": ["right"]}),
    "an empty name": ("", {"text": ["wrong"], "": ["right"]}),
    "a backtick": ("`a`", {"a": ["wrong"], "`a`": ["right"]}),
}


@pytest.mark.parametrize(("column", "columns"), NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
def test_the_column_is_found_by_its_exact_name_among_any_neighbours(
    tmp_path: Path, column: str, columns: dict[str, Any]
) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), path, use_dictionary=False)

    assert documents(path, column) == [(0, "right")]


WRONG_COLUMNS: dict[str, Any] = {
    "missing": pa.table({"body": ["x"]}),
    "another case": pa.table({"Text": ["x"]}),
    "no columns at all": pa.table({}),
    "a prefix of the name": pa.table({"tex": ["x"]}),
    "whole numbers": pa.table({"text": [1, 2]}),
    "numbers": pa.table({"text": [1.5]}),
    "truth": pa.table({"text": [True]}),
    "times": pa.table({"text": pa.array([0], pa.timestamp("ms"))}),
    "lists": pa.table({"text": [["x"]]}),
    "a struct": pa.table({"text": pa.array([{"text": "x"}])}),
    "a dictionary of numbers": pa.table({"text": pa.array([1, 1]).dictionary_encode()}),
    "the member of a struct": pa.table({"a": pa.array([{"text": "x"}])}),
    "twice": pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]),
}


@pytest.mark.parametrize("table", WRONG_COLUMNS.values(), ids=WRONG_COLUMNS.keys())
def test_a_missing_or_unfit_column_is_refused_with_those_that_are_there(tmp_path: Path, table: Any) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table, path)

    told = refused(path)

    assert "--text-column" in told
    assert all(name in told for name in table.column_names)


def test_a_path_leads_into_a_struct_and_a_whole_name_goes_before(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    struct = pa.array([{"b": "inner", "c": 1}, None, {"b": None, "c": 2}, {"b": "last", "c": 3}])
    pq.write_table(pa.table({"a": struct}), path)

    assert documents(path, "a.b") == [(0, "inner"), (3, "last")]
    for wrong in ("a", "a.c", "a.d", "a.b.c", "b"):
        assert "--text-column" in refused(path, wrong)
    pq.write_table(pa.table({"a": struct, "a.b": ["whole", "w", "w", "w"]}), path)
    assert documents(path, "a.b")[0] == (0, "whole")


GOOD_TEXTS = [f"document {number} " * 9 for number in range(500)]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "x.parquet"
    return write(path, pa.array(GOOD_TEXTS), row_group_size=100, compression="snappy").read_bytes()


NOT_PARQUET: dict[str, Callable[[bytes], bytes]] = {
    "an empty file": lambda _: b"",
    "three bytes": lambda _: b"PAR",
    "only the magic": lambda _: b"PAR1",
    "two magics": lambda _: b"PAR1PAR1",
    "an empty footer": lambda _: b"PAR1\0\0\0\0PAR1",
    "a footer longer than the file": lambda raw: raw[:-8] + b"\xff\xff\xff\x7fPAR1",
    "a negative footer length": lambda raw: raw[:-8] + b"\xff\xff\xff\xffPAR1",
    "an encrypted footer": lambda raw: b"PARE" + raw[4:-4] + b"PARE",
    "HTML": lambda _: b"<!doctype html><title>404</title>" * 20,
    "a pointer to the file": lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    "zeros": lambda raw: bytes(len(raw)),
    "cut by a byte": lambda raw: raw[:-1],
    "cut in half": lambda raw: raw[: len(raw) // 2],
    "without its first half": lambda raw: raw[len(raw) // 2 :],
    "a footer of zeros": lambda raw: raw[:-1000] + bytes(992) + raw[-8:],
    "pages of zeros": lambda raw: raw[:4] + bytes(len(raw) // 2) + raw[4 + len(raw) // 2 :],
    "pages of noise": lambda raw: raw[:4] + b"\xaa\x55" * (len(raw) // 4) + raw[4 + len(raw) // 4 * 2 :],
    "a byte missing in the middle": lambda raw: raw[: len(raw) // 2] + raw[len(raw) // 2 + 1 :],
}


@pytest.mark.parametrize("spoil", NOT_PARQUET.values(), ids=NOT_PARQUET.keys())
def test_a_file_that_is_not_parquet_or_damaged_is_refused(
    tmp_path: Path, good: bytes, spoil: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(spoil(good))

    assert "good copy" in refused(path)


@pytest.mark.parametrize("place", ["missing", "a folder"])
def test_what_is_not_a_file_is_refused(tmp_path: Path, place: str) -> None:
    path = tmp_path / "x.parquet"
    if place == "a folder":
        path.mkdir()

    refused(path)
    with pytest.raises(SourceError, match=r"x\.parquet"):
        parquet.extent(path)
    with pytest.raises(SourceError, match=r"x\.parquet"):
        parquet.footer(path)
    with pytest.raises(SourceError, match=r"x\.parquet"):
        reading.prove(path, lambda: None)


def not_utf8(kind: Any) -> Any:
    """Return an array of `kind` whose second value is not UTF-8, unbeknown to Arrow."""
    large = kind in {pa.large_string(), pa.large_binary()}
    values = pa.array([b"good", b"bad \xff\xfe", b"good"], pa.large_binary() if large else pa.binary())
    return pa.Array.from_buffers(kind, len(values), values.buffers())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("store_schema", [True, False])
def test_text_that_is_not_utf8_is_refused(tmp_path: Path, kind: Any, store_schema: bool) -> None:
    path = write(tmp_path / "x.parquet", not_utf8(kind), store_schema=store_schema)

    assert "not UTF-8" in refused(path)


def test_a_dictionary_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 2, 1, 0]), not_utf8(pa.string()))
    path = write(tmp_path / "x.parquet", column)

    assert "UTF" in refused(path)


INVALID_UTF8 = {
    "a continuation": b"\x80",
    "overlong": b"\xc0\xaf",
    "overlong in three bytes": b"\xe0\x80\xaf",
    "a surrogate": b"\xed\xa0\x80",
    "above Unicode": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80",
    "cut short": b"\xc3",
}


@pytest.mark.parametrize("bad", INVALID_UTF8.values(), ids=INVALID_UTF8.keys())
def test_no_kind_of_invalid_utf8_passes(tmp_path: Path, bad: bytes) -> None:
    for kind in (pa.string(), pa.binary()):
        values = pa.array([b"good", b"a" + bad], pa.binary())
        column = pa.Array.from_buffers(kind, 2, values.buffers())
        assert "not UTF-8" in refused(write(tmp_path / "x.parquet", column))


def test_the_rows_of_invalid_text_are_named_and_those_before_it_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MOST_BATCH_ROWS", 2048)
    values = [b"good"] * 5000
    values[3000] = b"\xff"
    path = write(tmp_path / "x.parquet", pa.array(values, pa.binary()))
    seen: list[int] = []

    with pytest.raises(SourceError) as caught:
        seen.extend(batch.seen for batch in parquet.batches(path, "text"))

    first = sum(seen)
    assert first == 2048
    assert f"{first:,} to " in str(caught.value)


def test_two_halves_of_a_character_in_two_rows_are_no_text(tmp_path: Path) -> None:
    # The value buffer as a whole is valid UTF-8; the rows are not.
    path = write(tmp_path / "x.parquet", pa.array([b"a\xc3", b"\xa9b"], pa.binary()))

    assert "not UTF-8" in refused(path)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_a_flipped_bit_in_a_page_with_a_checksum_is_refused(
    tmp_path: Path, version: str, codec: str, dictionary: bool
) -> None:
    path = tmp_path / "x.parquet"
    texts = [f"document {number} " * 9 for number in range(40)]
    write(
        path,
        pa.array(texts),
        write_page_checksum=True,
        data_page_version=version,
        compression=codec,
        use_dictionary=dictionary,
        write_statistics=False,
    )
    good = path.read_bytes()
    assert documents(path) == naive(texts)
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    first = column.dictionary_page_offset or column.data_page_offset
    page_end = column.data_page_offset if dictionary else first + column.total_compressed_size

    # A page's header has less than 60 bytes here; what follows is content, under the checksum.
    for at in range(first + 60, page_end, (page_end - first) // 25):
        damaged = bytearray(good)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        assert "CRC" in refused(path)


def test_no_flipped_bit_of_a_file_raises_anything_but_a_source_error(tmp_path: Path) -> None:
    # In a process of its own: a library that ends the process is what this looks for.
    code = """
        import sys
        from pathlib import Path
        from fwconvert.sources import parquet, reading
        from fwconvert.errors import SourceError
        path = Path(sys.argv[1])
        good = path.read_bytes()
        for at in range(4, len(good)):
            damaged = bytearray(good)
            damaged[at] ^= 1 << at % 8
            path.write_bytes(damaged)
            try:
                for batch in parquet.batches(path, "text"):
                    batch.texts.validate(full=True)
            except SourceError as error:
                assert str(path) in str(error)
        print("survived")
    """
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path, compression="zstd", store_schema=False)

    assert child.run(code, path) == "survived\n"


def test_no_flipped_bit_of_a_footer_raises_anything_but_a_source_error(tmp_path: Path) -> None:
    # The driver itself looks at footers, before anything is proven: what ends this process ends the run.
    code = """
        import sys
        from pathlib import Path
        from fwconvert.sources import parquet, reading
        from fwconvert.errors import SourceError
        path = Path(sys.argv[1])
        good = path.read_bytes()
        begin = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
        for at in range(begin, len(good)):
            for bit in range(8):
                damaged = bytearray(good)
                damaged[at] ^= 1 << bit
                path.write_bytes(damaged)
                for look in (parquet.extent, parquet.footer):
                    try:
                        look(path)
                    except SourceError as error:
                        assert str(path) in str(error)
        print("survived")
    """
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path, compression="snappy", store_schema=False)

    assert child.run(code, path) == "survived\n"


def test_a_footer_that_promises_other_rows_than_there_are_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a"] * 64}), path)
    raw = path.read_bytes()
    begin = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    # In thrift's compact protocol num_rows is an i64 behind the schema: 0x16, then the zigzag number.
    at = raw.index(b"\x16\x80\x01", begin)
    path.write_bytes(raw[:at] + b"\x16\x82\x01" + raw[at + 3 :])
    assert parquet.extent(path) == 65

    told = refused(path)

    assert "65" in told
    assert "64" in told


def test_a_footer_says_how_much_text_there_is(tmp_path: Path) -> None:
    texts = [f"{number:09d}" for number in range(1000)]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": texts}), path, use_dictionary=False, row_group_size=300)

    found = parquet.footer(path)

    assert found.rows == 1000
    # Plain pages hold four bytes of length and the text for each row, and little else.
    assert 13_000 <= found.text_bytes <= 13_000 * 1.05


def test_a_reason_is_one_line_and_short(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"\n".join([b"junk"] * 500))

    lines = refused(path).splitlines()

    assert [line.split()[0] for line in lines[1:]] == ["file", "reason", "->"]
    assert all(len(line) < 600 for line in lines)


def test_a_file_is_proven_by_its_sha256_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "x"
    content = bytes(range(256)) * 40_000
    path.write_bytes(content)
    ticks: list[None] = []

    proof = reading.prove(path, lambda: ticks.append(None))

    assert proof.sha256 == hashlib.sha256(content).hexdigest()
    assert proof.bytes == len(content)
    assert proof.mtime_ns == path.stat().st_mtime_ns
    assert len(ticks) == 3  # 10 MB in steps of 4 MiB


def test_proving_stops_when_the_tick_raises(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"content")

    def stop() -> None:
        raise Stopped("stopped by the user")

    with pytest.raises(Stopped):
        reading.prove(tmp_path / "x", stop)


@pytest.mark.parametrize("change", ["longer", "touched", "gone"])
def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path, change: str) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"content")
    os.utime(path, ns=(10**18, 10**18))
    proof = reading.prove(path, lambda: None)
    reading.unchanged(path, proof)

    if change == "longer":
        path.write_bytes(b"content and more")
        os.utime(path, ns=(10**18, 10**18))
    elif change == "touched":
        os.utime(path, ns=(10**18, 10**18 + 1_000_000_000))
    else:
        path.unlink()

    with pytest.raises(SourceError, match=r"x\.parquet"):
        reading.unchanged(path, proof)


MEASURE = """
    import resource, sys
    from pathlib import Path
    from fwconvert.sources import parquet, reading

    def peak():
        # On Linux getrusage begins with the size of the process that started this one.
        if sys.platform == "linux":
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    before, rows, text_bytes = peak(), 0, 0
    for batch in parquet.batches(Path(sys.argv[1]), "text"):
        rows += len(batch.rows)
        text_bytes += batch.text_bytes
    print(rows, text_bytes, peak() - before)
"""


@posix
@pytest.mark.parametrize("dictionary", [True, False])
def test_memory_does_not_grow_with_a_row_group(tmp_path: Path, dictionary: bool) -> None:
    path = tmp_path / "x.parquet"
    filler = "the text of a document goes on and on, and then it goes on. " * 125
    numbers = pa.array(range(40_000)).cast(pa.string())
    texts = pc.binary_join_element_wise("document", numbers, filler, " ")
    write(path, texts, row_group_size=len(texts), compression="snappy", use_dictionary=dictionary)
    assert pq.ParquetFile(path).metadata.num_row_groups == 1

    rows, text_bytes, growth = map(int, child.run(MEASURE, path).split())

    assert rows == len(texts)
    assert text_bytes == sum(len(f"document {number} {filler}") for number in range(40_000)) > 300_000_000
    assert growth < 150_000_000
