"""Blocks are exact and the stream is unchanged, against an implementation with plain lists."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat

import numpy as np
import pytest
from examples import rules_with, unhurried
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fwconvert.shards.cutting import UNBOUNDED, Batch, Piece, block_sizes, cut, has_validation

Document = tuple[int, list[int]]  # its row, its tokens


@dataclass
class Block:
    tokens: list[int] = field(default_factory=list)
    documents: list[tuple[int, int]] = field(default_factory=list)  # start in the block, row


def batch_of(documents: Sequence[Document]) -> Batch:
    lengths = [len(tokens) for _, tokens in documents]
    return Batch(
        tokens=np.array([token for _, tokens in documents for token in tokens], np.uint16),
        starts=np.array([sum(lengths[:at]) for at in range(len(lengths))], np.int64),
        rows=np.array([row for row, _ in documents], np.int64),
    )


def naive_blocks(batches: Sequence[Sequence[Document]], sizes: Sequence[int]) -> list[Block]:
    """Put one token after the other into the last block; a full one is followed by a new, empty one."""
    blocks = [Block()]
    for row, tokens in chain(*batches):
        for at, token in enumerate(tokens):
            if at == 0:
                blocks[-1].documents.append((len(blocks[-1].tokens), row))
            blocks[-1].tokens.append(token)
            if len(blocks[-1].tokens) == sizes[len(blocks) - 1]:
                blocks.append(Block())
    return blocks


def assembled(pieces: Sequence[Piece]) -> list[Block]:
    """Put pieces together as a writer does: a piece that ends its block is the block's last."""
    blocks = [Block()]
    for piece in pieces:
        blocks[-1].tokens += piece.tokens.tolist()
        blocks[-1].documents += zip(piece.starts.tolist(), piece.rows.tolist(), strict=True)
        if piece.ends_block:
            blocks.append(Block())
    return blocks


@st.composite
def streams(draw: st.DrawFn) -> list[list[Document]]:
    """Batches of documents; a document has at least one token, its rows may leave gaps."""
    shape = draw(st.lists(st.lists(st.integers(1, 25), max_size=5), max_size=5))
    row, token, batches = 0, 0, []
    for lengths in shape:
        batch: list[Document] = []
        for length in lengths:
            row += draw(st.integers(1, 3))
            batch.append((row, list(range(token, token + length))))  # Every token is different.
            token += length
        batches.append(batch)
    return batches


@given(batches=streams(), first=st.integers(1, 30), then=st.integers(1, 12))
@settings(unhurried, max_examples=400)
@example(batches=[], first=1, then=1)
@example(batches=[[], [], []], first=1, then=1)
@example(batches=[[(0, [1, 2, 3])], [], [(1, [4])]], first=4, then=4)
@example(batches=[[(0, list(range(50)))]], first=7, then=1)
def test_blocks_are_those_of_a_naive_writer(batches: list[list[Document]], first: int, then: int) -> None:
    tokens = [token for _, document in chain(*batches) for token in document]
    sizes = [first, *repeat(then, len(tokens) + 1)]

    pieces = list(cut(map(batch_of, batches), chain([first], repeat(then))))

    assert [token for piece in pieces for token in piece.tokens.tolist()] == tokens
    assert assembled(pieces) == naive_blocks(batches, sizes)
    assert all(len(piece.tokens) > 0 for piece in pieces)


@given(batches=streams(), size=st.integers(1, 12))
@unhurried
def test_every_block_but_the_last_is_full_and_the_last_is_not(
    batches: list[list[Document]], size: int
) -> None:
    blocks = assembled(list(cut(map(batch_of, batches), repeat(size))))

    assert all(len(block.tokens) == size for block in blocks[:-1])
    assert len(blocks[-1].tokens) < size


@given(batches=streams())
@unhurried
def test_an_unbounded_block_takes_everything(batches: list[list[Document]]) -> None:
    pieces = list(cut(map(batch_of, batches), repeat(UNBOUNDED)))

    assert not any(piece.ends_block for piece in pieces)
    assert assembled(pieces) == naive_blocks(batches, [10**9])


@given(batches=streams(), size=st.integers(1, 12))
@unhurried
def test_how_documents_are_batched_does_not_matter(batches: list[list[Document]], size: int) -> None:
    together = [list(chain(*batches))]
    alone = [[document] for document in chain(*batches)]

    wanted = assembled(list(cut(map(batch_of, batches), repeat(size))))
    assert assembled(list(cut(map(batch_of, together), repeat(size)))) == wanted
    assert assembled(list(cut(map(batch_of, alone), repeat(size)))) == wanted


def test_a_block_that_fills_exactly_at_the_end_leaves_an_empty_rest() -> None:
    pieces = list(cut([batch_of([(0, [1, 2]), (1, [3, 4])])], repeat(2)))

    assert assembled(pieces) == [Block([1, 2], [(0, 0)]), Block([3, 4], [(0, 1)]), Block()]


def test_a_document_longer_than_several_blocks_starts_once() -> None:
    blocks = assembled(list(cut([batch_of([(0, [9]), (5, list(range(10)))])], repeat(3))))

    assert [block.tokens for block in blocks] == [[9, 0, 1], [2, 3, 4], [5, 6, 7], [8, 9]]
    assert [block.documents for block in blocks] == [[(0, 0), (1, 5)], [], [], []]


def test_a_document_that_starts_where_a_block_starts_belongs_to_that_block() -> None:
    blocks = assembled(list(cut([batch_of([(0, [1, 2]), (1, [3])])], repeat(2))))

    assert [block.documents for block in blocks] == [[(0, 0)], [(0, 1)]]


def test_batches_are_read_one_at_a_time() -> None:
    asked = 0

    def source() -> Iterator[Batch]:
        nonlocal asked
        for at in range(100):
            asked += 1
            yield batch_of([(at, [1, 2, 3])])

    pieces = cut(source(), repeat(2))
    next(pieces)

    assert asked == 1


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
def test_tokens_keep_their_type_and_are_not_copied(kind: type[np.uint16 | np.uint32]) -> None:
    batch = Batch(np.arange(10, dtype=kind), np.array([0]), np.array([0]))

    for piece in cut([batch], repeat(4)):
        assert piece.tokens.dtype == kind
        assert np.shares_memory(piece.tokens, batch.tokens)


def test_a_start_behind_four_gigatokens_is_exact() -> None:
    far = 2**33
    long = Batch(np.broadcast_to(np.uint16(0), far), np.array([0]), np.array([7]))  # It takes no memory.
    short = Batch(np.zeros(4, np.uint16), np.array([1, 3]), np.array([8, 9]))

    pieces = list(cut([long, short], repeat(UNBOUNDED)))

    assert pieces[1].starts.tolist() == [far + 1, far + 3]


def test_only_the_first_source_of_an_independent_run_has_validation() -> None:
    assert has_validation(rules_with(val_tokens=5), 0)
    assert not has_validation(rules_with(val_tokens=5), 1)
    assert not has_validation(rules_with(val_tokens=0), 0)
    assert not has_validation(rules_with(val_tokens=5, layout="contiguous"), 0)


@pytest.mark.parametrize(
    ("layout", "val_tokens", "source_index", "wanted"),
    [
        ("independent", 5, 0, [5, 9, 9]),
        ("independent", 0, 0, [9, 9, 9]),
        ("independent", 5, 1, [9, 9, 9]),
        ("contiguous", 5, 0, [UNBOUNDED] * 3),
        ("contiguous", 0, 3, [UNBOUNDED] * 3),
    ],
)
def test_a_job_cuts_blocks_as_its_layout_says(
    layout: str, val_tokens: int, source_index: int, wanted: list[int]
) -> None:
    rules = rules_with(layout=layout, val_tokens=val_tokens, shard_tokens=9)

    assert list(islice(block_sizes(rules, source_index), 3)) == wanted
