"""Every window exactly once, in one order, whoever is served: against lists that a child could check."""

import json
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pytest
import runner
from examples import unhurried
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_oracle import documents, packed, shuffled, step_sizes, told, windows, write

from fwconvert.errors import UsageError
from fwconvert.loader import Loader, inputs_and_targets
from fwconvert.loader import documents as document_order
from fwconvert.loader import windows as window_order

LENGTHS = (100, 0, 33, 1, 8, 257)
SEQ_LEN = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of somebody else's shards: 12 + 0 + 4 + 0 + 0 + 32 windows."""
    return write(tmp_path_factory.mktemp("shards"), told(LENGTHS))


def wanted(order: str, seed: int = 0, epoch: int = 0) -> list[list[int]]:
    found = windows(told(LENGTHS), SEQ_LEN)
    assert len(found) == 48
    return found if order == "sequential" else shuffled(found, seed, epoch)


def rows(batches: Iterable[Any]) -> list[list[int]]:
    return [row for batch in batches for row in batch.tolist()]


def step_by_step(loaders: Sequence[Loader]) -> Iterator[list[list[int]]]:
    """Yield what all ranks are served in each step, in the order of the ranks."""
    for batches in zip(*loaders, strict=True):
        yield rows(batches)


def on_ranks(path: Path, ranks: int, **choices: Any) -> list[Loader]:
    return [Loader(path, seq_len=SEQ_LEN, rank=rank, ranks=ranks, **choices) for rank in range(ranks)]


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_one_rank_is_served_all_windows_in_order(folder: Path, order: str) -> None:
    loader = Loader(folder, seq_len=SEQ_LEN, batch=7, order=order, seed=5)  # type: ignore[arg-type]

    batches = list(loader)

    assert rows(batches) == wanted(order, seed=5)
    assert [len(batch) for batch in batches] == [7] * 6 + [6]
    assert len(loader) == 7
    assert {batch.dtype for batch in batches} == {np.dtype(np.uint16)}


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 48, 100])
@pytest.mark.parametrize("drop_last", [None, True, False])
def test_all_ranks_together_are_served_the_order_of_one(
    folder: Path, order: str, ranks: int, batch: int, drop_last: bool | None
) -> None:
    loaders = on_ranks(folder, ranks, batch=batch, order=order, drop_last=drop_last)
    sizes = step_sizes(48, batch, ranks, drop_last)

    assert {len(loader) for loader in loaders} == {len(sizes)}
    assert {loader.dropped for loader in loaders} == {48 - sum(sizes)}
    steps = list(step_by_step(loaders))
    assert [row for step in steps for row in step] == wanted(order)[: sum(sizes)]
    assert [len(step) for step in steps] == sizes
    assert drop_last is not False or sum(sizes) == 48


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
@pytest.mark.parametrize("ranks", [1, 2, 5, 7, 11, 13, 46, 47, 48])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
def test_no_rank_is_served_an_empty_batch_and_what_that_costs_is_counted(
    folder: Path, order: str, ranks: int, batch: int
) -> None:
    loaders = on_ranks(folder, ranks, batch=batch, order=order)
    dropped = loaders[0].dropped
    batches = [list(loader) for loader in loaders]

    assert all(np.isfinite(served.mean()) for of_one in batches for served in of_one)
    assert {len(of_one) for of_one in batches} == {len(loaders[0])}
    served = sum(len(batch) for of_one in batches for batch in of_one)
    assert dropped == 48 - served < ranks
    assert {loader.passed for loader in loaders} == {sum(LENGTHS) - served * SEQ_LEN - 3}


def test_whoever_can_do_with_empty_batches_is_served_every_window(folder: Path) -> None:
    loaders = on_ranks(folder, 5, batch=3, drop_last=False)
    batches = [list(loader) for loader in loaders]

    assert [len(of_one[-1]) for of_one in batches] == [0, 1, 0, 1, 1]
    assert sorted(row for of_one in batches for row in rows(of_one)) == sorted(wanted("shuffled"))
    assert {loader.dropped for loader in loaders} == {0}


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_an_epoch_of_fewer_windows_than_ranks_is_refused(folder: Path, order: Any) -> None:
    with pytest.raises(
        UsageError, match=r"(?s)fewer windows than ranks.*48.*49.*fewer ranks.*drop_last=False"
    ):
        Loader(folder, seq_len=SEQ_LEN, order=order, ranks=49)
    assert len(Loader(folder, seq_len=SEQ_LEN, order=order, ranks=48)) == 1
    assert len(Loader(folder, seq_len=SEQ_LEN, order=order, ranks=49, drop_last=False)) == 1


def test_a_state_from_before_empty_batches_were_left_out_gives_the_rest(folder: Path) -> None:
    state = {
        "order": "shuffled",
        "seed": 0,
        "seq_len": SEQ_LEN,
        "shards": "7f97b6eb46a3067e",
        "epoch": 0,
        "windows": 45,
        "documents": 0,
        "passed": 0,
        "passed_before": 0,
    }
    loaders = [loader.resume(state) for loader in on_ranks(folder, 5, batch=3)]

    assert loaders[0].state() == state
    # Three windows are left, and five ranks: none; but for three ranks they are a step.
    assert (loaders[0].dropped, [list(loader) for loader in loaders]) == (3, [[]] * 5)
    assert [row for step in step_by_step(loaders) for row in step] == wanted("shuffled", 0, 1)[:45]
    fewer = [loader.resume(state) for loader in on_ranks(folder, 3, batch=3)]
    assert (fewer[0].dropped, [*step_by_step(fewer)]) == (0, [wanted("shuffled")[45:]])
    assert list(Loader(folder, seq_len=SEQ_LEN).resume({**state, "windows": 48})) == []


@pytest.mark.parametrize("ahead", [1, 3, 7, 50])
@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_it_does_not_matter_how_many_windows_are_found_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, order: Any, ahead: int
) -> None:
    monkeypatch.setattr(window_order, "_AHEAD", ahead)

    for batch in (1, 2, 5):
        assert rows(Loader(folder, seq_len=SEQ_LEN, batch=batch, order=order)) == wanted(order)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_short_last_step_is_dealt_out_evenly(folder: Path, ranks: int) -> None:
    lasts = [len(list(loader)[-1]) for loader in on_ranks(folder, ranks, batch=7)]

    assert max(lasts) - min(lasts) <= 1
    assert sum(lasts) == (48 % (7 * ranks))


@pytest.mark.parametrize(("ranks", "batch", "dropped"), [(1, 7, 6), (5, 3, 3), (2, 8, 0), (7, 7, 48)])
def test_drop_last_drops_the_windows_that_it_says(folder: Path, ranks: int, batch: int, dropped: int) -> None:
    loaders = on_ranks(folder, ranks, batch=batch, drop_last=True)
    served = [row for step in step_by_step(loaders) for row in step]

    assert [loader.dropped for loader in loaders] == [dropped] * ranks
    assert served == wanted("shuffled")[: 48 - dropped]
    assert len(loaders[0]) == (48 - dropped) // (ranks * batch)
    # Each dropped window is seq_len tokens more than are served; what fills no window was never to be.
    assert loaders[0].passed == sum(LENGTHS) - 48 * SEQ_LEN - 3 + dropped * SEQ_LEN


@given(
    seed=st.integers(0, 3),
    order=st.sampled_from(["sequential", "shuffled"]),
    drop_last=st.sampled_from([None, True, False]),
    changes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 4)), min_size=1),
)
@settings(unhurried, max_examples=100)
def test_ranks_and_batches_may_change_at_any_step(
    folder: Path, seed: int, order: str, drop_last: bool | None, changes: list[tuple[int, int, int]]
) -> None:
    state = None
    epoch = at = passed = 0
    for ranks, batch, most in changes:
        loaders = on_ranks(folder, ranks, batch=batch, order=order, seed=seed, drop_last=drop_last)
        for loader in loaders:
            if state is not None:
                loader.resume(json.loads(json.dumps(state)))
        sizes = step_sizes(48 - at, batch, ranks, drop_last)
        assert {loader.dropped for loader in loaders} == {48 - at - sum(sizes)}
        # One more than is asked for ends the epoch.
        steps = step_by_step(loaders)
        for size in sizes[:most]:
            assert next(steps) == wanted(order, seed, epoch)[at : at + size]
            at += size
        if len(sizes) < most:
            assert next(steps, None) is None
            passed += sum(LENGTHS) - at * SEQ_LEN - 3
            epoch, at = epoch + 1, 0
        states = [loader.state() for loader in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]
        assert (state["epoch"], state["windows"], state["passed_before"]) == (epoch, at, passed)


def test_the_rest_is_the_rest_at_every_step(folder: Path) -> None:
    loader = Loader(folder, seq_len=SEQ_LEN, batch=5)
    states = [loader.state(), *(loader.state() for _ in loader)]

    for at, state in enumerate(states):
        rest = Loader(folder, seq_len=SEQ_LEN, batch=3).resume(state)
        assert rows(list(rest)) == wanted("shuffled")[5 * at :]


def test_the_next_loop_is_the_next_epoch(folder: Path) -> None:
    loader = Loader(folder, seq_len=SEQ_LEN, seed=2)

    for epoch in range(3):
        assert loader.epoch == epoch
        assert rows(loader) == wanted("shuffled", 2, epoch)
    again = Loader(folder, seq_len=SEQ_LEN, seed=2).resume(loader.state())
    assert rows(again) == wanted("shuffled", 2, 3)


def test_a_state_of_the_last_batch_gives_nothing_and_then_the_next_epoch(folder: Path) -> None:
    loader = Loader(folder, seq_len=SEQ_LEN)
    state = [loader.state() for _ in loader][-1]
    resumed = Loader(folder, seq_len=SEQ_LEN).resume(state)

    assert (resumed.epoch, list(resumed)) == (0, [])
    assert (resumed.epoch, rows(resumed)) == (1, wanted("shuffled", 0, 1))


def test_a_loop_that_was_left_goes_on_where_it_was(folder: Path) -> None:
    loader = Loader(folder, seq_len=SEQ_LEN, batch=4)
    first = next(iter(loader))

    assert rows([first]) + rows(loader) == wanted("shuffled")


def test_skipping_is_reading_without_looking(folder: Path) -> None:
    loader = Loader(folder, seq_len=SEQ_LEN, batch=4)
    loader.skip(5)

    assert rows(loader) == wanted("shuffled")[20:]


def test_set_epoch_goes_to_another_epoch_but_stays_in_the_same(folder: Path) -> None:
    loader = Loader(folder, seq_len=SEQ_LEN, batch=4)
    loader.skip(3)
    loader.set_epoch(0)
    assert loader.state()["windows"] == 12
    loader.set_epoch(4)
    assert rows(loader) == wanted("shuffled", 0, 4)


@pytest.mark.parametrize("lanes", [1, 2, 3, 20])
def test_workers_that_take_turns_serve_the_order_of_one(folder: Path, lanes: int) -> None:
    shares = [
        [batch.tolist() for batch in Loader(folder, seq_len=SEQ_LEN, batch=5).steps(lane, lanes)]
        for lane in range(lanes)
    ]

    turns = [shares[step % lanes][step // lanes] for step in range(10)]
    assert [row for batch in turns for row in batch] == wanted("shuffled")


def test_inputs_and_targets_are_views_of_the_window(folder: Path) -> None:
    batch = next(iter(Loader(folder, seq_len=SEQ_LEN, order="sequential")))
    x, y = inputs_and_targets(batch)

    assert x[0].tolist() == [*range(8)]
    assert y[0].tolist() == [*range(1, 9)]
    assert np.shares_memory(x, batch)
    assert np.shares_memory(y, batch)


def test_a_batch_belongs_to_the_caller(folder: Path) -> None:
    before = [path.read_bytes() for path in sorted(folder.iterdir())]
    for batch in Loader(folder, seq_len=SEQ_LEN, order="sequential"):
        np.add(batch, 1, out=batch)

    assert [path.read_bytes() for path in sorted(folder.iterdir())] == before
    assert rows(Loader(folder, seq_len=SEQ_LEN, order="sequential")) == wanted("sequential")


def test_a_loader_is_pickled_without_the_tokens_and_goes_on(tmp_path: Path) -> None:
    write(tmp_path, told([100_000]))
    loader = Loader(tmp_path, seq_len=99, batch=10)
    first = next(iter(loader))
    pickled = pickle.dumps(loader)

    assert len(pickled) < 10_000
    assert rows([first]) + rows(pickle.loads(pickled)) == shuffled(windows(told([100_000]), 99), 0, 0)


@pytest.mark.parametrize(
    ("choices", "name"),
    [({"seq_len": 9}, "seq_len"), ({"seed": 1}, "seed"), ({"order": "sequential"}, "order")],
)
def test_a_state_of_another_loader_is_refused(folder: Path, choices: dict[str, Any], name: str) -> None:
    state = Loader(folder, **{"seq_len": SEQ_LEN, **choices}).state()

    with pytest.raises(UsageError, match=f"different {name}"):
        Loader(folder, seq_len=SEQ_LEN).resume(state)


@pytest.mark.parametrize("change", ["longer", "renamed", "one more", "one less"])
def test_a_state_of_other_shards_is_refused(tmp_path: Path, change: str) -> None:
    shards = told([100, 100])
    write(tmp_path / "then", shards)
    now = {"longer": told([100, 101]), "one more": told([100, 100, 100]), "one less": told([100])}
    write(tmp_path / "now", now.get(change, shards), split="train" if change != "renamed" else "train_new")
    state = Loader(tmp_path / "then", seq_len=SEQ_LEN).state()

    with pytest.raises(UsageError, match="different shards"):
        Loader(tmp_path / "now", seq_len=SEQ_LEN).resume(state)
    moved = (tmp_path / "then").rename(tmp_path / "elsewhere")
    assert Loader(moved, seq_len=SEQ_LEN).resume(state).state() == state


NUMBERS = ("seq_len", "batch", "seed", "rank", "ranks")


@pytest.mark.parametrize("wrong", [None, 1.0, True, "1", np.float64(1), np.True_, [1]], ids=repr)
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_whole_number_is_refused(folder: Path, name: str, wrong: object) -> None:
    with pytest.raises(UsageError, match=f"{name} must be a whole number"):
        Loader(folder, **{"seq_len": SEQ_LEN, name: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [np.int64, np.uint16, np.array])
def test_a_loader_of_numpy_s_numbers_is_that_of_plain_ones(folder: Path, kind: Any) -> None:
    plain = {"seq_len": SEQ_LEN, "batch": 4, "seed": 7, "rank": 1, "ranks": 2}
    loader = Loader(folder, **{name: kind(value) for name, value in plain.items()})
    loader.set_epoch(kind(2))
    loader.skip(3)
    state = json.loads(json.dumps(loader.state()))

    again = Loader(folder, **plain).resume(state)  # type: ignore[arg-type]
    assert again.state() == state
    assert rows(again) == rows(loader)


@pytest.mark.parametrize("wrong", [-1, 1.0, None, True, "1"])
def test_an_epoch_that_no_state_could_tell_is_refused(folder: Path, wrong: Any) -> None:
    loader = Loader(folder, seq_len=SEQ_LEN)
    before = loader.state()

    with pytest.raises(UsageError, match="epoch"):
        loader.set_epoch(wrong)
    assert loader.state() == before


@pytest.mark.parametrize("seed", [-5, 2**70])
def test_any_whole_number_is_a_seed_that_can_be_resumed(folder: Path, seed: int) -> None:
    loader = Loader(folder, seq_len=SEQ_LEN, seed=seed)
    loader.skip(2)
    again = Loader(folder, seq_len=SEQ_LEN, seed=seed).resume(json.loads(json.dumps(loader.state())))

    assert rows(again) == wanted("shuffled", seed)[16:]


@pytest.mark.parametrize(
    "wrong", [None, "state", b"", [1], [("seed", 0)], 7, {1: 2}, {"\ud800": 0}], ids=repr
)
def test_only_a_mapping_of_words_is_a_state(folder: Path, wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"(?s)not the state of a loader.*Loader\.state"):
        Loader(folder, seq_len=SEQ_LEN).resume(wrong)


@pytest.mark.parametrize(
    "wrong", [{}, {"order": "shuffled"}, {"epoch": "1"}, {"windows": -1}, {"new": 1}, {"\ud800": 1}]
)
def test_what_is_no_state_is_refused(folder: Path, wrong: dict[str, Any]) -> None:
    loader = Loader(folder, seq_len=SEQ_LEN)
    state = {**loader.state(), **wrong} if wrong.keys() - {"order"} else wrong

    with pytest.raises(UsageError, match="not the state of a loader"):
        loader.resume(state)


def test_a_state_behind_the_end_is_refused(folder: Path) -> None:
    loader = Loader(folder, seq_len=SEQ_LEN)

    assert list(loader.resume({**loader.state(), "windows": 48})) == []
    with pytest.raises(UsageError, match="past the end of the epoch"):
        loader.resume({**loader.state(), "windows": 49})


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ({"seq_len": 0}, "at least 1"),
        ({"batch": 0}, "at least 1"),
        ({"rank": 2, "ranks": 2}, "rank must be"),
        ({"rank": -1}, "rank must be"),
        ({"order": "random"}, "order must be one of"),
        ({"split": "test"}, "split must be"),
        ({"follow": True}, "order='sequential'"),
        ({"raw": "int64"}, "raw must be uint16 or uint32"),
        ({"raw": ""}, "raw must be"),
        ({"seq_len": 1000}, "too few tokens"),
        ({"order": "documents"}, "order='shuffled'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(folder: Path, choices: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Loader(folder, **choices)


def test_that_most_shards_are_too_short_is_told_once_where_the_loader_is_made(tmp_path: Path) -> None:
    write(tmp_path, told([50, 50, 50, 149]))

    with pytest.warns(UserWarning, match=r"(?s)3 of 4 .*150 of 299 .*smaller seq_len") as warned:
        loader = Loader(tmp_path, seq_len=50)
    assert [Path(one.filename).name for one in warned] == [Path(__file__).name]
    assert rows(pickle.loads(pickle.dumps(loader))) == rows(loader) != []


@pytest.mark.parametrize(("lengths", "seq_len"), [([50, 50, 100], 50), ([51, 51, 1], 50), ([99], 50)])
def test_a_few_short_shards_are_not_worth_a_word(tmp_path: Path, lengths: list[int], seq_len: int) -> None:
    write(tmp_path, told(lengths))

    assert rows(Loader(tmp_path, seq_len=seq_len)) != []


def test_documents_of_short_shards_fill_windows_without_a_word(
    run: tuple[Path, list[list[int]]],
) -> None:
    assert rows(Loader(run[0], seq_len=3000, order="documents")) != []


def test_four_byte_tokens_are_served_as_such(tmp_path: Path) -> None:
    shards = told([100_000, 200_000], width=4)
    write(tmp_path, shards, width=4)
    served = list(Loader(tmp_path, seq_len=1000, batch=13))

    assert rows(served) == shuffled(windows(shards, 1000), 0, 0)
    assert served[0].dtype == np.dtype(np.uint32)


@pytest.mark.skipif(os.name == "nt", reason="the file has a hole of 8 GB, which Windows would write")
@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_a_file_of_more_than_four_billion_tokens_is_served_to_its_end(order: Any, tmp_path: Path) -> None:
    seq_len, count = 2**22, 2**10 + 1
    last = np.arange(seq_len + 1, dtype=np.uint32).astype(np.uint16)
    with (tmp_path / "train.bin").open("wb") as file:
        file.seek(2 * seq_len * (count - 1))
        last.tofile(file)
    loader = Loader(tmp_path, seq_len=seq_len, batch=1, order=order)
    turns = [*range(count)] if order == "sequential" else shuffled([*range(count)], 0, 0)
    turn = turns.index(count - 1)

    assert len(loader) == count
    assert seq_len * (count - 1) == 2**32
    served = next(iter(loader.resume({**loader.state(), "windows": turn})))
    assert np.array_equal(served, [last])


RUNS = [
    ("independent", "before", "merge"),
    ("independent", "after", "keep"),
    ("contiguous", "before", "keep"),
    ("contiguous", "after", "merge"),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.varied(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module", params=RUNS, ids=["-".join(run) for run in RUNS])
def run(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a run's folder, and its documents as the oracle has them."""
    layout, eot, last = request.param
    out = tmp_path_factory.mktemp("run") / "out"
    choices = {"shard_tokens": corpus.LONG_SHARD_TOKENS, "layout": layout, "eot": eot, "last": last}
    assert runner.convert(source, out, tokenizer="bytes", val_tokens=0, **choices).complete
    return out, documents(source, **choices)


@pytest.mark.parametrize("seq_len", [1, 16, 100, 999, 3000])
def test_documents_are_shuffled_and_packed(run: tuple[Path, list[list[int]]], seq_len: int) -> None:
    out, told_documents = run
    for epoch in range(2):
        right = packed(shuffled(told_documents, 4, epoch), seq_len)
        loader = Loader(out, order="documents", seq_len=seq_len, seed=4)
        loader.set_epoch(epoch)
        assert rows(loader) == right
        total = sum(path.stat().st_size - 1024 for path in out.glob("*_train_*.bin")) // 2
        assert loader.passed == total - len(right) * (seq_len + 1)


@pytest.mark.parametrize("ahead", [1, 2, 7, 50])
@pytest.mark.parametrize("seq_len", [1, 50, 999])
def test_it_does_not_matter_how_many_documents_are_looked_up_at_a_time(
    run: tuple[Path, list[list[int]]], monkeypatch: pytest.MonkeyPatch, ahead: int, seq_len: int
) -> None:
    monkeypatch.setattr(document_order, "_AHEAD", ahead)
    out, told_documents = run

    served = rows(Loader(out, order="documents", seq_len=seq_len))
    assert served == packed(shuffled(told_documents, 0, 0), seq_len)


def test_every_window_of_documents_begins_with_one(run: tuple[Path, list[list[int]]]) -> None:
    out, told_documents = run
    beginnings = {tuple(document[:4]) for document in told_documents}
    for row in rows(Loader(out, order="documents", seq_len=50)):
        assert any(tuple(row[: len(beginning)]) == beginning for beginning in beginnings)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("batch", [1, 4, 50])
def test_all_ranks_walk_the_same_packing(run: tuple[Path, list[list[int]]], ranks: int, batch: int) -> None:
    out, told_documents = run
    right = packed(shuffled(told_documents, 0, 0), SEQ_LEN)
    for drop_last in (None, True, False):
        loaders = on_ranks(out, ranks, order="documents", batch=batch, drop_last=drop_last)
        steps = list(step_by_step(loaders))

        assert [len(step) for step in steps] == step_sizes(len(right), batch, ranks, drop_last)
        assert [row for step in steps for row in step] == right[: sum(map(len, steps))]
        assert len({json.dumps(loader.state()) for loader in loaders}) == 1
        assert drop_last is not False or sum(map(len, steps)) == len(right)


def test_no_rank_is_served_an_empty_batch_of_documents(run: tuple[Path, list[list[int]]]) -> None:
    out, told_documents = run
    right = packed(shuffled(told_documents, 0, 0), 64)
    # So that one window is left for all the ranks.
    ranks = next(ranks for ranks in range(2, len(right)) if len(right) % ranks == 1)
    loaders = [Loader(out, seq_len=64, order="documents", batch=1, rank=r, ranks=ranks) for r in range(ranks)]
    batches = [list(loader) for loader in loaders]

    assert {len(batch) for of_one in batches for batch in of_one} == {1}
    assert [row for step in zip(*batches, strict=True) for row in rows(step)] == right[:-1]
    total = sum(path.stat().st_size - 1024 for path in out.glob("*_train_*.bin")) // 2
    assert {loader.passed for loader in loaders} == {total - (len(right) - 1) * 65}


def test_documents_of_fewer_windows_than_ranks_are_refused(run: tuple[Path, list[list[int]]]) -> None:
    out, told_documents = run
    most = len(packed(shuffled(told_documents, 0, 0), 64))
    tokens = sum(path.stat().st_size - 1024 for path in out.glob("*_train_*.bin")) // 2
    choices: dict[str, Any] = {"seq_len": 64, "order": "documents"}

    with pytest.raises(UsageError, match="fewer windows than ranks"):
        Loader(out, **choices, ranks=tokens // 65 + 1)
    # Tokens would do, but documents are cut: that is only known at the end of an epoch.
    loader = Loader(out, **choices, ranks=most + 1)
    with pytest.raises(UsageError, match=r"(?s)fewer windows than ranks.*fewer than"):
        next(iter(loader))
    assert len(list(Loader(out, **choices, batch=1, ranks=most))) == 1


@given(
    changes=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(0, 5)), min_size=1, max_size=4
    )
)
@settings(unhurried, max_examples=8)
def test_document_order_can_be_resumed_by_other_ranks(
    run: tuple[Path, list[list[int]]], changes: list[tuple[int, int, int]]
) -> None:
    out, told_documents = run
    right = packed(shuffled(told_documents, 0, 0), 33)
    served: list[list[int]] = []
    state = Loader(out, seq_len=33, order="documents").state()
    for ranks, batch, most in changes:
        # Each window is asked for once: in the last step, too.
        choices: dict[str, Any] = {"order": "documents", "batch": batch, "ranks": ranks, "drop_last": False}
        loaders = [Loader(out, seq_len=33, rank=rank, **choices).resume(state) for rank in range(ranks)]
        for _, step in zip(range(most), step_by_step(loaders), strict=False):
            served += step
        state = loaders[-1].state()
        if state["epoch"]:
            break

    assert served == right[: len(served)]
    assert rows(Loader(out, seq_len=33, order="documents").resume(state)) == (
        right[len(served) :] if not state["epoch"] else packed(shuffled(told_documents, 0, 1), 33)
    )


@pytest.mark.parametrize("lanes", [2, 3])
def test_workers_that_take_turns_serve_the_documents_of_one(
    run: tuple[Path, list[list[int]]], lanes: int
) -> None:
    out, told_documents = run
    loaders = [Loader(out, seq_len=20, order="documents", batch=5) for _ in range(lanes)]
    shares = [[batch.tolist() for batch in loader.steps(lane, lanes)] for lane, loader in enumerate(loaders)]

    turns = [shares[step % lanes][step // lanes] for step in range(sum(map(len, shares)))]
    assert [row for batch in turns for row in batch] == packed(shuffled(told_documents, 0, 0), 20)
    assert len({json.dumps(loader.state()) for loader in loaders}) == 1


def test_a_loader_of_documents_is_pickled_and_goes_on(run: tuple[Path, list[list[int]]]) -> None:
    out, told_documents = run
    loader = Loader(out, seq_len=20, order="documents")
    first = next(iter(loader))

    rest = rows(pickle.loads(pickle.dumps(loader)))
    assert rows([first]) + rest == packed(shuffled(told_documents, 0, 0), 20)


def test_a_step_that_documents_do_not_fill_is_dropped_and_counted(run: tuple[Path, list[list[int]]]) -> None:
    out, told_documents = run
    right = packed(shuffled(told_documents, 0, 0), 64)
    loader = Loader(out, seq_len=64, order="documents", batch=9, drop_last=True)
    served = rows(loader)

    assert served == right[: len(right) // 9 * 9]
    assert loader.dropped is None
    total = sum(path.stat().st_size - 1024 for path in out.glob("*_train_*.bin")) // 2
    assert loader.passed == total - len(served) * 65


def test_how_many_steps_documents_give_is_not_known_beforehand(run: tuple[Path, list[list[int]]]) -> None:
    with pytest.raises(TypeError, match="documents"):
        len(Loader(run[0], order="documents"))


def test_sequential_windows_of_a_run_are_those_of_its_files(run: tuple[Path, list[list[int]]]) -> None:
    out = run[0]
    files = sorted(out.glob("*_train_*.bin"))
    shards = [np.fromfile(path, "<u2", offset=1024).tolist() for path in files]

    assert rows(Loader(out, seq_len=31, order="sequential")) == windows(shards, 31)
