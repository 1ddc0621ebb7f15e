"""What of a run is already done and can be believed.

A finished job is trusted when its receipt parses and all of its files have
their recorded size and were not written to since the receipt was. Otherwise,
and where a session was cut off, because a crash may leave a name without its
content, they are hashed. What is to be joined is hashed always: the joined
shard gets a hash that fits, whatever is in it. Whatever fails is told, and its
receipt is to be withdrawn, so that the job is done again. Looking changes
nothing.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fwconvert import files, limits, records
from fwconvert.errors import ManifestError, Stopped, message
from fwconvert.recipe import Recipe, Rules, default_workers
from fwconvert.run import credible
from fwconvert.run.estimate import most_shards
from fwconvert.shards.cutting import joined_shards, last_full
from fwconvert.store import names, receipts
from fwconvert.store.folder import RunFolder
from fwconvert.store.receipts import JoinReceipt, Receipt, ShardLine

_TICK_SECONDS = 0.1
# Records that nobody asked for, beside those of files that are there; joined shards that no file bears out.
_MOST_OTHERS = 100_000


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


class _Recorded(NamedTuple):
    """A file as its receipt has it."""

    path: Path
    bytes: int
    sha256: str


@dataclass
class _Claim:
    """A receipt, and the files that must be as it says."""

    path: Path
    made: Receipt | JoinReceipt
    files: list[_Recorded]
    # Whether the time of a file is not enough to believe it; of the last of them at least, a tail.
    hashed: bool
    tail: list[_Recorded] = field(default_factory=list)
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
        self._hashing = _Hashing(look.tick)
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
            taken_is_ours = made.taken is None or names.is_shard(self._rules, made.taken.name)
            if not credible.join_can_be(self._recipe, made):
                self._withdraw(path, f"the receipt {path.name} has numbers that cannot be")
            elif path.name == f"{made.shard.name}.json" and taken_is_ours and self._are_ours([made.shard]):
                files = [*_shard_files(self._folder, self._rules, made.shard)]
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
            files = [one for line in lines for one in _shard_files(self._folder, self._rules, line)]
            tail = [*_tail_files(self._folder, job)] if job.tail.tokens != needless[index] else []
            yield _Claim(path, job, files, self._is_doubted(job), tail)

    def _receipts(self) -> Iterator[tuple[str, tuple[Path, Receipt]]]:
        for index, file in enumerate(self._recipe.source.files):
            path = self._folder.receipt(names.job_key(file.path))
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
        most, gone = most_shards(self._rules), self._files_there() + _MOST_OTHERS
        found = {}
        for source, (path, job) in made.items():
            shards = job.tail.tokens // self._rules.block_tokens
            most -= shards
            if _looked_at(next(_tail_files(self._folder, job)))[0]:
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
            names.is_shard(self._rules, line.name)
            and [beside.name for beside in line.sidecars] == names.sidecars(self._rules, line.name)
            for line in lines
        )

    def _is_doubted(self, made: Receipt | JoinReceipt) -> bool:
        return self._look.everything or made.session in self._look.unclean

    def _check(self, claims: Sequence[_Claim]) -> None:
        """Look at the files of receipts; those that may be others than they were are hashed, side by side."""
        doubtful: dict[_Recorded, _Claim] = {}
        for claim in claims:
            made_at, newest = claim.path.stat().st_mtime_ns, 0
            for file in (*claim.files, *claim.tail):
                wrong, changed_at = _looked_at(file)
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


def join_paths(folder: RunFolder) -> list[Path]:
    """Return the receipts of joined shards, by name; ManifestError if there are far more than files."""
    most = records.files_in(folder.path) + _MOST_OTHERS
    found = sorted(islice(records.names_in(folder.joins), most + 1))
    if len(found) > most:
        raise ManifestError(
            message(
                "a run has far more receipts of joined shards than files",
                "remove them: what is missing is joined again",
                folder=folder.joins,
                more_than=f"{most:,}",
            )
        )
    return [folder.joins / name for name in found]


def _covered(joins: Iterable[JoinReceipt]) -> Counter[int]:
    covered: Counter[int] = Counter()
    for join in joins:
        for segment in join.segments:
            covered[segment.source] += segment.tokens
    return covered


def _tail_files(folder: RunFolder, made: Receipt) -> Iterator[_Recorded]:
    key, tail = names.job_key(made.path), made.tail
    yield _Recorded(folder.tail(key), tail.bytes, tail.sha256)
    yield _Recorded(folder.tail_index(key), tail.index_bytes, tail.index_sha256)


def _shard_files(folder: RunFolder, rules: Rules, line: ShardLine) -> Iterator[_Recorded]:
    yield _Recorded(folder.shard(line.name), line.bytes, line.sha256)
    index = folder.shard_index(line.name)
    yield _Recorded(index, line.documents * rules.kind.index_entry_bytes, line.index_sha256)
    for beside in line.sidecars:
        yield _Recorded(folder.shard(beside.name), beside.bytes, beside.sha256)


def shard_problem(folder: RunFolder, rules: Rules, line: ShardLine, look: Look | None = None) -> str:
    """Return what is wrong with the files of a token shard, or "": their sizes, or also their hashes."""
    files = [*_shard_files(folder, rules, line)]
    wrong = next((wrong for file in files if (wrong := _looked_at(file)[0])), "")
    if wrong or look is None:
        return wrong
    return next((wrong for wrong in _Hashing(look.tick).hashed(files).values() if wrong), "")


def _looked_at(file: _Recorded) -> tuple[str, int]:
    """Return what is wrong with a file as far as its size tells, or "", and when it was written to."""
    try:
        state = files.state_of(file.path)
    except OSError as error:
        return f"{file.path.name} cannot be read ({error.strerror})", 0
    if state.st_size != file.bytes:
        return f"{file.path.name} has {state.st_size:,} bytes instead of {file.bytes:,}", 0
    return "", state.st_mtime_ns


def _wrong_hash(file: _Recorded, count: Callable[[int], None]) -> str:
    try:
        if files.sha256_of(file.path, count) == file.sha256:
            return ""
    except OSError as error:
        return f"{file.path.name} cannot be read ({error.strerror})"
    return f"{file.path.name} is damaged (its sha256 is another)"


class _Hashing:
    """Hashes files side by side, and tells how far it is. `tick` may raise to stop."""

    def __init__(self, tick: Callable[[int, int], None]) -> None:
        self._tick = tick
        self._lock = threading.Lock()
        self._done = self._all = 0
        self._stopped = False

    def hashed(self, files: Sequence[_Recorded]) -> Mapping[_Recorded, str]:
        """Return what is wrong with each of the files, or ""."""
        if not files:
            return {}
        self._all += sum(file.bytes for file in files)
        with ThreadPoolExecutor(default_workers(), "hash") as threads:
            found: dict[_Recorded, Future[str]] = {
                file: threads.submit(_wrong_hash, file, self._count) for file in files
            }
            try:
                waiting = set(found.values())
                while waiting:
                    self._tick(self._done, self._all)
                    waiting = wait(waiting, _TICK_SECONDS).not_done
                self._tick(self._done, self._all)
            except BaseException:
                self._stopped = True
                threads.shutdown(cancel_futures=True)
                raise
        return {file: future.result() for file, future in found.items()}

    def _count(self, size: int) -> None:
        if self._stopped:
            raise Stopped("stopped by the user")
        with self._lock:
            self._done += size
