"""Standard output and standard error: results and notes, whoever reads them and in whatever encoding.

What a command comes to is decided by its work alone. A reader who has gone
(… | head) wants to know no more, so a broken pipe only silences. A result that
cannot be written for another reason, a full disk, is an error of its own. A
character that the stream's encoding lacks is spelt, as in JSON and in Python.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from fwconvert.errors import OutputError, message, printable


def tell(text: str) -> None:
    """Print a result, and see it off; raise OutputError if it cannot be written though somebody reads."""
    stream = sys.stdout
    if stream is None:  # `>&-`: nobody wants to know.
        return
    try:
        stream.write(spelt(f"{text}\n", stream.encoding))
        stream.flush()
    except (OSError, ValueError) as error:
        _send_nowhere(stream)
        if not _reader_has_gone(error):
            raise OutputError(
                message(
                    "the result cannot be printed",
                    "see where standard output goes",
                    reason=getattr(error, "strerror", None) or error,
                )
            ) from error


def _reader_has_gone(error: Exception) -> bool:
    # Windows calls the argument invalid when the other end of a pipe is closed.
    on_windows = sys.platform == "win32" and getattr(error, "errno", None) == errno.EINVAL
    return isinstance(error, BrokenPipeError) or on_windows


def note(text: str) -> None:
    """Print to standard error, if there is one that can be written to."""
    if sys.stderr is not None:
        stream = Unfailing(sys.stderr)
        stream.write(spelt(f"{printable(text)}\n", stream.encoding))
        stream.flush()


def spelt(text: str, encoding: str | None) -> str:
    """Return `text`, with the characters that the encoding lacks as JSON and Python spell them."""
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return "".join(_spelt(character, encoding or "utf-8") for character in text)
    return text


def _spelt(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        units = character.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    return character


def _send_nowhere(stream: TextIO) -> None:
    """Send what is still in a stream's buffer nowhere; otherwise Python complains of it at its end."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), stream.fileno())
        stream.flush()


class Unfailing:
    """A text stream whose loss goes unnoticed: a closed terminal must not end a run of days."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding: str = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write `text` if that is possible."""
        with self._surviving():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush if that is possible."""
        with self._surviving():
            self._stream.flush()

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):
            _send_nowhere(self._stream)

    def isatty(self) -> bool:
        """Tell whether it is a terminal; a closed one is not."""
        with suppress(OSError, ValueError):
            return self._stream.isatty()
        return False

    def fileno(self) -> int:
        """Return the stream's descriptor."""
        return self._stream.fileno()
