"""The objects below one prefix of a bucket: S3 and what speaks like it, Google Cloud Storage, Azure.

All talk with an object store goes through here, by obstore, which comes with the
extra `s3`. An object is there as a whole or not at all: a PUT, or the request that
completes an upload in parts, makes it visible, and an upload that fails is aborted
(s3fs and pyarrow would publish what they had so far). The store is asked afterwards
what it has: the size, and the MD5 in its ETag. Where an ETag is none, the object is
read back and its sha256 compared.

What may pass (500, 503, a reset, a slow answer) is retried for about two minutes;
then it is an OutputError, which stops a run and blames no job. So is a refusal.
That an object is missing is FileNotFoundError, as with any file.

Credentials are found where the tools of each store look for them: variables,
profiles, the machine's role. No message has what a server sent, which may quote them.
"""

import errno
import hashlib
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fwconvert import files
from fwconvert.addresses import shown
from fwconvert.errors import OutputError, ShardError, UsageError, message
from fwconvert.store import atomic
from fwconvert.store.bucket_client import (
    RETRY_SECONDS,
    VARIABLES,
    client_of,
    endpoint_of_s3,
    max_tries,
    obstore_module,
)

SCHEMES = ("s3", "gs", "az")
# A part of an upload. S3 takes 10,000 of them, each of 5 MiB to 5 GiB.
PART_BYTES = 8 * 2**20
_MOST_PARTS = 10_000
_PARTS_AT_ONCE = 8
# Read at a time.
_STEP_BYTES = 4 * 2**20
# Tries of a whole transfer, of which each request is retried: obstore retries no PUT that timed out.
_WHOLE_TRIES = 3

_ADDRESS = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*://|({'|'.join(SCHEMES)}):/", re.IGNORECASE)

T = TypeVar("T")


class Version(NamedTuple):
    """One content of an object, for a PUT that is to replace that content alone."""

    # As the store has it, with quotes. S3 and Azure compare this, Google the other.
    e_tag: str
    generation: str | None = None

    def wanted(self) -> dict[str, str]:
        """Return it as obstore takes it."""
        known = {"e_tag": self.e_tag, "version": self.generation}
        return {name: value for name, value in known.items() if value is not None}


class Found(NamedTuple):
    """What a bucket says of an object."""

    name: str
    bytes: int
    # In nanoseconds since 1970, by the clock of the store; S3 gives whole seconds.
    changed_at: int
    e_tag: str
    generation: str | None = None

    @property
    def version(self) -> Version:
        """Which content it has."""
        return Version(f'"{self.e_tag}"', self.generation)


class Changed(Exception):
    """An object is not, or no longer, the one that was meant. Internal: who asked knows what that means."""


class Fault(Exception):
    """A failure that a retry may overcome, for whoever has a policy of its own."""

    def __init__(self, reason: str, *, is_pressure: bool = False) -> None:
        super().__init__(reason)
        # Fewer connections may help.
        self.is_pressure = is_pressure


@dataclass(frozen=True)
class ObjectStream:
    """A part of an object as it is sent: its first byte, the size of the whole, its bytes."""

    begin: int
    total: int
    # The server has sent the whole object, though a part was asked for.
    is_whole: bool
    parts: Iterator[bytes]


class _NoRanges(Exception):
    """A server sends the whole object, whatever was asked for."""


def is_uri(place: str | os.PathLike[str]) -> bool:
    """Return whether a place is one in an object store: s3://bucket/prefix, gs://..., az://...

    Or is meant to be: s3:/bucket, as pathlib spoils it, is no folder that anybody wants.
    """
    return _ADDRESS.match(os.fspath(place)) is not None


def absolute(place: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return a place that means the same in another working folder."""
    return place if is_uri(place) else Path(place).absolute()


def parse(uri: str) -> tuple[str, str, str]:
    """Return the scheme, the bucket and the prefix of a URI, or raise UsageError."""
    scheme, _, rest = uri.partition("://")
    scheme = scheme.lower()
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket or "?" in rest or "#" in rest:
        raise UsageError(
            message(
                "an address of an object store has no user, password or query",
                "set them in the environment: AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL, ...",
            )
        )
    parts = [part for part in prefix.split("/") if part]
    if scheme not in SCHEMES or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", bucket):
        raise UsageError(
            message("this is no place in an object store", _EXAMPLE, given=shown(uri), known=_KNOWN)
        )
    if any(part in (".", "..") for part in parts) or not prefix.isprintable():
        raise UsageError(message("a prefix cannot have parts like these", _EXAMPLE, given=ascii(uri)))
    return scheme, bucket, "/".join(parts)


_EXAMPLE = "it looks like s3://bucket/some/prefix"
_KNOWN = ", ".join(f"{scheme}://" for scheme in SCHEMES)


@dataclass(frozen=True)
class Bucket:
    """The objects below a prefix, by their names relative to it. A value: each process has its own client."""

    scheme: str
    bucket: str
    prefix: str

    @classmethod
    def at(cls, uri: str) -> "Bucket":
        """Return the bucket and prefix of a URI; asks nobody."""
        return cls(*parse(uri))

    @property
    def uri(self) -> str:
        """Its address, without a slash at its end."""
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    def address(self, name: str) -> str:
        """Return what messages call an object."""
        return f"{self.uri}/{name}"

    def look(self, name: str) -> Found | None:
        """Return what is known of an object, or None if there is none."""
        try:
            return _found(self._ask(name, lambda client: obstore_module().head(client, name)))
        except FileNotFoundError:
            return None

    def list(self, folder: str = "", *, deep: bool = False) -> Iterator[Found]:
        """Yield the objects in a folder; with `deep` those in the folders below it, too."""
        if deep:
            found = self._ask(folder, lambda client: [*obstore_module().list(client, folder or None)])
            yield from map(_found, chain.from_iterable(found))
            return
        yield from self.entries(folder)[0]

    def entries(self, folder: str = "") -> tuple[Sequence[Found], Sequence[str]]:
        """Return the objects in a folder, and the names of the folders in it."""
        found = self._ask(folder, lambda client: obstore_module().list_with_delimiter(client, folder or None))
        inner = [name.rpartition("/")[2] for name in found["common_prefixes"]]
        return [*map(_found, found["objects"])], inner

    def read(self, name: str, most: int) -> bytes:
        """Return the content of an object; one of more than `most` bytes is files.TooLarge."""

        def ask(client: Any) -> bytes:
            answer = obstore_module().get(client, name)
            size = answer.meta["size"]
            if size > most:
                raise files.TooLarge(Path(self.address(name)), size)
            return _whole(bytes(answer.bytes()), size)

        return self._ask(name, ask)

    def read_range(self, name: str, begin: int, end: int) -> bytes:
        """Return the bytes of an object from `begin` to before `end`, or as many as there are."""
        if begin >= end:
            return b""

        def ask(client: Any) -> bytes:
            return bytes(obstore_module().get_range(client, name, start=begin, end=end))

        try:
            return self._ask(name, ask)
        except _NoRanges:
            found, at = bytearray(), 0
            for part in self.stream(name):
                found += part[max(0, begin - at) : max(0, end - at)]
                at += len(part)
                if at >= end:
                    break
            return bytes(found)

    def stream(self, name: str, begin: int = 0) -> Iterator[bytes]:
        """Yield the content of an object from a byte on; after a fault it goes on where it was.

        Of an object that is replaced meanwhile nothing more is yielded: OutputError.
        """
        at, e_tag, size, tries = begin, "", -1, 0
        while size < 0 or at < size:
            try:
                answer = self._ask(name, lambda client, at=at: _open(client, name, at))  # type: ignore[misc]
                meta = answer.meta
                e_tag, size = e_tag or _tag(meta["e_tag"]), meta["size"]
                if e_tag != _tag(meta["e_tag"]):
                    raise self._trouble(name, "it was replaced while it was read")
                skipped = at - answer.range[0]  # A server without ranges sends all of it.
                for part in answer.stream(_STEP_BYTES):
                    new = bytes(part)[skipped:]
                    skipped -= len(part) - len(new)
                    at += len(new)
                    tries = 0 if new else tries
                    yield new
                fault: BaseException = _Cut()
            except FileNotFoundError:
                raise
            except _errors() as error:
                fault = error
            if at < size:
                tries += 1
                if tries >= _WHOLE_TRIES or not _may_pass(fault):
                    raise self._trouble(name, _reason(fault))
                time.sleep(_pause(tries))

    def open_range(self, name: str, begin: int, end: int | None, e_tag: str) -> ObjectStream:
        """Return a part of the object that has this ETag, once: what may pass is a Fault.

        Raises Changed if it has another by now.
        """
        options: dict[str, Any] = {"if_match": f'"{e_tag}"'} if e_tag else {}
        whole = begin == 0 and end is None
        if not whole:
            options["range"] = {"offset": begin} if end is None else (begin, end)
        try:
            try:
                answer = obstore_module().get(self._client(), name, options=options)
            except _errors() as error:
                if whole or _NOT_PARTIAL not in str(error):
                    raise
                whole = True
                answer = obstore_module().get(self._client(), name)
        except _errors() as error:
            if type(error).__name__ == "PreconditionError":
                raise Changed(name) from None
            if isinstance(error, FileNotFoundError):
                raise
            if not _may_pass(error):
                raise self._trouble(name, _reason(error)) from None
            raise Fault(_reason(error), is_pressure=_status(error) in (429, 503)) from None
        return ObjectStream(answer.range[0], answer.meta["size"], whole, _faulty(answer))

    def _client(self) -> Any:
        return client_of(os.getpid(), self.scheme, self.bucket, self.prefix)

    def sha256(self, name: str, tick: Callable[[int], None] = lambda _: None) -> str:
        """Return the sha256 of an object. `tick` is given how many bytes were read; it may raise to stop."""
        digest = hashlib.sha256()
        for part in self.stream(name):
            digest.update(part)
            tick(len(part))
        return digest.hexdigest()

    def put(
        self, name: str, content: bytes, *, new: bool = False, instead_of: Version | None = None
    ) -> Version:
        """Make an object, whole or not at all, and return which content it has now.

        Raises Changed if it must be `new` and is not, or if another has taken the place of the one
        `instead_of`, as far as the store can tell: some ignore the condition.
        """
        modes: list[Any] = ["create" if new else "overwrite"]
        if instead_of is not None:
            modes = [instead_of.wanted()]
        digests = _Digests.of(content)

        def ask(client: Any) -> Any:
            return obstore_module().put(client, name, content, mode=modes[0], use_multipart=False)

        for _ in range(_WHOLE_TRIES):
            try:
                made = self._ask(name, ask)
            except FileNotFoundError:  # The one that it was to replace.
                raise Changed(name) from None
            version = Version(str(made["e_tag"] or ""), made["version"])
            if digests.fits(_tag(version.e_tag)) or self._holds(name, content):
                return version
            modes[0] = "overwrite"
        raise self._trouble(name, "the store has other bytes than were sent")

    def _holds(self, name: str, content: bytes) -> bool:
        try:
            return self.read(name, len(content)) == content
        except (FileNotFoundError, files.TooLarge):
            return False

    def upload(self, name: str, path: Path, sha256: str, tick: Callable[[], None] = lambda: None) -> None:
        """Make an object of a file, in parts; it is there when all of them are, or not at all.

        What was read must have that sha256, and what the store has must be what was read. `tick` is
        called for each part, and may raise to stop: then the upload is aborted.
        """
        with atomic.writing(path):
            size = files.state_of(path).st_size
            small = files.read_whole(path, size) if size <= PART_BYTES else None
        part_bytes = max(PART_BYTES, -(-size // _MOST_PARTS))
        if small is not None:
            tick()
            if hashlib.sha256(small).hexdigest() != sha256:
                raise self._damaged(path)
            self.put(name, small)
            return

        def send(client: Any) -> tuple[str, _Digests]:
            digests = _Digests()
            parts = self._parts(path, part_bytes, sha256, digests, tick)
            made = obstore_module().put(
                client, name, parts, chunk_size=part_bytes, max_concurrency=_PARTS_AT_ONCE, use_multipart=True
            )
            return made["e_tag"], digests

        self._check(name, *self._ask(name, send))

    def has(self, name: str, path: Path, sha256: str, tick: Callable[[], None] = lambda: None) -> bool:
        """Return whether an object is the same as a file that has this sha256."""
        found = self.look(name)
        if found is None or found.bytes != files.state_of(path).st_size:
            return False
        digests = _Digests()
        for _ in self._parts(path, max(PART_BYTES, -(-found.bytes // _MOST_PARTS)), sha256, digests, tick):
            pass
        return digests.fits(found.e_tag) or self.sha256(name, lambda _: tick()) == sha256

    def _parts(
        self, path: Path, size: int, sha256: str, digests: "_Digests", tick: Callable[[], None]
    ) -> Iterator[bytes]:
        with atomic.writing(path), files.open_to_read(path) as file:
            while part := file.read(size):
                tick()
                digests.add(part)
                yield part
        # Raised here, so that the upload is aborted.
        if digests.sha256.hexdigest() != sha256:
            raise self._damaged(path)

    def remove(self, *names: str) -> None:
        """Remove objects, those that are there."""
        if names:
            with suppress(FileNotFoundError):
                self._ask(names[0], lambda client: obstore_module().delete(client, list(names)))

    def abort_uploads(self, seconds: float) -> int:
        """Abort the uploads below a prefix that were begun so long ago, and return how many; S3 alone.

        Processes that were killed have left them: nobody sees them, but they cost. obstore cannot list
        them, so boto3 does, where it is installed; a store that cannot either is left as it is. So is a
        whole bucket, in which others may be at work.
        """
        if self.scheme != "s3" or not self.prefix:
            return 0
        try:
            import boto3  # noqa: PLC0415  # comes with the extra
            from botocore.config import Config  # noqa: PLC0415
            from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
        except ImportError:
            return 0
        limits = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 1})
        long_ago, aborted = time.time() - seconds, 0
        try:
            client = boto3.client("s3", endpoint_url=endpoint_of_s3() or None, config=limits)
            found = client.list_multipart_uploads(Bucket=self.bucket, Prefix=f"{self.prefix}/")
            for upload in found.get("Uploads", ()):
                if upload["Initiated"].timestamp() < long_ago:
                    client.abort_multipart_upload(
                        Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
                    aborted += 1
        except (BotoCoreError, ClientError, ValueError, KeyError):  # It only saves money.
            pass
        return aborted

    def _check(self, name: str, e_tag: str | None, digests: "_Digests") -> None:
        """Raise OutputError unless the store has what was sent."""
        tag = _tag(e_tag)
        there = self.look(name)
        if there is None or there.bytes != digests.bytes:
            found = "nothing" if there is None else f"{there.bytes:,} bytes"
            raise self._trouble(name, f"the store has {found} of the {digests.bytes:,} bytes that were sent")
        # Two writers of the same bytes may send them in other parts: then the ETag is that of the other.
        if digests.fits(tag) or digests.fits(there.e_tag):
            return
        if self.sha256(name) != digests.sha256.hexdigest():
            raise self._trouble(name, "the store has other bytes than were sent")

    def _damaged(self, path: Path) -> ShardError:
        return ShardError(
            message(
                "a file is damaged that was to be uploaded: its sha256 is not the one in its record",
                "run the command that made it again, with --rehash or another --scratch",
                file=path,
            )
        )

    def _ask(self, name: str, ask: Callable[[Any], T]) -> T:
        """Return what `ask` returns, given the client; retry what may pass, turn the rest into our errors."""
        ends, tries = time.monotonic() + RETRY_SECONDS, 0
        while True:
            try:
                return ask(self._client())
            except _errors() as error:
                if isinstance(error, files.TooLarge):
                    raise
                if isinstance(error, FileNotFoundError) and not _may_pass(error):
                    if any(f"<Code>{code}</Code>" in str(error) for code in _NO_BUCKET):
                        raise self._trouble(name, _MISSING_BUCKET) from None
                    raise FileNotFoundError(
                        errno.ENOENT, os.strerror(errno.ENOENT), self.address(name)
                    ) from None
                kind = type(error).__name__
                if kind in ("AlreadyExistsError", "PreconditionError"):
                    raise Changed(kind) from None
                if _NOT_PARTIAL in str(error):
                    raise _NoRanges("ranges are ignored") from None
                tries += 1
                if tries >= min(_WHOLE_TRIES, max_tries()) or time.monotonic() > ends or not _may_pass(error):
                    raise self._trouble(name, _reason(error)) from None
                time.sleep(_pause(tries))

    def _trouble(self, name: str, reason: str) -> OutputError:
        endpoint = {"endpoint": shown(endpoint_of_s3())} if self.scheme == "s3" and endpoint_of_s3() else {}
        return OutputError(
            message(
                "an object store cannot be used",
                f"check the network, the credentials and the bucket ({VARIABLES[self.scheme]})",
                "then run the same command again: it continues where it stopped",
                object=self.address(name) if name else self.uri,
                reason=reason,
                **endpoint,
            )
        )


class _Cut(Exception):
    """An answer ended before its end."""


def _faulty(answer: Any) -> Iterator[bytes]:
    try:
        for part in answer.stream(2**16):
            yield bytes(part)
    except _errors() as error:
        raise Fault(_reason(error)) from None


class _Digests:
    """What was sent: its size, its sha256, and the ETags by which stores may call it."""

    def __init__(self) -> None:
        self.bytes = 0
        self.sha256 = hashlib.sha256()
        self._whole = hashlib.md5(usedforsecurity=False)
        self._parts: list[bytes] = []

    @classmethod
    def of(cls, content: bytes) -> "_Digests":
        made = cls()
        made.add(content)
        return made

    def add(self, part: bytes) -> None:
        self.bytes += len(part)
        self.sha256.update(part)
        self._whole.update(part)
        self._parts.append(hashlib.md5(part, usedforsecurity=False).digest())

    def fits(self, e_tag: str) -> bool:
        """Return whether an ETag is the MD5 of what was sent, or that of the MD5s of its parts."""
        of_parts = hashlib.md5(b"".join(self._parts), usedforsecurity=False).hexdigest()
        return e_tag in (self._whole.hexdigest(), f"{of_parts}-{len(self._parts)}")


def _tag(e_tag: str | None) -> str:
    return (e_tag or "").strip('"')


def _found(meta: Any) -> Found:
    changed_at = int(meta["last_modified"].timestamp() * 1e9)
    return Found(meta["path"], meta["size"], changed_at, _tag(meta["e_tag"]), meta["version"])


def _whole(content: bytes, size: int) -> bytes:
    if len(content) != size:
        raise _Cut
    return content


def _open(client: Any, name: str, begin: int) -> Any:
    """Return an object from a byte on, or all of it from a server without ranges."""
    if begin:
        try:
            return obstore_module().get(client, name, options={"range": {"offset": begin}})
        except _errors() as error:
            if _NOT_PARTIAL not in str(error):
                raise
    return obstore_module().get(client, name)


def _errors() -> tuple[type[BaseException], ...]:
    """Return what obstore raises. A connection that breaks within a body is an OSError of its own."""
    return (obstore_module().exceptions.BaseError, OSError, _Cut)


def _may_pass(error: BaseException) -> bool:
    """Return whether a retry may help: a fault of the server or of the way to it."""
    if isinstance(error, files.TooLarge):
        return False
    if _ABORTED in str(error):  # By a rule of the bucket, or by somebody: it begins anew.
        return True
    status = _status(error)
    if status:
        return status >= 500 or status in (408, 429)
    return type(error).__name__ in ("GenericError", "_Cut") or isinstance(error, OSError)


def _status(error: BaseException) -> int:
    found = re.search(r"status code: ([0-9]{3})", str(error))
    return int(found[1]) if found else 0


def _reason(error: BaseException) -> str:
    """Return what went wrong, in words of ours: a server's answer may quote keys and signatures."""
    text, status = str(error), _status(error)
    code = re.search(r"<Code>([A-Za-z0-9]{1,60})</Code>", text)
    if code and code[1] in _NO_BUCKET:
        return _MISSING_BUCKET
    if status:
        return f"HTTP {status}" + (f" {code[1]}" if code else "")
    for sign, words in _SIGNS.items():
        if sign in text:
            return words
    return _KINDS.get(type(error).__name__, "the connection failed")


_MISSING_BUCKET = "there is no such bucket"
# As S3 and Google have it, and Azure.
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
# What S3 says of an upload that was begun and is not known any more.
_ABORTED = "<Code>NoSuchUpload</Code>"
# What obstore says of a server that answers a range with 200, as rclone does.
_NOT_PARTIAL = "non-partial response"
_SIGNS = {
    "timed out": "no answer in time",
    "Connection refused": "the connection was refused",
    "dns error": "the host is not known",
    "certificate": "the certificate of the server is not valid",
    "non-partial": "the server does not send ranges",
}
_KINDS = {
    "_Cut": "the answer ended too early",
    "UnauthenticatedError": "the credentials are missing or wrong",
    "PermissionDeniedError": "access is denied",
    "InvalidPathError": "the name is not allowed there",
    "NotSupportedError": "the store cannot do this",
}


def _pause(tries: int) -> float:
    # Random jitter: clients that were cut off together must not come back together.
    return random.uniform(0.5, 1.0) * min(8.0, 0.5 * 2.0**tries)  # noqa: S311  # no secret
