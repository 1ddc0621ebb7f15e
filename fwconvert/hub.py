"""The Hugging Face hub, through its own client: what it lists, what it sends, and what its errors mean.

The client knows the endpoint, the token, proxies and offline mode as everybody
who uses it expects (HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE), and it
keeps the token from other origins. Its session is used, and not its functions
that list and download: those wait without a limit, print, cannot be stopped,
and retry some faults and not others. Here every request has a timeout, what
may pass is told apart from what will not, and no message has an address with
a signature in it. The client is loaded when it is first needed: that takes
half a second.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from fwconvert.config import SourceShard
from fwconvert.errors import HubError, SourceError, Stopped, UsageError, message

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")

PARQUET = ".parquet"
# For the answer to a question. Files have the client's own timeout, HF_HUB_DOWNLOAD_TIMEOUT.
_CALL_SECONDS = 30.0
_LONGEST_BACKOFF = 60.0
# The hub counts requests over five minutes, so it never has reason to ask for more.
_LONGEST_ASKED_WAIT = 300.0
_MOST_ASKED_SECONDS = 20 * _LONGEST_ASKED_WAIT
_SHORTEST_WAIT = 0.5
_MAY_PASS = {408, 425, 429}
_NOTHING_THERE = 416


class Passing(Exception):  # Not an error yet: it is endured or becomes a HubError
    """Trouble that may pass. `wait`: for how many seconds the server asked us to stay away."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class Patience:
    """Goes on trying as long as something comes, and for a while if nothing does.

    One for each thing that is wanted. `tell` is given a line when the wait is
    long enough for a person to wonder.
    """

    def __init__(self, seconds: float, stop: threading.Event, tell: Callable[[str], None]) -> None:
        self.stop = stop
        self._seconds = seconds
        self._tell = tell
        self.progress()

    def progress(self) -> None:
        """Something came."""
        self._failures = 0
        # For how many seconds servers asked us to stay away; that is not held against them.
        self._asked = 0.0
        self._since = time.monotonic()

    def endure(self, trouble: Passing, what: str) -> None:
        """Wait before the next try, or raise HubError if nothing has come for too long."""
        self._failures += 1
        waited = time.monotonic() - self._since
        too_long = waited - self._asked > self._seconds and self._failures > 1
        if too_long or self._asked > _MOST_ASKED_SECONDS:
            raise HubError(
                message(
                    f"nothing has come from the hub for {waited:,.0f} s, after {self._failures} tries",
                    "look at the network, then run the same command again: it goes on where it stopped",
                    wanted=what,
                    endpoint=endpoint(),
                    last_trouble=trouble,
                )
            )
        seconds = self._pause(trouble)
        if seconds >= 4:
            self._tell(f"{what}: {trouble}; next try in {seconds:.0f} s")
        if self.stop.wait(seconds):
            raise Stopped("stopped by the user")

    def _pause(self, trouble: Passing) -> float:
        if trouble.wait is not None:
            seconds = min(max(trouble.wait, _SHORTEST_WAIT), _LONGEST_ASKED_WAIT)
            self._asked += seconds
            return seconds
        # Less than full, at random: a cluster that was cut off together must not come back together.
        longest = min(_LONGEST_BACKOFF, 2.0 ** (self._failures - 1))
        share = random.uniform(0.5, 1.0)  # noqa: S311  # no secret
        return share * min(longest, max(1.0, self._seconds / 4))


def patiently(ask: Callable[[], Found], what: str, patience: Patience) -> Found:
    """Return what `ask` returns, in the end. Raises Stopped as soon as the user wishes."""
    while True:
        try:
            return _stoppable(ask, patience.stop)
        except Passing as trouble:
            patience.endure(trouble, what)


def _stoppable(ask: Callable[[], Found], stop: threading.Event) -> Found:
    """Call `ask` in a thread that is left alone if it takes longer than the user wants to wait."""
    answer: Future[Found] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001  # raised again below
            answer.set_exception(error)

    threading.Thread(target=work, name="ask", daemon=True).start()
    while not wait([answer], 0.1).done:
        if stop.is_set():
            raise Stopped("stopped by the user")
    return answer.result()


@dataclass(frozen=True)
class Dataset:
    """A repository at a commit (or a branch, for `commit` and `files`)."""

    name: str
    revision: str

    def commit(self) -> str:
        """Return the commit that the revision means now."""
        found, _ = self._ask(self._address("revision"), _Info)
        return found.sha

    def files(self, folder: str) -> tuple[SourceShard, ...]:
        """Return the parquet files below `folder`, by name, as the hub lists them."""
        entries = [entry for entry in self._tree(folder) if entry.type == "file"]
        found = [_shard(entry) for entry in entries if entry.path.endswith(PARQUET)]
        if not found:
            raise HubError(
                message(
                    "the hub lists no parquet files here",
                    "look at the repository's files in a browser, then name the folder that has them",
                    folder=folder or "(the whole repository)",
                    other_files=len(entries),
                    **self._facts(),
                )
            )
        return tuple(sorted(found, key=lambda shard: shard.path))

    def _tree(self, folder: str) -> Iterator[_Entry]:
        """Yield all below `folder`, page by page."""
        asked = set()
        place, query = f"{self._address('tree')}/{quote(folder, safe='')}", "recursive=true&expand=false"
        while query:
            if query in asked:
                raise HubError(
                    message(
                        "the hub's list has no end: it sends the same page again",
                        "a mirror is broken: list from another HF_ENDPOINT",
                        folder=folder,
                        **self._facts(),
                    )
                )
            asked.add(query)
            entries, more = self._ask(f"{place}?{query}", list[_Entry], folder)
            yield from entries
            # Only the cursor: the token must not follow an address that leads elsewhere, and a mirror
            # may pass on the address of the hub behind it.
            query = urlsplit(more).query

    def _address(self, what: str) -> str:
        return f"{endpoint()}/api/datasets/{self.name}/{what}/{quote(self.revision or 'main', safe='')}"

    def _ask(self, url: str, kind: type[Found], path: str = "") -> tuple[Found, str]:
        """Return what the hub answers, and the address of what follows, if anything does."""
        client = _client()
        with self._asking(path):
            response = client.session().get(url, headers=_headers(), timeout=_CALL_SECONDS)
            self._look_at(response, path)
        try:
            return msgspec.json.decode(response.content, type=kind), response.links.get("next", {}).get(
                "url", ""
            )
        except msgspec.MsgspecError as error:
            raise HubError(
                message(
                    "the hub's answer is not what a hub answers",
                    "look at HF_ENDPOINT: it must be a hub, or a mirror of one",
                    reason=error,
                    **self._facts(),
                )
            ) from None

    @contextmanager
    def opened(self, path: str, begin: int) -> Iterator[Answer]:
        """Ask for a file from byte `begin` on."""
        client = _client()
        url = self._file_address(path)
        headers = {**_headers(), "Accept-Encoding": "identity"}
        if begin:
            headers["Range"] = f"bytes={begin}-"
        with self._asking(path):
            timeout = client.constants.HF_HUB_DOWNLOAD_TIMEOUT
            with client.session().stream("GET", url, headers=headers, timeout=timeout) as response:
                if response.status_code != _NOTHING_THERE:
                    self._look_at(response, path)
                yield Answer(response)

    def _file_address(self, path: str) -> str:
        client = _client()
        try:
            return str(client.hf_hub_url(self.name, path, repo_type="dataset", revision=self.revision))
        except client.errors.HFValidationError as error:
            raise HubError(
                message(
                    "a dataset on the hub cannot have this name",
                    "name it as owner/name",
                    reason=_plain(error),
                    **self._facts(),
                )
            ) from None

    def _look_at(self, response: Any, path: str) -> None:
        """Raise what an answer means that is not a good one."""
        status = response.status_code
        # Not left to the client: whatever is in the body of such an answer does not matter.
        if status in _MAY_PASS or status >= 500:
            raise Passing(f"the server answers {status}", _asked_wait(response.headers, status))
        if status >= 400:
            try:
                _client().hf_raise_for_status(response)
            except _client().errors.HfHubHTTPError:
                raise
            except Exception:  # noqa: BLE001  # the client trips over bodies that it does not expect
                raise HubError(self._refused(status, path)) from None

    @contextmanager
    def _asking(self, path: str = "") -> Iterator[None]:
        """Turn what the client raises into Passing, HubError or, for a missing file, SourceError."""
        client = _client()
        try:
            yield
        except client.errors.OfflineModeIsEnabled:
            raise HubError(_offline(self._facts(path))) from None
        except client.errors.HfHubHTTPError as error:
            raise self._refusal(error, path) from None
        except (client.httpx.UnsupportedProtocol, client.httpx.InvalidURL) as error:
            raise HubError(
                message(
                    "the address of the hub is not one",
                    "HF_ENDPOINT must be like https://huggingface.co",
                    endpoint=endpoint(),
                    reason=_plain(error),
                )
            ) from None
        except (client.httpx.HTTPError, client.httpx.StreamError) as error:
            raise Passing(f"{type(error).__name__}: {_plain(error) or 'no answer in time'}") from None

    def _refusal(self, error: Any, path: str) -> Exception:
        """Return what an answer of the hub other than a good one means."""
        client, facts = _client(), self._facts(path)
        status = error.response.status_code
        if isinstance(error, client.errors.GatedRepoError):
            return HubError(
                message(
                    "this repository is gated, and you have no access to it",
                    f"accept its terms at {endpoint()}/datasets/{self.name}, logged in",
                    "then run `hf auth login`, or set HF_TOKEN",
                    **facts,
                )
            )
        if isinstance(error, client.errors.RepositoryNotFoundError):
            return HubError(
                message(
                    "the hub knows no such repository, or it is private",
                    "look at its name; for a private one run `hf auth login`, or set HF_TOKEN",
                    **facts,
                )
            )
        if isinstance(error, client.errors.RevisionNotFoundError):
            return HubError(
                message(
                    "the repository has no such revision",
                    "give a branch, a tag or a commit that it has; a mirror may lack it",
                    **facts,
                )
            )
        if isinstance(error, client.errors.EntryNotFoundError):
            return SourceError(
                message(
                    "the repository has no such file or folder at this revision",
                    "look at the repository's files in a browser; a mirror may lack some",
                    **facts,
                )
            )
        return HubError(self._refused(status, path))

    def _refused(self, status: int, path: str) -> str:
        advice = "look at the address of the hub and at the name of the dataset"
        if status in (401, 403):
            advice = "the token is not valid here: run `hf auth login`, or set HF_TOKEN"
        return message(f"the hub refuses with {status}", advice, **self._facts(path))

    def _facts(self, path: str = "") -> dict[str, object]:
        facts: dict[str, object] = {
            "dataset": self.name,
            "revision": self.revision or "main",
            "endpoint": endpoint(),
        }
        return {"file": path, **facts} if path else facts


class _Info(msgspec.Struct):
    sha: str


class _Lfs(msgspec.Struct):
    # The sha256 of the content.
    oid: str


class _Entry(msgspec.Struct):
    type: str
    path: str
    size: int = 0
    lfs: _Lfs | None = None


class Answer:
    """A file, or the rest of one, as the server sends it."""

    def __init__(self, response: Any) -> None:
        # Our part is longer than the file that the server has.
        self.nothing = response.status_code == _NOTHING_THERE
        self._chunks: Iterator[bytes] = response.iter_raw()
        headers = response.headers
        length = headers.get("Content-Length", "")
        self.begin = 0
        self.total = int(length) if length.isdecimal() else None
        if response.status_code == 206:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range", "").strip())
            if span is None:
                raise Passing("the server answers a range without saying which")
            self.begin, self.total = int(span[1]), int(span[2])

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks


def endpoint() -> str:
    """Return the address of the hub or its mirror."""
    return str(_client().constants.ENDPOINT)


def _shard(entry: _Entry) -> SourceShard:
    shard = SourceShard(entry.path, entry.size, entry.lfs.oid if entry.lfs else None)
    if not shard.is_safe:
        raise HubError(
            message(
                "the hub lists a file that cannot be: see its name, size and sha256",
                path=ascii(shard.path),
                bytes=shard.bytes,
                sha256=ascii(shard.sha256),
            )
        )
    return shard


def _offline(facts: dict[str, object]) -> str:
    return message(
        "the hub was needed, and offline mode is on",
        "unset HF_HUB_OFFLINE",
        "or fetch the files elsewhere and name their folder with --keep-source DIR or --source DIR",
        **facts,
    )


def _headers() -> dict[str, str]:
    try:
        return dict(_client().build_hf_headers())
    except OSError as error:
        raise HubError(
            message(
                "the file with the hub's token cannot be read",
                "look at HF_HOME, or set HF_TOKEN",
                file=error.filename,
                reason=error.strerror,
            )
        ) from None


def _asked_wait(headers: Any, status: int) -> float | None:
    """Return for how long the server asks us to stay away, if it does."""
    after = headers.get("Retry-After", "").strip()
    if after.isdecimal():
        return float(after)
    if after:
        try:
            return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
        except ValueError:
            pass
    limit = _client().parse_ratelimit_headers(headers) if status == 429 else None
    return None if limit is None else float(limit.reset_in_seconds)


def _plain(error: BaseException) -> str:
    """Return an error's text without the queries of addresses: they may be signatures."""
    return re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", " ".join(str(error).split()))


@cache
def _client() -> SimpleNamespace:
    """Load the client; return what we use of it."""
    try:
        hub, utils = import_module("huggingface_hub"), import_module("huggingface_hub.utils")
        return SimpleNamespace(
            session=utils.get_session,
            constants=hub.constants,
            errors=import_module("huggingface_hub.errors"),
            httpx=utils.httpx,
            hf_hub_url=hub.hf_hub_url,
            build_hf_headers=utils.build_hf_headers,
            hf_raise_for_status=utils.hf_raise_for_status,
            parse_ratelimit_headers=utils.parse_ratelimit_headers,
        )
    except ValueError as error:
        named = [name for name in os.environ if name.startswith("HF_") and "TOKEN" not in name]
        raise UsageError(
            message(
                "a variable HF_... has a value that the hub's client cannot use",
                "timeouts are whole seconds; HF_ENDPOINT is like https://huggingface.co",
                reason=error,
                variables=", ".join(f"{name}={os.environ[name]}" for name in sorted(named)),
            )
        ) from error
