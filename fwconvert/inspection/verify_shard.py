"""Audit one token shard and its document index against their line in the run manifest.

Each token is read once, in steps: for the hash, the range of ids, and the starts
of documents. The file is read and not mapped, because a disk error under a map
kills the process, while a failed read is an error that can be reported. What one
shard cannot show (whether its first token continues a document) is left to the
caller, which knows its neighbours; a Stretch has what it needs for that.
"""

import hashlib
import io
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fwconvert.errors import ShardError, printable, shortened
from fwconvert.files import Refused, open_to_read, sha256_of
from fwconvert.recipes import Rules, Separators
from fwconvert.shards import shard, table
from fwconvert.shards.sidecars import Spans, sidecar_parts
from fwconvert.store import layout
from fwconvert.store.base import Store
from fwconvert.store.receipts import ShardLine, Sidecar
from fwconvert.tokens.spec import TokenizerSpec

# Tokens at a time: a few MB for each thread, whatever the size of a shard.
STEP = 2**20


@dataclass
class Tally:
    """How many tokens have some fault, and where the first one is."""

    count: int = 0
    first: int = -1

    def add(self, positions: NDArray[np.int64]) -> None:
        """Add these positions."""
        if len(positions) and not self.count:
            self.first = int(positions[0])
        self.count += len(positions)


@dataclass
class Mark:
    """A separator, by which documents are known to start: `shift` tokens after it."""

    token: int
    shift: int
    # What it is called; and in words, and where, it stands though no document starts, or does not stand.
    name: str
    missing_words: str
    unexpected_words: str
    missing: Tally = field(default_factory=Tally)
    unexpected: Tally = field(default_factory=Tally)


def marks_of(separators: Separators) -> list[Mark]:
    """Return what shows where documents start: each separator by itself."""
    if separators.before is None or separators.after is None:
        token, shift = (separators.after, 1) if separators.before is None else (separators.before, 0)
        assert token is not None  # noqa: S101  # for mypy: a document has at least one
        return [Mark(token, shift, "EOT", "documents are missing", "documents start where there is no EOT")]
    return [
        Mark(separators.before, 0, "BOS", "documents are missing", "documents start where there is no BOS"),
        Mark(
            separators.after, 1, "EOT", "EOTs end no document: another should start at the next token",
            "documents start without an EOT before them",
        ),
    ]  # fmt: skip


class Scan:
    """One pass over the bytes of a token shard."""

    def __init__(
        self, file: io.BufferedReader, rules: Rules, spec: TokenizerSpec, starts: NDArray[Any] | None
    ) -> None:
        self.digest = hashlib.sha256()
        self.unknown = Tally()
        self.marks = marks_of(spec.separators(rules.eot))
        self._file = file
        self._spec = spec
        self._header_bytes = rules.shard_format.header_bytes
        self._starts = starts
        self._buffer = np.empty(STEP, shard.numpy_type(rules.token_type))

    def read_header(self) -> bytes:
        """Return the bytes before the tokens."""
        head = self._file.read(self._header_bytes)
        self.digest.update(head)
        return head

    def read(self, first: int, end: int) -> tuple[dict[str, int], bool]:
        """Read the tokens of a segment; return how many separators it has, and whether an EOT ends it."""
        counts, ends_with_eot = {mark.name: 0 for mark in self.marks}, False
        for begin in range(first, end, STEP):
            tokens = self._next(min(STEP, end - begin))
            if int(tokens.max()) >= self._spec.size:
                self.unknown.add(np.flatnonzero(tokens >= self._spec.size) + begin)
            for mark in self.marks:
                positions = np.flatnonzero(tokens == mark.token)
                # After the last EOT of a segment another source continues, perhaps within a document.
                stop = min(begin + len(tokens) + mark.shift, end)
                self._compare(mark, positions + (begin + mark.shift), begin + mark.shift, stop)
                counts[mark.name] += len(positions)
            ends_with_eot = bool(tokens[-1] == self._spec.eot)
        return counts, ends_with_eot

    def _next(self, count: int) -> NDArray[Any]:
        tokens = self._buffer[:count]
        content = tokens.view(np.uint8).data
        if self._file.readinto(content) != len(content):
            raise ShardError("was cut short while it was read")
        self.digest.update(content)
        return tokens

    def _compare(self, mark: Mark, wanted: NDArray[np.int64], begin: int, stop: int) -> None:
        """Compare the starts that follow from a separator with those in the index."""
        if self._starts is None:
            return
        low, high = bisect_left(self._starts, begin), bisect_left(self._starts, stop)
        found = self._starts[low:high].astype(np.int64)
        wanted = wanted[wanted < stop]
        if not np.array_equal(found, wanted):
            mark.missing.add(np.setdiff1d(wanted, found, assume_unique=True))
            mark.unexpected.add(np.setdiff1d(found, wanted, assume_unique=True))


@dataclass(frozen=True, slots=True)  # There may be one for each of a million files.
class Problem:
    """A problem: the file of the output folder that has it, and what it is."""

    file: str
    what: str

    def __post_init__(self) -> None:
        # A file name need not be text.
        object.__setattr__(self, "file", printable(shortened(self.file)))
        object.__setattr__(self, "what", printable(shortened(self.what)))


@dataclass(frozen=True)
class Stretch:
    """The tokens of one source in one token shard, as found in the files."""

    documents: int
    # How many there are of each separator.
    separators: dict[str, int]
    begins_document: bool
    ends_with_eot: bool
    # -1 if no document starts here.
    first_row: int
    last_row: int


@dataclass(frozen=True)
class Audit:
    """What was found in the files of one token shard."""

    problems: tuple[Problem, ...]
    files: int
    bytes: int
    tokens: int
    documents: int
    # One for each segment; empty if a file is too damaged to tell.
    stretches: tuple[Stretch, ...]


def audit(store: Store, rules: Rules, spec: TokenizerSpec, line: ShardLine, segments: Sequence[int]) -> Audit:
    """Return what was found; never raise for anything in the files.

    `segments` are the positions at which the tokens of another source begin;
    the first is 0. Those past the end of the files are ignored.
    """
    with _Auditor(store, rules, spec, line) as auditor:
        return _audit(auditor, line, segments)


def _audit(auditor: "_Auditor", line: ShardLine, segments: Sequence[int]) -> Audit:
    entries = auditor.index()
    count = auditor.token_count()
    if entries is not None and count is not None:
        entries = auditor.within(entries, count)
    firsts = [0, *(first for first in segments if 0 < first < (count or 0))]
    stretches = [] if count is None else auditor.stretches(firsts, count, entries)
    auditor.sidecars(Spans(entries["start"], firsts, count) if entries is not None and count else None)
    is_known = entries is not None and count == line.tokens and len(stretches) == len(firsts)
    return Audit(
        problems=tuple(auditor.problems),
        files=auditor.files,
        bytes=auditor.bytes,
        tokens=0 if count is None else count,
        documents=0 if entries is None else len(entries),
        stretches=tuple(stretches) if is_known else (),
    )


@dataclass
class _Auditor:
    store: Store
    rules: Rules
    spec: TokenizerSpec
    line: ShardLine
    problems: list[Problem] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def __post_init__(self) -> None:
        self.shard_file = layout.shard(self.line.name)
        self.index_file = layout.index(self.line.name)
        self._held = ExitStack()
        self._paths: dict[str, Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _path(self, file: str) -> Path:
        """Return where a file can be opened, until the audit ends."""
        if file not in self._paths:
            self._paths[file] = self._held.enter_context(self.store.on_disk(file))
        return self._paths[file]

    def index(self) -> NDArray[Any] | None:
        """Return the document index if its starts are in ascending order."""
        with self._reporting(self.index_file):
            if self._is_there(
                self.index_file, self.line.documents * self.rules.shard_format.index_entry_bytes
            ):
                path = self._path(self.index_file)
                # Hashed before it is mapped, so that a disk error is raised by a read.
                self._compare_hash(self.index_file, sha256_of(path), self.line.index_sha256)
                entries = shard.read_index(path, self.rules.shard_format)
                if (at := shard.first_fall(entries["start"])) < 0:
                    return entries
                self._report(self.index_file, f"entry {at:,} does not start after the entry before it")
        return None

    def within(self, entries: NDArray[Any], count: int) -> NDArray[Any] | None:
        """Return the document index if all of it lies within the shard."""
        last = int(entries["start"][-1]) if len(entries) else -1
        if last < count:
            return entries
        self._report(self.index_file, f"a document starts at token {last:,}, but there are only {count:,}")
        return None

    def token_count(self) -> int | None:
        """Return the number of tokens if the header and the file size agree."""
        with self._reporting(self.shard_file):
            if self._is_there(self.shard_file, self.line.bytes):
                path = self._path(self.shard_file)
                count = shard.token_count(path, self.rules.token_type, self.rules.shard_format)
                if count != self.line.tokens:
                    self._report(self.shard_file, f"has {count:,} tokens instead of {self.line.tokens:,}")
                return count
        return None

    def stretches(self, firsts: list[int], count: int, entries: NDArray[Any] | None) -> list[Stretch]:
        """Read all tokens, report their problems, and return what each segment holds."""
        found = []
        with (
            self._reporting(self.shard_file),
            shard.opened(path := self._path(self.shard_file), self.rules) as file,
        ):
            scan = Scan(file, self.rules, self.spec, None if entries is None else entries["start"])
            if scan.read_header() != shard.header(self.rules.token_type, count, self.rules.shard_format):
                self._report(self.shard_file, "has bytes other than zero at the end of its header")
            for first, end in zip(firsts, [*firsts[1:], count], strict=True):
                counts, ends_with_eot = scan.read(first, end)
                inside = _between(entries, first, end)
                found.append(self._stretch(first, counts, inside, ends_with_eot=ends_with_eot))
            found_hash = sha256_of(path) if self.rules.is_packed else scan.digest.hexdigest()
            self._compare_hash(self.shard_file, found_hash, self.line.sha256)
            self._report_scan(scan)
        return found

    def sidecars(self, spans: Spans | None) -> None:
        """Compare the sidecar files, and the rows of a table, with their lines and with what follows."""
        if self.rules.shard_format.is_table and spans is not None:
            with self._reporting(self.shard_file):
                if (at := table.first_misfit(self._path(self.shard_file), spans)) >= 0:
                    self._report(
                        self.shard_file, f"has rows that do not match the document index from token {at:,} on"
                    )
        lines = {line.name: line for line in self.line.sidecars}
        wanted = layout.sidecars(self.rules, self.line.name)
        for suffix, name in zip(self.rules.shard_format.sidecars, wanted, strict=True):
            if name in lines:
                with self._reporting(name):
                    self._compare_sidecar(lines[name], suffix, spans)

    def _compare_sidecar(self, line: Sidecar, suffix: str, spans: Spans | None) -> None:
        if not self._is_there(line.name, line.bytes):
            return
        path = self._path(layout.shard(line.name))
        self._compare_hash(line.name, sha256_of(path), line.sha256)
        at = -1 if spans is None else _first_difference(path, sidecar_parts(suffix, self.rules, spans))
        if at >= 0:
            self._report(line.name, f"does not match the document index from byte {at:,} on")

    def _stretch(
        self, first: int, counts: dict[str, int], inside: NDArray[Any], *, ends_with_eot: bool
    ) -> Stretch:
        rows, some = inside["row"], len(inside) > 0
        if (at := shard.first_fall(rows)) >= 0:
            where = int(inside["start"][at])
            self._report(
                self.index_file,
                f"the document at token {where:,} is not from a later row than the one before",
            )
        return Stretch(
            documents=len(inside),
            separators=counts,
            begins_document=some and int(inside["start"][0]) == first,
            ends_with_eot=ends_with_eot,
            first_row=int(rows[0]) if some else -1,
            last_row=int(rows[-1]) if some else -1,
        )

    def _report_scan(self, scan: Scan) -> None:
        size = self.spec.size
        told = [(self.shard_file, scan.unknown, f"ids are outside the vocabulary of {size:,}")]
        for mark in scan.marks:
            told.append((self.index_file, mark.missing, mark.missing_words))
            told.append((self.index_file, mark.unexpected, mark.unexpected_words))
        for file, tally, what in told:
            if tally.count:
                self._report(file, f"{tally.count:,} {what}, the first at token {tally.first:,}")

    def _is_there(self, file: str, wanted: int) -> bool:
        try:
            size = self.store.size(file)
        except Refused:
            self._report(file, "is not a regular file")
            return False
        if size is None:
            self._report(file, "is missing")
            return False
        self.files += 1
        self.bytes += size
        if size != wanted:
            self._report(file, f"has {size:,} bytes instead of {wanted:,}")
        return True

    def _compare_hash(self, file: str, found: str, wanted: str) -> None:
        if found != wanted:
            self._report(file, f"is damaged: its sha256 is {found} instead of {wanted}")

    def _report(self, file: str, what: str) -> None:
        self.problems.append(Problem(file, what))

    @contextmanager
    def _reporting(self, file: str) -> Iterator[None]:
        """Turn errors of reading into problems."""
        try:
            yield
        except ShardError as error:
            self._report(file, one_line(error))
        except OSError as error:
            self._report(file, f"cannot be read ({error.strerror or error})")


def _first_difference(path: Path, content: Iterator[bytes]) -> int:
    """Return where a file first differs from `content`, up to the size of its parts; -1 if it does not."""
    position = 0
    with io.BufferedReader(open_to_read(path)) as file:
        for part in content:
            if file.read(len(part)) != part:
                return position
            position += len(part)
        return position if file.read(1) else -1


def one_line(error: Exception) -> str:
    """Return a multi-line message as one line, without the file, which the problem names itself."""
    wrong, *values = (" ".join(line.split()) for line in str(error).splitlines())
    kept = [value for value in values if not value.startswith(("file ", "->"))]
    return f"{wrong} ({', '.join(kept)})" if kept else wrong


def _between(entries: NDArray[Any] | None, first: int, end: int) -> NDArray[Any]:
    if entries is None:
        return np.empty(0, shard.INDEX_TYPE)
    starts = entries["start"]
    return entries[bisect_left(starts, first) : bisect_left(starts, end)]
