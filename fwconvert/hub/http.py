"""One request and its answer, bounded in time whatever the server does.

The client limits each wait for a byte and not all of them together: a server
that sends a header, or a hundred thousand answers of the kind "continue", a
byte at a time would have us for days. And it reads what stands in a redirect
to its end. So each request has a thread of its own, which hands over what
comes. Whoever asked waits only as long as one wait may take for all of the
headers, and so for each piece of the content; then the thread is left alone,
and ends as soon as something comes. Redirects are followed here: the token
stays with its origin, and little of their content is read.
"""

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from fwconvert.hub.client import client
from fwconvert.hub.retry import TransientError

_MOST_REDIRECTS = 20
# So little is read to its end, for the sake of the connection; otherwise that is given up.
_LITTLE_BYTES = 64 * 2**10
# Pieces of at most 64 KiB that came and wait for whoever asked.
_QUEUE_LENGTH = 16
# The client's own limit comes first: it says what was waited for.
_SPARE_SECONDS = 1.0
_LOOK_SECONDS = 0.2


class Response:
    """A server's answer: its status and its headers are there, its content comes."""

    def __init__(self, response: Any, chunks: Iterator[bytes]) -> None:
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.url = str(response.url)
        self._links: Mapping[str, Mapping[str, str]] = response.links
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        """Yield the content as it was sent, piece by piece; TransientError if it stalls."""
        return self._chunks

    @property
    def next_page(self) -> str:
        """Where the rest of a list is; "" if this is all."""
        return self._links.get("next", {}).get("url", "")

    @property
    def encoding(self) -> str:
        """How the content is packed; "" if it is not, which is all that we ask for."""
        found = self.headers.get("Content-Encoding", "").strip().lower()
        return "" if found == "identity" else found


@contextmanager
def request(session: Any, url: str, headers: Mapping[str, str], seconds: float) -> Iterator[Response]:
    """Ask for `url`; yield the answer. No wait is longer than `seconds`, or TransientError is raised."""
    exchange = _Exchange(session, seconds)
    exchange.send(url, {**headers, "Accept-Encoding": "identity"})
    try:
        yield Response(exchange.response(), exchange.chunks())
    finally:
        exchange.abandoned.set()


class _Abandoned(Exception):
    """Nobody waits for the response any more."""


class _Exchange(threading.Thread):
    """The thread of a request. It hands over the headers, the content, and None; or what went wrong."""

    def __init__(self, session: Any, seconds: float) -> None:
        super().__init__(name="exchange", daemon=True)
        self.abandoned = threading.Event()
        # Set while only the server can keep us waiting: neither a slow name server nor a busy pool counts.
        self._server_is_due = threading.Event()
        self._session, self._seconds = session, seconds
        self._queue: queue.Queue[object] = queue.Queue(_QUEUE_LENGTH)

    def send(self, url: str, headers: Mapping[str, str]) -> None:
        """Begin; raise what is wrong with the address."""
        how = {"timeout": self._seconds, "extensions": {"trace": self._trace}}
        self._request = self._session.build_request("GET", url, headers=headers, **how)
        try:
            self.start()
        except RuntimeError:
            raise TransientError("cannot start another thread on this machine") from None

    def response(self) -> Any:
        """Return the answer as soon as its headers are there."""
        return self._next()

    def chunks(self) -> Iterator[bytes]:
        """Yield the content."""
        while (chunk := self._next()) is not None:
            yield chunk

    def _next(self) -> Any:
        came = self._wait()
        if not isinstance(came, Exception):
            return came
        http = client().httpx
        foreseen = (http.HTTPError, http.StreamError, http.InvalidURL, client().errors.OfflineModeIsEnabled)
        if isinstance(came, foreseen):
            raise came
        # A header that the client's own libraries cannot read, such as a length of 5,000 digits.
        raise TransientError(f"the server's response cannot be parsed ({type(came).__name__})")

    def _wait(self) -> object:
        waited = 0.0
        while True:
            try:
                return self._queue.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                waited = waited + _LOOK_SECONDS if self._server_is_due.is_set() else 0.0
                if waited > self._seconds + _SPARE_SECONDS:
                    raise TransientError(f"the server did not respond within {self._seconds:.0f} s") from None

    def run(self) -> None:
        """Ask, and hand over what comes until nobody wants it."""
        try:
            response = self._answer()
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

    def _answer(self) -> Any:
        """Return the answer to the request, or to the last of those to which it leads."""
        request = self._request
        for _ in range(_MOST_REDIRECTS + 1):
            response = self._session.send(request, stream=True, follow_redirects=False)
            request = response.next_request
            if request is None:
                return response
            _drain_or_close(response)
            if self.abandoned.is_set():
                raise _Abandoned
            if request.url.scheme not in {"http", "https"}:
                raise client().httpx.RemoteProtocolError(
                    "the server redirects to something that is not a web address"
                )
        raise client().httpx.TooManyRedirects(f"the server redirects more than {_MOST_REDIRECTS} times")

    def _trace(self, event: str, _: object) -> None:
        """Note what the client does just now."""
        if event.endswith("receive_response_headers.started"):
            self._server_is_due.set()
        elif event.endswith(("connect_tcp.started", "send_request_headers.started")):
            self._server_is_due.clear()

    def _put(self, thing: object) -> None:
        while not self.abandoned.is_set():
            try:
                return self._queue.put(thing, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
        raise _Abandoned


def _drain_or_close(response: Any) -> None:
    """Have done with an answer of which only the headers matter."""
    length = response.headers.get("Content-Length", "")
    if length.isascii() and length.isdecimal() and len(length) < 10 and int(length) <= _LITTLE_BYTES:
        for _ in response.iter_raw():
            pass
    response.close()
