"""What of a run is already done and can be trusted, and what has to go before the rest is done.

A finished job is trusted when its receipt parses and all of its files have
their recorded size and were not written to since the receipt was. Otherwise,
and where a session was cut off, because a crash may leave a name without its
content, they are hashed. What is to be joined is always hashed: the joined
shard gets a hash that fits, whatever is in it. (A store that is atomic loses
nothing in a crash; there the join itself proves what it reads.) A receipt that fails is
reported and withdrawn, so that the job is done again. `find_done` itself
changes nothing; `Cleanup` removes what is not needed and withdraws what does
not fit.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from fwconvert import limits
from fwconvert.errors import ManifestError
from fwconvert.recipes import Recipe, Rules
from fwconvert.run.events import Observer
from fwconvert.run.state import Done, RunState
from fwconvert.shards.cutting import joined_shards, last_full
from fwconvert.store import base, layout, receipts
from fwconvert.store.base import Store
from fwconvert.store.receipts import (
    MOST_OTHERS,
    Absorbed,
    Hashing,
    JoinReceipt,
    Receipt,
    Recorded,
    ShardLine,
    join_receipts,
    look_at,
    shard_files,
    shard_problem,
    tail_files,
)
from fwconvert.store.run_manifest import most_shards

# An entry of a tail's document index; the tail of a whole source may have more than 2**32 tokens.
_SHORT_ENTRY, _LONG_ENTRY = 8, 12

# Is given how many bytes are hashed and how many there are, several times a second; may raise to stop.
Tick = Callable[[int, int], None]


def _no_tick(_done: int, _all: int) -> None:
    pass


@dataclass
class Found(Done):
    """What a run's folder holds: the receipts that can be trusted, and those that cannot."""

    # Receipts that cannot be trusted, and what is wrong with them.
    withdrawn: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # Receipts whose files are newer and have the right hashes, and how new these files are.
    proven: dict[str, int] = field(default_factory=dict)


@dataclass
class _Claim:
    """A receipt, and the files that must be as it says."""

    name: str
    made: Receipt | JoinReceipt
    files: list[Recorded]
    # Whether all files are hashed, whatever their times say. A tail always is.
    hashed: bool
    tail: list[Recorded] = field(default_factory=list)
    wrong: str = ""
    newest: int = 0


def find_done(
    store: Store,
    recipe: Recipe,
    cut_off: frozenset[str] = frozenset(),
    *,
    share: frozenset[int] | None = None,
    needs_tails: bool = True,
    rehash: bool = False,
    tick: Tick = _no_tick,
) -> Found:
    """Return what is done, and what cannot be trusted; changes nothing.

    Hashed are the files of the sessions in `cut_off`, those that are newer than
    their receipts, tails, and with `rehash` all others too. Of a rank's `share`
    of the sources, by index, only their jobs are looked at; once the run is
    complete, it `needs_tails` of none.
    """
    return _Search(store, recipe, cut_off, share, tick, needs_tails=needs_tails, rehash=rehash).run()


class _Search:
    def __init__(
        self,
        store: Store,
        recipe: Recipe,
        cut_off: frozenset[str],
        share: frozenset[int] | None,
        tick: Tick,
        *,
        needs_tails: bool,
        rehash: bool,
    ) -> None:
        self._store = store = store.listed()
        self._recipe = recipe
        self._rules: Rules = recipe.rules
        self._cut_off = cut_off
        self._share = share
        self._needs_tails = needs_tails
        self._rehash = rehash
        self._hashing = Hashing(store, tick)
        self._found = Found()

    def run(self) -> Found:
        """Read all receipts and check the files of each: joined shards first, since they decide on tails."""
        found = self._found
        for claims in (self._joins, self._jobs):
            checked = [*claims()]
            self._check(checked)
            for claim in checked:
                made = claim.made
                if isinstance(made, Receipt):
                    if not claim.wrong:
                        found.jobs[made.path] = made
                        continue
                    found.known_sources[made.path] = made.source_sha256
                    again = f"{made.path} will be converted again"
                else:
                    if not claim.wrong:
                        found.joins[made.shard.name] = made
                        continue
                    again = f"{made.shard.name} will be joined again"
                self._withdraw(claim.name, claim.wrong, again)
        return found

    def _joins(self) -> Iterator[_Claim]:
        for name in join_receipts(self._store):
            made = self._receipt(name, JoinReceipt)
            if made is None:
                continue
            file_name = name.rpartition("/")[2]
            taken_is_ours = made.taken is None or layout.is_shard(self._rules, made.taken.name)
            if not _join_can_be(self._recipe, made):
                self._withdraw(name, f"the receipt {file_name} has impossible numbers")
            elif name == receipts.name_of(made) and taken_is_ours and self._are_ours([made.shard]):
                files = [*shard_files(self._rules, made.shard)]
                yield _Claim(name, made, files, self._is_hashed(made))
            else:
                self._withdraw(name, f"the receipt {file_name} is not that of a joined shard of this run")

    def _jobs(self) -> Iterator[_Claim]:
        """Yield the receipts of jobs; a tail may be gone only if nothing is left to be done with it."""
        made = self._with_tails(dict(self._receipts()))
        absorbed = {*self._found.absorbed.values()}
        needless = self._needless_tails([job for _, job in made.values()])
        for index, file in enumerate(self._recipe.source.files):
            if file.path not in made:
                continue
            name, job = made[file.path]
            lines = [line for line in job.shards if line.name not in absorbed]
            files = [one for line in lines for one in shard_files(self._rules, line)]
            is_needed = self._needs_tails and job.tail.tokens != needless[index]
            tail = [*tail_files(job)] if is_needed else []
            yield _Claim(name, job, files, self._is_hashed(job), tail)

    def _receipts(self) -> Iterator[tuple[str, tuple[str, Receipt]]]:
        for index, file in enumerate(self._recipe.source.files):
            if self._share is not None and index not in self._share:
                continue
            name = layout.receipt(layout.job_key(file.path))
            made = self._receipt(name, Receipt)
            if made is None:
                continue
            if made.path != file.path:
                self._withdraw(name, f"the receipt of {file.path} is that of {made.path}")
            elif not _job_can_be(self._recipe, index, made):
                self._withdraw(name, f"the receipt of {file.path} has impossible numbers")
            elif not self._are_ours(made.shards):
                self._withdraw(name, f"the receipt of {file.path} names files that are not of this run")
            else:
                yield file.path, (name, made)

    def _with_tails(self, made: dict[str, tuple[str, Receipt]]) -> dict[str, tuple[str, Receipt]]:
        """Return the jobs whose tails can be joined; the others are withdrawn.

        All tails together give so many joined shards. Where the tails are gone,
        because they are joined or to be dropped, those shards must be there.
        """
        most, gone = most_shards(self._rules), self._files_there() + MOST_OTHERS
        found = {}
        for source, (name, job) in made.items():
            shards = job.tail.tokens // self._rules.block_tokens
            most -= shards
            if look_at(self._store, next(tail_files(job)))[0]:
                gone -= shards
            if most < 0 or gone < 0:
                self._withdraw(name, f"the receipt of {source} names a tail that is not there")
                most, gone = most + shards, gone + shards
            else:
                found[source] = name, job
        return found

    @cache  # noqa: B019  # a search lives as long as its result is made
    def _files_there(self) -> int:
        return base.count(self._store, "")

    def _needless_tails(self, jobs: Sequence[Receipt]) -> Counter[int]:
        """Return how many tokens of each source's tail nobody needs: they are joined, or to be dropped.

        What is to be dropped follows from the tails of all jobs, whether or not
        some of them are to be done again.
        """
        covered, rules = self._found.covered, self._rules
        if rules.last != "drop":
            return covered
        by_path = {job.path: job for job in jobs}
        gave = [by_path.get(file.path) for file in self._recipe.source.files]
        counts = [None if job is None else job.counts for job in gave]
        done = gave[: limits.extent(rules, counts, len(gave))]
        if None in done:
            return covered
        known = [job for job in done if job is not None]
        shards = joined_shards([job.tail.tokens for job in known], rules, last_full(known))
        kept: Counter[int] = Counter()
        for segment in (segment for shard in shards for segment in shard.segments):
            kept[segment.source] += segment.tokens
        dropped = {at: job.tail.tokens - kept[at] for at, job in enumerate(known)}
        return covered + Counter(dropped)

    def _receipt(self, name: str, kind: type[receipts.AnyReceipt]) -> receipts.AnyReceipt | None:
        with suppress(OSError):  # Reading says what is wrong.
            if self._store.state(name) is None:
                return None
        try:
            return receipts.read(self._store, name, kind, self._recipe.recipe_id, self._files_there)
        except ManifestError as error:
            self._withdraw(name, str(error))
            return None

    def _are_ours(self, lines: Iterable[ShardLine]) -> bool:
        return all(
            layout.is_shard(self._rules, line.name)
            and [beside.name for beside in line.sidecars] == layout.sidecars(self._rules, line.name)
            for line in lines
        )

    def _is_hashed(self, made: Receipt | JoinReceipt) -> bool:
        return self._rehash or made.session in self._cut_off

    def _check(self, claims: Sequence[_Claim]) -> None:
        """Look at the files of receipts; those that may be others than they were are hashed, side by side."""
        doubtful: dict[Recorded, _Claim] = {}
        for claim in claims:
            made_at, newest = self._changed_at(claim.name), 0
            for file in (*claim.files, *claim.tail):
                wrong, changed_at = look_at(self._store, file)
                claim.wrong, newest = claim.wrong or wrong, max(newest, changed_at)
                # A rank joins nothing, and what an atomic store has is proven when it is joined.
                is_joined = file in claim.tail and self._share is None and not self._store.is_atomic
                if claim.hashed or is_joined or changed_at > made_at:
                    doubtful[file] = claim
            claim.newest = newest if newest > made_at else 0
        unclear = [file for file, claim in doubtful.items() if not claim.wrong]
        for file, wrong in self._hashing.hashed(unclear).items():
            doubtful[file].wrong = doubtful[file].wrong or wrong
        for claim in claims:
            if claim.newest and not claim.wrong:
                self._found.proven[claim.name] = claim.newest

    def _changed_at(self, name: str) -> int:
        state = self._store.state(name)
        return 0 if state is None else state.changed_at

    def _withdraw(self, name: str, *problems: str) -> None:
        self._found.withdrawn.append(name)
        self._found.problems += problems


# Whether the numbers of a receipt are possible follows from the recipe alone, before any file is looked at.
# A digest proves that a receipt is as it was written, not who wrote it. One whose numbers contradict each
# other would have the join cut tails without end, or ask for sources that do not exist.


def _job_can_be(recipe: Recipe, index: int, job: Receipt) -> bool:
    """Return whether the job of a source can have given these token shards, and this tail."""
    rules, tail = recipe.rules, job.tail
    entry = _LONG_ENTRY if rules.layout == "contiguous" else _SHORT_ENTRY
    is_whole = (
        min(tail.tokens, tail.documents, job.source_bytes) >= 0
        and tail.bytes == rules.shard_format.header_bytes + tail.tokens * rules.token_bytes
        and tail.index_bytes == tail.documents * entry
        and sum(line.tokens for line in job.shards) + tail.tokens == job.counts.tokens
    )
    return is_whole and _shards_can_be(rules, index, job)


def _join_can_be(recipe: Recipe, join: JoinReceipt) -> bool:
    """Return whether a joined shard can have been made of tails of this run."""
    sources, taken, line = len(recipe.source.files), join.taken, join.shard
    begin = taken.tokens if taken else 0
    ends = [begin, *(segment.first + segment.tokens for segment in join.segments)]
    named = [*(segment.source for segment in join.segments), *(source for source, _ in line.segments)]
    return (
        all(0 <= source < sources for source in [*named, *([taken.source] if taken else [])])
        and all(one.source < other.source for one, other in pairwise(join.segments))
        and all(segment.tokens > 0 and segment.start >= 0 for segment in join.segments)
        and all(segment.first == end for segment, end in zip(join.segments, ends, strict=False))
        and begin >= 0
        and line.tokens == ends[-1]
        and _file_can_be(recipe.rules, line)
    )


def _shards_can_be(rules: Rules, index: int, job: Receipt) -> bool:
    """Return whether a job's shards are its blocks, each full, and its tail fills none."""
    if rules.layout == "contiguous":
        return not job.shards
    block, has_val = rules.block_tokens, index == 0 and rules.val_tokens > 0
    sizes = [rules.val_tokens, block] if has_val else [block, block]
    for number, line in enumerate(job.shards):
        split: layout.Split = "val" if number == 0 and has_val else "train"
        known = {layout.job_shard(rules, split, index, number, plain=plain) for plain in (False, True)}
        if (line.split, line.tokens) != (split, sizes[min(number, 1)]) or line.name not in known:
            return False
        if line.segments != ((index, 0),) or not _file_can_be(rules, line):
            return False
    return job.tail.tokens < sizes[min(len(job.shards), 1)]


def _file_can_be(rules: Rules, line: ShardLine) -> bool:
    size = rules.shard_format.header_bytes + line.tokens * rules.token_bytes
    return line.documents >= 0 and (rules.is_packed or line.bytes == size)


class Cleanup:
    """Removes the files that a run does not need any more, and withdraws receipts that do not fit.

    It is told of every receipt, after that is in the state. Whatever it removes
    may be removed at any time, or twice: a session that was cut off leaves it to
    the next one.
    """

    def __init__(self, store: Store, state: RunState, observer: Observer) -> None:
        self._store = store
        self._state = state
        self._observer = observer
        self.keys = [layout.job_key(file.path) for file in state.recipe.source.files]
        self._covered = state.done.covered
        self._absorbed = state.done.absorbed
        # The jobs whose tails are not needed and still there; and those with a record in quarantine.
        self._spent: list[str] = []
        there = base.record_names(store, layout.QUARANTINE)
        self._quarantined = {name.removesuffix(".json") for name in there}.intersection(self.keys)

    def remove_leftovers(self) -> None:
        """Remove what earlier sessions have left."""
        done = self._state.done.jobs
        files = enumerate(self._state.recipe.source.files)
        needless = [name for index, file in files if file.path in done for name in self._needless(index)]
        absorbed = [name for shard in self._absorbed.values() for name in self._files_of(shard)]
        self._store.remove(*needless, *absorbed)  # All at once: a remote store takes its time for each call.

    def job_done(self, index: int) -> None:
        """Remove what the receipt of a job makes unnecessary."""
        self._store.remove(*self._needless(index))

    def _needless(self, index: int) -> Iterator[str]:
        """Yield the files that the receipt of a job makes unnecessary."""
        key = self.keys[index]
        if key in self._quarantined:
            self._quarantined.remove(key)
            yield layout.quarantined(key)
        if self._is_spent(index):  # Its joined shards were made before, by a session that was cut off.
            yield from (layout.tail(key), layout.tail_index(key))
        if index in self._absorbed:  # Likewise what one of them has taken in.
            yield from self._files_of(self._absorbed[index])

    def job_quarantined(self, key: str) -> None:
        """Take note of a record in quarantine."""
        self._quarantined.add(key)

    def join_done(self, join: JoinReceipt) -> None:
        """Remove or take note of what the receipt of a joined shard makes unnecessary."""
        for segment in join.segments:
            self._covered[segment.source] += segment.tokens
            if self._is_spent(segment.source):
                self._spent.append(self.keys[segment.source])
        if join.taken:
            self._absorbed[join.taken.source] = join.taken.name
            self._remove_shard(join.taken.name)

    def take_spent(self) -> tuple[str, ...]:
        """Return the jobs whose tails a worker is to remove, each once.

        Removing a large file takes time that the scheduler does not have.
        """
        spent, self._spent = tuple(self._spent), []
        return spent

    def remove_tails(self, *keys: str) -> None:
        """Remove the tails of jobs, those that are there."""
        for key in keys:
            self._store.remove(layout.tail(key), layout.tail_index(key))

    def withdraw_over_limit(self) -> None:
        """Withdraw jobs that were done ahead and do not fit the limit; their files go when all is done."""
        limiter = self._state.limiter
        for index in limiter.unfit:
            path = self._withdraw_job(index)
            why = "lies beyond the limit" if limiter.reached else "has more than the limit leaves for it"
            self._observer.notice(f"{path} {why}: its output is withdrawn")

    def withdraw_misfits(self, tick: Tick) -> None:
        """Withdraw what stands in the way of the join; the jobs that go with it are missing then.

        A joined shard that does not fit the tails of its sources, and the jobs
        whose tails were removed because of it. And the job whose last shard is
        to be taken in, if that is damaged: what is joined from it would get a hash that fits.
        """
        state = self._state
        sources, wanted, misfits = state.sources, state.joined_shards, state.misfits
        for join in misfits:
            state.join_withdrawn(join)
            for segment in join.segments:
                self._covered[segment.source] -= segment.tokens
            if join.taken:
                self._absorbed.pop(join.taken.source, None)
            self._withdraw(receipts.name_of(join))
            name = join.shard.name
            self._observer.notice(f"{name} does not fit the tails of its sources: it will be joined again")
        for index, file in enumerate(sources if misfits else ()):
            tail = state.done.jobs[file.path].tail
            if tail.tokens > 0 and not base.exists(self._store, layout.tail(self.keys[index])):
                self._withdraw_job(index)
                self._observer.notice(f"{file.path} will be converted again: its tail is needed, and is gone")
        for name, shard in wanted.items():
            if shard.absorbed is not None and name not in state.done.joins:
                self._prove_absorbed(shard.absorbed, tick)

    def _prove_absorbed(self, absorbed: Absorbed, tick: Tick) -> None:
        state = self._state
        path = state.recipe.source.files[absorbed.source].path
        receipt = state.done.jobs.get(path)
        if receipt is None or receipt.session == state.session_id:  # Written and hashed a moment ago.
            return
        line = next(line for line in receipt.shards if line.name == absorbed.name)
        wrong = shard_problem(self._store, state.recipe.rules, line, tick)
        if wrong:
            self._withdraw_job(absorbed.source)
            self._observer.notice(f"{wrong}: {path} will be converted again")

    def _is_spent(self, index: int) -> bool:
        receipt = self._state.done.jobs.get(self._state.recipe.source.files[index].path)
        return receipt is not None and receipt.tail.tokens == self._covered[index]

    def _withdraw_job(self, index: int) -> str:
        """Withdraw the receipt of a job; return the path of its source."""
        self._withdraw(layout.receipt(self.keys[index]))
        return self._state.job_withdrawn(index).path

    def _withdraw(self, receipt: str) -> None:
        self._store.remove(receipt)
        self._store.settle(receipt.rpartition("/")[0])

    def _remove_shard(self, name: str) -> None:
        self._store.remove(*self._files_of(name))

    def _files_of(self, shard: str) -> list[str]:
        return [shard, *layout.sidecars(self._state.recipe.rules, shard), layout.index(shard)]
