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
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fwconvert.errors import ColumnError, RemoteError, SourceError, UsageError, message
from fwconvert.hub.retry import Retry
from fwconvert.options import Options
from fwconvert.processes import check_open_files
from fwconvert.recipes import Recipe, Rules
from fwconvert.records import Part
from fwconvert.run.estimate import Needs
from fwconvert.run.inputs import Input
from fwconvert.run.prefetch import open_input
from fwconvert.sources import catalog
from fwconvert.sources.catalog import LOCAL
from fwconvert.store import base, layout
from fwconvert.store.base import Store
from fwconvert.store.local import open_store
from fwconvert.store.run_manifest import most_shards

# If the columns of the first do not fit, this many in all are looked at before the command is blamed.
_MOST_FOOTERS = 8
# Without an answer, and for all footers together: the fetch itself retries longer, and reports the trouble.
_RETRY_SECONDS = 3.0
_MOST_SECONDS = 15.0


class Estimate(Part, frozen=True):
    """What a run would need in a folder: what `plan --json` prints."""

    dataset: str
    revision: str
    out: str
    plan: Needs
    disk_needed: int
    disk_used_already: int
    disk_free: int


def plan(recipe: Recipe, out: str | os.PathLike[str], options: Options | None = None) -> Estimate:
    """Return what converting `recipe` into the folder `out` would need. Writes nothing.

    Raises UsageError if the recipe names files on this machine and none of them is there.
    """
    store, options = open_store(Path(out).absolute()), options or Options()
    inputs = open_input(recipe, options, store)
    refuse_wrong_folder(store, recipe, inputs)
    needed = inputs.estimate(recipe, options)
    return Estimate(
        dataset=recipe.source.dataset,
        revision=recipe.source.revision,
        out=os.fspath(out),
        plan=needed,
        disk_needed=needed.output_bytes + needed.working_bytes + needed.fetched_bytes,
        disk_used_already=bytes_there(store),
        disk_free=free_bytes(store.local("")),
    )


def check(store: Store, recipe: Recipe, options: Options, inputs: Input, stop: threading.Event) -> None:
    """Raise UsageError if the run cannot end well; nothing is written."""
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
    needed, out = inputs.estimate(recipe, options), store.local("")
    _refuse_too_many_shards(needed, recipe.rules)
    there, keep = bytes_there(store), options.keep_folder
    kept = 0 if keep is None else _kept_bytes(recipe, keep)
    if keep is None or _device(keep) == _device(out):
        refuse_small_disk(needed, there + kept, free_bytes(out), str(out))
        return
    refuse_small_disk(replace(needed, fetched_bytes=0), there, free_bytes(out), str(out))
    missing = needed.fetched_bytes - kept - free_bytes(keep)
    if missing > 0:
        raise UsageError(
            message(
                "there is not enough disk space to keep the sources",
                "free some space, choose another --keep-source, or leave it out",
                "pass --no-disk-check if you know better",
                folder=keep,
                needed=f"{needed.fetched_bytes:,} bytes",
                free=f"{free_bytes(keep):,} bytes",
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
    """Return the size of the output that exists already, and of sources that were fetched for it."""
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

    With a limit that may be because it is reached: then a run that has begun goes on.
    """
    if recipe.root is None:
        return
    files, left = recipe.source.files, []
    for file in files:
        if not base.exists(store, layout.receipt(layout.job_key(file.path))):
            if inputs.location(file).exists():
                return
            left.append(file.path)
    has_begun = len(left) < len(files)
    if not left or (has_begun and recipe.rules.is_limited):
        return
    can_fetch = recipe.source.dataset != LOCAL
    raise UsageError(
        message(
            f"0 of the {len(left):,} files{' that are left to convert' if has_begun else ''} are there",
            "name the folder that holds them, under these paths or by their bare names",
            *(["or leave --source out: then they are fetched from the hub"] if can_fetch else []),
            folder=recipe.root,
            missing=", ".join(left[:3]) + (f" and {len(left) - 3:,} more" if len(left) > 3 else ""),
        )
    )


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
