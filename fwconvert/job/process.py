"""A worker process: its start, its end, and the board on which it shows how far it is.

Light on purpose: the driver imports it too.
"""

import sys
from ctypes import Array, c_int64

from fwconvert import processes
from fwconvert.errors import Stopped

if sys.platform != "win32":
    pass

# A board is a few shared integers, written without a lock: a worker that is killed
# would leave a lock (or a queue) closed for ever.
# BEAT counts on while the worker lives; it is 0 until the worker has begun an order.
STOP, DONE, TOTAL, TOKENS, TEXT_BYTES, BEAT = range(6)
BOARD_SIZE = 6

Board = Array[c_int64] | list[int]

board: Board = [0] * BOARD_SIZE


def start(shared: Board, log: str) -> None:
    """Prepare a new worker process; runs once, before its first order."""
    global board  # noqa: PLW0603  # a process has one board
    board = shared
    processes.prepare(log)


def show(done: int, total: int) -> None:
    """Show how far the order in hand is."""
    board[DONE] = done
    board[TOTAL] = total


def show_text(tokens: int, text_bytes: int) -> None:
    """Show how much text the order in hand has encoded so far."""
    board[TOKENS] = tokens
    board[TEXT_BYTES] = text_bytes


def beat() -> None:
    """Show that this process has not stalled."""
    board[BEAT] += 1


def stop_if_asked() -> None:
    """Raise Stopped if the driver wants this process to stop. Also the sign that it has not stalled."""
    beat()
    if board[STOP]:
        raise Stopped("stopped by the user")
