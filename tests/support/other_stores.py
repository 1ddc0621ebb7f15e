"""Object stores other than S3, on loopback: what speaks as Google's does, and Microsoft's own emulator.

Google's answers to the requests that S3 knows too are those of S3, so moto gives them; what a proxy adds is
what differs: an object has a generation, and a PUT may name the one that it replaces. Azure's is azurite.
"""

import base64
import hashlib
import hmac
import http.client
import json
import os
import secrets
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from email.utils import formatdate
from itertools import count
from pathlib import Path

import pytest
from buckets import Place
from torture import s3

Having = Callable[[Path], AbstractContextManager[Place]]

_ACCOUNT = "account"


class _GooglesWay(s3.Passing):
    """Knows the generation of every object, which is all that a condition of a PUT names."""

    _generations: dict[str, int] = {}  # noqa: RUF012  # of the one server that there is at a time
    _numbers = count(1)
    _lock = threading.Lock()

    def ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        name, wanted = self.path.partition("?")[0], self.headers.get("x-goog-if-generation-match")
        del self.headers["authorization"], self.headers["x-goog-if-generation-match"]
        self.headers["authorization"] = f"AWS {s3.KEY}:unsigned"  # moto serves nobody without a name.
        with self._lock:
            if wanted is not None and int(wanted) != self._generations.get(name, 0):
                return 412, [], b"<Error><Code>PreconditionFailed</Code></Error>"
            status, headers, content = super().ask(body)
            if self.command in ("PUT", "POST") and status == 200 and "partNumber" not in self.path:
                self._generations[name] = next(self._numbers)
            if self.command == "DELETE":
                self._generations.pop(name, None)
            return status, [*headers, ("x-goog-generation", str(self._generations.get(name, 0)))], content


@contextmanager
def google(folder: Path) -> Iterator[Place]:
    """Have what speaks like Google Cloud Storage; skip the test if it cannot be had."""
    if reason := s3.skip_reason("moto"):
        pytest.skip(reason)
    with s3.serving("moto", folder) as server:
        proxy = s3.Proxy(server.endpoint, _GooglesWay)
        account = {"gcs_base_url": proxy.endpoint, "disable_oauth": True, "client_email": ""}
        key = json.dumps({**account, "private_key": "", "private_key_id": ""})
        try:
            settings = {"GOOGLE_SERVICE_ACCOUNT_KEY": key, "GOOGLE_ALLOW_HTTP": "true"}
            yield Place(server, proxy, folder, "gs", settings)
        finally:
            proxy.shutdown()
            proxy.server_close()


@contextmanager
def azure(folder: Path) -> Iterator[Place]:
    """Have azurite with an empty container; skip the test if it is not installed."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite is not installed: npm install -g azurite")
    folder.mkdir(parents=True, exist_ok=True)
    key, port = base64.b64encode(secrets.token_bytes(64)).decode(), s3.free_port()
    words = [program, "--location", str(folder / "blobs"), "--blobPort", str(port), "--skipApiVersionCheck"]
    environment = {**os.environ, "AZURITE_ACCOUNTS": f"{_ACCOUNT}:{key}"}
    with (folder / "azurite.log").open("wb") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        s3.wait_for(port, process)
        _make_container(port, key)
        server = s3.Server("azurite", f"http://127.0.0.1:{port}")
        proxy = s3.Proxy(server.endpoint)
        settings = {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": key,
            "AZURE_ALLOW_HTTP": "true",
            "AZURE_STORAGE_ENDPOINT": f"{proxy.endpoint}/{_ACCOUNT}",
        }
        try:
            yield Place(server, proxy, folder, "az", settings)
        finally:
            proxy.shutdown()
            proxy.server_close()
    finally:
        process.kill()
        process.wait()


def _make_container(port: int, key: str) -> None:
    """Ask for a container by a signed request: no client that is at hand makes any."""
    stamps = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    path = f"/{_ACCOUNT}/{s3.BUCKET}"
    lines = [f"{name}:{value}" for name, value in stamps.items()]
    text = "\n".join(["PUT", *[""] * 11, *lines, f"/{_ACCOUNT}{path}", "restype:container"])
    digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    signed = {"Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("PUT", f"{path}?restype=container", b"", {**stamps, **signed})
    assert connection.getresponse().status == 201
    connection.close()
