"""Read single documents of a run, of any size and wherever it lies: only the bytes that are shown are read.

So nothing is hashed here, as `trace` and `export` do: what is shown is what stands
in the files. Numbers in an index are held against its token shard before they are used.
"""

import codecs
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert.errors import FwconvertError, ManifestError, ShardError, UsageError, message, printable
from fwconvert.inspection.reader import RunReader
from fwconvert.inspection.show import find_shard
from fwconvert.shards import shard
from fwconvert.shards.passages import Passage
from fwconvert.store import layout
from fwconvert.store.receipts import ShardLine

# What is shown of a document at a time, and of one token.
MOST_TOKENS = 2048
_MOST_TEXT = 400
# An index that is read whole; larger ones are mapped, which needs them on this machine.
_MOST_INDEX_BYTES = 64 * 2**20
# What one search reads, and how much of it at a time.
_SEARCHED = 2**22
_WINDOW = 2**18
MOST_NEEDLE = 500


@dataclass(frozen=True)
class Place:
    """A token of the run."""

    shard: str
    offset: int

    def __str__(self) -> str:
        return f"{self.shard}:{self.offset}"


@dataclass(frozen=True)
class Piece:
    """A document, or the part of one that stands in one token shard."""

    shard: str
    # In the shard, from 1; 0 for the end of a document that begins in an earlier shard.
    number: int
    documents: int
    begin: int
    end: int
    source: int
    path: str
    row: int | None
    # Where the rest of it is.
    continued_from: Place | None
    continued_in: Place | None

    @property
    def place(self) -> Place:
        """Its first token."""
        return Place(self.shard, self.begin)


@dataclass(frozen=True)
class Token:
    """A token as it is shown: its id, and the text that is complete with it."""

    id: int
    text: str
    is_separator: bool = False


class Reader:
    """The documents of a run. May be used by several threads."""

    def __init__(self, run: RunReader) -> None:
        self._run = run
        self._lines = {line.name: line for line in run.manifest.shards}
        self._decoder: Any = None
        self._entries = lru_cache(8)(self._read_entries)
        self._text_of = lru_cache(65_536)(self._decode_one)

    def line(self, name: str) -> ShardLine:
        """Return the token shard of this name, or raise UsageError."""
        line = self._lines.get(name) or find_shard(self._run.manifest, name)
        if not layout.is_shard(self._run.manifest.rules, line.name):
            raise ManifestError(message("a run manifest names a file that is no token shard", file=line.name))
        return line

    def at(self, name: str, offset: int) -> Piece:
        """Return the document that a token of a token shard belongs to, as far as it stands in that shard."""
        line = self.line(name)
        if not 0 <= offset < line.tokens:
            raise UsageError(
                message(
                    f"the token shard has only {line.tokens:,} tokens",
                    f"choose a number from 0 to {line.tokens - 1:,}",
                    shard=line.name,
                    given=f"{offset:,}",
                )
            )
        entries = self._entries(line.name)
        starts = entries["start"]
        source, first, limit = self._segment(line, offset)
        at = bisect_right(starts, offset) - 1
        begin, number, row = first, 0, None
        if at >= 0 and int(starts[at]) >= first:
            begin, number, row = int(starts[at]), at + 1, int(entries["row"][at])
        end = min(int(starts[at + 1]) if at + 1 < len(starts) else limit, limit)
        if not 0 <= begin <= offset < end <= line.tokens:
            raise shard.misfit(line.name)
        before, after = self._around(line.name, source, begin, end, number)
        path = self._run.manifest.sources[source].path
        return Piece(line.name, number, len(entries), begin, end, source, path, row, before, after)

    def numbered(self, name: str, number: int) -> Piece:
        """Return a document by its number in a token shard, from 1."""
        line = self.line(name)
        entries = self._entries(line.name)
        if not 1 <= number <= len(entries):
            raise UsageError(
                message(
                    f"{len(entries):,} documents begin in this token shard",
                    "choose a number from 1 on" if len(entries) else "it holds a part of one document",
                    shard=line.name,
                    given=f"{number:,}",
                )
            )
        return self.at(line.name, int(entries["start"][number - 1]))

    def document(self, number: int) -> Piece:
        """Return a document by its number in the run, from 1: those of the first source first."""
        jobs, sources = self._run.account.jobs, len(self._run.manifest.sources)
        counts = [jobs[at].documents if at in jobs else 0 for at in range(sources)]
        ends = list(accumulate(counts))
        source = next((at for at, end in enumerate(ends) if 0 < number <= end), None)
        if source is None or any(at not in jobs for at in range(source)):
            raise UsageError(
                message(
                    "there is no document of this number, or not yet",
                    document=f"{number:,}",
                    documents=f"{sum(counts):,}",
                )
            )
        left = number - 1 - ends[source] + counts[source]
        for passage in self._run.streams[source]:
            if not passage.shard.sha256:
                break
            starts = self._entries(passage.shard.name)["start"]
            begin = bisect_left(starts, passage.first)
            found = bisect_left(starts, passage.first + passage.tokens) - begin
            if left < found:
                return self.at(passage.shard.name, int(starts[begin + left]))
            left -= found
        raise UsageError(
            message(
                "this document is in a token shard that is not made yet, or its tokens were dropped",
                document=f"{number:,}",
            )
        )

    def number_in_run(self, piece: Piece) -> int | None:
        """Return the number of a document in the run, from 1; None if it cannot be known, or not cheaply."""
        jobs, found = self._run.account.jobs, 0
        if not piece.number and piece.continued_from is not None:
            piece = self.at(piece.continued_from.shard, piece.continued_from.offset)
        if not piece.number or any(at not in jobs for at in range(piece.source)):
            return None
        for passage in self._run.streams[piece.source]:
            if not passage.shard.sha256:
                return None
            starts = self._entries(passage.shard.name)["start"]
            here = passage.shard.name == piece.shard and 0 <= piece.begin - passage.first < passage.tokens
            end = piece.begin if here else passage.first + passage.tokens
            found += bisect_left(starts, end) - bisect_left(starts, passage.first)
            if here:
                return sum(jobs[at].documents for at in range(piece.source)) + found + 1
        return None

    def in_stream(self, source: int, position: int) -> Place | None:
        """Return where a token of a source's stream stands, or None if its token shard is not made."""
        for passage in self._run.streams[source]:
            if passage.start <= position < passage.end:
                made = passage.shard.sha256
                return Place(passage.shard.name, passage.first + position - passage.start) if made else None
        return None

    def tokens(self, piece: Piece, begin: int, most: int = MOST_TOKENS) -> list[Token]:
        """Return at most so many tokens of a document, from a token of its shard on."""
        begin = max(piece.begin, begin)
        ids = self._ids(piece.shard, begin, min(piece.end, begin + most))
        decoder, separators = codecs.getincrementaldecoder("utf-8")("replace"), self._separators
        found = []
        for one in ids.tolist():
            if one in separators:
                found.append(Token(one, separators[one], is_separator=True))
                decoder.reset()
                continue
            text = decoder.decode(self._text_of(one))
            found.append(Token(one, printable(text[:_MOST_TEXT]) + ("…" if len(text) > _MOST_TEXT else "")))
        return found

    def text_of(self, token: int) -> str:
        """Return the text of one token as it is shown; bytes that are no text by themselves as numbers."""
        content = self._text_of(token)
        try:
            return printable(content.decode()[:_MOST_TEXT]).replace("\n", "\\n").replace("\t", "\\t")
        except UnicodeDecodeError:
            return " ".join(f"{byte:02x}" for byte in content[:16])

    def search(self, name: str, text: str, begin: int) -> tuple[Place | None, int]:
        """Return where a text stands next in a token shard, from a token on, and from which to go on.

        Capital letters of ASCII count as small ones. One call reads a bounded part of the shard.
        """
        line, needle = self.line(name), text.encode(errors="replace").lower()
        if not 0 < len(needle) <= MOST_NEEDLE:
            raise UsageError(message(f"search for a text of 1 to {MOST_NEEDLE} bytes"))
        stop = min(line.tokens, begin + _SEARCHED)
        for at in range(max(0, begin), stop, _WINDOW):
            # The text may begin with a token's last byte, and each of its bytes may be a token.
            ids = self._ids(line.name, at, min(line.tokens, at + _WINDOW + len(needle)))
            different, which = np.unique(ids, return_inverse=True)
            texts = [self._text_of(one).lower() for one in different.tolist()]
            found = b"".join([texts[one] for one in which.tolist()]).find(needle)
            if found >= 0:  # In the first token that ends behind it.
                ends = np.cumsum(np.array([*map(len, texts)])[which])
                place = at + int(np.searchsorted(ends, found, side="right"))
                return Place(line.name, place), place + 1
        return None, stop

    @property
    def _separators(self) -> dict[int, str]:
        """The separators, and what is shown for each."""
        around = self._tokenizer.spec.separators(self._run.manifest.rules.eot)
        if around.each == 1:
            return {self._tokenizer.spec.eot: "end of text"}
        return {around.before: "begin of text", around.after: "end of text"}

    @property
    def _tokenizer(self) -> Any:
        if self._decoder is None:
            self._decoder = self._run.decoder()
        return self._decoder

    def _decode_one(self, token: int) -> bytes:
        try:
            return bytes(self._tokenizer.decode(np.array([token], np.uint32)))
        except FwconvertError:
            return f"<{token} is no token>".encode()

    def _ids(self, name: str, begin: int, end: int) -> NDArray[Any]:
        """Return tokens of a token shard: read from their place, or unpacked if it is compressed."""
        line, rules = self.line(name), self._run.manifest.rules
        kind, wanted = rules.shard_format, max(0, end - begin)
        if rules.is_packed:
            with self._run.store.on_disk(layout.shard(line.name)) as path:
                tokens = shard.read_tokens(path, rules.token_type, kind, line.tokens)
                return np.array(tokens[begin:end])
        size = rules.token_bytes
        first = kind.header_bytes + begin * size
        try:
            content = self._run.store.read_range(layout.shard(line.name), first, first + wanted * size)
        except OSError as error:
            raise _unreadable(self._run.store.address(line.name), error) from error
        if len(content) != wanted * size:
            raise _unreadable(self._run.store.address(line.name), "it is too short")
        return np.frombuffer(content, shard.numpy_type(rules.token_type))

    def _read_entries(self, name: str) -> NDArray[Any]:
        """Return the document index of a token shard, checked against it."""
        line, kind, store = self.line(name), self._run.manifest.rules.shard_format, self._run.store
        size = line.documents * kind.index_entry_bytes
        if store.is_remote and size > _MOST_INDEX_BYTES:
            raise UsageError(
                message(
                    "the document index of this token shard is too large to be fetched for one document",
                    "copy the run to this machine first: fwconvert copy",
                    shard=line.name,
                    bytes=f"{size:,}",
                )
            )
        with store.on_disk(layout.index(line.name)) as path:
            entries = shard.read_index(path, kind, line.documents)
            if size <= _MOST_INDEX_BYTES:
                entries = np.array(entries)
                shard.check_starts(entries["start"], 0, line.tokens, line.name)
        return entries

    def _segment(self, line: ShardLine, offset: int) -> tuple[int, int, int]:
        """Return the source of a token, and where that source's tokens begin and end in the shard."""
        firsts = [first for _, first in line.segments]
        at = bisect_right(firsts, offset) - 1
        if (
            at < 0
            or firsts != sorted(firsts)
            or not 0 <= line.segments[at][0] < len(self._run.manifest.sources)
        ):
            raise shard.misfit(line.name)
        end = firsts[at + 1] if at + 1 < len(firsts) else line.tokens
        return line.segments[at][0], firsts[at], end

    def _around(
        self, name: str, source: int, begin: int, end: int, number: int
    ) -> tuple[Place | None, Place | None]:
        """Return where a document that is cut by the ends of shards goes on, before and after."""
        try:
            stream = self._run.streams[source]
        except FwconvertError:  # A run that contradicts itself can be read all the same.
            return None, None
        at = next((at for at, one in enumerate(stream) if _holds(one, name, begin)), None)
        if at is None:
            return None, None
        before = self._beginning(stream, at) if not number else None
        here, after = stream[at], None
        if end == here.first + here.tokens and at + 1 < len(stream) and stream[at + 1].shard.sha256:
            other = stream[at + 1]
            starts = self._entries(other.shard.name)["start"]
            first = bisect_left(starts, other.first)
            if first == len(starts) or int(starts[first]) != other.first:
                after = Place(other.shard.name, other.first)
        return before, after

    def _beginning(self, stream: Sequence[Passage], at: int) -> Place | None:
        for passage in _earlier(stream, at):
            if not passage.shard.sha256:
                return None
            starts = self._entries(passage.shard.name)["start"]
            last = bisect_left(starts, passage.first + passage.tokens) - 1
            if last >= 0 and int(starts[last]) >= passage.first:
                return Place(passage.shard.name, int(starts[last]))
        return None


def _holds(passage: Passage, name: str, offset: int) -> bool:
    return passage.shard.name == name and 0 <= offset - passage.first < passage.tokens


def _earlier(stream: Sequence[Passage], at: int) -> Iterator[Passage]:
    return (stream[index] for index in range(at - 1, -1, -1))


def _unreadable(file: str, reason: object) -> ShardError:
    return ShardError(
        message(
            "a file of the run cannot be read",
            "run the command that made the run again: it remakes what is missing",
            file=file,
            reason=getattr(reason, "strerror", None) or reason,
        )
    )
