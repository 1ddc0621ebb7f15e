"""A file on the hub that is read by ranges instead of fetched whole: to look at one row of it.

The bytes are not verified by a hash, so the caller must check them against
something that is.
"""

import io
import threading
from functools import lru_cache

from fwconvert.errors import HubError, SourceError, message
from fwconvert.hub.remote import Remote
from fwconvert.hub.retry import Retry, TransientError, with_retries
from fwconvert.recipes import SourceShard

# A row group of FineWeb-Edu has about 3 MB of compressed text.
_BLOCK = 2**20
_BLOCKS_KEPT = 16
# Short, because a user is waiting.
_RETRY_SECONDS = 8.0


class RangedFile(io.RawIOBase):
    """A file of a dataset, read by ranges; recently read blocks are cached."""

    def __init__(self, remote: Remote, file: SourceShard, retry: Retry | None = None) -> None:
        self._remote = remote
        self._file = file
        self._position = 0
        self._retry = retry or Retry(_RETRY_SECONDS, threading.Event(), lambda _: None)
        self._block = lru_cache(_BLOCKS_KEPT)(self._fetch)

    def readable(self) -> bool:
        """Return True: it can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: it can be read at any position."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position; this sends no request."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, fewer only at the end of the file."""
        end = self._file.bytes if size < 0 else min(self._position + size, self._file.bytes)
        parts = []
        while self._position < end:
            number, first = divmod(self._position, _BLOCK)
            part = self._block(number)[first : first + end - self._position]
            parts.append(part)
            self._position += len(part)
        return b"".join(parts)

    def _fetch(self, number: int) -> bytes:
        begin = number * _BLOCK
        end = min(begin + _BLOCK, self._file.bytes)
        found = with_retries(lambda: self._range(begin, end), self._file.path, self._retry)
        self._retry.progress()
        return found

    def _range(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` to `end`; raise TransientError if fewer arrive."""
        found = bytearray()
        with self._remote.open_range(self._file.path, begin, end) as answer:
            if answer.is_past_end or answer.total not in (None, self._file.bytes):
                raise SourceError(
                    message(
                        "the file on the hub has a different size",
                        file=self._file.path,
                        wanted=f"{self._file.bytes:,} bytes",
                    )
                )
            if answer.begin != begin:
                raise HubError(message("the server does not support range requests", file=self._file.path))
            for part in answer:
                self._retry.received(len(part), self._file.path)
                found += part
                if len(found) >= end - begin:
                    return bytes(found[: end - begin])
        raise TransientError("the response ended too early")
