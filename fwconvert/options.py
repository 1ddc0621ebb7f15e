"""Everything that a user may choose and that does not decide output bytes."""

import os
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from fwconvert import machine, records
from fwconvert.errors import UsageError, message

# All encoders give the same ids; the choice is one of speed.
EncoderChoice = Literal["auto", "fast", "reference"]
Encoder = Literal["fast", "reference"]


@dataclass(frozen=True)
class Options:
    """Everything that does not decide output bytes."""

    workers: int | None = None
    # Inside each worker; None: the cores that the workers leave.
    threads: int | None = None
    encoder: EncoderChoice = "auto"
    check_disk: bool = True
    # Hash all output that is there already, not only what was written to since.
    rehash: bool = False
    # What a worker may have before it is ended, and for how long it may show no progress.
    worker_memory: int | None = None
    stall_timeout: float = 900.0
    # Of sources that are fetched: where to keep them, if anywhere; how many may lie ready for the
    # workers; how many connections may fetch them; for how many seconds to try while nothing comes.
    keep_source: str | os.PathLike[str] | None = None
    prefetch: int | None = None
    max_connections: int = 64
    patience: float = 600.0
    # A folder of this node for files on their way; None: fetched sources lie in the folder of the run.
    scratch: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        records.check(self)
        for name in ("keep_source", "scratch"):
            if getattr(self, name) == "":
                raise UsageError(message(f"{name} is empty", "name a folder; '.' is the current one"))
        counts = {"worker": self.workers, "thread": self.threads, "file fetched ahead": self.prefetch}
        counts |= {"connection": self.max_connections, "byte of memory for a worker": self.worker_memory}
        for name, number in counts.items():
            if number is not None and number < 1:
                raise UsageError(message(f"a run needs at least one {name}", given=number))
        for name, seconds in {"patience": self.patience, "stall_timeout": self.stall_timeout}.items():
            if not seconds > 0:  # Of nan, too.
                raise UsageError(message(f"{name} must be more than 0 seconds", given=seconds))

    @property
    def keep_folder(self) -> Path | None:
        """The folder in which fetched sources are kept, if they are."""
        return None if self.keep_source is None else Path(self.keep_source)

    @property
    def scratch_folder(self) -> Path | None:
        """The folder of this node for what need not outlive a session, if there is one."""
        return None if self.scratch is None else Path(self.scratch).absolute()

    @property
    def prefetch_count(self) -> int:
        """How many files may lie ready: so many that workers which end together do not wait."""
        return max(4, self.worker_count // 2) if self.prefetch is None else self.prefetch

    @property
    def worker_count(self) -> int:
        """How many workers to run: one for each usable core unless told."""
        return machine.cores() if self.workers is None else self.workers

    def thread_count(self, jobs: int) -> int:
        """Return how many threads each worker may use, so that few jobs use all cores too."""
        if self.threads is not None:
            return self.threads
        return max(1, machine.cores() // max(1, min(self.worker_count, jobs)))


def parse_count(text: str) -> int:
    """Return the whole number that `text` means: 100M, 1_000_000, 1e6, 2.5k, 1,000.

    Exact: a number that is not whole (1.5, 1e-3) raises ValueError.
    """
    match = re.fullmatch(rf"({_DIGITS})([kKmMbBgGtT]?)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number such as 100M, 1_000_000 or 1e6")
    scale = {"": 0, "k": 3, "m": 6, "b": 9, "g": 9, "t": 12}[match[2].lower()]
    number = _fraction(match[1]) * 10**scale
    if number.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


def parse_bytes(text: str) -> int:
    """Return how many bytes `text` means: 2GB, 2GiB, 2G, 512M, 4_000_000_000, 1.5 TB. Raises ValueError."""
    match = re.fullmatch(rf"({_DIGITS}) ?(?:([kKmMgGtT])(i?)[bB]?|[bB])?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 4GB")
    power = " kmgt".index((match[2] or " ").lower())
    number = _fraction(match[1]) * (1024 if match[3] else 1000) ** power
    if number.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(number)


def parse_bandwidth(text: str) -> float:
    """Return how many bytes come in a second by a line of this speed. Raises ValueError.

    As lines are sold, 1G, 1Gb, 1Gbit/s and 1Gbps are bits; 125MB, 125MB/s and 119MiB/s are bytes.
    """
    match = re.fullmatch(rf"({_DIGITS}) ?([kKmMgGtT])(i?)(B|b|bit)?(?:/s|ps)?", text.strip())
    speed = 0.0
    if match is not None:
        power = " kmgt".index(match[2].lower())
        speed = float(_fraction(match[1]) * (1024 if match[3] else 1000) ** power)
    if match is None or speed <= 0:
        raise ValueError(f"{text!r} is not a speed such as 100M, 1G or 12MB/s")
    return speed if match[4] == "B" else speed / 8


_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?"


def _fraction(digits: str) -> Fraction:
    return Fraction(re.sub("[_,]", "", digits))
