"""Waiting for a run that somebody else makes, as long as there is hope.

A session that has ended says nothing to those who wait, so they look at the
lock of the run. Only where it proves that nobody is at work is waiting given
up: a lock of another machine, or of a file system without locks, does not.
A run that nobody has begun yet is waited for, too; but its path may be wrong,
so that is told.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from fwconvert.errors import NotReady, message
from fwconvert.store import sessions
from fwconvert.store.folder import RunFolder

# Enough to run the command again by hand, or for a scheduler to do so.
_DESERTED_SECONDS = 60.0
# Enough for a converter that was started together with us to make its folder.
_SILENT_SECONDS = 10.0


@dataclass(frozen=True)
class Waiting:
    """How long to wait for what a run makes."""

    folder: RunFolder
    timeout: float | None
    poll: float

    def until(self, true: Callable[[], bool]) -> None:
        """Return when `true()`; raise NotReady after the timeout, or when nobody makes the run any more."""
        began = seen = time.monotonic()
        told = False
        while True:
            # First of all: a session writes its last manifest before it lets go of the lock.
            deserted = self.folder.store.is_deserted()
            if true():
                return
            now = time.monotonic()
            seen = seen if deserted else now
            if now - seen >= _DESERTED_SECONDS:
                raise self._deserted()
            if self.timeout is not None and now - began >= self.timeout:
                raise self._late() if self._is_begun else NotReady(self._no_run("waited for it in vain"))
            if not (told or self._is_begun) and now - began >= _SILENT_SECONDS:
                told = True
                # Of the line that makes the loader: behind us, _find, __post_init__ and __init__.
                warnings.warn(self._no_run("waiting for it"), stacklevel=5)
            time.sleep(self.poll)

    @property
    def _is_begun(self) -> bool:
        return self.folder.private.is_dir() or self.folder.manifest.is_file()

    def _no_run(self, what: str) -> str:
        return message(
            f"there is no run in this folder yet: {what}",
            "see that the path is right, and that the conversion was started",
            folder=self.folder.path.absolute(),
            folder_exists="yes" if self.folder.path.is_dir() else "no",
            timeout="none" if self.timeout is None else f"{self.timeout:g} seconds",
        )

    def _deserted(self) -> NotReady:
        past = sessions.all_of(self.folder)
        return NotReady(
            message(
                "nobody makes this run any more, and it is not complete",
                "run its command again; fwconvert status tells what failed",
                "resume from the last state when there is more",
                folder=self.folder.path,
                last_session=(past[-1].outcome if past else "") or "cut off",
            )
        )

    def _late(self) -> NotReady:
        return NotReady(
            message(
                "the run has made nothing new for too long",
                "see how it is with fwconvert status; resume from the last state when there is more",
                folder=self.folder.path,
                seconds=self.timeout,
            )
        )
