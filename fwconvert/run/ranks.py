"""A run on many machines without an engine: a plan, ranks that convert a share of it each, and a merge.

Slurm arrays, indexed jobs of Kubernetes and ssh need no more than this: `save_plan`
writes the plan, once; `convert_rank` converts the sources that fall to one rank of
so many, into the same folder; `merge` joins the tails and finishes. Which sources a
rank has follows from the plan alone, so nobody lists the hub again and nobody has to
talk to anybody. A source is done when its receipt is there, whoever made it. So
ranks may be killed, repeated, run twice at the same time, and their number may change.
"""

import heapq
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fwconvert.errors import FwconvertError, UsageError, message
from fwconvert.job.orders import RunContext
from fwconvert.options import Options
from fwconvert.recipes import Recipe, SourceShard
from fwconvert.run import preflight, request
from fwconvert.run.convert import Conversion, Result, environment, with_sources
from fwconvert.run.engines import Engine
from fwconvert.run.events import Observer, StopSwitch
from fwconvert.run.prefetch import open_input
from fwconvert.run.state import RunState
from fwconvert.run.tracker import Tracker
from fwconvert.sources import catalog
from fwconvert.store import base, layout, run_manifest, saved_recipe, sessions
from fwconvert.store.base import Store
from fwconvert.store.local import absolute, open_store
from fwconvert.store.receipts import Quarantined
from fwconvert.store.scratch import Scratch

AUTO = "auto"


@dataclass(frozen=True)
class Rank:
    """One of so many who convert a run together. They count from 0."""

    number: int
    world: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.world:
            raise UsageError(
                message(
                    "there is no such rank",
                    f"ranks count from 0: pass --rank 0 to {max(0, self.world - 1)}, or a larger --world",
                    rank=self.number,
                    world=self.world,
                )
            )

    def __str__(self) -> str:
        return f"{self.number} of {self.world}"


def parse_rank(rank: str | int, world: int | None, variables: Mapping[str, str] = os.environ) -> Rank:
    """Return the rank that a user means; "auto" is what Slurm or Kubernetes say in the environment."""
    if rank != AUTO:
        if world is None:
            raise UsageError(
                message("--rank is one of how many?", "pass --world, the number of ranks", rank=rank)
            )
        return Rank(int(rank), world)
    if "SLURM_ARRAY_TASK_ID" in variables:
        number = _number(variables, "SLURM_ARRAY_TASK_ID")
        return Rank(number, _world_of_array(variables) if world is None else world)
    if "JOB_COMPLETION_INDEX" in variables:
        if world is None:
            raise UsageError(
                message(
                    "Kubernetes does not tell a job how many completions it has",
                    "pass --world, the same number as the job's completions",
                )
            )
        return Rank(_number(variables, "JOB_COMPLETION_INDEX"), world)
    raise UsageError(
        message(
            "--rank auto finds no rank in the environment",
            "run it in a Slurm array or an indexed job of Kubernetes, or pass --rank I --world N",
            looked_for="SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX",
        )
    )


def _number(variables: Mapping[str, str], name: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", variables.get(name, "")):
        raise UsageError(message(f"{name} is not a number", "pass --rank I --world N instead of --rank auto"))
    return int(variables[name])


def _world_of_array(variables: Mapping[str, str]) -> int:
    """Return how many tasks a Slurm array has, if it is whole: 0, 1, 2 and so on.

    Of a part that is submitted again (--array=3,7) Slurm knows the size of that part alone.
    """
    names = ("SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_COUNT")
    first, last, count = (_number(variables, name) for name in names)
    if (first, last) != (0, count - 1):
        raise UsageError(
            message(
                "this Slurm array does not tell how many ranks there are",
                "pass --world, the number of ranks of the whole run; ranks count from 0",
                array=f"{count} tasks, from {first} to {last}",
            )
        )
    return count


def owners(files: Sequence[SourceShard], world: int) -> list[int]:
    """Return the rank of each source: the largest first, each to the rank that has least so far."""
    loads = [(0, number) for number in range(min(world, len(files)))]
    found = [0] * len(files)
    for index in sorted(range(len(files)), key=lambda index: (-files[index].bytes, index)):
        load, number = loads[0]
        found[index] = number
        heapq.heapreplace(loads, (load + files[index].bytes, number))
    return found


def share(files: Sequence[SourceShard], rank: Rank) -> frozenset[int]:
    """Return the sources of a rank, by index."""
    return frozenset(index for index, number in enumerate(owners(files, rank.world)) if number == rank.number)


def array_expression(numbers: Collection[int]) -> str:
    """Return the ranks as Slurm's --array takes them: 0-3,7."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in spans)


def last_world(store: Store) -> int | None:
    """Return how many ranks there were when one last began, or None if none ever did."""
    names = sorted(base.record_names(store, layout.SESSIONS), reverse=True)
    found = (sessions.rank_in(name.removesuffix(".json")) for name in names)
    return next((rank[1] for rank in found if rank is not None), None)


# --- the plan


def save_plan(
    recipe: Recipe,
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    observer: Observer | None = None,
    stop: StopSwitch | None = None,
) -> Recipe:
    """Make the folder `out` that of a run of `recipe`, for ranks to convert; return the recipe as saved.

    The hub is asked for the list of files if the version has none, and for the columns of one;
    no rank asks again. Raises UsageError as `convert` does, before anything is written.
    """
    given = environment(options, None, observer, stop)
    store = open_store(absolute(out), scratch=given.options.scratch_folder)
    store.refuse_links()
    refuse_limit(recipe)
    if not recipe.source.files:
        recipe = with_sources(recipe, store, given)
    recipe = saved_recipe.adopt(store, recipe)
    inputs = open_input(recipe, given.options, store)
    preflight.check(store, recipe, given.options, inputs, given.stop.event)
    # It fetches the vocabulary, if that is not in the package, once for all ranks.
    session = inputs.new_session(store, recipe, given.options, given.observer, given.options.encoder)
    store = store.for_session(session.id)
    with store.lock():
        store.prepare()
        saved_recipe.save_plan(store, recipe)
        before = saved_recipe.read_source_root(store)
        root, kept = (before, True) if recipe.place is None else (recipe.place, False)
        saved_recipe.save_source_root(store, root, kept=kept)
    return recipe


def refuse_limit(recipe: Recipe) -> None:
    """Raise UsageError if a run has a limit: which sources it needs shows only as they are converted."""
    if recipe.rules.is_limited:
        raise UsageError(
            message(
                "a run with --limit-documents or --limit-tokens cannot be divided among ranks:"
                " where it ends shows only when the sources before are converted",
                "convert it in one session, without --rank; or leave the limit out",
            )
        )


def planned(out: str | os.PathLike[str], given: Mapping[str, Any]) -> Recipe:
    """Return the recipe of the plan in `out`, at its files; what else is `given` must agree with it.

    `given` has the names of `request.recipe`. What is not given is as in the plan.
    """
    store = open_store(absolute(out))
    store.refuse_links()
    if not saved_recipe.has_plan(store):
        base.refuse_missing(store)
        raise UsageError(
            message(
                "there is no plan in this folder, and a rank makes none",
                "first run once: fwconvert plan --version NAME --out OUT --save",
                folder=store.uri,
            )
        )
    saved = saved_recipe.read_plan(store)
    source, root = saved.source, saved_recipe.named_source_root(store)
    rules = request.changed_rules(saved.rules, given, lambda: request.kept_tokenizer(store))
    if given.get("version") is not None or given.get("source") is not None:
        source, named = request.sources(given.get("version"), given.get("source"))
        root = named or root
        if not source.files:
            known = saved_recipe.known_sources(store, Recipe(source, rules))
            source = msgspec.structs.replace(source, files=known or ())
    wanted = Recipe(source, rules)
    if wanted.recipe_id not in saved.ids:
        raise UsageError(
            message(
                "these options are not those of the plan in this folder",
                "leave them out: a rank takes them from the plan",
                folder=store.uri,
                **saved_recipe.differences(saved, wanted),
            )
        )
    if root is None and saved.source.dataset in {catalog.LOCAL, "demo"}:
        raise UsageError(
            message(
                "the sources are local files, and the plan does not say where",
                "pass --source DIR, the folder that holds them",
                folder=store.uri,
            )
        )
    return saved.at(root)


# --- a rank


def convert_rank(
    out: str | os.PathLike[str],
    rank: Rank,
    options: Options | None = None,
    *,
    recipe: Recipe | None = None,
    engine: Engine | None = None,
    observer: Observer | None = None,
    stop: StopSwitch | None = None,
) -> Result:
    """Convert the share of one rank of the run that is planned in `out`; return how that went.

    `recipe` is the one of the plan (see `planned`). Raises as `convert` does. After any failure,
    or a crash, the same call continues, and so does one of another rank in another world.
    """
    recipe = recipe or planned(out, {})
    refuse_limit(recipe)
    given = environment(options, engine, observer, stop)
    store = open_store(absolute(out), scratch=given.options.scratch_folder)
    inputs = open_input(recipe, given.options, store, shared=True)
    sources = share(recipe.source.files, rank)
    return RankConversion(store, recipe, inputs, given, sources, rank).run()


@dataclass
class RankConversion(Conversion):
    """A session that converts a share of the sources, beside others on the same run; it joins nothing."""

    rank: Rank = Rank(0, 1)

    def _check(self) -> None:
        sources = [self.recipe.source.files[index] for index in sorted(self.share or ())]
        if sources:
            preflight.check_share(self.store, self.recipe, sources, self.given.options, self.inputs)

    def _new_session(self, encoder: str) -> sessions.Session:
        jobs = max(1, len(self.share or ()))
        options = replace(self.given.options, threads=self.given.options.thread_count(jobs))
        self.given = replace(self.given, options=options)
        return sessions.of_rank(super()._new_session(encoder), self.rank.number, self.rank.world)

    def _lock(self) -> AbstractContextManager[object]:
        return self.store.lock(shared=True)

    def _begin(self) -> None:
        self.store.prepare()
        # Nobody can change it any more, now that we hold the lock.
        if saved_recipe.read_plan(self.store).recipe_id != self.recipe.recipe_id:
            raise UsageError(
                message("the plan in this folder has just changed", "try again", folder=self.store.uri)
            )

    def _already_complete(self) -> Tracker | None:
        if not _is_merged(self.store, self.recipe):
            return None
        found = self._find_done(frozenset(), self._stop_if_asked)
        state = RunState(self.recipe, "", found, share=self.share)
        if found.problems or state.missing:
            return None
        return Tracker(self.store, state, self.inputs, self.given.observer, self.given.stop)

    def _resume(self, session: sessions.Session) -> Tracker:
        tracker = super()._resume(session)
        # Of the names that other ranks have given, too.
        names = self.store.list("")
        tracker.state.plain_names = layout.are_plain(self.recipe.rules, names)
        return tracker

    def _has_checked(self, cut_off: sessions.Session) -> bool:
        # Only that of an earlier try of this rank had no sources but ours.
        return sessions.rank_in(cut_off.id) == (self.rank.number, self.rank.world)

    def _needs_tails(self) -> bool:
        return not _is_merged(self.store, self.recipe)

    def _convert_and_join(self, tracker: Tracker, session: sessions.Session) -> str:
        state = tracker.state
        self._convert(tracker, self._context(state, session), self.given.engine)
        return f"{len(state.missing)} jobs failed" if state.missing else "complete"

    def _is_complete(self, state: RunState) -> bool:
        return not state.missing

    def _tidy(self, tracker: Tracker, session: sessions.Session, outcome: str) -> None:
        store = self.store
        store.sweep()
        if _is_merged(store, self.recipe):  # Where locks do not reach, it may have been merged meanwhile.
            listed = {line.name for line in run_manifest.read(store).shards}
            run_manifest.remove_unlisted(store, run_manifest.find_unlisted(store, self.recipe, listed))
            tracker.cleanup.remove_tails(*(tracker.cleanup.keys[index] for index in self.share or ()))
        sessions.write(store, sessions.ended(session, outcome))

    def _result(
        self, tracker: Tracker, jobs_found: int, started: float, *, untouched: bool = False
    ) -> Result:
        state = tracker.state
        built = run_manifest.build(self.recipe, state.done.jobs, {}, (), complete=False)
        headline = msgspec.structs.replace(built.headline, jobs=len(state.sources))
        return Result(
            out=self.store.local(""),
            complete=not state.missing,
            stopped=self.given.stop.asked > 0 and bool(state.missing),
            headline=headline,
            jobs_found=jobs_found,
            failed=self._failed(state),
            untouched=untouched,
            session_tokens=state.session.tokens,
            seconds=time.monotonic() - started,
            rank=str(self.rank),
            faults=tracker.faults,
        )


def _is_merged(store: Store, recipe: Recipe) -> bool:
    """Return whether the run is complete."""
    try:
        manifest = run_manifest.read(store)
    except FwconvertError:
        return False
    return manifest.headline.complete and manifest.recipe_id == recipe.recipe_id


# --- the merge


def merge(
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    engine: Engine | None = None,
    observer: Observer | None = None,
    stop: StopSwitch | None = None,
) -> Result:
    """Finish the run in `out`, all of whose sources ranks have converted: join the tails, write the manifest.

    If some are not converted, the result says which, and nothing is joined. Raises UsageError
    while ranks are at work.
    """
    given = environment(options, engine, observer, stop)
    store = open_store(absolute(out), scratch=given.options.scratch_folder)
    store.refuse_links()
    recipe = saved_recipe.read_plan(store)
    root = saved_recipe.read_source_root(store)
    # Files that are here are compared with what was converted; elsewhere nobody can tell.
    recipe = recipe.at(root if isinstance(root, Path) and root.is_dir() else None)
    return MergeSession(store, recipe, open_input(recipe, given.options, store), given).run()


@dataclass
class MergeSession(Conversion):
    """A session that converts nothing: it joins what ranks have made, once that is all."""

    def _checked_session(self) -> sessions.Session:
        """Return a new session. The checks were the ranks': a join needs little more disk than there is."""
        return sessions.new(self.given.options.worker_count, 1, "merged")

    def _begin(self) -> None:
        self.store.prepare()

    def _convert(self, tracker: Tracker, context: RunContext, engine: Engine) -> None:
        """Convert nothing."""

    def _convert_and_join(self, tracker: Tracker, session: sessions.Session) -> str:
        if tracker.state.missing:
            return f"{len(tracker.state.missing)} sources are not converted"
        return super()._convert_and_join(tracker, session)

    def _tidy(self, tracker: Tracker, session: sessions.Session, outcome: str) -> None:
        if outcome == "complete":
            # Of ranks that died on other machines nobody can be certain. But nothing that one of them may
            # still be making is needed any more, and without its draft it can publish nothing.
            self.store.clear(layout.TEMPORARY)
            Scratch(self.store.local(layout.SOURCES), self.store.uri).clear()
        super()._tidy(tracker, session, outcome)

    def _result(
        self, tracker: Tracker, jobs_found: int, started: float, *, untouched: bool = False
    ) -> Result:
        result = super()._result(tracker, jobs_found, started, untouched=untouched)
        missing = tuple(tracker.state.missing)
        return replace(result, missing=missing, failed=_given_up(self.store, missing))


def _given_up(store: Store, paths: Collection[str]) -> tuple[Quarantined, ...]:
    """Return why ranks gave up those of these sources that they gave up."""
    found = []
    for path in paths:
        name = layout.quarantined(layout.job_key(path))
        try:
            if base.exists(store, name):
                found.append(base.read_record(store, name, Quarantined))
        except FwconvertError:
            continue
    return tuple(found)


def ranks_of(recipe: Recipe, paths: Collection[str], world: int) -> list[int]:
    """Return the ranks whose sources these are, in a world of so many."""
    wanted, files = frozenset(paths), recipe.source.files
    numbers = owners(files, world)
    return sorted({number for file, number in zip(files, numbers, strict=True) if file.path in wanted})
