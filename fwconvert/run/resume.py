"""What of a run is already done and can be believed.

A finished job is trusted when its receipt parses and all of its files have
their recorded size and were not written to since the receipt was. Otherwise,
and where a session was cut off, because a crash may leave a name without its
content, they are hashed. What is to be joined is hashed always: the joined
shard gets a hash that fits, whatever is in it. Whatever fails is told, and its
receipt is to be withdrawn, so that the job is done again. Looking changes
nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fwconvert import limits, records
from fwconvert.errors import ManifestError
from fwconvert.recipes import Recipe, Rules
from fwconvert.run import credible
from fwconvert.shards.cutting import joined_shards, last_full
from fwconvert.store import layout, receipts
from fwconvert.store.folder import RunFolder
from fwconvert.store.receipts import JoinReceipt, Receipt, ShardLine
from fwconvert.store.recorded import (
    MOST_OTHERS,
    Hashing,
    Recorded,
    join_paths,
    looked_at,
    shard_files,
    tail_files,
)
from fwconvert.store.run_manifest import most_shards


def _nothing(_done: int, _all: int) -> None:
    pass


@dataclass(frozen=True)
class Look:
    """How closely to look."""

    # The sessions that were cut off: what they made is hashed.
    unclean: frozenset[str] = frozenset()
    # Hash everything, whatever its size and time.
    everything: bool = False
    # Is told how many bytes are hashed and how many there are, several times a second; may raise to stop.
    tick: Callable[[int, int], None] = _nothing


@dataclass
class Survey:
    """The receipts that can be believed: jobs by source path, joined shards by name."""

    jobs: dict[str, Receipt] = field(default_factory=dict)
    joins: dict[str, JoinReceipt] = field(default_factory=dict)
    # Receipts that cannot be believed, and what is wrong with them.
    withdrawn: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # The sha256 of sources whose receipts are withdrawn: what is made again must come of the same bytes.
    known_sources: dict[str, str] = field(default_factory=dict)
    # Receipts whose files are newer and were found right, and how new these are.
    proven: dict[Path, int] = field(default_factory=dict)

    @property
    def absorbed(self) -> set[str]:
        """The jobs' shards that joined shards have taken in."""
        return {join.taken.name for join in self.joins.values() if join.taken}

    @property
    def covered(self) -> Counter[int]:
        """How many tokens of each source's tail stand in joined shards already."""
        return _covered(self.joins.values())

    @property
    def shard_names(self) -> Iterator[str]:
        """The names of all token shards that the receipts tell of."""
        for job in self.jobs.values():
            yield from (line.name for line in job.shards)
        yield from self.joins


@dataclass
class _Claim:
    """A receipt, and the files that must be as it says."""

    path: Path
    made: Receipt | JoinReceipt
    files: list[Recorded]
    # Whether the time of a file is not enough to believe it; of the last of them at least, a tail.
    hashed: bool
    tail: list[Recorded] = field(default_factory=list)
    wrong: str = ""
    newest: int = 0


def survey(folder: RunFolder, recipe: Recipe, look: Look | None = None) -> Survey:
    """Return what can be believed and what cannot."""
    return _Surveyor(folder, recipe, look or Look()).survey()


class _Surveyor:
    def __init__(self, folder: RunFolder, recipe: Recipe, look: Look) -> None:
        self._folder = folder
        self._recipe = recipe
        self._rules: Rules = recipe.rules
        self._look = look
        self._hashing = Hashing(look.tick)
        self._found = Survey()

    def survey(self) -> Survey:
        """Read all receipts, then look at the files of each."""
        found = self._found
        joins = [*self._joins()]
        self._check(joins)
        for claim in joins:
            self._sort_in(claim)
        jobs = [*self._jobs()]
        self._check(jobs)
        for claim in jobs:
            self._sort_in(claim)
        return found

    def _sort_in(self, claim: _Claim) -> None:
        found, made = self._found, claim.made
        if claim.wrong and isinstance(made, Receipt):
            found.known_sources[made.path] = made.source_sha256
            self._withdraw(claim.path, claim.wrong, f"{made.path} will be converted again")
        elif claim.wrong:
            assert isinstance(made, JoinReceipt)  # noqa: S101  # for mypy: there is no third kind
            self._withdraw(claim.path, claim.wrong, f"{made.shard.name} will be joined again")
        elif isinstance(made, Receipt):
            found.jobs[made.path] = made
        else:
            found.joins[made.shard.name] = made

    def _joins(self) -> Iterator[_Claim]:
        for path in join_paths(self._folder):
            made = self._receipt(path, JoinReceipt)
            if made is None:
                continue
            taken_is_ours = made.taken is None or layout.is_shard(self._rules, made.taken.name)
            if not credible.join_can_be(self._recipe, made):
                self._withdraw(path, f"the receipt {path.name} has numbers that cannot be")
            elif path.name == f"{made.shard.name}.json" and taken_is_ours and self._are_ours([made.shard]):
                files = [*shard_files(self._folder, self._rules, made.shard)]
                yield _Claim(path, made, files, self._is_doubted(made))
            else:
                self._withdraw(path, f"the receipt {path.name} is not that of a joined shard of this run")

    def _jobs(self) -> Iterator[_Claim]:
        """Yield the receipts of jobs; a tail may be gone only if nothing is left to be done with it."""
        made = self._borne_out(dict(self._receipts()))
        absorbed, needless = self._found.absorbed, self._needless_tails([job for _, job in made.values()])
        for index, file in enumerate(self._recipe.source.files):
            if file.path not in made:
                continue
            path, job = made[file.path]
            lines = [line for line in job.shards if line.name not in absorbed]
            files = [one for line in lines for one in shard_files(self._folder, self._rules, line)]
            tail = [*tail_files(self._folder, job)] if job.tail.tokens != needless[index] else []
            yield _Claim(path, job, files, self._is_doubted(job), tail)

    def _receipts(self) -> Iterator[tuple[str, tuple[Path, Receipt]]]:
        for index, file in enumerate(self._recipe.source.files):
            path = self._folder.receipt(layout.job_key(file.path))
            made = self._receipt(path, Receipt)
            if made is None:
                continue
            if made.path != file.path:
                self._withdraw(path, f"the receipt of {file.path} is that of {made.path}")
            elif not credible.job_can_be(self._recipe, index, made):
                self._withdraw(path, f"the receipt of {file.path} has numbers that cannot be")
            elif not self._are_ours(made.shards):
                self._withdraw(path, f"the receipt of {file.path} names files that are not of this run")
            else:
                yield file.path, (path, made)

    def _borne_out(self, made: dict[str, tuple[Path, Receipt]]) -> dict[str, tuple[Path, Receipt]]:
        """Return the jobs whose tails can be joined; the others are withdrawn.

        All tails together give so many joined shards. Where the tails are gone,
        because they are joined or to be dropped, those shards must be there.
        """
        most, gone = most_shards(self._rules), self._files_there() + MOST_OTHERS
        found = {}
        for source, (path, job) in made.items():
            shards = job.tail.tokens // self._rules.block_tokens
            most -= shards
            if looked_at(next(tail_files(self._folder, job)))[0]:
                gone -= shards
            if most < 0 or gone < 0:
                self._withdraw(path, f"the receipt of {source} tells of a tail that is not there")
                most, gone = most + shards, gone + shards
            else:
                found[source] = path, job
        return found

    @cache  # noqa: B019  # a surveyor lives as long as its survey
    def _files_there(self) -> int:
        return records.files_in(self._folder.path)

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

    def _receipt(self, path: Path, kind: type[receipts.AnyReceipt]) -> receipts.AnyReceipt | None:
        if not path.exists():
            return None
        try:
            return receipts.read(path, kind, self._recipe.recipe_id, self._files_there)
        except ManifestError as error:
            self._withdraw(path, str(error))
            return None

    def _are_ours(self, lines: Iterable[ShardLine]) -> bool:
        return all(
            layout.is_shard(self._rules, line.name)
            and [beside.name for beside in line.sidecars] == layout.sidecars(self._rules, line.name)
            for line in lines
        )

    def _is_doubted(self, made: Receipt | JoinReceipt) -> bool:
        return self._look.everything or made.session in self._look.unclean

    def _check(self, claims: Sequence[_Claim]) -> None:
        """Look at the files of receipts; those that may be others than they were are hashed, side by side."""
        doubtful: dict[Recorded, _Claim] = {}
        for claim in claims:
            made_at, newest = claim.path.stat().st_mtime_ns, 0
            for file in (*claim.files, *claim.tail):
                wrong, changed_at = looked_at(file)
                claim.wrong, newest = claim.wrong or wrong, max(newest, changed_at)
                if claim.hashed or file in claim.tail or changed_at > made_at:
                    doubtful[file] = claim
            claim.newest = newest if newest > made_at else 0
        unclear = [file for file, claim in doubtful.items() if not claim.wrong]
        for file, wrong in self._hashing.hashed(unclear).items():
            doubtful[file].wrong = doubtful[file].wrong or wrong
        for claim in claims:
            if claim.newest and not claim.wrong:
                self._found.proven[claim.path] = claim.newest

    def _withdraw(self, path: Path, *problems: str) -> None:
        self._found.withdrawn.append(path)
        self._found.problems += problems


def _covered(joins: Iterable[JoinReceipt]) -> Counter[int]:
    covered: Counter[int] = Counter()
    for join in joins:
        for segment in join.segments:
            covered[segment.source] += segment.tokens
    return covered
