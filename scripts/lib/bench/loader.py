"""How fast the loader serves tokens from the page cache, compared with the least that plain numpy can do.

Every round opens the shards anew, so that all ways pay for the first touch of
each page, as training does. The round with the least CPU time counts: other
load hardly disturbs it. Only for llm.c shards with two bytes per token.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert.loader import Loader
from fwconvert.loader.permutation import Permutation
from fwconvert.loader.state import ReadingOrder

SEQ_LEN = 1024
BATCH = 32

Batches = Iterable[NDArray[Any]]


def loader(out: str, rounds: int) -> dict[str, Any]:
    """Serve all windows of a run in each way; return the bytes and the seconds of each way's best round."""
    paths = sorted(Path(out).glob("*_train_*.bin"))
    places = _places(paths)
    ways: dict[str, Callable[[], Batches]] = {
        "plain numpy: copy the shards in order": lambda: _copied(paths),
        "loader, sequential": lambda: _loader(out, "sequential"),
        "plain numpy: gather from memory maps": lambda: _gathered(paths, places),
        "loader, shuffled": lambda: _loader(out, "shuffled"),
        "loader, documents": lambda: _loader(out, "documents"),
    }
    for path in paths:
        path.read_bytes()  # Into the page cache.
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            took = _measured(way)
            best[name] = min(best.get(name, took), took, key=lambda one: one["cpu"])
    assert best["loader, shuffled"]["bytes"] == best["plain numpy: gather from memory maps"]["bytes"]
    return best


def _measured(way: Callable[[], Batches]) -> dict[str, float]:
    served, began, cpu = 0, time.perf_counter(), time.process_time()
    for batch in way():
        served += batch.nbytes
    return {
        "bytes": served,
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
    }


def _loader(out: str, order: ReadingOrder) -> Batches:
    return Loader(out, seq_len=SEQ_LEN, batch=BATCH, order=order)


def _copied(paths: Sequence[Path]) -> Iterator[NDArray[Any]]:
    for path in paths:
        tokens = np.memmap(path, np.uint16, "r", 1024)
        for begin in range(0, len(tokens), BATCH * SEQ_LEN):
            yield np.array(tokens[begin : begin + BATCH * SEQ_LEN])


def _gathered(paths: Sequence[Path], places: Sequence[tuple[int, int]]) -> Iterator[NDArray[Any]]:
    shards = [np.memmap(path, np.uint16, "r", 1024) for path in paths]
    for begin in range(0, len(places), BATCH):
        ours = places[begin : begin + BATCH]
        batch = np.empty((len(ours), SEQ_LEN + 1), np.uint16)
        for row, (shard, start) in enumerate(ours):
            batch[row] = shards[shard][start : start + SEQ_LEN + 1]
        yield batch


def _places(paths: Sequence[Path]) -> list[tuple[int, int]]:
    """Return the shard and the first token of each window, in the order of the loader."""
    tokens = [(path.stat().st_size - 1024) // 2 for path in paths]
    ordered = [
        (shard, start * SEQ_LEN)
        for shard, count in enumerate(tokens)
        for start in range((count - 1) // SEQ_LEN)
    ]
    return [ordered[number] for number in Permutation(len(ordered), 0, 0)(np.arange(len(ordered))).tolist()]
