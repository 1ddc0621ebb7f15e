"""What a run needs, and whether the disk has it."""

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fwconvert import plan
from fwconvert.errors import UsageError, message
from fwconvert.limits import Amount
from fwconvert.origin import LocalOrigin, Origin
from fwconvert.recipe import Options, Recipe
from fwconvert.sources import catalog, footers
from fwconvert.store.folder import RunFolder

_FOOTERS_READ = 100
# No honest text is packed tighter than this; a damaged footer may say anything.
_MOST_UNPACKED = 100


def plan_for(recipe: Recipe, options: Options) -> plan.Plan:
    """Return what a run will need, from the footers of the sources that can be read."""
    files = recipe.source.files
    count = len(files) or recipe.source.totals.files
    workers = max(1, min(options.worker_count, count))
    if options.root is not None:
        return plan.make_plan(recipe, _footers(recipe, LocalOrigin(recipe.source, options.root)), workers)
    fetched = count if options.keep_source else workers + options.prefetch_count
    return plan.make_plan(recipe, {}, workers, fetched)


def expected(recipe: Recipe, origin: Origin) -> list[Amount]:
    """Return what each source may hold, in order; nothing if there is no limit that asks for it."""
    if not recipe.rules.is_limited:
        return []
    files, rules = recipe.source.files, recipe.rules
    sizes = plan.estimated_sizes(files, _footers(recipe, origin))
    return [Amount(sizes[file.path].rows, plan.tokens_of(rules, sizes[file.path])) for file in files]


def check_disk(recipe: Recipe, options: Options, folder: RunFolder) -> None:
    """Raise UsageError if the output, or the sources that are fetched, do not fit."""
    needed = plan_for(recipe, options)
    plan.check_shards(needed, recipe.rules)
    there, out = bytes_there(folder), folder.path
    keep = options.keep_source
    if keep is None or _disk(keep) == _disk(out):
        plan.check_disk(needed, there + _sources_there(recipe, options), free_bytes(out), str(options.out))
        return
    plan.check_disk(replace(needed, fetched_bytes=0), there, free_bytes(out), str(options.out))
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
    keep = options.keep_source
    if keep is None or not keep.is_dir():
        return 0
    sizes = {file.path: file.bytes for file in recipe.source.files}
    found = catalog.locate(recipe.source, keep)
    return sum(sizes[path] for path, place in found.items() if place.stat().st_size == sizes[path])


def _footers(recipe: Recipe, origin: Origin) -> dict[str, plan.Size]:
    """Read the footers of a sample: one of a 2 GB source takes 15 ms, and there may be thousands."""
    files = recipe.source.files
    sample = {file: origin.place(file) for file in files[:: max(1, len(files) // _FOOTERS_READ)]}
    # A bad source is the job's affair; its size is guessed.
    told = footers.sizes([*sample.values()])
    sizes: dict[str, plan.Size] = {}
    for file, place in sample.items():
        size, most = told.get(place), file.bytes * _MOST_UNPACKED
        if size is not None and 0 <= size.text_bytes <= most and 0 <= size.rows <= most:
            sizes[file.path] = size
    return sizes
