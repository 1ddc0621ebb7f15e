"""Convert a recipe into a folder of token shards: the whole job, and its continuation after a crash.

Nothing is printed here. What happens is told to an Observer and returned as a
Result.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fwconvert import atomic, driver, encoders, plan, run_manifest, session, source, vocabulary
from fwconvert.config import Options, Recipe, SourceShard
from fwconvert.engine import LocalEngine
from fwconvert.errors import FwconvertError, SourceError, Stopped, UsageError, message
from fwconvert.folder import Lock, RunFolder
from fwconvert.origin import LocalOrigin, Origin
from fwconvert.receipt import Quarantined, Receipt
from fwconvert.run_manifest import Headline
from fwconvert.saved_plan import refuse_other_recipe, save_plan
from fwconvert.survey import Survey, survey
from fwconvert.work import Observer, Snapshot, StopSwitch, Work

_FOOTERS_READ = 100
# No honest text is packed tighter than this; a damaged footer may say anything.
_MOST_UNPACKED = 100


@dataclass(frozen=True)
class Result:
    """What happened."""

    out: Path
    complete: bool
    stopped: bool
    headline: Headline
    # Jobs that earlier sessions had done already.
    jobs_found: int
    failed: tuple[Quarantined, ...]
    # All was done before, and not a byte was changed.
    untouched: bool
    # What this session did itself.
    session_tokens: int
    seconds: float


class SilentObserver:
    """Shows nothing."""

    def notice(self, text: str) -> None:
        """Ignore a notice."""

    def update(self, snapshot: Snapshot) -> None:
        """Ignore an update."""


def convert(
    recipe: Recipe,
    options: Options,
    observer: Observer | None = None,
    stop: StopSwitch | None = None,
) -> Result:
    """Make the token shards of `recipe` in the folder `options.out`, or go on where an earlier call stopped.

    Returns when all is done, when everything that can be done is done (some
    sources failed), or when `stop` was asked. Raises UsageError before anything
    is written if the folder belongs to another recipe or another session or the
    disk is too small, and OutputError if the output cannot be written. After
    any of these, or a crash, the same call goes on.
    """
    started = time.monotonic()
    observer = observer or SilentObserver()
    folder = RunFolder(options.out.absolute())
    refuse_other_recipe(folder, recipe)
    origin = _origin(recipe, options)
    finished = _already_complete(folder, recipe, origin)
    if finished is not None:
        return _result(finished, len(recipe.source.files), started, untouched=True)
    if options.check_disk:
        needed = plan_for(recipe, options)
        plan.check_disk(needed, bytes_there(folder), free_bytes(folder.path), str(options.out))
    current = _new_session(folder, recipe, options, observer)
    with _session(folder, recipe, current):
        work = _begin(folder, recipe, current, origin, observer, stop or StopSwitch())
        found = len(work.survey.jobs)
        _carry_out(work, options)
        return _result(work, found, started)


def plan_for(recipe: Recipe, options: Options) -> plan.Plan:
    """Return what a run will need, from the footers of the sources that can be read."""
    files = recipe.source.files
    sizes = {} if options.root is None else _footers(recipe, LocalOrigin(recipe.source, options.root))
    return plan.make_plan(recipe, sizes, max(1, min(options.worker_count, len(files))))


def _footers(recipe: Recipe, origin: Origin) -> dict[str, plan.Size]:
    """Read the footers of a sample: one of a 2 GB source takes 15 ms, and there may be thousands."""
    sizes: dict[str, plan.Size] = {}
    files = recipe.source.files
    for file in files[:: max(1, len(files) // _FOOTERS_READ)]:
        with suppress(SourceError):  # A bad source is the job's affair; its size is guessed.
            size = source.footer(origin.fetch(file))
            if size.text_bytes <= file.bytes * _MOST_UNPACKED:
                sizes[file.path] = size
    return sizes


def bytes_there(folder: RunFolder) -> int:
    """Return the size of the output that exists already."""
    places = [place for place in (folder.path, folder.index, folder.tails) if place.is_dir()]
    return sum(entry.stat().st_size for place in places for entry in os.scandir(place) if entry.is_file())


def free_bytes(path: Path) -> int:
    """Return the free disk space where `path` is or will be."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return shutil.disk_usage(existing).free


def _origin(recipe: Recipe, options: Options) -> Origin:
    if not recipe.source.files and options.root is not None:
        raise UsageError(
            message(
                "this version does not list its files, so the ones in --source cannot be proven",
                "pass --source DIR without --version",
                dataset=recipe.source.dataset,
                folder=recipe.source.folder,
            )
        )
    if options.root is None:
        raise UsageError(
            message(
                "fetching from the hub is not part of this version of fwconvert",
                "download the files with any tool, then name their folder with --source DIR",
                dataset=recipe.source.dataset,
                revision=recipe.source.revision,
                folder=recipe.source.folder,
                files=recipe.source.totals.files,
                bytes=f"{recipe.source.totals.bytes:,}",
            )
        )
    return LocalOrigin(recipe.source, options.root)


def _already_complete(folder: RunFolder, recipe: Recipe, origin: Origin) -> Work | None:
    """Return the finished work if there is nothing left to do, having written nothing."""
    if not folder.manifest.is_file() or _unclean(folder):
        return None
    found = survey(folder, recipe, set())
    work = Work(folder, recipe, session.new(), origin, SilentObserver(), StopSwitch(), found)
    try:
        if found.problems or work.missing or any(work.join_orders()):
            return None
        whole = run_manifest.read(folder) == work.manifest(complete=True)
    except FwconvertError:
        return None
    _refuse_changed_sources(work)
    return work if whole else None


def _unclean(folder: RunFolder) -> set[str]:
    return {past.id for past in session.all_of(folder) if not past.ended}


def _new_session(folder: RunFolder, recipe: Recipe, options: Options, observer: Observer) -> session.Session:
    """Return a session that can begin: its encoder is there, and its vocabulary.

    Whatever fails here fails before the folder belongs to the recipe.
    """
    known = vocabulary.find(recipe.rules.tokenizer)
    encoder, reason = encoders.choose(options.encoder, known)
    if reason:
        observer.notice(reason)
    vocabulary.provide(known, folder.vocabularies)
    return session.new(options.worker_count, options.thread_count(len(recipe.source.files)), encoder)


@contextmanager
def _session(folder: RunFolder, recipe: Recipe, current: session.Session) -> Iterator[None]:
    """Hold the folder's lock, with the plan and the folders in place."""
    atomic.make_folder(folder.private)
    with Lock(folder, current.id):
        folder.make()
        save_plan(folder, recipe)
        yield


def _begin(
    folder: RunFolder,
    recipe: Recipe,
    current: session.Session,
    origin: Origin,
    observer: Observer,
    stop: StopSwitch,
) -> Work:
    """Look at what is there, say what is wrong with it, and make ready for the rest."""
    atomic.sweep(folder.temporary)
    unclean = _unclean(folder)
    if unclean:
        observer.notice("the last session was cut off; hashing the files that it made")
    work = Work(folder, recipe, current, origin, observer, stop, survey(folder, recipe, unclean))
    _refuse_changed_sources(work)
    _withdraw(work.survey, observer)
    session.write(folder, current)
    for past in session.all_of(folder):
        if past.id in unclean:
            session.write(folder, session.ended(past, f"cut off; its files were checked by {current.id}"))
    work.remove_leftovers()
    return work


def _withdraw(found: Survey, observer: Observer) -> None:
    for problem in found.problems:
        observer.notice(problem)
    for path in found.withdrawn:
        atomic.remove(path)
        atomic.sync_folder(path.parent)


def _refuse_changed_sources(work: Work) -> None:
    """Raise UsageError if a source that nobody pinned is no longer the one that was converted."""
    for file in work.recipe.source.files:
        receipt = work.survey.jobs.get(file.path)
        if receipt is None or file.sha256 is not None:
            continue
        path = work.origin.fetch(file)
        if path.exists() and _seems_changed(path, receipt):
            _compare(file, path, receipt.source_sha256)


def _seems_changed(path: Path, receipt: Receipt) -> bool:
    now = path.stat()
    return (now.st_size, now.st_mtime_ns) != (receipt.source_bytes, receipt.source_mtime_ns)


def _compare(file: SourceShard, path: Path, wanted: str) -> None:
    found = source.prove(path, lambda: None).sha256
    if found != wanted:
        raise UsageError(
            message(
                "a source has changed since it was converted",
                "put the old file back, or choose another --out",
                source=file.path,
                sha256_then=wanted,
                sha256_now=found,
            )
        )


def _carry_out(work: Work, options: Options) -> None:
    """Do all jobs, then the join; leave the folder tidy and described, whatever happens."""
    outcome = "error"
    try:
        with LocalEngine(options.worker_count, work.folder.logs, work.session.id) as engine:
            driver.drive(work.convert_orders(), engine, work)
            if not work.missing:
                driver.drive(work.join_orders(), engine, work)
        outcome = f"{len(work.missing)} jobs failed" if work.missing else "complete"
    except Stopped:
        outcome = "stopped"
    finally:
        _tidy(work, outcome)


def _tidy(work: Work, outcome: str) -> None:
    atomic.sweep(work.folder.temporary)
    session.write(work.folder, session.ended(work.session, outcome))
    work.write_manifest(complete=outcome == "complete")


def _result(work: Work, found: int, started: float, *, untouched: bool = False) -> Result:
    manifest = work.manifest(complete=not work.missing and not any(work.join_orders()))
    return Result(
        out=work.folder.path,
        complete=manifest.headline.complete,
        stopped=work.stop.asked > 0 and not manifest.headline.complete,
        headline=manifest.headline,
        jobs_found=found,
        failed=tuple(work.given_up.values()),
        untouched=untouched,
        session_tokens=work.session_tokens,
        seconds=time.monotonic() - started,
    )
