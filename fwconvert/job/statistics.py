"""What a job sees in its source beside the tokens: lengths, frequent tokens, URLs, scores. For people.

Gathered from batches that are there anyway, in a few numpy calls each, and from
some rows of two small columns at the end: less than a hundredth of a worker's
time (`BENCHMARKS.md`). Nothing here may fail a job or slow its output: whatever
goes wrong leaves the statistics unknown, and they are not part of the receipt.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert.job.orders import ConvertOrder
from fwconvert.recipes import Separators
from fwconvert.shards.cutting import Batch
from fwconvert.sources import labels
from fwconvert.store import layout, statistics
from fwconvert.store.base import Store
from fwconvert.store.receipts import Counts
from fwconvert.store.statistics import BINS_PER_DOUBLING, Histogram, Sampled, SourceStatistics
from fwconvert.tokens import registry

# One in so many tokens is counted.
_COUNT_ONE_IN = 64
_COUNTED_TOGETHER = 2**20
_RUNS = 16
_LONGEST_HOST = 253
_EMPTY = Histogram(0, 0.0, 0.0, 0.0, ())


class Gathering:
    """Watches the batches of one order, and writes down what it saw."""

    def __init__(self, order: ConvertOrder) -> None:
        self._order = order
        self._is_broken = False
        self._separators = Separators(None, None)
        # Where the last document starts in the stream, and where the stream ends.
        self._last = -1
        self._end = 0
        self._documents = 0
        self._least, self._most = 2**62, 0
        self._bins = np.zeros(BINS_PER_DOUBLING * 48 + 1, np.int64)
        self._tokens_counted = 0
        # What is counted together, later.
        self._sample: list[NDArray[Any]] = []
        self._lengths: list[NDArray[np.int64]] = []
        self._waiting = 0
        self._frequencies = np.zeros(0, np.int64)
        self._stretches: tuple[labels.Stretch, ...] = ()
        self._footer: Any = None
        # The documents whose labels are read at the end: rows and starts, by stretch.
        self._picked: list[list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = []
        self._guarded(self._begin)

    def watching(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches as they are."""
        for batch in batches:
            self._guarded(partial(self._see, batch))
            yield batch

    def publish(self, store: Store, counts: Counts) -> None:
        """Write what was seen, if nothing went wrong; never raises for it."""
        self._guarded(lambda: self._publish(store, counts))

    def _guarded(self, act: Callable[[], None]) -> None:
        if self._is_broken:
            return
        try:
            act()
        except Exception:  # noqa: BLE001  # a job must not fail because of what only people look at
            self._is_broken = True

    def _begin(self) -> None:
        self._separators = registry.separators_of(self._order.context.rules)
        if self._order.exported is None:
            self._stretches, self._footer = labels.stretches(self._order.file.local)
            self._picked = [[] for _ in self._stretches]

    def _see(self, batch: Batch) -> None:
        starts = batch.starts + self._end
        bounds = starts if self._last < 0 else np.concatenate(([self._last], starts))
        self._lengths.append(np.diff(bounds))
        if len(starts):
            self._last = int(starts[-1])
        self._end += len(batch.tokens)
        self._documents += len(starts)

        self._sample.append(_some(batch.tokens))
        self._waiting += len(starts) + len(self._sample[-1])
        if self._waiting >= _COUNTED_TOGETHER:
            self._count()

        if not len(batch.rows):
            return
        first, last = int(batch.rows[0]), int(batch.rows[-1])
        for stretch, picked in zip(self._stretches, self._picked, strict=True):
            if last < stretch.first or stretch.first + stretch.rows <= first:
                continue
            begin, end = np.searchsorted(batch.rows, (stretch.first, stretch.first + stretch.rows))
            if begin < end:
                picked.append((batch.rows[begin:end].astype(np.int64), starts[begin:end]))

    def _count(self) -> None:
        """Count what waits: together, because each call of numpy takes as long as a few hundred numbers."""
        tokens = np.concatenate([np.empty(0, np.uint16), *self._sample])
        found = np.bincount(tokens, minlength=len(self._frequencies))
        found[: len(self._frequencies)] += self._frequencies
        self._frequencies = found
        self._tokens_counted += len(tokens)
        self._count_lengths(np.concatenate([np.empty(0, np.int64), *self._lengths]))
        self._sample, self._lengths, self._waiting = [], [], 0

    def _count_lengths(self, lengths: NDArray[np.int64]) -> None:
        lengths = lengths - self._separators.each
        lengths = lengths[lengths > 0]
        if not len(lengths):
            return
        self._least, self._most = min(self._least, int(lengths.min())), max(self._most, int(lengths.max()))
        bins = np.floor(np.log2(lengths) * BINS_PER_DOUBLING).astype(np.int64)
        found = np.bincount(bins)
        self._bins[: len(found)] += found

    def _publish(self, store: Store, counts: Counts) -> None:
        self._count()
        lost = counts.cut and self._separators.after is not None
        if self._last >= 0:
            # The last document ends with the source, where a limit may have cut off its separator.
            self._count_lengths(np.array([self._end - self._last + lost]))
        order, separators = self._order, self._documents * self._separators.each - lost
        urls_counted, domains, scores, step, sampled = self._labelled()
        frequent = _most_frequent(self._frequencies, self._separators)
        record = SourceStatistics(
            recipe_id=order.context.recipe_id,
            path=order.source.path,
            documents=counts.documents,
            tokens=counts.tokens,
            lengths=_histogram(
                int(self._bins.sum()), float(self._end - separators), self._least, self._most, self._bins
            ),
            tokens_counted=self._tokens_counted,
            top_tokens=frequent,
            urls_counted=urls_counted,
            domains=domains,
            scores=scores,
            score_step=step,
            sampled=sampled,
        )
        statistics.write(store, layout.statistics(order.key), record)

    def _labelled(
        self,
    ) -> tuple[int, tuple[tuple[str, int], ...], Histogram | None, int, tuple[Sampled, ...]]:
        """Return what the columns say about the picked documents."""
        path, rows = self._order.file.local, [*map(_joined, self._picked)]
        if not any(len(kept) for kept, _ in rows):
            return 0, (), None, 0, ()
        try:
            found = labels.read(path, self._footer, self._stretches)
        except Exception:  # noqa: BLE001  # these columns may be unknown, and the rest is shown
            found = [labels.Labels([], np.empty(0)) for _ in rows]
        hosts: Counter[str] = Counter()
        sampled: list[Sampled] = []
        for stretch, (kept, starts), told in zip(self._stretches, rows, found, strict=True):
            named = [
                told.urls[row - stretch.first]
                for row in kept.tolist()
                if row - stretch.first < len(told.urls)
            ]
            hosts.update(filter(None, map(_host, named)))
            # The first of the stretch that is whole and has a next one, by which its end is known.
            if len(starts) > 1 and len(sampled) < statistics.MOST_SAMPLES:
                url = statistics.short_url(named[0]) if named else ""
                if url is not None:
                    sampled.append(Sampled(int(kept[0]), int(starts[0]), int(starts[1] - starts[0]), url))
        kept_scores = [
            told.scores[kept[kept < stretch.first + len(told.scores)] - stretch.first]
            for stretch, (kept, _), told in zip(self._stretches, rows, found, strict=True)
        ]
        scores, step = _scores(np.concatenate(kept_scores))
        common = tuple(hosts.most_common(statistics.MOST_DOMAINS))
        return hosts.total(), common, scores, step, tuple(sampled)


def _some(tokens: NDArray[Any]) -> NDArray[Any]:
    """Return one in so many tokens, in a few runs: one here and one there would be a cache miss each."""
    run = len(tokens) // _RUNS
    if run < _COUNT_ONE_IN:
        return tokens[::_COUNT_ONE_IN].copy()
    return tokens[: run * _RUNS].reshape(_RUNS, run)[:, : run // _COUNT_ONE_IN].ravel()


def _most_frequent(frequencies: NDArray[np.int64], separators: Separators) -> tuple[tuple[int, int], ...]:
    most = min(statistics.MOST_TOP_TOKENS + separators.each, len(frequencies))
    some: list[int] = np.argpartition(frequencies, -most)[-most:].tolist() if most else []
    around = separators.before, separators.after
    pairs = sorted((-int(frequencies[one]), one) for one in some if one not in around)
    return tuple((one, -count) for count, one in pairs[: statistics.MOST_TOP_TOKENS] if count)


def _joined(
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    empty = np.empty(0, np.int64)
    return np.concatenate([empty, *(rows for rows, _ in parts)]), np.concatenate(
        [empty, *(at for _, at in parts)]
    )


def _host(url: str) -> str:
    """Return the host of a URL, or "" if it has none that one would show."""
    parts = url.split("/", 3)
    if len(parts) < 3 or parts[1] or not parts[0].endswith(":"):
        return ""
    host = parts[2].rpartition("@")[2].partition(":")[0].lower().removeprefix("www.")
    return host if 0 < len(host) <= _LONGEST_HOST and host.isprintable() else ""


def _scores(values: NDArray[np.float64]) -> tuple[Histogram | None, int]:
    """Return a histogram of scores whose bins are as fine as fits, from a tenth on, and their width."""
    values = values[np.isfinite(values) & (np.abs(values) < 1e12)]
    if not len(values):
        return None, 0
    for step in range(-1, 12):
        numbers, found = np.unique(np.floor(values / 10.0**step + 1e-9).astype(np.int64), return_counts=True)
        if len(numbers) <= statistics.MOST_SCORE_BINS:
            break
    bins = tuple(zip(numbers.tolist(), found.tolist(), strict=True))
    return Histogram(len(values), float(values.sum()), float(values.min()), float(values.max()), bins), step


def _histogram(count: int, total: float, least: int, most: int, bins: NDArray[np.int64]) -> Histogram:
    if not count:
        return _EMPTY
    filled = np.flatnonzero(bins)
    pairs = zip(filled.tolist(), bins[filled].tolist(), strict=True)
    return Histogram(count, total, float(least), float(most), tuple(pairs))
