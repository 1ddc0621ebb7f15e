"""A source shard as tokens: read, encoded, audited, counted.

The fast encoder is never simply trusted. Of every source the first document,
and about one in a thousand of the rest, always the same ones, is encoded by
the reference as well; a difference stops the job before anything is published.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fwconvert.errors import SourceError, message
from fwconvert.job.orders import ConvertOrder, Reporter, RunContext
from fwconvert.options import Encoder
from fwconvert.recipes import Rules
from fwconvert.shards.cutting import Batch
from fwconvert.sources import filters, readers, reading
from fwconvert.store import layout
from fwconvert.store.base import Store
from fwconvert.store.receipts import Counts
from fwconvert.tokens import registry, tokenizer
from fwconvert.tokens.gigatoken import FastTokenizer
from fwconvert.tokens.spec import Loading

T = TypeVar("T")

_AUDIT_ONE_IN = 1000
# Batches read ahead of the encoder when there are threads to do it.
_BATCHES_AHEAD = 3


class EncodedSource:
    """Reads a source shard once; knows afterwards what it saw."""

    def __init__(self, order: ConvertOrder, store: Store, reporter: Reporter) -> None:
        context = order.context
        self._order = order
        self._reporter = reporter
        self._file = order.file.local
        self._tokenizer = load_tokenizer(context, store)
        self._salt = zlib.crc32(order.source.path.encode()) % _AUDIT_ONE_IN
        self.counts = Counts(rows=0, documents=0, null_rows=0, empty_rows=0, text_bytes=0, tokens=0)
        self.audited = 0

    def prove(self) -> reading.Proof:
        """Return the sha256 of the source: hashed now, unless that was done when it was fetched."""
        known = self._order.source.sha256
        if self._order.file.proven and known is not None:
            return reading.look(self._file, known)
        return reading.prove(self._file, self._reporter.check)

    def check_unchanged(self, proof: reading.Proof) -> None:
        """Raise SourceError if the file has changed since it was proven."""
        reading.unchanged(self._file, proof)

    def batches(self) -> Iterator[Batch]:
        """Yield the documents in order, each with its separator, up to the run's limit."""
        order, rules, spec = self._order, self._order.context.rules, self._tokenizer.spec
        reader = readers.of(order.source.path, self._file)
        extent = reader.extent(self._file)
        batches = reader.batches(self._file, rules.text_column, filters.of(rules))
        for batch in read_ahead(batches, _BATCHES_AHEAD) if order.context.threads > 1 else batches:
            allowed, limited, cut = batch, False, False
            if order.allowed_documents is not None:
                room = order.allowed_documents - self.counts.documents
                if len(batch.rows) > room:
                    allowed, limited = batch.until(int(batch.rows[room])), True

            encoded = self._tokenizer.encode(allowed.texts)
            self._audit(allowed, encoded)
            self._refuse_separators(allowed, encoded)
            stream = tokenizer.place_eot(encoded, spec.eot, rules.eot, spec.bos)

            tokens = stream.tokens
            if order.allowed_tokens is not None:
                room = order.allowed_tokens - self.counts.tokens
                if len(tokens) > room:
                    tokens, limited = tokens[:room], True
                    begun = int(np.searchsorted(stream.starts, room))
                    cut = begun == len(stream.starts) or bool(stream.starts[begun] > room)
                    # Which rows are counted must not depend on how the rows are batched.
                    end = allowed.rows[begun - 1] + 1 if cut else allowed.rows[begun]
                    allowed = allowed.until(int(end))

            self.counts = _counted(self.counts, allowed, len(tokens), limited=limited, cut=cut)
            self._reporter.show(allowed.done, extent)
            self._reporter.show_text(self.counts.tokens, self.counts.text_bytes)
            self._reporter.check()
            yield Batch(tokens, stream.starts[: len(allowed.rows)], allowed.rows)
            if limited:
                return

    def _refuse_separators(self, batch: reading.TextBatch, encoded: tokenizer.Encoded) -> None:
        """Raise SourceError if a text gives a separator: where the document ends could not be found again.

        Of a tokenizer that is built in we know that none does. What a stranger's file does is seen.
        """
        spec = self._tokenizer.spec
        if spec.built_in:
            return
        found = encoded.tokens == spec.eot
        if spec.bos is not None:
            found |= encoded.tokens == spec.bos
        if not found.any():
            return
        place = int(np.flatnonzero(found)[0])
        row = int(batch.rows[np.searchsorted(encoded.offsets, place, side="right") - 1])
        raise SourceError(
            message(
                "the text of a document has a separator of documents among its tokens",
                "choose a token that text does not give: --eot-token, --bos-token",
                source=self._order.source.path,
                row=row,
                token=int(encoded.tokens[place]),
                tokenizer=spec.name,
            )
        )

    def _audit(self, batch: reading.TextBatch, encoded: tokenizer.Encoded) -> None:
        """Compare a sample of the documents with the reference, unless it encoded them."""
        if not isinstance(self._tokenizer, FastTokenizer):
            return
        sample = _sample(batch.rows, self._salt, first=self.counts.documents == 0)
        if not len(sample):
            return
        wanted = self._tokenizer.reference.encode(batch.texts.take(sample))
        for at, (begin, end) in zip(sample, pairwise(wanted.offsets), strict=True):
            found = encoded.tokens[encoded.offsets[at] : encoded.offsets[at + 1]]
            if not np.array_equal(found, wanted.tokens[begin:end]):
                row = int(batch.rows[at])
                raise SourceError(
                    message(
                        "the fast encoder gave other tokens than the reference; nothing was written",
                        "pass --encoder reference, and please report the document",
                        source=self._order.source.path,
                        row=row,
                        id=readers.of(self._order.source.path, self._file).identity(self._file, row),
                    )
                )
        self.audited += len(sample)


def _counted(counts: Counts, batch: reading.TextBatch, tokens: int, *, limited: bool, cut: bool) -> Counts:
    """Return the counts with one more batch."""
    return Counts(
        rows=counts.rows + batch.seen,
        documents=counts.documents + len(batch.rows),
        null_rows=counts.null_rows + batch.null_rows,
        empty_rows=counts.empty_rows + batch.empty_rows,
        text_bytes=counts.text_bytes + batch.text_bytes,
        tokens=counts.tokens + tokens,
        filtered_rows=counts.filtered_rows + batch.filtered_rows,
        limited=limited,
        cut=cut,
    )


def _sample(rows: NDArray[np.int64], salt: int, *, first: bool) -> NDArray[np.int64]:
    """Return the indices of the documents to audit: the same in every run of a source."""
    mixed = (rows * 2654435761 & 0xFFFFFFFF) >> 8  # Knuth's multiplicative hash
    chosen = mixed % _AUDIT_ONE_IN == salt
    if first:
        chosen[:1] = True
    return np.flatnonzero(chosen)


def load_tokenizer(context: RunContext, store: Store) -> tokenizer.Tokenizer:
    """Return the tokenizer of a run, loaded once in each process."""
    vocabularies, scratch = store.pull(layout.VOCABULARIES), store.local(layout.TEMPORARY)
    return _load_tokenizer(context.rules, context.encoder, context.threads, vocabularies, scratch)


@lru_cache(maxsize=1)
def _load_tokenizer(
    rules: Rules, encoder: Encoder, threads: int, vocabularies: Path, scratch: Path
) -> tokenizer.Tokenizer:
    # A spawned worker has nothing of the scheduler's process, so it loads the tokenizer itself, once.
    spec = registry.of_rules(rules)
    return registry.load(spec, vocabularies, Loading(encoder, threads, scratch))


def read_ahead(items: Iterable[T], most: int) -> Iterator[T]:
    """Yield `items` in order, at most `most` of them made in a thread before they are asked for.

    What making them raises is raised here. A reader that goes away stops it.
    """
    iterator, end = iter(items), object()
    thread = ThreadPoolExecutor(1)
    try:
        waiting: deque[Any] = deque(thread.submit(next, iterator, end) for _ in range(most))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, iterator, end))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)
