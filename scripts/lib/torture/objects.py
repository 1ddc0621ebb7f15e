"""Runs in an object store: what goes wrong there, a request at a time, and what must hold after it.

A session is forked, as in `testbed`, and talks with rclone's S3 server through a proxy that kills it, or
spoils an answer, at one of its requests. Its worker is a thread: the client of an object store does not
survive a fork. The server's objects are files, so what is visible is looked at without the program.
"""

import atexit
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from multiprocessing import util
from pathlib import Path
from typing import Any

from fwconvert import cli
from fwconvert.inspection import verify
from fwconvert.run.engines import executor
from fwconvert.store import base, bucket, lease, objects, receipts
from torture.checks import scratch
from torture.faults import Interposer
from torture.s3 import BUCKET, KILLS, LASTING, PASSING, Plan, Proxy, environment, serving
from torture.s3 import skip_reason as _cannot_serve
from torture.testbed import (
    INJECTED,
    SCENARIOS,
    Result,
    make_sources,
    run_session,
    sha256_of,
    tree,
    wait_for,
    wait_for_end,
)

# Three sources; one whose tail is absorbed; and an export is left to `checks`, which has the same protocol.
WORLDS = (0, 3)
ALL = (*KILLS, *PASSING, *LASTING)
# Loaded before anything is forked.
_PRELOADED = (executor, objects, lease, base)
# So that no session has to, whose CPU they would be. They do nothing before they are used.
_LIBRARIES = ("boto3", "botocore.config", "botocore.exceptions", "obstore.exceptions", "obstore.store")


def skip_reason() -> str:
    """Return why this cannot be done here; empty if it can."""
    return _cannot_serve("rclone")


class World:
    """A scenario in a bucket, the sources it converts, and what an undisturbed run makes."""

    def __init__(self, scenario: int, place: Path) -> None:
        with ExitStack() as stack:
            self.server = stack.enter_context(serving("rclone", place))
            atexit.register(stack.pop_all().close)
        assert self.server.folder is not None
        self.folder = self.server.folder / BUCKET
        self.proxy = Proxy(self.server.endpoint)
        self.place, self.scenario = place, SCENARIOS[scenario]
        self.sources = make_sources(self.scenario, place / "sources")
        prefix = self.new()
        first = self.session(prefix, Plan())
        assert first.code == 0, first.output
        self.expected = tree(self.folder / prefix)
        self.requests = len(self.proxy.plan.requests)

    def new(self) -> str:
        """Return a prefix that nobody has used."""
        return f"runs/{uuid.uuid4().hex[:12]}"

    def session(self, prefix: str, plan: Plan, before: Callable[[], None] | None = None) -> Result:
        """Run the command in a process of its own until it exits or is killed."""
        self.proxy.plan = plan
        log = self.place / "output"
        uri = f"s3://{BUCKET}/{prefix}"
        words = ["--source", str(self.sources), "--out", uri, "--scratch", str(self.place / "scratch")]
        words += ["--workers", "1", "--no-disk-check", *self.scenario.options]

        def begin() -> None:
            os.environ.update(environment(self.proxy.endpoint))
            if before is not None:
                before()

        def command() -> int:
            code = cli.main(words, engine=executor.ExecutorEngine(ThreadPoolExecutor(1), slots=1))
            vars(util)["_run_finalizers"]()  # As at the end of any process; this one just vanishes.
            return code

        child = os.fork()
        if child == 0:
            run_session(Interposer(self.place / "nothing", None), log, begin, command)
        plan.victim = child
        code = wait_for(child)
        orphans = wait_for_end(child)
        INJECTED["faults"] += plan.happened
        return Result(code, log.read_text(errors="replace"), orphans)

    def visible_problems(self, prefix: str) -> list[str]:
        """Return what is wrong with what is visible: at any time receipts are right, and no file is cut."""
        out, found = self.folder / prefix, []
        for name, sha256 in tree(out).items() if out.is_dir() else ():
            if name in self.expected and name != "manifest.json" and sha256 != self.expected[name]:
                found.append(f"{name} is visible with other bytes")
        joins = [_read(path) for path in sorted(out.glob(".fwconvert/joins/*.json"))]
        taken = {join["absorbed"]["name"] for join in joins if join.get("absorbed")}
        made = [_read(path) for path in sorted(out.glob(".fwconvert/receipts/*.json"))]
        lines = [line for receipt in made for line in receipt["shards"] if line["name"] not in taken]
        lines += [join["shard"] for join in joins]
        for line in lines:
            path = out / line["name"]
            if not path.is_file() or sha256_of(path) != line["sha256"]:
                found.append(f"a receipt names {line['name']}, which is missing or differs")
        return found

    def problems(self, prefix: str) -> list[str]:
        """Return what is wrong with a run that should be finished."""
        out = self.folder / prefix
        found = [] if tree(out) == self.expected else ["other bytes than the undisturbed run"]
        found += [f"verify: {one.file}: {one.what}" for one in verify.verify(out).problems[:2]]
        if left := [path.name for path in (self.place / "scratch").iterdir()]:
            found.append(f"left in scratch: {left[0]}")
        return found


def _read(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_bytes())
    return record


@cache
def world(scenario: int) -> World:
    """Return this process's world for a scenario."""
    scratch()
    for name in _LIBRARIES:
        import_module(name)
    place = Path(tempfile.mkdtemp(prefix=f"objects-{scenario}-", dir=scratch()))
    return World(scenario, place)


def requests(scenario: int) -> int:
    """Return how many requests an undisturbed session makes."""
    return world(scenario).requests


def fault(scenario: int, kind: str, at: int) -> list[str]:
    """Something goes wrong at a request; then the same command is run again."""
    return _disturbed(world(scenario), [Plan(kind, at)])


def faults(scenario: int, first: tuple[str, int], second: tuple[str, int]) -> list[str]:
    """And again while it resumes."""
    return _disturbed(world(scenario), [Plan(*first), Plan(*second)])


def _disturbed(place: World, plans: list[Plan]) -> list[str]:
    prefix, found = place.new(), []
    try:
        for plan in plans:
            ended = place.session(prefix, plan)
            if ended.code not in (0, 1, 2, -9):
                found.append(f"ended with {ended.code}: {ended.output[-300:]}")
            if "Traceback" in ended.output or "canary" in ended.output.lower():
                found.append(f"it said: {ended.output[-600:]}")
            if ended.orphans:
                found.append(f"{ended.orphans} processes survive")
            found += place.visible_problems(prefix)
        ended = place.session(prefix, Plan())
        if ended.code != 0:
            found.append(f"resuming ended with {ended.code}: {ended.output[-600:]}")
        return [*found, *place.problems(prefix)]
    finally:
        shutil.rmtree(place.folder / prefix, ignore_errors=True)


def control(scenario: int) -> list[str]:
    """Publish the receipt of a job before its files, and die in between: this must be noticed."""
    place = world(scenario)
    prefix = place.new()

    def swap() -> None:
        late: list[tuple[bucket.Bucket, str, bytes]] = []
        publish = receipts.publish

        def later(self: bucket.Bucket, name: str, path: Path, *_: object) -> None:
            late.append((self, name, path.read_bytes()))

        def first(store: base.Store, receipt: Any) -> None:
            publish(store, receipt)
            while late:
                place, name, content = late.pop()
                place.put(name, content)

        bucket.Bucket.upload = later  # type: ignore[method-assign,assignment]
        receipts.publish = first

    plan = Plan("kill after", 1, lambda method, path: method == "PUT" and "/receipts/" in path)
    try:
        place.session(prefix, plan, swap)
        return place.visible_problems(prefix)
    finally:
        shutil.rmtree(place.folder / prefix, ignore_errors=True)
