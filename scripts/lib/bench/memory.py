"""How much memory a worker's encoder takes over much varied text, and what limiting it costs.

    scripts/bench memory --gigabytes 10

The text has a long tail: common words by Zipf's law and, one word in fifty,
random letters that never recur.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fwconvert.machine import resident_bytes
from fwconvert.tokens import gigatoken, tiktoken_kind

_COMMON = 60_000
_NEW_SHARE = 0.02
_BATCH_WORDS = 3_000_000
_DOCUMENT_WORDS = 1_000


class Text:
    """An endless stream of documents."""

    def __init__(self) -> None:
        self._random = np.random.Generator(np.random.PCG64(1))
        self._common = self._words(_COMMON)

    def batch(self) -> pa.Array:
        """Return some 20 MB of documents."""
        ranks = (_COMMON ** self._random.random(_BATCH_WORDS)).astype(np.int64) % _COMMON
        new = self._words(int(_BATCH_WORDS * _NEW_SHARE))
        is_new = self._random.random(_BATCH_WORDS) < _NEW_SHARE
        chosen = np.where(is_new, _COMMON + self._random.integers(0, len(new), _BATCH_WORDS), ranks)
        words = pa.concat_arrays([self._common, new]).take(pa.array(chosen))
        starts = pa.array(np.arange(0, _BATCH_WORDS + 1, _DOCUMENT_WORDS), pa.int32())
        return pc.binary_join(pa.ListArray.from_arrays(starts, words), " ")

    def _words(self, count: int) -> pa.Array:
        ends = np.cumsum(self._random.integers(3, 11, count), dtype=np.int32)
        letters = self._random.integers(97, 123, ends[-1]).astype(np.uint8)
        offsets = np.concatenate([np.zeros(1, np.int32), ends])
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))


def main() -> int:
    """Encode the text; print the size of the process on the way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", metavar="N", type=float, default=10.0)
    parser.add_argument("--unbounded", action="store_true", help="never replace the encoder by a new one")
    args = parser.parse_args()
    if args.unbounded:
        gigatoken.MOST_REMEMBERED_BYTES = 2**62
    chosen = tiktoken_kind.find("gpt2")
    encoder = gigatoken.of_table(chosen, tiktoken_kind.read_table(chosen, Path()))
    text, done, seconds, largest, shown = Text(), 0, 0.0, 0, 0.0
    print("| GB of text | MB now | MB at most | encoder made | MB/s |\n|--:|--:|--:|--:|--:|")
    while done < args.gigabytes * 1e9:
        batch = text.batch()
        started = time.perf_counter()
        encoder.encode(batch)
        seconds += time.perf_counter() - started
        done += batch.nbytes
        now = resident_bytes() or 0
        largest = max(largest, now)
        if done >= shown:
            shown += args.gigabytes * 1e8
            row = (f"{done / 1e9:.2f}", f"{now / 1e6:.0f}", f"{largest / 1e6:.0f}", f"{encoder.made}")
            print(f"| {' | '.join(row)} | {done / seconds / 1e6:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
