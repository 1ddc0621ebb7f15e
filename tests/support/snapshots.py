"""Moments of a run that nobody runs, for the tests of what is shown."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fwconvert.run.engines import Progress
from fwconvert.run.events import Snapshot

LONG = "data/CC-MAIN-2024-10/train-{:05d}-of-00064.parquet"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def job(path: str = "000_00000.parquet", fraction: float = 0.5, tokens: int = 3_210_000) -> Progress:
    return Progress(path, path, fraction, tokens, size=10**9)


def join_job(name: str = "edu_train_000001.bin", fraction: float = 0.25) -> Progress:
    return Progress(name, name, fraction, int(fraction * 10**8), size=10**8)


def at(done: float, **changes: Any) -> Snapshot:
    """Return a snapshot of a first session that has done this part of 8 GB, 3 bytes a token."""
    units = 8_000_000_000
    tokens = int(done * units / 3)
    whole = Snapshot("convert", units, done * units, done * units, tokens, 8, int(done * 8), tokens, ())
    return replace(whole, **changes)


def joining(done: float, running: Sequence[Progress] = (), **changes: Any) -> Snapshot:
    units = 400_000_000
    now = Snapshot("join", units, done * units, done * units, 2_666_666_666, 8, 8, 2_666_666_666, running)
    return replace(now, **changes)
