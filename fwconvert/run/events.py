"""What a session shows of itself while it runs, and how it is asked to stop."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, Protocol, Self

if TYPE_CHECKING:  # It imports this module.
    from fwconvert.run.engines import Progress

# What a run waits for: --limit stands for sources before the one that is next, by which a limit is counted.
Bottleneck = Literal["network", "workers", "--limit"]


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
class Download:
    """How far one source in flight is from the remote."""

    title: str
    # Of it that have arrived, in this session or before; and all.
    bytes: int
    size: int
    # The machine that fetches it; "" where there is only one.
    node: str = ""


@dataclass(frozen=True)
class Faults:
    """What went wrong and was tried again. In a run that ended complete, all of it was healed."""

    # Answers 5xx and 429, and connections that broke, stalled or ended early.
    refusals: int = 0
    broken: int = 0
    # Files whose bytes were not those of their sha256.
    corrupt: int = 0
    # Processes that died, or were killed for what they did; and attempts at a job that failed.
    workers: int = 0
    attempts: int = 0

    def __add__(self, other: "Faults") -> Self:
        added = [getattr(self, one.name) + getattr(other, one.name) for one in fields(self)]
        return type(self)(*added)


NO_FAULTS = Faults()

Phase = Literal["check", "convert", "join", "copy"]


@dataclass(frozen=True)
class Snapshot:
    """How far a run is. Units are source bytes while converting, tokens while joining.

    While existing output is checked, or a run is copied, they are its bytes.
    """

    phase: Phase
    units: int
    units_done: float
    # What this session has done itself; the rest was there before.
    session_units: float
    session_tokens: int
    jobs: int
    jobs_done: int
    tokens: int
    running: "Sequence[Progress]"
    # Bytes that this session has fetched, and what the run waits for; None if nothing is fetched.
    fetched: int | None = None
    bottleneck: Bottleneck | None = None
    # At work now.
    connections: int = 0
    # The sources that are being fetched, and the bytes that are not here yet of all that are to come.
    downloads: Sequence[Download] = ()
    to_fetch: int = 0
    # Jobs that earlier sessions had done; those that were given up, and the bytes of their sources.
    jobs_found: int = 0
    jobs_failed: int = 0
    failed_bytes: int = 0
    # Of all sources that are read, whatever the phase.
    source_bytes: int = 0
    # Orders that can be carried out at a time.
    slots: int = 1
    # Of the join: its tokens (expected, until all jobs are done), those joined, their shards, bytes a token.
    join_tokens: int = 0
    joined_tokens: float = 0.0
    join_shards: int = 0
    token_bytes: int = 2
    faults: Faults = NO_FAULTS


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
