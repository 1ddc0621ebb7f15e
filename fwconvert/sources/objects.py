"""Files of text in an object store, as a Remote: listed once, fetched by ranges like those of the hub.

What was listed is what is fetched: each range is asked for by the ETag in the list,
so that bytes of two versions of an object are never mixed, and the list's ETags
together are the revision by which fetched parts are known.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from fwconvert import kinds
from fwconvert.errors import OutputError, RemoteError, SourceError, UsageError, message
from fwconvert.hub.retry import TransientError
from fwconvert.recipes import SourceManifest, SourceShard, Totals, is_safe
from fwconvert.sources.catalog import LOCAL, refuse_doubled
from fwconvert.store.bucket import Bucket, Changed, Fault, Found, ObjectStream, parse


@dataclass
class ObjectRange:
    """A part of an object as it is being sent (see hub.remote.FileRange)."""

    begin: int
    total: int | None
    is_whole: bool
    is_past_end: bool
    _parts: Iterator[bytes]

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._parts
        except Fault as fault:
            raise TransientError(
                str(fault), is_pressure=fault.is_pressure, is_answer=fault.is_pressure
            ) from None


@dataclass(frozen=True)
class ObjectFiles:
    """The objects below an address (see hub.remote.Remote)."""

    uri: str

    @property
    def name(self) -> str:
        """Its address."""
        return self._bucket.uri

    @cached_property
    def _bucket(self) -> Bucket:
        return Bucket.at(self.uri)

    @cached_property
    def listed(self) -> Mapping[str, Found]:
        """The objects as they were when they were first asked for, by name."""
        try:
            return {found.name: found for found in self._bucket.list(deep=True)}
        except OutputError as error:
            raise RemoteError(str(error)) from None

    @property
    def revision(self) -> str:
        """A digest of which object has which content, as far as the store tells."""
        known = "\n".join(
            f"{name} {found.bytes} {found.e_tag}" for name, found in sorted(self.listed.items())
        )
        return hashlib.sha256(known.encode(errors="surrogatepass")).hexdigest()

    def files(self, folder: str, received: Callable[[int], None] = lambda _: None) -> tuple[SourceShard, ...]:
        """Return the files of text below a folder (`kinds.chosen`), by path."""
        begins = f"{folder}/" if folder else ""
        found = self._chosen(one for name, one in self.listed.items() if name.startswith(begins))
        received(len(found))
        return found

    def matching(self, pattern: str) -> tuple[SourceShard, ...]:
        """Return the files of text that a pattern matches, and those below what it matches, by path."""
        return self._chosen(one for name, one in self.listed.items() if _matches(name, pattern))

    def named(self, name: str) -> tuple[SourceShard, ...]:
        """Return one object, if it is there, whatever its name."""
        found = self.listed.get(name)
        return () if found is None else (SourceShard(found.name, found.bytes),)

    def _chosen(self, found: Iterable[Found]) -> tuple[SourceShard, ...]:
        seen = sorted(one for one in found if not _is_hidden(one.name))
        return tuple(SourceShard(one.name, one.bytes) for one in kinds.chosen(seen, _name_of, self.name))

    @contextmanager
    def open_range(self, path: str, begin: int, end: int | None = None) -> Iterator[ObjectRange]:
        """Request an object from a byte on, or a part of it."""
        found = self.listed.get(path)
        if found is None:
            raise SourceError(
                message("the source file is not in the object store", file=self._bucket.address(path))
            )
        if begin >= found.bytes:
            yield ObjectRange(begin, found.bytes, is_whole=False, is_past_end=True, _parts=iter(()))
            return
        stream = self._open(path, found, begin, end)
        yield ObjectRange(
            stream.begin, stream.total, is_whole=stream.is_whole, is_past_end=False, _parts=stream.parts
        )

    def _open(self, path: str, found: Found, begin: int, end: int | None) -> ObjectStream:
        try:
            return self._bucket.open_range(path, begin, end, found.e_tag)
        except Fault as fault:
            raise TransientError(
                str(fault), is_pressure=fault.is_pressure, is_answer=fault.is_pressure
            ) from None
        except (FileNotFoundError, Changed):
            raise SourceError(
                message(
                    "the source file was removed or replaced since it was listed",
                    "run the same command again",
                    file=self._bucket.address(path),
                )
            ) from None
        except OutputError as error:
            raise RemoteError(str(error)) from None


def find(uri: str) -> tuple[SourceManifest, str]:
    """Return the source manifest of what an address names, and the address that its paths start from.

    A prefix means every object with text below it (`kinds.chosen`), a name that ends like one that
    object, and a pattern what it matches. Raises UsageError if there are none.
    """
    scheme, bucket, prefix = parse(uri)
    parts = prefix.split("/") if prefix else []
    wild = next((at for at, part in enumerate(parts) if any(sign in part for sign in "*?[")), None)
    is_one = wild is None and kinds.of(prefix) is not None
    if is_one:
        wild = len(parts) - 1
    base = parts if wild is None else parts[:wild]
    pattern = "" if wild is None else "/".join(parts[wild:])
    root = f"{scheme}://{bucket}" + ("/" + "/".join(base) if base else "")
    remote = ObjectFiles(root)
    chosen = remote.named(pattern) if is_one else remote.matching(pattern) if pattern else remote.files("")
    if not chosen:
        raise UsageError(
            message(
                f"there are no {kinds.ALL} here",
                "give a prefix with such objects below it, a pattern, or a single object",
                source=uri,
                other_files=f"{len(remote.listed):,}",
            )
        )
    for file in chosen:
        if not is_safe(file.path):
            raise UsageError(
                message(
                    "a source file has a name that a manifest cannot hold",
                    "rename it: use printable characters and no backslash",
                    file=ascii(file.path),
                )
            )
    totals = Totals(files=len(chosen), bytes=sum(file.bytes for file in chosen))
    return SourceManifest(LOCAL, LOCAL, "", "", chosen, totals), root


def find_several(uris: Sequence[str]) -> tuple[SourceManifest, str]:
    """Return the source manifest of what several addresses name, and the address that all paths start from.

    They are in one bucket, and the paths start from the longest prefix that they share (as in
    `catalog.several`). Raises UsageError for several buckets.
    """
    found = [find(uri) for uri in uris]
    if len(found) == 1:
        return found[0]
    buckets = {parse(root)[:2] for _, root in found}
    if len(buckets) > 1:
        raise UsageError(
            message(
                "several --source of one run lie in one bucket",
                "convert them one by one, or copy them into one bucket",
                **{f"source {number}": uri for number, uri in enumerate(uris, 1)},
            )
        )
    ((scheme, bucket),) = buckets
    places = [
        (*filter(None, (parse(root)[2], file.path)),) for manifest, root in found for file in manifest.files
    ]
    names = ["/".join(place) for place in places]
    refuse_doubled(names)
    shared = _shared_prefix([name.split("/")[:-1] for name in names])
    files = [file for manifest, _ in found for file in manifest.files]
    begin = len("/".join(shared)) + 1 if shared else 0
    shards = tuple(SourceShard(name[begin:], file.bytes) for name, file in zip(names, files, strict=True))
    totals = Totals(files=len(shards), bytes=sum(file.bytes for file in shards))
    root = "/".join([f"{scheme}://{bucket}", *shared])
    return SourceManifest(LOCAL, LOCAL, "", "", shards, totals), root


def _shared_prefix(places: Sequence[Sequence[str]]) -> list[str]:
    shared: list[str] = []
    for parts in zip(*places, strict=False):
        if len({*parts}) > 1:
            break
        shared.append(parts[0])
    return shared


def _name_of(found: Found) -> str:
    return found.name


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _matches(path: str, pattern: str) -> bool:
    """Return whether a path matches a pattern part by part; what is below a match counts, too."""
    found, wanted = path.split("/"), pattern.split("/")
    return len(found) >= len(wanted) and all(map(fnmatchcase, found, wanted))
