"""Where a token comes from: its document, the row of its source, and the row's id and url.

The row is looked for on this machine, then on the hub. The file is not hashed;
instead the row's text must give exactly the tokens in the token shards. Until
then the file is not trusted, so it is read in a process that is killed if it
takes too much memory or time.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert import records
from fwconvert.errors import FwconvertError, ManifestError, SourceError, UsageError, message, printable
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.ranged import RangedFile
from fwconvert.inspection.reader import Located, RunReader
from fwconvert.inspection.show import find_shard
from fwconvert.options import parse_count
from fwconvert.processes import ProcessLimits, call_apart
from fwconvert.recipes import Rules, SourceShard
from fwconvert.records import Part
from fwconvert.sources import catalog, readers, reading
from fwconvert.sources.objects import ObjectFiles
from fwconvert.store import layout, saved_recipe
from fwconvert.store.bucket import is_uri
from fwconvert.store.receipts import ShardLine
from fwconvert.tokens import registry, tokenizer

# Even a small file may take much: one of 279 bytes, a dictionary with one long text, took 0.7 GB.
# A row group of FineWeb-Edu has a few MB, which may take a while to arrive from the hub.
_GUARD = ProcessLimits(memory_bytes=2**30, stall_seconds=300.0)


@dataclass(frozen=True)
class RowLabels:
    """The columns `id` and `url` of a row, if there are any."""

    id: str | None
    url: str | None


@dataclass(frozen=True)
class Found:
    """The labels of a row, or None and the reason why it could not be read."""

    row: RowLabels | None
    reason: str = ""


@dataclass(frozen=True)
class _Copy:
    """A file that may be the source: here, in a dataset (name and revision), or below an address and ""."""

    name: str
    file: SourceShard
    place: Path | tuple[str, str]


@dataclass(frozen=True)
class _Question:
    """A row to read from a copy, and the tokens that it must give."""

    copy: _Copy
    row: int
    rules: Rules
    # Where the vocabulary is.
    tables: Path
    tokens: NDArray[Any]
    is_whole: bool


class Rows:
    """The rows of a run's sources, wherever the files are."""

    def __init__(self, run: RunReader, root: Path | str | None = None) -> None:
        if isinstance(root, Path) and not root.is_dir():
            raise UsageError(message("--source must be the folder that has the run's sources", given=root))
        self._run = run
        self._root = root

    def find(self, located: Located) -> Found:
        """Return the row of a document, from the first copy of its source that matches."""
        reason = "the source file is not on this machine"
        for copy in self._copies(located.source):
            try:
                return Found(self._read(copy, located))
            except FwconvertError as error:
                reason = str(error)
        return Found(None, reason)

    def _copies(self, index: int) -> Iterator[_Copy]:
        """Yield where the source may be; the hub only if no folder was given."""
        manifest, file = self._run.manifest, self._run.manifest.sources[index]
        root = self._root or saved_recipe.read_source_root(self._run.store)
        if isinstance(root, str):
            yield _Copy(f"{root}/{file.path}", file, (root, ""))
        place = None if not isinstance(root, Path) or not root.is_dir() else self._below(root, file.path)
        if place is not None:
            yield _Copy(str(place), file, place)
        if self._root is None and manifest.revision and "/" in manifest.dataset:
            place_there = manifest.dataset, manifest.revision
            yield _Copy(f"{manifest.dataset}/{file.path}", file, place_there)

    def _below(self, root: Path, path: str) -> Path | None:
        return catalog.locate(self._run.account.recipe.source, root).get(path)

    def _read(self, copy: _Copy, located: Located) -> RowLabels:
        document, rules = located.document, self._run.manifest.rules
        tokens = located.reader.tokens(document.start, document.end)
        tables = self._run.store.pull(layout.VOCABULARIES)
        question = _Question(copy, document.row, rules, tables, tokens, document.is_whole)
        return call_apart(_answer, question, _GUARD)


def _answer(question: _Question) -> RowLabels:
    """Return the labels of a row; raise SourceError if it gives other tokens."""
    copy, text_column = question.copy, question.rules.text_column
    if isinstance(copy.place, Path):
        there = reading.size_of(copy.place)
        if there != copy.file.bytes:
            raise SourceError(_wrong_file(copy.name, f"it has {there:,} bytes"))
        file: Path | RangedFile = copy.place
    else:
        name, revision = copy.place
        file = RangedFile(Dataset(name, revision) if revision else ObjectFiles(name), copy.file)
    row = readers.of(copy.file.path, file).read_row(file, copy.name, question.row, text_column)
    if not _matches(row, question):
        raise SourceError(_wrong_file(copy.name, f"row {question.row:,} has a different text"))
    return RowLabels(row.id, row.url)


def _matches(row: reading.Row, question: _Question) -> bool:
    """Return whether a row's text gives the tokens of the document, as far as the run has them."""
    encoder = registry.load(registry.of_rules(question.rules), question.tables)
    found = np.empty(0) if row.text.null_count else encoder.encode(row.text).tokens
    around = encoder.spec.separators(question.rules.eot)
    tokens = question.tokens[around.inside(0, len(question.tokens), is_whole=question.is_whole)]
    return np.array_equal(found if question.is_whole else found[: len(tokens)], tokens)


def _wrong_file(name: str, reason: str) -> str:
    return message("a source file is not the one that was converted", file=name, reason=reason)


# As many tokens as it takes to show the first words of a document.
_WORDS = 40


class Trace(Part, frozen=True):
    """A token of a run, and where it comes from. Positions count from 0, documents from 1."""

    shard: str
    offset: int
    token: int
    token_text: str
    dataset: str
    revision: str
    source: str
    row: int
    # In the run; None while a source before it is not converted.
    document: int | None
    # Where the document starts, and where in the document the token is.
    starts_in: str
    starts_at: int
    position: int
    # None if its end is missing: in a token shard that is not made yet, dropped, or cut off by the limit.
    document_tokens: int | None
    first_words: str
    # From the source file; None if it could not be read, for the reason in `missing`.
    id: str | None
    url: str | None
    missing: str


def trace(out: str | os.PathLike[str], place: str, root: str | os.PathLike[str] | None = None) -> Trace:
    """Return where the token at `place` (SHARD:OFFSET) of the run in `out` comes from.

    The row itself is read from the files below `root`, or from where the run's
    sources were, or from the hub. If it cannot be read, everything else is still returned.
    """
    run = RunReader(out)
    line, offset = _place(run, place)
    decoder = run.decoder()
    rows = Rows(run, None if root is None else str(root) if is_uri(root) else Path(root))
    located = run.find(line, offset)
    found = rows.find(located)
    reader, document, manifest = located.reader, located.document, run.manifest
    token = reader.tokens(located.position, located.position + 1)
    starts_in, starts_at = reader.place(document.start)
    return Trace(
        shard=line.name,
        offset=offset,
        token=int(token[0]),
        token_text=_text(decoder.decode(token)),
        dataset=manifest.dataset,
        revision=manifest.revision,
        source=manifest.sources[located.source].path,
        row=document.row,
        document=located.number,
        starts_in=starts_in,
        starts_at=starts_at,
        position=located.position - document.start,
        document_tokens=document.end - document.start if document.is_whole else None,
        first_words=_text(decoder.decode(_first_words(located))),
        id=_short(found.row.id if found.row else None),
        url=_short(found.row.url if found.row else None),
        missing=found.reason,
    )


def in_words(found: Trace) -> str:
    """Return a trace as text, with advice on how to get what is missing."""
    length = "" if found.document_tokens is None else f" of {found.document_tokens:,}"
    number = "a document" if found.document is None else f"document {found.document:,}"
    rows: dict[str, object] = {
        "source": found.source,
        "dataset": " ".join(filter(None, (found.dataset, found.revision))),
        "row": f"{found.row:,}",
        "id": found.id,
        "url": found.url,
        "document": f"{number} of the run, from {found.starts_in}:{found.starts_at}",
        "token": f"{found.position:,}{length} in the document, {found.token} {_quoted(found.token_text)}",
        "begins": _quoted(found.first_words),
    }
    rows = {name: value for name, value in rows.items() if value is not None}
    place = f"{found.shard}:{found.offset}"
    if not found.missing:
        return message(place, **rows)
    advice = "to get the id and the url, pass the folder with the source files: --source DIR"
    return f"{message(place, advice, **rows)}\nnot read: {found.missing}"


def _quoted(text: str) -> str:
    return records.encode(text).decode()


def _first_words(located: Located) -> tokenizer.Tokens:
    """Return the first tokens of a document, without its separators."""
    document, reader = located.document, located.reader
    text = reader.separators.inside(document.start, document.end, is_whole=document.is_whole)
    return reader.tokens(text.start, min(text.start + _WORDS, text.stop))


def _place(run: RunReader, given: str) -> tuple[ShardLine, int]:
    """Return the token shard and the offset that SHARD:OFFSET refers to."""
    name, _, number = given.rpartition(":")
    try:
        offset = parse_count(number)
    except ValueError as error:
        raise UsageError(
            message(
                "this does not name a token",
                "give a token shard and the index of a token in it, from 0: train_00000_001:1234",
                given=given,
                reason=error,
            )
        ) from None
    line = find_shard(run.manifest, name)
    if not layout.is_shard(run.manifest.rules, line.name):
        raise ManifestError(message("a run manifest names a file that is no token shard", file=line.name))
    if offset >= line.tokens:
        raise UsageError(
            message(
                f"the token shard has only {line.tokens:,} tokens",
                f"choose a number from 0 to {line.tokens - 1:,}",
                shard=line.name,
                given=f"{offset:,}",
            )
        )
    return line, offset


def _text(content: bytes) -> str:
    return printable(content.decode(errors="replace"))


def _short(text: str | None) -> str | None:
    return None if text is None else printable(text[:2000]).replace("\n", " ")
