"""What happens to a run, and how the program may answer.

Instants of kills are never the same twice, so the answers are judged by rules that hold whenever a kill
falls: what a command may answer follows from the sources as they are and as they were.
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worlds import checks, history, oracle
from worlds.history import (
    Added,
    Broken,
    Damage,
    Interrupt,
    OtherRecipe,
    Removed,
    Replaced,
    Stray,
    Touched,
    Twice,
)
from worlds.oracle import Run
from worlds.program import Wrong

if TYPE_CHECKING:
    from worlds.play import Player

# How a command may end that is disturbed so, besides well. At its very end Python has no handler any more.
UNTIL: dict[str, set[int]] = {
    "kill": {-9},
    "kill worker": set(),
    "interrupt": {130, -2},
    "terminate": {143, -15},
    "hang up": {129, -1},
}


def happen(player: "Player", step: history.Step) -> None:
    """Let a step of a history happen."""
    player.program.note(f"* {step}")
    _HANDLERS[type(step)](player, step)


def interrupt(player: "Player", step: Interrupt) -> None:
    """Disturb a command: it ends by that, or well."""
    ended = player.program.interrupted(player.out, step, *player.words())
    player.must(ended, {0, *UNTIL[step.action], *({1, 2} if player.plan is not None else ())})
    if ended.code == 0:
        checks.complete(player.out, player.run())


def damage(player: "Player", step: Damage) -> None:
    player.program.disturbances += 1
    plan = player.out / history.PRIVATE / "plan.json"
    if step.what == "plans" and plan.is_file() and player.plan is None:
        player.plan = plan.read_bytes()
    player.program.note(f"  {history.damage(player.out, step)}")


def twice(player: "Player", _: Twice) -> None:
    """Of two at once one may refuse; together they must be done."""
    ended = player.program.twice(*player.words())
    codes = sorted(one.code for one in ended)
    if codes not in ([0, 0], [0, 2]):
        raise Wrong(f"two at once ended with {codes}:\n{ended[0]}\n{ended[1]}")
    checks.complete(player.out, player.run())


def break_sources(player: "Player", step: Broken) -> None:
    """Run with sources that cannot be read: all others are converted, and those alone are missing."""
    player.program.disturbances += 1
    good = [*player.sources]
    for at, content in step.contents.items():
        player.place.write(good[at], content)
        # Of pinned sources the pin tells the size.
        known = good[at].content if player.world.is_pinned else content
        player.sources[at] = replace(good[at], rows=(), content=known)
    run = oracle.convert([*player.sources], player.world.recipe.rules(), **player.place.identity)
    missing = [good[at].path for at in step.contents if at < len(run.jobs)]
    if step.interrupt is not None:
        ended = player.program.interrupted(player.out, step.interrupt, *player.words())
        player.must(ended, {0, 1, 2, *UNTIL[step.interrupt.action]})
    _run_without(player, run, missing, {good[at].path for at in step.contents})
    for source in good:
        player.place.write(source)
    player.sources = good
    if step.rots:
        _rot(player)


def _run_without(player: "Player", run: Run, missing: list[str], broken: set[str]) -> None:
    ended = player.program.run(*player.words())
    if not missing:  # The limit is reached before them.
        player.must(ended, {0})
        checks.complete(player.out, run)
        return
    # If nothing at all can be read, the command itself may be refused.
    player.must(ended, {1, 2} if len(missing) == len(player.sources) else {1})
    if ended.code == 2:
        return
    checks.unfinished(player.out, run, missing)
    told = player.must(player.program.run("status", str(player.out), "--json"), {1})
    failed = [one["path"] for one in json.loads(told.said)["failed"]]
    limited = run.rules.limit_documents is not None or run.rules.limit_tokens is not None
    # With a limit, what lies behind a broken source may have been tried, or not.
    if failed != missing and not (limited and failed and set(failed) <= broken):
        raise Wrong(f"status tells that {failed} failed, and it were {missing}")


def _rot(player: "Player") -> None:
    """Flip a bit of the shard that the join will take in, so that its time of change does not tell."""
    run = player.run()
    names = {run.name(shard) for shard in run.shards}
    own = [run.name(shard) for at in range(len(run.jobs)) for shard in run.layout.own(at)[0]]
    for name in own:
        path = player.out / name
        if name not in names and path.is_file():
            status = path.stat()
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            player.program.note(f"  a bit of {name} has rotted")


def replace_source(player: "Player", step: Replaced) -> None:
    """A source is another one by now: a run that has converted the old one refuses, others take it."""
    player.program.disturbances += 1
    old = player.sources[step.index]
    player.place.write(old, step.by.content)
    before = checks.state(player.out, private=False)
    ended = player.program.run(*player.words())
    if player.world.is_pinned:
        player.must(ended, {0} if step.by.content == old.content else {0, 1, 2})
    elif ended.code == 0:
        player.sources[step.index] = step.by
        checks.complete(player.out, player.run())
        return
    else:
        player.must(ended, {2})
        checks.unchanged(before, checks.state(player.out, private=False))
    player.place.write(old)


def remove_source(player: "Player", step: Removed) -> None:
    """Without one of its sources it is another recipe; a pin lists it still, and its receipt is enough."""
    if _made_nothing(player):
        return
    old = player.sources[step.index]
    player.place.path(old).unlink()
    _changes_nothing(player, player.words(), {0, 2} if player.world.is_pinned else {2})
    player.place.write(old)


def add_source(player: "Player", step: Added) -> None:
    """With a source more it is another recipe, unless the sources are listed elsewhere."""
    if _made_nothing(player):
        return
    player.place.write(step.source)
    listed = player.world.is_pinned or player.world.kind == "file"
    _changes_nothing(player, player.words(), {0} if listed else {2})
    player.place.path(step.source).unlink()


def touch_source(player: "Player", step: Touched) -> None:
    player.place.write(player.sources[step.index])
    _changes_nothing(player, player.words(), {0})


def ask_another(player: "Player", step: OtherRecipe) -> None:
    if _made_nothing(player):  # Such a folder is free for any recipe.
        return
    _changes_nothing(player, player.words(step.words), {2})


def _made_nothing(player: "Player") -> bool:
    """Return whether the run has no token at all, and so does not own its folder."""
    return not any(job.stream.tokens for job in player.run().jobs)


def _changes_nothing(player: "Player", words: list[str], codes: set[int]) -> None:
    player.program.disturbances += 1
    before = checks.state(player.out)
    player.must(player.program.run(*words), codes)
    checks.unchanged(before, checks.state(player.out))


def leave_a_stray(player: "Player", step: Stray) -> None:
    """A file that a trainer would read and nobody lists: it is removed, or the run says so."""
    player.program.disturbances += 1
    run = player.run()
    if not run.shards:
        return
    rules = run.rules
    name = f"{rules.name}_train_{step.number:05d}_000{rules.suffix}"
    if rules.layout == "contiguous":
        name = f"{rules.name}_train_{step.number:06d}{rules.suffix}"
    stray = player.out / name
    if rules.format == "raw" or stray.exists():
        return
    stray.write_bytes(run.files[run.name(run.shards[0])])
    ended = player.must(player.program.run(*player.words()), {0, 1})
    if stray.exists() and (ended.code == 0 or name not in ended.said + ended.complained):
        raise Wrong(f"{name} is in no manifest, a trainer would read it, and nobody says so: {ended}")
    stray.unlink(missing_ok=True)


_HANDLERS: dict[type, Callable[[Any, Any], None]] = {
    Interrupt: interrupt,
    Damage: damage,
    Twice: twice,
    Broken: break_sources,
    Replaced: replace_source,
    Removed: remove_source,
    Added: add_source,
    Touched: touch_source,
    OtherRecipe: ask_another,
    Stray: leave_a_stray,
}
