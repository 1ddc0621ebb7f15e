"""Copy a finished run to another place: from a folder to an object store, back, or anywhere else.

Every file is proven by the sha256 in the run's records: what is sent, and what is
there afterwards. The manifest is copied last, so a copy without one is not finished,
and the same call goes on: what is there and right is not sent again.
"""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

from fwconvert.errors import OutputError, Stopped, UsageError, message
from fwconvert.inspection.reader import read_manifest
from fwconvert.options import Options
from fwconvert.run.events import Observer, SilentObserver, Snapshot, StopSwitch
from fwconvert.shards import listings
from fwconvert.store import base, layout, receipts, run_manifest, saved_recipe, sessions
from fwconvert.store.base import Store
from fwconvert.store.local import absolute, open_store
from fwconvert.store.receipts import Recorded
from fwconvert.store.run_manifest import RunManifest

# What makes a folder a run that can be checked and continued, beside its output.
_RECORDS = (layout.VOCABULARIES, layout.SESSIONS, layout.RECEIPTS, layout.JOINS)
# What the page of a run is made from.
_FOR_PEOPLE = (layout.STATISTICS, layout.TIMELINES)
_MOST_FOR_PEOPLE = 2**20
_AT_ONCE = 4
_TICK_SECONDS = 0.1


@dataclass(frozen=True)
class Copied:
    """What happened."""

    run: str
    out: str
    files: int
    bytes: int
    # How much of it was there already.
    bytes_found: int
    seconds: float
    # Files there that a trainer would take for output of the run, though they are not.
    foreign: tuple[str, ...] = ()


def copy(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    observer: Observer | None = None,
    stop: StopSwitch | None = None,
) -> Copied:
    """Copy the finished run in `run` to `out`, or go on where an earlier call stopped.

    Raises UsageError before anything is written if the run is not finished, or if `out` belongs to
    another recipe or another session, ShardError if a file of the run is missing or damaged, and
    OutputError if `out` cannot be written. Raises Stopped if `stop` was asked.
    """
    scratch = (options or Options()).scratch_folder
    source = open_store(absolute(run), scratch=scratch)
    target = open_store(absolute(out), scratch=scratch)
    return _Copying(source, target, observer or SilentObserver(), stop or StopSwitch()).run()


class _Copying:
    def __init__(self, source: Store, target: Store, observer: Observer, stop: StopSwitch) -> None:
        self._source, self._target = source, target
        self._observer, self._stop = observer, stop
        self._counting = threading.Lock()
        self._done = self._found = self._all = 0

    def run(self) -> Copied:
        """Copy output, then records, then the manifest."""
        started, source = time.monotonic(), self._source
        manifest = _finished(source)
        if source.uri == self._target.uri:
            raise UsageError(message("a run cannot be copied onto itself", run=source.uri))
        self._target.refuse_links()
        saved_recipe.adopt(self._target, manifest.recipe())
        self._target = target = self._target.for_session(sessions.new().id)
        rules = manifest.rules
        output = [file for line in manifest.shards for file in receipts.shard_files(rules, line)]
        records = [*_records(source)]
        last = _recorded(source, layout.MANIFEST)
        everything = [*output, *records, last]
        self._all = sum(file.bytes for file in everything)
        with target.lock():
            target.prepare()
            if not base.exists(target, layout.PLAN):  # So that the next call knows whose these files are.
                saved_recipe.save_plan(target, manifest.recipe())
            listed = target.listed()
            sizes = {file: _size(listed, file.name) for file in everything}
            if any(sizes[file] != file.bytes for file in everything) and sizes[last] is not None:
                target.remove(layout.MANIFEST)  # Until all is there.
                target.settle("")
                sizes[last] = None
            # Receipts say that the files they name are there.
            for files in (output, records, [last]):
                if files == [last]:
                    listings.write(target, rules, manifest.shards)
                self._copy_all(files, sizes)
                target.settle(*sorted({file.name.rpartition("/")[0] for file in files}))
            unlisted = run_manifest.find_unlisted(
                target, manifest.recipe(), {line.name for line in manifest.shards}
            )
            run_manifest.remove_unlisted(target, unlisted)
            target.sweep()
        return Copied(
            run=source.uri,
            out=target.uri,
            files=len(everything),
            bytes=self._all,
            bytes_found=self._found,
            seconds=time.monotonic() - started,
            foreign=unlisted.foreign,
        )

    def _copy_all(self, files: list[Recorded], sizes: dict[Recorded, int | None]) -> None:
        """Copy files side by side; those that are there and right are left as they are."""
        with ThreadPoolExecutor(_AT_ONCE, "copy") as threads:
            tasks = {threads.submit(self._copy, file, sizes[file]) for file in files}
            try:
                waiting = tasks
                while waiting:
                    self._show()
                    finished, waiting = wait(waiting, _TICK_SECONDS)
                    for task in finished:
                        task.result()
                self._show()
            except BaseException:
                self._stop.event.set()  # The others end at their next part.
                threads.shutdown(cancel_futures=True)
                raise

    def _copy(self, file: Recorded, size: int | None) -> None:
        source, target = self._source, self._target
        if size == file.bytes and target.has(
            file.name, file.sha256, lambda: source.on_disk(file.name, file.sha256), self._tick
        ):
            with self._counting:
                self._done += file.bytes
                self._found += file.bytes
            return
        self._tick()
        with source.on_disk(file.name, file.sha256) as path:
            target.take(file.name, path, file.sha256, self._tick)
        with self._counting:
            self._done += file.bytes

    def _tick(self) -> None:
        if self._stop.event.is_set():
            raise Stopped("stopped; the same command continues where it stopped")

    def _show(self) -> None:
        self._tick()
        self._observer.update(
            Snapshot(
                phase="copy",
                units=self._all,
                units_done=self._done,
                session_units=self._done - self._found,
                session_tokens=0,
                jobs=0,
                jobs_done=0,
                tokens=0,
                running=(),
            )
        )


def _finished(source: Store) -> RunManifest:
    manifest = read_manifest(source)
    if not manifest.headline.complete or (who := source.holder()):
        at_work = {} if not manifest.headline.complete else {"at_work": who}
        raise UsageError(
            message(
                "only a finished run can be copied",
                "run the command that makes it again, to its end",
                run=source.uri,
                converted=f"{manifest.headline.jobs_done:,} of {manifest.headline.jobs:,} sources",
                **at_work,
            )
        )
    return manifest


def _records(source: Store) -> Iterator[Recorded]:
    """Yield the records of a run, those that are there: a copy of the output alone has none."""
    for name in (layout.PLAN, layout.PLACES):
        if base.exists(source, name):
            yield _recorded(source, name)
    for folder in _RECORDS:
        for name in sorted(source.list(folder)):
            if not name.endswith((layout.LOCK_SUFFIX, layout.PULSE_SUFFIX)):
                yield _recorded(source, f"{folder}/{name}")
    for folder in _FOR_PEOPLE:
        yield from filter(None, (_seen(source, f"{folder}/{name}") for name in sorted(source.list(folder))))


def _seen(source: Store, name: str) -> Recorded | None:
    """Return a record that only people look at; one that cannot be read stays behind."""
    try:
        small = 0 < (source.size(name) or 0) <= _MOST_FOR_PEOPLE
        return _recorded(source, name) if small else None
    except OSError:
        return None


def _recorded(source: Store, name: str) -> Recorded:
    return Recorded(name, source.size(name) or 0, source.sha256(name))


def _size(store: Store, name: str) -> int | None:
    with suppress(OSError):
        return store.size(name)
    raise OutputError(
        message(
            "something else lies where a file of the copy belongs",
            "remove it, then run the same command again",
            file=store.address(name),
        )
    )
