"""Disk is bounded: a run needs its output and little more, whatever the layout."""

import threading
from pathlib import Path

import corpus
import pytest
import runner


class DiskWatch(threading.Thread):
    """Looks at the size of a folder all the time, and keeps the largest."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._end = threading.Event()
        self.peak = 0

    def run(self) -> None:
        while not self._end.wait(0.0005):
            self.peak = max(self.peak, _size(self._folder))

    def stop(self) -> int:
        self._end.set()
        self.join()
        return self.peak


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # It was renamed or removed just now.
            continue
    return total


@pytest.mark.parametrize("layout", ["independent", "contiguous"])
def test_the_join_needs_little_more_than_the_output(layout: str, tmp_path: Path) -> None:
    sources, out = tmp_path / "sources", tmp_path / "out"
    for number in range(8):
        corpus.write(sources / f"{number}.parquet", [corpus.document(number, times=40_000)] * 2)
    out.mkdir()
    watch = DiskWatch(out)
    watch.start()
    result = runner.convert(sources, out, tokenizer="bytes", shard_tokens=300_000, layout=layout)
    peak, whole = watch.stop(), _size(out)
    assert result.complete
    # One worker: the shard that it writes, the tail that it is cutting, and the small records.
    largest_tail = 2 * 2 * 40_001 * len("document 7 ")
    allowed = whole + largest_tail + 2 * 300_000 + 100_000
    assert whole <= peak <= allowed
    # Holding all tails to the end would need twice the output in the contiguous layout.
    assert allowed < 2 * whole
