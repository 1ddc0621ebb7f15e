"""A server on the loopback that means ill, on bare sockets: http.server is too polite for it.

What it does with a connection is a function of the request's head and of the `Line` on which it answers.
There is one request on each connection. Whoever is answered may hang up at any time.
"""

import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

from hub_server import COMMIT, REPO

Answering = Callable[[str, "Line"], None]

# So much is sent for ever.
PIECE = 64 * 1024


class Line:
    """The way back to a client."""

    def __init__(self, connection: socket.socket, stopping: threading.Event) -> None:
        self._connection, self._stopping = connection, stopping

    def send(self, content: bytes) -> None:
        self._connection.sendall(content)

    def head(self, status: int = 200, /, **headers: object) -> None:
        """Begin an answer; a header's name has _ for -."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join([f"HTTP/1.1 {status} So", *lines, "Connection: close", "", ""]).encode())

    def answer(self, content: bytes, status: int = 200, /, **headers: object) -> None:
        """Send a whole answer."""
        self.head(status, Content_Length=len(content), **headers)
        self.send(content)

    def json(self, value: object, **headers: object) -> None:
        content = json.dumps(value).encode()
        self.head(Content_Length=len(content), Content_Type="application/json", **headers)
        self.send(content)

    def endless(self, piece: bytes) -> None:
        """Send this again and again, as fast as it is taken."""
        many = piece * -(-PIECE // len(piece))
        while not self._stopping.is_set():
            self.send(many)

    def drip(self, piece: bytes, seconds: float = 0.1) -> None:
        """Send this again and again, with a pause before each."""
        while not self._stopping.wait(seconds):
            self.send(piece)

    def pause(self, seconds: float) -> None:
        """Say nothing for a while."""
        self._stopping.wait(seconds)


class HostileServer:
    """Answers so from its construction until the end of the block; `heads` are the requests."""

    def __init__(self, answering: Answering) -> None:
        self.heads: list[str] = []
        self._answering = answering
        self._stopping = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.endpoint = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for connection in [self._socket, *self._open]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def asked(self, word: str) -> list[str]:
        """Return the heads that have this word in their first line."""
        return [head for head in self.heads if word in head.partition("\r\n")[0]]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self._open.add(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                got = connection.recv(1)
                if not got:
                    break
                head += got
            if head:
                self.heads.append(head.decode("latin-1"))
                self._answering(self.heads[-1], Line(connection, self._stopping))
        self._open.discard(connection)


def hub(files: Mapping[str, bytes], otherwise: Mapping[str, Answering]) -> Answering:
    """Answer as a hub does that has these files, but `otherwise` where a word is in the first line."""
    listed = [listing_entry(path, content) for path, content in files.items()]

    def answering(head: str, line: Line) -> None:
        first = head.partition("\r\n")[0]
        for word, answer in otherwise.items():
            if word in first:
                return answer(head, line)
        if "/revision/" in first:
            return line.json({"id": REPO, "sha": COMMIT})
        if "/tree/" in first:
            return line.json(listed)
        for path, content in files.items():
            if path in first:
                return _file(content, head, line)
        return line.answer(b"", 404)

    return answering


def listing_entry(path: str, content: bytes = b"", **changes: object) -> dict[str, Any]:
    """Return what a list says of a file."""
    sha256 = hashlib.sha256(content).hexdigest()
    lfs = {"oid": sha256, "size": len(content), "pointerSize": 133}
    entry = {"type": "file", "path": path, "size": len(content), "oid": "c" * 40, "lfs": lfs}
    return {**entry, **changes}


def _file(content: bytes, head: str, line: Line) -> None:
    wanted = re.search(r"Range: bytes=(\d+)-(\d*)", head, re.IGNORECASE)
    if wanted is None:
        return line.answer(content)
    begin = int(wanted[1])
    end = min(len(content), int(wanted[2]) + 1) if wanted[2] else len(content)
    return line.answer(content[begin:end], 206, Content_Range=f"bytes {begin}-{end - 1}/{len(content)}")
