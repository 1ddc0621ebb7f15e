"""Terminals that the tests have to themselves, and what a program draws on them."""

import contextlib
import os
import re
import struct
import sys

import pytest

if sys.platform != "win32":
    import fcntl
    import pty
    import termios

HIDE_CURSOR, SHOW_CURSOR, ERASE_LINE = "\x1b[?25l", "\x1b[?25h", "\x1b[2K"

needs_pty = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pty module")


def open_terminal(width: int) -> tuple[int, int]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    return ours, theirs


def resize(terminal: int, width: int) -> None:
    """Change the width of a terminal, as a user does who drags its window."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))


def read_all(ours: int) -> str:
    pieces = []
    with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error.
        while piece := os.read(ours, 65536):
            pieces.append(piece)
    os.close(ours)
    return b"".join(pieces).decode(errors="replace")


def without_codes(text: str) -> str:
    """Return what was drawn; each new picture begins on a new line."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.replace("\r\n", "\n").replace("\r", "\n"))
