"""Put the page of a run where its user wants it, in one piece, and never in place of a file of a run."""

import os
from pathlib import Path

from fwconvert.errors import UsageError, message
from fwconvert.recipes import Rules
from fwconvert.store import atomic, layout
from fwconvert.store.bucket import is_uri


def refuse_place(out: str | os.PathLike[str], rules: Rules, page: Path) -> None:
    """Raise UsageError if a page there would replace a file of the run, or be taken for one by a trainer."""
    if page.is_dir():
        raise UsageError(message("the page needs a file name, and this is a folder", given=page))
    if is_uri(out):
        return
    root, place = Path(out).resolve(), page.resolve()
    if not place.is_relative_to(root):
        return
    inside = place.relative_to(root).as_posix()
    is_alone = "/" not in inside and inside != layout.MANIFEST
    if is_alone and not layout.is_served(rules, inside) and layout.owner(rules, inside) is None:
        return
    raise UsageError(
        message(
            "a page there would be among the files of the run",
            "choose another place with -o",
            given=page,
        )
    )


def write(page: Path, html: str) -> None:
    """Write a page in one piece; OutputError if that is not possible."""
    atomic.replace(page.absolute(), html.encode())
