"""What a run will need, before it begins: tokens, token shards, disk.

Pure arithmetic on sizes. Tokens are estimates until the text is read; the
ratios were measured on FineWeb-Edu and are said to be estimates wherever they
are shown.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fwconvert.limits import Amount
from fwconvert.recipes import Recipe, Rules, SourceShard, Totals
from fwconvert.sources.catalog import Size
from fwconvert.tokens import registry

# Bytes of FineWeb-Edu parquet for each byte of its text (10BT: 28.52 GB of parquet).
_PARQUET_BYTES_PER_TEXT_BYTE = 0.6175
_TEXT_BYTES_PER_DOCUMENT = 4750


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
    counted: Mapping[str, int] | None = None,
) -> Needs:
    """Return what the recipe needs. `sizes` has the sources whose footers were read, by path.

    `fetched_files` is how many sources are on the disk at a time because we fetched them.
    `counted` has the tokens of each source if they are known exactly.
    """
    rules = recipe.rules
    listed = recipe.source.files or _unlisted(recipe.source.totals)
    known = estimated_sizes(listed, sizes)
    tokens = counted or {path: tokens_of(rules, size) for path, size in known.items()}
    files = _up_to_the_limit(rules, listed, known)
    largest = max(files, key=lambda file: file.bytes, default=None)
    rows = sum(known[file.path].rows for file in files)
    total = sum(tokens.get(file.path, 0) for file in files)
    share = _share(rules, rows, total)
    rows, total = round(rows * share), round(total * share)
    shards = _shards(rules, total)
    output = _output_bytes(rules, total, shards, rows)
    most = min(total, max(tokens.values(), default=0))
    return Needs(
        files=len(files),
        source_bytes=sum(file.bytes for file in files),
        rows=rows,
        text_bytes=round(sum(known[file.path].text_bytes for file in files) * share),
        tokens=total,
        shards=shards,
        output_bytes=output,
        working_bytes=min(output, _working_bytes(rules, workers, most)),
        largest_path=largest.path if largest else "",
        largest_bytes=largest.bytes if largest else 0,
        largest_tokens=tokens[largest.path] if largest else 0,
        fetched_bytes=sum(sorted((file.bytes for file in files), reverse=True)[:fetched_files]),
    )


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
    rules: Rules, files: Sequence[SourceShard], sizes: Mapping[str, Size]
) -> Sequence[SourceShard]:
    """Return the files that a run with a limit reads; all of them if a filter may take most of each."""
    rows = tokens = 0
    for number, file in enumerate(files if rules.is_limited and not rules.is_filtered else (), 1):
        rows += sizes[file.path].rows
        tokens += tokens_of(rules, sizes[file.path])
        if rows >= (rules.limit_documents or math.inf) or tokens >= (rules.limit_tokens or math.inf):
            return files[:number]
    return files


def _share(rules: Rules, rows: int, tokens: int) -> float:
    """Return how much of so many rows and tokens the limit leaves."""
    most_rows, most_tokens = rules.limit_documents or math.inf, rules.limit_tokens or math.inf
    return min(1.0, most_rows / max(1, rows), most_tokens / max(1, tokens))


def tokens_of(rules: Rules, size: Size) -> int:
    """Return about how many tokens a source of this size has, separators included."""
    return registry.estimate_tokens(rules, size.text_bytes, size.rows)


def _shards(rules: Rules, tokens: int) -> int:
    val = 1 if 0 < rules.val_tokens <= tokens else 0
    return val - (val * rules.val_tokens - tokens) // rules.block_tokens


def _output_bytes(rules: Rules, tokens: int, shards: int, documents: int) -> int:
    kind = rules.shard_format
    for_shard, for_document = kind.sidecar_bytes
    # At the head of a token shard there may be the rest of a document.
    beside = shards * for_shard + (documents + shards) * for_document
    heads = shards * kind.header_bytes
    return tokens * rules.token_bytes + heads + documents * kind.index_entry_bytes + beside


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
