"""An export to other separators gives the stream that an encoding would, wherever shards and steps end."""

from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
from examples import rules_with, unhurried
from hypothesis import given
from hypothesis import strategies as st
from runner import sha256

from fwconvert.errors import ShardError
from fwconvert.job import existing
from fwconvert.job.existing import ExistingTokens
from fwconvert.job.orders import ConvertOrder, Exported, NoReporter, RunContext, SourceFile
from fwconvert.recipes import Rules, SourceShard
from fwconvert.shards.passages import passages
from fwconvert.shards.stream import StreamReader
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import Counts, ShardLine
from fwconvert.tokens.registry import separators_of
from fwconvert.tokens.tiktoken_kind import VOCABULARIES

# By name: what stands before and after each document, and the rules that say so.
END, START, OTHER = 100257, 100276, 100256
WHOLE = {"tokenizer_kind": "tiktoken", "vocabulary_size": 100277}
AROUND: dict[str, tuple[list[int], list[int], dict[str, Any]]] = {
    "usual before": ([END], [], {"eot": "before"}),
    "usual after": ([], [END], {"eot": "after"}),
    "other before": ([OTHER], [], {"eot": "before", "eot_id": OTHER, **WHOLE}),
    "both": ([START], [END], {"eot": "after", "eot_id": END, "bos_id": START, **WHOLE}),
    "both, turned": ([END], [START], {"eot": "after", "eot_id": START, "bos_id": END, **WHOLE}),
}
WAYS = st.sampled_from(sorted(AROUND))
NAME = "x_train_{:05d}_000"


def rules_of(way: str) -> Rules:
    known = {"tokenizer": "cl100k_base", "vocabulary_sha256": VOCABULARIES["cl100k_base"].sha256}
    return rules_with(name="x", token_type="uint32", **known, **AROUND[way][2])


def stream_of(lengths: list[int], way: str, lost: int = 0) -> naive.Stream:
    """Return documents of so many tokens, of which the last has lost its end."""
    before, after, _ = AROUND[way]
    tokens: list[int] = []
    starts: list[naive.Start] = []
    for number, length in enumerate(lengths):
        starts.append(naive.Start(len(tokens), 3 * number))
        tokens += [*before, *(number * 10 + at for at in range(length)), *after]
    return naive.Stream(tokens[: len(tokens) - lost], starts)


def written(folder: Path, stream: naive.Stream, way: str, size: int, *, cut: bool = False) -> Exported:
    lines = []
    for number, part in enumerate(naive.cut(stream, size)):
        stem = NAME.format(number)
        naive.write(folder, stem, part, 4)
        digests = sha256(folder / f"{stem}.bin"), sha256(folder / "index" / f"{stem}.docs")
        lines.append(
            ShardLine(f"{stem}.bin", "train", len(part.tokens), len(part.starts), 0, *digests, ((0, 0),))
        )
    counts = Counts(100, len(stream.starts), 0, 0, 1000, len(stream.tokens), limited=cut, cut=cut)
    return Exported(str(folder), rules_of(way), passages(lines, 1)[0], 1, "ab" * 32, counts)


def taken(order: Exported, way: str) -> naive.Stream:
    """Return the stream as an export of it gives it, and hold it against what the job will say of it."""
    context = RunContext(order.run, "", rules_of(way), "")
    convert = ConvertOrder(context, SourceShard("a.parquet", 1), 0, SourceFile("a.parquet"), exported=order)
    tokens: list[int] = []
    starts: list[naive.Start] = []
    source = ExistingTokens(convert, order, NoReporter())
    for batch in source.batches():
        assert batch.tokens.dtype == np.uint32
        for start, row in zip(batch.starts.tolist(), batch.rows.tolist(), strict=True):
            assert 0 <= start < max(1, len(batch.tokens))
            starts.append(naive.Start(len(tokens) + start, row))
        tokens += batch.tokens.tolist()
    assert source.counts.tokens == len(tokens)
    assert source.counts.documents == len(starts)
    return naive.Stream(tokens, starts)


@unhurried
@given(st.lists(st.integers(0, 9), max_size=8), WAYS, WAYS, st.integers(1, 12), st.integers(1, 9))
def test_a_stream_comes_out_as_if_it_had_been_encoded(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], old: str, new: str, size: int, step: int
) -> None:
    order = written(tmp_path_factory.mktemp("run"), stream_of(lengths, old), old, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(existing, "STEP", step)
        assert taken(order, new) == stream_of(lengths, new)


@unhurried
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 12), st.integers(1, 9), st.data())
def test_a_cut_document_stays_cut_where_it_was(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int, step: int, data: st.DataObject
) -> None:
    lost = data.draw(st.integers(1, lengths[-1] + 1))  # At least the first separator is left of it.
    order = written(tmp_path_factory.mktemp("run"), stream_of(lengths, "both", lost), "both", size, cut=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(existing, "STEP", step)
        assert taken(order, "both, turned") == stream_of(lengths, "both, turned", lost)


@pytest.mark.parametrize("at", [0, 4, 5, 8, 9])
def test_a_separator_that_is_missing_or_doubled_is_found(tmp_path: Path, at: int) -> None:
    stream = stream_of([3, 2, 4], "both")  # Separators at 0, 4, 5, 8, 9 and 14.
    assert stream.tokens[at] in (START, END)
    for number, other in enumerate((7, START if stream.tokens[at] == END else END)):
        folder = tmp_path / str(number)
        changed = naive.Stream([*stream.tokens[:at], other, *stream.tokens[at + 1 :]], stream.starts)
        with pytest.raises(ShardError, match="not what their run manifest says"):
            taken(written(folder, changed, "both", 6), "usual before")


@unhurried
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), WAYS, st.integers(1, 12))
def test_every_token_knows_its_document(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], way: str, size: int
) -> None:
    stream = stream_of(lengths, way)
    order = written(tmp_path_factory.mktemp("run"), stream, way, size)
    around = separators_of(order.rules)
    reader = StreamReader(LocalStore(Path(order.run)), order.rules, order.passages, around)
    ends = [start.position for start in stream.starts[1:]] + [len(stream.tokens)]
    for number, (start, end) in enumerate(zip(stream.starts, ends, strict=True)):
        for at in range(start.position, end):
            found = reader.document_at(at)
            assert (found.number, found.row, found.start, found.end) == (
                number, 3 * number, start.position, end,
            )  # fmt: skip
        text = around.inside(start.position, end, is_whole=True)
        assert stream.tokens[text] == [number * 10 + at for at in range(lengths[number])]
