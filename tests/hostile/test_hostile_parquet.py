"""Hostile and broken sources: a parquet file is read as it was written, or refused by name.

Files are read in processes of their own, many in each, because a library that
ends the process is one of the things that are looked for.
"""

import base64
import hashlib
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import child
import corpus
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runner
from runner import PRIVATE

from fwconvert import records
from fwconvert.errors import SourceError, UsageError
from fwconvert.options import Options
from fwconvert.recipes import SourceManifest, SourceShard, Totals
from fwconvert.run.inputs import LocalFiles
from fwconvert.run.request import recipe as make_recipe
from fwconvert.sources import parquet
from fwconvert.store.receipts import Receipt

TEXTS = [*corpus.documents(0, 12), *corpus.ODD]

# The last line that it prints names the file that ended it. A file may ask for any amount of memory:
# with a limit it does not get it, and that must be a SourceError too.
READ_ALL = """
    import json, sys
    from pathlib import Path
    if sys.platform == "linux":
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
    from fwconvert.sources import parquet
    from fwconvert.errors import SourceError

    def texts(path):
        found = []
        for batch in parquet.batches(path, "text"):
            batch.texts.validate(full=True)
            assert len(batch.texts) == len(batch.rows) <= batch.seen
            found += batch.texts.to_pylist()
        return found

    for path in sorted(Path(sys.argv[1]).iterdir()):
        print(path.name, end="\\t", flush=True)
        for look in (parquet.extent, parquet.footer, texts):
            try:
                found = look(path)
            except SourceError as error:
                assert str(path) in str(error)
                found = None
        print(json.dumps(found), flush=True)
"""


def read_all(folder: Path) -> dict[str, list[str] | None]:
    """Return the texts of each file in a folder, or None if it was refused. No other end is allowed."""
    lines = [line.split("\t") for line in child.run(READ_ALL, folder).splitlines()]
    return {name: json.loads(found) for name, found in lines}


def write_all(folder: Path, files: Sequence[bytes]) -> Path:
    folder.mkdir()
    for number, content in enumerate(files):
        (folder / f"{number:05d}.parquet").write_bytes(content)
    return folder


class Ended(NamedTuple):
    """A conversion that has ended, and where."""

    process: "subprocess.CompletedProcess[str]"
    out: Path


def documents(texts: Sequence[str | None]) -> list[str]:
    return [text for text in texts if text]


def footer_begin(raw: bytes) -> int:
    return len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")


# --- damage of every kind


def write_delta(path: Path) -> Path:
    table = pa.table({"text": TEXTS})
    pq.write_table(table, path, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    return path


KINDS: dict[str, Callable[[Path], Path]] = {
    "snappy": lambda path: corpus.write(path, TEXTS, compression="snappy"),
    "plain": lambda path: corpus.write(path, TEXTS, compression="none", use_dictionary=False),
    "second version": lambda path: corpus.write(
        path, TEXTS, compression="zstd", data_page_version="2.0", row_group_size=7
    ),
    "delta": write_delta,
    "with indexes and checksums": lambda path: corpus.write(
        path, TEXTS, compression="gzip", write_page_index=True, write_page_checksum=True
    ),
}


def mutant(raw: bytes, chance: random.Random) -> bytes:
    """Return the file with a few changes in its pages or in its footer, which often is told its new size."""
    begin = footer_begin(raw)
    low, high = chance.choice([(4, begin), (begin, len(raw) - 8), (0, len(raw))])
    changed = bytearray(raw)
    for _ in range(chance.choice([1, 1, 2, 4])):
        at = chance.randrange(low, min(high, len(changed)))
        size = chance.randrange(1, 9)
        other = chance.randrange(low, high)
        length, put = chance.choice(
            [
                (1, bytes([changed[at] ^ 1 << chance.randrange(8)])),
                (1, chance.choice([b"\0", b"\x01", b"\x7f", b"\x80", b"\xff"])),
                (chance.randrange(1, 9), chance.randbytes(size)),
                (size, b""),
                (0, b"\xff\xff\xff\xff\x07"),  # 2**31 - 1, as thrift writes it
                (size, raw[other : other + size]),
            ]
        )
        changed[at : at + length] = put
    if chance.random() < 0.7:
        changed[-8:] = max(0, len(changed) - 8 - begin).to_bytes(4, "little") + b"PAR1"
    return bytes(changed)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_no_mutation_ends_the_process_or_raises_anything_but_a_source_error(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    good = make(tmp_path / "good.parquet").read_bytes()
    chance = random.Random(20240520)
    files = [good, *(mutant(good, chance) for _ in range(200))]

    found = read_all(write_all(tmp_path / "files", files))

    assert len(found) == len(files)
    assert found["00000.parquet"] == documents(TEXTS)
    assert sum(texts is None for texts in found.values()) > 50, "many of them are bad"


def test_a_file_that_is_cut_at_any_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "good.parquet"
    pq.write_table(pa.table({"text": ["one", "two", None]}), path, store_schema=False)
    good = path.read_bytes()

    found = read_all(write_all(tmp_path / "files", [good[:size] for size in range(len(good))]))

    assert len(found) == len(good)
    assert set(found.values()) == {None}


# --- bit flips


@pytest.mark.parametrize(
    "how",
    [
        {"compression": "none", "use_dictionary": False},
        {"compression": "snappy"},
        {"compression": "zstd", "data_page_version": "2.0"},
    ],
    ids=str,
)
def test_no_flipped_bit_of_a_page_with_a_checksum_gives_other_text(
    how: dict[str, Any], tmp_path: Path
) -> None:
    """Every bit of the column: a header's may be of no account, but no text is ever another one."""
    path = tmp_path / "good.parquet"
    texts = ["document 1", "zwei \u20ac", None, "", "a longer document " * 3]
    table = pa.table({"text": texts})
    pq.write_table(table, path, write_page_checksum=True, write_statistics=False, store_schema=False, **how)
    good = path.read_bytes()
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    begin = column.dictionary_page_offset or column.data_page_offset
    bits = range(8 * begin, 8 * (begin + column.total_compressed_size))

    found = read_all(write_all(tmp_path / "files", [flipped(good, bit) for bit in bits]))

    assert len(found) == len(bits)
    read = [texts for texts in found.values() if texts is not None]
    assert all(one == documents(texts) for one in read)
    assert len(read) < len(bits) / 10, "a header is small"


def flipped(raw: bytes, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def pinned(folder: Path, names: Sequence[str]) -> Path:
    """Write a manifest with the sizes and the sha256 of files in a folder."""
    contents = {name: (folder / name).read_bytes() for name in names}
    files = tuple(
        SourceShard(name, len(raw), hashlib.sha256(raw).hexdigest()) for name, raw in contents.items()
    )
    manifest = SourceManifest("pinned", "local", "", "", files, Totals(len(files), 0))
    path = folder.parent / "pinned.json"
    path.write_bytes(records.encode(manifest))
    return path


def test_no_flipped_bit_of_a_pinned_source_gets_through(tmp_path: Path) -> None:
    """Plain pages without a checksum: most flips give other text, and nobody but the sha256 can tell."""
    folder = tmp_path / "sources"
    good = corpus.write(folder / "good.parquet", corpus.documents(0, 30))
    texts = corpus.documents(100, 8)
    raw = corpus.write(folder / "00.parquet", texts, compression="none", use_dictionary=False).read_bytes()
    chance = random.Random(7)
    bad = [f"{number:02d}.parquet" for number in range(24)]
    for name in bad:
        (folder / name).write_bytes(raw)
    manifest = pinned(folder, [*bad, good.name])
    for name in bad:
        (folder / name).write_bytes(flipped(raw, chance.randrange(8 * len(raw))))
    readable = [name for name in bad if is_readable(folder / name)]
    assert len(readable) > 5, "that a file can be read proves nothing"

    choices: dict[str, Any] = {"version": str(manifest), "tokenizer": "bytes", "shard_tokens": 500}
    result = runner.convert(folder, tmp_path / "out", **choices)

    assert sorted(failed.path for failed in result.failed) == bad
    assert all("not the one that was asked for" in failed.reason for failed in result.failed)
    assert result.headline.jobs_done == 1
    left = [*runner.shards(tmp_path / "out"), *names_in(tmp_path / "out", "tails")]
    assert left
    assert all("_00024_" in name or name.startswith("good.parquet") for name in left), left
    assert len(names_in(tmp_path / "out", "quarantine")) == len(bad)
    assert names_in(tmp_path / "out", "temporary") == []


def is_readable(path: Path) -> bool:
    try:
        return sum(batch.seen for batch in parquet.batches(path, "text")) > 0
    except SourceError:
        return False


def names_in(out: Path, folder: str) -> list[str]:
    return [path.name for path in (out / PRIVATE / folder).iterdir()]


def test_what_nobody_pinned_is_in_the_receipt_and_a_flipped_bit_is_refused_afterwards(tmp_path: Path) -> None:
    folder, out = tmp_path / "sources", tmp_path / "out"
    path = corpus.write(folder / "a.parquet", ["some text"], compression="none", use_dictionary=False)
    choices: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 500}
    assert runner.convert(folder, out, **choices).complete
    good = path.read_bytes()
    made = records.read(next((out / PRIVATE / "receipts").iterdir()), Receipt)
    assert made.source_sha256 == hashlib.sha256(good).hexdigest()
    assert made.source_bytes == len(good)

    before = runner.tree(out)
    for at in (0, good.index(b"some text"), footer_begin(good), len(good) - 1):
        path.write_bytes(flipped(good, 8 * at))
        with pytest.raises(UsageError, match="has changed"):
            runner.convert(folder, out, **choices)

    path.write_bytes(good)
    assert runner.convert(folder, out, **choices).untouched
    assert runner.tree(out) == before


# --- footers that lie, written by hand in thrift's compact protocol


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def zigzag(number: int) -> bytes:
    return varint(number << 1 ^ number >> 63)


def text(content: bytes) -> bytes:
    return varint(len(content)) + content


def group(name: bytes, children: int) -> bytes:
    """A schema element with children: required (3), its name (4), how many (5)."""
    return b"\x35" + zigzag(0) + b"\x18" + text(name) + b"\x15" + zigzag(children) + b"\0"


def leaf(name: bytes, physical: int = 6) -> bytes:
    """A schema element of a physical type (1; 6 is a byte array): required (3), its name (4)."""
    return b"\x15" + zigzag(physical) + b"\x25" + zigzag(0) + b"\x18" + text(name) + b"\0"


def structs(items: Sequence[bytes], promised: int | None = None) -> bytes:
    """A list of structs; `promised` is how many it says there are."""
    return b"\xfc" + varint(len(items) if promised is None else promised) + b"".join(items)


def column_chunk(values: int, offset: int, size: int, physical: int = 6) -> bytes:
    """Metadata of a column: type, encodings, path, codec, values, sizes, the place of its page."""
    metadata = (
        b"\x15" + zigzag(physical) + b"\x19\x15" + zigzag(0) + b"\x19\x18" + text(b"text")
        + b"\x15" + zigzag(0) + b"\x16" + zigzag(values) + b"\x16" + zigzag(size) + b"\x16" + zigzag(size)
        + b"\x26" + zigzag(offset) + b"\0"
    )  # fmt: skip
    return b"\x26" + zigzag(offset) + b"\x1c" + metadata + b"\0"


def row_group(columns: Sequence[bytes], size: int, rows: int) -> bytes:
    return b"\x19" + structs(columns) + b"\x16" + zigzag(size) + b"\x16" + zigzag(rows) + b"\0"


def lying(
    schema: Sequence[bytes], rows: int = 0, groups: Sequence[bytes] = (), promised: int | None = None
) -> bytes:
    """Return a file of such a footer, with some pages of nothing before it."""
    metadata = (
        b"\x15" + zigzag(2) + b"\x19" + structs(schema, promised)
        + b"\x16" + zigzag(rows) + b"\x19" + structs(groups) + b"\0"
    )  # fmt: skip
    return b"PAR1" + bytes(100) + metadata + len(metadata).to_bytes(4, "little") + b"PAR1"


ROOT = group(b"schema", 1)
TEXT = leaf(b"text")
LARGE = 2**62

LIES: dict[str, bytes] = {
    "rows but no row group": lying([ROOT, TEXT], rows=5),
    "rows beyond measure": lying([ROOT, TEXT], rows=LARGE),
    "fewer rows than none": lying([ROOT, TEXT], rows=-5),
    "a column that is not there": lying([ROOT, TEXT], 5, [row_group([], 9, 5)]),
    "a column too many": lying([ROOT, TEXT], 5, [row_group([column_chunk(5, 4, 9)] * 2, 9, 5)]),
    "values beyond measure": lying([ROOT, TEXT], 5, [row_group([column_chunk(LARGE, 4, 50)], 50, 5)]),
    "fewer values than none": lying([ROOT, TEXT], 5, [row_group([column_chunk(-5, 4, 50)], 50, 5)]),
    "a page behind the end": lying([ROOT, TEXT], 5, [row_group([column_chunk(5, 10**6, 50)], 50, 5)]),
    "a page before the begin": lying([ROOT, TEXT], 5, [row_group([column_chunk(5, -4, 50)], 50, 5)]),
    "a place beyond measure": lying([ROOT, TEXT], 5, [row_group([column_chunk(5, LARGE, 50)], 50, 5)]),
    "a size beyond measure": lying([ROOT, TEXT], 5, [row_group([column_chunk(5, 4, LARGE)], LARGE, 5)]),
    "a size below nothing": lying([ROOT, TEXT], 5, [row_group([column_chunk(5, 4, -9)], -9, 5)]),
    "pages of nothing": lying([ROOT, TEXT], 5, [row_group([column_chunk(5, 4, 50)], 50, 5)]),
    "another type in the chunk": lying([ROOT, TEXT], 5, [row_group([column_chunk(5, 4, 50, 1)], 50, 5)]),
    "a type that does not exist": lying([ROOT, leaf(b"text", 99)], 5),
    "numbers for text": lying([ROOT, leaf(b"text", 1)], 5),
    "no schema": lying([], 5),
    "a root alone": lying([group(b"schema", 0)], 5),
    "more children than there are": lying([group(b"schema", 9), TEXT], 5),
    "children beyond measure": lying([group(b"schema", 2**31 - 1), TEXT], 5),
    "fewer children than none": lying([group(b"schema", -1), TEXT], 5),
    "more elements than there are": lying([ROOT, TEXT], 5, promised=2**31 - 1),
    "elements beyond measure": lying([ROOT, TEXT], 5, promised=LARGE),
    "groups in groups in groups": lying([ROOT, *[group(b"a", 1)] * 200_000, TEXT], 5),
    "a name that is not UTF-8": lying([ROOT, leaf(b"\xff\xfe")], 5),
    "another name that is not UTF-8": lying([group(b"schema", 2), leaf(b"\xff"), TEXT], 5),
    "a name with a nul": lying([ROOT, leaf(b"text\0")], 5),
    "a name that commands": lying([ROOT, leaf(b"\x1b[2J")], 5),
    "a name beyond measure": lying([ROOT, leaf(b"text" * 500_000)], 5),
}


def test_every_footer_that_lies_is_refused(tmp_path: Path) -> None:
    honest = lying([ROOT, TEXT])

    found = read_all(write_all(tmp_path / "files", [honest, *LIES.values()]))

    assert found.pop("00000.parquet") == [], "what all lies are built on is a good file"
    told = dict(zip(LIES, found.values(), strict=True))
    assert {name: texts for name, texts in told.items() if texts is not None} == {}


@pytest.fixture(scope="module")
def lies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sources that lie, and a good one."""
    folder = tmp_path_factory.mktemp("lies")
    corpus.write(folder / "good.parquet", corpus.documents(0, 30))
    for number, content in enumerate(LIES.values()):
        (folder / f"{number:02d}.parquet").write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def ended(lies: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """How a conversion of them ends."""
    out = tmp_path_factory.mktemp("ended")
    flags = ["--workers", "1", "--no-disk-check"]
    return Ended(runner.run(lies, out, *flags, tokenizer="bytes", shard_tokens=500), out)


def test_footers_that_lie_cost_their_own_sources_only(ended: Ended) -> None:
    runner.assert_tidy_end(ended.process, 1)
    assert len(names_in(ended.out, "quarantine")) == len(LIES)
    assert [name.partition("-")[0] for name in names_in(ended.out, "receipts")] == ["good.parquet"]
    assert all("_00029_" in name for name in runner.shards(ended.out))


def test_no_name_of_a_column_commands_the_terminal(ended: Ended) -> None:
    said = ended.process.stdout + ended.process.stderr

    assert all(sign in "\n\t" or sign.isprintable() for sign in said), ascii(said)


def test_no_footer_that_lies_makes_a_disk_too_small(lies: Path, tmp_path: Path) -> None:
    """The driver looks at footers before anything is proven, to know how much disk it needs."""
    recipe = make_recipe(source=str(lies), tokenizer="bytes", shard_tokens=500)
    size = recipe.source.bytes
    found = {}
    for number, name in enumerate(LIES):
        (tmp_path / name).mkdir()
        shutil.copy(lies / f"{number:02d}.parquet", tmp_path / name)
        shutil.copy(lies / "good.parquet", tmp_path / name)
        recipe = make_recipe(source=str(tmp_path / name), tokenizer="bytes", shard_tokens=500)
        inputs = LocalFiles(recipe.source, tmp_path / name)
        found[name] = inputs.estimate(recipe, Options(workers=1)).output_bytes

    # A token takes two bytes, and no honest text is packed a hundred times tighter.
    assert {name: needed for name, needed in found.items() if not 0 < needed <= 1000 * size} == {}


# --- columns that are no text

NESTED: dict[str, pa.Array] = {
    "a map": pa.array([[("text", "x")]], pa.map_(pa.string(), pa.string())),
    "lists of lists": pa.array([[["x"]]]),
    "lists of structs": pa.array([[{"text": "x"}]]),
    "a struct in a struct": pa.array([{"text": {"text": "x"}}]),
    "lists of a fixed size": pa.array([["x"]], pa.list_(pa.string(), 1)),
    "large lists": pa.array([["x"]], pa.large_list(pa.string())),
    "bytes of a fixed size": pa.array([b"xy"], pa.binary(2)),
    "decimals": pa.array([1], pa.decimal128(9, 2)),
    "halves": pa.array([1.5], pa.float16()),
    "durations": pa.array([1], pa.duration("s")),
    "dates": pa.array([1], pa.date32()),
}


@pytest.mark.parametrize("column", NESTED.values(), ids=NESTED.keys())
@pytest.mark.parametrize("store_schema", [True, False])
def test_a_column_of_another_type_is_refused(column: pa.Array, store_schema: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": column}), path, store_schema=store_schema)

    with pytest.raises(SourceError, match="no such text column"):
        list(parquet.batches(path, "text"))


# What a file may say that its text was before it became parquet.
PRETENCES: tuple[pa.DataType, ...] = (
    pa.int64(), pa.list_(pa.string()), pa.large_string(), pa.string_view(), pa.null(), pa.bool_(),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int64(), pa.binary()), pa.binary(3),
    pa.struct([("text", pa.string())]), pa.map_(pa.string(), pa.string()), pa.decimal128(9, 2),
    pa.timestamp("ns", "Mars/Olympus"), pa.run_end_encoded(pa.int32(), pa.string()), pa.uuid(),
)  # fmt: skip


def test_a_schema_that_pretends_is_refused_or_gives_the_text_as_it_is(tmp_path: Path) -> None:
    schemas = [pa.schema([("text", kind)]).serialize().to_pybytes() for kind in PRETENCES]
    honest = pa.schema([("text", pa.string())]).serialize().to_pybytes()
    chance = random.Random(7)
    noise = [bytes(100), chance.randbytes(300), honest[:50], honest[:-9], b""]
    noise += [flipped(honest, chance.randrange(8 * len(honest))) for _ in range(150)]
    raw = [base64.b64encode(content) for content in [*schemas, *noise]] + [b"not base 64 \xff", b"A"]
    files = []
    for content in raw:
        table = pa.table({"text": TEXTS}).replace_schema_metadata({"ARROW:schema": content})
        pq.write_table(table, tmp_path / "x.parquet", store_schema=False)
        files.append((tmp_path / "x.parquet").read_bytes())

    found = read_all(write_all(tmp_path / "files", files))

    assert len(found) == len(files)
    assert all(texts in (None, documents(TEXTS)) for texts in found.values())
