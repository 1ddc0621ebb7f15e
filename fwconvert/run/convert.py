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
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from fwconvert import machine
from fwconvert.errors import FwconvertError, Stopped, UsageError, message
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.retry import Retry, with_retries
from fwconvert.job.orders import ConvertOrder, JoinOrder, Ready, RunContext, SourceFile
from fwconvert.options import Options
from fwconvert.processes import CallApart, ProcessLimits, call_apart, cannot_start, open_standard_streams
from fwconvert.recipes import Recipe, check_rules
from fwconvert.run import preflight, request, scheduler
from fwconvert.run.engines import Engine
from fwconvert.run.engines.local import LocalEngine
from fwconvert.run.estimate import expected_amounts
from fwconvert.run.events import NO_FAULTS, Faults, Observer, SilentObserver, Snapshot, StopSwitch
from fwconvert.run.inputs import Input
from fwconvert.run.limiter import Rations
from fwconvert.run.node_prefetch import NodePrefetch
from fwconvert.run.prefetch import Prefetch, open_input
from fwconvert.run.recorder import Recorder
from fwconvert.run.resume import Found, Tick, find_done
from fwconvert.run.state import RunState
from fwconvert.run.tracker import Tracker
from fwconvert.shards import listings
from fwconvert.store import base, layout, pulses, run_manifest, saved_recipe, sessions
from fwconvert.store.base import Store
from fwconvert.store.local import absolute, open_store
from fwconvert.store.receipts import Quarantined
from fwconvert.store.run_manifest import Headline

# A sound source needs about half of it.
_LEAST_WORKER_MEMORY = 2**30


@dataclass(frozen=True)
class Result:
    """What happened."""

    # The folder, or the address of a run in an object store.
    out: Path | str
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
    # The sources that are not converted; told by a merge, which converts none itself.
    missing: tuple[str, ...] = ()
    # Of a rank ("3 of 64"): all above is said of its share of the sources.
    rank: str = ""
    # All token shards together, and the name of one of them; "" if there is none.
    output_bytes: int = 0
    sample: str = ""
    # What went wrong in this session and was tried again.
    faults: Faults = NO_FAULTS


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
    store = open_store(absolute(out), scratch=given.options.scratch_folder)
    store.refuse_links()  # Before anything is read from them.
    if not recipe.source.files:
        recipe = with_sources(recipe, store, given)
    inputs = open_input(recipe, given.options, store)
    if given.engine.nodes is not None and isinstance(inputs, Prefetch):
        inputs = NodePrefetch(inputs, given.options, given.engine.nodes)
    return Conversion(store, recipe, inputs, given).run()


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
        if engine.nodes is not None and options.threads is None:  # The cores here say nothing of theirs.
            options = replace(options, threads=engine.nodes.order_threads)
    return Environment(options, engine, observer or SilentObserver(), stop or StopSwitch())


def with_sources(recipe: Recipe, store: Store, given: Environment) -> Recipe:
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
    """One session on a run: where the run lies, what it is to be, and what it is made from.

    Ranks and the merge of what they made (`run/ranks`) are sessions of other kinds: they override
    what differs.
    """

    store: Store
    recipe: Recipe
    inputs: Input
    given: Environment
    # The sources that are to be converted, by index; None: all.
    share: frozenset[int] | None = None

    def run(self) -> Result:
        """Make the token shards of a recipe that lists its sources; see `convert`."""
        started = time.monotonic()
        open_standard_streams()  # A daemon may call us: what is printed must not go into files of the run.
        check_rules(self.recipe.rules)  # A program may have made it by hand.
        self.store.refuse_links()
        self.recipe = saved_recipe.adopt(self.store, self.recipe)
        finished = None if self.given.options.rehash else self._already_complete()
        if finished is not None:
            if self.store.is_remote:  # What a killed session has left on this machine, nothing of the run.
                self.store.sweep_abandoned()
            return self._result(finished, len(finished.state.sources), started, untouched=True)
        with ExitStack() as engine:
            engine.enter_context(self.given.engine)
            session = self._checked_session()
            self.store = self.store.for_session(session.id)
            with self._lock(), self.inputs.held(session.id):
                self._begin()
                recorder = Recorder(self.store, session.id, self.given.observer)
                self.given = replace(self.given, observer=recorder)
                tracker = self._resume(session)
                jobs_found = len(tracker.state.done.jobs)
                outcome = "error"
                try:
                    with engine:  # To its end: no worker is left when the folder is tidied.
                        outcome = self._convert_and_join(tracker, session)
                except Stopped:  # Perhaps too late: what workers finished meanwhile counts.
                    outcome = "complete" if self._is_complete(tracker.state) else "stopped"
                finally:
                    # Before the folder is tidied: after that nobody looks for drafts of a complete run.
                    tracker.end_pulse()
                    recorder.finish(outcome)
                    self._tidy(tracker, session, outcome)
                return self._result(tracker, jobs_found, started)

    def _checked_session(self) -> sessions.Session:
        """Check what could fail later, and return a new session.

        Meanwhile the first worker starts and tries the encoder: both take half a second. The others start
        once all is well, and their number is known to be possible.
        """
        inputs, given = self.inputs, self.given
        apart: CallApart = call_apart
        if isinstance(given.engine, LocalEngine):
            given.engine.warm_up(1)
            apart = given.engine.call_apart
        with ThreadPoolExecutor(1) as beside:
            try:
                choosing = beside.submit(inputs.choose_encoder, self.store, self.recipe, given.options, apart)
            except RuntimeError as error:  # No thread can be started, and so no worker either.
                raise FwconvertError(cannot_start(error)) from error
            self._check()
            if isinstance(given.engine, LocalEngine):
                done = sum(1 for _ in base.record_names(self.store, layout.RECEIPTS))
                given.engine.warm_up(len(self.recipe.source.files) - done)
            encoder, notice = choosing.result()
        if notice:
            given.observer.notice(notice)
        return self._new_session(encoder)

    def _check(self) -> None:
        """Raise UsageError if the session cannot end well; nothing is written."""
        given = self.given
        here = given.engine.nodes is None
        preflight.check(
            self.store, self.recipe, given.options, self.inputs, given.stop.event, workers_here=here
        )
        for line in preflight.forewarnings(self.recipe, given.options, self.inputs):
            given.observer.notice(line)

    def _new_session(self, encoder: str) -> sessions.Session:
        given = self.given
        return self.inputs.new_session(self.store, self.recipe, given.options, given.observer, encoder)

    def _lock(self) -> AbstractContextManager[object]:
        # A lock on a disk is free or not; elsewhere it takes a while to see whether its holder lives.
        if self.store.is_remote and (who := self.store.holder()):
            self.given.observer.notice(f"looking whether another session is alive: {who}")
        return self.store.lock()

    def _begin(self) -> None:
        """Make the folder that of a run of this recipe."""
        self.store.prepare()
        saved_recipe.save_plan(self.store, self.recipe)
        saved_recipe.save_source_root(self.store, self.inputs.root, kept=self.recipe.place is None)

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
            found = self._find_done(frozenset(), self._stop_if_asked)
            state = RunState(self.recipe, "", found)
            if found.problems or state.limiter.unfit or not state.is_complete:
                return None
            tracker = Tracker(store, state, self.inputs, self.given.observer, self.given.stop)
            is_whole = manifest == tracker.manifest(complete=True) and not self._unlisted(tracker).own
            is_whole = is_whole and listings.are_there(store, self.recipe.rules, manifest.shards)
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
        doubtful = [] if store.is_atomic else cut_off
        if doubtful:
            observer.notice("the last session was cut off; hashing the files that it made")
        ids = frozenset(past.id for past in doubtful)
        found = self._find_done(ids, self._show_check)
        self._refuse_changed_sources(found)
        self._trust(found)
        for problem in found.problems:
            observer.notice(problem)
        for receipt in found.withdrawn:
            store.remove(receipt)
            store.settle(receipt.rpartition("/")[0])
        expected = expected_amounts(self.recipe, self.inputs.sizes()) if self.recipe.rules.is_limited else []
        state = RunState(self.recipe, session.id, found, expected, self.share)
        sessions.write(store, session)
        pulses.remove(store, *(past.id for past in cut_off))
        for past in filter(self._has_checked, cut_off):
            end = f"cut off; {'found' if store.is_atomic else 'its files were checked'} by {session.id}"
            sessions.write(store, sessions.ended(past, end))
        is_whole, slots = self.share is None, self.given.engine.slots
        tracker = Tracker(
            store, state, self.inputs, observer, self.given.stop, workers=slots, writes_manifest=is_whole
        )
        if not state.is_complete:
            listings.remove(store, self.recipe.rules)
        tracker.cleanup.withdraw_over_limit()
        tracker.cleanup.remove_leftovers()
        return tracker

    def _find_done(self, cut_off: frozenset[str], tick: Tick) -> Found:
        return find_done(
            self.store,
            self.recipe,
            cut_off,
            share=self.share,
            needs_tails=self._needs_tails(),
            rehash=self.given.options.rehash,
            tick=tick,
        )

    def _needs_tails(self) -> bool:
        """Return whether the tails of jobs are needed that no joined shard has taken in."""
        return True

    def _is_complete(self, state: RunState) -> bool:
        """Return whether the session has nothing left to do."""
        return state.is_complete

    def _has_checked(self, cut_off: sessions.Session) -> bool:  # noqa: ARG002
        """Return whether all files of a session that was cut off have been hashed."""
        return True

    def _convert_and_join(self, tracker: Tracker, session: sessions.Session) -> str:
        """Do all jobs, then the join; return how the session ended."""
        state, context, engine = tracker.state, self._context(tracker.state, session), self.given.engine
        if engine.nodes is not None:
            encodes, seen = session.encoder in {"fast", "reference"}, self.inputs.seen_by_workers()
            engine.nodes.check(context, encodes=encodes, seen=seen)
        if isinstance(engine, LocalEngine) and self.inputs.traffic() is not None:
            # While the first files are on their way.
            engine.warm_up(len(state.unconverted), context)
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

    def _context(self, state: RunState, session: sessions.Session) -> RunContext:
        return RunContext(
            run=self.store.uri,
            recipe_id=self.recipe.recipe_id,
            rules=self.recipe.rules,
            session=session.id,
            encoder="fast" if session.encoder == "fast" else "reference",
            threads=session.threads,
            plain_names=state.plain_names,
            scratch=str(self.given.options.scratch_folder or ""),
        )

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
        keys, state = tracker.cleanup.keys, tracker.state
        for name, shard in state.unjoined:
            tails = tuple(keys[segment.source] for segment in shard.segments)
            gave = [state.done.jobs[state.sources[segment.source].path].tail for segment in shard.segments]
            yield JoinOrder(
                context,
                name,
                shard.split,
                shard.segments,
                tails,
                shard.absorbed,
                shard.places,
                spent=tracker.cleanup.take_spent(),
                proofs=tuple((tail.sha256, tail.index_sha256) for tail in gave),
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
            listings.write(store, self.recipe.rules, tracker.manifest().shards)
        sessions.write(store, sessions.ended(session, outcome))
        tracker.write_manifest(complete=is_complete)

    def _result(
        self, tracker: Tracker, jobs_found: int, started: float, *, untouched: bool = False
    ) -> Result:
        state = tracker.state
        complete = state.is_complete
        foreign = self._unlisted(tracker).foreign if complete else ()
        manifest = tracker.manifest(complete=complete)
        shards = [line for line in manifest.shards if line.split == "train"] or manifest.shards
        return Result(
            out=self.store.uri if self.store.is_remote else Path(self.store.uri),
            complete=complete,
            stopped=self.given.stop.asked > 0 and not complete,
            headline=manifest.headline,
            jobs_found=jobs_found,
            failed=self._failed(state),
            untouched=untouched,
            session_tokens=state.session.tokens,
            seconds=time.monotonic() - started,
            foreign=foreign,
            output_bytes=sum(line.bytes for line in manifest.shards),
            sample=shards[0].name if shards else "",
            faults=tracker.faults,
        )

    def _failed(self, state: RunState) -> tuple[Quarantined, ...]:
        return tuple(state.quarantined[path] for path in state.missing if path in state.quarantined)

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
