"""What a run will need, before it begins: tokens, token shards, disk.

Pure arithmetic on sizes, and on a sample of the text if somebody has looked at
one (`run/sampling`). Tokens are estimates until the text is read; without a
sample the ratios are those of FineWeb-Edu. They are said to be estimates wherever
they are shown.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from fwconvert.limits import Amount, limit_of
from fwconvert.recipes import Recipe, Rules, SourceShard, Totals
from fwconvert.sources.catalog import Size
from fwconvert.tokens import registry

# Bytes of FineWeb-Edu parquet for each byte of its text (10BT: 28.52 GB of parquet).
_PARQUET_BYTES_PER_TEXT_BYTE = 0.6175
_TEXT_BYTES_PER_DOCUMENT = 4750


# Where what is known of the text comes from: row groups of files that are here, row groups that were fetched
# by ranges, or nothing but what is known of FineWeb-Edu.
SampledFrom = Literal["files", "remote", "averages"]


@dataclass(frozen=True)
class Yield:
    """Some rows that were looked at, and what they gave: `documents` that are kept, their text, their tokens.

    `footer_bytes` is how large the footers say that the rows are. Tokens include separators.
    """

    rows: int = 0
    documents: int = 0
    footer_bytes: int = 0
    text_bytes: int = 0
    tokens: int = 0

    def __add__(self, other: "Yield") -> "Yield":
        return Yield(
            self.rows + other.rows,
            self.documents + other.documents,
            self.footer_bytes + other.footer_bytes,
            self.text_bytes + other.text_bytes,
            self.tokens + other.tokens,
        )


@dataclass(frozen=True)
class Sample:
    """What was seen of the text of a run's sources before it begins."""

    sampled_from: SampledFrom = "averages"
    # Why nothing was looked at, if that is the caller's wish or the network's fault.
    reason: str = ""
    row_groups: int = 0
    # By path: the sizes in the footers that were read, and what the rows gave.
    sizes: Mapping[str, Size] = field(default_factory=dict)
    yields: Mapping[str, Yield] = field(default_factory=dict)
    # Whether the tokenizer itself has counted the tokens.
    is_encoded: bool = True
    encoder: str = ""
    # How many workers were at work at a time, and what they made together in a second; 0: not measured.
    workers: int = 0
    tokens_per_second: float = 0.0
    # What the remote has sent in a second; 0: not measured.
    bytes_per_second: float = 0.0

    @property
    def whole(self) -> Yield:
        """What all rows gave that were looked at."""
        return sum(self.yields.values(), Yield())


@dataclass(frozen=True)
class Needs:
    """What a run will need. Everything about tokens is an estimate."""

    files: int
    source_bytes: int
    rows: int
    text_bytes: int
    tokens: int
    shards: int
    output_bytes: int
    # Beyond the output, while it runs: shards under construction and tails that are being joined.
    working_bytes: int
    largest_path: str
    largest_bytes: int
    largest_tokens: int
    # Sources on the disk at a time, or all of them if they are kept; 0 if they are the user's.
    fetched_bytes: int = 0
    # Of the first source, which the validation shard comes from.
    first_tokens: int = 0
    # Of all sources, if there were no limit.
    documents_without_limit: int = 0
    tokens_without_limit: int = 0


def estimated_sizes(files: Sequence[SourceShard], seen: Mapping[str, Size]) -> dict[str, Size]:
    """Return the size of each file: as seen in its footer, or guessed from the ones seen.

    If none was seen, as if all were FineWeb-Edu.
    """
    bytes_seen = sum(file.bytes for file in files if file.path in seen)
    if bytes_seen:
        text = sum(size.text_bytes for size in seen.values()) / bytes_seen
        rows = sum(size.rows for size in seen.values()) / bytes_seen
    else:
        text = 1 / _PARQUET_BYTES_PER_TEXT_BYTE
        rows = text / _TEXT_BYTES_PER_DOCUMENT
    guesses = {file.path: Size(round(file.bytes * rows), round(file.bytes * text)) for file in files}
    return guesses | dict(seen)


def estimate_needs(
    recipe: Recipe,
    sizes: Mapping[str, Size],
    workers: int,
    fetched_files: int = 0,
    *,
    counted: Mapping[str, int] | None = None,
    sample: Sample | None = None,
) -> Needs:
    """Return what the recipe needs. `sizes` has the sources whose footers were read, by path.

    `fetched_files` is how many sources are on the disk at a time because we fetched them.
    `counted` has the tokens of each source if they are known exactly.
    """
    rules = recipe.rules
    listed = recipe.source.files or _unlisted(recipe.source.totals)
    known = estimated_sizes(listed, sizes if sample is None else {**sizes, **sample.sizes})
    seen = sample if sample is not None and sample.whole.rows else None
    amounts = {path: _amount(rules, path, size, counted, seen) for path, size in known.items()}
    is_known = seen is not None or not rules.is_filtered
    files = _up_to_the_limit(rules, listed, amounts) if is_known else listed
    largest = max(files, key=lambda file: file.bytes, default=None)
    rows = round(sum(amounts[file.path].documents for file in files))
    total = round(sum(amounts[file.path].tokens for file in files))
    share = _share(rules, rows, total)
    rows, total = round(rows * share), round(total * share)
    first = min(total, round(amounts[files[0].path].tokens)) if files else 0
    shards = _shards(rules, total, first)
    output = _output_bytes(rules, total, shards, rows)
    most = min(total, round(max((amount.tokens for amount in amounts.values()), default=0)))
    text = sum(known[file.path].text_bytes * _text_share(file.path, seen) for file in files)
    return Needs(
        files=len(files),
        source_bytes=sum(file.bytes for file in files),
        rows=rows,
        text_bytes=round(text * share),
        tokens=total,
        shards=shards,
        output_bytes=output,
        working_bytes=min(output, _working_bytes(rules, workers, most)),
        largest_path=largest.path if largest else "",
        largest_bytes=largest.bytes if largest else 0,
        largest_tokens=round(amounts[largest.path].tokens) if largest else 0,
        fetched_bytes=sum(sorted((file.bytes for file in files), reverse=True)[:fetched_files]),
        first_tokens=first,
        documents_without_limit=round(sum(amount.documents for amount in amounts.values())),
        tokens_without_limit=round(sum(amount.tokens for amount in amounts.values())),
    )


def _amount(
    rules: Rules, path: str, size: Size, counted: Mapping[str, int] | None, sample: Sample | None
) -> Amount:
    """Return about what a source of this size gives."""
    if counted is not None:
        return Amount(size.rows, counted.get(path, 0))
    if sample is None:
        return Amount(size.rows, tokens_of(rules, size))
    gave = _gave(path, sample)
    tokens = size.text_bytes * gave.tokens / max(1, gave.footer_bytes)
    return Amount(size.rows * gave.documents / max(1, gave.rows), tokens)


def _gave(path: str, sample: Sample) -> Yield:
    """Return what rows of this source gave, or those of all sources if none was looked at."""
    found = sample.yields.get(path)
    return found if found is not None and found.rows else sample.whole


def _text_share(path: str, sample: Sample | None) -> float:
    """Return how much of what a footer counts is text of documents."""
    if sample is None:
        return 1.0
    gave = _gave(path, sample)
    return gave.text_bytes / max(1, gave.footer_bytes)


def _unlisted(totals: Totals) -> tuple[SourceShard, ...]:
    """Return stand-ins for the files of a version whose list is not known yet."""
    bounds = (
        [totals.bytes * number // totals.files for number in range(totals.files + 1)] if totals.files else []
    )
    return tuple(
        SourceShard(f"(file {number})", end - begin)
        for number, (begin, end) in enumerate(pairwise(bounds), 1)
    )


def _up_to_the_limit(
    rules: Rules, files: Sequence[SourceShard], amounts: Mapping[str, Amount]
) -> Sequence[SourceShard]:
    """Return the files that a run with a limit reads."""
    left = limit_of(rules)
    for number, file in enumerate(files if rules.is_limited else (), 1):
        left -= amounts[file.path]
        if left.is_used_up:
            return files[:number]
    return files


def _share(rules: Rules, rows: int, tokens: int) -> float:
    """Return how much of so many rows and tokens the limit leaves."""
    most_rows, most_tokens = rules.limit_documents or math.inf, rules.limit_tokens or math.inf
    return min(1.0, most_rows / max(1, rows), most_tokens / max(1, tokens))


def expected_join(
    rules: Rules, source_bytes: int, sources: int, jobs: int, tail_tokens: int
) -> tuple[int, int]:
    """Return about how many tokens will be joined, and into how many shards.

    The `jobs` that are done have so many `tail_tokens`. If none is, as if all sources were FineWeb-Edu.
    """
    tokens = round(tail_tokens / jobs * sources) if jobs else 0
    if not jobs and sources:
        text = source_bytes / _PARQUET_BYTES_PER_TEXT_BYTE
        tokens = tokens_of(rules, Size(round(text / _TEXT_BYTES_PER_DOCUMENT), round(text)))
        if rules.layout == "independent":  # Between nothing and a shard is left of each.
            tokens = min(tokens, sources * rules.block_tokens // 2)
    return tokens, -(-tokens // rules.block_tokens)


def tokens_of(rules: Rules, size: Size) -> int:
    """Return about how many tokens a source of this size has, separators included."""
    return registry.estimate_tokens(rules, size.text_bytes, size.rows)


def has_validation(rules: Rules, tokens: int, first_tokens: int) -> bool:
    """Return whether there is a validation shard: full, or there is none."""
    return 0 < rules.val_tokens <= (tokens if rules.layout == "contiguous" else first_tokens)


def _shards(rules: Rules, tokens: int, first_tokens: int) -> int:
    val = 1 if has_validation(rules, tokens, first_tokens) else 0
    full, rest = divmod(tokens - val * rules.val_tokens, rules.block_tokens)
    if rest and (rules.last == "keep" or (rules.last == "merge" and not full)):
        full += 1
    return val + full


def _output_bytes(rules: Rules, tokens: int, shards: int, documents: int) -> int:
    kind = rules.shard_format
    for_shard, for_document = kind.sidecar_bytes
    # At the head of a token shard there may be the rest of a document.
    beside = shards * for_shard + (documents + shards) * for_document
    heads = shards * kind.header_bytes
    # A token of a table has the bits of its number among those of its row group: 16 or 17, mostly.
    packed = tokens * 5 // 2 if kind.is_table else tokens * rules.token_bytes
    return packed + heads + documents * kind.index_entry_bytes + beside


def _working_bytes(rules: Rules, workers: int, largest_tokens: int) -> int:
    """Return how much the join holds twice: what it is writing, and tails not yet cut to their end.

    Where one file holds all tokens for training, all tails are there until it is finished.
    """
    tail = largest_tokens if rules.layout == "contiguous" else min(largest_tokens, rules.block_tokens)
    return (workers * rules.block_tokens + 2 * tail) * rules.token_bytes


def expected_amounts(recipe: Recipe, sizes: Mapping[str, Size]) -> list[Amount]:
    """Return what each source may hold, in order; nothing without a limit, which needs no estimate."""
    files, rules = recipe.source.files, recipe.rules
    if not rules.is_limited:
        return []
    known = estimated_sizes(files, sizes)
    return [Amount(known[file.path].rows, tokens_of(rules, known[file.path])) for file in files]
