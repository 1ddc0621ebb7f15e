"""Find the parquet row that a document of a run was made from: on this machine, or over the hub.

A file that is only looked at is not hashed. What proves it is the row itself:
its text must give exactly the tokens that stand in the token shards.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fwconvert import catalog, places, source
from fwconvert.errors import FwconvertError, SourceError, UsageError, message
from fwconvert.hub import Dataset
from fwconvert.ranges import RangedFile
from fwconvert.run_reader import Located, RunReader
from fwconvert.source import Row
from fwconvert.tokenizer import Tokenizer


@dataclass(frozen=True)
class Found:
    """The row, or None and why it is not to be had."""

    row: Row | None
    reason: str = ""


@dataclass(frozen=True)
class _Copy:
    """A file that may be the source."""

    name: str
    file: Path | io.RawIOBase


class Rows:
    """The rows of a run's sources, wherever the files are."""

    def __init__(self, run: RunReader, tokenizer: Tokenizer, root: Path | None = None) -> None:
        if root is not None and not root.is_dir():
            raise UsageError(message("--source must be the folder that has the run's sources", given=root))
        self._run = run
        self._tokenizer = tokenizer
        self._root = root

    def find(self, located: Located) -> Found:
        """Return the row of a document, from the first copy of its source that is the right one."""
        reason = "the source file is not here"
        for copy in self._copies(located.source):
            try:
                return Found(self._read(copy, located))
            except FwconvertError as error:
                reason = str(error)
        return Found(None, reason)

    def _copies(self, index: int) -> Iterator[_Copy]:
        """Yield where the source may be; the hub only if nobody said where."""
        manifest, file = self._run.manifest, self._run.manifest.sources[index]
        root = self._root or places.read(self._run.folder)
        place = None if root is None or not root.is_dir() else self._below(root, file.path)
        if place is not None:
            yield _Copy(str(place), place)
        if self._root is None and manifest.revision and "/" in manifest.dataset:
            dataset = Dataset(manifest.dataset, manifest.revision)
            yield _Copy(f"{dataset.name}/{file.path}", RangedFile(dataset, file))

    def _below(self, root: Path, path: str) -> Path | None:
        return catalog.locate(self._run.account.recipe.source, root).get(path)

    def _read(self, copy: _Copy, located: Located) -> Row:
        wanted, file = self._run.manifest.sources[located.source], copy.file
        if isinstance(file, Path) and (size := source.size_of(file)) != wanted.bytes:
            raise SourceError(_another(copy.name, f"it has {size:,} bytes"))
        row = source.read_row(file, copy.name, located.document.row, self._run.manifest.rules.text_column)
        if not self._gives(row, located):
            raise SourceError(_another(copy.name, f"row {located.document.row:,} has another text"))
        return row

    def _gives(self, row: Row, located: Located) -> bool:
        """Tell whether a row's text gives the tokens of the document, as far as they are there."""
        document = located.document
        found = np.empty(0) if row.text.null_count else self._tokenizer.encode(row.text).tokens
        tokens = located.reader.tokens(document.start, document.end)
        if self._run.manifest.rules.eot == "before":
            tokens = tokens[1:]
        elif document.is_whole:
            tokens = tokens[:-1]
        return np.array_equal(found if document.is_whole else found[: len(tokens)], tokens)


def _another(name: str, reason: str) -> str:
    return message("a source file is not the one that was converted", file=name, reason=reason)
