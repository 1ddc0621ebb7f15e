"""What is read page by page is what pyarrow reads; what cannot be read so is left to it, to the row."""

import io
import random
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from examples import unhurried
from hypothesis import given, settings
from hypothesis import strategies as st

from fwconvert.sources import pages, parquet

ALL = 2**62


def write(column: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    table = pa.table({"id": pa.array(range(len(column))), "text": column})
    pq.write_table(table, file, **options)
    return file.getvalue()


class Raw(io.BytesIO, io.RawIOBase):
    """Bytes as a file that is read without a buffer."""


def by_pages(content: bytes, most_bytes: int = ALL, most_rows: int = ALL) -> list[pa.Array]:
    metadata = pq.read_metadata(io.BytesIO(content))
    return list(pages.texts(Raw(content), metadata, "text", most_bytes, most_rows))


def joined(batches: Sequence[pa.Array]) -> list[bytes]:
    return [text for batch in batches for text in batch.cast(pa.large_binary()).to_pylist()]


def by_pyarrow(content: bytes) -> list[bytes]:
    column = pq.read_table(io.BytesIO(content), columns=["text"], page_checksum_verification=True)["text"]
    return list(column.cast(pa.large_binary()).to_pylist())


def documents(count: int) -> list[str]:
    """Return texts of many lengths: empty and equal ones, and some so short that a view holds them."""
    chance = random.Random(count)
    made = ["", "a", "equal", "equal", "exactly 12 b", "thirteen byte", "é" * 6, "🦜" * 3]
    while len(made) < count:
        made.append(f"document {len(made)} " * chance.randrange(12))
    return made[:count]


LAYOUTS: dict[str, dict[str, Any]] = {
    "as FineWeb-Edu": {"row_group_size": 1000},
    "plain": {"use_dictionary": False, "row_group_size": 700},
    "a dictionary that overflows into plain pages": {"dictionary_pagesize_limit": 5000},
    "small pages": {"data_page_size": 300, "write_batch_size": 10},
    "small plain pages": {"use_dictionary": False, "data_page_size": 300, "write_batch_size": 10},
    "checksums": {"write_page_checksum": True, "row_group_size": 500},
    "no statistics": {"write_statistics": False},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("required", [False, True])
def test_all_rows_of_the_usual_layouts_are_read_without_pyarrow(layout: str, required: bool) -> None:
    texts = documents(3000)
    schema = pa.schema([pa.field("text", pa.string(), nullable=not required)])
    file = io.BytesIO()
    pq.write_table(pa.table({"text": texts}, schema), file, **LAYOUTS[layout])
    assert joined(by_pages(file.getvalue())) == [text.encode() for text in texts]


def test_a_dictionary_serves_several_pages_and_batches() -> None:
    words = [f"word {number % 50} " * 20 for number in range(5000)]
    content = write(words, data_page_size=200, write_batch_size=100)
    batches = by_pages(content, most_rows=300)
    assert len(batches) > 10
    assert joined(batches) == [word.encode() for word in words]


def test_batches_end_with_the_page_that_fills_them() -> None:
    content = write(["x" * 1000] * 100, use_dictionary=False, data_page_size=5000, write_batch_size=1)
    assert {batch.nbytes // 1000 for batch in by_pages(content, most_bytes=20_000)[:-1]} <= set(range(20, 27))
    assert {len(batch) for batch in by_pages(content, most_rows=10)} <= set(range(1, 11))


def test_a_chunk_larger_than_what_is_read_at_a_time_is_whole() -> None:
    chance = random.Random(7)
    texts = [chance.randbytes(chance.randrange(20_000)).hex() for _ in range(800)]
    content = write(texts, use_dictionary=False)
    assert len(content) > 2 * 4 * 2**20
    assert joined(by_pages(content, most_bytes=10**6)) == [text.encode() for text in texts]


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"compression": "none"},
        {"data_page_version": "2.0"},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY", "id": "PLAIN"}},
    ],
)
def test_other_layouts_are_left_to_pyarrow(options: dict[str, Any]) -> None:
    assert by_pages(write(documents(100), **options)) == []


def test_pyarrow_continues_at_the_first_page_with_a_null(tmp_path: Path) -> None:
    texts: list[str | None] = [*documents(250), None, *documents(400)]
    content = write(texts, row_group_size=100)
    assert len(joined(by_pages(content))) == 200
    path = tmp_path / "some.parquet"
    path.write_bytes(content)
    found = [(batch.rows.tolist(), batch.texts.to_pylist()) for batch in parquet.batches(path, "text")]
    pairs = [pair for rows, found_texts in found for pair in zip(rows, found_texts, strict=True)]
    assert pairs == [(row, text) for row, text in enumerate(texts) if text]


def test_pyarrow_continues_within_a_row_group(tmp_path: Path) -> None:
    texts: list[str | None] = [*documents(950), None, *documents(400)]
    content = write(texts, use_dictionary=False, data_page_size=2000, write_batch_size=10)
    assert 0 < len(joined(by_pages(content))) < 950
    path = tmp_path / "some.parquet"
    path.write_bytes(content)
    batches = list(parquet.batches(path, "text"))
    assert sum(batch.seen for batch in batches) == len(texts)
    assert sum(batch.null_rows for batch in batches) == 1
    assert [text for batch in batches for text in batch.texts.to_pylist()] == [text for text in texts if text]


@unhurried
@given(
    texts=st.lists(st.text(max_size=40), min_size=1, max_size=80),
    group=st.integers(1, 100),
    page=st.integers(1, 400),
    dictionary=st.booleans(),
    most=st.integers(1, 500),
)
def test_what_is_read_is_what_was_written(
    texts: list[str], group: int, page: int, dictionary: bool, most: int
) -> None:
    texts = [text.encode(errors="ignore").decode() for text in texts]
    content = write(
        pa.array(texts, pa.string()), row_group_size=group, data_page_size=page, write_batch_size=3,
        use_dictionary=dictionary,
    )  # fmt: skip
    found = joined(by_pages(content, most_bytes=most))
    # A tiny page may be as large compressed as not, and is left to pyarrow then, with all that follow.
    assert found == [text.encode() for text in texts][: len(found)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "some.parquet"
        path.write_bytes(content)
        whole = [text for batch in parquet.batches(path, "text") for text in batch.texts.to_pylist()]
    assert whole == [text for text in texts if text]


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32), checksum=st.booleans(), dictionary=st.booleans())
def test_damaged_pages_give_what_pyarrow_gives_or_are_left_to_it(
    seed: int, checksum: bool, dictionary: bool
) -> None:
    chance = random.Random(seed)
    content = bytearray(
        write(
            documents(60), row_group_size=20, data_page_size=200, write_batch_size=5,
            write_page_checksum=checksum, use_dictionary=dictionary,
        )
    )  # fmt: skip
    (footer,) = struct.unpack("<I", content[-8:-4])
    for _ in range(chance.randrange(1, 4)):  # Not in the footer: pyarrow parses that in both cases.
        content[chance.randrange(4, len(content) - footer - 8)] = chance.randrange(256)
    found = joined(by_pages(bytes(content)))
    try:
        wanted = by_pyarrow(bytes(content))
    except (pa.ArrowException, OSError, ValueError):
        return  # Then nothing of the file is published, whatever was read of it before.
    assert found == wanted[: len(found)]


def test_pages_that_promise_too_much_take_no_memory() -> None:
    content = bytearray(write(documents(50), use_dictionary=False, write_statistics=False))
    # The header of the first page of `text`: type, unpacked size and packed size as zigzag numbers.
    at = pq.read_metadata(io.BytesIO(bytes(content))).row_group(0).column(1).data_page_offset
    assert content[at : at + 3] == b"\x15\x00\x15"
    longer = content[:at] + b"\x15\x00\x15\xfe\xff\xff\xff\x0f" + content[at + 5 :]
    assert joined(by_pages(bytes(longer))) == []
