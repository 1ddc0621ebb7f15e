"""Where the tokens of a source stand: compared with lists of tokens that know where they come from."""

import pytest
from examples import unhurried
from hypothesis import given
from hypothesis import strategies as st

from fwconvert.errors import ManifestError
from fwconvert.shards.passages import Passage, between, length, passages
from fwconvert.store.receipts import ShardLine

SHARDS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=4), max_size=6
)


def line(name: str, tokens: int, segments: tuple[tuple[int, int], ...]) -> ShardLine:
    return ShardLine(name, "train", tokens, 0, 0, "", "", segments)


def shard_of(number: int, parts: list[tuple[int, int]]) -> tuple[ShardLine, list[int]]:
    """Return the line of a shard of so many tokens of these sources, and of each token its source."""
    owners = [source for source, tokens in parts for _ in range(tokens)]
    firsts = [(source, sum(tokens for _, tokens in parts[:at])) for at, (source, _) in enumerate(parts)]
    return line(f"{number}.bin", len(owners), tuple(firsts)), owners


@unhurried
@given(SHARDS)
def test_each_token_is_found_where_it_stands(shards: list[list[tuple[int, int]]]) -> None:
    made = [shard_of(number, parts) for number, parts in enumerate(shards)]
    wanted: list[list[tuple[str, int]]] = [[], [], [], []]
    for shard, owners in made:
        for place, source in enumerate(owners):
            wanted[source].append((shard.name, place))

    found = passages([shard for shard, _ in made], 4)

    for source, stream in enumerate(found):
        places = [(p.shard.name, p.first + at) for p in stream for at in range(p.tokens)]
        assert places == wanted[source]
        assert [p.start for p in stream] == [sum(p.tokens for p in stream[:at]) for at in range(len(stream))]
        assert length(stream) == len(wanted[source])


@unhurried
@given(st.lists(st.integers(1, 4), max_size=8), st.integers(0, 40), st.integers(0, 40))
def test_a_part_of_a_stream_is_a_part_of_its_tokens(sizes: list[int], begin: int, end: int) -> None:
    (stream,) = passages([line(f"{at}.bin", size, ((0, 0),)) for at, size in enumerate(sizes)], 1)
    tokens = [(f"{at}.bin", place) for at, size in enumerate(sizes) for place in range(size)]

    part = list(between(stream, begin, end))

    assert [(p.shard.name, p.first + at) for p in part for at in range(p.tokens)] == tokens[begin:end]
    assert [p.start for p in part[:1]] == [begin][: len(part)]


def test_a_passage_does_not_carry_the_segments_of_all_sources() -> None:
    # It goes to a worker, once for each source in the shard.
    (first, _) = passages([line("a.bin", 9, ((0, 0), (1, 4)))], 2)

    assert first == (Passage(line("a.bin", 9, ()), 0, 0, 4),)


@pytest.mark.parametrize(
    "segments",
    [
        (),
        ((0, 1),),
        ((0, 0), (1, 0)),
        ((0, 0), (1, 5), (0, 3)),
        ((0, 0), (1, 10)),
        ((0, 0), (1, 11)),
        ((2, 0),),
        ((-1, 0),),
        ((0, -1),),
    ],
)
def test_segments_that_cannot_be_are_refused(segments: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ManifestError, match="invalid segments"):
        passages([line("a.bin", 10, segments)], 2)
