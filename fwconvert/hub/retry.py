"""Patience with a network: what may pass is tried again, longer and longer, as long as there is hope.

Progress resets the patience, and it is counted in bytes: 256 of them for each
second of the patience. The slowest line that anybody fetches gigabytes over
brings more than ten times that; a server that lets a byte drip every second
brings less, and is given up when the patience is over, as one that is silent.
Nor need bytes come steadily: 150 KB anywhere in ten minutes will do. What a
server asks us to wait is not held against it, up to ten times the patience.
All waits end at once when the user wishes to stop.
"""

import math
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from fwconvert.errors import HubError, Stopped, message
from fwconvert.hub.client import endpoint

Found = TypeVar("Found")

_LONGEST_BACKOFF = 60.0
# The hub counts requests over five minutes, so it never has reason to ask for more.
_LONGEST_ASKED_WAIT = 300.0
_MOST_ASKED_PATIENCES = 10
_SHORTEST_WAIT = 0.5
_LEAST_RATE = 256
_LEAST_BYTES_AT_MOST = 2**20


class Passing(Exception):  # Not an error yet: it is endured or becomes a HubError
    """Trouble that may pass. `wait`: for how many seconds the server asked us to stay away."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class Patience:
    """Goes on trying as long as something comes, and for a while if nothing does.

    One for each thing that is wanted. `tell` is given a line when the wait is
    long enough for a person to wonder. `most`: for how many seconds in all,
    whatever comes.
    """

    def __init__(
        self, seconds: float, stop: threading.Event, tell: Callable[[str], None], most: float = math.inf
    ) -> None:
        self.stop = stop
        self._ends = time.monotonic() + most
        self._seconds = seconds
        self._tell = tell
        # So many bytes are progress.
        self._least = max(1.0, min(_LEAST_RATE * seconds, _LEAST_BYTES_AT_MOST))
        self.progress()

    def progress(self) -> None:
        """Something came that is worth the wait."""
        self._failures = 0
        self._new = 0
        # For how many seconds servers asked us to stay away; that is not held against them.
        self._asked = 0.0
        self._since = time.monotonic()
        self._watch_anew()

    def came(self, size: int, what: str, *, new: bool = True) -> None:
        """So many bytes came; raise HubError if all that comes is a drip.

        `new`: they are progress, and not only passed over to get at what is wanted.
        """
        self._flowed += size
        self._new += size if new else 0
        if self._new >= self._least:
            self.progress()
        elif self._flowed >= self._least:
            self._watch_anew()
        elif time.monotonic() - self._flowing > self._seconds:
            raise HubError(
                message(
                    f"the hub sends next to nothing: {self._flowed:,} bytes in {self._seconds:,.0f} s",
                    "look at the network, then run the same command again: it goes on where it stopped",
                    wanted=what,
                    endpoint=endpoint(),
                    wanted_at_least=f"{self._least:,.0f} bytes in that time",
                )
            )

    def _watch_anew(self) -> None:
        self._flowed, self._flowing = 0, time.monotonic()

    def look(self, what: str) -> None:
        """Raise Stopped if the user wishes to stop, HubError if all the time is over."""
        if self.stop.is_set():
            raise Stopped("stopped by the user")
        self._check_time(what)

    def _check_time(self, what: str, seconds: float = 0.0) -> None:
        if time.monotonic() + seconds > self._ends:
            raise HubError(message("the hub takes too long", wanted=what, endpoint=endpoint()))

    def endure(self, trouble: Passing, what: str) -> None:
        """Wait before the next try, or raise HubError if nothing has come for too long."""
        self._failures += 1
        waited = time.monotonic() - self._since
        too_long = waited - self._asked > self._seconds and self._failures > 1
        most_asked = max(_LONGEST_ASKED_WAIT, _MOST_ASKED_PATIENCES * self._seconds)
        if too_long or self._asked > most_asked:
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
        self._check_time(what, seconds)
        if self.stop.wait(seconds):
            raise Stopped("stopped by the user")
        self._watch_anew()

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
            return _stoppable(ask, what, patience)
        except Passing as trouble:
            patience.endure(trouble, what)


def _stoppable(ask: Callable[[], Found], what: str, patience: Patience) -> Found:
    """Call `ask` in a thread that is left alone if it takes longer than the user wants to wait."""
    answer: Future[Found] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001  # raised again below
            answer.set_exception(error)

    threading.Thread(target=work, name="ask", daemon=True).start()
    while not wait([answer], 0.1).done:
        patience.look(what)
    return answer.result()
