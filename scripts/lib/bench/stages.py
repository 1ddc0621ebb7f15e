"""Where a worker's time goes, stage by stage.

A real conversion in this one process: the engine gets a thread where it would
spawn a worker, and the functions that make up the stages are timed. CPU time is
that of the thread, which other load does not disturb and which adds up over
threads; elapsed time shows waiting. A stage within a stage is not counted twice.
"""

import hashlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

import fwconvert
from fwconvert.options import EncoderChoice
from fwconvert.processes import claim
from fwconvert.run.engines.executor import ExecutorEngine
from fwconvert.shards import cutting, shard
from fwconvert.sources import parquet
from fwconvert.tokens import gigatoken, tokenizer


class Clock:
    """CPU seconds and elapsed seconds by stage, over all threads."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = defaultdict(float)
        self.passed: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the block as `name`, without the stages inside it."""
        stack: list[str] = self._of_thread.__dict__.setdefault("stack", [])
        self._note(stack)
        stack.append(name)
        try:
            yield
        finally:
            self._note(stack)
            stack.pop()

    def _note(self, stack: list[str]) -> None:
        """Give the time since the last note in this thread to the innermost stage."""
        now = (time.thread_time(), time.perf_counter())
        before = self._of_thread.__dict__.get("last", now)
        self._of_thread.last = now
        if stack:
            with self._lock:
                self.cpu[stack[-1]] += now[0] - before[0]
                self.passed[stack[-1]] += now[1] - before[1]

    def function(self, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time is counted as a stage."""

        @wraps(inner)
        def timed(*given: Any, **named: Any) -> Any:
            with self.stage(name):
                return inner(*given, **named)

        return timed

    def generator(self, name: str, inner: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Return a generator whose time for each item is counted as a stage."""

        @wraps(inner)
        def timed(*given: Any, **named: Any) -> Iterator[Any]:
            items, end = inner(*given, **named), object()
            while True:
                with self.stage(name):
                    item = next(items, end)
                if item is end:
                    return
                yield item

        return timed


class _Digest:
    """A sha256 whose time is counted."""

    def __init__(self, clock: Clock, inner: Any) -> None:
        self._inner = inner
        self.update = clock.function("hash", inner.update)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def stages(folder: str, out: str, vocabulary: str, encoder: EncoderChoice) -> dict[str, Any]:
    """Convert `folder` with one worker and one thread; return the seconds of each stage."""
    claim()  # As in a worker, a batch reaches the encoder by the shortest way.
    clock = Clock()
    recipe = fwconvert.recipe(source=folder, tokenizer=vocabulary)
    options = fwconvert.Options(workers=1, threads=1, encoder=encoder)
    with _instrumented(clock), ThreadPoolExecutor(1) as thread:
        cpu, passed = time.process_time(), time.perf_counter()
        result = fwconvert.convert(recipe, out, options, engine=ExecutorEngine(thread, 1))
        cpu, passed = time.process_time() - cpu, time.perf_counter() - passed
    assert result.complete, result.failed
    clock.cpu["other"] = cpu - sum(clock.cpu.values())
    return {"cpu": clock.cpu, "passed": clock.passed, "seconds": passed, "tokens": result.headline.tokens}


@contextmanager
def _instrumented(clock: Clock) -> Iterator[None]:
    """Put the clock around the stages, for as long as the block runs."""
    sha256 = hashlib.sha256
    places: list[tuple[ModuleType | type, str, Any]] = [
        (parquet, "batches", clock.generator("decode", parquet.batches)),
        (tokenizer, "place_eot", clock.function("place EOT, cut", tokenizer.place_eot)),
        (cutting, "cut", clock.generator("place EOT, cut", cutting.cut)),
        (shard.ShardWriter, "write", clock.function("write", shard.ShardWriter.write)),
        (os, "write", clock.function("write", os.write)),
        (os, "fsync", clock.function("fsync", os.fsync)),
        (hashlib, "sha256", lambda *given, **named: _Digest(clock, sha256(*given, **named))),
    ]
    places += _encoders(clock)
    before = [(home, name, getattr(home, name)) for home, name, _ in places]
    for home, name, timed in places:
        setattr(home, name, timed)
    try:
        yield
    finally:
        for home, name, original in before:
            setattr(home, name, original)


def _encoders(clock: Clock) -> Iterator[tuple[type, str, Any]]:
    kinds = (gigatoken.FastTokenizer, "fast"), (tokenizer.ReferenceTokenizer, "reference")
    for kind, name in kinds:
        yield kind, "encode", clock.function(f"encode ({name})", kind.encode)
        yield kind, "__init__", clock.function("load the tokenizer", kind.__init__)
