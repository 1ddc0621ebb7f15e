"""Where a token comes from: its document, the row of its source, and what that says of itself."""

from pathlib import Path

from fwconvert import records
from fwconvert.errors import ManifestError, UsageError, message, printable
from fwconvert.recipe import EotSide, parse_count
from fwconvert.records import Part
from fwconvert.run_reader import Located, RunReader
from fwconvert.show import find_shard
from fwconvert.source_row import Rows
from fwconvert.store import names
from fwconvert.store.receipts import ShardLine
from fwconvert.tokens import tokenizer, vocabulary

# Tokens of a document that are enough for its first words.
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
    # In the run; None if a source before it is not converted yet.
    document: int | None
    # Where the document starts, and where in the document the token is.
    starts_in: str
    starts_at: int
    position: int
    # None if its end is not there: in a token shard that is not made yet, dropped, or cut off by the limit.
    document_tokens: int | None
    first_words: str
    # From the source file; None if it was not to be had, for the reason told.
    id: str | None
    url: str | None
    missing: str


def trace(out: Path, place: str, root: Path | None = None) -> Trace:
    """Return where the token at `place` (SHARD:OFFSET) of the run in `out` comes from.

    The row itself is read from the files below `root`, or from where the run's
    sources were, or over the hub. Without them the rest is told.
    """
    run = RunReader(out)
    line, offset = _place(run, place)
    decoder = tokenizer.load(vocabulary.find(run.manifest.rules.tokenizer), run.folder.vocabularies)
    rows = Rows(run, root)
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
        first_words=_text(decoder.decode(_first_words(located, manifest.rules.eot))),
        id=_short(found.row.id if found.row else None),
        url=_short(found.row.url if found.row else None),
        missing=found.reason,
    )


def in_words(found: Trace) -> str:
    """Return what was found for a person, and how to get what is missing."""
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
    advice = "to have the id and the url, name the folder that has the source files: --source DIR"
    return f"{message(place, advice, **rows)}\nnot read: {found.missing}"


def _quoted(text: str) -> str:
    return records.encode(text).decode()


def _first_words(located: Located, side: EotSide) -> tokenizer.Tokens:
    """Return the first tokens of a document, without its separator."""
    document = located.document
    begin, end = document.start, document.end
    if side == "before":
        begin += 1
    elif document.is_whole:
        end -= 1
    return located.reader.tokens(begin, min(begin + _WORDS, end))


def _place(run: RunReader, given: str) -> tuple[ShardLine, int]:
    """Return the token shard and the offset that a user means."""
    name, _, number = given.rpartition(":")
    try:
        offset = parse_count(number)
    except ValueError as error:
        raise UsageError(
            message(
                "this is not the place of a token",
                "give a token shard and the number of a token in it, from 0: train_00000_001:1234",
                given=given,
                reason=error,
            )
        ) from None
    line = find_shard(run.manifest, name)
    if not names.is_shard(run.manifest.rules, line.name):
        raise ManifestError(message("a run manifest names a file that is no token shard", file=line.name))
    if offset >= line.tokens:
        raise UsageError(
            message(
                "the token shard has not so many tokens",
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
