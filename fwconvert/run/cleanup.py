"""What a run does not need any more: tails that are joined, failures since mended, shards that were taken in.

All of it may be removed at any time, or twice: nothing is left of it to be
done. What a session that was cut off could not remove, the next one does.

What a trainer's glob finds in the output folder and is not in the run manifest.

A trainer takes every file whose name fits its pattern, so tokens that stand in
a file of nobody would be trained on twice. They come about in honest ways: a
worker was killed between giving its files their names and its receipt, and the
source was then replaced by a shorter one; a source was converted again whose
last shard a joined shard had taken in; a source was converted on trial and lies
behind the limit.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fwconvert import records
from fwconvert.formats import ZIPPED
from fwconvert.recipe import Recipe
from fwconvert.run.resume import Survey
from fwconvert.store import atomic, names
from fwconvert.store.folder import RunFolder
from fwconvert.store.receipts import JoinReceipt


class Leftovers:
    """Knows what of a run's files is not needed; is told of every receipt, after it is in the survey."""

    def __init__(self, folder: RunFolder, recipe: Recipe, survey: Survey) -> None:
        self._folder = folder
        self._rules = recipe.rules
        self._paths = [file.path for file in recipe.source.files]
        self._survey = survey
        # How many tokens of each source's tail stand in joined shards.
        self._covered: Counter[int] = survey.covered
        # The jobs whose tails are not needed and still there; and those with a record in quarantine.
        self._spent: list[str] = []
        keys = {names.job_key(path) for path in self._paths}
        there = (name.removesuffix(".json") for name in records.names_in(folder.quarantine))
        self._quarantined = {key for key in there if key in keys}
        # The shard of a source that a joined shard has taken in.
        taken = [join.taken for join in survey.joins.values() if join.taken]
        self._absorbed = {one.source: one.name for one in taken}

    def remove(self) -> None:
        """Remove what an earlier session has left."""
        for index, path in enumerate(self._paths):
            if path in self._survey.jobs:
                self.job_done(index)
        for name in self._absorbed.values():
            self._remove_shard(name)

    def job_done(self, index: int) -> None:
        """Remove what the receipt of a job makes unnecessary."""
        key = names.job_key(self._paths[index])
        if key in self._quarantined:
            atomic.remove(self._folder.quarantined(key))
            self._quarantined.remove(key)
        if self._is_spent(index):  # Its joined shards were made before, by a session that was cut off.
            self._folder.remove_tail(key)
        if index in self._absorbed:  # Likewise what one of them has taken in.
            self._remove_shard(self._absorbed[index])

    def job_given_up(self, key: str) -> None:
        """Take note of a record in quarantine."""
        self._quarantined.add(key)

    def join_done(self, join: JoinReceipt) -> None:
        """Take note of what the receipt of a joined shard makes unnecessary."""
        for segment in join.segments:
            self._covered[segment.source] += segment.tokens
            if self._is_spent(segment.source):
                self._spent.append(names.job_key(self._paths[segment.source]))
        if join.taken:
            self._absorbed[join.taken.source] = join.taken.name
            self._remove_shard(join.taken.name)

    def take_spent(self) -> tuple[str, ...]:
        """Return the jobs whose tails somebody is to remove, each once.

        Removing a large file takes time, and the driver has none to spare.
        """
        spent, self._spent = tuple(self._spent), []
        return spent

    def _is_spent(self, index: int) -> bool:
        receipt = self._survey.jobs.get(self._paths[index])
        return receipt is not None and receipt.tail.tokens == self._covered[index]

    def join_withdrawn(self, join: JoinReceipt) -> None:
        """Take note that a joined shard is to be made again, or not at all."""
        for segment in join.segments:
            self._covered[segment.source] -= segment.tokens
        if join.taken:
            self._absorbed.pop(join.taken.source, None)

    def _remove_shard(self, name: str) -> None:
        for file in (name, *names.sidecars(self._rules, name)):
            atomic.remove(self._folder.shard(file))
        atomic.remove(self._folder.shard_index(name))


@dataclass(frozen=True)
class Unlisted:
    """Files that are not in the run manifest."""

    # Made by this run, whose names nothing else has; and what somebody else may have put here.
    own: tuple[Path, ...]
    foreign: tuple[Path, ...]


def find(folder: RunFolder, recipe: Recipe, shards: Collection[str]) -> Unlisted:
    """Return what carries the names of this run's output, or could be taken for it, beyond `shards`."""
    rules, listed = recipe.rules, frozenset(shards)
    beside = {name for shard in listed for name in (shard, *names.sidecars(rules, shard))}
    beside |= {name.removesuffix(ZIPPED) for name in listed}  # Somebody may have unpacked them.
    own, foreign = [], []
    for path in folder.path.iterdir() if folder.path.is_dir() else ():
        if path.name in beside or path.is_dir():
            continue
        owner = names.owner(rules, path.name)
        if owner is not None and names.is_own(recipe, owner):
            own.append(path)
        elif names.is_served(rules, path.name):
            foreign.append(path)
    for path in folder.index.iterdir() if folder.index.is_dir() else ():
        owner = names.index_owner(rules, path.name)
        if owner is not None and owner not in listed:
            own.append(path)
    return Unlisted(tuple(sorted(own)), tuple(sorted(foreign)))


def remove(unlisted: Unlisted) -> None:
    """Remove what the run itself has made."""
    for path in unlisted.own:
        atomic.remove(path)
    for changed in {path.parent for path in unlisted.own}:
        atomic.sync_folder(changed)
