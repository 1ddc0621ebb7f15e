"""Find the parquet row that a document of a run was made from: on this machine, or over the hub.

A file that is only looked at is not hashed. What proves it is the row itself:
its text must give exactly the tokens that stand in the token shards. Until then
it may be anything, so it is read in a process that is ended if it takes too much.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert.errors import FwconvertError, SourceError, UsageError, message
from fwconvert.recipe import Rules, SourceShard
from fwconvert.run.engine import Limits, call_apart
from fwconvert.run_reader import Located, RunReader
from fwconvert.sources import catalog, parquet
from fwconvert.sources.hub.dataset import Dataset
from fwconvert.sources.hub.ranged import RangedFile
from fwconvert.store import places
from fwconvert.tokens import tokenizer, vocabulary

# However small the file is: 279 bytes, a dictionary with one long text, took 0.7 GB.
# A row group of FineWeb-Edu has some MB; over the hub it may take its time to come.
_GUARD = Limits(memory_bytes=2**30, stall_seconds=300.0)


@dataclass(frozen=True)
class Told:
    """What the columns `id` and `url` of a row say, if there are any."""

    id: str | None
    url: str | None


@dataclass(frozen=True)
class Found:
    """What the row says of itself, or None and why it is not to be had."""

    row: Told | None
    reason: str = ""


@dataclass(frozen=True)
class _Copy:
    """A file that may be the source: on this machine, or one of a dataset, by its name and revision."""

    name: str
    file: SourceShard
    place: Path | tuple[str, str]


@dataclass(frozen=True)
class _Question:
    """Whether a row of a copy gives the tokens of a document, and what else it says."""

    copy: _Copy
    row: int
    rules: Rules
    # Where the vocabulary is.
    tables: Path
    tokens: NDArray[Any]
    is_whole: bool


class Rows:
    """The rows of a run's sources, wherever the files are."""

    def __init__(self, run: RunReader, root: Path | None = None) -> None:
        if root is not None and not root.is_dir():
            raise UsageError(message("--source must be the folder that has the run's sources", given=root))
        self._run = run
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
            yield _Copy(str(place), file, place)
        if self._root is None and manifest.revision and "/" in manifest.dataset:
            place_there = manifest.dataset, manifest.revision
            yield _Copy(f"{manifest.dataset}/{file.path}", file, place_there)

    def _below(self, root: Path, path: str) -> Path | None:
        return catalog.locate(self._run.account.recipe.source, root).get(path)

    def _read(self, copy: _Copy, located: Located) -> Told:
        document, rules = located.document, self._run.manifest.rules
        tokens = located.reader.tokens(document.start, document.end)
        tables = self._run.folder.vocabularies
        question = _Question(copy, document.row, rules, tables, tokens, document.is_whole)
        return call_apart(_answer, question, _GUARD)


def _answer(question: _Question) -> Told:
    """Return what a row says of itself; raise SourceError if it gives other tokens."""
    copy, text_column = question.copy, question.rules.text_column
    if isinstance(copy.place, Path):
        there = parquet.size_of(copy.place)
        if there != copy.file.bytes:
            raise SourceError(_another(copy.name, f"it has {there:,} bytes"))
        row = parquet.read_row(copy.place, copy.name, question.row, text_column)
    else:
        remote = RangedFile(Dataset(*copy.place), copy.file)
        row = parquet.read_row(remote, copy.name, question.row, text_column)
    if not _gives(row, question):
        raise SourceError(_another(copy.name, f"row {question.row:,} has another text"))
    return Told(row.id, row.url)


def _gives(row: parquet.Row, question: _Question) -> bool:
    """Tell whether a row's text gives the tokens of the document, as far as they are there."""
    encoder = tokenizer.load(vocabulary.find(question.rules.tokenizer), question.tables)
    found = np.empty(0) if row.text.null_count else encoder.encode(row.text).tokens
    tokens = question.tokens
    if question.rules.eot == "before":
        tokens = tokens[1:]
    elif question.is_whole:
        tokens = tokens[:-1]
    return np.array_equal(found if question.is_whole else found[: len(tokens)], tokens)


def _another(name: str, reason: str) -> str:
    return message("a source file is not the one that was converted", file=name, reason=reason)
