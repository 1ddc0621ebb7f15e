"""What is called in the processes of a Ray cluster: a look around on a node, and orders.

Ray finds these functions by their import path, so every machine needs the same fwconvert. It is
loaded there and nothing else of the driver's is.
"""

import hashlib
import math
import threading
import time
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from fwconvert import files, machine
from fwconvert.errors import OutputError, Stopped, UsageError, message
from fwconvert.job.orders import ConvertOrder, Failure, Order, Outcome, Reporter, RunContext, SourceFile
from fwconvert.run.engines import carry_out
from fwconvert.run.engines.ray_connection import reason
from fwconvert.store import base, layout
from fwconvert.store.local import open_store

# How often a worker that waits for its source looks whether it is to stop.
_LOOK_SECONDS = 0.5
# A board that has not answered for this long is told again: perhaps the message was lost with it.
_SILENCE_SECONDS = 30.0
# What decides the tokens and the bytes, beside fwconvert itself.
_PACKAGES = ("gigatoken", "tiktoken", "regex", "zstandard")


def identity() -> str:
    """Return what must be the same on all machines: fwconvert, its very code, and what decides the tokens."""
    package, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(files.sha256_of(path).encode())
    versions = [f"{name} {_version(name)}" for name in ("fwconvert", *_PACKAGES)]
    return f"{versions[0]} (code {digest.hexdigest()[:12]}), {', '.join(versions[1:])}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


@dataclass(frozen=True)
class Session:
    """What a node must be able to do for a session: see its run and a source, and load its tokenizer."""

    context: RunContext
    encodes: bool
    # A file, or the address of a finished run in an object store.
    seen: Path | str | None


def look_around(wanted: str, session: Session | None) -> str:
    """Return what is wrong with the machine that this is called on; "" if nothing."""
    found = identity()
    if found != wanted:
        advice = "install the same fwconvert on all machines of the cluster, with the same packages"
        return message("it has another fwconvert than the driver", advice, driver=wanted, node=found)
    try:
        return "" if session is None else _problem(session)
    except (OutputError, UsageError) as error:  # Of a bucket too: no extra s3 there, or no credentials.
        return str(error)
    except Exception as error:  # noqa: BLE001  # whatever a vocabulary or its libraries raise
        name = "" if session is None else session.context.rules.tokenizer
        return message("it cannot load the tokenizer", tokenizer=name, reason=reason(error))


def _problem(session: Session) -> str:
    context = session.context
    store = open_store(context.run, context.session, context.scratch)
    try:
        sees_run = base.exists(store, layout.session(context.session))
    except OSError:
        sees_run = False
    if not sees_run:
        shared = "--out must be a folder that all machines share, under the same path"
        return message("it does not see the run that the driver sees", shared, out=context.run)
    if session.seen is not None and not _sees(session.seen, context.scratch):
        shared = "the files must be in a folder that all machines share, under the same path"
        return message("it does not see a file that it is to read", shared, file=session.seen)
    with store.draft("probe") as probe:
        probe.write(b"probe")
        probe.finish()
    if session.encodes:
        _load_tokenizer(context)
    return ""


def _sees(place: Path | str, scratch: str) -> bool:
    if isinstance(place, Path):
        return place.is_file()
    return base.exists(open_store(place, scratch=scratch), layout.MANIFEST)


def _load_tokenizer(context: RunContext) -> None:
    from fwconvert.tokens import registry  # noqa: PLC0415  # heavy: on the nodes only
    from fwconvert.tokens.spec import Loading  # noqa: PLC0415

    store = open_store(context.run, context.session, context.scratch)
    how = Loading(context.encoder, context.threads, store.local(layout.TEMPORARY))
    registry.load(registry.of_rules(context.rules), store.pull(layout.VOCABULARIES), how)


class Board:
    """Where workers say how far they are, and read whether to stop: an actor, which may die at any time."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[float, int, int | None]] = {}
        self._stop = False

    def say(self, number: int, fraction: float, tokens: int, memory: int | None) -> bool:
        """Take note of how far an order is; return whether to stop."""
        self._said[number] = fraction, tokens, memory
        return self._stop

    def read(self, *, stop: bool) -> dict[int, tuple[float, int, int | None]]:
        """Return what was said since this was last called; from now on workers are told whether to stop."""
        self._stop = stop
        said, self._said = self._said, {}
        return said


class BoardReporter:
    """Tells the board how far an order is, now and then. Never waits for it, and never fails with it."""

    def __init__(self, ray: Any, board: Any, number: int, seconds: float) -> None:
        self._ray, self._board, self._number, self._seconds = ray, board, number, seconds
        self._fraction, self._tokens = 0.0, 0
        self._answer: Any = None
        self._said_at = self._sent_at = -math.inf
        self._stop = False
        self._talking = threading.Lock()

    def show(self, done: int, total: int) -> None:
        """Keep how much of the order is done, for the next message."""
        self._fraction = done / max(1, total)

    def show_text(self, tokens: int, text_bytes: int) -> None:  # noqa: ARG002  # part of the protocol
        """Keep how many tokens the order has made so far, for the next message."""
        self._tokens = tokens

    def beat(self) -> None:
        """Say that the worker is alive, if it is time to."""
        if time.monotonic() - self._said_at >= self._seconds and self._talking.acquire(blocking=False):
            try:
                self._talk()
            except Exception:  # noqa: BLE001  # a board that is gone is no reason to stop working
                self._answer = None
            finally:
                self._said_at = time.monotonic()
                self._talking.release()

    def _talk(self) -> None:
        """Read the answer to the last message, if it is there, and send another; never two at a time."""
        if self._answer is not None:
            if not self._ray.wait([self._answer], timeout=0)[0]:
                if time.monotonic() - self._sent_at > _SILENCE_SECONDS:
                    self._answer = None
                return
            self._stop = self._stop or self._ray.get(self._answer)
        self._sent_at = time.monotonic()
        self._answer = self._board.say.remote(
            self._number, self._fraction, self._tokens, machine.resident_bytes()
        )

    def check(self) -> None:
        """Say that the worker is alive, if it is time to; raise Stopped if the board said so."""
        self.beat()
        if self._stop:
            raise Stopped("stopped by the user")


def carry_out_on_node(order: Order, board: Any, number: int, seconds: float, fetcher: Any) -> Outcome:
    """Carry out an order in a worker of Ray's; if `fetcher` is given, have it fetch the source first."""
    import ray  # noqa: PLC0415  # it is there: this is its process

    reporter = BoardReporter(ray, board, number, seconds)
    if fetcher is not None and isinstance(order, ConvertOrder):
        try:
            file = _fetched_here(ray, fetcher, order, reporter)
        except Stopped as error:
            return Failure("stopped", str(error))
        except ray.exceptions.RayError as error:
            return Failure("lost", message("the process that fetches sources died", reason=reason(error)))
        if isinstance(file, Failure):
            return replace(file, kind="job") if file.kind == "unfetched" else file
        order = replace(order, file=file)
    return carry_out(order, reporter)


def _fetched_here(ray: Any, fetcher: Any, order: ConvertOrder, reporter: Reporter) -> "SourceFile | Failure":
    coming = fetcher.have.remote(order)
    while not ray.wait([coming], timeout=_LOOK_SECONDS)[0]:
        reporter.check()
    file: SourceFile | Failure = ray.get(coming)
    return file
