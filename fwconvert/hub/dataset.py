"""A repository on the Hugging Face hub: list its files, read ranges of them, and classify errors.

A dataset, or a model of which the tokenizer is wanted.

The hub's own client knows the endpoint, the token, proxies and offline mode as
its users expect (HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE), and it keeps
the token from other origins. We use its session, but not its functions to list
and download: those wait without a limit, print, cannot be stopped, read a
response of any size, and retry only some errors. Here every request has a
timeout and every response a maximum size, transient errors are separated from
permanent ones, and no message contains an address with a password or a
signature. Of an error response only the status and the headers are read.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Generic, Literal
from urllib.parse import quote, urlsplit

import msgspec

from fwconvert import kinds
from fwconvert.addresses import plain
from fwconvert.errors import HubError, SourceError, message
from fwconvert.hub import http
from fwconvert.hub.client import client, endpoint, headers, session
from fwconvert.hub.http import Response
from fwconvert.hub.retry import Found, TransientError
from fwconvert.recipes import SourceShard, is_commit

# For API calls. Files have the client's own timeout, HF_HUB_DOWNLOAD_TIMEOUT.
_CALL_SECONDS = 30.0
_TRANSIENT_STATUS = {408, 425, 429}
_PRESSURE_STATUS = {429, 503}
_RANGE_NOT_SATISFIABLE = 416

# The hub sends a thousand entries at a time, about 330 KB, and advises against more than 100,000 files in
# a repository. A mirror may send all of those at once, about 33 MB.
_MOST_ANSWER_BYTES = 32 * 2**20
_MOST_LIST_BYTES = 64 * 2**20
_MOST_ENTRIES = 200_000
# Enough for pages of a hundred entries.
_MOST_PAGES = 2_000
# Objects in one response, nested ones included. Decoding takes their memory before they can be counted.
_MOST_OBJECTS = 4 * _MOST_ENTRIES

# Called with the number of bytes received; may raise to end the call.
Received = Callable[[int], None]


def _ignore(_: int) -> None:
    """Ignore the number of bytes received."""


class _Addresses:
    """Where the hub keeps files, by path: it is asked once for each, and again when a request failed.

    The hub answers a request for a file with a signed address of its storage. Ranges that are
    requested there do not count against its rate limit.
    """

    def __init__(self) -> None:
        # "": the hub sends the file itself.
        self._known: dict[str, str] = {}
        self._asking: dict[str, threading.Lock] = {}

    def __reduce__(self) -> tuple[type[_Addresses], tuple[()]]:
        return _Addresses, ()  # In another process, perhaps on another machine, the hub is asked again.

    @contextmanager
    def known(self, path: str) -> Iterator[tuple[str, Callable[[str], None]]]:
        """Yield the address of a file, "" if the hub has to be asked, and what is to be told the answer.

        Others that want the same file wait until it is told, or the block ends.
        """
        with ExitStack() as asking:
            if path not in self._known:
                asking.enter_context(self._asking.setdefault(path, threading.Lock()))
                if path in self._known:  # Another request was told meanwhile: nobody need wait for this one.
                    asking.close()

            def learn(address: str) -> None:
                self._known[path] = address
                asking.close()

            try:
                yield self._known.get(path, ""), learn
            except BaseException:
                # The signature may have expired, or that server may be the trouble.
                self._known.pop(path, None)
                raise


@dataclass(frozen=True)
class Dataset:
    """A repository at a commit (or a branch, for `commit` and `files`)."""

    name: str
    revision: str
    # As the hub's addresses have it.
    kind: Literal["datasets", "models"] = "datasets"
    _addresses: _Addresses = field(default_factory=_Addresses, compare=False, repr=False)

    def commit(self, received: Received = _ignore) -> str:
        """Return the commit that the revision refers to now."""
        found = self._get_json(self._address("revision"), _Info, received).found
        if not is_commit(found.sha):
            raise HubError(
                message(
                    "the hub returned an invalid commit",
                    "look at HF_ENDPOINT: it must be a hub, or a mirror of one",
                    commit=ascii(found.sha),
                    **self._facts(),
                )
            )
        return found.sha

    def files(self, folder: str, received: Received = _ignore) -> tuple[SourceShard, ...]:
        """Return the files of text below `folder` (`kinds.chosen`) as the hub lists them, sorted by path."""
        entries = [entry for entry in self._tree(folder, received) if entry.type == "file"]
        place = "/".join(filter(None, (self.name, folder)))
        found = [_shard(entry) for entry in kinds.chosen(entries, lambda entry: entry.path, place)]
        if not found:
            raise HubError(
                message(
                    f"the hub lists no {kinds.ALL} here",
                    "look at the repository's files in a browser, then name the folder that contains them",
                    folder=folder or "(the whole repository)",
                    other_files=len(entries),
                    **self._facts(),
                )
            )
        return tuple(sorted(found, key=lambda shard: shard.path))

    def entries(self, received: Received = _ignore) -> dict[str, _Entry]:
        """Return the files of the repository by their paths."""
        return {entry.path: entry for entry in self._tree("", received) if entry.type == "file"}

    def content(self, path: str, entry: _Entry, most: int, received: Received = _ignore) -> bytes:
        """Return a whole file, if it is the one that the hub lists and has at most so many bytes."""
        if entry.size > most:
            raise SourceError(
                message(
                    "this file is too large",
                    bytes=f"{entry.size:,}",
                    at_most=f"{most:,}",
                    **self._facts(path),
                )
            )
        found = bytearray()
        with self.open_range(path, 0) as stream:
            for part in stream:
                received(len(part))
                found += part
                if len(found) > entry.size:
                    break
        if not entry.has(found):
            raise TransientError("the file is not the one that the hub lists")
        return bytes(found)

    def _tree(self, folder: str, received: Received) -> Iterator[_Entry]:
        """Yield every entry below `folder`, page by page."""
        asked: set[str] = set()
        entries = size = 0
        place, query = f"{self._address('tree')}/{quote(folder, safe='')}", "recursive=true&expand=false"
        while query:
            if query in asked:
                raise self._endless(folder, "it repeats a page")
            asked.add(query)
            page = self._get_json(f"{place}?{query}", list[_Entry], received, folder)
            entries, size = entries + len(page.found), size + page.bytes
            if entries > _MOST_ENTRIES or size > _MOST_LIST_BYTES or len(asked) > _MOST_PAGES:
                most = f"{_MOST_ENTRIES:,} entries, {_MOST_PAGES:,} pages, {_MOST_LIST_BYTES:,} bytes"
                so_far = f"{entries:,} entries, {len(asked):,} pages, {size:,} bytes"
                raise self._endless(folder, "it is too long", maximum=most, received=so_far)
            yield from page.found
            # Only the cursor of that address: the token must not be sent to another server, and a mirror
            # may pass on the address of the hub behind it.
            query = _query(page.next_page)

    def _endless(self, folder: str, why: str, **values: object) -> HubError:
        return HubError(
            message(
                f"the hub's file list does not end: {why}",
                "name a folder with fewer files, or use another HF_ENDPOINT if a mirror is broken",
                folder=folder or "(the whole repository)",
                **values,
                **self._facts(),
            )
        )

    def _address(self, what: str) -> str:
        return f"{endpoint()}/api/{self.kind}/{self.name}/{what}/{quote(self.revision or 'main', safe='')}"

    def _get_json(self, url: str, kind: type[Found], received: Received, path: str = "") -> _Page[Found]:
        """Return the decoded response to a GET request."""
        with (
            self._translating_errors(path),
            http.request(session(), url, headers(), _CALL_SECONDS) as response,
        ):
            self._raise_for_status(response, path)
            raw = self._read_body(response, received)
            following = response.next_page
        try:
            # Before decoding, in which an object of two bytes takes a hundred bytes of memory.
            if raw.count(b"{") > _MOST_OBJECTS:
                raise HubError(self._invalid_answer(f"it has more than {_MOST_OBJECTS:,} objects"))
            return _Page(msgspec.json.decode(raw, type=kind), len(raw), following)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise HubError(self._invalid_answer(plain(error))) from None

    def _read_body(self, response: Response, received: Received) -> bytearray:
        """Return the whole body of a response, unless it is too large."""
        if response.encoding:
            raise HubError(self._invalid_answer("it is compressed", response.encoding))
        found = bytearray()
        for part in response:
            received(len(part))
            found += part
            if len(found) > _MOST_ANSWER_BYTES:
                raise HubError(self._invalid_answer(f"it is longer than {_MOST_ANSWER_BYTES:,} bytes"))
        return found

    def _invalid_answer(self, reason: str, packed: str = "") -> str:
        return message(
            "the hub's response is invalid",
            "look at HF_ENDPOINT: it must be a hub, or a mirror of one",
            reason=reason,
            **({"packed_as": packed} if packed else {}),
            **self._facts(),
        )

    @contextmanager
    def open_range(self, path: str, begin: int, end: int | None = None) -> Iterator[FileStream]:
        """Request a file from byte `begin` to its end, or to byte `end` exclusive."""
        wanted = headers()
        if begin or end is not None:
            wanted["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"
        timeout = client().constants.HF_HUB_DOWNLOAD_TIMEOUT
        with self._translating_errors(path), self._addresses.known(path) as (address, learn):
            if address:
                wanted.pop("Authorization", None)
            url = address or self._file_address(path)
            with http.request(session(), url, wanted, timeout) as response:
                if response.status != _RANGE_NOT_SATISFIABLE:
                    self._raise_for_status(response, path)
                learn("" if response.url.startswith(f"{endpoint()}/") else response.url)
                yield FileStream(response)

    def _file_address(self, path: str) -> str:
        api = client()
        try:
            named = {
                "repo_type": self.kind.removesuffix("s"),
                "revision": self.revision,
                "endpoint": endpoint(),
            }
            return str(api.hf_hub_url(self.name, path, **named))
        except api.errors.HFValidationError as error:
            raise HubError(
                message(
                    f"this is not a valid name of a {self.kind.removesuffix('s')} on the hub",
                    "name it as owner/name",
                    reason=plain(error),
                    **self._facts(),
                )
            ) from None

    def _raise_for_status(self, response: Response, path: str) -> None:
        """Raise the error that a response stands for, if any."""
        status = response.status
        if status in _TRANSIENT_STATUS or status >= 500:
            after, is_pressure = _retry_after(response.headers, status), status in _PRESSURE_STATUS
            raise TransientError(
                f"the server returned {status}", after, is_pressure=is_pressure, is_answer=True
            )
        if status in (401, 403) and not response.url.startswith(f"{endpoint()}/"):
            raise TransientError(f"the storage server behind the hub returned {status}", is_answer=True)
        if status >= 400:
            raise self._refusal(response, path)

    @contextmanager
    def _translating_errors(self, path: str = "") -> Iterator[None]:
        """Turn the client's errors into TransientError, HubError or, for a missing file, SourceError."""
        api = client()
        try:
            yield
        except api.errors.OfflineModeIsEnabled:
            raise HubError(_offline(self._facts(path))) from None
        except (api.httpx.UnsupportedProtocol, api.httpx.InvalidURL) as error:
            raise HubError(
                message(
                    "the address of the hub is invalid",
                    "HF_ENDPOINT must look like https://huggingface.co",
                    endpoint=endpoint(),
                    reason=plain(error),
                )
            ) from None
        except api.httpx.ProtocolError as error:
            # After a colon comes what the server sent.
            raise TransientError(f"{type(error).__name__}: {plain(error).partition(':')[0]}") from None
        except (api.httpx.HTTPError, api.httpx.StreamError) as error:
            raise TransientError(
                f"{type(error).__name__}: {plain(error) or 'no response in time'}",
                is_pressure=isinstance(error, api.httpx.NetworkError),
            ) from None

    def _refusal(self, response: Response, path: str) -> Exception:
        """Return the error that a permanent failure of the hub stands for."""
        facts, code, status = self._facts(path), response.headers.get("X-Error-Code", ""), response.status
        if code == "GatedRepo":
            return HubError(
                message(
                    "this repository is gated, and you have no access to it",
                    f"log in and accept its terms at {self._page()}",
                    "then run `hf auth login`, or set HF_TOKEN",
                    **facts,
                )
            )
        if code == "RevisionNotFound":
            return HubError(
                message(
                    "the repository has no such revision",
                    "give an existing branch, tag or commit; a mirror may lack some",
                    **facts,
                )
            )
        if code == "EntryNotFound":
            return SourceError(
                message(
                    "the repository has no such file or folder at this revision",
                    "look at the repository's files in a browser; a mirror may lack some",
                    **facts,
                )
            )
        # The hub also returns 401 for a private repository; with this message, the token itself is invalid.
        no_access = "Invalid credentials in Authorization header"
        unknown = status == 401 and response.headers.get("X-Error-Message", "") != no_access
        if code == "RepoNotFound" or (unknown and endpoint().startswith("https://")):
            return HubError(
                message(
                    "the repository does not exist, or it is private",
                    "check its name; for a private one run `hf auth login`, or set HF_TOKEN",
                    **facts,
                )
            )
        return HubError(self._refused(status, path))

    def _refused(self, status: int, path: str) -> str:
        advice = f"check HF_ENDPOINT and the name of the {self.kind.removesuffix('s')}"
        if status in (401, 403):
            advice = "the token is not accepted: run `hf auth login`, or set HF_TOKEN"
        return message(f"the hub refused the request with {status}", advice, **self._facts(path))

    def _page(self) -> str:
        """Return the address where people look at it."""
        return f"{endpoint()}/{'datasets/' if self.kind == 'datasets' else ''}{self.name}"

    def _facts(self, path: str = "") -> dict[str, object]:
        facts: dict[str, object] = {
            self.kind.removesuffix("s"): self.name,
            "revision": self.revision or "main",
            "endpoint": endpoint(),
        }
        return {"file": path, **facts} if path else facts


@dataclass(frozen=True)
class _Page(Generic[Found]):
    """A decoded response, its size, and the address of the next page, if any."""

    found: Found
    bytes: int
    next_page: str


class _Info(msgspec.Struct):
    sha: str


class _Lfs(msgspec.Struct):
    # The sha256 of the content.
    oid: str


class _Entry(msgspec.Struct):
    type: str
    path: str
    size: int = 0
    # Of a file that is in git itself: what git calls it.
    oid: str = ""
    lfs: _Lfs | None = None

    def has(self, content: bytes | bytearray) -> bool:
        """Return whether this is the content of the file."""
        if len(content) != self.size:
            return False
        if self.lfs is not None:
            return hashlib.sha256(content).hexdigest() == self.lfs.oid
        named = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        return self.oid in ("", named)


class FileStream:
    """A file, or the rest of one, as the server sends it."""

    def __init__(self, response: Response) -> None:
        # Our part file is already longer than the server's file.
        self.is_past_end = response.status == _RANGE_NOT_SATISFIABLE
        self.is_whole = response.status == 200
        self._response = response
        self.begin, self.total = 0, _number(response.headers.get("Content-Length", ""))
        if response.status == 206:
            number = "([0-9]{1,18})"
            given = response.headers.get("Content-Range", "").strip()
            span = re.fullmatch(f"bytes {number}-{number}/{number}", given)
            if span is None:
                raise TransientError("the server returned a range without saying which")
            self.begin, last, self.total = (int(text) for text in span.groups())
            if not self.begin <= last < self.total:
                raise TransientError("the server returned an impossible range")

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._response)


def _number(text: str) -> int | None:
    """Return the number in a header; None if it is not a number, or is absurdly large."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _query(address: str) -> str:
    try:
        return urlsplit(address).query
    except ValueError:
        return ""


def _shard(entry: _Entry) -> SourceShard:
    shard = SourceShard(entry.path, entry.size, entry.lfs.oid if entry.lfs else None)
    if not shard.is_safe:
        raise HubError(
            message(
                "the hub lists an invalid file: see its name, size and sha256",
                path=ascii(shard.path),
                bytes=shard.bytes,
                sha256=ascii(shard.sha256),
            )
        )
    return shard


def _offline(facts: dict[str, object]) -> str:
    return message(
        "the hub is needed, but offline mode is on",
        "unset HF_HUB_OFFLINE",
        "or fetch the files on another machine and pass their folder as --keep-source DIR or --source DIR",
        **facts,
    )


def _retry_after(headers: Mapping[str, str], status: int) -> float | None:
    """Return how many seconds the server asks us to wait, if it does."""
    after = headers.get("Retry-After", "").strip()
    if re.fullmatch("[0-9]+", after):
        return float(after[:18])  # Longer numbers exceed any time that we would wait anyway.
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  # 20 ms, for a header that few servers send

    try:
        if after:
            return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
    except (ValueError, TypeError, IndexError, OverflowError):  # Not a date.
        pass
    try:
        limit = client().parse_ratelimit_headers(headers) if status == 429 else None
        return None if limit is None else float(limit.reset_in_seconds)
    except (ValueError, OverflowError):  # Numbers with thousands of digits.
        return None
