"""An HTTP server on the loopback whose answers can go wrong in every way that a network knows.

It knows nothing of what it serves: `Origin` is given a function from a `Request` to an `Answer`. Before an
answer is sent, the first `Fault` that fits it is taken from the list, and alters it or cuts it off.
"""

import io
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO, Literal, get_args
from urllib.parse import unquote

CHUNK = 64 * 1024

Where = Literal["hub", "cdn"]
Kind = Literal[
    "status",  # answer with `status` and `headers`, and none of the content
    "reset",  # TCP RST after `after` bytes of the body, all of which arrive
    "close",  # FIN after `after` bytes of the body
    "stall",  # send nothing more for `seconds` after `after` bytes of the body, then FIN
    "hang",  # answer nothing for `seconds`, then FIN
    "refuse",  # FIN in place of the answer
    "corrupt",  # flip the bits of the byte at position `after` of the body
    "short",  # the last `missing` bytes do not exist: not in the body, nor in any header of this answer
    "ignore_range",  # 200 with the whole content
    "noheader",  # leave out the headers `names`
    "slow",  # send `rate` bytes per second
    "late",  # send nothing before `until` holds
]


@dataclass(frozen=True)
class Request:
    """What a client asked for. The path is unquoted and has no query; the query is as it came."""

    method: str
    path: str
    query: str = ""
    range: str | None = None
    authorization: str | None = None
    body: bytes = b""
    raw_path: str = ""  # still quoted: a %2F in it is no separator


@dataclass(frozen=True)
class Body:
    """Some bytes, or a part of a file, which is read only while it is sent."""

    source: bytes | Path
    length: int
    start: int = 0

    def open(self) -> BinaryIO:
        return io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb")

    def chunks(self, limit: int, size: int) -> Iterator[bytes]:
        """Yield the first `limit` bytes."""
        with self.open() as file:
            file.seek(self.start)
            left = min(limit, self.length)
            while left > 0 and (chunk := file.read(min(left, size))):
                left -= len(chunk)
                yield chunk


@dataclass(frozen=True)
class Answer:
    """A response. Its Content-Length is the length of the body, also of an answer to HEAD."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body = Body(b"", 0)


@dataclass
class Fault:
    """Something that goes wrong `times` times (None: for ever), after it was spared `skip` times.

    It fits answers of the server `on` to requests by `method` whose unquoted path or query has `path` in it;
    the query of a CDN's address names the file. It passes by an answer in which it could not happen: one with
    no byte at position `after`, or without a Range to ignore.

    `looks`: it happens only to requests for a part of a file that has an end.

    `after=-1` cuts an answer off before its status line. Where nothing is sent but headers, so does 0.
    """

    kind: Kind
    on: Literal["hub", "cdn", "any"] = "cdn"
    method: str | None = None
    path: str = ""
    times: int | None = 1
    skip: int = 0
    after: int = 0
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 60
    missing: int = 1
    names: Sequence[str] = ("X-Repo-Commit", "ETag", "X-Linked-Etag")
    rate: int = 64 * 1024
    until: Callable[[], bool] = bool
    looks: bool = False

    def __post_init__(self) -> None:
        assert self.kind in get_args(Kind), self.kind
        assert self.on in {"hub", "cdn", "any"}, self.on
        assert self.after >= (0 if self.kind == "corrupt" else -1), self.after

    def fits(self, server: Where, request: Request, answer: Answer) -> bool:
        return (
            self.on in {server, "any"}
            and self.method in {request.method, None}
            and self.path in f"{request.path}?{unquote(request.query)}"
            and (not self.looks or (request.range or "-")[-1] != "-")
            and self._can_happen(answer, 0 if request.method == "HEAD" else answer.body.length)
        )

    def _can_happen(self, answer: Answer, length: int) -> bool:
        byte_there = self.after < length
        can_happen = {
            "reset": byte_there or self.after <= 0,
            "close": byte_there or self.after <= 0,
            "stall": byte_there or self.after <= 0,
            "corrupt": byte_there,
            "short": self.missing < length,
            "slow": length > 0,
            "ignore_range": answer.status in {206, 416},
            "noheader": any(name in answer.headers for name in self.names),
        }
        return can_happen.get(self.kind, True)

    def altered(self, answer: Answer) -> Answer:
        """Return the answer as this fault would have it, if it is of a kind that alters one."""
        if self.kind == "status":
            return Answer(self.status, self.headers)
        if self.kind == "noheader":
            return replace(answer, headers={k: v for k, v in answer.headers.items() if k not in self.names})
        if self.kind == "short":
            return _shortened(answer, self.missing)
        return answer

    def cut(self, length: int) -> int | None:
        """Return how many bytes of a body are sent before the end, -1 for not even headers."""
        if self.kind in {"hang", "refuse"}:
            return -1
        if self.kind in {"reset", "close", "stall"}:
            return self.after if length else -1
        return None


def _shortened(answer: Answer, missing: int) -> Answer:
    headers = dict(answer.headers)
    if "Content-Range" in headers:
        start, total = answer.body.start, int(headers["Content-Range"].rpartition("/")[2])
        last = start + answer.body.length - missing - 1
        headers["Content-Range"] = f"bytes {start}-{last}/{total - missing}"
    return replace(answer, headers=headers, body=replace(answer.body, length=answer.body.length - missing))


@contextmanager
def nobody() -> Iterator[str]:
    """Yield an address at which nobody answers; during the block it is nobody else's either."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


class Faults:
    """The faults to come, in order. An answer meets at most one: the first that fits and is not spared."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def take(self, server: Where, request: Request, answer: Answer) -> Fault | None:
        """Return the fault of this answer. One that is spared leaves the answer to the faults after it."""
        with self._lock:
            for fault in self._faults:
                if fault.times == 0 or not fault.fits(server, request, answer):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None

    @property
    def left(self) -> int:
        """Return how often the faults with a number of `times` are still to happen."""
        with self._lock:
            return sum(fault.times or 0 for fault in self._faults)


@dataclass(frozen=True)
class Seen:
    """A request, and what was sent for it so far: status 0 if no status line, and how much of the body."""

    server: Where
    method: str
    path: str
    query: str
    range: str | None
    authorization: str | None
    status: int
    bytes: int


@dataclass
class Exchange:
    """A request being answered. It counts bytes before they leave, so no client sees one uncounted."""

    server: Where
    request: Request
    status: int = 0
    sent: int = 0

    def seen(self) -> Seen:
        asked = self.request
        question = (asked.method, asked.path, asked.query, asked.range, asked.authorization)
        return Seen(self.server, *question, self.status, self.sent)


class Link:
    """What all connections share: so many bytes a second, and so many seconds before each answer."""

    def __init__(self, rate: int | None = None, latency: float = 0.0) -> None:
        self.rate, self.latency = rate, latency
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait_for(self, size: int) -> float:
        """Return for how long to wait before so many bytes may leave."""
        if self.rate is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + size / self.rate
            return self._free_at - now


class Origin(ThreadingHTTPServer):
    """One listener on a free port of 127.0.0.1, serving from its construction until `stop`."""

    daemon_threads = False  # else server_close would not wait for them
    request_queue_size = 64

    def __init__(
        self,
        name: Where,
        answer: Callable[[Request], Answer],
        *,
        faults: Faults,
        log: list[Exchange],
        rate: int | None = None,
        link: Link | None = None,
    ) -> None:
        self.name, self.answer, self.faults, self.log, self.rate = name, answer, faults, log, rate
        self.link = link or Link()
        self.stopping = threading.Event()
        self.failures: list[BaseException] = []
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End every connection, also one in a stall, and every thread. Then raise what went wrong here."""
        self.stopping.set()
        self.shutdown()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()
        self._thread.join()
        if self.failures:
            raise self.failures[0]

    # In the thread that accepts: after shutdown() every connection is in the set.
    def process_request(self, request: object, client_address: object) -> None:
        assert isinstance(request, socket.socket)
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: object) -> None:
        assert isinstance(request, socket.socket)
        super().shutdown_request(request)
        self._connections.discard(request)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Keep the error for `stop`, unless it is a client that went away."""
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError):
            self.failures.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Origin

    def _serve(self) -> None:
        origin, request = self.server, self._request()
        exchange = Exchange(origin.name, request)
        origin.log.append(exchange)
        answer = origin.answer(request)
        fault = origin.faults.take(origin.name, request, answer)
        if fault is None:
            self._send(answer, None, exchange)
        elif fault.kind == "ignore_range":
            self._send(origin.answer(replace(request, range=None)), fault, exchange)
        else:
            self._send(fault.altered(answer), fault, exchange)

    do_GET = do_HEAD = do_POST = _serve  # noqa: N815

    def _request(self) -> Request:
        path, _, query = self.path.partition("?")
        return Request(
            method=self.command,
            path=unquote(path),
            query=query,
            range=self.headers.get("Range"),
            authorization=self.headers.get("Authorization"),
            body=self.rfile.read(int(self.headers.get("Content-Length", 0))),
            raw_path=path,
        )

    def _send(self, answer: Answer, fault: Fault | None, exchange: Exchange) -> None:
        while fault and fault.kind == "late" and not fault.until():
            if self._wait(0.005):
                raise ConnectionAbortedError("the server is being stopped")
        self._wait(self.server.link.latency)
        length = 0 if self.command == "HEAD" else answer.body.length
        cut = fault.cut(length) if fault else None
        if cut != -1:
            exchange.status = answer.status
            self._send_headers(answer)
            self._send_body(answer.body, length if cut is None else cut, fault, exchange)
        if fault and cut is not None:
            self._cut_off(fault)

    def _send_headers(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(answer.body.length))
        self.end_headers()

    def _send_body(self, body: Body, limit: int, fault: Fault | None, exchange: Exchange) -> None:
        rates = [self.server.rate, fault.rate if fault and fault.kind == "slow" else None]
        rate = min((rate for rate in rates if rate is not None), default=None)
        start = time.monotonic()
        for chunk in body.chunks(limit, CHUNK if rate is None else min(CHUNK, max(1, rate // 20))):
            position = fault.after - exchange.sent if fault and fault.kind == "corrupt" else -1
            exchange.sent += len(chunk)
            if self._wait(self.server.link.wait_for(len(chunk))):
                raise ConnectionAbortedError("the server is being stopped")
            self.wfile.write(_flipped(chunk, position))
            if rate is not None and self._wait(start + exchange.sent / rate - time.monotonic()):
                raise ConnectionAbortedError("the server is being stopped")

    def _wait(self, seconds: float) -> bool:
        """Wait that long, or until the server is being stopped; return whether it is."""
        return self.server.stopping.wait(seconds) if seconds > 0 else self.server.stopping.is_set()

    def _cut_off(self, fault: Fault) -> None:
        if fault.kind in {"stall", "hang"}:
            self._wait(fault.seconds)
        self.close_connection = True
        if fault.kind == "reset":
            self._reset()

    def _reset(self) -> None:
        # A reset throws away what has not left yet, and the client is to get every byte before it.
        deadline = time.monotonic() + 5
        while _unsent(self.connection) and time.monotonic() < deadline and not self._wait(0.002):
            pass
        with suppress(OSError):  # the client may have gone
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Here and not by the server, which would send a FIN first. Both hold the descriptor.
        self.rfile.close()
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def _flipped(chunk: bytes, position: int) -> bytes:
    if not 0 <= position < len(chunk):
        return chunk
    return b"".join([chunk[:position], bytes([chunk[position] ^ 0xFF]), chunk[position + 1 :]])


def _unsent(connection: socket.socket) -> int:
    """Return how many bytes the client's side has not acknowledged; 0 where that cannot be told."""
    if sys.platform != "linux":
        return 0
    import fcntl  # noqa: PLC0415
    import termios  # noqa: PLC0415

    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
