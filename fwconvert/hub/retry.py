"""Retries with exponential backoff, given up after `--patience` seconds without progress.

Progress is counted in bytes: 256 for each second of patience. Any line that is
used to download gigabytes is more than ten times as fast; a server that trickles
a byte a second is slower, and is given up like one that is silent. Bytes need
not arrive steadily: 150 KB anywhere in ten minutes is enough. The time that a
server asks us to wait (Retry-After) does not count, up to ten times the
patience. All waits end at once when the user asks to stop.
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
# The hub's rate limits cover five minutes, so it never needs to ask for more.
_LONGEST_ASKED_WAIT = 300.0
_MAX_ASKED_PATIENCES = 10
_SHORTEST_WAIT = 0.5
_MIN_RATE = 256
_MAX_MIN_BYTES = 2**20


class TransientError(Exception):  # Internal: a retry succeeds, or it becomes a HubError.
    """A failure that a retry may overcome. `retry_after`: how many seconds the server asked us to wait."""

    def __init__(
        self,
        reason: str,
        retry_after: float | None = None,
        *,
        is_pressure: bool = False,
        is_answer: bool = False,
    ) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        # The server answered that it cannot, with 503 for example; otherwise the connection failed.
        self.is_answer = is_answer
        # Fewer connections may help: the server asks for fewer requests, or breaks them off.
        self.is_pressure = is_pressure


class Retry:
    """When to retry one download or request, and when to give up: after `seconds` without progress.

    `notice` is called with a line when a wait is long enough for a user to wonder.
    `deadline` is the number of seconds after which it gives up in any case.
    """

    def __init__(
        self, seconds: float, stop: threading.Event, notice: Callable[[str], None], deadline: float = math.inf
    ) -> None:
        self.stop = stop
        self._ends = time.monotonic() + deadline
        self._seconds = seconds
        self._notice = notice
        # This many bytes are progress.
        self._least = max(1.0, min(_MIN_RATE * seconds, _MAX_MIN_BYTES))
        self.progress()

    def progress(self) -> None:
        """Reset the counters: enough has arrived."""
        self._failures = 0
        self._new = 0
        # How long servers asked us to wait, which is not counted.
        self._asked = 0.0
        self._since = time.monotonic()
        self.restart_flow()

    def received(self, size: int, what: str, *, new: bool = True) -> None:
        """Count bytes that arrived; raise HubError if they only trickle in.

        Bytes that are not `new` are skipped to reach the rest, and are not progress.
        """
        self._flowed += size
        self._new += size if new else 0
        if self._new >= self._least:
            self.progress()
        elif self._flowed >= self._least:
            self.restart_flow()
        elif time.monotonic() - self._flowing > self._seconds:
            raise HubError(
                message(
                    f"the download is too slow: {self._flowed:,} bytes in {self._seconds:,.0f} s",
                    "check the network, then run the same command again to continue",
                    wanted=what,
                    endpoint=endpoint(),
                    minimum=f"{self._least:,.0f} bytes in that time",
                )
            )

    def restart_flow(self) -> None:
        """Begin to measure anew how fast bytes arrive, after a wait."""
        self._flowed, self._flowing = 0, time.monotonic()

    def check(self, what: str) -> None:
        """Raise Stopped if the user asked to stop, HubError if the deadline has passed."""
        if self.stop.is_set():
            raise Stopped("stopped by the user")
        self._check_time(what)

    def _check_time(self, what: str, seconds: float = 0.0) -> None:
        if time.monotonic() + seconds > self._ends:
            raise HubError(message("the hub is taking too long", wanted=what, endpoint=endpoint()))

    def wait_or_raise(self, error: TransientError, what: str) -> None:
        """Wait before the next attempt, or raise HubError if there was no progress for too long."""
        if self.stop.wait(self.next_wait(error, what)):
            raise Stopped("stopped by the user")
        self.restart_flow()

    def next_wait(self, error: TransientError, what: str) -> float:
        """Return for how long to wait before the next attempt; raise as `wait_or_raise` does."""
        self._failures += 1
        waited = time.monotonic() - self._since
        too_long = waited - self._asked > self._seconds and self._failures > 1
        most_asked = max(_LONGEST_ASKED_WAIT, _MAX_ASKED_PATIENCES * self._seconds)
        if too_long or self._asked > most_asked:
            raise HubError(
                message(
                    f"no progress with the hub for {waited:,.0f} s, after {self._failures} attempts",
                    "check the network, then run the same command again to continue",
                    wanted=what,
                    endpoint=endpoint(),
                    last_error=error,
                )
            )
        seconds = self._pause(error)
        if seconds >= 4:
            self._notice(f"{what}: {error}; retrying in {seconds:.0f} s")
        self._check_time(what, seconds)
        return seconds

    def _pause(self, error: TransientError) -> float:
        if error.retry_after is not None:
            seconds = min(max(error.retry_after, _SHORTEST_WAIT), _LONGEST_ASKED_WAIT)
            self._asked += seconds
            return seconds
        # Random jitter: clients that were cut off together must not come back together.
        longest = min(_LONGEST_BACKOFF, 2.0 ** (self._failures - 1))
        share = random.uniform(0.5, 1.0)  # noqa: S311  # no secret
        return share * min(longest, max(1.0, self._seconds / 4))


def with_retries(ask: Callable[[], Found], what: str, retry: Retry) -> Found:
    """Return what `ask` returns, retrying transient errors. Raises Stopped as soon as the user asks."""
    while True:
        try:
            return _interruptible(ask, what, retry)
        except TransientError as error:
            retry.wait_or_raise(error, what)


def _interruptible(ask: Callable[[], Found], what: str, retry: Retry) -> Found:
    """Call `ask` in a thread that is abandoned if the user asks to stop."""
    answer: Future[Found] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001  # raised again below
            answer.set_exception(error)

    threading.Thread(target=work, name="ask", daemon=True).start()
    while not wait([answer], 0.1).done:
        retry.check(what)
    return answer.result()
