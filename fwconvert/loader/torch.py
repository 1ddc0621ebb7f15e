"""The loader as a PyTorch dataset.

    dataset = TokenDataset(Loader("OUT", batch=8, rank=rank, ranks=ranks))
    for x, y in DataLoader(dataset, batch_size=None, num_workers=2): ...

Batches come in the same order with any number of worker processes: worker w of
n serves every n-th step, and DataLoader takes one from each in turn. torchdata's
StatefulDataLoader saves and resumes it, with workers in the middle of an epoch.
"""

from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from fwconvert.errors import UsageError, message
from fwconvert.loader import Loader, inputs_and_targets
from fwconvert.shards.cutting import Tokens

# More than any machine has cores for.
_MOST_WORKERS = 4_096
# How many iterations are remembered. A slow worker may be several behind, if they were left at once.
_TURNS = 64


class Pair(NamedTuple):
    """A batch: int64 tensors with a row for each window."""

    inputs: torch.Tensor
    targets: torch.Tensor


class TokenDataset(IterableDataset[Pair]):
    """Yields (inputs, targets), a whole batch each: use it with batch_size=None.

    Each iteration is an epoch, and the next is the next epoch, with and without
    worker processes. One that is left before its end continues where it was. With
    workers, which work ahead of the loop, it begins again; if no more was left
    of it than they had ready, it may count as ended. `set_epoch` makes certain.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        # How many steps of other workers come before our next; None at the beginning.
        self._skip: int | None = None
        self._turns = _Turns(loader.epoch)
        # The next two are set in worker processes only: where the loader was when the process began,
        self._home: _Home | None = None
        # whether it was given a state to resume from,
        self._resumed = False
        # and whether the end of its epoch is recorded.
        self._has_ended = False

    def __iter__(self) -> Iterator[Pair]:
        # Now, not with the first batch: our state may be asked for before that.
        if get_worker_info() is not None:
            self._begin()
        return self._batches()

    def __len__(self) -> int:
        """How many batches a whole epoch has; TypeError if that is not known before its end."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; if it is the current one, keep the position."""
        self.loader.set_epoch(epoch)
        self._turns.put(self.loader.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position. Without workers it fits any number of ranks and any batch size."""
        worker, workers = _place()
        skip = worker if self._skip is None else self._skip
        return {"loader": self.loader.state(), "skip": skip, "workers": workers, "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where a state was taken; a worker's state fits only the same number of workers and steps."""
        here = {"workers": _place()[1], "step": self._step}
        shared = state["workers"] > 1
        if shared and any(state[name] != value for name, value in here.items()):
            raise UsageError(
                message(
                    "this state belongs to one of several workers, which shared the steps differently",
                    "resume with the same workers, ranks and batch, or from a state taken without workers",
                    workers=f"{state['workers']} then, {here['workers']} now",
                    windows_in_a_step=f"{state['step']} then, {here['step']} now",
                )
            )
        if get_worker_info() is not None:
            self._home, self._resumed = self._started(), True
        self.loader.resume(state["loader"])
        self._skip = state["skip"] if shared else None
        if not self._resumed:
            self._turns.put(self.loader.epoch)

    def _begin(self) -> None:
        """Go to where this iteration of a DataLoader begins; all its workers agree on that."""
        is_new, self._home = self._home is None, self._started()
        if self._resumed:
            self._turns.begin(self._home.moves, resumed=self.loader.epoch)
            self._resumed = False
            # Now: StatefulDataLoader starts workers at the end of an epoch only to leave them at once, and
            # does not wait for them to find out that nothing is left.
            self._has_ended = not self.loader.has_steps(_place()[0] if self._skip is None else self._skip)
            if self._has_ended:
                self._turns.end()
            return
        self._has_ended = False
        epoch = self._turns.begin(self._home.moves, here=self.loader.epoch if is_new else None)
        passed = self.loader.state()["passed_before"]
        self.loader.resume({**self._home.state, "passed_before": passed})
        self.loader.set_epoch(epoch)
        self._skip = None

    def _started(self) -> "_Home":
        return self._home or _Home(self.loader.state(), self.loader.moves)

    def _batches(self) -> Iterator[Pair]:
        worker, workers = _place()
        skip = worker if self._skip is None else self._skip
        for windows in self.loader.steps(skip, workers):
            self._skip = workers - 1
            yield _pair(windows)
        self._skip = None
        if get_worker_info() is not None and not self._has_ended:
            self._turns.end()

    @property
    def _step(self) -> int:
        return self.loader.batch * self.loader.ranks


class _Home(NamedTuple):
    """Where the loader was when a worker process began, and how often it had moved."""

    state: Mapping[str, Any]
    moves: int


class _Turn(NamedTuple):
    """An iteration of a DataLoader; or, without workers, an epoch that the caller has set as the next."""

    number: int
    epoch: int
    # That of DataLoader, which all workers of an iteration have in common.
    seed: int = -1
    workers: int = 0
    # How often the loader had moved when it began.
    moves: int = 0
    # How many of its workers have come to the end of the epoch.
    ended: int = 0

    @property
    def is_set(self) -> bool:
        """Whether it is not an iteration, but set by the caller."""
        return not self.workers

    @property
    def next_epoch(self) -> int:
        """The epoch that follows; it is the same if this one was left before its end."""
        return self.epoch + (not self.is_set and self.ended >= self.workers)


class _Turns:
    """Which epoch each iteration has: in memory that the worker processes share.

    DataLoader does not tell a dataset that an iteration begins. It starts workers
    with a copy of the dataset each, or lets those that live on start over. So the
    workers agree: the first of an iteration decides by what the one before has
    left here, and the others, who have the same seed from DataLoader, follow.
    """

    def __init__(self, epoch: int) -> None:
        self._turns = torch.zeros((_TURNS, len(_Turn._fields)), dtype=torch.int64)
        # The number of the last turn that each worker took.
        self._taken = torch.zeros(_MOST_WORKERS, dtype=torch.int64)
        # In a worker: that of its iteration.
        self._number = 0
        self._lock: Any = None
        self._share()
        self.put(epoch)

    def __getstate__(self) -> dict[str, Any]:
        # Only a process that is being started can be given the lock. Any other copy gets its own.
        lock = self._lock if get_spawning_popen() is not None else None
        return {**self.__dict__, "_lock": lock}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()

    def _share(self) -> None:
        if self._lock is None:
            # One of this context can be given to workers of any.
            self._lock = get_context("spawn").Lock()
            self._turns.share_memory_()
            self._taken.share_memory_()

    def put(self, epoch: int) -> None:
        """Set the next epoch."""
        with self._lock:
            self._write(_Turn(self._last.number + 1, epoch))

    def begin(self, moves: int, *, here: int | None = None, resumed: int | None = None) -> int:
        """Return the epoch of the iteration that a worker begins.

        `here` is the epoch of a new worker, which the loader may have been moved
        to since the last iteration, `resumed` that of a state which it was given.
        """
        worker = get_worker_info()
        seed = worker.seed - worker.id
        with self._lock:
            # Persistent workers get the same seed again, and so do all if PyTorch is seeded each epoch.
            taken = self._taken[worker.id].item()
            ours = (seed, worker.num_workers)
            begun = [
                turn for turn in self._read() if turn.number > taken and (turn.seed, turn.workers) == ours
            ]
            if begun:
                turn = min(begun)
            else:
                last = self._last
                epoch = last.next_epoch
                if here is not None and (last.is_set or last.moves != moves):
                    epoch = here
                if resumed is not None:
                    epoch = resumed
                turn = _Turn(last.number + 1, epoch, *ours, moves)
                self._write(turn)
            self._number = self._taken[worker.id] = turn.number
        return turn.epoch

    def end(self) -> None:
        """Record that a worker has reached the end of its epoch."""
        with self._lock:
            turn = next((turn for turn in self._read() if turn.number == self._number), None)
            if turn is not None:
                self._write(turn._replace(ended=turn.ended + 1))

    @property
    def _last(self) -> _Turn:
        return max(self._read())

    def _read(self) -> list[_Turn]:
        return [_Turn(*row) for row in self._turns.tolist()]

    def _write(self, turn: _Turn) -> None:
        self._turns[turn.number % _TURNS] = torch.tensor(turn)


def _place() -> tuple[int, int]:
    """Return which of how many workers this process is."""
    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)


def _pair(windows: Tokens) -> Pair:
    return Pair(*(torch.from_numpy(part.astype(np.int64)) for part in inputs_and_targets(windows)))


def _collate(pairs: Sequence[Pair], **_: object) -> Pair:
    """Return the only batch of a DataLoader with the default batch_size=1; refuse to stack batches."""
    if len(pairs) > 1:
        raise UsageError(
            message(
                "a TokenDataset yields whole batches, and this DataLoader would stack them",
                "use DataLoader(dataset, batch_size=None) and choose the size with Loader(..., batch=...)",
                batch_size_of_DataLoader=f"{len(pairs)} or more",
                rows_in_a_batch=len(pairs[0].inputs),
            )
        )
    return pairs[0]


# DataLoader does not tell a dataset its batch size, but it collates by type.
default_collate_fn_map[Pair] = _collate
