"""Arrow files and streams: read as they were written, or refused; hostile ones within bounds."""

import json
import os
import random
import struct
from pathlib import Path

import child
import corpus
import pyarrow as pa
import pytest
import text_files

from fwconvert.errors import ColumnError, SourceError
from fwconvert.recipes import Rules
from fwconvert.sources import arrow, filters, messages, reading
from fwconvert.sources.reading import Wanted

TEXTS: list[str | None] = [*corpus.documents(0, 30), *corpus.ODD, *corpus.documents(30, 30)]
ROWS = text_files.rows(TEXTS)
KINDS = [kind for kind in text_files.KINDS if "arrow" in kind or kind == "feather"]


def read(path: Path, column: str = "text", where: str | None = None) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    rows = 0
    for batch in arrow.batches(path, column, chosen(where)):
        assert batch.first_row == rows
        assert batch.seen <= reading.MOST_BATCH_ROWS
        batch.texts.validate(full=True)
        rows += batch.seen
        found += zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
    assert rows == arrow.extent(path)
    return found


def chosen(where: str | None) -> filters.Sieve | None:
    rules = Rules("bytes", "", "before", "uint16", "text", 300, 0, "independent", "llmc", "a", 3, where=where)
    return filters.of(rules)


def write_stream(path: Path, column: pa.Array, batches: int = 1) -> Path:
    table = pa.table({"text": column})
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        for _ in range(batches):
            writer.write_table(table)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read_with_its_rows(tmp_path: Path, kind: str) -> None:
    path = text_files.write(tmp_path, kind, ROWS)
    wanted = [(row, text) for row, text in enumerate(TEXTS) if text]

    assert read(path) == read(path, "meta.text") == wanted
    kept = [(row, text) for row, text in wanted if (ROWS[row]["score"] or 0) > 2 and row % 3]
    assert read(path, where="score > 2 and column('meta.language') == 'en'") == kept
    assert arrow.size(path).rows == len(TEXTS)
    found = arrow.read_row(path, str(path), 33, "meta.text")
    assert (found.text.to_pylist(), found.id, found.url) == ([TEXTS[33]], "id-33", "https://example.org/33")
    assert arrow.identity(path, 33) == "id-33"
    assert arrow.identity(path, 1000) == "unknown"
    with pytest.raises(SourceError, match="no such row"):
        arrow.read_row(path, str(path), len(TEXTS), "text")


@pytest.mark.parametrize("kind", KINDS)
def test_a_misspelt_column_is_refused_with_those_there_are(tmp_path: Path, kind: str) -> None:
    path = text_files.write(tmp_path, kind, ROWS)
    for column in ("txet", "meta", "meta.txet", "score", "text.text", "meta.text.more"):
        with pytest.raises(ColumnError, match=r"(?s)no such text column.*score \(double\)"):
            arrow.check_columns(path, str(path), column, None)
    with pytest.raises(ColumnError, match="no such column"):
        arrow.check_columns(path, str(path), "text", chosen("column('meta.none') > 1"))
    arrow.check_columns(path, str(path), "meta.text", chosen("score > 1"))


def test_a_large_batch_is_given_on_in_portions(tmp_path: Path) -> None:
    texts = [*corpus.documents(0, 20_000), "x" * 9_000_000, *corpus.documents(0, 5)]
    path = write_stream(tmp_path / "a.arrow", pa.array(texts), batches=2)

    assert read(path) == [*enumerate([*texts, *texts])]
    portions = [*arrow.batches(path, "text")]
    assert max(batch.text_bytes for batch in portions if len(batch.texts) > 1) <= reading.BATCH_BYTES


def test_a_dictionary_is_not_multiplied_all_at_once(tmp_path: Path) -> None:
    long = pa.DictionaryArray.from_arrays(pa.array([0, 1, None] * 40, pa.int32()), ["x" * 3_000_000, "y"])
    path = write_stream(tmp_path / "a.arrow", long)

    portions = [*arrow.batches(path, "text")]

    assert sum(batch.text_bytes for batch in portions) == 40 * 3_000_001
    assert max(batch.text_bytes for batch in portions) <= reading.BATCH_BYTES


def test_a_text_longer_than_a_document_may_be_is_named_by_its_row(tmp_path: Path) -> None:
    path = write_stream(tmp_path / "a.arrow", pa.array(["one", "x" * (reading.MOST_DOCUMENT_BYTES + 1)]))
    with pytest.raises(SourceError, match=r"(?s)more than 134,217,728 bytes.*row +1\n"):
        read(path)


@pytest.mark.parametrize("kind", KINDS)
def test_no_cut_gives_a_shorter_text(tmp_path: Path, kind: str) -> None:
    whole = text_files.write(tmp_path, kind, ROWS)
    content, path, rng = whole.read_bytes(), tmp_path / "cut", random.Random(5)
    for end in {
        0,
        1,
        4,
        8,
        len(content) - 1,
        len(content) - 8,
        *(rng.randrange(len(content)) for _ in range(60)),
    }:
        path.write_bytes(content[:end])
        with pytest.raises(SourceError):
            read(path)
    for rest in (b"x" * 9, content):
        path.write_bytes(content + rest)
        with pytest.raises(SourceError):
            read(path)


def test_every_end_of_a_batch_is_no_end_of_a_stream(tmp_path: Path) -> None:
    whole = text_files.write(tmp_path, "arrow stream", ROWS)
    with whole.open("rb", buffering=0) as file:
        ends = [one.end for one in messages.batches_of(file)]
    assert len(ends) > 5
    for end in ends:
        (tmp_path / "cut").write_bytes(whole.read_bytes()[:end])
        with pytest.raises(SourceError, match="no end of the stream"):
            read(tmp_path / "cut")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = write_stream(tmp_path / "a.arrow", pa.array([b"one", b"caf\xe9"], pa.binary()))
    with pytest.raises(SourceError, match="not UTF-8"):
        read(path)


def test_the_first_version_of_feather_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(SourceError, match="Feather of the first version"):
        read(tmp_path / "a.feather")


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_buffer_that_claims_too_much_is_refused_before_it_is_unpacked(tmp_path: Path, codec: str) -> None:
    path, table = tmp_path / "a.arrow", pa.table({"text": ["x" * 100_000]})
    with pa.ipc.new_stream(
        str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
    ) as writer:
        writer.write_table(table)
    content = path.read_bytes()
    # At the head of the last buffer; before it, the same number is an offset of the text.
    at = content.rindex(struct.pack("<q", 100_000))
    for claim in (2**30, 2**62):
        path.write_bytes(content[:at] + struct.pack("<q", claim) + content[at + 8 :])
        with pytest.raises(SourceError, match="has a batch of"):
            read(path)


# The last line that it prints names the file that ended it.
READ_ALL = """
    import json, resource, sys
    from pathlib import Path
    resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
    from fwconvert.errors import SourceError
    from fwconvert.sources import arrow

    for path in sorted(Path(sys.argv[1]).iterdir()):
        print(path.name, end="\\t", flush=True)
        found = None
        for look in (arrow.extent, arrow.size, arrow.first_labels, None):
            try:
                if look is None:
                    found = [one for batch in arrow.batches(path, "text") for one in batch.texts.to_pylist()]
                else:
                    look(*((path, 9) if look is arrow.first_labels else (path,)))
            except SourceError as error:
                assert str(path) in str(error)
        print(json.dumps(found), flush=True)
"""


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="wants a limit of memory that is kept")
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_end_no_process_and_take_no_memory(tmp_path: Path, kind: str) -> None:
    """A text may be another one, as no checksum tells; a process that is ended would be found here."""
    rng, folder = random.Random(6), tmp_path / "damaged"
    folder.mkdir()
    content = text_files.write(tmp_path, kind, ROWS, batch=20).read_bytes()
    for number in range(250):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 1, 3])):
            at = rng.randrange(len(damaged)) if rng.random() < 0.5 else rng.randrange(min(1500, len(damaged)))
            damaged[at] = rng.choice([0, 1, 0x7F, 0xFF, rng.randrange(256)])
        (folder / f"{number:03d}{text_files.KINDS[kind]}").write_bytes(damaged)

    told = dict(line.split("\t") for line in child.run(READ_ALL, folder).splitlines())

    assert len(told) == 250
    assert {json.loads(found) is None for found in told.values()} == {True, False}


def test_a_sample_is_one_batch_and_tells_the_size_of_all(tmp_path: Path) -> None:
    path = text_files.write(tmp_path, "arrow stream", ROWS, batch=10)
    found = [
        arrow.sample(path, str(path), Wanted(at / 7, "text", None, 10**6), lambda _: True) for at in range(7)
    ]
    texts = [text for one in found if one for batch in one.batches for text in batch.texts.to_pylist()]
    assert texts == [text for text in TEXTS if text]
    assert {one.size.rows for one in found if one} == {len(TEXTS)}
    with path.open("rb", buffering=0) as far:
        one = arrow.sample(far, "far", Wanted(0.9, "text", None, 2000), lambda _: True)
    assert one is not None
    assert abs(one.size.rows - len(TEXTS)) < 60
    assert arrow.first_labels(path, 3) == (
        [f"https://example.org/{row}" for row in range(3)],
        [0.0, 0.5, 1.0],
    )
