"""A worker process: its start, its end, and the board on which it shows how far it is.

Light on purpose: the driver imports it too.
"""

import faulthandler
import os
import signal
import sys
import threading
from contextlib import suppress
from ctypes import Array, c_int64
from multiprocessing import connection, parent_process
from pathlib import Path

from fwconvert import files
from fwconvert.errors import Stopped

if sys.platform != "win32":
    import resource

# A board is a few shared integers, written without a lock: a worker that is killed
# would leave a lock (or a queue) closed for ever.
# BEAT counts on while the worker lives; it is 0 until the worker has begun an order.
STOP, DONE, TOTAL, TOKENS, TEXT_BYTES, BEAT = range(6)
BOARD_SIZE = 6

# Ctrl-C and a lost terminal reach the whole group; the driver decides. Windows has no SIGHUP.
STOPPING = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}

Board = Array[c_int64] | list[int]

board: Board = [0] * BOARD_SIZE


def open_standard_streams() -> None:
    """Put the null device in the place of standard streams that are closed, as daemons start programs.

    Otherwise the next files to be opened get their numbers, 0 to 2, and what is
    printed goes into those.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # Those below it are open, so this is the number that it gets.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def start(shared: Board, log: str) -> None:
    """Prepare a new worker process; runs once, before its first order."""
    global board  # noqa: PLW0603  # a process has one board
    board = shared
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # The driver blocked them while it started us.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    # numpy would start a thread for every core, in every worker, to multiply matrices; there are none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _print_into(log)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def show(done: int, total: int) -> None:
    """Show how far the order in hand is."""
    board[DONE] = done
    board[TOTAL] = total


def show_text(tokens: int, text_bytes: int) -> None:
    """Show how much text the order in hand has encoded so far."""
    board[TOKENS] = tokens
    board[TEXT_BYTES] = text_bytes


def resident_bytes(pid: int | None = None) -> int | None:
    """Return how much memory a process (this one unless told) has, or None where nobody can tell."""
    if sys.platform == "win32":
        return None
    try:
        with open(f"/proc/{pid or 'self'}/statm", "rb") as file:  # noqa: PTH123  # called often
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):  # Not Linux: the most that it ever had, in bytes on macOS.
        return None if pid else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def machine_bytes() -> int | None:
    """Return how much memory this machine has, or None where nobody can tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def allow_open_files(wanted: int) -> int:
    """Let this process, and those that it starts, have so many files open; return how many they may have."""
    if sys.platform == "win32":
        return sys.maxsize
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # macOS may allow fewer than it says.
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def beat() -> None:
    """Show that this process has not stalled."""
    board[BEAT] += 1


def stop_if_asked() -> None:
    """Raise Stopped if the driver wants this process to stop. Also the sign that it has not stalled."""
    beat()
    if board[STOP]:
        raise Stopped("stopped by the user")


def _print_into(log: str) -> None:
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


def _end_with_parent() -> None:
    """End this process as soon as its parent is gone; a plain spawned worker would live on."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
