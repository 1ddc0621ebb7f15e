"""Orders carried out by spawned processes on this machine.

N slots, each a ProcessPoolExecutor of one worker. With one pool of N a killed
worker would take the orders of all others with it, and the blame could not be
placed.

Workers never import the caller's script. Spawn would run it again in each of
them, which is the bootstrap crash that every unguarded conversion script meets.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from ctypes import c_int64
from dataclasses import dataclass, field, replace
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self, TypeVar

from fwconvert import files, machine, processes
from fwconvert.errors import EndedApart, FwconvertError, Stopped, message
from fwconvert.job.orders import Failure, NoReporter, Order, Outcome, Reporter, RunContext
from fwconvert.processes import NO_START, ProcessLimits, cannot_start, ended_by
from fwconvert.run.engines import Progress, carry_out, load, stalled, too_large
from fwconvert.store import layout
from fwconvert.store.local import open_store

A = TypeVar("A")
R = TypeVar("R")

# The end of a worker's log, in which the reason for its death is looked for.
_LOG_BYTES = 2**16

# The numbers on a board. BEAT counts on while the worker lives; it is 0 until the worker has begun an order.
_STOP, _DONE, _TOTAL, _TOKENS, _TEXT_BYTES, _BEAT = range(6)


class Board:
    """A few integers shared with one worker; the worker's Reporter.

    Written without a lock: a worker that is killed would leave a lock (or a
    queue) closed for ever.
    """

    def __init__(self, context: BaseContext) -> None:
        self._numbers = context.RawArray(c_int64, _BEAT + 1)

    def show(self, done: int, total: int) -> None:
        """Report how much of the order is done."""
        self._numbers[_DONE] = done
        self._numbers[_TOTAL] = total

    def show_text(self, tokens: int, text_bytes: int) -> None:
        """Report how many tokens the order has made so far, and from how much text."""
        self._numbers[_TOKENS] = tokens
        self._numbers[_TEXT_BYTES] = text_bytes

    def beat(self) -> None:
        """Report that the worker is alive."""
        self._numbers[_BEAT] += 1

    def check(self) -> None:
        """Report that the worker is alive; raise Stopped if it is asked to stop."""
        self.beat()
        if self._numbers[_STOP]:
            raise Stopped("stopped by the user")

    def ask_to_stop(self) -> None:
        """Ask the worker to stop at the next safe place; holds for its later orders too."""
        self._numbers[_STOP] = 1

    def clear(self) -> None:
        """Forget the last order, for the next one."""
        for at in range(_DONE, len(self._numbers)):
            self._numbers[at] = 0

    @property
    def beats(self) -> int:
        """How often the worker has shown that it is alive; 0 until it has begun the order."""
        return self._numbers[_BEAT]

    @property
    def fraction(self) -> float:
        """How much of the order is done."""
        return self._numbers[_DONE] / max(1, self._numbers[_TOTAL])

    @property
    def tokens(self) -> int:
        """How many tokens the order has made so far."""
        return self._numbers[_TOKENS]


@dataclass
class _Slot:
    board: Board
    # Where its worker prints; None until there is a run to print for.
    log: Path | None = None
    executor: ProcessPoolExecutor | None = None
    process: BaseProcess | None = None
    order: Order | None = None
    future: "Future[Outcome] | None" = None
    # The worker's last sign of life and when it was seen; why we killed it, if we did.
    beats: int = -1
    beat_at: float = 0.0
    killed_for: Failure | None = None

    @property
    def is_free(self) -> bool:
        # Until its outcome has been asked for, a finished order still has its slot.
        return self.future is None


@dataclass
class LocalEngine:
    """Spawned processes on this machine; started when first needed, all gone after the `with` block.

    Starting one takes half a second, nearly all for imports. So a run that is
    going to need workers may start them while it does something else.
    """

    slots: int
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    # How processes are started. Where everything is loaded already and no thread is running,
    # multiprocessing.get_context("fork") saves each of them a second.
    context: BaseContext = processes.SPAWN
    nodes: None = field(default=None, init=False)
    _slots: list[_Slot] = field(default_factory=list)
    _giving: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        # All end at the same time, and each is waited for: a pool that still ends when Python does
        # may meet a closed pipe, and prints a traceback.
        try:
            with ThreadPoolExecutor(max(1, len(self._slots))) as ends:
                list(ends.map(_shut_down, self._slots))
        except RuntimeError:  # No thread can be started: one after the other, then.
            for slot in self._slots:
                _shut_down(slot)
        for slot in self._slots:
            with suppress(OSError):
                if slot.log is not None and slot.log.stat().st_size == 0:
                    slot.log.unlink()
        self._slots.clear()

    def submit(self, order: Order) -> "Future[Outcome]":
        """Start an order on a free slot, with a new worker if no free slot has one."""
        free = [slot for slot in self._slots if slot.is_free]
        slot = min(free, key=lambda slot: slot.executor is None) if free else self._add_slot()
        slot.board.clear()
        slot.order, slot.killed_for = order, None
        slot.beats, slot.beat_at = -1, time.monotonic()
        try:
            self._have_log(slot, order.context)
            slot.future = self._give_to_worker(slot, _carry_out, order)
        except NO_START as error:
            slot.future = Future()
            slot.future.set_result(Failure("unready", cannot_start(error)))
        return slot.future

    def warm_up(self, workers: int, context: RunContext | None = None) -> None:
        """Have so many workers, at most one a slot, load what orders need: of a run, its tokenizer too.

        Nothing is lost if that fails: the orders meet the same trouble, and say so.
        """
        try:
            while len(self._slots) < min(workers, self.slots):
                self._add_slot()
            for slot in self._slots[: max(0, workers)]:
                if context is not None:
                    self._have_log(slot, context)
                if context is not None or slot.executor is None:
                    self._give_to_worker(slot, load, context)
        except (FwconvertError, *NO_START):
            return

    def call_apart(self, function: Callable[[A], R], argument: A, limits: ProcessLimits) -> R:
        """Call a function in the first worker, before there are orders; see processes.call_apart.

        A worker that survives it is one whose imports are done, and takes orders.
        """
        slot = self._slots[0] if self._slots else self._add_slot()
        try:
            future = self._give_to_worker(slot, function, argument)
        except NO_START as error:
            raise FwconvertError(cannot_start(error)) from error
        assert slot.executor is not None  # noqa: S101  # for mypy: it was just given something
        try:
            return processes.guarded(future, slot.executor, slot.process, limits)
        except EndedApart:
            _shut_down(slot)
            raise

    def _add_slot(self) -> _Slot:
        try:
            slot = _Slot(Board(self.context))
        except NO_START as error:  # Shared memory is a file.
            raise FwconvertError(cannot_start(error)) from error
        self._slots.append(slot)
        return slot

    def _have_log(self, slot: _Slot, context: RunContext) -> None:
        """Name the log of a worker, now that its run is known, and let one that has started print there."""
        if slot.log is not None:
            return
        logs = open_store(context.run, context.session, context.scratch).local(layout.LOGS)
        slot.log = logs / f"{context.session}-worker-{self._slots.index(slot)}.log"
        if slot.executor is not None:
            self._give_to_worker(slot, processes.print_into, str(slot.log))

    def _give_to_worker(self, slot: _Slot, function: Callable[[A], R], argument: A) -> "Future[R]":
        with self._giving:  # A slot has one worker, whichever thread is first to need it.
            if slot.executor is not None:
                try:
                    return slot.executor.submit(function, argument)
                except BrokenProcessPool:  # It died while it was idle.
                    _shut_down(slot)
            log = os.devnull if slot.log is None else str(slot.log)
            executor = processes.executor_of_one(_start_worker, slot.board, log, context=self.context)
            future, slot.process = processes.start(executor, function, argument)
            slot.executor = executor
            return future

    def outcome(self, future: "Future[Outcome]") -> Outcome:
        """Return what became of a finished order; a worker that died is replaced by the next order."""
        slot = next(slot for slot in self._slots if slot.future is future)
        slot.future = None
        try:
            return future.result()
        except BrokenProcessPool:
            _shut_down(slot)
            failure = slot.killed_for or _lost(slot)
            return failure if slot.board.beats else replace(failure, kind="unready")

    def progress(self) -> list[Progress]:
        """Return how far the orders in flight are, as the workers' boards say."""
        return [
            Progress.of(slot.order, slot.board.fraction, slot.board.tokens)
            for slot in self._slots
            if slot.order is not None and not slot.is_free
        ]

    def enforce_limits(self) -> None:
        """Kill workers that have stalled or grown beyond their limits."""
        for slot in self._slots:
            if slot.is_free or slot.process is None or slot.killed_for is not None:
                continue
            now, beats = time.monotonic(), slot.board.beats
            if beats != slot.beats:
                slot.beats, slot.beat_at = beats, now
            slot.killed_for = too_large(machine.resident_bytes(slot.process.pid), self.limits) or stalled(
                now - slot.beat_at, slot.board.fraction, self.limits
            )
            if slot.killed_for is not None:
                slot.process.kill()

    def stop(self) -> None:
        """Ask all workers to stop at the next safe place."""
        for slot in self._slots:
            slot.board.ask_to_stop()

    def kill(self) -> None:
        """End all workers at once."""
        for slot in self._slots:
            if slot.process is not None:
                slot.process.kill()


def _shut_down(slot: _Slot) -> None:
    if slot.executor is not None:
        slot.executor.shutdown(wait=True, cancel_futures=True)
        slot.executor = None


def _lost(slot: _Slot) -> Failure:
    code = slot.process.exitcode if slot.process is not None else None
    killed = code == -int(getattr(signal, "SIGKILL", 9))
    log = Path(os.devnull) if slot.log is None else slot.log
    hint = "the kernel kills the largest process when memory runs out" if killed else _last_error(log)
    wrong = "the worker process died" if slot.board.beats else "a worker process died before it could begin"
    return Failure("lost", message(wrong, ended_by=ended_by(code), hint=hint), killed=killed)


def _last_error(log: Path) -> str:
    with suppress(OSError), files.open_to_read(log) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
        lines = (file.read(_LOG_BYTES) or b"").decode(errors="replace").strip().splitlines()
        return next((line for line in reversed(lines) if "rror" in line), f"see {log}")
    return "none"


# In a worker process: its board. Shared memory is given to a process at its start, not with an order.
_reporter: Reporter = NoReporter()


def _start_worker(board: Board, log: str) -> None:
    global _reporter  # noqa: PLW0603  # a worker process has one board
    _reporter = board
    processes.prepare(log)


def _carry_out(order: Order) -> Outcome:
    return carry_out(order, _reporter)
