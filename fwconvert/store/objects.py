"""A run in an object store, by the same promises as one in a folder (see base).

Files are written to this machine's scratch folder and uploaded when they get their
names. An object is there as a whole or not at all and stays, whatever happens to
its writer. So the receipt, the last PUT of a job, is its commit, nothing has to be
settled, and what a session left that was cut off need not be hashed again.

Whatever needs a file that can be opened or mapped is given a copy on this machine
for a while (`on_disk`). Each process has a folder of its own for that, and for its
drafts, which goes with it; if it was killed, the next session of the run removes it.
"""

import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Self

from fwconvert import files
from fwconvert.errors import FwconvertError, OutputError, ShardError, message
from fwconvert.store import atomic, layout, lease
from fwconvert.store.base import FileState
from fwconvert.store.bucket import Bucket, Found
from fwconvert.store.scratch import Scratch

_DRAFT, _COPY, _LOG = "draft.", "copy.", ".log"
_MOST_LOG_BYTES = 2**20
_MOST_SHARED_BYTES = 2**28
# No upload takes as long: whoever began it is dead.
_FORGOTTEN_SECONDS = 24 * 60 * 60
# Small objects that are read at once when many are wanted: a request takes its time, however small it is.
_READ_AT_ONCE = 32


class ObjectDraft(atomic.Output):
    """A draft in the scratch folder, which is uploaded when it gets its name (see base.Draft)."""

    def __init__(self, store: "ObjectStore", label: str) -> None:
        super().__init__(store.local(layout.TEMPORARY), f"{_DRAFT}{label}")
        self._bucket = store.bucket

    def publish(self, name: str, tick: Callable[[], None] = lambda: None) -> None:
        """Upload the file: under its name it is there as a whole, or not at all."""
        self.finish()
        self._bucket.upload(name, self.path, self.sha256, tick)
        self.discard()


@dataclass(frozen=True)
class ObjectStore:
    """The objects of a run below a prefix of a bucket (see base.Store)."""

    bucket: Bucket
    session: str = ""
    # The folder of this machine for files on their way; None: one in the user's cache folder.
    scratch: Path | None = None
    # All objects of the run at one moment, where somebody is about to look at very many.
    _listing: "_Listing | None" = field(default=None, compare=False, repr=False)

    is_atomic = True
    is_remote = True

    @property
    def uri(self) -> str:
        """The address of the prefix."""
        return self.bucket.uri

    def address(self, name: str) -> str:
        """Return the address of an object."""
        return self.bucket.address(name) if name else self.uri

    @property
    def scratch_root(self) -> Path:
        """The folder of this machine in which each process has one."""
        return _default_scratch() if self.scratch is None else self.scratch

    def local(self, name: str) -> Path:  # noqa: ARG002
        """Return this process's folder on this machine, for whatever is not to be in the bucket."""
        return _room(os.getpid(), self.scratch_root, self.uri, self.session or "reader")

    @contextmanager
    def on_disk(self, name: str, sha256: str = "") -> Iterator[Path]:
        """Have a copy of a file during the block; ShardError if it has not the sha256 that it must have."""
        path = self.local("") / f"{_COPY}{secrets.token_hex(8)}-{name.rpartition('/')[2]}"
        try:
            try:
                self._copy(name, path, sha256)
            except FileNotFoundError as error:
                raise ShardError(
                    message("a file cannot be read", file=self.address(name), reason=error.strerror)
                ) from error
            yield path
        finally:
            with suppress(OutputError):  # Windows removes no file that is mapped: it goes with the folder.
                atomic.remove(path)

    def _copy(self, name: str, path: Path, sha256: str = "") -> None:
        _check_name(name)
        digest, parts = hashlib.sha256(), self.bucket.stream(name)
        first = next(parts, b"")  # Before the file is made: there may be no such object.
        with atomic.writing(path), files.create(path) as file:
            for part in chain([first], parts):
                file.write(part)
                digest.update(part)
        if sha256 and digest.hexdigest() != sha256:
            raise ShardError(
                message(
                    "a file of the run is damaged: its sha256 is not the one in its record",
                    "run the command that made the run again with --rehash: it remakes the file",
                    file=self.address(name),
                    expected=sha256,
                    found=digest.hexdigest(),
                )
            )

    def sha256(self, name: str, tick: Callable[[int], None] = lambda _: None) -> str:
        """Return the sha256 of an object, which is read for that."""
        return self.bucket.sha256(name, tick)

    def take(self, name: str, path: Path, sha256: str, tick: Callable[[], None] = lambda: None) -> None:
        """Upload a file that has this sha256."""
        self.bucket.upload(name, path, sha256, tick)

    def has(
        self,
        name: str,
        sha256: str,
        original: Callable[[], AbstractContextManager[Path]],
        tick: Callable[[], None] = lambda: None,
    ) -> bool:
        """Return whether an object has this sha256: its ETag is that of the original, or it is read."""
        with original() as path:
            return self.bucket.has(name, path, sha256, tick)

    def read_range(self, name: str, begin: int, end: int) -> bytes:
        """Return a part of an object, or as much of it as there is."""
        return self.bucket.read_range(name, begin, end)

    def draft(self, label: str) -> ObjectDraft:
        """Begin a file in the scratch folder."""
        return ObjectDraft(self, label)

    def write(self, name: str, content: bytes) -> None:
        """Replace an object all at once."""
        self.bucket.put(name, content)

    def read(self, name: str, most: int) -> bytes:
        """Return the content of an object; one of more than `most` bytes is files.TooLarge."""
        _check_name(name)
        return self.bucket.read(name, most) if self._listing is None else self._listing.read(name, most)

    def state(self, name: str) -> FileState | None:
        """Return the size and the time of an object."""
        _check_name(name)
        found = self.bucket.look(name) if self._listing is None else self._listing.objects.get(name)
        return None if found is None else FileState(found.bytes, found.changed_at)

    def size(self, name: str) -> int | None:
        """Return the size of an object, or None if there is none."""
        found = self.state(name)
        return None if found is None else found.bytes

    def list(self, folder: str, *, folders: bool = False) -> Iterator[str]:
        """Yield the names of the objects in a folder; of folders, if asked for."""
        if self._listing is None:
            found, inner = self.bucket.entries(folder)
            names = [one.name.rpartition("/")[2] for one in found]
        else:
            names, inner = self._listing.names.get(folder, []), self._listing.folders(folder)
        yield from (*names, *(inner if folders else ()))

    def listed(self) -> Self:
        """Return the same run as it is now: sizes and names are asked for once, records read side by side."""
        return replace(self, _listing=_Listing(self.bucket))

    def remove(self, *names: str) -> None:
        """Remove objects, those that are there."""
        for name in names:
            _check_name(name)
        self.bucket.remove(*names)

    def clear(self, folder: str) -> int:
        """Remove all objects in a folder."""
        names = [found.name for found in self.bucket.list(folder)]
        self.bucket.remove(*names)
        return len(names)

    def settle(self, *folders: str) -> None:
        """Do nothing: what was published or removed stays so."""

    def set_changed_at(self, name: str, changed_at: int) -> None:  # noqa: ARG002
        """Write an object anew, as it is: then it is newer than all that was there before."""
        with suppress(FwconvertError, OSError):
            self.bucket.put(name, self.bucket.read(name, _MOST_SHARED_BYTES))

    def prepare(self) -> None:
        """Abort what uploads of long ago have left; there are no folders to make."""
        self.bucket.abort_uploads(_FORGOTTEN_SECONDS)

    def refuse_links(self) -> None:
        """Do nothing: there are no links."""

    def lock(self, *, shared: bool = False) -> lease.Lease:
        """Give notice that this session is at work; alone, or raise UsageError that says who else is."""
        if shared:  # Each rank has a notice of its own, which goes with it.
            return lease.Lease(self.bucket, layout.session_lock(self.session), self.session, stays=False)
        return lease.Lease(self.bucket, layout.LOCK, self.session)

    def for_session(self, session: str) -> Self:
        """Return the same run for a session that writes to it."""
        return replace(self, session=session)

    def holder(self, session: str = "") -> str:
        """Return which session seems to be at work; "" if none does, or another than the one asked for."""
        who = lease.holder(self.bucket, layout.LOCK)
        if session:
            of_run = who if who.endswith(f", session {session}") else ""
            return of_run or lease.holder(self.bucket, layout.session_lock(session))
        locks = [name for name in self.list(layout.SESSIONS) if name.endswith(layout.LOCK_SUFFIX)]
        ranks = [one for name in locks if (one := lease.holder(self.bucket, f"{layout.SESSIONS}/{name}"))]
        return who or "; ".join(ranks[:3])

    def is_deserted(self) -> bool:
        """Return whether it is certain that no session is at work."""
        return lease.is_deserted(self.bucket, layout.LOCK)

    def sweep(self, label: str = "") -> int:
        """Remove the drafts of this process, or those of one label, and what its dead workers have left."""
        prefix = f"{_DRAFT}{label}-" if label else _DRAFT
        if not label:  # The end of a session.
            self._keep_logs()
        return atomic.sweep(self.local(""), prefix) + self.sweep_abandoned()

    def sweep_abandoned(self) -> int:
        """Remove what processes of this run have left on this machine that are certainly dead."""
        return _sweep_dead(Scratch(self.scratch_root, self.uri))

    def push(self, folder: str) -> None:
        """Put the files that this process has for a folder of the run into the bucket, those that are new."""
        there = {found.name for found in self.bucket.list(folder)}
        for path in self.local("").iterdir():
            name = f"{folder}/{path.name}"
            if (
                not path.name.startswith((_DRAFT, _COPY))
                and not path.name.endswith(_LOG)
                and name not in there
            ):
                self.bucket.upload(name, path, files.sha256_of(path))

    def pull(self, folder: str) -> Path:
        """Return a folder of this machine that has all files of a folder of the run."""
        here = self.local("")
        for found in self.bucket.list(folder):
            path = here / found.name.rpartition("/")[2]
            if not path.exists() and found.bytes <= _MOST_SHARED_BYTES:
                draft = here / f"{_DRAFT}{secrets.token_hex(8)}"
                self._copy(found.name, draft)
                atomic.move(draft, path)
        return here

    def _keep_logs(self) -> None:
        """Put what workers and libraries have printed into the bucket."""
        for path in self.local("").glob(f"*{_LOG}"):
            with suppress(FwconvertError, OSError):  # Nobody needs it to go on.
                if content := files.read(path, _MOST_LOG_BYTES):
                    self.bucket.put(f"{layout.LOGS}/{path.name}", content)


class _Listing:
    """The objects of a run at one moment, and the small ones that were read since."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.objects: Mapping[str, Found] = {found.name: found for found in bucket.list(deep=True)}
        self.names: dict[str, list[str]] = {}
        for name in self.objects:
            folder, _, bare = name.rpartition("/")
            self.names.setdefault(folder, []).append(bare)
        self._read: dict[str, bytes | None] = {}

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        begins = f"{folder}/" if folder else ""
        below = (
            name.removeprefix(begins) for name in self.names if name.startswith(begins) and name != folder
        )
        return sorted({name.partition("/")[0] for name in below if name})

    def read(self, name: str, most: int) -> bytes:
        """Return the content of an object; some others of its folder, which may be next, are read with it."""
        found = self.objects.get(name)
        if found is None or found.bytes > min(most, _MOST_LOG_BYTES):
            return self._bucket.read(name, most)
        if name not in self._read:
            folder = name.rpartition("/")[0]
            others = (f"{folder}/{bare}" if folder else bare for bare in self.names[folder])
            small = [one for one in others if self.objects[one].bytes <= _MOST_LOG_BYTES]
            begin = small.index(name)
            wanted = [one for one in small[begin : begin + 8 * _READ_AT_ONCE] if one.endswith(".json")] or [
                name
            ]
            with ThreadPoolExecutor(_READ_AT_ONCE, "read") as threads:
                self._read.update(zip(wanted, threads.map(self._content, wanted), strict=True))
        content = self._read.pop(name, None)
        return self._bucket.read(name, most) if content is None else content

    def _content(self, name: str) -> bytes | None:
        try:
            return self._bucket.read(name, _MOST_LOG_BYTES)
        except OSError:  # Removed since, or replaced by a larger one.
            return None


def _check_name(name: str) -> None:
    if name.startswith("/") or ".." in name.split("/"):
        raise files.refused("its name leads out of the run", Path(name))


# Tells the folder of a process from that in which a session has fetched sources.
_ROOM_SUFFIX = "-files"
_making = threading.Lock()


def _room(process: int, root: Path, run: str, session: str) -> Path:
    with _making:  # Threads may be the first to need it together.
        return _make_room(process, root, run, session)


@cache
def _make_room(process: int, root: Path, run: str, session: str) -> Path:
    """Make the folder of a process, which goes with it."""
    scratch = Scratch(root, run)
    held = scratch.held(f"{session}-{process}-{secrets.token_hex(3)}{_ROOM_SUFFIX}")
    folder = held.__enter__()
    _sweep_dead(scratch)

    def leave() -> None:
        if os.getpid() == process:
            with suppress(OutputError):
                atomic.sweep(folder)
            held.__exit__(None, None, None)

    # Worker processes of multiprocessing do not call what is registered with atexit.
    Finalize(None, leave, exitpriority=1)
    return folder


def _sweep_dead(scratch: Scratch) -> int:
    """Remove what processes have left that were killed."""
    swept = 0
    for left in scratch.left():
        if left.name.endswith(_ROOM_SUFFIX):
            swept += atomic.sweep(left)
            scratch.is_done_with(left)
    return swept


def _default_scratch() -> Path:
    from platformdirs import user_cache_path  # noqa: PLC0415  # for object stores alone

    chosen = os.environ.get("FWCONVERT_CACHE")
    return (Path(chosen) if chosen else user_cache_path("fwconvert")).absolute() / "scratch"
