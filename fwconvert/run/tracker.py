"""What happens while orders are carried out: receipts are counted, failures recorded, progress shown."""

import time
from collections import Counter
from collections.abc import Sequence

from fwconvert import records
from fwconvert.errors import FwconvertError, Stopped
from fwconvert.job.orders import ConvertOrder, Failure, JoinOrder, Order
from fwconvert.run.engines import Progress
from fwconvert.run.events import Bottleneck, Observer, Snapshot, StopSwitch
from fwconvert.run.inputs import Input, Traffic
from fwconvert.run.resume import Cleanup
from fwconvert.run.state import RunState
from fwconvert.store import layout, run_manifest, sessions
from fwconvert.store.base import Store
from fwconvert.store.receipts import JoinReceipt, Quarantined, Receipt
from fwconvert.store.run_manifest import RunManifest

# manifest.json is refreshed this often: writing it takes 30 ms with 2,410 sources.
_MANIFEST_SECONDS = 30.0


class Tracker:
    """Keeps a run's state, its folder and its observer up to date; the scheduler's watcher."""

    def __init__(
        self, store: Store, state: RunState, inputs: Input, observer: Observer, stop: StopSwitch
    ) -> None:
        self.state = state
        self.cleanup = Cleanup(store, state, observer)
        # 0 until the join begins.
        self.tokens_to_join = 0
        self._store = store
        self._inputs = inputs
        self._observer = observer
        self._stop = stop
        self._manifest_at = 0.0
        # How often the run was seen to wait for each.
        self._waits: Counter[Bottleneck] = Counter()

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

    def tick(self, running: list[Progress]) -> None:
        """Show the progress; refresh the run manifest now and then; raise Stopped if asked to stop."""
        self.stop_if_asked()
        for notice in self._inputs.notices():
            self._observer.notice(notice)
        traffic = None if self.tokens_to_join else self._inputs.traffic()
        if traffic is not None and _is_converting(self.state):
            self._waits[_bottleneck(traffic, running)] += 1
        self._observer.update(self.snapshot(running, traffic))
        if time.monotonic() - self._manifest_at > _MANIFEST_SECONDS:
            self.write_manifest()

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
        if is_joining:
            units = self.tokens_to_join
            done, session_done = state.total.joined_tokens, state.session.joined_tokens
        else:
            done, session_done = state.total.source_bytes, state.session.source_bytes
            units = state.bytes_to_read(done + flying, state.total.tokens + new_tokens)
        bottleneck: Bottleneck | None = None
        if traffic is not None:  # In the end, what the run waited for most.
            most = self._waits.most_common(1)
            bottleneck = most[0][0] if most and not _is_converting(state) else _bottleneck(traffic, running)
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
        )

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


def _is_converting(state: RunState) -> bool:
    return len(state.sources) > len(state.done.jobs) + len(state.quarantined)


def _bottleneck(traffic: Traffic, running: Sequence[Progress]) -> Bottleneck:
    # A worker that ended now would have nothing to do: no file is ready, and more should come.
    return "network" if traffic.coming and traffic.here <= len(running) else "workers"
