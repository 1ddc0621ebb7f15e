"""What of a run is already done and can be believed.

A finished job is trusted when its receipt parses and all of its files have
their recorded size; files of a session that was cut off are hashed as well,
because a crash may leave a name without its content. Whatever fails is told,
and its receipt is to be withdrawn, so that the job is done again. Looking
changes nothing.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fwconvert import names, receipt
from fwconvert.config import Recipe, Rules
from fwconvert.errors import ManifestError
from fwconvert.folder import RunFolder
from fwconvert.receipt import JoinReceipt, Receipt, ShardLine


class _Recorded(NamedTuple):
    """A file as its receipt has it."""

    path: Path
    bytes: int
    sha256: str


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

    @property
    def absorbed(self) -> set[str]:
        """The jobs' shards that joined shards have taken in."""
        return {join.taken.name for join in self.joins.values() if join.taken}

    @property
    def covered(self) -> Counter[int]:
        """How many tokens of each source's tail stand in joined shards already."""
        covered: Counter[int] = Counter()
        for join in self.joins.values():
            for segment in join.segments:
                covered[segment.source] += segment.tokens
        return covered


def survey(folder: RunFolder, recipe: Recipe, unclean: set[str]) -> Survey:
    """Return what can be believed and what cannot. `unclean` are the sessions that were cut off."""
    found = Survey()
    surveyor = _Surveyor(folder, recipe.recipe_id, recipe.rules, unclean, found)
    for path in sorted(folder.joins.glob("*.json")):
        surveyor.look_at_join(path)
    covered, surveyor.absorbed = found.covered, found.absorbed
    for index, file in enumerate(recipe.source.files):
        surveyor.look_at_job(file.path, covered[index])
    return found


@dataclass
class _Surveyor:
    folder: RunFolder
    recipe_id: str
    rules: Rules
    unclean: set[str]
    found: Survey
    # Known once all joins have been looked at.
    absorbed: set[str] = field(default_factory=set)

    def look_at_join(self, path: Path) -> None:
        """Sort the receipt of a joined shard into what is found."""
        made = self._receipt(path, JoinReceipt)
        if made is None:
            return
        if path.name != f"{made.shard.name}.json" or not self._names_are_ours([made.shard]):
            self._withdraw(path, f"the receipt {path.name} is not that of a joined shard of this run")
            return
        if self._trusts(made.session, _shard_files(self.folder, self.rules, made.shard)):
            self.found.joins[made.shard.name] = made
        else:
            self._withdraw(path, f"{made.shard.name} will be joined again")

    def look_at_job(self, source_path: str, covered: int) -> None:
        """Sort a job's receipt into what is found; its tail may be gone only if it is covered."""
        path = self.folder.receipt(names.job_key(source_path))
        made = self._receipt(path, Receipt)
        if made is None:
            return
        if made.path != source_path:
            self._withdraw(path, f"the receipt of {source_path} is that of {made.path}")
            return
        if not self._names_are_ours(made.shards):
            self._withdraw(path, f"the receipt of {source_path} names files that are not of this run")
            return
        lines = [line for line in made.shards if line.name not in self.absorbed]
        shards = [file for line in lines for file in _shard_files(self.folder, self.rules, line)]
        tail = [*_tail_files(self.folder, made)] if made.tail.tokens != covered else []
        # What is joined from a tail gets a hash that fits it, so a tail must be right before.
        if self._trusts(made.session, shards) and self._trusts(made.session, tail, hashed=True):
            self.found.jobs[source_path] = made
        else:
            self.found.known_sources[source_path] = made.source_sha256
            self._withdraw(path, f"{source_path} will be converted again")

    def _receipt(self, path: Path, kind: type[receipt.AnyReceipt]) -> receipt.AnyReceipt | None:
        if not path.exists():
            return None
        try:
            return receipt.read(path, kind, self.recipe_id)
        except ManifestError as error:
            self._withdraw(path, str(error))
            return None

    def _names_are_ours(self, lines: Iterable[ShardLine]) -> bool:
        return all(
            names.is_shard(self.rules, line.name)
            and [beside.name for beside in line.sidecars] == names.sidecars(self.rules, line.name)
            for line in lines
        )

    def _trusts(self, session: str, files: Iterable[_Recorded], *, hashed: bool = False) -> bool:
        """Tell whether all files are what the receipt says, and note the first that is not."""
        hashed = hashed or session in self.unclean
        wrong = next((text for file in files if (text := _wrong(file, hashed=hashed))), "")
        if wrong:
            self.found.problems.append(wrong)
        return not wrong

    def _withdraw(self, path: Path, problem: str) -> None:
        self.found.withdrawn.append(path)
        self.found.problems.append(problem)


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


def _wrong(file: _Recorded, *, hashed: bool) -> str:
    """Return what is wrong with a file, or ""."""
    try:
        size = file.path.stat().st_size
        if size != file.bytes:
            return f"{file.path.name} has {size:,} bytes instead of {file.bytes:,}"
        if hashed and sha256_of(file.path) != file.sha256:
            return f"{file.path.name} is damaged (its sha256 is another)"
    except OSError as error:
        return f"{file.path.name} cannot be read ({error.strerror})"
    return ""


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
