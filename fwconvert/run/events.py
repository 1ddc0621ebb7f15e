"""What a session shows of itself while it runs, and how it is asked to stop."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fwconvert.run.engines import Progress

Bottleneck = Literal["network", "workers"]


class StopSwitch:
    """Stops a run: ask once to stop cleanly, twice to stop at once."""

    def __init__(self) -> None:
        self.asked = 0
        # Set by the first request, for those who wait.
        self.event = threading.Event()

    def ask(self) -> None:
        """Ask to stop."""
        self.asked += 1
        self.event.set()


@dataclass(frozen=True)
class Snapshot:
    """How far a run is. Units are source bytes while converting, tokens while joining.

    While existing output is checked, they are its bytes.
    """

    phase: Literal["check", "convert", "join"]
    units: int
    units_done: float
    # What this session has done itself; the rest was there before.
    session_units: float
    session_tokens: int
    jobs: int
    jobs_done: int
    tokens: int
    running: Sequence[Progress]
    # Bytes that this session has fetched, and what the run waits for; None if nothing is fetched.
    fetched: int | None = None
    bottleneck: Bottleneck | None = None
    # At work now.
    connections: int = 0


class Observer(Protocol):
    """Is shown what happens during a run. The library itself never prints."""

    def notice(self, text: str) -> None:
        """Take note of something that a person should know."""

    def update(self, snapshot: Snapshot) -> None:
        """Show how far the run is; called several times a second."""


class SilentObserver:
    """Shows nothing."""

    def notice(self, text: str) -> None:
        """Ignore a notice."""

    def update(self, snapshot: Snapshot) -> None:
        """Ignore an update."""
