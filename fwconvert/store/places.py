"""Where a run's sources were on this machine: a hint for whoever looks for a document in them later.

Private to the run's folder, and no decision rests on it: sources move.
"""

from pathlib import Path
from typing import ClassVar

from fwconvert import files, records
from fwconvert.errors import ManifestError
from fwconvert.records import Record
from fwconvert.store.folder import RunFolder


class Places(Record, frozen=True, tag="fwconvert places 1"):
    """The folder that the paths of the sources start from."""

    # A path has 4096 bytes at the most, and each may be written as six.
    most_bytes: ClassVar[int] = 2**16
    root: str


def save(folder: RunFolder, root: Path | None) -> None:
    """Keep the hint, unless there is none or it is kept already."""
    if root is None or not str(root).isprintable():
        return
    content = records.encode(Places(str(root.absolute()))) + b"\n"
    if not files.holds(folder.places, content):
        folder.write(folder.places, content)


def read(folder: RunFolder) -> Path | None:
    """Return the hint, or None if there is none that can be read."""
    try:
        return Path(records.read(folder.places, Places).root)
    except ManifestError:
        return None
