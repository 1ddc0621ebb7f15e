"""Responses of a hub, given to the code that reads them: no network, the client's transport is replaced."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fwconvert.errors import FwconvertError
from fwconvert.hub.client import client
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.retry import TransientError

_NAME, _FILE = "owner/name", "data/000_00000.parquet"
_COMMIT = "0123456789abcdef0123456789abcdef01234567"
# The headers decide what is read; more of the body changes nothing.
_MOST_PIECES = 100


class _Hub:
    """Answers every request with the same response."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 200, list[tuple[bytes, bytes]](), b""
        transport = client().httpx.HTTPTransport
        # Of the class: every client, wherever it is made, ends here, and nothing leaves this process.
        transport.handle_request = lambda _transport, request: self._answer(request)

    def _answer(self, request: Any) -> Any:
        httpx = client().httpx
        stream = httpx.ByteStream(self.body)
        return httpx.Response(self.status, headers=self.headers, stream=stream, request=request)


def listing(_scratch: Path) -> Callable[[bytes], object]:
    """Return what reads a page of a listing, and a commit."""
    hub = _Hub()
    hub.headers = [(b"Content-Type", b"application/json")]

    def read(data: bytes) -> object:
        hub.body = data
        with suppress(FwconvertError, TransientError):
            return Dataset(_NAME, "main").commit()
        return Dataset(_NAME, _COMMIT).files("data")

    return read


def headers(_scratch: Path) -> Callable[[bytes], object]:
    """Return what reads a response: a line with the status, header lines, an empty line, a body."""
    hub = _Hub()

    def read(data: bytes) -> object:
        hub.status, hub.headers, hub.body = _parsed(data)
        client().session().cookies.clear()  # Inputs must not depend on each other.
        dataset, refused, has_read = Dataset(_NAME, _COMMIT), None, False
        for reader in (
            lambda: _download(dataset, 0),
            lambda: _download(dataset, 500),
            lambda: dataset.files(""),
        ):
            try:
                reader()
                has_read = True
            except (FwconvertError, TransientError) as error:
                refused = error
        if refused is not None and not has_read:
            raise refused
        return None

    return read


def _download(dataset: Dataset, begin: int) -> int:
    with dataset.open_range(_FILE, begin) as answer:
        pieces: Iterator[bytes] = iter(answer)
        return sum(len(piece) for piece, _ in zip(pieces, range(_MOST_PIECES), strict=False))


def _parsed(data: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return status, headers and body as a parser would: no header can contain the end of a line."""
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
    # No redirects: the client follows them by itself.
    return (status if 200 <= status <= 599 and not 300 <= status < 400 else 200), headers, body
