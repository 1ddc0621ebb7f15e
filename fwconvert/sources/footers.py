"""What sources say before any of them is verified: how much text there is, and which columns.

Lines of JSON and Arrow files say it at their beginning, parquet files in their
footers. A footer of 30 MB may take 7 GB when it is parsed, because an empty column
chunk takes 3 bytes in it and 700 in memory. So only small ones are parsed in this
process. A larger one is parsed in a separate process, which is killed if it needs
more than any honest footer; then nothing is known about the file, and its own job
will report what is wrong with it.
"""

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from fwconvert.errors import FwconvertError, SourceError
from fwconvert.processes import ProcessLimits, call_apart
from fwconvert.recipes import Rules
from fwconvert.sources import arrow, filters, lines, parquet, readers
from fwconvert.sources.catalog import Size

# The worst footer found takes 250 times its size, so this takes 130 MB.
_SMALL_BYTES = 2**19
# Memory for the elements of a list is allocated before they are read. A row group takes more than 10 bytes.
_SMALL_ELEMENTS = _SMALL_BYTES // 10
# An honest footer of 9 MB, of a thousand columns in a hundred row groups, takes 80 MB.
_GUARD = ProcessLimits(memory_bytes=2**30, stall_seconds=60.0)


def sizes(places: Sequence[Path]) -> Mapping[Path, Size]:
    """Return the sizes that local files tell, without files that cannot be read."""
    found: dict[Path, Size] = {}
    large = []
    for place in places:
        with suppress(SourceError):
            kind = readers.kind_of(place.name, place)
            if kind != "parquet":
                found[place] = lines.size(place) if kind == "jsonl" else arrow.size(place)
            elif parquet.footer_bytes(place) > _SMALL_BYTES:
                large.append(place)
            else:
                found[place] = parquet.footer(place, _SMALL_ELEMENTS)
    # Cached: there are several callers, and starting a process takes a second.
    state = tuple(_state(place) for place in large)
    return {**found, **_large_sizes(tuple(large), state)} if large else found


def check_columns(file: Path | io.RawIOBase, name: str, rules: Rules) -> None:
    """Raise ColumnError if a file, local or remote, lacks a column; only its footer or beginning is read.

    Raises SourceError, with `name`, if that cannot be read.
    """
    kind = readers.kind_of(name, file)
    if kind != "parquet":
        look = lines.check_columns if kind == "jsonl" else arrow.check_columns
        look(file, name, rules.text_column, filters.of(rules))
        return
    footer = parquet.read_footer(file, name)
    if len(footer) <= _SMALL_BYTES:
        parquet.check_columns(footer, name, rules.text_column, filters.of(rules), _SMALL_ELEMENTS)
        return
    try:
        call_apart(_check_columns, (footer, name, rules), _GUARD)
    except SourceError:
        raise
    except FwconvertError as error:
        raise SourceError(f"{name}: {error}") from error


def _state(place: Path) -> tuple[int, int]:
    try:
        state = place.stat()
    except OSError:
        return 0, 0
    return state.st_size, state.st_mtime_ns


@lru_cache(1)
def _large_sizes(places: tuple[Path, ...], _state: tuple[tuple[int, int], ...]) -> Mapping[Path, Size]:
    try:
        return call_apart(_sizes, places, _GUARD)
    except FwconvertError:
        return {}


def _sizes(places: Sequence[Path]) -> Mapping[Path, Size]:
    found = {}
    for place in places:
        with suppress(SourceError):
            found[place] = parquet.footer(place)
    return found


def _check_columns(asked: tuple[bytes, str, Rules]) -> None:
    footer, name, rules = asked
    parquet.check_columns(footer, name, rules.text_column, filters.of(rules))
