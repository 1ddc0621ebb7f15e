"""What a run does not need any more: tails that are joined, failures since mended, shards that were taken in.

All of it may be removed at any time, or twice: nothing is left of it to be
done. What a session that was cut off could not remove, the next one does.
"""

from collections import Counter

from fwconvert import records
from fwconvert.recipes import Recipe
from fwconvert.run.resume import Survey
from fwconvert.store import atomic, layout
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
        keys = {layout.job_key(path) for path in self._paths}
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
        key = layout.job_key(self._paths[index])
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
                self._spent.append(layout.job_key(self._paths[segment.source]))
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
        for file in (name, *layout.sidecars(self._rules, name)):
            atomic.remove(self._folder.shard(file))
        atomic.remove(self._folder.shard_index(name))
