"""Carry out one order in a worker reporter.

A worker is given names and plain values, loads its tokenizer itself, and
publishes its receipt as the last thing. It never raises: whatever goes wrong
comes back as a Failure, so that no exception has to survive the way between
processes (tiktoken's PanicException, a BaseException, would not).
"""

import traceback
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack

import msgspec

from fwconvert.addresses import plain
from fwconvert.errors import FwconvertError, OutputError, ShardError, SourceError, Stopped, message
from fwconvert.job.documents import Documents
from fwconvert.job.exported import ExportedDocuments
from fwconvert.job.joining import joined_pieces
from fwconvert.job.orders import ConvertOrder, Failure, JoinOrder, Order, Outcome
from fwconvert.job.reporter import Reporter
from fwconvert.shards import cutting
from fwconvert.shards.shard import ShardWriter
from fwconvert.sources import parquet
from fwconvert.store import atomic, layout, receipts
from fwconvert.store.folder import RunFolder
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import JoinReceipt, Receipt, ShardLine, Sidecar, Tail

# Full blocks that may be on their way to the disk.
_MOST_SYNCING = 4


def perform(order: Order, reporter: Reporter) -> Outcome:
    """Carry out an order; return its receipt, already published, or the Failure."""
    try:
        return convert(order, reporter) if isinstance(order, ConvertOrder) else join(order, reporter)
    except Stopped as error:
        return Failure("stopped", str(error))
    except OutputError as error:
        return Failure("output", str(error), plain(traceback.format_exc()))
    except _Unready as error:
        return Failure("unready", str(error), plain(traceback.format_exc()))
    except BaseException as error:  # noqa: BLE001  # the one place that must survive everything
        text = str(error) if isinstance(error, FwconvertError) else f"{type(error).__name__}: {plain(error)}"
        return Failure("job", text, plain(traceback.format_exc()))


class _Unready(Exception):
    """What every order needs cannot be loaded."""


def convert(order: ConvertOrder, reporter: Reporter) -> Receipt:
    """Convert one source shard. Its files appear under their final names together, at the end."""
    folder = RunFolder(order.context.out)
    documents = _documents(order, reporter)
    with ExitStack() as unpublished, ThreadPoolExecutor(2) as aside:
        proving = aside.submit(_prove, order, reporter)
        if order.source.sha256 is not None:
            proving.result()  # What can be proven is not touched before it is.
        blocks = _Blocks(order, unpublished, aside, reporter)
        sizes = cutting.block_sizes(order.context.rules, order.source_index)
        for piece in cutting.cut(_beating(documents.batches(), reporter), sizes):
            blocks.add(piece)
            reporter.check()
        proof = proving.result()
        if order.exported is None:
            parquet.unchanged(order.file, proof)
        made = blocks.finish(documents, proof)
        blocks.publish(folder)
    receipts.publish(LocalStore(order.context.out, order.context.session), made)
    return made


def _refuse_other_count(what: str, written: int, wanted: int) -> None:
    """Raise ShardError if tokens were lost or doubled on the way: nothing of it may get a name."""
    if written != wanted:
        wrong = "not as many tokens were written as there are; nothing was published"
        raise ShardError(message(wrong, of=what, written=f"{written:,}", wanted=f"{wanted:,}"))


def join(order: JoinOrder, reporter: Reporter) -> JoinReceipt:
    """Make one joined shard from tails."""
    context = order.context
    folder = RunFolder(context.out)
    reporter.check()
    for key in order.spent:
        folder.remove_tail(key)
        reporter.beat()
    with ShardWriter(
        folder.store, order.key, context.rules, order.size, context.threads, reporter.check
    ) as writer:
        for piece in joined_pieces(folder, order):
            writer.write(piece)
            reporter.show(writer.tokens, order.size)
            reporter.show_text(writer.tokens, 0)
            reporter.check()
        _refuse_other_count(order.name, writer.tokens, order.size)
        writer.complete([first for _, first in order.places])
        line = _shard_line(writer, order.name, order.split, order.places)
        writer.publish(layout.shard(order.name), layout.index(order.name))
    atomic.sync_folder(folder.index)
    atomic.sync_folder(folder.path)
    made = JoinReceipt(
        context.recipe_id, order.segments, line, context.session, absorbed=order.absorbed or msgspec.UNSET
    )
    receipts.publish(LocalStore(context.out, context.session), made)
    return made


class _Blocks:
    """The token shards of a job, under temporary names until all of them are finished."""

    def __init__(
        self, order: ConvertOrder, unpublished: ExitStack, aside: Executor, reporter: Reporter
    ) -> None:
        self._order = order
        self._reporter = reporter
        self._aside = aside
        self._syncing: deque[Future[None]] = deque()
        self._folder = RunFolder(order.context.out)
        self._sizes = cutting.block_sizes(order.context.rules, order.source_index)
        self._unpublished = unpublished
        self._full: list[ShardWriter] = []
        self._current = self._open()

    def add(self, piece: cutting.Piece) -> None:
        """Append a piece to the current block; a block that it fills is brought to the disk, aside."""
        self._current.write(piece)
        if piece.ends_block:
            # A disk that cannot keep up is waited for: each block has files open and memory.
            while len(self._syncing) >= _MOST_SYNCING:
                self._syncing.popleft().result()
            self._syncing.append(self._aside.submit(self._current.complete, [0]))
            self._full.append(self._current)
            self._current = self._open()

    def finish(self, documents: Documents | ExportedDocuments, proof: parquet.Proof) -> Receipt:
        """Bring what is left to the disk as the tail; return the receipt of it all."""
        context, tail, counts = self._order.context, self._current, documents.counts()
        tail.finish()
        for syncing in self._syncing:
            syncing.result()
        written = sum(writer.tokens for writer in self._full) + tail.tokens
        _refuse_other_count(self._order.source.path, written, counts.tokens)
        return Receipt(
            recipe_id=context.recipe_id,
            path=self._order.source.path,
            source_bytes=proof.bytes,
            source_sha256=proof.sha256,
            source_mtime_ns=proof.mtime_ns,
            counts=counts,
            shards=tuple(self._lines()),
            tail=Tail(
                tokens=tail.tokens,
                documents=tail.documents,
                bytes=tail.body.bytes,
                sha256=tail.body.sha256,
                index_bytes=tail.index.bytes,
                index_sha256=tail.index.sha256,
            ),
            session=context.session,
            audited=documents.audited,
        )

    def publish(self, folder: RunFolder) -> None:
        """Give all files their final names, durably."""
        for writer, line in zip(self._full, self._lines(), strict=True):
            writer.publish(layout.shard(line.name), layout.index(line.name))
            self._reporter.beat()  # Not a place to stop: some files have their names, and no receipt.
        if self._current.tokens:
            self._current.publish(layout.tail(self._order.key), layout.tail_index(self._order.key))
        for changed in (folder.index, folder.path, folder.tails):
            atomic.sync_folder(changed)

    def _open(self) -> ShardWriter:
        size = next(self._sizes)
        promised = 0 if size == cutting.UNBOUNDED else size
        context = self._order.context
        writer = ShardWriter(
            self._folder.store,
            self._order.key,
            context.rules,
            promised,
            context.threads,
            self._reporter.check,
        )
        return self._unpublished.enter_context(writer)

    def _lines(self) -> Iterator[ShardLine]:
        """Yield the receipt's lines of the finished blocks."""
        order = self._order
        rules = order.context.rules
        for block, writer in enumerate(self._full):
            is_val = block == 0 and cutting.has_validation(rules, order.source_index)
            split: layout.Split = "val" if is_val else "train"
            plain = order.context.plain_names
            name = layout.job_shard(rules, split, order.source_index, block, plain=plain)
            yield _shard_line(writer, name, split, ((order.source_index, 0),))


def _documents(order: ConvertOrder, reporter: Reporter) -> Documents | ExportedDocuments:
    """Return what reads the source; its tokenizer, which all sources need, is loaded then."""
    try:
        found: Documents | ExportedDocuments
        if order.exported is None:
            found = Documents(order, reporter)
        else:
            found = ExportedDocuments(order, order.exported, reporter)
    except OutputError:
        raise
    except BaseException as error:
        reason = (
            str(error) if isinstance(error, FwconvertError) else f"{type(error).__name__}: {plain(error)}"
        )
        raise _Unready(
            message(
                "a worker process cannot load its tokenizer",
                "mend this, then run the same command again: it goes on where it stopped",
                tokenizer=order.context.rules.tokenizer,
                encoder=order.context.encoder,
                reason=reason,
            )
        ) from error
    reporter.check()  # The first sign of life: from here on it is the order that may fail.
    return found


def _beating(batches: Iterator[cutting.Batch], reporter: Reporter) -> Iterator[cutting.Batch]:
    """Yield the batches, with a sign of life for each: one without a document makes no piece."""
    for batch in batches:
        reporter.check()
        yield batch


def _prove(order: ConvertOrder, reporter: Reporter) -> parquet.Proof:
    """Hash the source, unless whoever fetched it has, and compare it with what is known of it."""
    wanted = order.source
    if order.exported is not None:
        # No decision rests on the time alone: whoever has the file will hash it.
        proof = parquet.Proof(order.exported.sha256, order.exported.bytes, 0)
    elif order.proven and wanted.sha256 is not None:
        proof = parquet.look(order.file, wanted.sha256)
    else:
        proof = parquet.prove(order.file, reporter.check)
    if proof.bytes != wanted.bytes or wanted.sha256 not in (None, proof.sha256):
        raise SourceError(
            message(
                "a source file is not the one that was asked for",
                "fetch it again, then run the same command again",
                file=order.file,
                wanted=f"{wanted.bytes:,} bytes, sha256 {wanted.sha256 or 'any'}",
                found=f"{proof.bytes:,} bytes, sha256 {proof.sha256}",
            )
        )
    return proof


def _shard_line(
    writer: ShardWriter, name: str, split: str, segments: tuple[tuple[int, int], ...]
) -> ShardLine:
    return ShardLine(
        name=name,
        split=split,
        tokens=writer.tokens,
        documents=writer.documents,
        bytes=writer.file.bytes,
        sha256=writer.file.sha256,
        index_sha256=writer.index.sha256,
        segments=segments,
        sidecars=tuple(Sidecar(file, made.bytes, made.sha256) for file, made in writer.sidecars(name)),
    )
