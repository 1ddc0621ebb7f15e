"""Read an existing run: its sources as streams of tokens, its documents by number.

The lines of the run manifest are checked against what its jobs must have made
before any token is read. An unfinished run can be read as far as it has got.
"""

import os
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from fwconvert.errors import ManifestError, UsageError, message
from fwconvert.recipes import check_rules
from fwconvert.shards.expected import Account, ExpectedShard
from fwconvert.shards.passages import Passage
from fwconvert.shards.passages import length as length_of
from fwconvert.shards.passages import passages as passages_of
from fwconvert.shards.stream import DocumentSpan, StreamReader
from fwconvert.store import layout, run_manifest
from fwconvert.store.base import Store
from fwconvert.store.local import open_store
from fwconvert.store.receipts import ShardLine
from fwconvert.store.run_manifest import RunManifest
from fwconvert.tokens import registry
from fwconvert.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Located:
    """A document of the run, and how to read it."""

    source: int
    # In the run, counted from 1; None while a source before it is not converted.
    number: int | None
    document: DocumentSpan
    reader: StreamReader
    # The position of the requested token in the stream of the source.
    position: int


class RunReader:
    """The run in a folder; its manifest is read there unless one is given, made from receipts for example."""

    def __init__(self, out: str | os.PathLike[str], manifest: RunManifest | None = None) -> None:
        self.store = open_store(out)
        self.manifest: RunManifest = read_manifest(self.store) if manifest is None else manifest
        self.account = Account(self.manifest)
        self.account.recipe.source.check()

    def decoder(self) -> Tokenizer:
        """Return the tokenizer that turns the run's tokens into text."""
        return registry.load(registry.of_rules(self.manifest.rules), self.store.pull(layout.VOCABULARIES))

    @cached_property
    def streams(self) -> list[tuple[Passage, ...]]:
        """The stream of each source whose job is done, joined shards that are yet to be made included."""
        lines = {line.name: line for line in self.manifest.shards}
        shards = [_matching(shard, lines) for shard in (*self.account.own, *self.account.joined)]
        found = passages_of(shards, len(self.manifest.sources))
        return [self._with_the_rest(source, passages) for source, passages in enumerate(found)]

    def _with_the_rest(self, source: int, passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
        """Add a placeholder for tokens that are in no shard: a tail not joined yet, or dropped."""
        job, length = self.account.jobs.get(source), length_of(passages)
        if job is None or job.tokens <= length:
            return passages
        rest = _unmade(f"the tail of {job.path}", job.tokens - length, ())
        return (*passages, Passage(rest, 0, length, rest.tokens))

    def reader(self, source: int) -> StreamReader:
        """Return a reader of the stream of a source."""
        rules = self.manifest.rules
        return StreamReader(self.store, rules, self.streams[source], registry.separators_of(rules))

    def find(self, line: ShardLine, offset: int) -> Located:
        """Return the document to which a token of a token shard belongs."""
        source = next((index for index, first in reversed(line.segments) if first <= offset), -1)
        passages = self.streams[source] if 0 <= source < len(self.streams) else ()
        here = (passage for passage in passages if passage.shard.name == line.name)
        # A shard may have two passages of one source, if it has absorbed a full shard.
        passage = next((one for one in here if 0 <= offset - one.first < one.tokens), None)
        if passage is None:
            raise UsageError(
                message(
                    "the source of these tokens is not known yet: a job has to be repeated",
                    "run the command that made this run again, and let it finish",
                    shard=line.name,
                )
            )
        reader = self.reader(source)
        position = passage.start + offset - passage.first
        document = self._cut_by_limit(source, reader, reader.document_at(position))
        before = self._documents_before(source)
        number = None if before is None else before + document.number + 1
        return Located(source, number, document, reader, position)

    def document(self, number: int) -> Located:
        """Return a document by its number in the run, counted from 1: those of the first source first."""
        counts = [self._documents(source) for source in range(len(self.manifest.sources))]
        ends = list(accumulate(counts))
        source = next((at for at, end in enumerate(ends) if number <= end), None)
        missing = [at for at in range(len(counts)) if at not in self.account.jobs]
        if missing and (source is None or missing[0] < source):
            raise UsageError(
                message(
                    "the run is not finished, so the number of this document is not known yet",
                    "run the command that made this run again, and let it finish",
                    document=f"{number:,}",
                    not_converted=self.manifest.sources[missing[0]].path,
                )
            )
        if source is None:
            raise UsageError(
                message(
                    f"the run has only {sum(counts):,} documents",
                    f"choose a number from 1 to {sum(counts):,}",
                    document=f"{number:,}",
                )
            )
        reader = self.reader(source)
        index = number - 1 - ends[source] + counts[source]
        document = self._cut_by_limit(source, reader, reader.document(index))
        return Located(source, number, document, reader, document.start)

    def _cut_by_limit(self, source: int, reader: StreamReader, document: DocumentSpan) -> DocumentSpan:
        """Return a document, marked as not whole if the run's limit has cut it off."""
        job = self.account.jobs.get(source)
        cut = job is not None and job.cut and document.end == reader.length
        return replace(document, is_whole=False) if cut else document

    def _documents(self, source: int) -> int:
        job = self.account.jobs.get(source)
        return job.documents if job else 0

    def _documents_before(self, source: int) -> int | None:
        if any(index not in self.account.jobs for index in range(source)):
            return None
        return sum(self._documents(index) for index in range(source))


def open_run(out: str | os.PathLike[str]) -> RunReader:
    """Return a reader of the run in the folder `out`, or raise UsageError if there is none."""
    return RunReader(out)


def read_manifest(store: Store) -> RunManifest:
    """Return the run manifest of a folder; raise ManifestError if its rules are invalid."""
    manifest = run_manifest.read(store)
    try:
        check_rules(manifest.rules)
        registry.of_rules(manifest.rules)
    except UsageError as error:
        raise ManifestError(
            message("a run manifest has invalid rules", file=store.address(layout.MANIFEST), reason=error)
        ) from error
    return manifest


def _matching(shard: ExpectedShard, lines: dict[str, ShardLine]) -> ShardLine:
    """Return the manifest line of a token shard, or one without hashes if it is not made yet."""
    line = lines.get(shard.name)
    if line is None:
        return _unmade(shard.name, shard.tokens, shard.segments)
    if (line.split, line.tokens, line.segments) != (shard.split, shard.tokens, shard.segments):
        raise ManifestError(
            message(
                "a run manifest contradicts itself: a token shard is not what its jobs must have made",
                "run fwconvert verify to see what is wrong",
                shard=line.name,
                wanted=f"{shard.split}, {shard.tokens:,} tokens, segments {shard.segments}"[:500],
                found=f"{line.split}, {line.tokens:,} tokens, segments {line.segments}"[:500],
            )
        )
    return line


def _unmade(name: str, tokens: int, segments: tuple[tuple[int, int], ...]) -> ShardLine:
    return ShardLine(name, "train", tokens, 0, 0, "", "", segments)
