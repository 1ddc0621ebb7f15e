"""Convert a recipe into a folder of token shards: the whole job, and its continuation after a crash.

Nothing is printed here. What happens is told to an Observer and returned as a
Result.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fwconvert import machine
from fwconvert.errors import FwconvertError, Stopped, UsageError, message
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.retry import Patience, patiently
from fwconvert.options import Options
from fwconvert.processes import ProcessLimits, check_open_files
from fwconvert.recipes import Recipe, check_rules
from fwconvert.run import estimate, request, scheduler
from fwconvert.run.engines import Engine
from fwconvert.run.engines.local import LocalEngine
from fwconvert.run.inputs import Sources, Supply
from fwconvert.run.prefetch import Origin
from fwconvert.run.resume import Look, Survey, survey
from fwconvert.run.state import Observer, Snapshot, StopSwitch, Work
from fwconvert.store import atomic, places, run_manifest, sessions, unlisted
from fwconvert.store.folder import RunFolder
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import Quarantined
from fwconvert.store.run_manifest import Headline
from fwconvert.store.saved_recipe import adopt, has_plan, known_sources, save_plan

# A sound source needs about half of it.
_LEAST_WORKER_MEMORY = 2**30


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
    # Files in the folder that a trainer would take for output of the run, and that are none of its.
    foreign: tuple[str, ...] = ()


class SilentObserver:
    """Shows nothing."""

    def notice(self, text: str) -> None:
        """Ignore a notice."""

    def update(self, snapshot: Snapshot) -> None:
        """Ignore an update."""


def convert(
    recipe: Recipe,
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    engine: Engine | None = None,
    observer: Observer | None = None,
    stop: StopSwitch | None = None,
) -> Result:
    """Make the token shards of `recipe` in the folder `out`, or go on where an earlier call stopped.

    Returns when all is done, when everything that can be done is done (some
    sources failed), or when `stop` was asked. Raises UsageError before anything
    is written if the folder belongs to another recipe or another session, the
    disk is too small, or no source has the columns, and OutputError if the output cannot be written. After
    any of these, or a crash, the same call goes on.

    `engine` says where jobs run: by default in processes on this machine, as
    many as `options` says. An engine that is given has its own number of slots,
    which replaces `options.workers`.
    """
    given = environment(options, engine, observer, stop)
    _refuse_to_keep_what_is_here(recipe, given.options)
    folder = RunFolder(Path(out).absolute())
    folder.refuse_links()  # Before anything is looked for in them.
    recipe = _listed(recipe, folder, given)
    return make(recipe, folder, Sources(recipe, given.options), given)


@dataclass(frozen=True)
class Environment:
    """What a run is given beside its recipe. None of it changes a byte of the output."""

    options: Options
    engine: Engine
    observer: Observer
    stop: StopSwitch


def environment(
    options: Options | None, engine: Engine | None, observer: Observer | None, stop: StopSwitch | None
) -> Environment:
    """Return an environment of what is given; by default jobs run in processes on this machine."""
    options = options or Options()
    if engine is None:
        memory = options.worker_memory
        if memory is None:  # Together the workers leave something for everybody else.
            share = (machine.machine_bytes() or 0) * 4 // 5 // options.worker_count
            memory = max(_LEAST_WORKER_MEMORY, share) if share else None
        engine = LocalEngine(options.worker_count, ProcessLimits(memory, options.stall_timeout))
    else:
        options = replace(options, workers=engine.slots)
    return Environment(options, engine, observer or SilentObserver(), stop or StopSwitch())


def make(recipe: Recipe, folder: RunFolder, supply: Supply, given: Environment) -> Result:
    """Make the token shards of a recipe that lists its sources from what `supply` has; see convert."""
    started = time.monotonic()
    options, observer, stop = given.options, given.observer, given.stop
    check_rules(recipe.rules)  # A program may have made it by hand.
    folder.refuse_links()
    recipe = adopt(folder, recipe)
    origin = supply.origin(folder)
    finished = None if options.rehash else _already_complete(folder, recipe, origin, stop)
    if finished is not None:
        return _result(finished, len(finished.sources), started, untouched=True)
    check_open_files(_at_once(recipe, options), options.max_fetches if recipe.root is None else 0)
    if options.check_disk:
        supply.check_disk(folder)
    supply.check_columns(folder, origin, stop.wish)
    current = supply.session(folder, observer)
    with _session(folder, recipe, current):
        places.save(folder, supply.place)
        checking = _Checking(observer, stop, recipe, everything=options.rehash)
        work = _begin(folder, recipe, current, origin, checking)
        found = len(work.survey.jobs)
        _carry_out(work, given.engine, supply)
        return _result(work, found, started)


def _refuse_to_keep_what_is_here(recipe: Recipe, options: Options) -> None:
    if recipe.root is not None and options.keep_source is not None:
        raise UsageError(
            message(
                "nothing is fetched when --source names the files, so nothing can be kept",
                "leave one of --source and --keep-source out",
            )
        )


def _listed(recipe: Recipe, folder: RunFolder, given: Environment) -> Recipe:
    """Return the recipe with its sources; a version that does not list them asks the run, then the hub."""
    source, observer = recipe.source, given.observer
    if source.files:
        return recipe
    saved = known_sources(folder, recipe)
    if saved is None:
        observer.notice(f"asking the hub what is in {source.dataset}, {source.folder or 'all of it'}")
        # However it comes, a list must end.
        most = given.options.patience
        patience = Patience(most, given.stop.wish, observer.notice, most=10 * most)
        dataset = Dataset(source.dataset, source.revision)

        def came(size: int) -> None:
            patience.came(size, source.dataset)

        saved = patiently(lambda: dataset.files(source.folder, came), source.dataset, patience)
    for line in request.differences(source, saved):
        observer.notice(line)
    return request.with_files(recipe, saved)


def _already_complete(folder: RunFolder, recipe: Recipe, origin: Origin, stop: StopSwitch) -> Work | None:
    """Return the finished work if there is nothing left to do, having written nothing."""
    if not folder.manifest.is_file() or not has_plan(folder) or _unclean(folder):
        return None
    try:
        manifest = run_manifest.read(folder)
        if not manifest.headline.complete:
            return None
        checking = _Checking(SilentObserver(), stop, recipe)
        found = survey(folder, recipe, checking.look(frozenset()))
        work = Work(folder, recipe, sessions.new(), origin, SilentObserver(), StopSwitch(), found)
        if found.problems or work.limits.unfit or not work.is_complete:
            return None
        whole = manifest == work.manifest(complete=True) and not _unlisted(work).own
    except Stopped:
        raise
    except FwconvertError:
        return None
    _refuse_changed_sources(work)
    _trust(found)
    return work if whole else None


def _at_once(recipe: Recipe, options: Options) -> int:
    """Return how many workers there can be: no more than jobs, but for a join of whole sources."""
    jobs = len(recipe.source.files)
    return options.worker_count if recipe.rules.layout == "contiguous" else min(options.worker_count, jobs)


def _unclean(folder: RunFolder) -> frozenset[str]:
    return frozenset(past.id for past in sessions.all_of(folder) if not past.ended)


def _trust(found: Survey) -> None:
    """Let receipts be as new as their files, which were found right: so they are not hashed each time."""
    for path, newest in found.proven.items():
        if path.is_symlink():  # The time would be that of a file elsewhere.
            continue
        with suppress(OSError):  # A folder that may only be read: they are hashed each time.
            os.utime(path, ns=(newest, newest))


def _unlisted(work: Work) -> unlisted.Unlisted:
    return unlisted.find(work.folder, work.recipe, {line.name for line in work.manifest().shards})


@contextmanager
def _session(folder: RunFolder, recipe: Recipe, current: sessions.Session) -> Iterator[None]:
    """Hold the folder's lock, with the plan and the folders in place."""
    with LocalStore(folder.path, current.id).lock():
        folder.make()
        save_plan(folder, recipe)
        yield


@dataclass(frozen=True)
class _Checking:
    """How the output that is there already is looked at, and who is told of it."""

    observer: Observer
    stop: StopSwitch
    recipe: Recipe
    everything: bool = False

    def look(self, unclean: frozenset[str]) -> Look:
        """Return how closely to look, after these sessions were cut off."""
        return Look(unclean, self.everything, self._tick)

    def _tick(self, hashed: int, everything: int) -> None:
        if self.stop.asked:
            raise Stopped("stopped by the user while the files that are there were checked")
        self.observer.update(
            Snapshot(
                phase="check",
                units=everything,
                units_done=hashed,
                session_units=hashed,
                session_tokens=0,
                jobs=len(self.recipe.source.files),
                jobs_done=0,
                tokens=0,
                running=(),
            )
        )


def _begin(
    folder: RunFolder, recipe: Recipe, current: sessions.Session, origin: Origin, checking: _Checking
) -> Work:
    """Look at what is there, say what is wrong with it, and make ready for the rest."""
    atomic.sweep(folder.temporary)
    unclean, observer = _unclean(folder), checking.observer
    if unclean:
        observer.notice("the last session was cut off; hashing the files that it made")
    found, expected = survey(folder, recipe, checking.look(unclean)), estimate.expected(recipe, origin)
    work = Work(folder, recipe, current, origin, observer, checking.stop, found, expected)
    _refuse_changed_sources(work)
    _trust(found)
    _withdraw(work.survey, observer)
    sessions.write(folder, current)
    for past in sessions.all_of(folder):
        if past.id in unclean:
            sessions.write(folder, sessions.ended(past, f"cut off; its files were checked by {current.id}"))
    work.take_back()
    work.leftovers.remove()
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
        now = work.origin.changed(file, receipt)
        if now is not None:
            raise UsageError(
                message(
                    "a source has changed since it was converted",
                    "put the old file back, or choose another --out",
                    source=file.path,
                    sha256_then=receipt.source_sha256,
                    sha256_now=now,
                )
            )


def _carry_out(work: Work, engine: Engine, supply: Supply) -> None:
    """Do all jobs, then the join; leave the folder tidy and described, whatever happens."""
    outcome = "error"
    try:
        with engine:
            _convert_all(work, supply, engine)
            if not work.missing:
                work.withdraw_misfits()
                _go_on(work, supply, engine)
            if not work.missing:
                scheduler.drive(work.join_orders(), engine, work)
                for key in work.leftovers.take_spent():
                    work.folder.remove_tail(key)
        outcome = f"{len(work.missing)} jobs failed" if work.missing else "complete"
    except Stopped:  # Perhaps too late: what workers finished meanwhile counts.
        outcome = "complete" if work.is_complete else "stopped"
    finally:
        _tidy(work, outcome)


def _convert_all(work: Work, supply: Supply, engine: Engine) -> None:
    with work.origin:
        scheduler.drive(work.ready_orders(), engine, work)
    _go_on(work, supply, engine)


def _go_on(work: Work, supply: Supply, engine: Engine) -> None:
    """Do the jobs that came up after all seemed to be handed out."""
    while work.goes_on:
        work.origin = supply.origin(work.folder)
        with work.origin:
            scheduler.drive(work.ready_orders(), engine, work)
    if work.limits.reached:
        work.origin.clear()


def _tidy(work: Work, outcome: str) -> None:
    atomic.sweep(work.folder.temporary)
    if outcome == "complete":
        # What a trainer's glob finds is what the manifest lists. Nobody needs a tail any more, nor the reason
        # why a source failed that lies behind the limit.
        unlisted.remove(_unlisted(work))
        for left in (work.folder.tails, work.folder.quarantine):
            atomic.sweep(left)
    sessions.write(work.folder, sessions.ended(work.session, outcome))
    work.write_manifest(complete=outcome == "complete")


def _result(work: Work, found: int, started: float, *, untouched: bool = False) -> Result:
    manifest = work.manifest(complete=work.is_complete)
    foreign = _unlisted(work).foreign if manifest.headline.complete else ()
    return Result(
        out=work.folder.path,
        complete=manifest.headline.complete,
        stopped=work.stop.asked > 0 and not manifest.headline.complete,
        headline=manifest.headline,
        jobs_found=found,
        failed=tuple(work.given_up[path] for path in work.missing if path in work.given_up),
        untouched=untouched,
        session_tokens=work.session_tokens,
        seconds=time.monotonic() - started,
        foreign=tuple(path.name for path in foreign),
    )
