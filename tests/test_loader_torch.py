"""The loader as a dataset of PyTorch: the same batches with any number of workers, saved and resumed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loader_oracle import shuffled, told, windows, write

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")

from torch.utils.data import DataLoader  # noqa: E402

from fwconvert.errors import UsageError  # noqa: E402
from fwconvert.loader import Loader  # noqa: E402
from fwconvert.loader_torch import TokenDataset  # noqa: E402

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


@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (3, "fork"), (2, "spawn")])
def test_the_order_does_not_depend_on_the_workers(folder: Path, workers: int, start: str | None) -> None:
    served = DataLoader(dataset(folder), batch_size=None, num_workers=workers, multiprocessing_context=start)

    assert rows(served) == wanted()


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_differ_and_are_those_of_the_loader(folder: Path, workers: int) -> None:
    made = dataset(folder)
    for epoch in range(3):
        made.set_epoch(epoch)
        assert rows(DataLoader(made, batch_size=None, num_workers=workers)) == wanted(epoch)


def test_workers_that_live_on_go_to_the_next_epoch_by_themselves(folder: Path) -> None:
    served = DataLoader(dataset(folder), batch_size=None, num_workers=2, persistent_workers=True)

    assert [rows(served), rows(served)] == [wanted(0), wanted(1)]


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


def test_without_workers_a_state_fits_other_ranks(folder: Path) -> None:
    first = stateful(dataset(folder), 0)
    served = iter(first)
    before = rows(next(served) for _ in range(3))
    state = first.state_dict()
    parts = []
    for rank in range(2):
        again = stateful(dataset(folder, batch=4, rank=rank, ranks=2), 0)
        again.load_state_dict(state)
        parts.append([rows([pair]) for pair in again])

    rest = [row for both in zip(*parts, strict=True) for part in both for row in part]
    assert before + rest == wanted()


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
