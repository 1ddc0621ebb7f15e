"""What happens while orders are carried out: receipts are counted, failures recorded, progress shown."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from fwconvert import records
from fwconvert.errors import FwconvertError, Stopped
from fwconvert.job.orders import ConvertOrder, Failure, JoinOrder, Order
from fwconvert.run.engines import Progress
from fwconvert.run.estimate import expected_join
from fwconvert.run.events import Bottleneck, Faults, Observer, Snapshot, StopSwitch
from fwconvert.run.inputs import Input, Traffic
from fwconvert.run.outlook import Outlook
from fwconvert.run.resume import Cleanup
from fwconvert.run.state import RunState
from fwconvert.store import layout, pulses, run_manifest, sessions
from fwconvert.store.base import Store
from fwconvert.store.pulses import Pulse
from fwconvert.store.receipts import JoinReceipt, Quarantined, Receipt
from fwconvert.store.run_manifest import RunManifest

# manifest.json is refreshed this often: writing it takes 30 ms with 2,410 sources.
_MANIFEST_SECONDS = 30.0
# How far the session is, is told to those outside this often, and for the first time after a moment.
_PULSE_SECONDS = 3.0
_REMOTE_PULSE_SECONDS = 15.0
_FIRST_PULSE_SECONDS = 2.0


class Waits:
    """What holds a run up: what its workers waited for in the last seconds. Pure: it is told the time.

    A worker without an order waits for the network if no source is ready and
    more should come, and for the limit of the recipe if one is ready and has to
    wait for those before it. If neither takes a noticeable share of the workers'
    time, the workers themselves are what a run would need more of.
    """

    window_seconds = 4.0
    _NOTICEABLE = 0.15
    # A driver that was suspended has seen nothing.
    _LONGEST_STEP = 1.0

    def __init__(self) -> None:
        self._seen = -1.0
        # Seconds of workers: waiting for the network, for the limit, and all; with the time of each look.
        self._recent: deque[tuple[float, float, float, float]] = deque()
        self._whole = [0.0, 0.0, 0.0]

    def look(self, now: float, traffic: Traffic, busy: int, usable: int) -> None:
        """Count the time since the last look: `busy` of the workers that can be used have an order."""
        step = min(now - self._seen, self._LONGEST_STEP) if self._seen >= 0 else 0.0
        self._seen = now
        idle, ready = max(0, usable - busy), max(0, traffic.here - busy)
        for_network = max(0, idle - ready) * step if traffic.coming else 0.0
        for_limit = min(idle, ready) * step
        spent = (for_network, for_limit, max(usable, busy) * step)
        self._recent.append((now, *spent))
        self._whole = [sum(pair) for pair in zip(self._whole, spent, strict=True)]
        while self._recent[0][0] <= now - self.window_seconds:
            self._recent.popleft()

    @property
    def lately(self) -> Bottleneck:
        """What holds the run up now."""
        _, *columns = zip((0.0, 0.0, 0.0, 0.0), *self._recent, strict=True)
        return self._most(*map(sum, columns))

    @property
    def altogether(self) -> Bottleneck:
        """What has held the run up most."""
        return self._most(*self._whole)

    def _most(self, network: float, limit: float, spent: float) -> Bottleneck:
        longest = max(network, limit)
        if longest <= self._NOTICEABLE * spent:
            return "workers"
        return "network" if network >= limit else "--limit"


class _PulseWriter:
    """Writes how far a session is, beside its work: a disk or an object store may take its time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._every = _REMOTE_PULSE_SECONDS if store.is_remote else _PULSE_SECONDS
        self._due = time.monotonic() + _FIRST_PULSE_SECONDS
        self._thread: threading.Thread | None = None
        self._is_over = False

    def is_due(self) -> bool:
        """Return whether the next pulse should be written, and the last one has been."""
        is_busy = self._thread is not None and self._thread.is_alive()
        return not self._is_over and not is_busy and time.monotonic() >= self._due

    def write(self, pulse: Pulse) -> None:
        """Write a pulse, soon."""
        self._due = time.monotonic() + self._every
        how = {"args": [self._store, pulse], "name": "pulse", "daemon": True}
        self._thread = threading.Thread(target=pulses.write, **how)  # type: ignore[arg-type]
        with suppress(RuntimeError):  # No thread can be started: then nobody is told.
            self._thread.start()

    def end(self, session: str) -> None:
        """Remove what was written."""
        self._is_over = True
        if self._thread is not None:
            if self._thread.is_alive():
                self._thread.join(1.0)
            pulses.remove(self._store, session)


class Tracker:
    """Keeps a run's state, its folder and its observer up to date; the scheduler's watcher."""

    def __init__(
        self,
        store: Store,
        state: RunState,
        inputs: Input,
        observer: Observer,
        stop: StopSwitch,
        *,
        workers: int = 1,
        writes_manifest: bool = True,
    ) -> None:
        self.state = state
        self._workers = workers
        self._jobs_found = len(state.done.jobs)
        # Workers that were lost, and attempts that failed, if what they did was tried again.
        self._faults = Faults()
        self._outlook = Outlook()
        self._pulse = _PulseWriter(store)
        # What was last known of fetching, if anything is fetched.
        self._traffic: Traffic | None = None
        # Not for a rank: it knows its share alone.
        self._writes_manifest = writes_manifest
        self.cleanup = Cleanup(store, state, observer)
        # 0 until the join begins.
        self.tokens_to_join = 0
        self._store = store
        self._inputs = inputs
        self._observer = observer
        self._stop = stop
        self._manifest_at = 0.0
        self._waits = Waits()

    def done(self, order: Order, receipt: Receipt | JoinReceipt) -> None:
        """Count a receipt that is on the disk, and remove what it makes unnecessary."""
        if isinstance(receipt, JoinReceipt):
            self.state.join_done(receipt)
            self.cleanup.join_done(receipt)
            return
        assert isinstance(order, ConvertOrder)  # noqa: S101  # for mypy: whose receipt it is
        self.state.job_done(order.source_index, receipt)
        self.cleanup.job_done(order.source_index)
        self.cleanup.withdraw_over_limit()
        self._inputs.release(order.source)

    def failed(self, order: Order, failure: Failure, *, final: bool) -> None:
        """Report a failed attempt; put the job in quarantine if it was the last."""
        if not final:
            lost = failure.kind in ("lost", "unready")
            self._faults += Faults(workers=1) if lost else Faults(attempts=1)
        if failure.kind == "unready":
            self._observer.notice(f"{failure.message}\n  -> another worker is tried")
            return
        attempts = self.state.failures.setdefault(order.key, [])
        attempts.append(failure)
        # A worker that was killed could not remove what it had begun.
        self._store.sweep(order.key)
        # Why a job is given up is shown in full at the end of the session; why a worker was lost, now.
        is_whole = failure.kind == "lost" and not final
        wrong = failure.message if is_whole else failure.message.partition("\n")[0]
        again = "set aside" if final else "it is tried again"
        self._observer.notice(f"{order.title}: attempt {len(attempts)} failed, {again}: {wrong}")
        if not final:
            return
        if isinstance(order, JoinOrder):
            raise FwconvertError(failure.message)
        if failure.kind != "unfetched":
            self._inputs.release(order.source)
        texts = tuple((attempt.message, attempt.traceback) for attempt in attempts)
        record = Quarantined(order.source.path, failure.message, texts)
        self.state.job_failed(order.source_index, record)
        self._store.write(layout.quarantined(order.key), records.encode(record) + b"\n")
        self.cleanup.job_quarantined(order.key)

    def notice(self, text: str) -> None:
        """Show what a person should know."""
        self._observer.notice(text)

    def tick(self, running: list[Progress]) -> None:
        """Show the progress; refresh the run manifest now and then; raise Stopped if asked to stop."""
        self.stop_if_asked()
        for notice in self._inputs.notices():
            self._observer.notice(notice)
        if self.tokens_to_join:  # Nothing is fetched any more, and those who fetched may be gone.
            traffic = self._traffic and replace(self._traffic, connections=0, downloads=())
        else:
            traffic = self._traffic = self._inputs.traffic()
        if traffic is not None and not self.tokens_to_join and (left := _unfinished(self.state)):
            self._waits.look(time.monotonic(), traffic, len(running), min(self._workers, left))
        snapshot = self.snapshot(running, traffic)
        self._observer.update(snapshot)
        self._outlook.see(snapshot, time.monotonic())
        if self._pulse.is_due():
            self._pulse.write(self._as_pulse(snapshot))
        if self._writes_manifest and time.monotonic() - self._manifest_at > _MANIFEST_SECONDS:
            self.write_manifest()

    def _as_pulse(self, snapshot: Snapshot) -> Pulse:
        found = self._outlook.forecast()
        is_joining = snapshot.phase == "join"
        return Pulse(
            session=self.state.session_id,
            at=pulses.now(),
            phase=snapshot.phase,
            progress=found.progress,
            seconds=self._outlook.seconds,
            seconds_left=found.seconds_left,
            jobs=snapshot.jobs,
            jobs_done=snapshot.jobs_done,
            tokens=snapshot.tokens,
            tokens_per_second=found.tokens,
            source_bytes_per_second=None if is_joining else found.units,
            fetched_bytes_per_second=None if is_joining else found.fetched,
            connections=snapshot.connections,
            limit=snapshot.bottleneck,
        )

    def end_pulse(self) -> None:
        """Tell nobody outside any more how far the session is."""
        self._pulse.end(self.state.session_id)

    def stop_if_asked(self, *_: object) -> None:
        """Raise Stopped if the user asked to stop."""
        if self._stop.asked:
            raise Stopped("stopped by the user")

    def stop_now(self) -> bool:
        """Return whether the user asked a second time to stop."""
        return self._stop.asked > 1

    def snapshot(self, running: Sequence[Progress], traffic: Traffic | None = None) -> Snapshot:
        """Return how far the run is. Changes nothing."""
        state, is_joining = self.state, self.tokens_to_join > 0
        flying = sum(progress.fraction * progress.size for progress in running)
        # Tokens that are joined were counted when they were encoded.
        new_tokens = 0 if is_joining else sum(progress.tokens for progress in running)
        sources_done = state.total.source_bytes + (0 if is_joining else flying)
        source_bytes = state.bytes_to_read(sources_done, state.total.tokens + new_tokens)
        join_tokens, join_shards = self._join(source_bytes)
        if is_joining:
            units = self.tokens_to_join
            done, session_done = state.total.joined_tokens, state.session.joined_tokens
        else:
            done, session_done = state.total.source_bytes, state.session.source_bytes
            units = source_bytes
        bottleneck: Bottleneck | None = None
        if traffic is not None:
            bottleneck = self._waits.lately if _unfinished(state) else self._waits.altogether
        return Snapshot(
            phase="join" if is_joining else "convert",
            units=units,
            units_done=done + flying,
            session_units=session_done + flying,
            session_tokens=state.session.tokens + new_tokens,
            jobs=len(state.sources),
            jobs_done=len(state.done.jobs),
            tokens=state.total.tokens + new_tokens,
            running=running,
            fetched=None if traffic is None else traffic.bytes,
            bottleneck=bottleneck,
            connections=0 if traffic is None else traffic.connections,
            downloads=() if traffic is None else traffic.downloads,
            to_fetch=0 if traffic is None else traffic.to_fetch,
            jobs_found=self._jobs_found,
            jobs_failed=len(state.quarantined),
            failed_bytes=0 if is_joining else state.failed_bytes,
            source_bytes=source_bytes,
            slots=self._workers,
            join_tokens=join_tokens,
            joined_tokens=done + flying if is_joining else state.total.joined_tokens,
            join_shards=join_shards,
            token_bytes=state.recipe.rules.token_bytes,
            faults=self.faults,
        )

    def _join(self, source_bytes: int) -> tuple[int, int]:
        """Return how many tokens the join has, or will have, and how many shards; a rank joins nothing."""
        state, rules = self.state, self.state.recipe.rules
        if not self._writes_manifest:
            return 0, 0
        if self.tokens_to_join:
            return self.tokens_to_join, len(state.joined_shards)
        jobs = len(state.done.jobs)
        return expected_join(rules, source_bytes, len(state.sources), jobs, state.total.tail_tokens)

    @property
    def faults(self) -> Faults:
        """What went wrong so far in this session, and was tried again."""
        return self._faults + (Faults() if self._traffic is None else self._traffic.faults)

    def manifest(self, *, complete: bool = False) -> RunManifest:
        """Return the run manifest as of now."""
        state = self.state
        return run_manifest.build(
            state.recipe, state.done.jobs, state.done.joins, sessions.all_of(self._store), complete=complete
        )

    def write_manifest(self, *, complete: bool = False) -> None:
        """Refresh manifest.json."""
        run_manifest.write(self._store, self.manifest(complete=complete))
        self._manifest_at = time.monotonic()


def _unfinished(state: RunState) -> int:
    return len(state.sources) - len(state.done.jobs) - len(state.quarantined)
