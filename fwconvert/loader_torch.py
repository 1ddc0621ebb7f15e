"""The loader as a dataset of PyTorch.

    dataset = TokenDataset(Loader("OUT", batch=8, rank=rank, ranks=ranks))
    for x, y in DataLoader(dataset, batch_size=None, num_workers=2): ...

Batches come in the same order with any number of worker processes: worker w of
n serves every n-th step, and DataLoader takes one from each in turn. torchdata's
StatefulDataLoader saves and resumes it, with workers in the middle of an epoch.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from fwconvert.errors import UsageError, message
from fwconvert.loader import Loader, inputs_and_targets
from fwconvert.loader_windows import Tokens

Pair = tuple[torch.Tensor, torch.Tensor]


class TokenDataset(IterableDataset[Pair]):
    """Yields (inputs, targets) as int64 tensors of a batch each: use it with batch_size=None.

    Each iteration is an epoch. Worker processes begin with what this dataset is
    when they start, so before each epoch but the first say `set_epoch`.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        # How many steps of others come before our next; None at the beginning.
        self._skip: int | None = None

    def __iter__(self) -> Iterator[Pair]:
        worker, workers = _place()
        skip = worker if self._skip is None else self._skip
        for windows in self.loader.steps(skip, workers):
            self._skip = workers - 1
            yield _pair(windows)
        self._skip = None

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; if it is the present one, stay where we are."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where we are. If there are no workers, it fits any number of ranks and any batch size."""
        worker, workers = _place()
        skip = worker if self._skip is None else self._skip
        return {"loader": self.loader.state(), "skip": skip, "workers": workers, "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where a state was taken; one of a worker fits only as many workers and the same steps."""
        here = {"workers": _place()[1], "step": self._step}
        shared = state["workers"] > 1
        if shared and any(state[name] != value for name, value in here.items()):
            raise UsageError(
                message(
                    "this state is of one of several workers, which took turns in another way",
                    "resume with as many workers, ranks and windows in a batch, or without workers",
                    workers=f"{state['workers']} then, {here['workers']} now",
                    windows_in_a_step=f"{state['step']} then, {here['step']} now",
                )
            )
        self.loader.resume(state["loader"])
        self._skip = state["skip"] if shared else None

    @property
    def _step(self) -> int:
        return self.loader.batch * self.loader.ranks


def _place() -> tuple[int, int]:
    """Return which of how many workers this process is."""
    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)


def _pair(windows: Tokens) -> Pair:
    x, y = (torch.from_numpy(part.astype(np.int64)) for part in inputs_and_targets(windows))
    return x, y
