"""Verify a run from its files and its run manifest alone; a copy of the output folder is enough.

Every byte of the output is read. All problems are listed, and none hides
another: a file that cannot be read is a problem, not the end. The manifest is
checked in verify_manifest, each token shard with its document index in
verify_shard, and here what spans shards: each source's documents continue from
shard to shard, in the order of their rows, until all of them are there.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise

from fwconvert import machine
from fwconvert.errors import ManifestError
from fwconvert.inspection.reader import read_manifest
from fwconvert.inspection.verify_manifest import FILE
from fwconvert.inspection.verify_manifest import problems as manifest_problems
from fwconvert.inspection.verify_shard import Audit, Problem, Stretch, audit, one_line
from fwconvert.shards import listings
from fwconvert.shards.expected import Account, ExpectedShard
from fwconvert.store import base, layout, receipts, run_manifest
from fwconvert.store.base import Store
from fwconvert.store.local import open_store
from fwconvert.store.receipts import JoinReceipt, Receipt
from fwconvert.store.run_manifest import JobLine, RunManifest
from fwconvert.tokens import registry

__all__ = ["Problem", "Report", "verify"]

_AT_A_TIME = 1024
# How many unexpected records are tolerated.
_MOST_OTHERS = 10_000


@dataclass(frozen=True)
class Report:
    """What was read, and everything that is wrong with it."""

    files: int
    bytes: int
    tokens: int
    documents: int
    seconds: float
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether the run is complete and correct."""
        return not self.problems


def verify(out: str | os.PathLike[str], threads: int = 0) -> Report:
    """Read everything in the folder `out` and return what is wrong with it.

    Changes nothing. Uses one thread per core unless `threads` is given.
    Raises UsageError if there is no run manifest, and ManifestError if this
    version cannot read it; everything else in the folder is a problem in the report.
    """
    started = time.monotonic()
    store = open_store(out)
    account = Account(read_manifest(store))
    audits = _audits(store, account, threads or machine.cores())
    problems = [*manifest_problems(account)]
    problems += [problem for one in audits.values() for problem in one.problems]
    problems += _source_problems(account, audits)
    problems += _folder_problems(store, account.manifest)
    return Report(
        files=sum(one.files for one in audits.values()),
        bytes=sum(one.bytes for one in audits.values()),
        tokens=sum(one.tokens for one in audits.values()),
        documents=sum(one.documents for one in audits.values()),
        seconds=time.monotonic() - started,
        problems=tuple(problems),
    )


def _audits(store: Store, account: Account, threads: int) -> dict[str, Audit]:
    """Audit the token shards of the manifest, by name."""
    manifest = account.manifest
    rules, known = manifest.rules, registry.of_rules(manifest.rules)
    expected = {shard.name: shard.segments for shard in (*account.own, *account.joined)}
    # A foreign name is already a problem, and could point outside the folder.
    lines = {line.name: line for line in manifest.shards if layout.is_shard(rules, line.name)}

    def one(name: str) -> Audit:
        segments = expected.get(name, lines[name].segments)
        return audit(store, rules, known, lines[name], sorted({first for _, first in segments}))

    found: dict[str, Audit] = {}
    remaining = iter(lines)
    with ThreadPoolExecutor(threads) as pool:
        # Not all at once: a queued task takes more memory than the shard's line.
        while some := [*islice(remaining, _AT_A_TIME)]:
            found.update(zip(some, pool.map(one, some), strict=True))
    return found


@dataclass(frozen=True)
class _Link:
    """A stretch of a source in the token shard `shard`; None if its files do not determine it."""

    shard: str
    stretch: Stretch | None


def _source_problems(account: Account, audits: Mapping[str, Audit]) -> Iterator[Problem]:
    chains = _chains(account, audits)
    after = account.manifest.rules.eot == "after"
    for index, job in account.jobs.items():
        yield from _rows(chains[index], job)
        yield from _borders(chains[index], job, after=after)
        if all(link.stretch for link in chains[index]):
            yield from _sums(chains[index], job, after=after)


def _chains(account: Account, audits: Mapping[str, Audit]) -> dict[int, list[_Link]]:
    """Return the stretches of each source in order."""
    chains: dict[int, list[_Link]] = {index: [] for index in account.jobs}
    for shard in (*account.own, *account.joined):
        for (source, _), stretch in zip(shard.segments, _stretches(shard, audits), strict=True):
            chains[source].append(_Link(shard.name, stretch))
    for index in account.cut_off:
        chains[index].append(_Link("", None))
    return chains


def _stretches(shard: ExpectedShard, audits: Mapping[str, Audit]) -> Sequence[Stretch | None]:
    found = audits.get(shard.name)
    # In a shard of the wrong length, the borders between sources are unknown.
    if found and found.stretches and found.tokens == shard.tokens:
        return found.stretches
    return [None] * len(shard.segments)


def _rows(chain: list[_Link], job: JobLine) -> Iterator[Problem]:
    last = -1
    for link in chain:
        if link.stretch is None or not link.stretch.documents:
            continue
        if link.stretch.first_row <= last:
            what = (
                f"begins with row {link.stretch.first_row:,} of {job.path}, but row {last:,} came before it"
            )
            yield Problem(layout.index(link.shard), what)
        last = link.stretch.last_row
        if last >= job.rows:
            what = f"refers to row {last:,} of {job.path}, which has {job.rows:,} rows"
            yield Problem(layout.index(link.shard), what)


def _borders(chain: list[_Link], job: JobLine, *, after: bool) -> Iterator[Problem]:
    """Yield the problems where one shard ends and the next continues with the same source.

    A source's first token begins a document. With a separator before each document,
    the shard's own index determines the rest; with EOT after it, the first token
    of a stretch begins a document if and only if the stretch before ended one.
    """
    if chain and chain[0].stretch and not chain[0].stretch.begins_document:
        yield Problem(layout.index(chain[0].shard), f"has no document where {job.path} begins")
    for one, other in pairwise(chain if after else []):
        if one.stretch and other.stretch and one.stretch.ends_with_eot != other.stretch.begins_document:
            ends = "ends with an EOT" if one.stretch.ends_with_eot else "ends without an EOT"
            begins = "begins a" if other.stretch.begins_document else "does not begin a"
            what = f"{job.path} {begins} document here, though {one.shard} {ends}"
            yield Problem(layout.index(other.shard), what)


def _sums(chain: list[_Link], job: JobLine, *, after: bool) -> Iterator[Problem]:
    """Compare a source, all of whose tokens are there, with its job."""
    stretches = [link.stretch for link in chain if link.stretch]
    documents = sum(one.documents for one in stretches)
    if documents != job.documents:
        yield Problem(FILE, f"the job {job.path} has {job.documents:,} documents, its indexes {documents:,}")
    for name in stretches[0].separators if stretches else ():
        found = sum(one.separators[name] for one in stretches)
        # A document that was cut off has no EOT after it.
        if found != job.documents - (after and name == "EOT" and job.cut):
            what = f"the job {job.path} has {job.documents:,} documents, its tokens {found:,} {name}s"
            yield Problem(FILE, what)
    if after and not job.cut and stretches and not stretches[-1].ends_with_eot:
        yield Problem(chain[-1].shard, f"{job.path} ends in it without an EOT")


def _folder_problems(store: Store, manifest: RunManifest) -> Iterator[Problem]:
    """Yield what should not be in the folder, unless a session is at work there."""
    who = store.holder()
    if who:
        yield Problem(layout.PRIVATE, f"a session is at work here, so nothing is final: {who}")
        return
    found = run_manifest.find_unlisted(store, manifest.recipe(), {line.name for line in manifest.shards})
    for name in found.own:
        yield Problem(name, "is not in the run manifest")
    for name in found.foreign:
        yield Problem(name, "is not part of this run, but a trainer would read it")
    if manifest.headline.complete:
        for name, what in listings.problems(store, manifest.rules, manifest.shards):
            yield Problem(name, what)
    for name in sorted(store.list(layout.TEMPORARY, folders=True)):
        yield Problem(f"{layout.TEMPORARY}/{name}", "was left behind by a crash")
    yield from _receipt_problems(store, manifest)


def _receipt_problems(store: Store, manifest: RunManifest) -> Iterator[Problem]:
    """Compare the run manifest with the receipts that it was made from; a copy of the output has none."""
    most = base.count(store, "") + len(manifest.sources) + _MOST_OTHERS
    names: list[str] = []
    for folder in (layout.RECEIPTS, layout.JOINS):
        found = [*islice(base.record_names(store, folder), most + 1)]
        if len(found) > most:
            yield Problem(folder, f"has more than {most:,} records")
            return
        names += (f"{folder}/{name}" for name in sorted(found))
    if not names and not base.exists(store, layout.PLAN):
        return
    merged, problems = _merged(store, manifest, names)
    yield from problems
    for job_path in sorted({line.path for line in {*merged.jobs} ^ {*manifest.jobs}}):
        yield Problem(FILE, f"the job {job_path} does not match its receipt")
    for name in sorted({line.name for line in {*merged.shards} ^ {*manifest.shards}}):
        yield Problem(FILE, f"the token shard {name} does not match its receipt")


def _merged(store: Store, manifest: RunManifest, names: list[str]) -> tuple[RunManifest, list[Problem]]:
    """Return the run manifest that follows from the receipts, and the problems of unreadable receipts."""
    jobs: dict[str, Receipt] = {}
    joins: dict[str, JoinReceipt] = {}
    problems = []
    for name in names:
        try:
            if name.startswith(f"{layout.RECEIPTS}/"):
                job = receipts.read(store, name, Receipt, manifest.recipe_id)
                jobs[job.path] = job
            else:
                joins[name] = receipts.read(store, name, JoinReceipt, manifest.recipe_id)
        except ManifestError as error:
            problems.append(Problem(name, one_line(error)))
    return run_manifest.build(manifest.recipe(), jobs, joins, (), complete=True), problems
