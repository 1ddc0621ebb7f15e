"""Convert a recipe into a folder of token shards: the whole job, and its continuation after a crash.

`convert` finds out what the sources are; `Conversion.run` is the story from
there: refuse a folder of another recipe, see whether all is done, check what
could fail later, take the lock, find what earlier sessions have done, convert
the rest, join the tails, tidy up. Nothing is printed here: an Observer is shown
what happens, and the outcome is returned as a Result.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fwconvert import machine
from fwconvert.errors import FwconvertError, Stopped, UsageError, message
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.retry import Retry, with_retries
from fwconvert.job.orders import ConvertOrder, JoinOrder, Ready, RunContext, SourceFile
from fwconvert.options import Options
from fwconvert.processes import ProcessLimits, open_standard_streams
from fwconvert.recipes import Recipe, check_rules
from fwconvert.run import preflight, request, scheduler
from fwconvert.run.engines import Engine
from fwconvert.run.engines.local import LocalEngine
from fwconvert.run.estimate import expected_amounts
from fwconvert.run.events import Observer, SilentObserver, Snapshot, StopSwitch
from fwconvert.run.inputs import Input
from fwconvert.run.limiter import Rations
from fwconvert.run.prefetch import open_input
from fwconvert.run.resume import Found, find_done
from fwconvert.run.state import RunState
from fwconvert.run.tracker import Tracker
from fwconvert.store import base, layout, run_manifest, saved_recipe, sessions
from fwconvert.store.base import Store
from fwconvert.store.local import open_store
from fwconvert.store.receipts import Quarantined
from fwconvert.store.run_manifest import Headline

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
    # Files in the folder that a trainer would take for output of the run, though they are not.
    foreign: tuple[str, ...] = ()


def convert(
    recipe: Recipe,
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    engine: Engine | None = None,
    observer: Observer | None = None,
    stop: StopSwitch | None = None,
) -> Result:
    """Make the token shards of `recipe` in the folder `out`, or continue where an earlier call stopped.

    Returns when all is done, when everything that can be done is done (some
    sources failed), or when `stop` was asked. Raises UsageError before anything
    is written if the folder belongs to another recipe or another session, the
    disk is too small, or no source has the columns, and OutputError if the output
    cannot be written. After any of these, or a crash, the same call continues.

    `engine` says where jobs run: by default in processes on this machine, as
    many as `options` says. An engine that is given has its own number of slots,
    which replaces `options.workers`.
    """
    given = environment(options, engine, observer, stop)
    if recipe.root is not None and given.options.keep_folder is not None:
        raise UsageError(
            message(
                "nothing is fetched when --source names the files, so nothing can be kept",
                "leave one of --source and --keep-source out",
            )
        )
    store = open_store(Path(out).absolute())
    store.refuse_links()  # Before anything is read from them.
    if not recipe.source.files:
        recipe = _with_sources(recipe, store, given)
    return Conversion(store, recipe, open_input(recipe, given.options, store), given).run()


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
        if memory is None:  # Together the workers leave something for other programs.
            share = (machine.machine_bytes() or 0) * 4 // 5 // options.worker_count
            memory = max(_LEAST_WORKER_MEMORY, share) if share else None
        engine = LocalEngine(options.worker_count, ProcessLimits(memory, options.stall_timeout))
    else:
        options = replace(options, workers=engine.slots)
    return Environment(options, engine, observer or SilentObserver(), stop or StopSwitch())


def _with_sources(recipe: Recipe, store: Store, given: Environment) -> Recipe:
    """Return the recipe of a version that does not list its files, with the files: of the run, or the hub."""
    source, notice = recipe.source, given.observer.notice
    files = saved_recipe.known_sources(store, recipe)
    if files is None:
        notice(f"asking the hub what is in {source.dataset}, {source.folder or 'all of it'}")
        seconds = given.options.patience
        # A list must end, however slowly it arrives.
        retry = Retry(seconds, given.stop.event, notice, deadline=10 * seconds)
        dataset = Dataset(source.dataset, source.revision)

        def came(size: int) -> None:
            retry.received(size, source.dataset)

        files = with_retries(lambda: dataset.files(source.folder, came), source.dataset, retry)
    for line in request.differences(source, files):
        notice(line)
    return request.with_files(recipe, files)


@dataclass
class Conversion:
    """One session on a run: where the run lies, what it is to be, and what it is made from."""

    store: Store
    recipe: Recipe
    inputs: Input
    given: Environment

    def run(self) -> Result:
        """Make the token shards of a recipe that lists its sources; see `convert`."""
        started, given = time.monotonic(), self.given
        open_standard_streams()  # A daemon may call us: what is printed must not go into files of the run.
        check_rules(self.recipe.rules)  # A program may have made it by hand.
        self.store.refuse_links()
        recipe = self.recipe = saved_recipe.adopt(self.store, self.recipe)
        finished = None if given.options.rehash else self._already_complete()
        if finished is not None:
            return self._result(finished, len(finished.state.sources), started, untouched=True)
        preflight.check(self.store, recipe, given.options, self.inputs, given.stop.event)
        session = self.inputs.new_session(self.store, recipe, given.options, given.observer)
        self.store = self.store.for_session(session.id)
        with self.store.lock():
            self.store.prepare()
            saved_recipe.save_plan(self.store, recipe)
            saved_recipe.save_source_root(self.store, self.inputs.root)
            tracker = self._resume(session)
            jobs_found = len(tracker.state.done.jobs)
            outcome = "error"
            try:
                outcome = self._convert_and_join(tracker, session)
            except Stopped:  # Perhaps too late: what workers finished meanwhile counts.
                outcome = "complete" if tracker.state.is_complete else "stopped"
            finally:
                self._tidy(tracker, session, outcome)
            return self._result(tracker, jobs_found, started)

    def _already_complete(self) -> Tracker | None:
        """Return the finished run if there is nothing left to do, having written nothing."""
        store = self.store
        if not base.exists(store, layout.MANIFEST) or not saved_recipe.has_plan(store):
            return None
        if not all(past.ended for past in sessions.all_of(store)):
            return None
        try:
            manifest = run_manifest.read(store)
            if not manifest.headline.complete:
                return None
            found = find_done(store, self.recipe, tick=self._stop_if_asked)
            state = RunState(self.recipe, "", found)
            if found.problems or state.limiter.unfit or not state.is_complete:
                return None
            tracker = Tracker(store, state, self.inputs, self.given.observer, self.given.stop)
            is_whole = manifest == tracker.manifest(complete=True) and not self._unlisted(tracker).own
        except Stopped:
            raise
        except FwconvertError:
            return None
        self._refuse_changed_sources(found)
        self._trust(found)
        return tracker if is_whole else None

    def _resume(self, session: sessions.Session) -> Tracker:
        """Find what is done, say what is wrong with it and withdraw that, and get ready for the rest."""
        store, observer = self.store, self.given.observer
        store.sweep_abandoned()
        past_sessions = sessions.all_of(store)
        # A session without an end that does not hold its lock any more was cut off.
        cut_off = [past for past in past_sessions if not past.ended and not store.holder(past.id)]
        if cut_off:
            observer.notice("the last session was cut off; hashing the files that it made")
        ids = frozenset(past.id for past in cut_off)
        found = find_done(store, self.recipe, ids, rehash=self.given.options.rehash, tick=self._show_check)
        self._refuse_changed_sources(found)
        self._trust(found)
        for problem in found.problems:
            observer.notice(problem)
        for receipt in found.withdrawn:
            store.remove(receipt)
            store.settle(receipt.rpartition("/")[0])
        expected = expected_amounts(self.recipe, self.inputs.sizes()) if self.recipe.rules.is_limited else []
        state = RunState(self.recipe, session.id, found, expected)
        sessions.write(store, session)
        for past in cut_off:
            end = f"cut off; its files were checked by {session.id}"
            sessions.write(store, sessions.ended(past, end))
        tracker = Tracker(store, state, self.inputs, observer, self.given.stop)
        tracker.cleanup.withdraw_over_limit()
        tracker.cleanup.remove_leftovers()
        return tracker

    def _convert_and_join(self, tracker: Tracker, session: sessions.Session) -> str:
        """Do all jobs, then the join; return how the session ended."""
        state, recipe = tracker.state, self.recipe
        context = RunContext(
            run=self.store.uri,
            recipe_id=recipe.recipe_id,
            rules=recipe.rules,
            session=session.id,
            encoder="fast" if session.encoder == "fast" else "reference",
            threads=session.threads,
            plain_names=state.plain_names,
        )
        with self.given.engine as engine:
            self._convert(tracker, context, engine)
            if not state.missing:
                tracker.cleanup.withdraw_misfits(tracker.stop_if_asked)
                if state.missing:
                    self._convert(tracker, context, engine)
            if not state.missing:
                tracker.tokens_to_join = state.tokens_to_join
                scheduler.carry_out(self._join_orders(tracker, context), engine, tracker)
                tracker.cleanup.remove_tails(*tracker.cleanup.take_spent())
        return f"{len(state.missing)} jobs failed" if state.missing else "complete"

    def _convert(self, tracker: Tracker, context: RunContext, engine: Engine) -> None:
        """Do all jobs that are left; under a limit, sources may yield less than expected, and more follow."""
        while True:
            with self.inputs:
                scheduler.carry_out(self._convert_orders(tracker.state, context), engine, tracker)
            if not tracker.state.has_more_to_convert:
                break
        if tracker.state.limiter.reached:
            self.inputs.clear()

    def _convert_orders(self, state: RunState, context: RunContext) -> Ready:
        """Yield an order for each job that is not done, when its source is there and the limit allows it."""
        orders = [
            ConvertOrder(context, source, index, SourceFile(str(self.inputs.location(source))))
            for index, source in state.unconverted
        ]
        if not self.recipe.rules.is_limited:
            return self.inputs.ready(orders)
        limiter = state.limiter
        coming = self.inputs.ready(orders, lambda order: limiter.is_wanted_soon(order.source_index))
        return Rations(limiter).ready(coming)

    def _join_orders(self, tracker: Tracker, context: RunContext) -> Iterator[JoinOrder]:
        """Yield an order for each joined shard that is not done; its worker removes tails that are spent."""
        keys = tracker.cleanup.keys
        for name, shard in tracker.state.unjoined:
            tails = tuple(keys[segment.source] for segment in shard.segments)
            yield JoinOrder(
                context,
                name,
                shard.split,
                shard.segments,
                tails,
                shard.absorbed,
                shard.places,
                spent=tracker.cleanup.take_spent(),
            )

    def _tidy(self, tracker: Tracker, session: sessions.Session, outcome: str) -> None:
        """Leave the folder tidy and described, whatever happened."""
        store, is_complete = self.store, outcome == "complete"
        store.sweep()
        store.sweep_abandoned()
        if is_complete:
            # What a trainer's glob finds is what the manifest lists. No tail is needed any more, nor the
            # reason why a source beyond the limit failed.
            run_manifest.remove_unlisted(store, self._unlisted(tracker))
            store.clear(layout.TAILS)
            store.clear(layout.QUARANTINE)
        sessions.write(store, sessions.ended(session, outcome))
        tracker.write_manifest(complete=is_complete)

    def _result(
        self, tracker: Tracker, jobs_found: int, started: float, *, untouched: bool = False
    ) -> Result:
        state = tracker.state
        complete = state.is_complete
        foreign = self._unlisted(tracker).foreign if complete else ()
        return Result(
            out=self.store.local(""),
            complete=complete,
            stopped=self.given.stop.asked > 0 and not complete,
            headline=tracker.manifest(complete=complete).headline,
            jobs_found=jobs_found,
            failed=tuple(state.quarantined[path] for path in state.missing if path in state.quarantined),
            untouched=untouched,
            session_tokens=state.session.tokens,
            seconds=time.monotonic() - started,
            foreign=foreign,
        )

    def _unlisted(self, tracker: Tracker) -> run_manifest.Unlisted:
        shards = {line.name for line in tracker.manifest().shards}
        return run_manifest.find_unlisted(self.store, self.recipe, shards)

    def _refuse_changed_sources(self, found: Found) -> None:
        """Raise UsageError if a source without a pinned sha256 is no longer the one that was converted."""
        for file in self.recipe.source.files:
            receipt = found.jobs.get(file.path)
            if receipt is None or file.sha256 is not None:
                continue
            now = self.inputs.changed(file, receipt)
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

    def _trust(self, found: Found) -> None:
        """Make receipts as new as their files, whose hashes are right: so they are not hashed each time."""
        for receipt, newest in found.proven.items():
            self.store.set_changed_at(receipt, newest)

    def _stop_if_asked(self, _done: int, _all: int) -> None:
        if self.given.stop.asked:
            raise Stopped("stopped by the user while the existing files were checked")

    def _show_check(self, done: int, everything: int) -> None:
        self._stop_if_asked(done, everything)
        self.given.observer.update(
            Snapshot(
                phase="check",
                units=everything,
                units_done=done,
                session_units=done,
                session_tokens=0,
                jobs=len(self.recipe.source.files),
                jobs_done=0,
                tokens=0,
                running=(),
            )
        )
