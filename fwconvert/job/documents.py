"""Run a generator ahead of its reader, in a thread.

The documents of one source shard as tokens: read, encoded, audited, counted.

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
from fwconvert.job.orders import ConvertOrder
from fwconvert.job.reporter import Reporter
from fwconvert.options import Encoder
from fwconvert.recipes import Rules
from fwconvert.shards.cutting import Batch
from fwconvert.sources import filters, parquet
from fwconvert.store.folder import RunFolder
from fwconvert.store.receipts import Counts
from fwconvert.tokens import tokenizer, vocabulary
from fwconvert.tokens.gigatoken import FastTokenizer

T = TypeVar("T")


def ahead(items: Iterable[T], most: int) -> Iterator[T]:
    """Yield `items` in order, at most `most` of them made before they are wanted.

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


_ONE_IN = 1000
# Batches read ahead of the encoder when there are threads to do it.
_AHEAD = 3


class Documents:
    """Reads a source shard once; knows afterwards what it saw."""

    def __init__(self, order: ConvertOrder, reporter: Reporter) -> None:
        self._order = order
        self._reporter = reporter
        context = order.context
        self._tokenizer = _load(context.rules, context.encoder, context.threads, context.out)
        self._rows = self._documents = self._nulls = self._empties = 0
        self._text_bytes = self._tokens = self._filtered = 0
        self._limited = self._cut = False
        self._salt = zlib.crc32(order.source.path.encode()) % _ONE_IN
        self.audited = 0

    def batches(self) -> Iterator[Batch]:
        """Yield the documents in order, each with its separator."""
        context, file = self._order.context, self._order.file
        total = parquet.row_count(file)
        texts = parquet.batches(file, context.rules.text_column, filters.of(context.rules))
        for whole in ahead(texts, _AHEAD) if context.threads > 1 else texts:
            batch = self._within_documents(whole)
            encoded = self._tokenizer.encode(batch.texts)
            self._audit(batch, encoded)
            stream = tokenizer.place_eot(encoded, self._tokenizer.vocabulary.eot, context.rules.eot)
            batch, tokens = self._within_tokens(batch, stream)
            self._count(batch, len(tokens))
            self._reporter.show(self._rows, total)
            yield Batch(tokens, stream.starts[: len(batch.rows)], batch.rows)
            if self._limited:
                return

    def _within_documents(self, batch: parquet.TextBatch) -> parquet.TextBatch:
        """Return the batch up to the first document that is too many, if one is."""
        most = self._order.allowed_documents
        if most is None or len(batch.rows) <= most - self._documents:
            return batch
        self._limited = True
        return batch.until(int(batch.rows[most - self._documents]))

    def _within_tokens(
        self, batch: parquet.TextBatch, stream: tokenizer.Stream
    ) -> tuple[parquet.TextBatch, tokenizer.Tokens]:
        """Return the batch and its tokens up to the limit, if it is reached; the last document may be cut."""
        most = self._order.allowed_tokens
        if most is None or len(stream.tokens) <= most - self._tokens:
            return batch, stream.tokens
        self._limited = True
        tokens = stream.tokens[: most - self._tokens]
        begun = int(np.searchsorted(stream.starts, len(tokens)))
        self._cut = begun == len(stream.starts) or bool(stream.starts[begun] > len(tokens))
        # Which rows are counted must not depend on how the rows are batched.
        end = batch.rows[begun - 1] + 1 if self._cut else batch.rows[begun]
        return batch.until(int(end)), tokens

    def counts(self) -> Counts:
        """Return what was seen so far."""
        return Counts(
            rows=self._rows,
            documents=self._documents,
            null_rows=self._nulls,
            empty_rows=self._empties,
            text_bytes=self._text_bytes,
            tokens=self._tokens,
            filtered_rows=self._filtered,
            limited=self._limited,
            cut=self._cut,
        )

    def _count(self, batch: parquet.TextBatch, tokens: int) -> None:
        self._rows += batch.seen
        self._documents += len(batch.rows)
        self._nulls += batch.null_rows
        self._empties += batch.empty_rows
        self._filtered += batch.filtered_rows
        self._text_bytes += batch.text_bytes
        self._tokens += tokens
        self._reporter.show_text(self._tokens, self._text_bytes)

    def _audit(self, batch: parquet.TextBatch, encoded: tokenizer.Encoded) -> None:
        """Compare a sample of the documents with the reference, unless it made them."""
        if not isinstance(self._tokenizer, FastTokenizer):
            return
        sample = _sample(batch.rows, self._salt, first=self._documents == 0)
        if not len(sample):
            return
        wanted = self._tokenizer.reference.encode(batch.texts.take(sample))
        for at, (begin, end) in zip(sample, pairwise(wanted.offsets), strict=True):
            found = encoded.tokens[encoded.offsets[at] : encoded.offsets[at + 1]]
            if not np.array_equal(found, wanted.tokens[begin:end]):
                raise SourceError(self._difference(int(batch.rows[at])))
        self.audited += len(sample)

    def _difference(self, row: int) -> str:
        file = self._order.file
        return message(
            "the fast encoder gave other tokens than the reference; nothing was written",
            "pass --encoder reference, and please report the document",
            source=self._order.source.path,
            row=row,
            id=parquet.identity(file, row),
        )


def _sample(rows: NDArray[np.int64], salt: int, *, first: bool) -> NDArray[np.int64]:
    """Return the indices of the documents to audit: the same in every run of a source."""
    mixed = (rows * 2654435761 & 0xFFFFFFFF) >> 8  # Knuth's multiplicative hash
    chosen = mixed % _ONE_IN == salt
    if first:
        chosen[:1] = True
    return np.flatnonzero(chosen)


@lru_cache(maxsize=1)
def _load(rules: Rules, encoder: Encoder, threads: int, out: Path) -> tokenizer.Tokenizer:
    # Spawn gives a worker nothing from the driver, so it loads the tokenizer itself, once.
    known, folder = vocabulary.find(rules.tokenizer), RunFolder(out)
    if encoder == "fast":
        table = vocabulary.read_table(known, folder.vocabularies)
        return FastTokenizer(known, table, threads, folder.temporary)
    return tokenizer.load(known, folder.vocabularies, threads)
