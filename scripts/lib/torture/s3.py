"""Real S3 servers on loopback, and a proxy in front of them that goes wrong at a request of one's choice.

Two implementations: moto (Python, in memory, conditional PUTs) and `rclone serve s3` (Go, objects are files
in a folder, conditions are ignored, ranges are answered with 200).
"""

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import util
from pathlib import Path
from typing import Any

BUCKET = "bucket"
KEY, SECRET = "canaryKeyId", "canarySecretKey"
_PATIENCE_SECONDS = 60.0


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables with which a program finds a server, and gives up soon if it cannot."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_MAX_ATTEMPTS": "3",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@dataclass(frozen=True)
class Server:
    """A server that is up, with an empty bucket."""

    kind: str
    endpoint: str
    # Where its objects are files, if they are.
    folder: Path | None = None


def skip_reason(kind: str) -> str:
    """Return why a server cannot be started here; empty if it can."""
    if util.find_spec("obstore") is None:
        return "obstore is not installed (the extra s3)"
    if kind == "moto":
        return "" if util.find_spec("moto") and util.find_spec("flask") else "moto[server] is not installed"
    return "" if _rclone() else "rclone is not installed"


def _rclone() -> str | None:
    return shutil.which(
        "rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )


@contextmanager
def serving(kind: str, place: Path) -> Iterator[Server]:
    """Have a server of a kind with an empty bucket; `place` is a folder for what it keeps."""
    port = free_port()
    folder = place / "objects"
    (folder / BUCKET).mkdir(parents=True)
    if kind == "moto":
        code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
        words = [sys.executable, "-c", code]
    else:
        flags = ["--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}", "--config", os.devnull]
        words = [str(_rclone()), "serve", "s3", *flags, str(folder)]
    with (place / f"{kind}.log").open("wb") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_for(port, process)
        if kind == "moto":
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_SECONDS)
            connection.request("PUT", f"/{BUCKET}")
            assert connection.getresponse().status == 200
            connection.close()
        yield Server(kind, f"http://127.0.0.1:{port}", None if kind == "moto" else folder)
    finally:
        process.kill()
        process.wait()


def get(server: Server, path: str) -> bytes:
    """Return what a server that checks no signatures has at a path."""
    connection = http.client.HTTPConnection(
        server.endpoint.removeprefix("http://"), timeout=_PATIENCE_SECONDS
    )
    try:
        # It serves nobody without a name.
        connection.request("GET", path, headers={"Authorization": f"AWS {KEY}:unsigned"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content
    finally:
        connection.close()


def free_port() -> int:
    """Return a port on loopback that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a server that was started listens at its port."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError("the server did not start")


# What may happen at a request. `before`: the server never sees it. `after`: it has done what was asked, and
# the client does not get to know. From a fault that lasts on, every request fails.
KILLS = ("kill before", "kill after")
PASSING = ("500", "503", "reset", "lost answer", "cut answer", "slow")
# Of these, the server has done what was asked, and the client asks again.
UNHEARD = ("lost answer", "cut answer")
# The upload that a request belongs to is aborted by somebody else; for servers that check no signatures.
ABORTED = "aborted"
# It waits until the plan lets it go.
HELD = "held"
LASTING = ("500 from here on", "reset from here on")


@dataclass
class Plan:
    """At which request of a session what happens."""

    kind: str = ""
    # Of the requests that `matches`, from 1 on.
    at: int = 0
    matches: Callable[[str, str], bool] = lambda _method, _path: True
    # The process to kill; known a moment after the session has begun.
    victim: int = 0
    seen: int = 0
    happened: int = 0
    requests: list[str] = field(default_factory=list)
    let_go: threading.Event = field(default_factory=threading.Event)
    counting: Any = field(default_factory=threading.Lock)

    def what(self, method: str, path: str) -> str:
        """Return what happens at a request: a kind, or "" if nothing does."""
        with self.counting:
            self.requests.append(f"{method} {path}")
            if not self.kind or not self.matches(method, path):
                return ""
            self.seen += 1
            lasts = self.kind in LASTING
            if self.seen == self.at or (lasts and self.seen > self.at):
                self.happened += 1
                return self.kind.removesuffix(" from here on")
            return ""

    def kill(self) -> None:
        """Kill the session: the whole of it, as when a machine goes."""
        deadline = time.monotonic() + 10
        while not self.victim and time.monotonic() < deadline:
            time.sleep(0.001)
        with suppress(ProcessLookupError):
            os.killpg(self.victim, signal.SIGKILL)


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a server, except where its plan has something else."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, upstream: str, passing: "type[Passing] | None" = None) -> None:
        super().__init__(("127.0.0.1", 0), passing or Passing)
        self.upstream = upstream.removeprefix("http://")
        self.plan = Plan()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """Ignore clients that are gone: that is what this is about."""


class Passing(BaseHTTPRequestHandler):
    """Passes one request on, unless the plan has something else."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # Or each answer of two writes waits for an acknowledgement: 40 ms.
    server: Proxy

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        plan = self.server.plan
        what = plan.what(self.command, self.path)
        if what == "slow":
            time.sleep(0.3)
        if what == HELD:
            plan.let_go.wait(_PATIENCE_SECONDS)
        if what in ("500", "503"):
            self._answer(int(what), [], b"<Error><Code>InternalError</Code></Error>")
        elif what == "kill before":
            plan.kill()
            self._drop()
        elif what == "reset":
            self._drop()
        elif what == ABORTED:
            upload = re.sub(r"partNumber=\d+&", "", self.path)
            self._request("DELETE", upload, b"")
            self._answer(*self.ask(body))
        else:
            status, headers, content = self.ask(body)
            if what == "kill after":
                plan.kill()
            if what in ("kill after", "lost answer"):
                self._drop()
            else:
                self._answer(status, headers, content, cut=what == "cut answer")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815  # as the library has it

    def ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return what the server answers."""
        return self._request(self.command, self.path, body)

    def _request(self, method: str, path: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.server.upstream, timeout=_PATIENCE_SECONDS)
        try:
            # The size is that of this body, which need not be the client's: a server would wait for the rest.
            own = ("connection", "content-length")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in own}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], content: bytes, *, cut: bool = False
    ) -> None:
        self.send_response_only(status)
        known = {"transfer-encoding", "connection", "content-length"}
        size = next((value for name, value in headers if name.lower() == "content-length"), None)
        for name, value in headers:
            if name.lower() not in known:
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", size if is_head and size else str(len(content)))
        self.end_headers()
        if cut:
            self.wfile.write(content[: len(content) // 2])
            self._drop()
        elif not is_head:
            self.wfile.write(content)

    def _drop(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
