"""Standard output and standard error: results and notes, in any encoding, with or without a reader.

The exit code depends on the work alone. When the reader has gone (… | head), a
broken pipe only silences the output. A result that cannot be written for another
reason, such as a full disk, is an error of its own. A character that the stream's
encoding lacks is escaped, as in JSON and in Python.
"""

import datetime as dt
import errno
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from fwconvert.errors import OutputError, message, printable

# Of the JSON that --progress json prints: another one where a key is taken away or means something else.
EVENT_VERSION = 1
# Set by a script that runs the program: what its user has typed in place of `fwconvert`.
CALLED_VARIABLE = "FWCONVERT_CALLED"


class _Notes:
    as_json = False


_notes = _Notes()


def program() -> str:
    """Return what the user has typed to run this program, for commands that can be typed next."""
    called = os.environ.get(CALLED_VARIABLE, "")
    if called and called.isprintable():
        return shlex.quote(called)
    words = sys.orig_argv
    for at, word in enumerate(words[:-1]):
        if word == "-m" and words[at + 1] == "fwconvert":
            return shlex.join([words[0], "-m", "fwconvert"])
    return "fwconvert"


def tell(text: str) -> None:
    """Print and flush a result; raise OutputError if that fails for any reason but a reader that has gone."""
    stream = sys.stdout
    if stream is None:  # Closed by the shell: `>&-`.
        return
    try:
        stream.write(escaped(f"{text}\n", stream.encoding))
        stream.flush()
    except (OSError, ValueError) as error:
        _redirect_to_null(stream)
        if not _reader_has_gone(error):
            raise OutputError(
                message(
                    "the result cannot be printed",
                    "check where standard output goes",
                    reason=getattr(error, "strerror", None) or error,
                )
            ) from error


def _reader_has_gone(error: Exception) -> bool:
    # Windows reports EINVAL when the other end of a pipe is closed.
    on_windows = sys.platform == "win32" and getattr(error, "errno", None) == errno.EINVAL
    return isinstance(error, BrokenPipeError) or on_windows


def note(text: str) -> None:
    """Print to standard error, if there is one that can be written to."""
    _print_note(event_line("error", text=text) if _notes.as_json else f"{printable(text)}\n")


def notes_as_json(*, wanted: bool) -> None:
    """From now on, let what is noted be JSON, one object a line; or text."""
    _notes.as_json = wanted


def note_event(event: str, **facts: object) -> None:
    """Print a JSON object to standard error, if there is one that can be written to."""
    _print_note(event_line(event, **facts))


def event_line(event: str, **facts: object) -> str:
    """Return what happened as a line of JSON in ASCII."""
    now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{json.dumps({'version': EVENT_VERSION, 'event': event, 'time': now, **facts})}\n"


def _print_note(text: str) -> None:
    if sys.stderr is not None:
        stream = Unfailing(sys.stderr)
        stream.write(escaped(text, stream.encoding))
        stream.flush()


def escaped(text: str, encoding: str | None) -> str:
    r"""Return `text` with the characters that the encoding lacks as \uXXXX, as in JSON and Python."""
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return "".join(_escaped(character, encoding or "utf-8") for character in text)
    return text


def _escaped(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        units = character.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    return character


def _redirect_to_null(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that flushing its buffer at exit raises nothing."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as null:  # noqa: PTH123
        os.dup2(null.fileno(), stream.fileno())
        stream.flush()


class Unfailing:
    """A text stream that ignores write errors: a closed terminal must not end a run of days."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding: str = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write `text` if possible."""
        with self._surviving():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush if possible."""
        with self._surviving():
            self._stream.flush()

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):
            _redirect_to_null(self._stream)

    def isatty(self) -> bool:
        """Return whether it is a terminal; a closed one is not."""
        with suppress(OSError, ValueError):
            return self._stream.isatty()
        return False

    def fileno(self) -> int:
        """Return the stream's descriptor."""
        return self._stream.fileno()
