"""The interface of a remote: something that lists files and sends ranges of them.

The hub's `Dataset` is one. Downloads, ranged reads and the prefetcher know only
this interface, so another remote needs no change in them.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from fwconvert.recipes import SourceShard


class FileRange(Protocol):
    """A file, or a part of one, as it is being sent."""

    # Whether the range begins beyond the end of the file.
    is_past_end: bool
    # Its first byte, which may be earlier than requested.
    begin: int
    # The size of the whole file; None if the server does not say.
    total: int | None
    # Whether the server sends the whole file, whatever was requested.
    is_whole: bool

    def __iter__(self) -> Iterator[bytes]:
        """Yield its bytes; raise TransientError if the connection fails."""


class Remote(Protocol):
    """The files of one dataset at one revision. A failure that affects all of them is a RemoteError."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def revision(self) -> str:
        """The revision of its files: bytes of two revisions are never mixed."""

    def files(self, folder: str, received: Callable[[int], None]) -> tuple[SourceShard, ...]:
        """Return the files of text below a folder, by path. `received` is called with byte counts."""

    def open_range(self, path: str, begin: int, end: int | None = None) -> AbstractContextManager[FileRange]:
        """Request a file from byte `begin` to its end, or to byte `end` exclusive.

        Raises TransientError if a retry may succeed, SourceError if only this file is affected.
        """
