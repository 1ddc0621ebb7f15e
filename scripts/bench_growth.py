"""How time and memory grow with the input, and with the number of sources; one worker, one thread.

Time is fitted after the fixed cost has been taken off, which is what a source
of a single document takes: processes start and the encoder is loaded, which an
empty source would not need. The small sources all have the same documents, so
that the encoder, which is slow on words that it has not met, is not what grows.
An exponent of 1 is proportional; of 0, flat.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_measure import Measure, link, tell
from bench_rows import Setup, convert, cut

MULTIPLES = (1, 2, 4, 8)
# Enough documents that ten sources take longer than the start-up varies.
SMALL_ROWS = 200
# Beyond this, more text tells nothing new about growth.
_MOST_TEXT = 4_000_000_000


@dataclass(frozen=True)
class Point:
    """One conversion of a series."""

    size: float
    label: str
    best: Measure


@dataclass(frozen=True)
class Growth:
    """A series, and the fixed cost of any conversion."""

    title: str
    points: tuple[Point, ...]
    fixed: Measure

    def exponents(self) -> dict[str, float | None]:
        """Return the powers of the size that time, CPU time and memory grow with."""
        runs = [point.best for point in self.points]
        return {
            "time": self._fit([run.seconds - self.fixed.seconds for run in runs]),
            "CPU": self._fit([run.cpu_seconds - self.fixed.cpu_seconds for run in runs]),
            "memory": self._fit([float(run.peak_bytes) for run in runs]),
        }

    def _fit(self, values: list[float]) -> float | None:
        """Return the exponent; None if the fixed cost drowns the rest, as on too little text."""
        return exponent([point.size for point in self.points], values) if min(values) > 0 else None


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the straight line through the logarithms, by least squares."""
    xs, ys = [math.log(size) for size in sizes], [math.log(value) for value in values]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - x_mean) ** 2 for x in xs)


def grow(setup: Setup, rounds: int, counts: Sequence[int]) -> list[Growth]:
    """Measure both series, in interleaved rounds."""
    least = cut(setup, "least", 1, 1)
    large = cut(setup, "sizes", MULTIPLES[-1], _rows_of_an_eighth(setup))
    small = cut(setup, "sources", 1, SMALL_ROWS) * counts[-1]
    folders = {"least": link(least, setup.work / "growth-least")}
    folders |= {f"x{many}": link(large[:many], setup.work / f"growth-x{many}") for many in MULTIPLES}
    folders |= {f"{many}": link(small[:many], setup.work / f"growth-{many}") for many in counts}
    best, text = _measure(setup, folders, rounds)
    fixed = best["least"]
    texts = (
        Point(text[key], f"{key}: {text[key] / 1e6:,.1f} MB", best[key]) for key in best if key[0] == "x"
    )
    sources = (Point(float(key), f"{int(key):,}", best[key]) for key in best if key.isdecimal())
    return [Growth("text", tuple(texts), fixed), Growth("sources", tuple(sources), fixed)]


def _rows_of_an_eighth(setup: Setup) -> int:
    share = min(1, _MOST_TEXT / setup.of_all["text_bytes"])
    return max(1, int(setup.of_all["documents"] * share) // MULTIPLES[-1])


def _measure(
    setup: Setup, folders: dict[str, Path], rounds: int
) -> tuple[dict[str, Measure], dict[str, float]]:
    best: dict[str, Measure] = {}
    text: dict[str, float] = {}
    for number in range(rounds):
        for key, folder in folders.items():
            said, took = convert(setup, folder, *setup.options(1))
            text[key] = said["text_bytes"]
            best[key] = min(best.get(key, took), took, key=lambda one: one.seconds)
            tell(f"  round {number + 1}: {took.seconds:7.2f} s  growth, {key}")
    return best, text
