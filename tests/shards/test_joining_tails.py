"""The join puts every token of every tail into exactly one place, against plain concatenation."""

import os
import struct
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import child
import pytest
from examples import rules_with, unhurried
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fwconvert.errors import ShardError
from fwconvert.job import worker as tails_module
from fwconvert.job.orders import JoinOrder, RunContext
from fwconvert.job.worker import joined_pieces
from fwconvert.recipes import Layout, Rules, TokenType
from fwconvert.shards.cutting import JoinedShard, joined_shards
from fwconvert.store import layout
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import Absorbed, Segment

LAYOUTS: tuple[Layout, ...] = ("independent", "contiguous")
TAILS = st.lists(st.integers(0, 40), max_size=12)

Token = tuple[int, int]  # source, position in its tail


def stream_of(tails: Sequence[int]) -> list[Token]:
    return [(source, at) for source, length in enumerate(tails) for at in range(length)]


def tokens_of(shard: JoinedShard) -> list[Token]:
    """Return where each token of a shard comes from; the segments must lie side by side in the shard."""
    found: list[Token] = []
    for segment in shard.segments:
        assert segment.first == len(found)
        assert segment.tokens > 0
        found += [(segment.source, segment.start + at) for at in range(segment.tokens)]
    return found


def naive_cut(stream: Sequence[Any], sizes: Iterator[int]) -> list[list[Any]]:
    parts, rest = [], list(stream)
    while rest:
        size = next(sizes)
        parts.append(rest[:size])
        rest = rest[size:]
    return parts


def sizes_of(rules: Rules, total: int) -> Iterator[int]:
    if rules.layout == "contiguous" and 0 < rules.val_tokens <= total:
        yield rules.val_tokens
    while True:
        yield rules.shard_tokens


@given(
    tails=TAILS,
    shard_tokens=st.integers(1, 50),
    val_tokens=st.integers(0, 80),
    layout=st.sampled_from(LAYOUTS),
)
@settings(unhurried, max_examples=200)
@example(tails=[], shard_tokens=1, val_tokens=0, layout="contiguous")
@example(tails=[0, 0], shard_tokens=1, val_tokens=1, layout="contiguous")
@example(tails=[0, 5, 0, 0, 5, 0], shard_tokens=5, val_tokens=5, layout="contiguous")
@example(tails=[5], shard_tokens=5, val_tokens=5, layout="contiguous")
@example(tails=[5], shard_tokens=5, val_tokens=6, layout="contiguous")
def test_the_segments_tile_all_tails_exactly_once_in_order(
    tails: list[int], shard_tokens: int, val_tokens: int, layout: Layout
) -> None:
    rules = rules_with(layout=layout, shard_tokens=shard_tokens, val_tokens=val_tokens)

    shards = joined_shards(tails, rules)

    wanted = naive_cut(stream_of(tails), sizes_of(rules, sum(tails)))
    assert [tokens_of(shard) for shard in shards] == wanted


@given(
    tails=TAILS,
    shard_tokens=st.integers(1, 50),
    val_tokens=st.integers(0, 80),
    layout=st.sampled_from(LAYOUTS),
)
@unhurried
def test_all_shards_but_the_last_are_full_and_numbered_as_documented(
    tails: list[int], shard_tokens: int, val_tokens: int, layout: Layout
) -> None:
    shards = joined_shards(tails, rules_with(layout=layout, shard_tokens=shard_tokens, val_tokens=val_tokens))
    val = [shard for shard in shards if shard.split == "val"]
    train = [shard for shard in shards if shard.split == "train"]

    assert all(len(tokens_of(shard)) == shard_tokens for shard in train[:-1])
    assert all(len(tokens_of(shard)) <= shard_tokens for shard in train)
    if layout == "contiguous" and 0 < val_tokens <= sum(tails):
        assert [shard.number for shard in val] == [0]
        assert shards[0] is val[0]
        assert len(tokens_of(val[0])) == val_tokens  # Full or absent.
    else:
        assert val == []
    first = 1 if layout == "contiguous" else 0
    assert [shard.number for shard in train] == list(range(first, first + len(train)))


FULL = Absorbed("a full one", 3, 50)


@given(
    tails=TAILS,
    shard_tokens=st.integers(1, 50),
    val_tokens=st.integers(0, 80),
    layout=st.sampled_from(LAYOUTS),
    full=st.booleans(),
)
@settings(unhurried, max_examples=200)
@example(tails=[3, 4], shard_tokens=50, val_tokens=0, layout="independent", full=True)
@example(tails=[60], shard_tokens=50, val_tokens=0, layout="independent", full=True)
@example(tails=[30, 30], shard_tokens=50, val_tokens=0, layout="independent", full=False)
def test_a_short_end_is_merged_or_dropped_and_nothing_else_changes(
    tails: list[int], shard_tokens: int, val_tokens: int, layout: Layout, full: bool
) -> None:
    own = FULL if full and layout == "independent" else None
    given_up = {"layout": layout, "shard_tokens": shard_tokens, "val_tokens": val_tokens}
    kept = joined_shards(tails, rules_with(**given_up, last="keep"), own)
    merged = joined_shards(tails, rules_with(**given_up, last="merge"), own)
    dropped = joined_shards(tails, rules_with(**given_up, last="drop"), own)
    whole = [shard for shard in kept if shard.split == "val" or shard.tokens == shard_tokens]

    assert dropped == whole
    assert merged[: len(whole) - 1] == whole[:-1] or len(merged) == len(whole) + 1
    stream = [token for shard in merged for token in _tail_tokens_of(shard)]
    assert stream == stream_of(tails)
    assert all(shard.tokens < 2 * max(shard_tokens, 50) for shard in merged if shard.split == "train")
    short = [shard for shard in merged if shard.split == "train" and shard.tokens < shard_tokens]
    # Only what has no training shard before it stays short.
    assert short == [] or (own is None and not [shard for shard in whole if shard.split == "train"])


def _tail_tokens_of(shard: JoinedShard) -> list[Token]:
    begin = shard.absorbed.tokens if shard.absorbed else 0
    moved = [Segment(s.source, s.first - begin, s.start, s.tokens) for s in shard.segments]
    return tokens_of(JoinedShard(shard.split, shard.number, tuple(moved)))


def test_a_short_end_goes_into_the_last_shard_of_a_job_if_no_joined_one_is_full() -> None:
    rules = rules_with(shard_tokens=50, last="merge")

    assert joined_shards([3, 0, 4], rules, FULL) == [
        JoinedShard("train", 0, (Segment(0, 50, 0, 3), Segment(2, 53, 0, 4)), FULL)
    ]
    assert joined_shards([3, 0, 4], rules, FULL)[0].places == ((3, 0), (0, 50), (2, 53))
    assert joined_shards([0, 0, 0, 4], rules, FULL)[0].places == ((3, 0),)  # It goes on in its own tail.


def test_a_run_too_small_for_validation_keeps_everything_as_training() -> None:
    rules = rules_with(layout="contiguous", shard_tokens=10, val_tokens=10)

    assert joined_shards([4, 5], rules) == [
        JoinedShard("train", 1, (Segment(0, 0, 0, 4), Segment(1, 4, 0, 5)))
    ]
    assert joined_shards([4, 6], rules) == [JoinedShard("val", 0, (Segment(0, 0, 0, 4), Segment(1, 4, 0, 6)))]


def test_joining_takes_time_in_proportion_to_the_tails() -> None:
    # The full version: 2,410 sources of about 750 million tokens each.
    shards = joined_shards([750_000_000 + at for at in range(2410)], rules_with(layout="contiguous"))

    assert len(shards) == 18_076
    assert sum(segment.tokens for shard in shards for segment in shard.segments) == sum(
        750_000_000 + at for at in range(2410)
    )


def test_sizes_beyond_32_bits_are_exact() -> None:
    rules = rules_with(layout="contiguous", shard_tokens=2**33, val_tokens=0)

    assert joined_shards([2**34 + 1, 2**33], rules) == [
        JoinedShard("train", 1, (Segment(0, 0, 0, 2**33),)),
        JoinedShard("train", 2, (Segment(0, 0, 2**33, 2**33),)),
        JoinedShard("train", 3, (Segment(0, 0, 2**34, 1), Segment(1, 1, 0, 2**33 - 1))),
        JoinedShard("train", 4, (Segment(1, 0, 2**33 - 1, 1),)),
    ]


def write_tail(
    folder: LocalStore, key: str, rules: Rules, tokens: Sequence[int], documents: Sequence[tuple[int, int]]
) -> None:
    """Write a tail by hand: 1,024 bytes that nobody reads here, the tokens; an index of starts and rows."""
    letter = "H" if rules.token_type == "uint16" else "I"
    entry = "<QI" if rules.layout == "contiguous" else "<II"
    folder.local(layout.TAILS).mkdir(parents=True, exist_ok=True)
    folder.local(layout.tail(key)).write_bytes(
        b"\xee" * 1024 + struct.pack(f"<{len(tokens)}{letter}", *tokens)
    )
    folder.local(layout.tail_index(key)).write_bytes(
        b"".join(struct.pack(entry, start, row) for start, row in documents)
    )


def order_for(shard: JoinedShard, rules: Rules) -> JoinOrder:
    context = RunContext("out", "id", rules, "session")
    keys = tuple(f"key{segment.source}" for segment in shard.segments)
    return JoinOrder(context, "name.bin", shard.split, shard.segments, keys)


Entry = tuple[int, tuple[int, int] | None]  # a token; the source and row of the document that starts with it


@st.composite
def sources(draw: st.DrawFn) -> list[list[Entry]]:
    """Tails of several sources. A tail may begin in the middle of a document."""
    made: list[list[Entry]] = []
    for source in range(draw(st.integers(0, 6))):
        tokens = draw(st.lists(st.integers(0, 2**16 - 1), max_size=25))
        made.append(
            [(token, (source, 3 * at) if draw(st.booleans()) else None) for at, token in enumerate(tokens)]
        )
    return made


@given(
    made=sources(),
    shard_tokens=st.integers(1, 30),
    val_tokens=st.integers(0, 30),
    layout=st.sampled_from(LAYOUTS),
    token_type=st.sampled_from(["uint16", "uint32"]),
    step=st.sampled_from([1, 3, 2**21]),
)
@settings(unhurried, max_examples=80)
def test_joined_pieces_are_the_tails_concatenated_and_cut_with_their_documents(
    tmp_path_factory: pytest.TempPathFactory,
    made: list[list[Entry]],
    shard_tokens: int,
    val_tokens: int,
    layout: Layout,
    token_type: TokenType,
    step: int,
) -> None:
    rules = rules_with(layout=layout, shard_tokens=shard_tokens, val_tokens=val_tokens, token_type=token_type)
    folder = LocalStore(tmp_path_factory.mktemp("join"))
    for source, tail in enumerate(made):
        documents = [(at, document[1]) for at, (_, document) in enumerate(tail) if document]
        if tail:  # An empty tail has no file.
            write_tail(folder, f"key{source}", rules, [token for token, _ in tail], documents)
    stream = [entry for tail in made for entry in tail]
    wanted = naive_cut(stream, sizes_of(rules, len(stream)))

    shards = joined_shards([len(tail) for tail in made], rules)

    assert len(shards) == len(wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tails_module, "_STEP", step)
        for shard, part in zip(shards, wanted, strict=True):
            pieces = list(joined_pieces(folder, order_for(shard, rules)))
            tokens = [token for piece in pieces for token in piece.tokens.tolist()]
            starts = [start for piece in pieces for start in piece.starts.tolist()]
            rows = [row for piece in pieces for row in piece.rows.tolist()]
            found = list(zip(starts, rows, strict=True))
            assert tokens == [token for token, _ in part]
            assert found == [(at, document[1]) for at, (_, document) in enumerate(part) if document]
            # The manifest names the source of each segment, so source and row of every document can be told.
            firsts = [segment.first for segment in shard.segments]
            for start, row in found:
                segment = shard.segments[sum(first <= start for first in firsts) - 1]
                assert part[start][1] == (segment.source, row)


def test_pieces_are_small_however_long_a_tail_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails_module, "_STEP", 10)
    rules = rules_with(shard_tokens=95)
    folder = LocalStore(tmp_path)
    write_tail(folder, "key0", rules, range(95), [(0, 0)])
    (shard,) = joined_shards([95], rules)

    sizes = [len(piece.tokens) for piece in joined_pieces(folder, order_for(shard, rules))]

    assert sizes == [10] * 9 + [5]
    assert list(accumulate(sizes))[-1] == 95
    assert all(one >= other for one, other in pairwise(sizes))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted otherwise elsewhere")
def test_a_worker_s_memory_does_not_grow_with_a_tail(tmp_path: Path) -> None:
    """Mapped pages count too: a worker that has too much is ended."""
    code = """
        import resource, sys
        from pathlib import Path
        from examples import rules_with
        from fwconvert.job import worker
        from fwconvert.store import layout
        from fwconvert.store.local import LocalStore
        from fwconvert.job.orders import JoinOrder, RunContext
        from fwconvert.job.orders import NoReporter
        from fwconvert.store.receipts import Segment

        rules = rules_with(format="raw", layout="contiguous", shard_tokens=0, name="")
        folder, most = LocalStore(Path(sys.argv[1])), []
        folder.prepare()
        for tokens in (10**7, 2 * 10**8):
            with folder.local(layout.tail("key")).open("wb") as file:
                file.truncate(2 * tokens)
            folder.local(layout.tail_index("key")).write_bytes(bytes(12))
            context = RunContext(str(folder.root), "id", rules, "session")
            order = JoinOrder(context, "train.bin", "train", (Segment(0, 0, 0, tokens),), ("key",))
            worker.join(order, NoReporter())
            most.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        print((most[1] - most[0]) // 1024, (folder.root / "train.bin").stat().st_size)
    """
    grown, size = child.run(code, tmp_path / "out", PYTHONPATH=os.pathsep.join(sys.path)).split()
    assert int(size) == 4 * 10**8
    assert int(grown) < 50  # MB


@pytest.mark.parametrize("missing", ["tail", "tail_index"])
def test_a_tail_that_is_gone_is_a_shard_error(tmp_path: Path, missing: str) -> None:
    rules = rules_with(shard_tokens=4)
    folder = LocalStore(tmp_path)
    write_tail(folder, "key0", rules, [1, 2, 3, 4], [(0, 0)])
    folder.local(getattr(layout, missing)("key0")).unlink()
    (shard,) = joined_shards([4], rules)

    with pytest.raises(ShardError, match="key0"):
        list(joined_pieces(folder, order_for(shard, rules)))


def test_a_tail_with_fewer_tokens_than_its_segment_is_a_shard_error(tmp_path: Path) -> None:
    # A joined shard with fewer tokens than its header says would be wrong for ever: the tail is removed then.
    rules = rules_with(shard_tokens=4)
    folder = LocalStore(tmp_path)
    write_tail(folder, "key0", rules, [1, 2, 3], [(0, 0)])
    (shard,) = joined_shards([4], rules)

    with pytest.raises(ShardError, match="key0"):
        list(joined_pieces(folder, order_for(shard, rules)))
