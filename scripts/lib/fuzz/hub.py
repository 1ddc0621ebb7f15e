"""What a hub may answer, given to the code that reads it: no network, the client's transport is ours."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fwconvert.errors import FwconvertError
from fwconvert.hub.client import client
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.retry import Passing

_NAME, _FILE = "owner/name", "data/000_00000.parquet"
_COMMIT = "0123456789abcdef0123456789abcdef01234567"
# What comes in an answer beyond this is of no consequence for whoever reads headers.
_MOST_PIECES = 100


class _Hub:
    """Answers whatever is asked, through the client's own class."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 200, list[tuple[bytes, bytes]](), b""
        transport = client().httpx.HTTPTransport
        # All clients end here, whoever makes them; so nothing ever leaves this process.
        transport.handle_request = lambda _transport, request: self._answer(request)

    def _answer(self, request: Any) -> Any:
        httpx = client().httpx
        stream = httpx.ByteStream(self.body)
        return httpx.Response(self.status, headers=self.headers, stream=stream, request=request)


def listing(_scratch: Path) -> Callable[[bytes], object]:
    """Return what reads a page of a list, and a commit."""
    hub = _Hub()
    hub.headers = [(b"Content-Type", b"application/json")]

    def read(data: bytes) -> object:
        hub.body = data
        with suppress(FwconvertError, Passing):
            return Dataset(_NAME, "main").commit()
        return Dataset(_NAME, _COMMIT).files("data")

    return read


def headers(_scratch: Path) -> Callable[[bytes], object]:
    """Return what reads an answer: a line with the status, lines of headers, an empty line, a body."""
    hub = _Hub()

    def read(data: bytes) -> object:
        hub.status, hub.headers, hub.body = _parsed(data)
        client().session().cookies.clear()  # One input has nothing to do with the next.
        dataset, refused, has_read = Dataset(_NAME, _COMMIT), None, False
        for look in (lambda: _poured(dataset, 0), lambda: _poured(dataset, 500), lambda: dataset.files("")):
            try:
                look()
                has_read = True
            except (FwconvertError, Passing) as error:
                refused = error
        if refused is not None and not has_read:
            raise refused
        return None

    return read


def _poured(dataset: Dataset, begin: int) -> int:
    with dataset.opened(_FILE, begin) as answer:
        pieces: Iterator[bytes] = iter(answer)
        return sum(len(piece) for piece, _ in zip(pieces, range(_MOST_PIECES), strict=False))


def _parsed(data: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the answer as a server's bytes would come through: no line can hold what ends a line."""
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    digits = bytes(sign for sign in first if sign in b"0123456789")[:3]
    status = int(digits or b"200")
    headers = []
    for line in lines:
        name, _, value = line.partition(b":")
        name = bytes(sign for sign in name if chr(sign).isalnum() or sign in b"-")
        if name.isascii() and name:
            headers.append((name, bytes(sign for sign in value if sign >= 32 or sign == 9).strip()))
    # Redirects are the client's affair; those lead into this process again.
    return (status if 200 <= status <= 599 and not 300 <= status < 400 else 200), headers, body
