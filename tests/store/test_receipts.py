"""A receipt is the commit: it is believed only as it was written, for its own recipe."""

import re
from pathlib import Path

import msgspec
import pytest

from fwconvert.errors import ManifestError, OutputError
from fwconvert.store import layout, receipts
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import Counts, JoinReceipt, Receipt, Segment, ShardLine, Tail

RECIPE_ID = "12" * 32
LINE = ShardLine("edu_fineweb_train_00000_000.bin", "train", 100, 3, 1224, "ab" * 32, "cd" * 32, ((0, 0),))
JOB = Receipt(
    recipe_id=RECIPE_ID,
    path="a/ö.parquet",
    source_bytes=1234,
    source_sha256="ef" * 32,
    source_mtime_ns=1_700_000_000_123_456_789,
    counts=Counts(10, 7, 2, 1, 5000, 150),
    shards=(LINE,),
    tail=Tail(50, 2, 1124, "01" * 32, 16, "23" * 32),
    session="20250101T000000Z-abcdef",
)
JOIN = JoinReceipt(RECIPE_ID, (Segment(0, 0, 0, 60), Segment(2, 60, 5, 40)), LINE, "s")


NAME = layout.receipt(layout.job_key(JOB.path))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path)
    store.prepare()
    return store


@pytest.fixture
def path(store: LocalStore) -> Path:
    return store.local(NAME)


def test_a_receipt_is_read_as_it_was_published(store: LocalStore, path: Path) -> None:
    receipts.publish(store, JOB)
    found = receipts.read(store, NAME, Receipt, RECIPE_ID)

    assert msgspec.structs.replace(found, digest="") == JOB
    assert len(found.digest) == 64
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert [*store.list(layout.TEMPORARY)] == []


def test_a_join_receipt_is_read_as_it_was_published(store: LocalStore) -> None:
    receipts.publish(store, JOIN)
    name = layout.join_receipt(LINE.name)

    assert msgspec.structs.replace(receipts.read(store, name, JoinReceipt, RECIPE_ID), digest="") == JOIN


def test_equal_receipts_are_equal_bytes(store: LocalStore, path: Path) -> None:
    receipts.publish(store, JOB)
    first = path.read_bytes()
    receipts.publish(store, msgspec.json.decode(msgspec.json.encode(JOB), type=Receipt))

    assert path.read_bytes() == first
    assert first.endswith(b"\n")


def test_a_receipt_that_was_read_can_be_published_again(store: LocalStore, path: Path) -> None:
    receipts.publish(store, JOB)
    first = path.read_bytes()

    receipts.publish(store, receipts.read(store, NAME, Receipt, RECIPE_ID))

    assert path.read_bytes() == first
    receipts.read(store, NAME, Receipt, RECIPE_ID)


def test_no_flipped_bit_is_believed(store: LocalStore, path: Path) -> None:
    receipts.publish(store, JOB)
    good = path.read_bytes()

    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(ManifestError, match=re.escape(path.name)):
            receipts.read(store, NAME, Receipt, RECIPE_ID)


def test_no_receipt_that_is_cut_short_is_believed(store: LocalStore, path: Path) -> None:
    receipts.publish(store, JOB)
    good = path.read_bytes()

    for size in range(0, len(good) - 1, 5):  # Without its last byte, the line end, it is still whole.
        path.write_bytes(good[:size])
        with pytest.raises(ManifestError):
            receipts.read(store, NAME, Receipt, RECIPE_ID)


@pytest.mark.parametrize("field", [name for name in Receipt.__struct_fields__ if name != "digest"])
def test_a_changed_field_is_noticed(store: LocalStore, path: Path, field: str) -> None:
    other = Receipt(
        "34" * 32, "b", 1, "00", 2, Counts(0, 0, 0, 0, 0, 0), (), Tail(0, 0, 0, "", 0, ""), "t", 5
    )
    receipts.publish(store, JOB)
    sealed = receipts.read(store, NAME, Receipt, RECIPE_ID)
    forged = msgspec.structs.replace(sealed, **{field: getattr(other, field)})
    path.write_bytes(msgspec.json.encode(forged))

    with pytest.raises(ManifestError, match="damaged"):
        receipts.read(store, NAME, Receipt, forged.recipe_id)


def test_a_receipt_without_its_digest_is_not_believed(store: LocalStore, path: Path) -> None:
    path.write_bytes(msgspec.json.encode(JOB))

    with pytest.raises(ManifestError, match="damaged"):
        receipts.read(store, NAME, Receipt, RECIPE_ID)


def test_a_receipt_of_another_recipe_is_not_believed(store: LocalStore) -> None:
    receipts.publish(store, JOB)

    with pytest.raises(ManifestError, match="another recipe"):
        receipts.read(store, NAME, Receipt, "56" * 32)


def test_one_kind_of_receipt_is_not_taken_for_the_other(store: LocalStore, path: Path) -> None:
    receipts.publish(store, JOB)
    with pytest.raises(ManifestError, match="format"):
        receipts.read(store, NAME, JoinReceipt, RECIPE_ID)

    path.write_bytes(receipts.encode(JOIN))
    with pytest.raises(ManifestError, match="format"):
        receipts.read(store, NAME, Receipt, RECIPE_ID)


def test_a_receipt_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        receipts.publish(LocalStore(tmp_path / "missing"), JOB)
