"""A source shard as tokens, taken from the token shards of another run.

Nothing is encoded again. What the other run has is compared with its own
document index and its own counts; what separates documents is replaced by what
should.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fwconvert.errors import ShardError, message
from fwconvert.job.orders import ConvertOrder, Exported, Reporter
from fwconvert.recipes import Separators
from fwconvert.shards.cutting import Batch
from fwconvert.shards.stream import DocumentStarts, StreamReader
from fwconvert.sources.reading import Proof
from fwconvert.store.local import open_store
from fwconvert.tokens import registry

# Tokens at a time: a few MB.
STEP = 2**21


class ExistingTokens:
    """Reads the stream of a source once; proves that it is what its run says."""

    # Nothing is encoded, so there is nothing to audit.
    audited = 0

    def __init__(self, order: ConvertOrder, exported: Exported, reporter: Reporter) -> None:
        self._order = order
        self._exported = exported
        self._reporter = reporter
        self._reader = StreamReader(
            open_store(exported.run, scratch=order.context.scratch),
            exported.rules,
            exported.passages,
            registry.separators_of(exported.rules),
            reporter.check,
        )
        self._wanted = registry.separators_of(order.context.rules)
        # What was seen when the source itself was read; the separators are those of this run.
        counts, old = exported.counts, self._reader.separators
        more = counts.documents * (self._wanted.each - old.each)
        self.counts = msgspec.structs.replace(counts, tokens=counts.tokens + more)
        self._documents, self._last_row = 0, -1

    def prove(self) -> Proof:
        """Return what the other run says of the source, which is not needed itself."""
        # No time: whoever has the file will hash it.
        return Proof(self._exported.sha256, self._exported.bytes, 0)

    def check_unchanged(self, proof: Proof) -> None:
        """Do nothing: each file of the other run was hashed before it was believed."""

    def batches(self) -> Iterator[Batch]:
        """Yield the stream in order, in steps; a document may run across them."""
        counts, reader = self._exported.counts, self._reader
        self._check_ends()
        for begin, end in self._steps():
            found = reader.documents(begin, end)
            self._check_documents(begin, end, found)
            self._reporter.check()
            tokens, starts = self._with_separators(begin, end, found.starts)
            yield Batch(tokens, starts, found.rows)
            self._reporter.show(end, reader.length)
            self._reporter.show_text(end, counts.text_bytes * end // reader.length)
        if self._documents != counts.documents:
            raise self._misfit(f"{counts.documents:,} documents", f"{self._documents:,}")

    def _steps(self) -> Iterator[tuple[int, int]]:
        """Yield where each step begins and ends: never behind the first token of a document.

        That may be a separator which goes, and then the document would begin in the next step.
        """
        begin, reader = 0, self._reader
        while begin < reader.length:
            end = min(begin + STEP, reader.length)
            while end < reader.length and len(reader.documents(end - 1, end).starts):
                end += 1
            yield begin, end
            begin = end

    def _with_separators(
        self, begin: int, end: int, starts: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the tokens from `begin` to `end`, separated as they should be, and where documents start."""
        reader, old, new = self._reader, self._reader.separators, self._wanted
        tokens, starts = reader.tokens(begin, end), starts - begin
        if old == new:
            return tokens, starts
        ends = reader.documents(begin + 1, end + 1).starts - begin
        if end == reader.length and not self._exported.counts.cut:
            ends = np.append(ends, len(tokens))
        return _replaced(tokens, starts, ends, old, new)

    def _check_ends(self) -> None:
        """Raise ShardError unless the stream is as long as it should be, and begins and ends a document."""
        reader, wanted = self._reader, self._exported.counts.tokens
        if reader.length != wanted:
            raise self._misfit(f"{wanted:,} tokens", f"{reader.length:,}")
        if not wanted:
            return
        if reader.documents(0, 1).starts.tolist() != [0]:
            raise self._misfit("a document at its beginning", "none")
        last = reader.tokens(wanted - 1, wanted).tolist()
        if self._exported.counts.cut:  # Where a limit ended the last document, anything may stand.
            return
        after = reader.separators.after
        if after is not None and last != [after]:
            raise self._misfit("a separator after each document", f"{last} at the end")

    def _check_documents(self, begin: int, end: int, found: DocumentStarts) -> None:
        """Raise ShardError unless documents start where the separators say, in the order of their rows."""
        reader, tokens = self._reader, self._reader.tokens(begin, end)
        for token, shift in ((reader.separators.before, 0), (reader.separators.after, 1)):
            if token is None:
                continue
            wanted = np.flatnonzero(tokens == token) + (begin + shift)
            wanted = wanted[wanted < reader.length]
            starts = reader.documents(begin + shift, end + shift).starts if shift else found.starts
            if not np.array_equal(starts, wanted):
                what = f"{len(wanted):,} documents after token {begin:,}", f"{len(starts):,} others"
                raise self._misfit(*what)
        rows = np.concatenate([[self._last_row], found.rows])
        if np.any(rows[1:] <= rows[:-1]) or rows[-1] >= self._exported.counts.rows:
            raise self._misfit("rows in order", f"others after token {begin:,}")
        self._documents += len(found.rows)
        self._last_row = int(rows[-1])

    def _misfit(self, wanted: str, found: str) -> ShardError:
        return ShardError(
            message(
                "the token shards of a source are not what their run manifest says",
                f"see what is wrong: fwconvert verify {self._exported.run}",
                source=self._order.source.path,
                run=self._exported.run,
                wanted=wanted,
                found=found,
            )
        )


def _replaced(
    tokens: NDArray[Any],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    old: Separators,
    new: Separators,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return tokens with other separators, and where documents start then.

    `starts` and `ends` are those of the documents that start, or end, within them.
    """
    keep = np.ones(len(tokens), np.bool_)
    if old.before is not None:
        keep[starts] = False
    if old.after is not None:
        keep[ends - 1] = False
    # How many tokens of text are ahead of each place.
    ahead = np.concatenate([[0], np.cumsum(keep)])
    # Where separators come: even numbers for those after a document, which are first where another one
    # starts, and odd ones for those before.
    none = np.empty(0, np.int64)
    closing = none if new.after is None else 2 * ends
    opening = none if new.before is None else 2 * starts + 1
    places = np.sort(np.concatenate([closing, opening]))
    separators = np.where(places % 2, new.before or 0, new.after or 0).astype(tokens.dtype)
    made = np.insert(tokens[keep], ahead[places // 2], separators)
    return made, ahead[starts] + np.searchsorted(places, 2 * starts + 1)
