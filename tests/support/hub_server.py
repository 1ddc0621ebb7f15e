"""A Hugging Face hub on the loopback: one dataset or model, made of a folder, and the CDN that has its files.

The hub and the CDN are two origins, as they are in the world: the hub wants the token and answers a request
for a file with a redirect; the CDN sends the bytes and must never see the token. What goes wrong on the way
is said with `fault`, and what was asked stands in `log`.

    with HubServer(folder) as hub:
        hub.fault("reset", path="000.parquet", after=100_000)
        ...  # a client in a process of its own, with HF_ENDPOINT=hub.endpoint
        assert [seen.range for seen in hub.log if seen.server == "cdn"] == [None, "bytes=100000-"]
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlencode

from hub_faults import CHUNK, Answer, Body, Exchange, Fault, Faults, Kind, Link, Origin, Request, Seen

__all__ = ["COMMIT", "REPO", "HubServer", "Link", "Seen", "write_files"]

REPO = "HuggingFaceFW/fineweb-edu"
COMMIT = "0123456789abcdef0123456789abcdef01234567"

_API = re.compile(r"/api/(?:datasets|models)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?")
_FILE = re.compile(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make the files of a repository, by their paths in it."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


class HubServer:
    """A hub with one dataset, and its CDN. It serves from construction until `stop`, or as a context manager.

    Files put in `folder` are served at once. Every branch shows the same files.

    `token`: the repository is private, or with `gated` a gated one, to everyone who does not send it.
    `cdn=False`: the hub sends the content itself. `rate`: bytes per second on each connection to the CDN.
    `link`: what all connections share.
    """

    def __init__(
        self,
        folder: Path,
        repo: str = REPO,
        commit: str = COMMIT,
        branches: Mapping[str, str] | None = None,
        token: str | None = None,
        gated: bool = False,
        page_size: int = 1000,
        cdn: bool = True,
        rate: int | None = None,
        link: Link | None = None,
    ) -> None:
        self.repo, self.commit = repo, commit
        self._files = _Files(folder)
        self._revisions = {commit: commit, **({"main": commit} if branches is None else branches)}
        self._revisions |= {sha: sha for sha in self._revisions.values()}
        self._token, self._gated, self._page_size, self._redirects = token, gated, page_size, cdn
        self._exchanges: list[Exchange] = []
        self._faults = Faults()
        self._hub = Origin("hub", self._answer, faults=self._faults, log=self._exchanges, link=link)
        self._cdn = Origin(
            "cdn", self._cdn_answer, faults=self._faults, log=self._exchanges, rate=rate, link=link
        )

    def hurry(self) -> None:
        """Send what is asked for from now on as fast as possible."""
        self._cdn.rate = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End both servers with all their connections and threads; raise what failed in them, if anything."""
        try:
            self._hub.stop()
        finally:
            self._cdn.stop()

    @property
    def endpoint(self) -> str:
        return self._hub.endpoint

    @property
    def cdn_endpoint(self) -> str:
        return self._cdn.endpoint

    @property
    def log(self) -> list[Seen]:
        """Return all requests so far, in the order of their arrival."""
        return [exchange.seen() for exchange in list(self._exchanges)]

    def fault(self, kind: Kind, **how: Any) -> None:
        """Let something go wrong; the names are those of `hub_faults.Fault`."""
        fault = Fault(kind, **how)
        assert self._redirects or fault.on != "cdn", "there is no CDN to go wrong: say on='hub'"
        self._faults.add(fault)

    @property
    def faults_left(self) -> int:
        """Return how often the faults with a number of `times` are still to happen."""
        return self._faults.left

    def _answer(self, request: Request) -> Answer:
        if found := _FILE.fullmatch(request.raw_path):
            repo, revision, path = found.groups()
            return self._checked(request, repo, revision, lambda commit: self._file(request, commit, path))
        if found := _API.fullmatch(request.raw_path):
            repo, what, revision, path = found.groups()
            api = {"tree": self._tree, "paths-info": self._paths_info}.get(what, self._info)
            path = unquote(path or "").strip("/")
            return self._checked(request, repo, revision, lambda commit: api(request, commit, path))
        return Answer(404)

    def _checked(
        self, request: Request, repo: str, revision: str | None, answer: Callable[[str], Answer]
    ) -> Answer:
        """Answer with a commit, if this client may see the repository and the revision has one."""
        if refused := self._refused(request.authorization, unquote(repo)):
            return refused
        commit = self._revisions.get(unquote(revision or self.commit))
        if commit is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return answer(commit)

    def _refused(self, authorization: str | None, repo: str) -> Answer | None:
        if repo != self.repo:
            # Nobody is told whether a private repository exists.
            return _error(404 if authorization else 401, "RepoNotFound", "Repository not found")
        if self._token is None or authorization == f"Bearer {self._token}":
            return None
        if self._gated:
            return _error(
                403 if authorization else 401, "GatedRepo", f"Access to dataset {repo} is restricted"
            )
        return _error(401, "RepoNotFound", "Repository not found")

    def _info(self, request: Request, commit: str, _path: str) -> Answer:
        blobs = _query(request).get("blobs") == "true"
        siblings = [self._sibling(path, blobs) for path in self._files.all()]
        gated = "auto" if self._gated else False
        return _json({"id": self.repo, "sha": commit, "gated": gated, "siblings": siblings})

    def _sibling(self, path: str, blobs: bool) -> dict[str, object]:
        if not blobs:
            return {"rfilename": path}
        entry = self._files.entry(path)
        lfs = {**entry["lfs"], "sha256": entry["lfs"]["oid"]}
        return {"rfilename": path, "size": entry["size"], "blobId": entry["oid"], "lfs": lfs}

    def _tree(self, request: Request, commit: str, path: str) -> Answer:
        """Answer with one page, and a link to the next."""
        query = _query(request)
        paths = self._files.below(path, recursive=query.get("recursive") == "true")
        if paths is None:
            return _error(404, "EntryNotFound", f"{path} does not exist on {commit}")
        start = int(query.get("cursor", "0"))
        end = start + self._page_size
        headers = {}
        if end < len(paths):
            following = urlencode({**query, "cursor": end})
            headers["Link"] = f'<{self.endpoint}{request.raw_path}?{following}>; rel="next"'
        return _json([self._files.entry(path) for path in paths[start:end]], headers)

    def _paths_info(self, request: Request, _commit: str, _path: str) -> Answer:
        """Answer with those that exist of the paths of a form."""
        wanted = parse_qs(request.body.decode()).get("paths", [])
        return _json([self._files.entry(path) for path in wanted if self._files.has(path)])

    def _file(self, request: Request, commit: str, quoted: str) -> Answer:
        path = unquote(quoted)
        if not self._files.has(path) or self._files.entry(path)["type"] == "directory":
            return _error(404, "EntryNotFound", f"Entry not found: {path}")
        sha256 = self._files.sha256(path)
        headers = {
            "X-Repo-Commit": commit,
            "ETag": f'"{sha256}"',
            "X-Linked-Size": str(self._files.size(path)),
            "X-Linked-Etag": f'"{sha256}"',
            "Accept-Ranges": "bytes",
        }
        if not self._redirects:
            return _content(self._files.folder / path, request.range, headers)
        location = f"{self.cdn_endpoint}/blob/{sha256}?{_signature(sha256, path)}"
        text = f"Found. Redirecting to {location}".encode()
        return Answer(302, {**headers, "Location": location}, Body(text, len(text)))

    def _cdn_answer(self, request: Request) -> Answer:
        sha256 = request.path.removeprefix("/blob/")
        for path in self._files.all():
            if self._files.sha256(path) == sha256:
                headers = {"ETag": f'"{sha256}"', "Accept-Ranges": "bytes"}
                return _content(self._files.folder / path, request.range, headers)
        return Answer(404)


class _Files:
    """The files of a repository, by their paths in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sha256: dict[tuple[str, int, int], str] = {}
        self._hashing = threading.Lock()

    def all(self) -> list[str]:
        return [path for path in self.below("", recursive=True) or [] if (self.folder / path).is_file()]

    def below(self, path: str, *, recursive: bool) -> list[str] | None:
        """Return the files and folders in a folder, sorted; None if there is no such folder."""
        folder = self.folder / path
        if not (self.has(path) and folder.is_dir()):
            return None
        found = folder.rglob("*") if recursive else folder.iterdir()
        return sorted(path.relative_to(self.folder).as_posix() for path in found)

    def has(self, path: str) -> bool:
        inside = (self.folder / path).resolve().is_relative_to(self.folder.resolve())
        return inside and (self.folder / path).exists()

    def size(self, path: str) -> int:
        return (self.folder / path).stat().st_size

    def sha256(self, path: str) -> str:
        """Return the sha256 of a file, reading it only if it has changed."""
        status = (self.folder / path).stat()
        key = path, status.st_mtime_ns, status.st_size
        with self._hashing:
            if key not in self._sha256:
                digest = hashlib.sha256()
                for chunk in Body(self.folder / path, status.st_size).chunks(status.st_size, CHUNK):
                    digest.update(chunk)
                self._sha256[key] = digest.hexdigest()
            return self._sha256[key]

    def entry(self, path: str) -> dict[str, Any]:
        """Return what a tree says of a path. The oids of git are made up; that of LFS is the sha256."""
        if (self.folder / path).is_dir():
            made_up = hashlib.sha1(path.encode()).hexdigest()
            return {"type": "directory", "path": path, "size": 0, "oid": made_up}
        sha256, size = self.sha256(path), self.size(path)
        lfs = {"oid": sha256, "size": size, "pointerSize": 133}
        return {"type": "file", "path": path, "size": size, "oid": sha256[:40], "lfs": lfs}


def _content(path: Path, wanted: str | None, headers: Mapping[str, str]) -> Answer:
    """Answer with a file, or the wanted range of it; a range that makes no sense is ignored."""
    size = path.stat().st_size
    span = _span(wanted, size)
    if span is None:
        return Answer(200, headers, Body(path, size))
    start, end = span
    if start >= end:
        return Answer(416, {**headers, "Content-Range": f"bytes */{size}"})
    return Answer(
        206, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}, Body(path, end - start, start)
    )


def _span(wanted: str | None, size: int) -> tuple[int, int] | None:
    found = _RANGE.fullmatch(wanted or "")
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1 if last else size)


def _signature(sha256: str, path: str) -> str:
    """Return a query like that of a signed address, with the file's path, by which a fault finds it."""
    signature = hashlib.sha256(f"signed {sha256}".encode()).hexdigest()
    expires = int(time.time()) + 3600
    disposition = quote(f'inline; filename="{path}"')
    return f"X-Amz-Signature={signature}&Expires={expires}&response-content-disposition={disposition}"


def _query(request: Request) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(request.query).items()}


def _json(value: object, headers: Mapping[str, str] | None = None) -> Answer:
    text = json.dumps(value).encode()
    return Answer(200, {"Content-Type": "application/json", **(headers or {})}, Body(text, len(text)))


def _error(status: int, code: str, message: str) -> Answer:
    text = json.dumps({"error": message}).encode()
    headers = {"X-Error-Code": code, "X-Error-Message": message, "Content-Type": "application/json"}
    return Answer(status, headers, Body(text, len(text)))
