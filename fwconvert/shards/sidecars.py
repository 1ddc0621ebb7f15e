"""Sidecar files of a token shard, from which a trainer reads where its documents are.

They follow from the document index, the segments and the number of tokens
alone, so that `verify` can make them again. A token shard may
hold millions of documents: they are handled in steps, never all at once.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert.recipes import Rules

# Documents at a time.
_STEP = 2**16

# Megatron-LM's numbers for the types of tokens. It has none for uint32; below 2**31 int32 is the same bytes.
_MEGATRON_TYPES = {2: 8, 4: 4}

Positions = NDArray[np.int64]


class Spans:
    """Where each document of a token shard begins and ends.

    `starts` are those of its document index, `firsts` the positions at which
    the tokens of another source begin. What continues a document of an earlier
    token shard counts as a document of its own.
    """

    def __init__(self, starts: NDArray[Any], firsts: Sequence[int], tokens: int) -> None:
        self._starts = starts
        heads = [first for first in sorted({*firsts}) if not _holds(starts, first)]
        self._heads = np.array(heads, np.int64)
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self._starts) + len(self._heads)

    def __iter__(self) -> Iterator[tuple[Positions, Positions]]:
        """Yield the begins and the ends of some documents at a time, in order."""
        end = np.array([self.tokens], np.int64)
        for begins, following in pairwise(chain(self._begins(), [end])):
            yield begins, np.append(begins[1:], following[0])

    def starts(self) -> Iterator[Positions]:
        """Yield where documents start, some at a time: what continues one is left out."""
        for at in range(0, len(self._starts), _STEP):
            yield self._starts[at : at + _STEP].astype(np.int64)

    def _begins(self) -> Iterator[Positions]:
        low = 0
        for at in range(0, max(1, len(self._starts)), _STEP):
            part, rest = self._starts[at : at + _STEP], self._starts[at + _STEP : at + _STEP + 1]
            high = int(rest[0]) if len(rest) else self.tokens
            heads = self._heads[(low <= self._heads) & (self._heads < high)]
            yield np.sort(np.concatenate([part.astype(np.int64), heads]))
            low = high


def sidecar_parts(suffix: str, rules: Rules, spans: Spans) -> Iterator[bytes]:
    """Yield the bytes of a token shard's sidecar file with that suffix."""
    return _MAKERS[suffix](rules, spans)


def _megatron_index(rules: Rules, spans: Spans) -> Iterator[bytes]:
    type_code, count = _MEGATRON_TYPES[rules.token_bytes], len(spans)
    yield struct.pack("<9sQBQQ", b"MMIDIDX", 1, type_code, count, count + 1)
    for begins, ends in spans:
        yield (ends - begins).astype("<i4").tobytes()
    for begins, _ in spans:
        yield (begins * rules.token_bytes).astype("<i8").tobytes()
    # Each document is one sequence.
    for at in range(0, count + 1, _STEP):
        yield np.arange(at, min(at + _STEP, count + 1), dtype="<i8").tobytes()


def _datatrove_index(_: Rules, spans: Spans) -> Iterator[bytes]:
    for _begins, ends in spans:
        yield ends.astype("<u8").tobytes()


def _datatrove_metadata(rules: Rules, spans: Spans) -> Iterator[bytes]:
    lines = (f"{rules.tokenizer}|{rules.token_bytes}", str(spans.tokens), _humanized(spans.tokens))
    yield "\n".join(lines).encode()


def _nemo_index(_: Rules, spans: Spans) -> Iterator[bytes]:
    """Yield the positions of document starts in tokens: NeMo's reader compares them with those.

    Its own writer adds that of the first byte, so what it writes is not where its reader looks.
    """
    for starts in spans.starts():
        yield starts.astype("<i4").tobytes()


def _humanized(tokens: int) -> str:
    """Return 1234567 as "1.23 MT", exactly as humanize 4.16 formats it."""
    group, digits = divmod(len(str(tokens)) - 1, 3)
    value = tokens / 1000**group
    if round(value, 2 - digits) >= 1000:
        group, digits, value = group + 1, 0, value / 1000
    return f"{value:.{2 - digits}f} {' kMGTPE'[group].strip()}T"


def _holds(starts: NDArray[Any], position: int) -> bool:
    at = bisect_left(starts, position)
    return at < len(starts) and int(starts[at]) == position


_MAKERS: dict[str, Callable[[Rules, Spans], Iterator[bytes]]] = {
    ".idx": _megatron_index,
    ".bos.idx": _nemo_index,
    ".ds.index": _datatrove_index,
    ".ds.metadata": _datatrove_metadata,
}
