"""A receipt is the commit: it is believed only as it was written, for its own recipe."""

from pathlib import Path

import msgspec
import pytest

from fwconvert.errors import ManifestError, OutputError
from fwconvert.store import receipts
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "receipt.json"


def test_a_receipt_is_read_as_it_was_published(path: Path) -> None:
    receipts.publish(JOB, path)
    found = receipts.read(path, Receipt, RECIPE_ID)

    assert msgspec.structs.replace(found, digest="") == JOB
    assert len(found.digest) == 64
    assert [entry.name for entry in path.parent.iterdir()] == ["receipt.json"]


def test_a_join_receipt_is_read_as_it_was_published(path: Path) -> None:
    receipts.publish(JOIN, path)

    assert msgspec.structs.replace(receipts.read(path, JoinReceipt, RECIPE_ID), digest="") == JOIN


def test_equal_receipts_are_equal_bytes(path: Path) -> None:
    receipts.publish(JOB, path)
    first = path.read_bytes()
    receipts.publish(msgspec.json.decode(msgspec.json.encode(JOB), type=Receipt), path)

    assert path.read_bytes() == first
    assert first.endswith(b"\n")


def test_a_receipt_that_was_read_can_be_published_again(path: Path) -> None:
    receipts.publish(JOB, path)
    first = path.read_bytes()

    receipts.publish(receipts.read(path, Receipt, RECIPE_ID), path)

    assert path.read_bytes() == first
    receipts.read(path, Receipt, RECIPE_ID)


def test_no_flipped_bit_is_believed(path: Path) -> None:
    receipts.publish(JOB, path)
    good = path.read_bytes()

    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(ManifestError, match=r"receipt\.json"):
            receipts.read(path, Receipt, RECIPE_ID)


def test_no_receipt_that_is_cut_short_is_believed(path: Path) -> None:
    receipts.publish(JOB, path)
    good = path.read_bytes()

    for size in range(0, len(good) - 1, 5):  # Without its last byte, the line end, it is still whole.
        path.write_bytes(good[:size])
        with pytest.raises(ManifestError):
            receipts.read(path, Receipt, RECIPE_ID)


@pytest.mark.parametrize("field", [name for name in Receipt.__struct_fields__ if name != "digest"])
def test_a_changed_field_is_noticed(path: Path, field: str) -> None:
    other = Receipt(
        "34" * 32, "b", 1, "00", 2, Counts(0, 0, 0, 0, 0, 0), (), Tail(0, 0, 0, "", 0, ""), "t", 5
    )
    receipts.publish(JOB, path)
    sealed = receipts.read(path, Receipt, RECIPE_ID)
    forged = msgspec.structs.replace(sealed, **{field: getattr(other, field)})
    path.write_bytes(msgspec.json.encode(forged))

    with pytest.raises(ManifestError, match="damaged"):
        receipts.read(path, Receipt, forged.recipe_id)


def test_a_receipt_without_its_digest_is_not_believed(path: Path) -> None:
    path.write_bytes(msgspec.json.encode(JOB))

    with pytest.raises(ManifestError, match="damaged"):
        receipts.read(path, Receipt, RECIPE_ID)


def test_a_receipt_of_another_recipe_is_not_believed(path: Path) -> None:
    receipts.publish(JOB, path)

    with pytest.raises(ManifestError, match="another recipe"):
        receipts.read(path, Receipt, "56" * 32)


def test_one_kind_of_receipt_is_not_taken_for_the_other(path: Path) -> None:
    receipts.publish(JOB, path)
    with pytest.raises(ManifestError, match="format"):
        receipts.read(path, JoinReceipt, RECIPE_ID)

    receipts.publish(JOIN, path)
    with pytest.raises(ManifestError, match="format"):
        receipts.read(path, Receipt, RECIPE_ID)


def test_a_receipt_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        receipts.publish(JOB, tmp_path / "missing" / "receipt.json")
