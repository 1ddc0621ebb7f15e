"""Where source shards come from.

The seam between conversion and fetching: a source shard is fetched, converted
and released. The worker proves its bytes before it believes them.
"""

from pathlib import Path
from typing import Protocol

from fwconvert import catalog
from fwconvert.config import SourceManifest, SourceShard


class Origin(Protocol):
    """A place that can provide the files of a source manifest."""

    def fetch(self, source: SourceShard) -> Path:
        """Return where the file lies on this machine, once it lies there."""

    def release(self, source: SourceShard) -> None:
        """Take back a file whose receipt is on the disk."""


class LocalOrigin:
    """Files that are on this machine already, and stay."""

    def __init__(self, manifest: SourceManifest, root: Path) -> None:
        self._root = root
        self._found = catalog.locate(manifest, root)

    def fetch(self, source: SourceShard) -> Path:
        """Return where the file lies, or where it was expected if it is missing."""
        return self._found.get(source.path, self._root / source.path)

    def release(self, source: SourceShard) -> None:
        """Leave the file alone: it is the user's."""
