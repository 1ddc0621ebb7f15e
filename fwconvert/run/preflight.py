"""The checks before a run begins: what would fail later, after hours, is refused now.

- The disk has room for the output, and for the sources that are fetched.
- If none of the files is in the folder that a user names, it is the wrong
  folder; a few missing ones are set aside one by one.
- A misspelt column is missing everywhere, and would be noticed source by source,
  each of them fetched whole: 286 GB of 100B. One footer shows it. Whatever is
  wrong with one source alone is left to its job; only what is wrong with all that
  can be looked at is the caller's mistake.
"""

import os
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from fwconvert import trainers
from fwconvert.errors import ColumnError, RemoteError, SourceError, UsageError, message
from fwconvert.hub.retry import Retry
from fwconvert.limits import Amount, limit_of
from fwconvert.options import Options
from fwconvert.processes import check_open_files
from fwconvert.recipes import Recipe, Rules, SourceShard
from fwconvert.records import Part
from fwconvert.run import request
from fwconvert.run.estimate import Needs, Sample, SampledFrom
from fwconvert.run.inputs import Input, workers_at_once
from fwconvert.run.prefetch import open_input
from fwconvert.sources import catalog
from fwconvert.sources.catalog import LOCAL
from fwconvert.store import base, layout, saved_recipe
from fwconvert.store.base import Store
from fwconvert.store.local import absolute, open_store
from fwconvert.store.run_manifest import most_shards
from fwconvert.store.scratch import Scratch

# If the columns of the first do not fit, this many in all are looked at before the command is blamed.
_MOST_FOOTERS = 8
# Without an answer, and for all footers together: the fetch itself retries longer, and reports the trouble.
_RETRY_SECONDS = 3.0
_MOST_SECONDS = 15.0


Bottleneck = Literal["processor", "network", "unknown"]


class Filtered(Part, frozen=True):
    """What a filter keeps, of the rows that were looked at."""

    rows_seen: int
    rows_kept: int
    share: float


class Validation(Part, frozen=True):
    """Whether there will be a validation shard, and why not."""

    shard: bool
    tokens_wanted: int
    # In what it comes from: the first source, or the whole run.
    tokens_there: int
    source: str
    why_not: str


class Pace(Part, frozen=True):
    """How long a run would take on this machine. None: not known."""

    # Measured here, by as many processes as there will be workers.
    workers: int
    tokens_per_second: float | None
    convert_seconds: float | None
    # Of the network, if files are fetched: in bytes, and whether it was "stated" or "measured".
    bytes_per_second: float | None
    bandwidth: str
    fetch_seconds: float | None
    # The network that keeps the workers busy.
    bytes_per_second_wanted: float | None
    seconds: float | None
    bottleneck: Bottleneck


class Estimate(Part, frozen=True):
    """What a run would need in a folder: what `plan --json` prints."""

    dataset: str
    revision: str
    out: str
    plan: Needs
    # At the peak, of all that is on the disk of the output; at the end of the run; and now.
    disk_needed: int
    disk_at_end: int
    disk_used_already: int
    disk_free: int
    # Why this disk, or another one that is used, is too small; "" if it is not.
    disk_problem: str
    # Where the numbers come from: row groups of "files", or of the "remote"; or "averages" of FineWeb-Edu.
    sampled_from: SampledFrom
    why_not_sampled: str
    sampled_files: int
    sampled_row_groups: int
    sampled_tokens: int
    # Whether the tokenizer itself has counted them.
    is_encoded: bool
    encoder: str
    # None: there is no filter, or nothing could be looked at.
    filtered: Filtered | None
    validation: Validation
    # Whether the sources have as much as --limit-documents or --limit-tokens asks for; None: no limit.
    limit_reached: bool | None
    pace: Pace


def plan(
    recipe: Recipe,
    out: str | os.PathLike[str] | None = None,
    options: Options | None = None,
    *,
    bandwidth: float | None = None,
) -> Estimate:
    """Return what converting `recipe` into the folder `out` would need. Writes nothing.

    Some row groups are read and encoded on as many cores as there will be workers, for about two seconds;
    of files that are fetched, by ranges, if the remote can be reached. `bandwidth`, in bytes a second, is
    measured if it is not told. Without `out` the disk is that of the current folder.

    Raises UsageError if the recipe names files on this machine and none of them is there, or if no
    source that was looked at has the columns.
    """
    from fwconvert.run import sampling  # noqa: PLC0415  # loads pyarrow

    options = options or Options()
    store = open_store(absolute("." if out is None else out), scratch=options.scratch_folder)
    if out is not None:  # What the folder has a list of is not asked for again.
        known = () if recipe.source.files else saved_recipe.known_sources(store, recipe)
        recipe = request.with_files(recipe, known) if known else recipe
    recipe, unlisted = sampling.listed(recipe)
    inputs = open_input(recipe, options, store)
    refuse_wrong_folder(store, recipe, inputs)
    sample = sampling.look(recipe, inputs, options, bandwidth=bandwidth)
    if unlisted:
        sample = replace(sample, reason=unlisted)
    needed = inputs.estimate(recipe, options, sample)
    here, whole = on_this_machine(needed, store, recipe, options), sample.whole
    kept = None
    if recipe.rules.is_filtered and whole.rows:
        kept = Filtered(whole.rows, whole.documents, whole.documents / whole.rows)
    there = 0 if out is None else bytes_there(store)
    at_end = here.output_bytes + (here.fetched_bytes if options.keep_folder is not None else 0)
    return Estimate(
        dataset=recipe.source.dataset,
        revision=recipe.source.revision,
        out="" if out is None else os.fspath(out),
        plan=needed,
        disk_needed=here.output_bytes + here.working_bytes + here.fetched_bytes,
        disk_at_end=at_end,
        disk_used_already=there,
        disk_free=free_bytes(store.local("")),
        disk_problem=_disk_problem(store, recipe, options, needed, there) if options.check_disk else "",
        sampled_from=sample.sampled_from,
        why_not_sampled=sample.reason,
        sampled_files=len(sample.yields),
        sampled_row_groups=sample.row_groups,
        sampled_tokens=whole.tokens,
        is_encoded=sample.is_encoded and whole.rows > 0,
        encoder=sample.encoder,
        filtered=kept,
        validation=_validation(recipe, needed),
        limit_reached=_reaches_limit(recipe.rules, needed),
        pace=_pace(recipe, needed, sample, bandwidth),
    )


def _disk_problem(store: Store, recipe: Recipe, options: Options, needed: Needs, there: int) -> str:
    try:
        _refuse_small_disks(store, recipe, options, needed, there)
    except UsageError as error:
        return str(error)
    return ""


def _validation(recipe: Recipe, needed: Needs) -> Validation:
    rules, files = recipe.rules, recipe.source.files
    is_whole = rules.layout == "contiguous"
    there = needed.tokens if is_whole else needed.first_tokens
    source = "" if is_whole or not files else files[0].path
    why_not = ""
    if not rules.val_tokens:
        why_not = "none was asked for (--val-tokens 0)"
    elif there < rules.val_tokens and is_whole:
        why_not = "the whole run has fewer tokens than that"
    elif there < rules.val_tokens:
        why_not = "it comes from the first source, which has fewer tokens than that"
    return Validation(not why_not, rules.val_tokens, there, source, why_not)


def _reaches_limit(rules: Rules, needed: Needs) -> bool | None:
    if not rules.is_limited:
        return None
    there = Amount(needed.documents_without_limit, needed.tokens_without_limit)
    return (limit_of(rules) - there).is_used_up


# Until the first worker is at work.
_START_SECONDS = 1.5


def _pace(recipe: Recipe, needed: Needs, sample: Sample, bandwidth: float | None) -> Pace:
    """Return how long it takes: fetching and converting go on at the same time, so the slower one decides."""
    is_fetched, rate = recipe.root is None, sample.tokens_per_second
    # Of what a filter rejects no token is made, but it is read: what was measured contains that.
    convert = needed.tokens / rate if rate else None
    speed = bandwidth if bandwidth is not None else sample.bytes_per_second or None
    fetch = needed.source_bytes / speed if is_fetched and speed else None
    wanted = needed.source_bytes / max(convert, 0.001) if is_fetched and convert is not None else None
    seconds: float | None = None
    bottleneck: Bottleneck = "unknown"
    if convert is not None and not is_fetched:
        seconds, bottleneck = convert, "processor"
    elif convert is not None and fetch is not None:
        seconds, bottleneck = max(convert, fetch), "network" if fetch > convert else "processor"
    elif fetch is not None:
        seconds = fetch
    return Pace(
        workers=sample.workers,
        tokens_per_second=rate or None,
        convert_seconds=convert,
        bytes_per_second=speed if is_fetched else None,
        bandwidth="" if not is_fetched or not speed else "measured" if bandwidth is None else "stated",
        fetch_seconds=fetch,
        bytes_per_second_wanted=wanted,
        seconds=None if seconds is None else seconds + _START_SECONDS,
        bottleneck=bottleneck,
    )


def on_this_machine(needed: Needs, store: Store, recipe: Recipe, options: Options) -> Needs:
    """Return what a run needs of this machine's disk: if its output is elsewhere, only what is on its way."""
    if not store.is_remote:
        return needed
    rules = recipe.rules
    # A job's files are uploaded together at its end. A joined shard is written from copies of tails.
    job = needed.largest_tokens * rules.token_bytes
    joined = (
        needed.output_bytes
        if rules.shard_format.is_one_stream
        else 2 * rules.block_tokens * rules.token_bytes
    )
    at_once = workers_at_once(recipe, options) * max(job, min(joined, 2 * needed.output_bytes))
    return replace(needed, output_bytes=0, working_bytes=at_once)


def check(
    store: Store,
    recipe: Recipe,
    options: Options,
    inputs: Input,
    stop: threading.Event,
    *,
    workers_here: bool = True,
) -> None:
    """Raise UsageError if the run cannot end well; nothing is written."""
    if workers_here:  # Those on other machines have their own files open, and fetch with their own.
        # A join of whole sources may keep more workers busy than there are sources.
        jobs, workers = len(recipe.source.files), options.worker_count
        at_once = workers if recipe.rules.layout == "contiguous" else min(workers, jobs)
        check_open_files(at_once, options.max_connections if recipe.root is None else 0)
    if options.check_disk:
        check_disk(store, recipe, options, inputs)
    refuse_wrong_folder(store, recipe, inputs)
    if not any(True for _ in base.record_names(store, layout.RECEIPTS)):  # One receipt proves the columns.
        _check_columns(recipe, inputs, stop)


def check_disk(store: Store, recipe: Recipe, options: Options, inputs: Input) -> None:
    """Raise UsageError if the output, or the sources that are fetched, do not fit on the disk."""
    needed = inputs.estimate(recipe, options)
    _refuse_small_disks(store, recipe, options, needed, bytes_there(store))


def _refuse_small_disks(store: Store, recipe: Recipe, options: Options, needed: Needs, there: int) -> None:
    _refuse_too_many_shards(needed, recipe.rules)
    out = store.local("")
    needed = on_this_machine(needed, store, recipe, options)
    keep, scratch = options.keep_folder, options.scratch_folder
    fetched, have = out, 0
    if keep is not None:
        fetched, have = keep, _kept_bytes(recipe, keep)
    elif scratch is not None:
        fetched, have = scratch, Scratch(scratch, store.uri).left_bytes()
    if _device(fetched) == _device(out):
        refuse_small_disk(needed, there + have, free_bytes(out), str(out))
        return
    refuse_small_disk(replace(needed, fetched_bytes=0), there, free_bytes(out), str(out))
    flag = "--scratch" if keep is None else "--keep-source"
    _refuse_small_scratch(needed.fetched_bytes, have, fetched, flag)


def check_share(
    store: Store, recipe: Recipe, sources: Sequence[SourceShard], options: Options, inputs: Input
) -> None:
    """Raise UsageError if a rank cannot convert its sources here; nothing is written.

    Whether the output fits, and whether the columns are there, was checked when the plan was made:
    a thousand ranks need not ask again.
    """
    workers = min(options.worker_count, len(sources))
    check_open_files(workers, options.max_connections if recipe.root is None else 0)
    refuse_wrong_folder(store, recipe, inputs)
    if not options.check_disk or recipe.root is not None or options.keep_folder is not None:
        return
    at_once = sorted((source.bytes for source in sources), reverse=True)[: workers + options.prefetch_count]
    scratch = options.scratch_folder
    have = 0 if scratch is None else Scratch(scratch, store.uri).left_bytes()
    _refuse_small_scratch(sum(at_once), have, scratch or store.local(""), "--scratch")


def _refuse_small_scratch(needed: int, have: int, folder: Path, flag: str) -> None:
    """Raise UsageError if the sources that are on the disk at a time, or all that are kept, do not fit."""
    missing, keeps = needed - have - free_bytes(folder), flag == "--keep-source"
    if missing > 0:
        raise UsageError(
            message(
                f"there is not enough disk space {'to keep' if keeps else 'for'} the sources",
                f"free some space, choose another {flag}{', or leave it out' if keeps else ''}",
                *([] if keeps else ["or fetch fewer files ahead: --prefetch"]),
                "pass --no-disk-check if you know better",
                folder=folder,
                needed=f"{needed:,} bytes",
                free=f"{free_bytes(folder):,} bytes",
                missing=f"{missing:,} bytes",
            )
        )


def refuse_small_disk(needed: Needs, have: int, free: int, out: str) -> None:
    """Raise UsageError, with the numbers, if the disk is too small.

    `have` is what exists already, of the output and of fetched sources.
    """
    missing = needed.output_bytes + needed.working_bytes + needed.fetched_bytes - have - free
    fetched = {"needed_for_sources": f"{needed.fetched_bytes:,} bytes"} if needed.fetched_bytes else {}
    if missing > 0:
        raise UsageError(
            message(
                "there is not enough disk space for this run",
                "free some space, or choose another --out",
                "pass --no-disk-check if you know better than this estimate",
                folder=out,
                needed_for_output=f"{needed.output_bytes:,} bytes (estimated)",
                needed_to_work=f"{needed.working_bytes:,} bytes",
                **fetched,
                there_already=f"{have:,} bytes",
                free=f"{free:,} bytes",
                missing=f"{missing:,} bytes",
            )
        )


def _refuse_too_many_shards(needed: Needs, rules: Rules) -> None:
    if needed.shards > most_shards(rules):
        raise UsageError(
            message(
                "this run would have more token shards than a run manifest can describe",
                "choose larger --shard-tokens",
                shard_tokens=f"{rules.shard_tokens:,}",
                token_shards=f"about {needed.shards:,}",
                at_most=f"about {most_shards(rules):,}",
            )
        )


def bytes_there(store: Store) -> int:
    """Return how much of the output is on a disk already, and of sources that were fetched for it."""
    if store.is_remote:
        return 0
    total = 0
    for folder in ("", layout.INDEX, layout.TAILS, layout.SOURCES):
        with suppress(NotADirectoryError):  # Refused by those who write there.
            for name in store.list(folder):
                with suppress(OSError):  # A link in a circle has no size.
                    total += store.size(f"{folder}/{name}" if folder else name) or 0
    return total


def free_bytes(path: Path) -> int:
    """Return the free disk space where `path` is or will be."""
    return shutil.disk_usage(_existing(path)).free


def _existing(path: Path) -> Path:
    absolute = path.absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.exists())


def _device(path: Path) -> int:
    return _existing(path).stat().st_dev


def _kept_bytes(recipe: Recipe, keep: Path) -> int:
    """Return the size of the sources that are in the folder where they are to be kept."""
    if not keep.is_dir():
        return 0
    sizes = {file.path: file.bytes for file in recipe.source.files}
    found = catalog.locate(recipe.source, keep)
    return sum(sizes[path] for path, place in found.items() if place.stat().st_size == sizes[path])


def refuse_wrong_folder(store: Store, recipe: Recipe, inputs: Input) -> None:
    """Raise UsageError if sources are read from a folder of the user's and none that is left is in it.

    With a limit that may be because it is reached: then a run that has begun goes on. So it does where the
    folder had sources of it, and only those that are left are others: each of them fails with its reason.
    """
    if recipe.root is None:
        return
    files, left, others = recipe.source.files, [], []
    store = store.listed()
    for file in files:
        if not base.exists(store, layout.receipt(layout.job_key(file.path))):
            there = _size_there(inputs.location(file))
            if there is not None and (file.sha256 is None or there == file.bytes):
                return
            left.append(file.path)
            if there is not None:
                others.append((file, there))
    has_begun = len(left) < len(files)
    if not left or (has_begun and (others or recipe.rules.is_limited)):
        return
    can_fetch = recipe.source.dataset != LOCAL
    if len(others) > 1:
        _refuse_others(recipe, len(left), others)
    raise UsageError(
        message(
            f"0 of the {len(left):,} files{' that are left to convert' if has_begun else ''} are there",
            "name the folder that holds them, under these paths or by their bare names",
            *(["or leave --source out: then they are fetched from the hub"] if can_fetch else []),
            folder=recipe.root,
            missing=", ".join(left[:3]) + (f" and {len(left) - 3:,} more" if len(left) > 3 else ""),
        )
    )


def _size_there(place: Path) -> int | None:
    """Return the size of what is in the place of a source, or None if nothing is."""
    try:
        return place.stat().st_size
    except OSError:
        return None if not os.path.lexists(place) else -1


def _refuse_others(recipe: Recipe, left: int, others: Sequence[tuple[SourceShard, int]]) -> None:
    """Raise UsageError for files that have the names of a version's and are others."""
    file, there = others[0]
    raise UsageError(
        message(
            f"the files in this folder are not those of {recipe.source.name}, though {len(others):,}"
            " have the same names",
            "name the folder that holds them, or leave --source out: then they are fetched"
            if recipe.source.dataset != LOCAL
            else "name the folder that holds them",
            f"to convert the files that are here, leave --version out: --source {recipe.root} --out OUT",
            folder=recipe.root,
            wanted=f"{left:,} files; {file.path} has {file.bytes:,} bytes",
            found=f"{len(others):,} of another size, {left - len(others):,} are missing;"
            f" this one has {there:,} bytes",
        )
    )


def forewarnings(recipe: Recipe, options: Options, inputs: Input) -> list[str]:
    """Return what will disappoint at the end of a run, as far as sizes tell it at the beginning."""
    rules = recipe.rules
    return [*_unreadable(rules), *_no_validation(recipe, options, inputs)]


def _unreadable(rules: Rules) -> list[str]:
    """Return that no trainer of the format will read the output as it is, and why, if that is so."""
    why = trainers.nobody(rules)
    if not why:
        return []
    what = "no trainer that is known reads what this makes"
    return [
        message(
            what,
            "see REFERENCE.md for another --format, or go on: fwconvert export makes others of it",
            **why,
        )
    ]


def _no_validation(recipe: Recipe, options: Options, inputs: Input) -> list[str]:
    rules = recipe.rules
    if rules.layout == "contiguous" or not rules.val_tokens:
        return []
    needed = inputs.estimate(recipe, options)
    # Estimates may be off by a fifth.
    if needed.first_tokens * 5 >= rules.val_tokens * 4 or needed.tokens < 2 * rules.val_tokens:
        return []
    return [
        message(
            "there will be no validation shard: it comes from the first source, which is too small for it",
            "stop, and pass a smaller --val-tokens, or --layout contiguous; fwconvert plan tells more",
            source=recipe.source.files[0].path,
            tokens=f"about {needed.first_tokens:,}",
            val_tokens=f"{rules.val_tokens:,}",
        )
    ]


def _check_columns(recipe: Recipe, inputs: Input, stop: threading.Event) -> None:
    """Raise UsageError if no source has the columns, as far as a few footers show.

    A source that cannot be read is passed over: its job will say what is wrong.
    """
    from fwconvert.sources import footers  # noqa: PLC0415  # loads pyarrow

    retry = Retry(_RETRY_SECONDS, stop, lambda _: None, deadline=_MOST_SECONDS)
    files = recipe.source.files
    unfit: list[ColumnError] = []
    for file in files[:: -(-len(files) // _MOST_FOOTERS) or 1]:
        readable = inputs.open_footer(file, retry)
        if readable is None:
            return
        try:
            footers.check_columns(*readable, recipe.rules)
        except ColumnError as error:
            unfit.append(error)
        except SourceError:
            continue
        except RemoteError:  # Reported when the source is fetched.
            break
        else:
            return
    if unfit:
        looked = f"{len(unfit)} of {len(files):,} sources were looked at, and none fits"
        raise UsageError(f"{unfit[0]}\n  -> fix the command before anything is fetched: {looked}")
