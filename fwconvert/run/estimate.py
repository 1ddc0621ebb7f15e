"""What a run will need, before it begins: tokens, token shards, disk.

Pure arithmetic on sizes. Tokens are estimates until the text is read; the
ratios were measured on FineWeb-Edu and are said to be estimates wherever they
are shown.

What a run needs, and whether the disk has it.
"""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from fwconvert.errors import UsageError, message
from fwconvert.limits import Amount
from fwconvert.options import Options
from fwconvert.recipes import Recipe, Rules, SourceShard, Totals
from fwconvert.records import Part
from fwconvert.run.prefetch import LocalOrigin, Origin
from fwconvert.run.preflight import refuse_other_folder
from fwconvert.sources import catalog, footers
from fwconvert.sources.catalog import Size
from fwconvert.store.folder import RunFolder
from fwconvert.store.run_manifest import most_shards
from fwconvert.tokens import registry

# Bytes of FineWeb-Edu parquet for each byte of its text (10BT: 28.52 GB of parquet).
_PARQUET_BYTES_PER_TEXT_BYTE = 0.6175
_TEXT_BYTES_PER_DOCUMENT = 4750


@dataclass(frozen=True)
class Plan:
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


def make_plan(
    recipe: Recipe,
    sizes: Mapping[str, Size],
    workers: int,
    fetched_files: int = 0,
    counted: Mapping[str, int] | None = None,
) -> Plan:
    """Return what the recipe needs. `sizes` has the sources whose footers were read, by path.

    `fetched_files` is how many sources are on the disk at a time because we fetched them.
    `counted` has the tokens of each source, where somebody counted them already.
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
    return Plan(
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
    kind = rules.kind
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


def check_shards(plan: Plan, rules: Rules) -> None:
    """Raise UsageError if the run would have more token shards than its manifest can describe."""
    if plan.shards > most_shards(rules):
        raise UsageError(
            message(
                "this run would have more token shards than a run manifest can describe",
                "choose larger --shard-tokens",
                shard_tokens=f"{rules.shard_tokens:,}",
                token_shards=f"about {plan.shards:,}",
                at_most=f"about {most_shards(rules):,}",
            )
        )


def refuse_small_disk(plan: Plan, have: int, free: int, out: str) -> None:
    """Raise UsageError, with the numbers, if the disk is too small.

    `have` is what exists already, of the output and of fetched sources.
    """
    needed = plan.output_bytes + plan.working_bytes + plan.fetched_bytes - have
    fetched = {"needed_for_sources": f"{plan.fetched_bytes:,} bytes"} if plan.fetched_bytes else {}
    if needed > free:
        raise UsageError(
            message(
                "there is not enough disk for this run",
                "free some space, or choose another --out",
                "pass --no-disk-check if you know better than this estimate",
                folder=out,
                needed_for_output=f"{plan.output_bytes:,} bytes (estimated)",
                needed_to_work=f"{plan.working_bytes:,} bytes",
                **fetched,
                there_already=f"{have:,} bytes",
                free=f"{free:,} bytes",
                missing=f"{needed - free:,} bytes",
            )
        )


_FOOTERS_READ = 100
# No honest text is packed tighter than this; a damaged footer may say anything.
_MOST_UNPACKED = 100


def plan_for(recipe: Recipe, options: Options) -> Plan:
    """Return what a run will need, from the footers of the sources that can be read."""
    files = recipe.source.files
    count = len(files) or recipe.source.totals.files
    workers = max(1, min(options.worker_count, count))
    if recipe.root is not None:
        return make_plan(recipe, _footers(recipe, LocalOrigin(recipe.source, recipe.root)), workers)
    fetched = count if options.keep_folder else workers + options.prefetch_count
    return make_plan(recipe, {}, workers, fetched)


def expected(recipe: Recipe, origin: Origin) -> list[Amount]:
    """Return what each source may hold, in order; nothing if there is no limit that asks for it."""
    if not recipe.rules.is_limited:
        return []
    files, rules = recipe.source.files, recipe.rules
    sizes = estimated_sizes(files, _footers(recipe, origin))
    return [Amount(sizes[file.path].rows, tokens_of(rules, sizes[file.path])) for file in files]


def check_disk(recipe: Recipe, options: Options, folder: RunFolder) -> None:
    """Raise UsageError if the output, or the sources that are fetched, do not fit."""
    needed = plan_for(recipe, options)
    check_shards(needed, recipe.rules)
    there, out = bytes_there(folder), folder.path
    keep = options.keep_folder
    if keep is None or _disk(keep) == _disk(out):
        refuse_small_disk(needed, there + _sources_there(recipe, options), free_bytes(out), str(folder.path))
        return
    refuse_small_disk(replace(needed, fetched_bytes=0), there, free_bytes(out), str(folder.path))
    missing = needed.fetched_bytes - _sources_there(recipe, options) - free_bytes(keep)
    if missing > 0:
        raise UsageError(
            message(
                "there is not enough disk to keep the sources",
                "free some space, choose another --keep-source, or leave it out",
                "pass --no-disk-check if you know better",
                folder=keep,
                needed=f"{needed.fetched_bytes:,} bytes",
                free=f"{free_bytes(keep):,} bytes",
                missing=f"{missing:,} bytes",
            )
        )


class Estimate(Part, frozen=True):
    """What a run would need in a folder: what `plan --json` prints."""

    dataset: str
    revision: str
    out: str
    plan: Plan
    disk_needed: int
    disk_used_already: int
    disk_free: int


def plan(recipe: Recipe, out: str | os.PathLike[str], options: Options | None = None) -> Estimate:
    """Return what converting `recipe` into the folder `out` would need. Writes nothing.

    Raises UsageError if the recipe names files on this machine and none of them is there.
    """
    folder = RunFolder(Path(out).absolute())
    if recipe.root is not None:
        refuse_other_folder(recipe, LocalOrigin(recipe.source, recipe.root), recipe.root, folder)
    needed = plan_for(recipe, options or Options())
    return Estimate(
        dataset=recipe.source.dataset,
        revision=recipe.source.revision,
        out=os.fspath(out),
        plan=needed,
        disk_needed=needed.output_bytes + needed.working_bytes + needed.fetched_bytes,
        disk_used_already=bytes_there(folder),
        disk_free=free_bytes(folder.path),
    )


def bytes_there(folder: RunFolder) -> int:
    """Return the size of the output that exists already, and of sources that were fetched for it."""
    places = [folder.path, folder.index, folder.tails, folder.sources]
    return sum(_size_of_files(place) for place in places if place.is_dir())


def _size_of_files(folder: Path) -> int:
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # A link in a circle has no size.
                total += entry.stat().st_size if entry.is_file() else 0
    return total


def free_bytes(path: Path) -> int:
    """Return the free disk space where `path` is or will be."""
    return shutil.disk_usage(_existing(path)).free


def _existing(path: Path) -> Path:
    absolute = path.absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.exists())


def _disk(path: Path) -> int:
    return _existing(path).stat().st_dev


def _sources_there(recipe: Recipe, options: Options) -> int:
    keep = options.keep_folder
    if keep is None or not keep.is_dir():
        return 0
    sizes = {file.path: file.bytes for file in recipe.source.files}
    found = catalog.locate(recipe.source, keep)
    return sum(sizes[path] for path, place in found.items() if place.stat().st_size == sizes[path])


def _footers(recipe: Recipe, origin: Origin) -> dict[str, Size]:
    """Read the footers of a sample: one of a 2 GB source takes 15 ms, and there may be thousands."""
    files = recipe.source.files
    sample = {file: origin.place(file) for file in files[:: max(1, len(files) // _FOOTERS_READ)]}
    # A bad source is the job's affair; its size is guessed.
    told = footers.sizes([*sample.values()])
    sizes: dict[str, Size] = {}
    for file, place in sample.items():
        size, most = told.get(place), file.bytes * _MOST_UNPACKED
        if size is not None and 0 <= size.text_bytes <= most and 0 <= size.rows <= most:
            sizes[file.path] = size
    return sizes
