"""Disk is bounded: a run needs its output and little more, whatever the layout."""

import stat
import threading
from contextlib import suppress
from pathlib import Path

import corpus
import pytest
import runner

# Its name and its inode: a name may be taken by another file, and the inode of a removed one by a new one.
File = tuple[Path, int]


class DiskWatch(threading.Thread):
    """Looks at the size of a folder all the time, and keeps the largest.

    A look takes a while, in which files come and go. What two looks in a row
    found was there between them, so their common files are never too much.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._end = threading.Event()
        self._before: dict[File, int] = {}
        self.peak = 0

    def run(self) -> None:
        while not self._end.wait(0.0005):
            self._look()

    def _look(self) -> None:
        before, now = self._before, _files(self._folder)
        common = sum(min(before[file], now[file]) for file in before.keys() & now.keys())
        self.peak, self._before = max(self.peak, common), now

    def stop(self) -> int:
        self._end.set()
        self.join()
        self._look()
        self._look()
        return self.peak


def _files(folder: Path) -> dict[File, int]:
    """Return the size of every file."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # It was renamed or removed just now.
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                found[path, status.st_ino] = status.st_size
    return found


@pytest.mark.parametrize("layout", ["independent", "contiguous"])
def test_the_join_needs_little_more_than_the_output(layout: str, tmp_path: Path) -> None:
    sources, out = tmp_path / "sources", tmp_path / "out"
    for number in range(8):
        corpus.write(sources / f"{number}.parquet", [corpus.document(number, times=40_000)] * 2)
    out.mkdir()
    watch = DiskWatch(out)
    watch.start()
    result = runner.convert(sources, out, tokenizer="bytes", shard_tokens=300_000, layout=layout)
    peak, whole = watch.stop(), sum(_files(out).values())
    assert result.complete
    # One worker: the shard that it writes, the tail that it is cutting, and the small records.
    largest_tail = 2 * 2 * 40_001 * len("document 7 ")
    allowed = whole + largest_tail + 2 * 300_000 + 100_000
    assert whole <= peak <= allowed
    # Holding all tails to the end would need twice the output in the contiguous layout.
    assert allowed < 2 * whole
