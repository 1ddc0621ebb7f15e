"""A source shard as tokens, taken from the token shards of another run.

Nothing is encoded again. What the other run has is compared with its own
document index and its own counts; the separator moves to the other side of each
document if that is where it should be.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert.errors import ShardError, message
from fwconvert.job.orders import ConvertOrder, Exported, Reporter
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
            registry.of_rules(exported.rules).eot,
            reporter.check,
        )
        # What was seen when the source itself was read.
        self.counts = exported.counts
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
        for begin in range(0, reader.length, STEP):
            end = min(begin + STEP, reader.length)
            found = reader.documents(begin, end)
            self._check_documents(begin, end, found)
            self._reporter.check()
            yield Batch(self._with_separators(begin, end), found.starts - begin, found.rows)
            self._reporter.show(end, reader.length)
            self._reporter.show_text(end, counts.text_bytes * end // reader.length)
        if self._documents != counts.documents:
            raise self._misfit(f"{counts.documents:,} documents", f"{self._documents:,}")

    def _with_separators(self, begin: int, end: int) -> NDArray[Any]:
        """Return the tokens from `begin` to `end`, with each separator on the side where it should be.

        E d1 E d2 becomes d1 E d2 E, or the other way round: one token goes at
        one end and comes at the other. Documents start where they started.
        """
        reader, rules = self._reader, self._exported.rules
        if self._order.context.rules.eot == rules.eot:
            return reader.tokens(begin, end)
        separator = np.array([reader.eot], rules.token_type)
        if rules.eot == "before":
            tokens = reader.tokens(begin + 1, end + 1)
            return tokens if end < reader.length else np.append(tokens, separator)
        tokens = reader.tokens(max(begin - 1, 0), end - 1)
        return tokens if begin else np.append(separator, tokens)

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
        if (last == [reader.eot]) != (self._exported.rules.eot == "after"):
            raise self._misfit(f"a separator {self._exported.rules.eot} each document", f"{last} at the end")

    def _check_documents(self, begin: int, end: int, found: DocumentStarts) -> None:
        """Raise ShardError unless documents start where the separators say, in the order of their rows."""
        shift = 0 if self._exported.rules.eot == "before" else 1
        tokens = self._reader.tokens(begin, end)
        wanted = np.flatnonzero(tokens == self._reader.eot) + (begin + shift)
        wanted = wanted[wanted < self._reader.length]
        starts = self._reader.documents(begin + shift, end + shift).starts if shift else found.starts
        if not np.array_equal(starts, wanted):
            raise self._misfit(f"{len(wanted):,} documents after token {begin:,}", f"{len(starts):,} others")
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
