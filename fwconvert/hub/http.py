"""One request and its response, bounded in time whatever the server does.

The client limits each wait for a byte but not their sum: a server that sends a
header, or a hundred thousand "100 Continue" responses, one byte at a time could
hold us for days. And it reads the body of a redirect to its end. So each request
has its own thread, which passes on what arrives. The caller waits for all of the
headers only as long as one wait may take, and again for each block of the body;
then it abandons the thread, which ends as soon as something arrives. Redirects
are followed here, so that the token stays with its origin and little of their
body is read.

To wake another thread costs more than a chunk of 64 KiB does. So a body is
handed over in blocks: what has arrived in a moment, or half a megabyte.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from fwconvert.hub.client import client
from fwconvert.hub.retry import TransientError

_MOST_REDIRECTS = 20
# A body this small is read to its end so that the connection can be reused; otherwise it is closed.
_LITTLE_BYTES = 64 * 2**10
# A block that is handed over at once, and how long it is waited for if something has arrived.
_BLOCK_BYTES = 2**19
_BLOCK_SECONDS = 0.1
# What may have arrived and wait for the caller.
_MOST_WAITING_BYTES = 2 * _BLOCK_BYTES
# Let the client's own timeout come first: its message says what it was waiting for.
_SPARE_SECONDS = 1.0


class Response:
    """A server's response: status and headers have arrived, the body is still arriving."""

    def __init__(self, response: Any, chunks: Iterator[bytes]) -> None:
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.url = str(response.url)
        self._links: Mapping[str, Mapping[str, str]] = response.links
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        """Yield the body as it was sent, block by block; raise TransientError if it stalls."""
        return self._chunks

    @property
    def next_page(self) -> str:
        """The address of the next page of a list; "" if this is the last."""
        return self._links.get("next", {}).get("url", "")

    @property
    def encoding(self) -> str:
        """How the body is compressed; "" if it is not, which is what we ask for."""
        found = self.headers.get("Content-Encoding", "").strip().lower()
        return "" if found == "identity" else found


@contextmanager
def request(session: Any, url: str, headers: Mapping[str, str], seconds: float) -> Iterator[Response]:
    """Request `url` and yield the response; raise TransientError if any wait exceeds `seconds`."""
    exchange = _Exchange(session, seconds)
    exchange.send(url, {**headers, "Accept-Encoding": "identity"})
    try:
        yield Response(exchange.response(), exchange.chunks())
    finally:
        exchange.abandon()


class _Abandoned(Exception):
    """The caller no longer waits for the response."""


class _Exchange(threading.Thread):
    """The thread of a request. It passes on the response, the chunks of its body, and None; or an error."""

    def __init__(self, session: Any, seconds: float) -> None:
        super().__init__(name="exchange", daemon=True)
        # Set while we wait for the server alone: a slow name server or a busy pool does not count.
        self._server_is_due = threading.Event()
        self._session, self._seconds = session, seconds
        # Guards all below. What has arrived: the response, then chunks, then None; or an error.
        self._changed = threading.Condition()
        self._is_abandoned = False
        self._arrived: deque[object] = deque()
        self._chunk_bytes = self._others = 0

    def send(self, url: str, headers: Mapping[str, str]) -> None:
        """Start the request; raise if the address is invalid."""
        how = {"timeout": self._seconds, "extensions": {"trace": self._trace}}
        self._request = self._session.build_request("GET", url, headers=headers, **how)
        try:
            self.start()
        except RuntimeError:
            raise TransientError("cannot start another thread on this machine") from None

    def response(self) -> Any:
        """Return the response as soon as its headers have arrived."""
        return self._next()

    def chunks(self) -> Iterator[bytes]:
        """Yield the body."""
        while (block := self._next()) is not None:
            yield block

    def abandon(self) -> None:
        """Wait for nothing any more."""
        with self._changed:
            self._is_abandoned = True
            self._changed.notify()

    def _next(self) -> Any:
        came = self._wait()
        if not isinstance(came, Exception):
            return came
        http = client().httpx
        expected = (http.HTTPError, http.StreamError, http.InvalidURL, client().errors.OfflineModeIsEnabled)
        if isinstance(came, expected):
            raise came
        # A header that the client's libraries cannot parse, such as a length of 5,000 digits.
        raise TransientError(f"the server's response cannot be parsed ({type(came).__name__})")

    def _wait(self) -> object:
        """Return the next that arrived: the response, a block of the body, None or an error."""
        waited = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(self._has_enough, _BLOCK_SECONDS)
                chunks = list[bytes]()
                while self._arrived and isinstance(self._arrived[0], bytes):
                    chunks.append(self._arrived[0])
                    self._arrived.popleft()
                if chunks:
                    self._chunk_bytes = 0
                    self._changed.notify()
                    return b"".join(chunks)
                if self._arrived:
                    self._others -= 1
                    return self._arrived.popleft()
            waited = waited + _BLOCK_SECONDS if self._server_is_due.is_set() else 0.0
            if waited > self._seconds + _SPARE_SECONDS:
                raise TransientError(f"the server did not respond within {self._seconds:.0f} s")

    def _has_enough(self) -> bool:
        """Return whether there is a whole block, or something else than chunks: before them, or their end."""
        return self._chunk_bytes >= _BLOCK_BYTES or self._others > 0

    def run(self) -> None:
        """Send the request and pass on what arrives, until the caller abandons it."""
        try:
            response = self._final_response()
            try:
                self._put(response)
                for chunk in response.iter_raw():
                    self._put(chunk)
            finally:
                response.close()
            self._put(None)
        except _Abandoned:
            pass
        except Exception as error:  # noqa: BLE001  # raised again where it is waited for
            with suppress(_Abandoned):
                self._put(error)

    def _final_response(self) -> Any:
        """Return the response after following redirects."""
        request = self._request
        for _ in range(_MOST_REDIRECTS + 1):
            response = self._session.send(request, stream=True, follow_redirects=False)
            request = response.next_request
            if request is None:
                return response
            _drain_or_close(response)
            if self._is_abandoned:
                raise _Abandoned
            if request.url.scheme not in {"http", "https"}:
                raise client().httpx.RemoteProtocolError(
                    "the server redirects to an address that is not http or https"
                )
        raise client().httpx.TooManyRedirects(f"the server redirects more than {_MOST_REDIRECTS} times")

    def _trace(self, event: str, _: object) -> None:
        """Track what the client is waiting for."""
        if event.endswith("receive_response_headers.started"):
            self._server_is_due.set()
        elif event.endswith(("connect_tcp.started", "send_request_headers.started")):
            self._server_is_due.clear()

    def _put(self, thing: object) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_abandoned or self._chunk_bytes < _MOST_WAITING_BYTES)
            if self._is_abandoned:
                raise _Abandoned
            self._arrived.append(thing)
            if isinstance(thing, bytes):
                self._chunk_bytes += len(thing)
            else:
                self._others += 1
            if self._has_enough():
                self._changed.notify()


def _drain_or_close(response: Any) -> None:
    """Finish with a response of which only the headers matter."""
    length = response.headers.get("Content-Length", "")
    if length.isascii() and length.isdecimal() and len(length) < 10 and int(length) <= _LITTLE_BYTES:
        for _ in response.iter_raw():
            pass
    response.close()
