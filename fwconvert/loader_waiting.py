"""Waiting for a run that somebody else makes, as long as there is hope.

A session that has ended says nothing to those who wait, so they look at the
lock of the run. Only where it proves that nobody is at work is waiting given
up: a lock of another machine, or of a file system without locks, does not.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from fwconvert import session
from fwconvert.errors import NotReady, message
from fwconvert.folder import RunFolder, is_deserted

# Enough to run the command again by hand, or for a scheduler to do so.
_DESERTED_SECONDS = 60.0


@dataclass(frozen=True)
class Waiting:
    """How long to wait for what a run makes."""

    folder: RunFolder
    timeout: float | None
    poll: float

    def until(self, true: Callable[[], bool]) -> None:
        """Return when `true()`; raise NotReady after the timeout, or when nobody makes the run any more."""
        began = seen = time.monotonic()
        while True:
            # First of all: a session writes its last manifest before it lets go of the lock.
            deserted = is_deserted(self.folder)
            if true():
                return
            now = time.monotonic()
            seen = seen if deserted else now
            if now - seen >= _DESERTED_SECONDS:
                raise self._deserted()
            if self.timeout is not None and now - began >= self.timeout:
                raise self._late()
            time.sleep(self.poll)

    def _deserted(self) -> NotReady:
        past = session.all_of(self.folder)
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
