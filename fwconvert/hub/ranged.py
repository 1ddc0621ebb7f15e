"""A file on the hub that is read here and there, and not fetched: for a look at one row of it.

What comes is not proven by a hash, so whoever reads must hold it against
something that is.
"""

import io
import threading
from functools import lru_cache

from fwconvert.errors import HubError, SourceError, message
from fwconvert.hub.remote import Remote
from fwconvert.hub.retry import Retry, TransientError, with_retries
from fwconvert.recipes import SourceShard

# A row group of FineWeb-Edu has some 3 MB of packed text.
_BLOCK = 2**20
_BLOCKS_KEPT = 16
# A person is waiting.
_RETRY_SECONDS = 8.0


class RangedFile(io.RawIOBase):
    """A file of a dataset, read by ranges; bytes that were read lately are remembered."""

    def __init__(self, remote: Remote, file: SourceShard, retry: Retry | None = None) -> None:
        self._remote = remote
        self._file = file
        self._position = 0
        self._retry = retry or Retry(_RETRY_SECONDS, threading.Event(), lambda _: None)
        self._block = lru_cache(_BLOCKS_KEPT)(self._ask)

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be read anywhere."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place; nothing is asked yet."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the place."""
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, as many as are wanted unless the file ends."""
        end = self._file.bytes if size < 0 else min(self._position + size, self._file.bytes)
        parts = []
        while self._position < end:
            number, first = divmod(self._position, _BLOCK)
            part = self._block(number)[first : first + end - self._position]
            parts.append(part)
            self._position += len(part)
        return b"".join(parts)

    def _ask(self, number: int) -> bytes:
        begin = number * _BLOCK
        end = min(begin + _BLOCK, self._file.bytes)
        found = with_retries(lambda: self._range(begin, end), self._file.path, self._retry)
        self._retry.progress()
        return found

    def _range(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` to `end`; raise TransientError if fewer come."""
        found = bytearray()
        with self._remote.open_range(self._file.path, begin, end) as answer:
            if answer.is_past_end or answer.total not in (None, self._file.bytes):
                raise SourceError(
                    message(
                        "the file on the hub has another size",
                        file=self._file.path,
                        wanted=f"{self._file.bytes:,} bytes",
                    )
                )
            if answer.begin != begin:
                raise HubError(message("the server sends no parts of files", file=self._file.path))
            for part in answer:
                self._retry.received(len(part), self._file.path)
                found += part
                if len(found) >= end - begin:
                    return bytes(found[: end - begin])
        raise TransientError("the answer ended too early")
