"""Token shards in an object store, as a loader reads them.

A shard is copied to this machine when it is first used, proven by its sha256 and
mapped; the copy has no name any more then, and its space is free again when the
loader has no room for it among the others (`cache_bytes`). That is cheapest as long
as a shard is read as a whole while it is here: in sequence, or if all shards of the
split fit. Otherwise each window would cost a shard, so just its bytes are asked for,
several windows at a time. Those are not hashed: no record has the hash of a window.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fwconvert.errors import ShardError, message
from fwconvert.loader.files import TokenFile
from fwconvert.shards.shard import numpy_type
from fwconvert.store import layout
from fwconvert.store.base import Store

# Windows that are asked for at once.
_AT_ONCE = 16

T = TypeVar("T")


@dataclass(frozen=True)
class RemoteFile(TokenFile):
    """A token shard in a remote store, whose size agrees with the run manifest."""

    store: Store
    sha256: str

    def read(self) -> NDArray[Any]:
        """Return its tokens from a copy that was proven; the copy goes when nobody has them any more."""
        with self.store.on_disk(layout.shard(self.name), self.sha256) as path:
            here = {name: getattr(self, name) for name in TokenFile.__dataclass_fields__}
            return TokenFile(**(here | {"path": path})).read()

    def tokens_between(self, begin: int, end: int) -> NDArray[Any]:
        """Return some of its tokens, asked for by their bytes."""
        kind = numpy_type(self.token_type)
        first, last = (self.offset + at * kind.itemsize for at in (begin, end))
        content = self.store.read_range(layout.shard(self.name), first, last)
        if len(content) != last - first:
            wrong = "a token shard has changed since the loader was made"
            raise ShardError(message(wrong, file=self.store.address(self.name)))
        return np.frombuffer(content, kind)


@dataclass(frozen=True)
class RangedTokens:
    """The tokens of a shard, of which slices are asked for."""

    file: RemoteFile

    def __getitem__(self, wanted: slice) -> NDArray[Any]:
        return self.file.tokens_between(wanted.start, wanted.stop)


@dataclass(frozen=True)
class RangedRows:
    """The windows of a shard, of which slices are asked for."""

    file: RemoteFile
    seq_len: int

    def __getitem__(self, wanted: slice) -> NDArray[Any]:
        tokens = self.file.tokens_between(wanted.start * self.seq_len, wanted.stop * self.seq_len + 1)
        step, rows = tokens.strides[0], wanted.stop - wanted.start
        return as_strided(tokens, (rows, self.seq_len + 1), (self.seq_len * step, step), writeable=False)


def side_by_side(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Call `work` for each item, several at a time: each of them mostly waits."""
    for _ in _threads(os.getpid()).map(work, items):
        pass


@cache
def _threads(_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, "ranges")
