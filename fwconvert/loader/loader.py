"""From token shards to batches: every window exactly once an epoch, in an order that can resume anywhere.

    loader = Loader("OUT", seq_len=1024, batch=8)
    for windows in loader:                       # one epoch; the next `for` is the next epoch
        x, y = inputs_and_targets(windows)
        ...
        state = loader.state()                   # a few numbers: the position after this batch
    Loader("OUT", seq_len=1024, batch=16, rank=1, ranks=4).resume(state)

The order is a pure function of (seed, epoch); ranks, batch sizes and worker
processes only say who is served what of it. So a state can be resumed by any
number of ranks with any batch size, and gives exactly the rest.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from fwconvert import records
from fwconvert.errors import UsageError, message
from fwconvert.loader import shards as loader_shards
from fwconvert.loader import state as loader_state
from fwconvert.loader.documents import PackedDocuments
from fwconvert.loader.permutation import Permutation
from fwconvert.loader.shards import Selection, Shards, Waiting
from fwconvert.loader.state import Position, RankShare, ReadingOrder, State
from fwconvert.loader.windows import Shuffle, Windows
from fwconvert.recipes import TokenType
from fwconvert.shards.cutting import Tokens
from fwconvert.store.layout import Split

T = TypeVar("T", bound=np.generic)


@dataclass(eq=False)
class Loader:
    """Serves the windows of token shards: a run's, or those in any folder or pattern of .bin or .npy files.

    Iterating yields batches, arrays of `batch` rows of `seq_len` + 1 tokens in
    the type of the files, to the end of the epoch. The last may be short: what
    is left is dealt out evenly, unless it is less than a window for each rank.
    No batch is empty, and all ranks take equally many steps.
    """

    path: str | Path
    _: KW_ONLY
    seq_len: int = 1024
    batch: int = 8
    split: Split = "train"
    # As llm.c reads; all windows shuffled; or documents shuffled and packed into windows that begin with one.
    order: ReadingOrder = "shuffled"
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    # The last step of an epoch may be short. None: leave it out if a rank would get an empty batch, whose
    # mean loss is NaN; True: if it is not full on all ranks; False: never, batches may be empty.
    # `dropped` says what that costs.
    drop_last: bool | None = None
    # Serve what an incomplete run has now; states then fit only that set of shards.
    partial: bool = False
    # Serve a run while it is being made, and wait for it to begin and for more; give up (NotReady) after
    # `timeout` seconds without any, or when it is certain that no session is making it any more.
    follow: bool = False
    timeout: float | None = None
    poll: float = 5.0
    # The type of tokens in files without a header, if they are not nanoGPT's train.bin and val.bin.
    raw: TokenType | None = None
    # How much disk copies of token shards in an object store may take, in the user's cache folder. If a
    # split does not fit, an order other than sequential asks for each window by itself.
    cache_bytes: int = 16 * 2**30

    epoch: int = field(default=0, init=False)
    # How often the position was changed: a loader with the same count is where it was.
    moves: int = field(default=0, init=False, repr=False)
    _position: Position = field(default=Position(), init=False, repr=False)
    _passed_before: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("seq_len", "batch", "seed", "rank", "ranks"):
            setattr(self, name, loader_state.whole(name, getattr(self, name)))
        self._check()
        self._selection = Selection(
            self.path, self.split, self.raw, self.partial, self.follow, self.cache_bytes
        )
        self._waiting = Waiting(self._selection.store, self.timeout, self.poll)
        self._share = RankShare(self.batch, self.rank, self.ranks)
        self._serve(self._find())
        self._warn_of_short_shards()

    def __iter__(self) -> Iterator[Tokens]:
        return self.steps()

    def __len__(self) -> int:
        """How many steps a whole epoch has; TypeError if that is not known before its end."""
        if self._total is None:
            raise TypeError(f"the number of steps is not known in advance (order={self.order!r})")
        whole, left = divmod(self._total, self._share.step_windows)
        return whole + (left >= self._least)

    def steps(self, skip: int = 0, every: int = 1) -> Iterator[Tokens]:
        """Yield the batches of the rest of the epoch, without the first `skip`, then only each `every`-th.

        So that worker processes can share an epoch. The state is then that after
        the last batch served; the next comes after `every` - 1 others.
        """
        position = self._position
        for position, places in self._walk():
            if skip:
                skip -= 1
                continue
            batch = self._served.read(places)
            self._go(self.epoch, position)
            skip = every - 1
            yield batch
        self._passed_before += self._served.passed(position.windows)
        self._go(self.epoch + 1, Position())

    def has_steps(self, skip: int) -> bool:
        """Return whether this epoch has anything left after `skip` steps; True while a run is followed."""
        if self.follow:
            return True
        return next(islice(self._walk(), skip, None), None) is not None

    def skip(self, steps: int) -> None:
        """Skip the next `steps` steps of this epoch without reading them."""
        for _, (position, _) in zip(range(steps), self._walk(), strict=False):
            self._go(self.epoch, position)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; if it is the current one, keep the position."""
        epoch = loader_state.whole("epoch", epoch)
        if epoch < 0:
            raise UsageError(message("epochs are counted from 0", given=epoch))
        self._go(epoch, self._position if epoch == self.epoch else Position())

    def state(self) -> dict[str, Any]:
        """Return the position, for `resume`: a few numbers and words, the same on all ranks."""
        where = {**self._position._asdict(), "epoch": self.epoch, "passed_before": self._passed_before}
        return records.as_builtin(msgspec.structs.replace(self._identity, **where))

    def resume(self, state: Mapping[str, Any]) -> Self:
        """Go to where a state was taken; refuse one with different shards, order, seed or window length."""
        found = loader_state.read(state, self._identity)
        if self._total is not None and found.windows > self._total:
            raise UsageError(
                message(
                    "this state is past the end of the epoch",
                    windows_in_state=f"{found.windows:,}",
                    windows_in_epoch=f"{self._total:,}",
                )
            )
        self._passed_before = found.passed_before
        self._go(found.epoch, Position(found.windows, found.documents, found.passed))
        return self

    @property
    def passed(self) -> int:
        """How many tokens were left out so far: in no window, or cut off.

        Of this epoch only those of cut documents are counted yet.
        """
        return self._passed_before + self._position.passed

    @property
    def dropped(self) -> int | None:
        """How many windows at the end of this epoch are left out; None if that is not known in advance.

        An epoch that was begun with other ranks or another batch ends with another step than the next.
        """
        if self._total is None:
            return None
        left = (self._total - self._position.windows) % self._share.step_windows
        return left if left < self._least else 0

    @property
    def _least(self) -> int:
        """How many windows a step must have, on all ranks together, to be served."""
        if self.drop_last is None:
            return self.ranks
        return self._share.step_windows if self.drop_last else 1

    @property
    def _total(self) -> int | None:
        """How many windows an epoch has, if that is known."""
        known = isinstance(self._served, Windows) and self._shards.complete
        return self._served.total if known else None

    @property
    def _identity(self) -> State:
        """What a state must agree on. In sequence, a run that is being made already is what it will be."""
        shards = self._shards
        by_recipe = self.order == "sequential" and shards.recipe_id != ""
        digest = records.digest([shards.recipe_id, self.split])[:16] if by_recipe else shards.fingerprint
        return State(self.order, self.seed, self.seq_len, digest)

    def _go(self, epoch: int, position: Position) -> None:
        self.epoch, self._position = epoch, position
        self.moves += 1

    def _walk(self) -> Iterator[tuple[Position, Any]]:
        """Yield each step from where we are to the end of the epoch; wait for what is still being made."""
        position = self._position
        while True:
            complete = self._shards.complete
            least = self._least if complete else self._share.step_windows
            for step in self._served.walk(position, self._share, self._shuffle(), least):
                position = step[0]
                yield step
            if complete:
                break
            self._wait_for_more()
        if self.drop_last is None and not position.windows:
            # Documents may fill fewer windows than their tokens could.
            raise self._too_few_windows(f"fewer than {self.ranks:,}")

    def _shuffle(self) -> Shuffle:
        if self.order == "sequential":
            return lambda numbers: numbers
        return Permutation(self._served.total, self.seed, self.epoch)

    def _serve(self, shards: Shards) -> None:
        """Serve these shards from now on; raise UsageError if they cannot be served as asked."""
        if self.order != "sequential":
            shards.check_any_order()
        self._shards = shards
        self._served: _Served
        if self.order == "documents":
            self._served = PackedDocuments(shards, self._selection.store, self.seq_len)
        else:
            self._served = Windows(shards, self.seq_len, in_sequence=self.order == "sequential")
        if not shards.complete:
            return
        if shards.tokens <= self.seq_len or not self._served.total:
            raise UsageError(
                message(
                    "there are too few tokens for a window",
                    "choose a smaller seq_len",
                    tokens=f"{shards.tokens:,}",
                    seq_len=f"{self.seq_len:,}",
                )
            )
        most = shards.tokens // (self.seq_len + 1) if self._total is None else self._total
        if self.drop_last is None and most < self.ranks:
            raise self._too_few_windows(f"{most:,}")

    def _too_few_windows(self, windows: str) -> UsageError:
        return UsageError(
            message(
                "there are fewer windows than ranks: some would get an empty batch",
                "choose fewer ranks or a smaller seq_len, or",
                "drop_last=False if the training loop can handle empty batches",
                windows=windows,
                ranks=f"{self.ranks:,}",
                seq_len=f"{self.seq_len:,}",
            )
        )

    def _warn_of_short_shards(self) -> None:
        """Warn if most tokens are in no window, because no window spans two shards."""
        short = [file.tokens for file in self._shards.files if file.tokens <= self.seq_len]
        # Document order does fill windows from several shards.
        if self.order == "documents" or 2 * sum(short) <= self._shards.tokens:
            return
        text = message(
            "most tokens are not served: their shards are too short for a window",
            "choose a smaller seq_len, or larger shards (fwconvert export --shard-tokens)",
            shards=f"{len(short):,} of {len(self._shards.files):,} are too short",
            tokens=f"{sum(short):,} of {self._shards.tokens:,} are in them",
            seq_len=f"{self.seq_len:,}",
        )
        # Attributed to the line that makes the loader, above __post_init__ and __init__.
        warnings.warn(text, stacklevel=4)

    def _find(self) -> Shards:
        if self.follow:
            loader_shards.check_can_be_followed(self._selection)
            self._waiting.until(lambda: loader_shards.has_manifest(self._selection.store))
        return loader_shards.find(self._selection)

    def _wait_for_more(self) -> None:
        """Return when the run has made more shards, or is complete."""
        known = self._shards

        def more() -> bool:
            found = loader_shards.of_run(self._selection, known)
            if found.complete or len(found.files) > len(known.files):
                self._serve(found)
            return self._shards is not known

        self._waiting.until(more)

    def _check(self) -> None:
        """Raise UsageError if an argument is invalid."""
        problems = {
            f"order must be one of {', '.join(get_args(ReadingOrder))}": self.order
            not in get_args(ReadingOrder),
            "split must be train or val": self.split not in get_args(Split),
            f"raw must be {' or '.join(get_args(TokenType))}": self.raw not in (None, *get_args(TokenType)),
            "seq_len and batch must be at least 1": min(self.seq_len, self.batch) < 1,
            "rank must be a number from 0 to ranks - 1": not 0 <= self.rank < self.ranks,
            "cache_bytes must be at least 1": self.cache_bytes < 1,
            "drop_last must be None, True or False": self.drop_last not in (None, True, False),
            "follow needs order='sequential': the other orders need the whole run": self.follow
            and self.order != "sequential",
        }
        for problem, holds in problems.items():
            if holds:
                raise UsageError(message(f"invalid Loader arguments: {problem}", loader=self))


def inputs_and_targets(windows: NDArray[T]) -> tuple[NDArray[T], NDArray[T]]:
    """Return a batch as inputs and, for each, the token that follows it. Nothing is copied."""
    return windows[:, :-1], windows[:, 1:]


class _Served(Protocol):
    """What is numbered and shuffled: windows, or documents that are packed into windows."""

    total: int

    def passed(self, windows: int) -> int: ...
    def walk(
        self, position: Position, share: RankShare, shuffle: Shuffle, least: int
    ) -> Iterator[tuple[Position, Any]]: ...
    def read(self, places: Any) -> Tokens: ...
