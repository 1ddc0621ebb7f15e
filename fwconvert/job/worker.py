"""Carry out one order, from its source to its receipt.

A worker is given names and plain values, loads its tokenizer itself, and
publishes its receipt as the last thing. It never raises: whatever goes wrong
comes back as a Failure, so that no exception has to survive the way between
processes (tiktoken's PanicException, a BaseException, would not).

`convert` is the whole loop of a job, `join` that of a joined shard.
"""

import traceback
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import tee
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from fwconvert.addresses import plain
from fwconvert.errors import (
    FwconvertError,
    ManifestError,
    OutputError,
    ShardError,
    SourceError,
    Stopped,
    message,
)
from fwconvert.job.encoded import EncodedSource, load_tokenizer
from fwconvert.job.existing import ExistingTokens
from fwconvert.job.orders import ConvertOrder, Failure, JoinOrder, Order, Outcome, Reporter
from fwconvert.job.statistics import Gathering
from fwconvert.recipes import Rules
from fwconvert.shards import cutting
from fwconvert.shards.cutting import Piece
from fwconvert.shards.shard import (
    ShardWriter,
    map_array,
    numpy_type,
    opened,
    read_array,
    read_index,
    tail_index_type,
    token_count,
)
from fwconvert.sources.reading import Proof
from fwconvert.store import layout, receipts
from fwconvert.store.base import Store
from fwconvert.store.local import open_store
from fwconvert.store.receipts import Absorbed, Counts, JoinReceipt, Receipt, Segment, ShardLine, Sidecar, Tail

__all__ = ["convert", "join", "joined_pieces", "load_tokenizer", "perform"]

# Full blocks that may be on their way to the disk.
_MOST_SYNCING = 4


class TokenSource(Protocol):
    """The documents of one source shard as tokens, wherever they come from."""

    # What was seen so far, and how many documents the reference has encoded too.
    counts: Counts
    audited: int

    def prove(self) -> Proof:
        """Return the sha256 and the size of the source; may take as long as reading it."""

    def batches(self) -> Iterator[cutting.Batch]:
        """Yield the documents in order, each with its separator, up to the run's limit."""

    def check_unchanged(self, proof: Proof) -> None:
        """Raise SourceError if what was read is not what was proven."""


class _CannotBegin(Exception):
    """What every order needs cannot be loaded."""


def perform(order: Order, reporter: Reporter) -> Outcome:
    """Carry out an order; return its receipt, already published, or the Failure."""
    try:
        return convert(order, reporter) if isinstance(order, ConvertOrder) else join(order, reporter)
    except Stopped as error:
        return Failure("stopped", str(error))
    except OutputError as error:
        return Failure("output", str(error), plain(traceback.format_exc()))
    except _CannotBegin as error:
        return Failure("unready", str(error), plain(traceback.format_exc()))
    except BaseException as error:  # noqa: BLE001  # the one place that must survive everything
        return Failure("job", _reason(error), plain(traceback.format_exc()))


def convert(order: ConvertOrder, reporter: Reporter) -> Receipt:
    """Convert one source shard. Its files get their names together, at the end, and the receipt follows.

    Tokens are cut into blocks. A block that is full is a token shard, brought to
    the disk while the next one fills; what is left in the last one is the tail.
    """
    context = order.context
    store = open_store(context.run, context.session, context.scratch)
    source = _open_source(order, store, reporter)
    reporter.check()  # The first sign of life: from here on it is the order that may fail.

    with ExitStack() as drafts, ThreadPoolExecutor(2) as background:
        proving = background.submit(_prove, order, source)
        if order.source.sha256 is not None:
            proving.result()  # What can be proven is not read before it is.

        sizes, promised = tee(cutting.block_sizes(context.rules, order.source_index))
        gathering = Gathering(order)
        writers = (_writer(order, store, size, reporter) for size in promised)
        blocks, syncing = [drafts.enter_context(next(writers))], deque[Future[None]]()
        for piece in cutting.cut(gathering.watching(source.batches()), sizes):
            blocks[-1].write(piece)
            if piece.ends_block:
                # A disk that cannot keep up is waited for: each block has files open and memory.
                while len(syncing) >= _MOST_SYNCING:
                    syncing.popleft().result()
                syncing.append(background.submit(blocks[-1].complete, [0]))
                blocks.append(drafts.enter_context(next(writers)))
            reporter.check()

        proof = proving.result()
        source.check_unchanged(proof)
        *full, tail = blocks
        tail.finish()
        for synced in syncing:
            synced.result()
        _refuse_other_count(order.title, sum(block.tokens for block in blocks), source.counts.tokens)
        receipt = _receipt(order, source, proof, full, tail)

        # Not a place to stop: from here on some files have their names, and there is no receipt.
        for block, line in zip(full, receipt.shards, strict=True):
            block.publish(layout.shard(line.name), layout.index(line.name), reporter.beat)
            reporter.beat()
        if tail.tokens:
            tail.publish(layout.tail(order.key), layout.tail_index(order.key), reporter.beat)
        store.settle(layout.INDEX, "", layout.TAILS)
    gathering.publish(store, receipt.counts)
    receipts.publish(store, receipt)
    return receipt


def join(order: JoinOrder, reporter: Reporter) -> JoinReceipt:
    """Make one joined shard from tails."""
    store = open_store(order.context.run, order.context.session, order.context.scratch)
    reporter.check()
    # Where there is no lock, another session may have made it meanwhile, and removed its tails.
    made = _made_by_another(store, order)
    if made is not None:
        return made
    try:
        return _join(store, order, reporter)
    except ShardError:
        made = _made_by_another(store, order)
        if made is None:
            raise
        return made


def _made_by_another(store: Store, order: JoinOrder) -> JoinReceipt | None:
    if not store.is_atomic:
        return None
    try:
        made = receipts.read(store, layout.join_receipt(order.name), JoinReceipt, order.context.recipe_id)
    except ManifestError:
        return None
    is_same = (made.segments, made.taken) == (order.segments, order.absorbed)
    return made if is_same and not receipts.shard_problem(store, order.context.rules, made.shard) else None


def _join(store: Store, order: JoinOrder, reporter: Reporter) -> JoinReceipt:
    context = order.context
    for key in order.spent:
        store.remove(layout.tail(key), layout.tail_index(key))
        reporter.beat()

    with _writer(order, store, order.size, reporter) as writer:
        for piece in joined_pieces(store, order):
            writer.write(piece)
            reporter.show(writer.tokens, order.size)
            reporter.show_text(writer.tokens, 0)
            reporter.check()
        _refuse_other_count(order.title, writer.tokens, order.size)
        writer.complete([first for _, first in order.places])
        line = _shard_line(writer, order.name, order.split, order.places)
        writer.publish(layout.shard(order.name), layout.index(order.name), reporter.beat)
    store.settle(layout.INDEX, "")

    receipt = JoinReceipt(
        context.recipe_id, order.segments, line, context.session, absorbed=order.absorbed or msgspec.UNSET
    )
    receipts.publish(store, receipt)
    return receipt


def _writer(order: Order, store: Store, tokens: int, reporter: Reporter) -> ShardWriter:
    """Return a writer of one block, whose header promises this many tokens; one that is unbounded, none."""
    tokens = 0 if tokens == cutting.UNBOUNDED else tokens
    context = order.context
    return ShardWriter(store, order.key, context.rules, tokens, context.threads, reporter.check)


def _open_source(order: ConvertOrder, store: Store, reporter: Reporter) -> TokenSource:
    """Return the source of the order's tokens; the tokenizer, which all orders need, is loaded then."""
    try:
        if order.exported is not None:
            return ExistingTokens(order, order.exported, reporter)
        return EncodedSource(order, store, reporter)
    except OutputError:
        raise
    except BaseException as error:
        raise _CannotBegin(
            message(
                "a worker process cannot load its tokenizer",
                "fix this, then run the same command again: it continues where it stopped",
                tokenizer=order.context.rules.tokenizer,
                encoder=order.context.encoder,
                reason=_reason(error),
            )
        ) from error


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, FwconvertError) else f"{type(error).__name__}: {plain(error)}"


def _prove(order: ConvertOrder, source: TokenSource) -> Proof:
    """Return the proof of the source, or raise SourceError if it is not the one in the recipe."""
    proof, wanted = source.prove(), order.source
    if proof.bytes != wanted.bytes or wanted.sha256 not in (None, proof.sha256):
        raise SourceError(
            message(
                "a source file is not the one that was asked for",
                "fetch it again, then run the same command again",
                file=order.file.path,
                wanted=f"{wanted.bytes:,} bytes, sha256 {wanted.sha256 or 'any'}",
                found=f"{proof.bytes:,} bytes, sha256 {proof.sha256}",
            )
        )
    return proof


def _refuse_other_count(title: str, written: int, wanted: int) -> None:
    """Raise ShardError if tokens were lost or doubled on the way: nothing of it may get a name."""
    if written != wanted:
        wrong = "not as many tokens were written as there are; nothing was published"
        raise ShardError(message(wrong, of=title, written=f"{written:,}", wanted=f"{wanted:,}"))


def _receipt(
    order: ConvertOrder, source: TokenSource, proof: Proof, full: list[ShardWriter], tail: ShardWriter
) -> Receipt:
    context, index, lines = order.context, order.source_index, []
    for number, block in enumerate(full):
        is_val = number == 0 and cutting.has_validation(context.rules, index)
        split: layout.Split = "val" if is_val else "train"
        name = layout.job_shard(context.rules, split, index, number, plain=context.plain_names)
        lines.append(_shard_line(block, name, split, ((index, 0),)))
    return Receipt(
        recipe_id=context.recipe_id,
        path=order.source.path,
        source_bytes=proof.bytes,
        source_sha256=proof.sha256,
        source_mtime_ns=proof.mtime_ns,
        counts=source.counts,
        shards=tuple(lines),
        tail=Tail(
            tokens=tail.tokens,
            documents=tail.documents,
            bytes=tail.body.bytes,
            sha256=tail.body.sha256,
            index_bytes=tail.index.bytes,
            index_sha256=tail.index.sha256,
        ),
        session=context.session,
        audited=source.audited,
    )


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


# Tokens copied at a time: a few MB.
_STEP = 2**21


def joined_pieces(store: Store, order: JoinOrder) -> Iterator[Piece]:
    """Yield the tokens and the document starts of a joined shard: a job's shard, if any, then the tails."""
    rules = order.context.rules
    if order.absorbed:
        yield from _absorbed_pieces(store, order.absorbed, rules)
    proofs = order.proofs or (("", ""),) * len(order.tails)
    for segment, key, (sha256, index_sha256) in zip(order.segments, order.tails, proofs, strict=True):
        with (
            store.on_disk(layout.tail(key), sha256) as tail,
            store.on_disk(layout.tail_index(key), index_sha256) as index,
        ):
            read = _tail_reader(tail, rules, segment)
            yield from _pieces(read, map_array(index, tail_index_type(rules), 0), segment)


# Reads the tokens from one position to another; it is asked for all of them in sequence.
Read = Callable[[int, int], NDArray[Any]]


def _absorbed_pieces(store: Store, absorbed: Absorbed, rules: Rules) -> Iterator[Piece]:
    """Yield a token shard. It is read, because what is mapped or unpacked whole counts as memory."""
    kind, whole = numpy_type(rules.token_type), Segment(absorbed.source, 0, 0, absorbed.tokens)
    with (
        store.on_disk(layout.shard(absorbed.name)) as path,
        store.on_disk(layout.index(absorbed.name)) as index_path,
    ):
        _check_length(path, token_count(path, rules.token_type, rules.shard_format), whole)
        index = read_index(index_path, rules.shard_format)
        with opened(path, rules) as file:
            file.read(rules.shard_format.header_bytes)
            yield from _pieces(
                lambda begin, end: np.frombuffer(file.read((end - begin) * kind.itemsize), kind), index, whole
            )


def _tail_reader(path: Path, rules: Rules, segment: Segment) -> Read:
    """Return a reader of a tail. It does not map it, because what is mapped counts as memory."""
    kind, header_bytes = numpy_type(rules.token_type), rules.shard_format.header_bytes
    _check_length(path, len(map_array(path, kind, header_bytes)), segment)
    return lambda begin, end: read_array(path, kind, header_bytes + begin * kind.itemsize, end - begin)


def _check_length(path: Path, tokens: int, segment: Segment) -> None:
    if segment.start + segment.tokens > tokens:
        raise ShardError(message("a file is shorter than its receipt says", file=path))


def _pieces(read: Read, index: NDArray[Any], segment: Segment) -> Iterator[Piece]:
    stop, starts = segment.start + segment.tokens, index["start"]
    for begin in range(segment.start, stop, _STEP):
        end = min(begin + _STEP, stop)
        first, last = bisect_left(starts, begin), bisect_left(starts, end)
        yield Piece(
            tokens=read(begin, end),
            starts=starts[first:last].astype(np.int64) + (segment.first - segment.start),
            rows=index["row"][first:last],
            ends_block=False,
        )
