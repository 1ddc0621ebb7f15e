"""Decode the documents of a token shard back into text."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fwconvert.errors import ManifestError, UsageError, message
from fwconvert.inspection.reader import RunReader
from fwconvert.shards import shard
from fwconvert.store import layout, run_manifest
from fwconvert.store.base import Store
from fwconvert.store.local import open_store
from fwconvert.store.receipts import ShardLine
from fwconvert.store.run_manifest import RunManifest
from fwconvert.tokens import registry, tokenizer


@dataclass(frozen=True)
class Document:
    """A document, or the part of it that is in one token shard."""

    # Its number in the shard; 0 for the end of a document that starts in an earlier shard.
    number: int
    source: str
    row: int | None
    tokens: int
    # Whether it is known to end in this shard, from the shard alone.
    whole: bool
    text: str


def documents(out: str | os.PathLike[str], name: str, most: int) -> tuple[ShardLine, list[Document]]:
    """Return the shard that `name` refers to and the first `most` documents that start in it.

    If none starts there, return the piece of one document that the shard holds.
    """
    store = open_store(out)
    manifest = run_manifest.read(store)
    line = find_shard(manifest, name)
    if not layout.is_shard(manifest.rules, line.name):
        raise ManifestError(message("a run manifest names a file that is no token shard", file=line.name))
    decoder = registry.load(registry.of_rules(manifest.rules), store.pull(layout.VOCABULARIES))
    return line, list(_documents(store, manifest, line, decoder, most))


def numbered(out: str | os.PathLike[str], number: int) -> tuple[Document, str]:
    """Return a whole document by its number in the run, from 1, and where it starts: SHARD:OFFSET."""
    run = RunReader(out)
    decoder = run.decoder()
    located = run.document(number)
    found = located.document
    tokens = located.reader.tokens(found.start, found.end)
    document = Document(
        number=number,
        source=run.manifest.sources[located.source].path,
        row=found.row,
        tokens=len(tokens),
        whole=found.is_whole,
        text=decoder.decode(tokens).decode(errors="replace"),
    )
    return document, ":".join(map(str, located.reader.place(found.start)))


def find_shard(manifest: RunManifest, name: str) -> ShardLine:
    """Return the one shard that `name` refers to: its file name, a path to it, or part of its name."""
    wanted = Path(name).name
    found = [line for line in manifest.shards if line.name == wanted]
    found = found or [line for line in manifest.shards if wanted in line.name]
    if len(found) != 1:
        some = ", ".join(line.name for line in (found or manifest.shards)[:3])
        raise UsageError(
            message(
                "that name matches several token shards"
                if found
                else "there is no such token shard in this run",
                "give the full name of one",
                given=name,
                for_example=some or "none is finished yet",
            )
        )
    return found[0]


def _documents(
    store: Store, manifest: RunManifest, line: ShardLine, decoder: tokenizer.Tokenizer, most: int
) -> Iterator[Document]:
    kind = manifest.rules.shard_format
    with store.on_disk(layout.shard(line.name)) as path, store.on_disk(layout.index(line.name)) as index_path:
        tokens = shard.read_tokens(path, manifest.rules.token_type, kind, line.tokens)
        index = shard.read_index(index_path, kind)
        borders = [first for _, first in line.segments]
        # A document ends where the next one starts, or where another source's tokens begin.
        near = index["start"][: most + 1].astype(np.int64)
        bounds = np.union1d(near, [*borders, len(tokens)]).tolist()
        starts = index["start"][:most].tolist() or [0]
        known = all(0 <= source < len(manifest.sources) for source, _ in line.segments)
        if not known or min(borders, default=1) != 0 or not len(tokens):
            raise shard.misfit(line.name)
        shard.check_starts(near, 0, len(tokens), line.name)
        for number, start in enumerate(starts, 1):
            end = next(bound for bound in bounds if bound > start)
            source, _ = max((segment for segment in line.segments if segment[1] <= start), key=lambda s: s[1])
            yield Document(
                number=number if len(index) else 0,
                source=manifest.sources[source].path,
                row=int(index["row"][number - 1]) if len(index) else None,
                tokens=end - start,
                whole=end < len(tokens) and end not in borders and len(index) > 0,
                text=decoder.decode(tokens[start:end]).decode(errors="replace"),
            )
