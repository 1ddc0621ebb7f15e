"""The stream of a source, read from token shards that the naive converter wrote."""

import struct
from dataclasses import replace
from pathlib import Path

import naive
import numpy as np
import pytest
from examples import rules_with, unhurried
from hypothesis import given
from hypothesis import strategies as st
from runner import sha256

from fwconvert import files
from fwconvert.errors import ShardError
from fwconvert.job import existing
from fwconvert.job.existing import ExistingTokens
from fwconvert.job.orders import ConvertOrder, Exported, NoReporter, RunContext, SourceFile
from fwconvert.recipes import EotSide, Rules, SourceShard
from fwconvert.shards.passages import passages
from fwconvert.shards.stream import StreamReader
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import Counts, ShardLine
from fwconvert.tokens.registry import separators_of

EOT = 256
TEXTS = st.lists(st.integers(1, 9), max_size=8)
SIDES = st.sampled_from(["before", "after"])
NAME = "x_train_{:05d}_000"


def stream_of(lengths: list[int], side: str) -> naive.Stream:
    """Return documents of so many tokens; rows have gaps, as skipped rows leave them."""
    tokens: list[int] = []
    starts: list[naive.Start] = []
    for number, length in enumerate(lengths):
        starts.append(naive.Start(len(tokens), 3 * number))
        text = [number * 10 + at for at in range(length)]
        tokens += [EOT, *text] if side == "before" else [*text, EOT]
    return naive.Stream(tokens, starts)


def written(folder: Path, stream: naive.Stream, side: EotSide, size: int, rows: int) -> Exported:
    """Write a stream as token shards; return how to take it from there."""
    lines = []
    for number, part in enumerate(naive.cut(stream, size)):
        stem = NAME.format(number)
        naive.write(folder, stem, part, 2)
        digests = sha256(folder / f"{stem}.bin"), sha256(folder / "index" / f"{stem}.docs")
        tokens = len(part.tokens)
        lines.append(ShardLine(f"{stem}.bin", "train", tokens, len(part.starts), 0, *digests, ((0, 0),)))
    counts = Counts(rows, len(stream.starts), 0, 0, len(stream.tokens), len(stream.tokens))
    rules = rules_with(tokenizer="bytes", eot=side, name="x")
    return Exported(str(folder), rules, passages(lines, 1)[0], 1, "ab" * 32, counts)


def taken(order: Exported, side: EotSide) -> naive.Stream:
    """Return the stream as an export of it gives it."""
    context = RunContext(order.run, "", other_rules(side), "")
    convert = ConvertOrder(context, SourceShard("a.parquet", 1), 0, SourceFile("a.parquet"), exported=order)
    tokens: list[int] = []
    starts: list[naive.Start] = []
    for batch in ExistingTokens(convert, order, NoReporter()).batches():
        assert batch.tokens.dtype == np.uint16
        pairs = zip(batch.starts.tolist(), batch.rows.tolist(), strict=True)
        assert all(0 <= start < len(batch.tokens) for start in batch.starts.tolist())
        starts += [naive.Start(len(tokens) + start, row) for start, row in pairs]
        tokens += batch.tokens.tolist()
    return naive.Stream(tokens, starts)


def other_rules(side: EotSide) -> Rules:
    return rules_with(tokenizer="bytes", eot=side)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every stream have many steps, so that their borders fall everywhere."""
    monkeypatch.setattr(existing, "STEP", 5)


@unhurried
@given(TEXTS, SIDES, SIDES, st.integers(1, 12))
def test_a_stream_comes_out_as_if_it_had_been_encoded(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], old: EotSide, new: EotSide, size: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    order = written(folder, stream_of(lengths, old), old, size, rows=3 * len(lengths))

    assert taken(order, new) == stream_of(lengths, new)


@pytest.fixture
def sound(tmp_path: Path) -> Exported:
    return written(tmp_path, stream_of([3, 1, 7, 2], "before"), "before", 6, rows=20)


def test_the_sound_stream_is_sound(sound: Exported) -> None:
    assert taken(sound, "after") == stream_of([3, 1, 7, 2], "after")


@pytest.mark.parametrize("name", ["x_train_00001_000.bin", "index/x_train_00001_000.docs"])
@pytest.mark.parametrize("damage", ["flipped", "cut short", "missing", "a folder"])
def test_a_damaged_file_is_never_believed(sound: Exported, name: str, damage: str) -> None:
    path = Path(sound.run) / name
    content = path.read_bytes()
    path.unlink()
    if damage == "flipped":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "cut short":
        path.write_bytes(content[:-4])
    elif damage == "a folder":
        path.mkdir()

    with pytest.raises(ShardError, match=path.stem):
        taken(sound, "after")


def test_a_file_is_hashed_once_and_again_when_it_changes(
    sound: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(sound, "before")
    with monkeypatch.context() as patch:
        patch.setattr(files, "sha256_of", lambda *_: pytest.fail("it was hashed again"))
        taken(sound, "after")

    path = Path(sound.run) / "x_train_00001_000.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ShardError, match="sha256"):
        taken(sound, "after")


def rewritten(order: Exported, entries: list[tuple[int, int]]) -> Exported:
    """Return the order with another index of its first shard, whose hash fits: a hostile run."""
    first, *rest = order.passages
    path = Path(order.run) / "index" / "x_train_00000_000.docs"
    path.write_bytes(b"".join(struct.pack("<2I", *entry) for entry in entries))
    line = first.shard
    forged = ShardLine(
        line.name, line.split, line.tokens, len(entries), line.bytes, line.sha256, sha256(path), ()
    )
    return replace(order, passages=(replace(first, shard=forged), *rest))


@pytest.mark.parametrize(
    "entries",
    [
        [(0, 0)],
        [(4, 3)],
        [(0, 0), (3, 3)],
        [(0, 0), (4, 3), (5, 4)],
        [(0, 3), (4, 3)],
        [(0, 5), (4, 3)],
        [(4, 3), (0, 0)],
        [(0, 0), (4, 6)],
        [(0, 0), (4, 2**32 - 1)],
        [],
    ],
)
def test_an_index_that_contradicts_the_tokens_is_refused(
    sound: Exported, entries: list[tuple[int, int]]
) -> None:
    with pytest.raises(ShardError):
        taken(rewritten(sound, entries), "after")


def test_the_index_that_was_not_forged_is_accepted(sound: Exported) -> None:
    assert taken(rewritten(sound, [(0, 0), (4, 3)]), "before") == stream_of([3, 1, 7, 2], "before")


@pytest.mark.parametrize(
    "counts", [Counts(20, 4, 0, 0, 17, 18), Counts(20, 4, 0, 0, 17, 16), Counts(20, 3, 0, 0, 17, 17),
               Counts(20, 5, 0, 0, 17, 17), Counts(9, 4, 0, 0, 17, 17)],
)  # fmt: skip
def test_a_stream_that_does_not_add_up_to_its_job_is_refused(sound: Exported, counts: Counts) -> None:
    with pytest.raises(ShardError, match="not what their run manifest says"):
        taken(replace(sound, counts=counts), "before")


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_run_that_lies_about_its_side_is_refused(tmp_path: Path, side: EotSide) -> None:
    other: EotSide = "after" if side == "before" else "before"
    order = written(tmp_path, stream_of([3, 1, 7, 2], side), other, 6, rows=20)

    with pytest.raises(ShardError):
        taken(order, side)


@unhurried
@given(TEXTS.filter(bool), SIDES, st.integers(1, 12))
def test_every_token_knows_its_document(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], side: EotSide, size: int
) -> None:
    order = written(tmp_path_factory.mktemp("run"), stream_of(lengths, side), side, size, rows=100)
    reader = StreamReader(
        LocalStore(Path(order.run)), order.rules, order.passages, separators_of(order.rules)
    )
    position = 0
    for number, length in enumerate(lengths):
        end = position + length + 1
        for at in range(position, end):
            found = reader.document_at(at)
            assert (found.number, found.row, found.start, found.end) == (number, 3 * number, position, end)
            assert reader.place(at) == (NAME.format(at // size) + ".bin", at % size)
        assert reader.document(number) == found
        position = end
    assert reader.length == position
