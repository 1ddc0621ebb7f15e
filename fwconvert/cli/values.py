"""What the values of flags may be, and what to say of those that they may not be.

Each function takes the word of a command line. What it raises begins with FLAG,
in whose place the parser puts the flag or the argument that the word was given for.
"""

import argparse
import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import util
from pathlib import Path

from fwconvert.errors import message
from fwconvert.options import parse_bandwidth, parse_bytes, parse_count
from fwconvert.store.bucket import is_uri

FLAG = "{flag}"


def _wrong(what: str, /, *actions: str, **values: object) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(message(f"{FLAG} {what}", *actions, **values))


def given(text: str) -> str:
    """Return a word as it is, unless it is empty."""
    if not text:
        raise _wrong("is empty", "is a shell variable not set?")
    return text


def path(text: str) -> Path:
    """Return a path. Refuse "", which an unset shell variable gives: it would mean the current folder."""
    if not text:
        raise _wrong("is empty", "is a shell variable not set? The current folder is .")
    return Path(text)


def place(text: str) -> Path | str:
    """Return a place of a run: a path, or the address of a prefix in an object store as it is."""
    return text if is_uri(text) else path(text)


def wandb_project(text: str) -> str:
    """Return [ENTITY/]PROJECT of Weights & Biases, if there is wandb: before anything is done for a run."""
    names = text.split("/")
    if not 1 <= len(names) <= 2 or not all(names) or not re.fullmatch(r"[^\\#?%:]{1,128}", names[-1]):
        raise _wrong(
            "is no project of Weights & Biases",
            "give a name without \\ # ? % or :, or ENTITY/NAME",
            given=text or "nothing",
        )
    found = util.find_spec("wandb")
    if found is None or found.origin is None:  # A folder that wandb has made here is not wandb.
        raise _wrong(
            "needs the package wandb, which is not installed",
            "pip install 'fwconvert[wandb]', or leave --wandb out",
        )
    return text


def rank(text: str) -> str:
    """Return the number of a rank, or auto."""
    if text != "auto" and not re.fullmatch("[0-9]{1,9}", text):
        raise _wrong("is no rank", "give a number, counted from 0, or auto", given=text)
    return text


def finite(text: str) -> float:
    """Return a number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _wrong("is not a number", "give a number such as 3 or 2.5", given=text)
    return number


def whole(text: str) -> int:
    """Return a whole number, which may be negative."""
    if not re.fullmatch("[+-]?[0-9]{1,18}", text.strip()):
        raise _wrong("is not a whole number", "give a number such as 3", given=text)
    return int(text)


def count(least: int, of: str = "") -> Callable[[str], int]:
    """Return what reads a number of at least so many, of tokens for example."""

    def read(text: str) -> int:
        if size := _size(text):
            raise _not_a_size(text, size, of)
        try:
            number = parse_count(text)
        except ValueError as error:
            reason = str(error).removeprefix(f"{text!r} ").partition(" such as")[0]
            raise _wrong(reason, "give a number such as 8, 100M, 1_000_000 or 1e6", given=text) from None
        if number < least:
            raise _wrong(f"must be at least {least}", given=text)
        return number

    return read


def _size(text: str) -> int | None:
    """Return how many bytes a word means that has a unit of bytes, as 2GB has and 2B has not."""
    if not re.search("[kKmMgGtT](i?[bB])$", text.strip()):
        return None
    try:
        return parse_bytes(text)
    except ValueError:
        return None


def _not_a_size(text: str, size: int, of: str) -> argparse.ArgumentTypeError:
    if of != "tokens":
        return _wrong("is a number, not a size", "give a number such as 8", given=text)
    return _wrong(
        "counts tokens, not bytes",
        f"{text} hold {size // 2:,} tokens of gpt2 (2 bytes each), or {size // 4:,} of cl100k_base (4 bytes)",
        f"give a number of tokens such as {_short(size // 2)}, 100M or 1_000_000",
        given=text,
    )


def _short(number: int) -> str:
    for unit, scale in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= scale and number % (scale // 10) == 0:
            return f"{number / scale:g}{unit}"
    return str(number)


def size(text: str) -> int:
    """Return a number of bytes, which may have a unit."""
    try:
        number = parse_bytes(text)
    except ValueError:
        raise _wrong("is not a size", "give bytes such as 4GB, 4GiB or 4_000_000_000", given=text) from None
    if number < 1:
        raise _wrong("must be at least 1 byte", given=text)
    return number


def bandwidth(text: str) -> float:
    """Return how many bytes come in a second, of a line with this many bits or bytes a second."""
    try:
        return parse_bandwidth(text)
    except ValueError:
        raise _wrong(
            "is not the speed of a line", "give bits a second (100M, 1G) or bytes (12MB/s)", given=text
        ) from None


def one_of(names: Sequence[str], aliases: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """Return what reads one of some words. `aliases` are what people say for them."""

    def read(text: str) -> str:
        if text in names:
            return text
        meant = closest(text, names, aliases or {})
        hint = [f"did you mean {meant}?"] if meant else []
        raise _wrong("has no such choice", *hint, f"choose one of {', '.join(names)}", given=text)

    return read


def closest(text: str, names: Sequence[str], aliases: Mapping[str, str]) -> str:
    """Return the name that somebody seems to mean, or ""."""
    plain = re.sub("[^a-z0-9]", "", text.lower())
    known = {re.sub("[^a-z0-9]", "", name.lower()): name for name in names} | dict(aliases)
    close = difflib.get_close_matches(plain, known, n=1, cutoff=0.6)
    return known[close[0]] if close else ""
