"""The loader as a dataset of PyTorch: the same batches with any number of workers, saved and resumed."""

import copy
import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loader_oracle import shuffled, told, windows, write

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")

from torch.utils.data import DataLoader  # noqa: E402

from fwconvert.errors import UsageError  # noqa: E402
from fwconvert.loader import Loader  # noqa: E402
from fwconvert.loader.torch import TokenDataset  # noqa: E402

LENGTHS = (100, 33, 257)
SEQ_LEN = 8

pytestmark = [
    # PyTorch advises not to have more workers than cores.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # torchdata 0.11 calls what PyTorch 2.13 would rather not have called.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return somebody else's shards: 48 windows."""
    return write(tmp_path_factory.mktemp("shards"), told(LENGTHS))


def dataset(folder: Path, batch: int = 5, **choices: Any) -> Any:
    return TokenDataset(Loader(folder, seq_len=SEQ_LEN, batch=batch, **choices))


def wanted(epoch: int = 0) -> list[list[int]]:
    return shuffled(windows(told(LENGTHS), SEQ_LEN), 0, epoch)


def rows(batches: Any) -> list[list[int]]:
    """Return the windows that the pairs of tensors were made of."""
    found = []
    for x, y in batches:
        assert x[:, 1:].tolist() == y[:, :-1].tolist()
        found += [[*row, last] for row, last in zip(x.tolist(), y[:, -1].tolist(), strict=True)]
    return found


def test_a_batch_is_two_contiguous_tensors_of_int64(folder: Path) -> None:
    x, y = next(iter(dataset(folder)))

    assert x.dtype == y.dtype == torch.int64
    assert tuple(x.shape) == tuple(y.shape) == (5, SEQ_LEN)
    assert y.view(-1).tolist() == [token for row in y.tolist() for token in row]


@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (3, "fork")])
def test_the_order_does_not_depend_on_the_workers(folder: Path, workers: int, start: str | None) -> None:
    served = DataLoader(dataset(folder), batch_size=None, num_workers=workers, multiprocessing_context=start)

    assert rows(served) == wanted()


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_differ_and_are_those_of_the_loader(folder: Path, workers: int) -> None:
    made = dataset(folder)
    for epoch in range(3):
        made.set_epoch(epoch)
        assert rows(DataLoader(made, batch_size=None, num_workers=workers)) == wanted(epoch)


# How a DataLoader may serve: without workers, with new ones for each epoch, with some that live on.
WAYS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "one": {"num_workers": 1},
    "two": {"num_workers": 2},
    "three, far ahead": {"num_workers": 3, "prefetch_factor": 20},
    "two that live on": {"num_workers": 2, "persistent_workers": True},
}
SPAWNED = {"num_workers": 2, "multiprocessing_context": "spawn"}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WAYS[request.param]


@pytest.mark.parametrize(
    "choices", [*WAYS.values(), SPAWNED, {**SPAWNED, "persistent_workers": True}], ids=str
)
def test_the_next_iteration_is_the_next_epoch(folder: Path, choices: dict[str, Any]) -> None:
    served = DataLoader(dataset(folder), batch_size=None, **choices)

    # Each epoch of spawned workers that do not live on imports PyTorch in each of them.
    for epoch in range(2 if choices is SPAWNED else 3):
        assert rows(served) == wanted(epoch)


def test_epochs_go_on_though_pytorch_is_seeded_before_each(folder: Path, way: dict[str, Any]) -> None:
    served = DataLoader(dataset(folder), batch_size=None, **way)

    for epoch in range(3):
        torch.manual_seed(1)
        assert rows(served) == wanted(epoch)


def test_epochs_go_on_with_another_dataloader_and_other_workers(folder: Path) -> None:
    made = dataset(folder)

    for epoch, workers in enumerate([2, 3, 1, 2, 3, 3]):
        torch.manual_seed(1)
        assert rows(DataLoader(made, batch_size=None, num_workers=workers)) == wanted(epoch)


def test_who_sets_the_epoch_is_obeyed(folder: Path, way: dict[str, Any]) -> None:
    made = dataset(folder)
    served = DataLoader(made, batch_size=None, **way)

    for epoch in (0, 0, 5, 2, 2):
        made.set_epoch(epoch)
        # Without workers the present epoch is gone on with, and it has ended.
        made.loader.resume({**made.loader.state(), "windows": 0})
        assert rows(served) == wanted(epoch)
    assert rows(served) == wanted(3)


@pytest.mark.parametrize("way", ["one", "two", "two that live on"], indirect=True)
def test_workers_begin_an_epoch_again_that_was_left(folder: Path, way: dict[str, Any]) -> None:
    made = dataset(folder)
    made.loader.skip(1)
    served = DataLoader(made, batch_size=None, **{**way, "prefetch_factor": 1})

    for epoch, begin in ((0, 5), (1, 0)):
        for _ in range(2):
            left = iter(served)
            assert rows([next(left)]) == wanted(epoch)[begin : begin + 5]
            del left
        assert rows(served) == wanted(epoch)[begin:]


def test_without_workers_an_epoch_that_was_left_goes_on(folder: Path) -> None:
    served = DataLoader(dataset(folder), batch_size=None)

    assert rows([next(iter(served))]) + rows(served) == wanted(0)
    assert rows(served) == wanted(1)


@pytest.mark.parametrize("lives_on", [False, True])
@pytest.mark.parametrize("left", [1, *range(5, 10)])
def test_workers_agree_on_the_epoch_though_the_last_was_left_near_its_end(
    folder: Path, lives_on: bool, left: int
) -> None:
    served = DataLoader(dataset(folder), batch_size=None, num_workers=3, persistent_workers=lives_on)
    epoch = 0
    for _ in range(4):
        steps = iter(served)
        first = rows(next(steps) for _ in range(left))
        # Whether workers had ended it is their secret, but it is this epoch or the next.
        epoch += first != wanted(epoch)[: 5 * left]
        assert first == wanted(epoch)[: 5 * left]
    served.dataset.set_epoch(epoch + 1)
    assert rows(served) == wanted(epoch + 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_begin_where_the_loader_was_moved_to_between_epochs(folder: Path, workers: int) -> None:
    made = dataset(folder)
    served = DataLoader(made, batch_size=None, num_workers=workers)
    begin = made.loader.state()
    middle = {**begin, "epoch": 7, "windows": 15}

    assert rows(served) == wanted(0)
    assert rows(served) == wanted(1)
    for state, rest in ((middle, wanted(7)[15:]), (begin, wanted(0))):
        made.loader.resume(state)
        assert rows(served) == rest
        made.load_state_dict({**made.state_dict(), "loader": state})
        assert rows(served) == rest
    assert rows(served) == wanted(1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_a_copy_of_a_dataset_has_epochs_too(folder: Path, copied: Any) -> None:
    served = DataLoader(copied(dataset(folder)), batch_size=None, num_workers=2)

    assert [rows(served), rows(served)] == [wanted(0), wanted(1)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_that_was_left_at_its_batch_size_gives_the_batches_as_they_are(
    folder: Path, workers: int
) -> None:
    served = DataLoader(dataset(folder), num_workers=workers)
    first = next(iter(served))

    assert [tuple(tensor.shape) for tensor in first] == [(5, SEQ_LEN)] * 2
    served.dataset.set_epoch(3)
    assert rows(served) == wanted(3)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_that_would_stack_batches_is_refused(folder: Path, workers: int) -> None:
    served = DataLoader(dataset(folder), batch_size=4, num_workers=workers)

    with pytest.raises(UsageError, match=r"(?s)would stack them.*4 or more.*5\n.*batch_size=None.*batch="):
        next(iter(served))


def test_a_batch_has_names_and_may_be_collated_by_the_caller(folder: Path) -> None:
    def named(pair: Any) -> dict[str, Any]:
        return {"input_ids": pair.inputs, "labels": pair.targets}

    for workers in (0, 2):
        made = DataLoader(dataset(folder), batch_size=None, num_workers=workers, collate_fn=named)
        assert rows((batch["input_ids"], batch["labels"]) for batch in made) == wanted(0)
        assert rows((batch["input_ids"], batch["labels"]) for batch in made) == wanted(1)


@pytest.mark.parametrize("batch", [5, 100])
@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_dataloader_knows_how_many_batches_an_epoch_has(
    folder: Path, way: dict[str, Any], batch: int, batch_size: int | None
) -> None:
    made = dataset(folder, batch)
    served = DataLoader(made, batch_size=batch_size, **way)

    for _ in range(2):
        assert len(served) == len(made) == -(-48 // batch) == len([*served])


def test_ranks_with_workers_take_equally_many_steps_and_none_is_empty(folder: Path) -> None:
    loaders = [
        DataLoader(dataset(folder, 3, rank=rank, ranks=5), batch_size=None, num_workers=2)
        for rank in range(5)
    ]
    batches = [[*served] for served in loaders]

    assert [len(of_one) for of_one in batches] == [len(served) for served in loaders] == [3] * 5
    assert all(torch.isfinite(x.float().mean()) for of_one in batches for x, _ in of_one)
    assert [row for step in zip(*batches, strict=True) for row in rows(step)] == wanted()[:45]


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_begin_where_the_loader_is(folder: Path, workers: int) -> None:
    made = dataset(folder)
    made.loader.skip(4)

    assert rows(DataLoader(made, batch_size=None, num_workers=workers)) == wanted()[20:]


def stateful(made: Any, workers: int) -> Any:
    kind = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    return kind.StatefulDataLoader(made, batch_size=None, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("steps", [0, 1, 2, 5, 9, 10])
def test_a_stateful_dataloader_resumes_with_exactly_the_rest(folder: Path, workers: int, steps: int) -> None:
    first = stateful(dataset(folder), workers)
    served: Iterator[Any] = iter(first)
    before = rows(next(served) for _ in range(steps))
    state = first.state_dict()
    again = stateful(dataset(folder), workers)
    again.load_state_dict(state)

    assert before == wanted()[: 5 * steps]
    assert rows(again) == wanted()[5 * steps :]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("steps", [0, 1, 2, 5, 9, 10])
def test_a_stateful_dataloader_resumes_in_a_later_epoch_and_goes_on_to_the_next(
    folder: Path, workers: int, steps: int
) -> None:
    first = stateful(dataset(folder), workers)
    assert rows(first) == wanted(0)
    served: Iterator[Any] = iter(first)
    before = rows(next(served) for _ in range(steps))
    state = first.state_dict()
    again = stateful(dataset(folder), workers)
    again.load_state_dict(state)

    assert before == wanted(1)[: 5 * steps]
    assert rows(again) == wanted(1)[5 * steps :]
    assert rows(again) == wanted(2)
    first.load_state_dict(state)
    assert rows(first) == wanted(1)[5 * steps :]
    assert rows(first) == wanted(2)


class Dawdling(TokenDataset):
    """Its workers take their time before they find out whether anything is left."""

    def _batches(self) -> Iterator[Any]:
        time.sleep(0.5)
        yield from super()._batches()


def test_the_epoch_after_an_ended_one_does_not_depend_on_how_fast_workers_are(folder: Path) -> None:
    # StatefulDataLoader starts workers at the end of the old epoch, and leaves them at once.
    first = stateful(dataset(folder), 3)
    assert rows(first) == wanted(0)
    again = stateful(Dawdling(Loader(folder, seq_len=SEQ_LEN, batch=5)), 3)
    again.load_state_dict(first.state_dict())

    assert rows(again) == wanted(1)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_stateful_dataloader_that_has_ended_an_epoch_resumes_with_the_next(
    folder: Path, workers: int
) -> None:
    first = stateful(dataset(folder), workers)
    assert [rows(first), rows(first)] == [wanted(0), wanted(1)]
    again = stateful(dataset(folder), workers)
    again.load_state_dict(first.state_dict())

    assert [rows(again), rows(again)] == [wanted(2), wanted(3)]


@pytest.mark.parametrize(("drop_last", "dropped"), [(None, 1), (False, 0)])
def test_without_workers_a_state_fits_other_ranks(folder: Path, drop_last: bool | None, dropped: int) -> None:
    first = stateful(dataset(folder), 0)
    served = iter(first)
    before = rows(next(served) for _ in range(3))
    state = first.state_dict()
    parts = []
    for rank in range(2):
        again = stateful(dataset(folder, batch=4, rank=rank, ranks=2, drop_last=drop_last), 0)
        again.load_state_dict(state)
        parts.append([rows([pair]) for pair in again])

    rest = [row for both in zip(*parts, strict=True) for part in both for row in part]
    # 33 windows are left: four steps of 8, and one that two ranks cannot share.
    assert before + rest == wanted()[: 48 - dropped]


def test_a_state_of_a_worker_is_refused_where_turns_are_taken_otherwise(folder: Path) -> None:
    made = dataset(folder)
    state = {**made.state_dict(), "workers": 2}

    with pytest.raises(UsageError, match="2 then, 1 now"):
        made.load_state_dict(state)


def test_a_state_is_plain_json(folder: Path) -> None:
    made = dataset(folder)
    next(iter(made))
    state = json.loads(json.dumps(made.state_dict()))
    again = dataset(folder, batch=3)
    again.load_state_dict(state)

    assert rows(again) == wanted()[5:]
