"""How time and memory scale with the text, and with the number of sources; one worker, one thread.

The fit is of what a run takes beyond the first of its series, which pays the
fixed costs: processes start, the encoder is loaded, and meets most words for
the first time, which is slow. All small sources have the same documents. An
exponent of 1 is proportional; of 0, flat.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Measure, link, log
from bench.rows import Setup, convert, cut

# Added to the first conversion, in multiples of it.
MULTIPLES = (1, 2, 4, 8)
# Enough that ten sources take longer than the start-up varies.
_SMALL_TEXT = 2_000_000
# A short conversion is repeated for this long in each round: its start-up varies more than it takes.
_LEAST_SECONDS = 5.0
# More text would show nothing new about growth.
_MOST_TEXT = 4_000_000_000


@dataclass(frozen=True)
class Point:
    """One conversion of a series; `size` is how much it has beyond the first."""

    size: float
    label: str
    best: Measure


@dataclass(frozen=True)
class Growth:
    """A series beyond its first conversion, which shows the fixed costs."""

    title: str
    points: tuple[Point, ...]
    first: Point

    def exponents(self) -> dict[str, float | None]:
        """Return the exponents with which time, CPU time and memory grow with the size."""
        runs = [point.best for point in self.points]
        return {
            "time": self._fit([run.seconds - self.first.best.seconds for run in runs]),
            "CPU": self._fit([run.cpu_seconds - self.first.best.cpu_seconds for run in runs]),
            "memory": self._fit([float(run.peak_bytes) for run in runs]),
        }

    def _fit(self, values: list[float]) -> float | None:
        """Return the exponent; None if the fixed costs hide the rest, as with too little text."""
        return exponent([point.size for point in self.points], values) if min(values) > 0 else None


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the straight line through the logarithms, by least squares."""
    xs, ys = [math.log(size) for size in sizes], [math.log(value) for value in values]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - x_mean) ** 2 for x in xs)


def grow(setup: Setup, rounds: int, counts: Sequence[int]) -> list[Growth]:
    """Measure both series, in interleaved rounds."""
    large = cut(setup, "sizes", 1 + MULTIPLES[-1], _rows(setup, _largest_text(setup) // (1 + MULTIPLES[-1])))
    small = cut(setup, "sources", 1, _rows(setup, _SMALL_TEXT)) * (1 + counts[-1])
    folders = {
        f"{title} {many}": link(files[: 1 + many], setup.work / f"growth-{title}-{many}")
        for title, files, series in (("text", large, MULTIPLES), ("sources", small, counts))
        for many in (0, *series)
    }
    best, text = _measure(setup, folders, rounds)
    texts = [
        Point(float(many), f"{text[key] / 1e6:,.1f} MB", best[key])
        for many in (0, *MULTIPLES)
        for key in [f"text {many}"]
    ]
    sources = [Point(float(many), f"{1 + many:,}", best[f"sources {many}"]) for many in (0, *counts)]
    return [Growth("text", tuple(texts[1:]), texts[0]), Growth("sources", tuple(sources[1:]), sources[0])]


def _largest_text(setup: Setup) -> int:
    return min(_MOST_TEXT, int(setup.of_all["text_bytes"]))


def _rows(setup: Setup, text_bytes: int) -> int:
    """Return how many documents have about this much text."""
    return max(1, int(setup.of_all["documents"]) * text_bytes // int(setup.of_all["text_bytes"]))


def _measure(
    setup: Setup, folders: dict[str, Path], rounds: int
) -> tuple[dict[str, Measure], dict[str, float]]:
    best: dict[str, Measure] = {}
    text: dict[str, float] = {}
    for number in range(rounds):
        for key, folder in folders.items():
            spent = 0.0
            while spent < _LEAST_SECONDS:
                counts, took = convert(setup, folder, *setup.options(1))
                text[key] = counts["text_bytes"]
                best[key] = min(best.get(key, took), took, key=lambda one: one.seconds)
                spent += took.seconds
            log(f"  round {number + 1}: {best[key].seconds:7.2f} s at best  growth, {key}")
    return best, text
