"""Where orders are carried out: spawned processes on this machine.

N slots, each a ProcessPoolExecutor of one worker. One pool of N would lose
innocents: when a worker is killed, every order in its pool is lost and nobody
can tell which of them did it.

Workers never import the caller's script. Spawn would run it again in each of
them, which is the bootstrap crash that every unguarded conversion script meets.
"""

import os
import signal
import time
import traceback
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from ctypes import c_int64
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol, Self, TypeVar

from fwconvert import files, machine, processes
from fwconvert.addresses import plain
from fwconvert.errors import FwconvertError, message
from fwconvert.job import process
from fwconvert.job.orders import Failure, JoinOrder, Order, Outcome
from fwconvert.job.process import BEAT, DONE, STOP, TEXT_BYTES, TOKENS, TOTAL, Board
from fwconvert.processes import NO_START, ProcessLimits, cannot_start, ended_by

A = TypeVar("A")
R = TypeVar("R")

# Where the last words of a worker are looked for, at the end of its log.
_LOG_BYTES = 2**16


@dataclass(frozen=True)
class Progress:
    """How far one order in flight is. `fraction` goes from 0 to 1."""

    order: Order
    fraction: float
    tokens: int
    text_bytes: int

    @property
    def tokens_made(self) -> int:
        """How many tokens the order has made so far, by encoding or by joining."""
        return int(self.fraction * self.order.tokens) if isinstance(self.order, JoinOrder) else self.tokens


class Engine(Protocol):
    """Carries out orders side by side. The driver owns retries, so that every engine behaves alike."""

    slots: int

    def submit(self, order: Order) -> "Future[Outcome]":
        """Start an order on a free slot."""

    def outcome(self, future: "Future[Outcome]") -> Outcome:
        """Return what became of a finished order; a dead worker is a Failure too."""

    def progress(self) -> list[Progress]:
        """Return how far the orders in flight are."""

    def police(self) -> None:
        """End workers that have stalled or grown beyond their limits; called several times a second."""

    def stop(self) -> None:
        """Ask all workers to stop at the next safe place."""

    def kill(self) -> None:
        """End all workers at once."""


@dataclass
class _Slot:
    board: Board
    log: Path
    executor: ProcessPoolExecutor | None = None
    process: BaseProcess | None = None
    order: Order | None = None
    future: "Future[Outcome] | None" = None
    # The worker's last sign of life and when it was seen; why we ended it, if we did.
    beat: int = -1
    beat_at: float = 0.0
    verdict: Failure | None = None

    @property
    def free(self) -> bool:
        # Until its outcome has been asked for, a finished order still has its slot.
        return self.future is None


@dataclass
class LocalEngine:
    """Spawned processes on this machine; made when first needed, all gone after the `with` block."""

    slots: int
    logs: Path
    session: str
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    _slots: list[_Slot] = field(default_factory=list)

    def __enter__(self) -> Self:
        processes.open_standard_streams()  # A program that calls us may be a daemon.
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        # All end at the same time, and each is waited for: a pool that still ends when Python does
        # may meet a closed pipe, and prints a traceback.
        try:
            with ThreadPoolExecutor(max(1, len(self._slots))) as ends:
                list(ends.map(_retire, self._slots))
        except RuntimeError:  # No thread can be started: one after the other, then.
            for slot in self._slots:
                _retire(slot)
        for slot in self._slots:
            with suppress(OSError):
                if slot.log.stat().st_size == 0:
                    slot.log.unlink()

    def submit(self, order: Order) -> "Future[Outcome]":
        """Start an order on a free slot, with a new worker if no free slot has one."""
        free = sorted((slot for slot in self._slots if slot.free), key=lambda slot: slot.executor is None)
        slot = free[0] if free else self._add_slot()
        for at in range(1, len(slot.board)):
            slot.board[at] = 0
        slot.order, slot.verdict = order, None
        slot.beat, slot.beat_at = -1, time.monotonic()
        try:
            slot.future = self._hand_to_worker(slot, order)
        except NO_START as error:
            slot.future = Future()
            slot.future.set_result(Failure("unready", cannot_start(error)))
        return slot.future

    def _hand_to_worker(self, slot: _Slot, order: Order) -> "Future[Outcome]":
        if slot.executor is not None:
            try:
                return slot.executor.submit(_carry_out, order)
            except BrokenProcessPool:  # It died while it was idle.
                _retire(slot)
        executor = processes.executor_of_one(process.start, slot.board, str(slot.log))
        future, slot.process = processes.start(executor, _carry_out, order)
        slot.executor = executor
        return future

    def outcome(self, future: "Future[Outcome]") -> Outcome:
        """Return what became of a finished order; rebuild its slot if the worker died."""
        slot = next(slot for slot in self._slots if slot.future is future)
        slot.future = None
        try:
            return future.result()
        except BrokenProcessPool:
            _retire(slot)
            failure = slot.verdict or _lost(slot)
            return failure if slot.board[BEAT] else replace(failure, kind="unready")

    def progress(self) -> list[Progress]:
        """Return how far the orders in flight are, as the workers' boards say."""
        busy = [(slot.order, slot.board) for slot in self._slots if slot.order and not slot.free]
        return [
            Progress(order, board[DONE] / max(1, board[TOTAL]), board[TOKENS], board[TEXT_BYTES])
            for order, board in busy
        ]

    def police(self) -> None:
        """End workers that have stalled or grown beyond their limits."""
        for slot in self._slots:
            if slot.free or slot.process is None or slot.verdict is not None:
                continue
            slot.verdict = self._too_large(slot.process.pid) or self._stalled(slot)
            if slot.verdict is not None:
                slot.process.kill()

    def _too_large(self, pid: int | None) -> Failure | None:
        most, now = self.limits.memory_bytes, machine.resident_bytes(pid)
        if most is None or now is None or now <= most:
            return None
        text = message(
            "the worker process needed too much memory and was ended",
            "if the source is sound, allow more with --worker-memory, with fewer --workers",
            had=f"{now:,} bytes",
            allowed=f"{most:,} bytes",
        )
        return Failure("job", text)

    def _stalled(self, slot: _Slot) -> Failure | None:
        now, beat = time.monotonic(), slot.board[BEAT]
        if beat != slot.beat:
            slot.beat, slot.beat_at = beat, now
        most = self.limits.stall_seconds
        if most is None or now - slot.beat_at <= most:
            return None
        text = message(
            "the worker process made no progress and was ended",
            "look at the disk and at the source; if both are sound, allow more with --stall-timeout",
            waited=f"{now - slot.beat_at:,.0f} s",
            done=f"{slot.board[DONE] / max(1, slot.board[TOTAL]):.0%}",
        )
        return Failure("job", text)

    def stop(self) -> None:
        """Ask all workers to stop at the next safe place."""
        for slot in self._slots:
            slot.board[STOP] = 1

    def kill(self) -> None:
        """End all workers at once."""
        for slot in self._slots:
            if slot.process is not None:
                slot.process.kill()

    def _add_slot(self) -> _Slot:
        log = self.logs / f"{self.session}-worker-{len(self._slots)}.log"
        try:
            slot = _Slot(processes.SPAWN.RawArray(c_int64, process.BOARD_SIZE), log)
        except NO_START as error:  # It lies in a file.
            raise FwconvertError(cannot_start(error)) from error
        self._slots.append(slot)
        return slot


def _carry_out(order: Order) -> Outcome:
    try:
        from fwconvert.job.worker import perform  # noqa: PLC0415  # heavy (pyarrow, tokenizer): in the worker only
    except (ImportError, OSError, MemoryError) as error:
        return Failure("unready", cannot_start(error), plain(traceback.format_exc()))
    return perform(order)


def _retire(slot: _Slot) -> None:
    if slot.executor is not None:
        slot.executor.shutdown(wait=True, cancel_futures=True)
        slot.executor = None


def _lost(slot: _Slot) -> Failure:
    code = slot.process.exitcode if slot.process is not None else None
    killed = code == -int(getattr(signal, "SIGKILL", 9))
    hint = "the kernel kills the largest process when memory runs out" if killed else _last_line(slot.log)
    wrong = "the worker process died" if slot.board[BEAT] else "a worker process died before it could begin"
    text = message(wrong, ended_by=ended_by(code), hint=hint)
    return Failure("lost", text, killed=killed)


def _last_line(log: Path) -> str:
    with suppress(OSError), files.open_to_read(log) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
        lines = (file.read(_LOG_BYTES) or b"").decode(errors="replace").strip().splitlines()
        return next((line for line in reversed(lines) if "rror" in line), f"see {log}")
    return "none"
