"""What files can be fetched from: a place that lists files and sends ranges of them.

The hub's `Dataset` is one. Downloads, looks at a footer by ranges and the
prefetcher know no more than this, so another remote touches none of them.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from fwconvert.recipes import SourceShard


class FileRange(Protocol):
    """A file, or a part of one, as it is being sent."""

    # Whether the range begins beyond the end of the file.
    is_past_end: bool
    # The byte that it begins with, which may be an earlier one than was asked for.
    begin: int
    # The size of the whole file; None if nobody says.
    total: int | None

    def __iter__(self) -> Iterator[bytes]:
        """Yield its bytes; raise TransientError if the connection fails."""


class Remote(Protocol):
    """The files of one dataset at one revision. Trouble with all of them is a RemoteError."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def revision(self) -> str:
        """What its files belong to: bytes of another revision are never mixed with them."""

    def files(self, folder: str, received: Callable[[int], None]) -> tuple[SourceShard, ...]:
        """Return the parquet files below a folder, by name. `received` is given how many bytes came."""

    def open_range(self, path: str, begin: int, end: int | None = None) -> AbstractContextManager[FileRange]:
        """Ask for a file from byte `begin` on, to its end or to byte `end`.

        Raises TransientError for what may pass, SourceError for trouble with this file alone.
        """
