"""Sessions: which invocation did what, and whether it ended cleanly.

The only records with times, host names and versions in them. A session whose
record has no end was cut off (kill -9, power), so the next one hashes again
whatever its receipts name.
"""

import datetime as dt
import os
import platform
import re
import secrets
import socket
from contextlib import suppress
from importlib import metadata
from itertools import islice
from typing import ClassVar

import msgspec

from fwconvert import records
from fwconvert.errors import ManifestError, message
from fwconvert.recipes import is_safe
from fwconvert.records import Record
from fwconvert.store import base, layout
from fwconvert.store.base import Store

# A thousand ranks that were each begun a hundred times.
_MOST = 100_000
_PACKAGES = ("fwconvert", "gigatoken", "numpy", "pyarrow", "tiktoken")


class Session(Record, frozen=True, tag="fwconvert session 1"):
    """One invocation of fwconvert on a run."""

    # One has about 300 bytes.
    most_bytes: ClassVar[int] = 2**16
    id: str
    started: str
    host: str
    pid: int
    workers: int
    threads: int
    encoder: str
    versions: dict[str, str]
    ended: str = ""
    # How it ended; "" while nothing is known.
    outcome: str = ""


def new(workers: int = 0, threads: int = 0, encoder: str = "") -> Session:
    """Return a session that begins now."""
    started = _now()
    return Session(
        id=f"{started.replace(':', '').replace('-', '')}-{secrets.token_hex(3)}",
        started=started,
        host=socket.gethostname(),
        pid=os.getpid(),
        workers=workers,
        threads=threads,
        encoder=encoder,
        versions={"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    )


def of_rank(session: Session, rank: int, world: int) -> Session:
    """Return the session of a rank: its id tells which."""
    return msgspec.structs.replace(session, id=f"{session.id}-r{rank}of{world}")


def rank_in(session_id: str) -> tuple[int, int] | None:
    """Return the rank and the world that a session's id tells, or None if it was not of a rank."""
    found = re.search(r"-r([0-9]{1,9})of([0-9]{1,9})$", session_id)
    return None if found is None else (int(found[1]), int(found[2]))


def write(store: Store, session: Session) -> None:
    """Record a session, durably."""
    store.write(layout.session(session.id), records.encode(session) + b"\n")


def ended(session: Session, outcome: str) -> Session:
    """Return the session with its end."""
    return msgspec.structs.replace(session, ended=_now(), outcome=outcome)


def all_of(store: Store) -> list[Session]:
    """Return the sessions of a run in order; one whose record is damaged counts as cut off.

    Raises ManifestError if there are more than a run can have: all of them stand in its manifest.
    """
    names = (name for name in base.record_names(store, layout.SESSIONS) if is_safe(name))
    known = sorted(islice(names, _MOST + 1))
    if len(known) > _MOST:
        raise ManifestError(
            message(
                "a run has more session records than it can have had sessions",
                "remove those that do not belong to this run",
                folder=store.address(layout.SESSIONS),
                at_most=f"{_MOST:,}",
            )
        )
    return [_read(store, name.removesuffix(".json")) for name in known]


def _read(store: Store, session_id: str) -> Session:
    with suppress(ManifestError):
        read = base.read_record(store, layout.session(session_id), Session)
        if read.id == session_id:  # Records are written under their id: it must not lead elsewhere.
            return read
    return Session(session_id, "", "", 0, 0, 0, "", {})


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
