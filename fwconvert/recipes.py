"""Recipes: everything that decides the output bytes, and whether it can be carried out.

Equal recipes have an equal `recipe_id` and give equal bytes on any machine,
with any options. So a thing belongs in the recipe exactly if changing it
changes a byte or a name of the output.
"""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from fwconvert import formats, records, where
from fwconvert.errors import ManifestError, UsageError, message
from fwconvert.formats import Format, FormatName
from fwconvert.records import Part, Record, digest, encode, use_own_defaults

Layout = Literal["independent", "contiguous"]
EotSide = Literal["before", "after"]
TokenType = Literal["uint16", "uint32"]
# What becomes of the tokens that do not fill a last shard.
Last = Literal["keep", "drop", "merge"]
SHARD_TOKENS = 100_000_000
_MOST_FILES = 10_000_000
# No file, and no disk, has more. What a record has in numbers is smaller, too.
_MOST_BYTES = 2**63 - 1


class SourceShard(Part, frozen=True):
    """One input parquet file, named by its path below the source's root."""

    path: str
    bytes: int
    # None for files that nobody pinned; their receipts record what was read.
    sha256: str | None = None

    @property
    def is_safe(self) -> bool:
        """Whether its name cannot lead elsewhere, and its size and hash can be."""
        hashed = self.sha256 is None or re.fullmatch("[0-9a-f]{64}", self.sha256) is not None
        return is_safe(self.path) and 0 <= self.bytes <= _MOST_BYTES and hashed


class Totals(Part, frozen=True):
    """Published totals of a version; 0 where unknown."""

    files: int
    bytes: int
    rows: int = 0
    tokens: int = 0


class SourceManifest(Record, frozen=True, dict=True, tag="fwconvert source manifest 1"):
    """The pinned list of the source shards of one version."""

    name: str
    dataset: str
    revision: str
    folder: str
    files: tuple[SourceShard, ...]
    # What is known of a version whose files are resolved on first use.
    totals: Totals

    @cached_property
    def bytes(self) -> int:
        """The size of all listed files."""
        return sum(file.bytes for file in self.files)

    def check(self) -> None:
        """Raise ManifestError if this cannot be: a name that leads outside or stands twice, a size, a hash.

        Whoever writes a manifest calls it, as whoever reads one does. Names that differ only in case, or
        in how Unicode spells them, are two names: the hub has both, and what is fetched is known by its hash.
        """
        if not is_dataset(self.dataset):
            raise ManifestError(
                message(
                    "a source manifest has an invalid dataset name",
                    manifest=self.name,
                    dataset=ascii(self.dataset),
                )
            )
        if not is_revision(self.revision) or not _is_folder(self.folder):
            raise ManifestError(
                message(
                    "a source manifest has an invalid revision or folder",
                    manifest=self.name,
                    revision=ascii(self.revision),
                    folder=ascii(self.folder),
                )
            )
        seen = set()
        for file in self.files:
            if not file.is_safe or file.path in seen:
                raise ManifestError(
                    message(
                        "a source manifest has a bad entry",
                        manifest=self.name,
                        path=ascii(file.path),
                        bytes=file.bytes,
                        sha256=ascii(file.sha256),
                    )
                )
            seen.add(file.path)
        told = self.totals
        counts = (told.bytes, told.rows, told.tokens, self.bytes)
        if not 0 <= told.files <= _MOST_FILES or not all(0 <= count <= _MOST_BYTES for count in counts):
            raise ManifestError(message("a source manifest has impossible totals", manifest=self.name))


class Rules(Part, frozen=True, omit_defaults=True):
    """How a source shard becomes token shards: the recipe without its sources.

    What has a default came later. It is not written where it is the default, so
    that the recipes of before keep their ids.
    """

    tokenizer: str
    vocabulary_sha256: str
    eot: EotSide
    token_type: TokenType
    text_column: str
    # 0: all tokens for training are one file.
    shard_tokens: int
    val_tokens: int
    layout: Layout
    format: FormatName
    name: str
    block_digits: int
    last: Last = "keep"
    # What decides the bytes of compressed shards: "zstd 1.5.7, level 3".
    compress: str | None = None
    # Which rows are documents; all of the conditions must hold.
    min_score: float | None = None
    min_int_score: int | None = None
    where: str | None = None
    # Where the run ends, counted from the first source on.
    limit_documents: int | None = None
    limit_tokens: int | None = None
    # Of a tokenizer that is not built in: who loads it, how many ids it has, and which separates documents.
    tokenizer_kind: str | None = None
    vocabulary_size: int | None = None
    eot_id: int | None = None
    # The id that begins each document, if one is written besides the separator, which then ends it.
    bos_id: int | None = None
    # Of formats that have windows, the tokens of one; of tables, what decides their bytes: "pyarrow 26.0.1".
    sequence_length: int | None = None
    writer: str | None = None

    def __post_init__(self) -> None:
        use_own_defaults(self)

    @property
    def separators_each(self) -> int:
        """How many tokens a document has besides those of its text."""
        return 1 if self.bos_id is None else 2

    @property
    def separated(self) -> str:
        """How documents are separated, in words."""
        if self.bos_id is not None:
            return f"the token {self.bos_id} before and {self.eot_id} after each document"
        which = "a separator" if self.eot_id is None else f"the separator {self.eot_id}"
        return f"{which} {self.eot} each document"

    @property
    def is_filtered(self) -> bool:
        """Whether rows are chosen by what stands in their columns."""
        return self.min_score is not None or self.min_int_score is not None or self.where is not None

    @property
    def is_limited(self) -> bool:
        """Whether the run may end before its sources do."""
        return self.limit_documents is not None or self.limit_tokens is not None

    @property
    def token_bytes(self) -> int:
        """How many bytes a token takes."""
        return 2 if self.token_type == "uint16" else 4  # noqa: S105  # a piece of text, no password

    @property
    def suffix(self) -> str:
        """How the name of a token shard ends."""
        return self.shard_format.suffix + (formats.ZIPPED if self.compress else "")

    @property
    def block_tokens(self) -> int:
        """How many tokens fill a token shard."""
        return self.shard_tokens or sys.maxsize

    @property
    def shard_format(self) -> Format:
        """The format of the token shards."""
        if self.sequence_length is None:
            return formats.find(self.format)
        longest = max(self.val_tokens, self.shard_tokens * (2 if self.last == "merge" else 1))
        return formats.windowed(self.format, self.sequence_length, longest)

    @property
    def is_packed(self) -> bool:
        """Whether the tokens of a shard have to be unpacked, so that they cannot be mapped."""
        return self.compress is not None or formats.find(self.format).is_table


@dataclass(frozen=True)
class Separators:
    """The tokens that stand before and after the text of each document; None: none does. No text has them."""

    before: int | None
    after: int | None

    @property
    def each(self) -> int:
        """How many a document has."""
        return (self.before is not None) + (self.after is not None)

    def inside(self, begin: int, end: int, *, is_whole: bool) -> slice:
        """Return where the text of a document is; one that is not whole lacks what stands after it."""
        return slice(begin + (self.before is not None), end - (is_whole and self.after is not None))


class Recipe(Part, frozen=True, dict=True):
    """Everything that decides the output bytes."""

    source: SourceManifest
    rules: Rules

    @cached_property
    def recipe_id(self) -> str:
        """Equal for equal recipes; a version's display name and totals do not count.

        Nor does the size of a source that nobody pinned: a damaged file may be
        replaced by a good copy. What was converted is in its receipt.
        """
        return self._id_with(encode(self.rules))

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids under which there may be runs of this recipe, its own first.

        The command line of the first versions wrote `last` into the rules even
        where it was the default, and so gave another id to what is the same.
        """
        if self.rules.last != "keep":
            return (self.recipe_id,)
        digits = b'"block_digits":%d' % self.rules.block_digits
        written_out = encode(self.rules).replace(digits, digits + b',"last":"keep"', 1)
        return self._id_with(encode(self.rules)), self._id_with(written_out)

    @property
    def root(self) -> Path | None:
        """The folder on this machine that the paths of its sources start from; None: they are fetched.

        Not part of what the recipe is: it is neither compared nor recorded.
        """
        root: Path | None = self.__dict__.get("root")
        return root

    @property
    def remote(self) -> str:
        """The address in an object store that the paths of its sources start from; "": they are elsewhere."""
        remote: str = self.__dict__.get("remote", "")
        return remote

    @property
    def place(self) -> Path | str | None:
        """Where its sources are: a folder, an address in an object store, or None: on the hub."""
        return self.root or self.remote or None

    def at(self, place: Path | str | None) -> "Recipe":
        """Return the same recipe, whose files lie below a folder, or below an address in an object store."""
        is_remote = isinstance(place, str)
        return self._same(root=None if is_remote else place, remote=place if is_remote else "")

    def known_as(self, recipe_id: str) -> "Recipe":
        """Return the same recipe with another of its ids, which its run goes on to have."""
        return self._same(recipe_id=recipe_id)

    def _same(self, **remembered: object) -> "Recipe":
        same = Recipe(self.source, self.rules)
        known = {name: value for name, value in self.__dict__.items() if name in _REMEMBERED}
        same.__dict__.update(known | remembered)
        return same

    def _id_with(self, rules: bytes) -> str:
        files = [
            (file.path, file.bytes, file.sha256) if file.sha256 else (file.path,)
            for file in self.source.files
        ]
        return digest([self.source.dataset, self.source.revision, files, msgspec.Raw(rules)])


# What a recipe remembers beside what it is.
_REMEMBERED = ("recipe_id", "root", "remote")


def block_digits(files: Sequence[SourceShard], block_tokens: int) -> int:
    """Return how many digits block numbers have. What does not fit is named otherwise (see names).

    A source gives a token for about 3 bytes of parquet, and the join at most
    one shard for each source. The size of a source that nobody pinned does not
    count, as it does not in the recipe's id: the file may be replaced by a good copy.
    """
    largest = max((file.bytes for file in files if file.sha256), default=0)
    return max(3, len(str(max(largest // block_tokens, len(files)))))


def is_dataset(name: str) -> bool:
    """Return whether a dataset can have this name: a word, or owner/name as the hub allows them."""
    part = "[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
    return re.fullmatch(f"{part}(?:/{part})?", name) is not None and not re.search(r"--|\.\.", name)


def is_commit(text: str) -> bool:
    """Return whether this is what git calls a commit: 40 hexadecimal digits, or 64 in newer repositories."""
    return re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", text) is not None


def is_revision(text: str) -> bool:
    """Return whether a branch, a tag or a commit can have this name; files that are on no hub have none."""
    return len(text) <= 255 and text.isprintable() and not re.search(r"[\s\\]", text)


def _is_folder(path: str) -> bool:
    return not path.strip("/") or is_safe(path.strip("/"))


def is_safe(path: str) -> bool:
    """Return whether `path` is a plain relative path that cannot lead outside its folder."""
    if not path or len(path) > 1000 or "\\" in path or not path.isprintable():
        return False
    parts = path.split("/")
    return all(0 < len(part) <= 255 and part not in (".", "..") for part in parts) and not (
        PurePosixPath(path).is_absolute() or path[1:2] == ":"
    )


def check_rules(rules: Rules) -> Rules:
    """Return `rules` if they can be carried out; raise UsageError that says what to change."""
    records.check(rules)
    kind = formats.find(rules.format)
    _check_windows(rules, kind)
    kind = rules.shard_format
    most = kind.most(rules.token_bytes)
    if kind.is_one_stream:
        kind.check_stream(rules.layout, rules.shard_tokens, rules.name, rules.last)
    else:
        # The last shard takes in what does not fill another.
        longest = most // 2 if rules.last == "merge" else most
        _check_count("--shard-tokens", rules.shard_tokens, 1, longest, kind.limit)
        _check_name(rules.name)
        kind.check_name(rules.name)
    _check_count("--val-tokens", rules.val_tokens, 0, most, kind.limit)
    _check_text_column(rules.text_column)
    if not 1 <= rules.block_digits <= 20:
        raise UsageError(message("block numbers cannot have this many digits", digits=rules.block_digits))
    _check_tokenizer(rules)
    _check_compression(rules)
    _check_writer(rules, kind)
    _check_choice(rules)
    return rules


def _check_tokenizer(rules: Rules) -> None:
    size, eot, bos = rules.vocabulary_size, rules.eot_id, rules.bos_id
    if rules.tokenizer_kind is None and size is None and eot is None and bos is None:
        return
    sized = size is not None and eot is not None and 0 <= eot < size <= 2**32
    # Two separators are told from each other by their ids, and the second ends a document.
    paired = bos is None or (size is not None and 0 <= bos < size and bos != eot and rules.eot == "after")
    if rules.tokenizer_kind is None or not sized or not paired:
        raise UsageError(
            message(
                "these rules do not describe a tokenizer",
                tokenizer=rules.tokenizer,
                kind=rules.tokenizer_kind,
                size=size,
                eot=eot,
                bos=bos,
                side=rules.eot,
            )
        )


def _check_windows(rules: Rules, kind: Format) -> None:
    length = rules.sequence_length
    if (length is not None) != kind.has_windows:
        raise UsageError(
            message(
                f"--format {kind.name} needs --sequence-length, the tokens of a sample"
                if kind.has_windows
                else f"--format {kind.name} has no samples: trainers choose their length",
                "give --sequence-length" if kind.has_windows else "leave --sequence-length out",
                given=length,
            )
        )
    most = rules.shard_tokens
    if length is not None and not formats.LEAST_SEQUENCE_LENGTH <= length <= most:
        raise UsageError(
            message(
                "--sequence-length is out of range: a sample lies within a token shard",
                f"choose a number from {formats.LEAST_SEQUENCE_LENGTH} to --shard-tokens ({most:,})",
                given=f"{length:,}",
            )
        )


def _check_writer(rules: Rules, kind: Format) -> None:
    writer = rules.writer or ""
    if bool(writer) != kind.is_table or (writer and not re.fullmatch(r"pyarrow [0-9A-Za-z.+]{1,40}", writer)):
        wrong = "these rules do not say who writes the files"
        raise UsageError(message(wrong, format=kind.name, writer=ascii(rules.writer)))


def _check_compression(rules: Rules) -> None:
    if rules.compress is None:
        return
    if not rules.shard_format.zips:
        raise UsageError(
            message(
                f"{rules.shard_format.trainer} cannot read compressed token shards, nor can fwconvert",
                "leave --compress out, or choose --format llmc, npy or raw",
                format=rules.format,
            )
        )
    if not re.fullmatch(r"zstd [0-9]{1,3}(\.[0-9]{1,3}){2}, level [0-9]{1,2}", rules.compress):
        raise UsageError(message("this is no known way to compress", given=ascii(rules.compress)))


def _check_count(flag: str, tokens: int, least: int, most: int, limit: str) -> None:
    if not least <= tokens <= most:
        raise UsageError(
            message(
                f"{flag} is out of range ({limit})",
                f"choose a number from {least:,} to {most:,}",
                given=f"{tokens:,}",
            )
        )


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UsageError(
            message(
                "--name cannot be the beginning of a file name",
                "use letters, digits, '.', '_' and '-'; begin with a letter or a digit",
                given=repr(name),
            )
        )


def _check_text_column(name: str) -> None:
    """Raise UsageError for bytes that are no text, as a command line may hold them; no record can."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(
            message("--text-column is no text", "name a column of the sources", given=ascii(name))
        ) from None


def _check_choice(rules: Rules) -> None:
    """Raise UsageError if documents cannot be chosen so."""
    for flag, number, least, most in (
        ("--min-score", rules.min_score, -math.inf, math.inf),
        ("--min-int-score", rules.min_int_score, -(2**63), 2**63),
        ("--limit-documents", rules.limit_documents, 0, 2**63),
        ("--limit-tokens", rules.limit_tokens, 0, 2**63),
    ):
        if number is not None and not least < number < most:
            raise UsageError(message(f"{flag} is out of range", given=number))
    # A text of its own for an expression that is written otherwise would be another recipe.
    if rules.where is not None and where.text(where.parse(rules.where)) != rules.where:
        raise UsageError(message("the expression of --where is not in its one form", where=rules.where))
