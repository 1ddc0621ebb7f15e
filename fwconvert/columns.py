"""Numbers and texts in few columns: for a display, whatever its width and its encoding."""

import math
import textwrap
from collections.abc import Sequence

# A piece of a line and its style; a line is drawn piece by piece.
Span = tuple[str, str]

SEPARATOR = " · "
UNKNOWN = "–"  # noqa: RUF001  # a dash, as wide as a digit
_PLAINER = {"·": "|", "…": "~", UNKNOWN: "-", "━": "#", "─": "-"}


def humanised(number: float) -> str:
    """Return a count in three digits: 950, 1.23K, 12.3M, 123B."""
    if number < 999.5:
        return f"{number:.0f}"
    for unit in ("K", "M", "B", "T"):
        number /= 1000
        if number < 999.5 or unit == "T":
            break
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f}{unit}"


def megabytes(number: float) -> str:
    """Return bytes as megabytes: 0.4, 12.3, 123."""
    return f"{number / 1e6:.1f}" if number < 99.95e6 else f"{number / 1e6:.0f}"


def percent(part: float) -> str:
    """Return a percentage, six characters wide; 100% only when all is done."""
    return "  100%" if part >= 1 else f"{math.floor(part * 1000) / 10:>5.1f}%"


def duration(seconds: float | None) -> str:
    """Return hours, minutes and seconds: 0:00:07, 1:02:03; a dash for None."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def bar(part: float, width: int, style: str) -> list[Span]:
    """Return a bar of which `part` is filled; its two glyphs differ, so it needs no colour."""
    full = math.floor(min(1.0, max(0.0, part)) * max(0, width))
    return [("━" * full, style), ("─" * (width - full), "dim")]


def fitting(parts: Sequence[str], width: int) -> str:
    """Return as many of the parts as fit in one line, at least the first."""
    line = parts[0]
    for part in parts[1:]:
        if len(line) + len(SEPARATOR) + len(part) > width:
            break
        line += SEPARATOR + part
    return line


def cells(text: str) -> int:
    """Return how many columns a text takes; an ideograph takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415  # heavy, and needed for few names

    return cell_len(text)


def shortened(text: str, width: int) -> str:
    """Return `text` in at most `width` columns, without its middle; names differ most towards their end."""
    if cells(text) <= width:
        return text
    start = _beginning(text, (width - 1) // 3)
    end = _beginning(text[::-1], width - 1 - cells(start))[::-1]
    return f"{start}…{end}"


def _beginning(text: str, width: int) -> str:
    taken = 0
    for at, character in enumerate(text):
        taken += cells(character)
        if taken > width:
            return text[:at]
    return text


def wrapped(line: str, width: int) -> list[str]:
    """Return a line as lines of at most `width`, the further ones indented; long words stay whole."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    parts = textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return parts if len(line) > width else [line]


def printable_lines(text: str) -> list[str]:
    """Return the lines of `text` without control characters, which could redraw the screen."""
    return ["".join(c if c.isprintable() else "?" for c in line) for line in text.expandtabs().splitlines()]


def encodable(text: str, encoding: str) -> str:
    """Return `text`, with plainer characters of the same width where the encoding lacks one."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(_plainer(character, encoding) for character in text)
    return text


def _plainer(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return _PLAINER.get(character, "?" * cells(character))
    return character
