"""A source as tokens, and how much of it a run takes: the first half of the oracle."""

import base64
import hashlib
import importlib.resources
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import naive
import tiktoken
import zstandard
from worlds import expressions
from worlds.recipes import Rules
from worlds.sources import Source


@dataclass(frozen=True)
class Document:
    """A row that is a document: where its tokens begin and end in those of its source."""

    row: int
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Stream:
    """A source as tokens. `skipped` tells of each row that is no document why."""

    tokens: list[int]
    documents: list[Document]
    skipped: dict[int, str]
    rows: int

    def document_at(self, position: int) -> int:
        """Return the number of the document that has the token at a position."""
        return bisect_right([document.start for document in self.documents], position) - 1


@dataclass(frozen=True)
class Job:
    """What the run takes of a source: the first so many tokens."""

    source: Source
    stream: Stream
    tokens: int

    @property
    def limited(self) -> bool:
        return self.tokens < len(self.stream.tokens)

    @property
    def documents(self) -> list[Document]:
        return [document for document in self.stream.documents if document.start < self.tokens]

    @property
    def cut(self) -> bool:
        return self.limited and self.documents[-1].end > self.tokens

    @property
    def rows(self) -> int:
        """Those before the first document that has no token in the output, or up to the one that is cut."""
        if not self.limited:
            return self.stream.rows
        begun = len(self.documents)
        return self.documents[-1].row + 1 if self.cut else self.stream.documents[begun].row

    def line(self, tail_tokens: int) -> dict[str, Any]:
        """Return the job's line in the run manifest."""
        why = [reason for row, reason in self.stream.skipped.items() if row < self.rows]
        line = {
            "path": self.source.path,
            "bytes": len(self.source.content),
            "sha256": sha256(self.source.content),
            "rows": self.rows,
            "documents": len(self.documents),
            "null_rows": why.count("null"),
            "empty_rows": why.count("empty"),
            "text_bytes": sum(len(document.text.encode()) for document in self.documents),
            "tokens": self.tokens,
            "tail_tokens": tail_tokens,
        }
        optional = {"filtered_rows": why.count("filtered"), "limited": self.limited, "cut": self.cut}
        return line | {name: value for name, value in optional.items() if value}


def read(source: Source, rules: Rules) -> Stream:
    """Return the tokens of a source; the filter comes first, then null and empty texts are skipped."""
    encode = encoder(rules.tokenizer)
    stream = Stream([], [], {}, len(source.rows))
    for at, row in enumerate(source.rows):
        text = row[rules.text_column]
        reason = "filtered" if not _is_kept(rules, row) else "null" if text is None else "empty"
        if reason == "filtered" or not text:
            stream.skipped[at] = reason
            continue
        begin = len(stream.tokens)
        tokens = encode(text)
        stream.tokens.extend([*rules.before, *tokens, *rules.after])
        stream.documents.append(Document(at, begin, len(stream.tokens), text))
    return stream


def _is_kept(rules: Rules, row: Mapping[str, Any]) -> bool:
    for name, least in (("score", rules.min_score), ("int_score", rules.min_int_score)):
        if least is not None and not (row[name] is not None and row[name] >= least):
            return False
    return rules.where is None or expressions.is_kept(rules.where, row)


@lru_cache(maxsize=4)
def encoder(tokenizer: str) -> Callable[[str], list[int]]:
    """Return the function that turns a text into tokens."""
    if tokenizer != "r50k_base":
        return naive.encoder(tokenizer)
    file = importlib.resources.files("fwconvert") / "vocabularies" / "r50k_base.tiktoken.zst"
    lines = zstandard.ZstdDecompressor().decompress(file.read_bytes(), 2**26).splitlines()
    ranks = {base64.b64decode(piece): int(rank) for piece, rank in map(bytes.split, lines)}
    return tiktoken.Encoding(
        tokenizer, pat_str=naive.R50K, mergeable_ranks=ranks, special_tokens={}
    ).encode_ordinary


def jobs(sources: Sequence[Source], rules: Rules) -> tuple[list[Job], bool]:
    """Return the sources up to the limit, each with what of it counts; and whether it was reached."""
    documents, tokens = rules.limit_documents, rules.limit_tokens
    found: list[Job] = []
    for source in sources:
        stream = read(source, rules)
        end = len(stream.tokens)
        if documents is not None and len(stream.documents) > documents:
            end = stream.documents[documents].start
        job = Job(source, stream, end if tokens is None else min(end, tokens))
        found.append(job)
        documents = None if documents is None else documents - len(job.documents)
        tokens = None if tokens is None else tokens - job.tokens
        if documents == 0 or tokens == 0:
            return found, True
    return found, False


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
