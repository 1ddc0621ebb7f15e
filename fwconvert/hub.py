"""The Hugging Face hub, through its own client: what it lists, what it sends, and what its errors mean.

The client knows the endpoint, the token, proxies and offline mode as everybody
who uses it expects (HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE), and it
keeps the token from other origins. Its session is used, and not its functions
that list and download: those wait without a limit, print, cannot be stopped,
and retry some faults and not others. Here every request has a timeout, what
may pass is told apart from what will not, and no message has an address with
a signature in it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from fwconvert.config import SourceShard
from fwconvert.errors import HubError, SourceError, message
from fwconvert.hub_client import client, endpoint, headers, plain
from fwconvert.patience import Found, Passing

PARQUET = ".parquet"
# For the answer to a question. Files have the client's own timeout, HF_HUB_DOWNLOAD_TIMEOUT.
_CALL_SECONDS = 30.0
_MAY_PASS = {408, 425, 429}
_NOTHING_THERE = 416


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
        found = [_shard(entry) for entry in entries if entry.path.lower().endswith(PARQUET)]
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
        api = client()
        with self._asking(path):
            response = api.session().get(url, headers=headers(), timeout=_CALL_SECONDS)
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
    def opened(self, path: str, begin: int, end: int | None = None) -> Iterator[Answer]:
        """Ask for a file from byte `begin` on, to its end or to byte `end`."""
        api = client()
        url = self._file_address(path)
        wanted = {**headers(), "Accept-Encoding": "identity"}
        if begin or end is not None:
            wanted["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"
        with self._asking(path):
            timeout = api.constants.HF_HUB_DOWNLOAD_TIMEOUT
            with api.session().stream("GET", url, headers=wanted, timeout=timeout) as response:
                if response.status_code != _NOTHING_THERE:
                    self._look_at(response, path)
                yield Answer(response)

    def _file_address(self, path: str) -> str:
        api = client()
        try:
            return str(api.hf_hub_url(self.name, path, repo_type="dataset", revision=self.revision))
        except api.errors.HFValidationError as error:
            raise HubError(
                message(
                    "a dataset on the hub cannot have this name",
                    "name it as owner/name",
                    reason=plain(error),
                    **self._facts(),
                )
            ) from None

    def _look_at(self, response: Any, path: str) -> None:
        """Raise what an answer means that is not a good one."""
        status = response.status_code
        # Not left to the client: whatever is in the body of such an answer does not matter.
        if status in _MAY_PASS or status >= 500:
            raise Passing(f"the server answers {status}", _asked_wait(response.headers, status))
        if status in (401, 403) and not str(response.url).startswith(endpoint()):
            raise Passing(f"the server behind the hub answers {status}")  # A signature may have run out.
        if status >= 400:
            try:
                client().hf_raise_for_status(response)
            except client().errors.HfHubHTTPError:
                raise
            except Exception:  # noqa: BLE001  # the client trips over bodies that it does not expect
                raise HubError(self._refused(status, path)) from None

    @contextmanager
    def _asking(self, path: str = "") -> Iterator[None]:
        """Turn what the client raises into Passing, HubError or, for a missing file, SourceError."""
        api = client()
        try:
            yield
        except api.errors.OfflineModeIsEnabled:
            raise HubError(_offline(self._facts(path))) from None
        except api.errors.HfHubHTTPError as error:
            raise self._refusal(error, path) from None
        except (api.httpx.UnsupportedProtocol, api.httpx.InvalidURL) as error:
            raise HubError(
                message(
                    "the address of the hub is not one",
                    "HF_ENDPOINT must be like https://huggingface.co",
                    endpoint=endpoint(),
                    reason=plain(error),
                )
            ) from None
        except (api.httpx.HTTPError, api.httpx.StreamError) as error:
            raise Passing(f"{type(error).__name__}: {plain(error) or 'no answer in time'}") from None

    def _refusal(self, error: Any, path: str) -> Exception:
        """Return what an answer of the hub other than a good one means."""
        api, facts = client(), self._facts(path)
        status = error.response.status_code
        if isinstance(error, api.errors.GatedRepoError):
            return HubError(
                message(
                    "this repository is gated, and you have no access to it",
                    f"accept its terms at {endpoint()}/datasets/{self.name}, logged in",
                    "then run `hf auth login`, or set HF_TOKEN",
                    **facts,
                )
            )
        if isinstance(error, api.errors.RepositoryNotFoundError):
            return HubError(
                message(
                    "the hub knows no such repository, or it is private",
                    "look at its name; for a private one run `hf auth login`, or set HF_TOKEN",
                    **facts,
                )
            )
        if isinstance(error, api.errors.RevisionNotFoundError):
            return HubError(
                message(
                    "the repository has no such revision",
                    "give a branch, a tag or a commit that it has; a mirror may lack it",
                    **facts,
                )
            )
        if isinstance(error, api.errors.EntryNotFoundError):
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
    limit = client().parse_ratelimit_headers(headers) if status == 429 else None
    return None if limit is None else float(limit.reset_in_seconds)
