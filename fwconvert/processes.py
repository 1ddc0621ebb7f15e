"""Spawned processes: how they are started, how they end, and a call in one of its own.

They never import the caller's script. Spawn would run it again in each of
them, which is the bootstrap crash that every unguarded conversion script meets.
"""

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, parent_process, util
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fwconvert import files, machine
from fwconvert.addresses import plain
from fwconvert.errors import EndedApart, FwconvertError, UsageError, message

A = TypeVar("A")
R = TypeVar("R")

# Ctrl-C and a lost terminal reach the whole group; the driver decides. Windows has no SIGHUP.
STOPPING = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}

SPAWN = multiprocessing.get_context("spawn")
# Two runs in two threads must not hide the main module from each other.
_STARTING = threading.Lock()
# What comes of starting a process where that cannot be; a thread that cannot be started is a RuntimeError.
NO_START = (OSError, MemoryError, RuntimeError)
# What this process has open: for each worker the ends of three pipes and of the two that a spawned process
# keeps; for a file on its way the file itself and its connection, with room for a new one; and all else.
_FILES_FOR_A_WORKER = 8
_FILES_FOR_A_FETCH = 4
_FILES_FOR_ALL_ELSE = 32
# Between two looks at a process that is guarded: a parser takes 2 GB in a second.
_GUARD_SECONDS = 0.02
# What a worker, which has the limit of this process, may need for itself.
_FILES_OF_A_WORKER = 64


@dataclass(frozen=True)
class ProcessLimits:
    """Beyond how much memory, and after how long without a sign of life, a process is ended. None: never."""

    memory_bytes: int | None = None
    stall_seconds: float | None = None


def open_standard_streams() -> None:
    """Put the null device in the place of standard streams that are closed, as daemons start programs.

    Otherwise the next files to be opened get their numbers, 0 to 2, and what is
    printed goes into those. A number that a file of the program has got already
    stays with it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # Those below it are open, so this is the number that it gets.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


# Whether nobody but us runs anything in this process.
_is_ours = False


def claim() -> None:
    """Say that nobody but us runs anything in this process."""
    global _is_ours  # noqa: PLW0603  # a process becomes ours once
    _is_ours = True


def is_ours() -> bool:
    """Return whether this process was started by us, for us alone."""
    return _is_ours


def prepare(log: str) -> None:
    """Make a new process one of ours; runs once, before its first call."""
    claim()
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # The driver blocked them while it started us.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    # numpy would start a thread for every core, in every worker, to multiply matrices; there are none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parent = _parent_sentinel()
    print_into(log)
    util.Finalize(None, _end_quickly, exitpriority=0)
    if parent is not None:
        threading.Thread(target=_end_with_parent, args=[parent], daemon=True).start()


def executor_of_one(
    initializer: Callable[..., None], *given: Any, context: BaseContext = SPAWN
) -> ProcessPoolExecutor:
    """Return an executor of one process, which begins with a call of `initializer`."""
    open_standard_streams()  # Its pipes must not get their numbers, which mean something else in the process.
    # The first pool starts Python's resource tracker, which lives through a SIGHUP that it finds blocked.
    # By itself, not with the process: having started the tracker, Python unblocks the other signals.
    with _signals_held():
        return ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=initializer, initargs=given)


def start(
    executor: ProcessPoolExecutor, function: Callable[[A], R], argument: A
) -> "tuple[Future[R], BaseProcess | None]":
    """Call a function in the new process of an executor; return its future, and the process."""
    with _STARTING, _signals_held(), _main_hidden():
        before = set(multiprocessing.active_children())
        try:
            future = executor.submit(function, argument)
        except BaseException:
            for started in set(multiprocessing.active_children()) - before:
                started.kill()  # Nobody is going to tell it to end.
            raise
        return future, next(iter(set(multiprocessing.active_children()) - before), None)


def start_apart(function: Callable[..., None], *given: object) -> BaseProcess:
    """Call a function in a new process, which the caller ends; `function` calls `prepare` first."""
    open_standard_streams()
    with _STARTING, _signals_held(), _main_hidden():
        process = SPAWN.Process(target=function, args=given)
        process.start()
    return process


class CallApart(Protocol):
    """Calls a function in a process that it may end; see `call_apart`, which starts one for it."""

    def __call__(self, function: Callable[[A], R], argument: A, limits: ProcessLimits) -> R:
        """Return what the function returns, or raise what it raises; EndedApart if its process ended."""


def call_apart(function: Callable[[A], R], argument: A, limits: ProcessLimits) -> R:
    """Return what a function returns, or raise what it raises, called in a process of its own.

    For what may want any amount of memory or time, or end its process: beyond
    the limits the process is ended, and EndedApart is raised. FwconvertError
    means that none can be started.
    """
    try:
        executor = executor_of_one(prepare, os.devnull)
        future, started = start(executor, function, argument)
    except NO_START as error:
        raise FwconvertError(cannot_start(error)) from error
    try:
        return guarded(future, executor, started, limits)
    finally:
        executor.shutdown()


def guarded(
    future: "Future[R]", executor: ProcessPoolExecutor, started: BaseProcess | None, limits: ProcessLimits
) -> R:
    """Wait for what a process of an executor of one was given; EndedApart: it has ended, or was ended."""
    begun = time.monotonic()
    try:
        while not wait([future], _GUARD_SECONDS).done:
            had = machine.resident_bytes(started.pid) if started is not None else None
            if limits.memory_bytes is not None and (had or 0) > limits.memory_bytes:
                raise EndedApart(f"its process wanted more than {limits.memory_bytes:,} bytes of memory")
            if limits.stall_seconds is not None and time.monotonic() - begun > limits.stall_seconds:
                raise EndedApart(f"no answer in {limits.stall_seconds:,.0f} s")
        return future.result()
    except BrokenProcessPool:
        executor.shutdown()
        ended = ended_by(started.exitcode if started is not None else None)
        raise EndedApart(f"its process was ended by {ended}") from None
    finally:
        if started is not None and not future.done():
            started.kill()


def check_open_files(workers: int, fetches: int) -> None:
    """Raise UsageError unless this process may have as many files open as so many workers need.

    Its limit is raised as far as needed, if the system allows it.
    """
    others = _FILES_FOR_ALL_ELSE + fetches * _FILES_FOR_A_FETCH
    needed = others + workers * _FILES_FOR_A_WORKER
    allowed = machine.allow_open_files(max(needed, _FILES_OF_A_WORKER))
    if allowed >= needed:
        return
    fit = (allowed - others) // _FILES_FOR_A_WORKER
    raise UsageError(
        message(
            "this many workers need more open files than the system allows",
            *([f"pass --workers {fit}"] if fit > 0 else []),
            f"allow more open files: ulimit -n {needed} (first its hard limit has to be raised)",
            workers=workers,
            open_files_needed=f"{needed:,}",
            open_files_allowed=f"{allowed:,}",
            workers_that_fit=max(0, fit),
        )
    )


def cannot_start(error: BaseException) -> str:
    """Return what to say where a process cannot be started."""
    return message(
        "a worker process cannot be started",
        "free some memory, or allow more processes (ulimit -u), or pass fewer --workers;"
        " then run the same command again: it continues where it stopped",
        reason=f"{type(error).__name__}: {plain(error)}",
    )


def ended_by(code: int | None) -> str:
    """Return by what a process of this exit code was ended."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return "an unknown cause" if code is None else f"exit code {code}"


def print_into(log: str) -> None:
    """Send what libraries print (a Rust panic, a segmentation fault) to the log, not to the screen."""
    open_standard_streams()  # The log must not get one of their numbers, and be closed with it.
    try:
        file = files.open_to_write(Path(log), append=True)
    except OSError:
        # A disk that is full must not cost the worker; its output says so soon enough. Nor must somebody
        # who lays a link there: then nothing is kept of what is printed.
        file = open(os.devnull, "wb", buffering=0)  # noqa: PTH123, SIM115
    with file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable(2)


def _parent_sentinel() -> int | None:
    """Return what becomes ready when the parent is gone, under a number that no standard stream has.

    A spawned process keeps it under the lowest number that is free when it
    starts. That is the number of a stream if in the parent a file has that
    number, which is closed in the new process: a daemon's own file, say. The
    log would take its place, and the parent seem to be gone.
    """
    parent = parent_process()
    if parent is None:
        return None
    if sys.platform == "win32":  # There it is a handle, and has no such number.
        return parent.sentinel
    import fcntl  # noqa: PLC0415  # absent on Windows

    return fcntl.fcntl(parent.sentinel, fcntl.F_DUPFD_CLOEXEC, 3)


def _end_with_parent(sentinel: int) -> None:
    """End this process as soon as its parent is gone; a plain spawned worker would live on."""
    connection.wait([sentinel])
    os._exit(1)


def _end_quickly() -> None:
    """End a process that has nothing left to do. Taking its interpreter apart would free word by word."""
    if sys.exc_info()[0] is None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Let a new process begin with the signals that stop us blocked; it unblocks them once it ignores them.

    Otherwise a Ctrl-C during its start-up would print a traceback of Python's own.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _main_hidden() -> Iterator[None]:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
