"""Which session is at work on a run in an object store.

There are no locks there, and none is needed: two sessions that work on one run make
equal objects, and each receipt follows its files. So this is a notice that saves
work. The session at work writes an object every few seconds. Whoever comes later
watches it: one that changes has a living owner, and one that stays the same for
a while, or whose process is gone from this machine, is taken over. Clocks are not
compared, so none has to be right.
"""

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Self

from fwconvert.errors import OutputError, UsageError, message
from fwconvert.store import lock
from fwconvert.store.bucket import Bucket, Changed, Version

_BEAT_SECONDS = 5.0
# So long without a beat: its owner is dead, or has lost its way to the store for longer than it retries.
_SILENT_SECONDS = 20.0
_LOOK_SECONDS = 0.5
# For those who only look once: what changed before that is old, whatever the clocks.
_OLD_SECONDS = 120.0
_MOST_BYTES = 4096
_ENDED = ", ended"


class Lease:
    """The notice of a session, renewed by a thread until `release`."""

    def __init__(self, bucket: Bucket, name: str, session: str, *, stays: bool = True) -> None:
        self._bucket, self._name, self._stays = bucket, name, stays
        self._text = f"pid {os.getpid()} on host {socket.gethostname()}, session {session}"
        self._beats = 0
        self._version = self._take()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Say that the session is over. Calling it again does nothing."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            with suppress(OutputError, Changed):  # It is over all the same, and others will find out.
                if not self._stays:
                    self._bucket.remove(self._name)
                    return
                self._bucket.put(self._name, f"{self._text}{_ENDED}\n".encode(), instead_of=self._version)

    def _content(self) -> bytes:
        return f"{self._text}, beat {self._beats}\n".encode()

    def _take(self) -> Version:
        before = _text(self._bucket, self._name)
        made: Version | None = None
        try:
            if before is None:
                made = self._bucket.put(self._name, self._content(), new=True)
            else:
                made = self._bucket.put(self._name, self._content(), instead_of=self._when_free(*before))
        except Changed:  # By another one, or by our own request, whose answer was lost.
            pass
        now = _text(self._bucket, self._name)  # Some stores ignore conditions: then the last one has it.
        if now is None or not now[0].startswith(self._text):
            raise self._occupied(now[0] if now else "unknown")
        return made or now[1]

    def _when_free(self, text: str, version: Version) -> Version:
        """Return the version of a notice, once its session is over; raise UsageError if it lives."""
        since = time.monotonic()
        while not _is_over(text) and time.monotonic() - since < _SILENT_SECONDS:
            time.sleep(_LOOK_SECONDS)
            now = _text(self._bucket, self._name)
            if now is None or (now[1] != version and not _is_over(now[0])):
                raise self._occupied(now[0] if now else text)
            text, version = now
        return version

    def _occupied(self, text: str) -> UsageError:
        return UsageError(
            message(
                "another session is at work on this run",
                "wait for it to end, or stop it with Ctrl-C or kill",
                run=self._bucket.uri,
                held_by=text,
            )
        )

    def _renew(self) -> None:
        while not self._over.wait(_BEAT_SECONDS):
            self._beats += 1
            try:
                self._version = self._bucket.put(self._name, self._content(), instead_of=self._version)
            except Changed:
                with suppress(OutputError, Changed):
                    now = _text(self._bucket, self._name)
                    if now is None:  # Somebody has cleaned up.
                        self._version = self._bucket.put(self._name, self._content(), new=True)
                    elif now[0].startswith(self._text):
                        self._version = now[1]  # Our own request, whose answer was lost.
                    else:
                        return  # It was taken for dead. Both go on: that does no harm.
            except OutputError:
                continue


def holder(bucket: Bucket, name: str) -> str:
    """Return who seems to be at work ("pid 7 on host h, session s"), or ""."""
    found = bucket.look(name)
    if found is None or time.time() - found.changed_at / 1e9 > _OLD_SECONDS:
        return ""
    text = _text(bucket, name)
    return "" if text is None or _is_over(text[0]) else text[0].partition(", beat ")[0]


def is_deserted(bucket: Bucket, name: str) -> bool:
    """Return whether it is certain that no session is at work: the last one said so, or is dead, here."""
    text = _text(bucket, name)
    return text is not None and _is_over(text[0])


def _is_over(text: str) -> bool:
    return text.endswith(_ENDED) or lock.is_dead(text)


def _text(bucket: Bucket, name: str) -> tuple[str, Version] | None:
    """Return the text of a notice and its version."""
    found = bucket.look(name)
    try:
        raw = b"" if found is None else bucket.read(name, _MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError:  # Too large: somebody else's.
        raw = b"unknown"
    return None if found is None else (raw.decode(errors="replace").strip(), found.version)
