"""Fault injection: count the system calls that touch the output, and make one of them go wrong.

All output goes through Python's `os`, so its functions can be replaced: the
n-th call of a kind, in the driver or in a worker, kills its process or fails
with an error, without being carried out. That is where strace would inject it
(`torture.real` does, to check), at a hundredth of the cost. A fault is injected
once, into whichever process comes to that call first.
"""

import errno
import fcntl
import mmap
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Role = Literal["driver", "worker"]

# What each call may fail with. A call that is not here is not touched.
ERRORS: dict[str, tuple[int, ...]] = {
    "open": (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS, errno.EACCES),
    "write": (errno.ENOSPC, errno.EIO, errno.EDQUOT),
    "fsync": (errno.EIO, errno.ENOSPC),
    "close": (errno.EIO, errno.ENOSPC),
    "replace": (errno.EIO, errno.ENOSPC, errno.EPERM),
    "unlink": (errno.EIO, errno.EPERM),
    "mkdir": (errno.ENOSPC, errno.EIO),
    "flock": (errno.ENOLCK, errno.EIO),
}
_BY_PATH = {"open", "replace", "unlink", "mkdir"}


@dataclass(frozen=True)
class Point:
    """The n-th call of a kind in a process of a kind."""

    role: Role
    call: str
    number: int

    def sooner(self, share: float) -> "Point":
        """Return the same call, earlier by this factor: for a session that has less to do."""
        return Point(self.role, self.call, 1 + int((self.number - 1) * share))


@dataclass(frozen=True)
class Fault:
    """What goes wrong at a point: the process dies, or the call fails with an errno."""

    point: Point
    error: int | None = None

    @property
    def title(self) -> str:
        """What happens where, in a few words."""
        what = "SIGKILL" if self.error is None else errno.errorcode[self.error]
        return f"{what} at {self.point.role}'s {self.point.call} {self.point.number}"


class Interposer:
    """Wraps the calls of this process and of those forked from it."""

    def __init__(self, out: Path, fault: Fault | None, *, fsync: bool = True) -> None:
        self._out = str(out)
        self._fault = fault
        self._fsync = fsync
        # Shared with forked processes: was the fault injected, and how often was each call made, by role.
        self._triggered = mmap.mmap(-1, 8)
        self._totals = mmap.mmap(-1, 4096)
        self._driver = os.getpid()
        self._owner = 0
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._ours: set[int] = set()

    def install(self) -> None:
        """Replace the calls, in the driver; they stay replaced for the life of the process."""
        self._driver = os.getpid()
        for call in ERRORS:
            module = fcntl if call == "flock" else os
            setattr(module, call, self._wrapped(call, getattr(module, call)))

    @property
    def triggered(self) -> bool:
        """Whether the fault was injected."""
        return self._triggered[0] != 0

    def points(self) -> list[Point]:
        """Return all calls that were made, by the busiest process of each role."""
        roles: tuple[Role, ...] = ("driver", "worker")
        return [
            Point(role, call, number)
            for at, role in enumerate(roles)
            for kind, call in enumerate(ERRORS)
            for number in range(1, self._total(at, kind) + 1)
        ]

    def _total(self, role: int, kind: int) -> int:
        at = (role * len(ERRORS) + kind) * 4
        return int.from_bytes(self._totals[at : at + 4], "little")

    def _wrapped(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def interposed(*given: Any, **named: Any) -> Any:
            if not self._touches(call, given):
                return real(*given, **named)
            self._count(call)
            if call == "fsync" and not self._fsync:
                return None
            result = real(*given, **named)
            if call == "open":
                self._ours.add(result)
            elif call == "close":
                self._ours.discard(given[0])
            return result

        return interposed

    def _touches(self, call: str, given: tuple[Any, ...]) -> bool:
        if call in _BY_PATH:
            return isinstance(given[0], str | os.PathLike) and str(given[0]).startswith(self._out)
        if call == "flock":
            return True
        return given[0] in self._ours

    def _count(self, call: str) -> None:
        with self._lock:
            if self._owner != os.getpid():  # The first call of this process.
                self._owner = os.getpid()
                self._counts.clear()
            self._counts[call] += 1
            number = self._counts[call]
            role: Role = "driver" if self._owner == self._driver else "worker"
            self._note(role, call, number)
        fault = self._fault
        if fault is not None and fault.point == Point(role, call, number) and not self.triggered:
            self._triggered[0] = 1
            if fault.error is None:
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                raise OSError(fault.error, os.strerror(fault.error))

    def _note(self, role: Role, call: str, number: int) -> None:
        at = ((role == "worker") * len(ERRORS) + [*ERRORS].index(call)) * 4
        most = max(number, int.from_bytes(self._totals[at : at + 4], "little"))
        self._totals[at : at + 4] = most.to_bytes(4, "little")
