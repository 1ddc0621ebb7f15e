"""The work of one session: which orders there are, and what is kept of each that is done.

It watches the driver. The state on disk is always ahead of the state in here:
an order counts when its receipt is published, whether or not we live to see it.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fwconvert import records
from fwconvert.errors import FwconvertError, Stopped
from fwconvert.job.orders import ConvertOrder, Failure, JoinOrder, Order, RunContext, SourceFile
from fwconvert.limits import NOTHING, Amount
from fwconvert.recipes import Recipe, SourceShard
from fwconvert.run.cleanup import Leftovers
from fwconvert.run.engines import Progress
from fwconvert.run.events import Limit, Observer, Snapshot, StopSwitch
from fwconvert.run.limiter import Limiter, Rations
from fwconvert.run.prefetch import Origin, Ready
from fwconvert.run.resume import Survey
from fwconvert.shards.cutting import JoinedShard, joined_shards, last_full
from fwconvert.store import atomic, layout, run_manifest
from fwconvert.store import sessions as session
from fwconvert.store.folder import RunFolder
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import Absorbed, JoinReceipt, Quarantined, Receipt
from fwconvert.store.recorded import shard_problem

__all__ = ["Observer", "Snapshot", "StopSwitch", "Work"]

# manifest.json is refreshed this often: writing it takes 30 ms with 2,410 sources.
_MANIFEST_SECONDS = 30.0


@dataclass
class Work:
    """All that a session knows while it runs; a driver's Watcher."""

    folder: RunFolder
    recipe: Recipe
    session: session.Session
    origin: Origin
    observer: Observer
    stop: StopSwitch
    survey: Survey
    # What each source may hold; needed only where there is a limit.
    expected: Sequence[Amount] = ()
    failures: dict[str, list[Failure]] = field(default_factory=dict)
    given_up: dict[str, Quarantined] = field(default_factory=dict)
    # Running totals of what is done: of the whole run, and of this session alone.
    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    joined: int = 0
    session_tokens: int = 0
    session_bytes: int = 0
    session_joined: int = 0
    _joining: int = 0
    _manifest_at: float = 0.0
    # How often the run was seen to wait for each.
    _limits: Counter[Limit] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        receipts = self.survey.jobs.values()
        self.documents = sum(receipt.counts.documents for receipt in receipts)
        self.tokens = sum(receipt.counts.tokens for receipt in receipts)
        self.joined = sum(join.shard.tokens for join in self.survey.joins.values())
        self.leftovers = Leftovers(self.folder, self.recipe, self.survey)
        # All names of a run are of one kind, that of its first ones.
        self._plain_names = layout.are_plain(self.recipe.rules, self.survey.shard_names)
        for index, file in enumerate(self.recipe.source.files):
            if file.path in self.survey.jobs:
                self.bytes += self._bytes_read(index, self.survey.jobs[file.path])
        self.limits = self._limits_so_far()

    def _limits_so_far(self) -> Limiter:
        files = self.recipe.source.files
        limits = Limiter(self.recipe.rules, self.expected or [NOTHING] * len(files))
        for index, file in enumerate(files):
            if file.path in self.survey.jobs:
                limits.done(index, self.survey.jobs[file.path].counts)
        return limits

    @property
    def sources(self) -> Sequence[SourceShard]:
        """The sources of the run: all, or those up to its limit if that is reached."""
        return self.recipe.source.files[: self.limits.extent]

    @property
    def context(self) -> RunContext:
        """What all orders have in common."""
        return RunContext(
            run=str(self.folder.path),
            recipe_id=self.recipe.recipe_id,
            rules=self.recipe.rules,
            session=self.session.id,
            encoder="fast" if self.session.encoder == "fast" else "reference",
            threads=self.session.threads,
            plain_names=self._plain_names,
        )

    def ready_orders(self) -> Ready:
        """Yield an order for each job that is not done, when its source is there and the limit allows it."""
        orders = [*self._convert_orders()]
        if not self.recipe.rules.is_limited:
            return self.origin.ready(orders)
        limits = self.limits
        coming = self.origin.ready(orders, lambda order: limits.is_wanted_soon(order.source_index))
        return Rations(limits).ready(coming)

    @property
    def goes_on(self) -> bool:
        """Whether there are more orders, though none came: some sources gave more than was expected."""
        first = next(iter(self.missing), None)
        return first is not None and first not in self.given_up

    def _convert_orders(self) -> Iterator[ConvertOrder]:
        context = self.context
        for index, file in enumerate(self.sources):
            if file.path not in self.survey.jobs and file.path not in self.given_up:
                known = self.survey.known_sources.get(file.path)
                source = msgspec.structs.replace(file, sha256=file.sha256 or known)
                place = SourceFile(str(self.origin.place(source)))
                yield ConvertOrder(context, source, index, place)

    def join_orders(self) -> Iterator[JoinOrder]:
        """Yield an order for each joined shard that is not done. All jobs must be done."""
        files, shards, context = self.sources, self._joined_shards(), self.context
        self._joining = sum(shard.tokens for shard in shards.values())
        for name, shard in shards.items():
            if name in self.survey.joins:
                continue
            keys = tuple(layout.job_key(files[segment.source].path) for segment in shard.segments)
            spent = self.leftovers.take_spent()
            yield JoinOrder(
                context, name, shard.split, shard.segments, keys, shard.absorbed, shard.places, spent
            )

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to do."""
        if self.missing or self.misfits:
            return False
        return self._joined_shards().keys() == self.survey.joins.keys()

    def _joined_shards(self) -> dict[str, JoinedShard]:
        """Return the shards that the join makes, by name. All jobs must be done."""
        jobs = [self.survey.jobs[file.path] for file in self.sources]
        shards = joined_shards([job.tail.tokens for job in jobs], self.recipe.rules, last_full(jobs))
        plain = self._plain_names
        return {layout.joined_shard(self.recipe, one.split, one.number, plain=plain): one for one in shards}

    def withdraw_misfits(self) -> None:
        """Withdraw what stands in the way of the join; the jobs that it takes with it are missing then.

        A joined shard that does not fit the tails of its sources, and the jobs
        whose tails were removed because of it. And the job whose last shard is
        to be taken in, if that is not right: what is joined from it would get a hash that fits.
        """
        sources, wanted, misfits = self.sources, self._joined_shards(), self.misfits
        for join in misfits:
            del self.survey.joins[join.shard.name]
            self.joined -= join.shard.tokens
            self.leftovers.join_withdrawn(join)
            self._withdraw(self.folder.join(join.shard.name))
            self.observer.notice(
                f"{join.shard.name} does not fit the tails of its sources: it is joined again"
            )
        for index, file in enumerate(sources if misfits else ()):
            if self._lacks_its_tail(file):
                self._take_back(index)
                self.observer.notice(f"{file.path} is converted again: its tail is needed, and is gone")
        for name, shard in wanted.items():
            if shard.absorbed is not None and name not in self.survey.joins:
                self._prove_absorbed(shard.absorbed)
        self.limits = self._limits_so_far()

    @property
    def misfits(self) -> list[JoinReceipt]:
        """The joined shards that do not fit the tails of their sources. All jobs must be done."""
        wanted = {name: (one.segments, one.absorbed) for name, one in self._joined_shards().items()}
        joins = self.survey.joins.items()
        return [join for name, join in joins if wanted.get(name) != (join.segments, join.taken)]

    def _lacks_its_tail(self, file: SourceShard) -> bool:
        key, tail = layout.job_key(file.path), self.survey.jobs[file.path].tail
        return tail.tokens > 0 and not self.folder.tail(key).is_file()

    def _prove_absorbed(self, absorbed: Absorbed) -> None:
        path = self.recipe.source.files[absorbed.source].path
        receipt = self.survey.jobs.get(path)
        if receipt is None or receipt.session == self.session.id:  # Written and hashed a moment ago.
            return
        line = next(line for line in receipt.shards if line.name == absorbed.name)
        wrong = shard_problem(self.folder, self.recipe.rules, line, self._stop_if_asked)
        if wrong:
            self._take_back(absorbed.source)
            self.observer.notice(f"{wrong}: {path} is converted again")

    def _stop_if_asked(self, _done: int, _all: int) -> None:
        if self.stop.asked:
            raise Stopped("stopped by the user")

    @property
    def missing(self) -> list[str]:
        """The sources that are not converted."""
        return [file.path for file in self.sources if file.path not in self.survey.jobs]

    def done(self, order: Order, receipt: Receipt | JoinReceipt) -> None:
        """Keep a receipt; what it makes unnecessary is removed."""
        if isinstance(receipt, Receipt):
            assert isinstance(order, ConvertOrder)  # noqa: S101  # for mypy: whose receipt it is
            self._job_done(order, receipt)
        else:
            self._join_done(receipt)

    def _job_done(self, order: ConvertOrder, receipt: Receipt) -> None:
        self.survey.jobs[receipt.path] = receipt
        self.documents += receipt.counts.documents
        self.tokens += receipt.counts.tokens
        self.bytes += self._bytes_read(order.source_index, receipt)
        self.session_tokens += receipt.counts.tokens
        self.session_bytes += self._bytes_read(order.source_index, receipt)
        self.leftovers.job_done(order.source_index)
        self.limits.done(order.source_index, receipt.counts)
        self.take_back()
        self.origin.release(order.source)

    def take_back(self) -> None:
        """Withdraw what was converted on trial and does not fit; its files go when all is done."""
        for index in self.limits.unfit:
            path = self._take_back(index)
            self.limits.undone(index)
            why = "lies behind the limit" if self.limits.reached else "has more than the limit leaves for it"
            self.observer.notice(f"{path} {why}: what was made of it, on trial, is withdrawn")

    def _take_back(self, index: int) -> str:
        """Withdraw the receipt of a job, to be done again from the same source; return the path of that."""
        path = self.recipe.source.files[index].path
        receipt = self.survey.jobs.pop(path)
        self.documents -= receipt.counts.documents
        self.tokens -= receipt.counts.tokens
        self.bytes -= self._bytes_read(index, receipt)
        if receipt.session == self.session.id:
            self.session_tokens -= receipt.counts.tokens
            self.session_bytes -= self._bytes_read(index, receipt)
        self.survey.known_sources[path] = receipt.source_sha256
        self._withdraw(self.folder.receipt(layout.job_key(path)))
        return path

    def _withdraw(self, receipt: Path) -> None:
        atomic.remove(receipt)
        atomic.sync_folder(receipt.parent)

    def _join_done(self, receipt: JoinReceipt) -> None:
        self.survey.joins[receipt.shard.name] = receipt
        self.joined += receipt.shard.tokens
        self.session_joined += receipt.shard.tokens
        self.leftovers.join_done(receipt)

    def failed(self, order: Order, failure: Failure, *, final: bool) -> None:
        """Tell of a failed attempt; put the job in quarantine if it was the last."""
        if failure.kind == "unready":
            self.observer.notice(f"{failure.message}\n  -> another is tried")
            return
        attempts = self.failures.setdefault(order.key, [])
        attempts.append(failure)
        # A worker that was ended, by whomever, could not remove what it had begun.
        LocalStore(self.folder.path, self.session.id).sweep(order.key)
        # Why it is given up is told in full at the end of the session, and what a lost worker says now.
        is_whole = failure.kind == "lost" and not final
        wrong = failure.message if is_whole else failure.message.partition("\n")[0]
        again = "set aside" if final else "it is tried again"
        self.observer.notice(f"{order.title}: attempt {len(attempts)} failed, {again}: {wrong}")
        if final:
            self._quarantine(order, attempts)

    def tick(self, running: list[Progress]) -> None:
        """Show how far we are; refresh the run manifest now and then; stop if asked."""
        if self.stop.asked:
            raise Stopped("stopped by the user")
        for notice in self.origin.notices():
            self.observer.notice(notice)
        self.observer.update(self.snapshot(running))
        if time.monotonic() - self._manifest_at > _MANIFEST_SECONDS:
            self.write_manifest()

    def impatient(self) -> bool:
        """Tell whether the user asked a second time to stop."""
        return self.stop.asked > 1

    def snapshot(self, running: Sequence[Progress]) -> Snapshot:
        """Return how far the run is."""
        # What is joined was counted when it was encoded.
        flying_tokens = 0 if self._joining else sum(progress.tokens for progress in running)
        measure = self._join_units if self._joining else self._convert_units
        units, units_done, session_units = measure(running)
        return Snapshot(
            phase="join" if self._joining else "convert",
            units=units,
            units_done=units_done,
            session_units=session_units,
            session_tokens=self.session_tokens + flying_tokens,
            jobs=len(self.sources),
            jobs_done=len(self.survey.jobs),
            tokens=self.tokens + flying_tokens,
            running=running,
            **self._traffic(running),
        )

    def _traffic(self, running: Sequence[Progress]) -> dict[str, Any]:
        """Return how fetching goes, and what the run waits for; in the end, what it waited for most."""
        traffic = None if self._joining else self.origin.traffic()
        if traffic is None:
            return {}
        # A worker that ended now would have nothing to do: no file lies ready, and more should come.
        is_short = traffic.coming and traffic.here <= len(running)
        limit: Limit = "network" if is_short else "workers"
        if len(self.sources) > len(self.survey.jobs) + len(self.given_up):
            self._limits[limit] += 1
        elif self._limits:
            limit = self._limits.most_common(1)[0][0]
        return {"fetched": traffic.bytes, "limit": limit}

    def manifest(self, *, complete: bool = False) -> run_manifest.RunManifest:
        """Return the run manifest as of now."""
        sessions = session.all_of(self.folder)
        return run_manifest.build(
            self.recipe, self.survey.jobs, self.survey.joins, sessions, complete=complete
        )

    def write_manifest(self, *, complete: bool = False) -> None:
        """Refresh manifest.json."""
        run_manifest.write(self.folder, self.manifest(complete=complete))
        self._manifest_at = time.monotonic()

    def _convert_units(self, running: Sequence[Progress]) -> tuple[int, float, float]:
        flying = sum(progress.fraction * progress.size for progress in running)
        tokens = self.tokens + sum(progress.tokens for progress in running)
        return self._bytes_to_read(flying, tokens), self.bytes + flying, self.session_bytes + flying

    def _bytes_read(self, index: int, receipt: Receipt) -> int:
        """Return how much of a source was converted: all, or as many of its rows as came before the limit."""
        rows = self.expected[index].documents if self.expected and receipt.counts.limited else 0
        return round(receipt.source_bytes * min(1.0, receipt.counts.rows / rows if rows else 1.0))

    def _bytes_to_read(self, flying: float, tokens: int) -> int:
        """Return how many source bytes the run reads; guessed from what was read, while a limit is ahead."""
        if not self.recipe.rules.is_limited:
            return self.recipe.source.bytes
        everything = sum(file.bytes for file in self.sources)
        shares = [
            (self.bytes, self.limits.share(self.documents, 0)),
            (self.bytes + flying, self.limits.share(0, tokens)),
        ]
        return min(everything, *(round(read / share) for read, share in shares if share), everything)

    def _join_units(self, running: Sequence[Progress]) -> tuple[int, float, float]:
        flying = sum(progress.fraction * progress.size for progress in running)
        return self._joining, self.joined + flying, self.session_joined + flying

    def _quarantine(self, order: Order, attempts: list[Failure]) -> None:
        if isinstance(order, JoinOrder):
            raise FwconvertError(attempts[-1].message)
        self.limits.undone(order.source_index)
        if attempts[-1].kind != "unfetched":
            self.origin.release(order.source)
        texts = tuple((failure.message, failure.traceback) for failure in attempts)
        record = Quarantined(order.source.path, attempts[-1].message, texts)
        self.given_up[order.source.path] = record
        self.folder.write(self.folder.quarantined(order.key), records.encode(record) + b"\n")
        self.leftovers.job_given_up(order.key)
