"""An observer that shows a session to Weights & Biases, too, and passes everything on.

wandb lives in a process of its own (`wandb_process`), and nothing here waits for
it: what it does not take in time is dropped. So whatever happens to it, to its
service or to the network costs a notice, and at the end a bounded wait.
"""

import hashlib
import queue
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from fwconvert import processes, records
from fwconvert.addresses import plain
from fwconvert.cli.progress import facts
from fwconvert.cli.screen import Clock
from fwconvert.cli.wandb_process import Session, serve
from fwconvert.errors import printable
from fwconvert.processes import NO_START, ended_by
from fwconvert.recipes import Recipe
from fwconvert.run.events import Observer, Snapshot, StopSwitch
from fwconvert.run.outlook import Outlook
from fwconvert.store.bucket import absolute

# Between two points of a curve: a part of the time so far, within these bounds.
_SHARE = 1 / 60
_SHORTEST_SECONDS, _LONGEST_SECONDS = 1.0, 15.0
# What may wait for the process.
_MOST_WAITING = 100
_MOST_NOTICE = 2000
# How long the end of a run waits for the page to be taken, and before it says so.
_PATIENCE_SECONDS = 60.0
_QUIET_SECONDS = 3.0
_GONE_SECONDS = 5.0
_NAME = "Weights & Biases"


def session(project: str, command: str, out: Path | str, recipe: Recipe, rank: str = "") -> Session:
    """Return what wandb is told of the session of a command; `rank` is "3 of 16".

    Each is a run of wandb, and those on one folder are a group. One run that is continued could not be
    written by ranks that work at the same time, nor without a network.
    """
    entity, _, name = project.rpartition("/")
    place = plain(str(absolute(out)))
    folder = printable(place.rstrip("/").rpartition("/")[2])[:60] or "run"
    config = {
        "out": place,
        "dataset": recipe.source.dataset,
        "version": recipe.source.name,
        "files": len(recipe.source.files),
        **records.as_builtin(recipe.rules),
    }
    title = f"{folder}-{time.strftime('%Y%m%d-%H%M%S')}"
    if rank:
        config["rank"] = rank
        title += f"-rank-{rank.replace(' ', '-')}"
    return Session(
        project=name,
        entity=entity or None,
        group=f"{folder}-{hashlib.sha256(place.encode()).hexdigest()[:6]}",
        name=title,
        job_type=command,
        config=config,
        out=str(absolute(out)),
        # A thousand ranks would log the page of the same run.
        has_page=not rank,
    )


class WandbObserver:
    """Shows a session to Weights & Biases (see events.Observer), during a `with` block.

    At the end of the block it waits for the process to hand over what it has, until a
    minute is over or `stop` is asked.
    """

    def __init__(
        self, session: Session, observer: Observer, stop: StopSwitch, clock: Clock = time.monotonic
    ) -> None:
        self._session = session
        self._observer = observer
        self._stop = stop
        self._clock = clock
        self._outlook = Outlook()
        self._snapshot: Snapshot | None = None
        self._due = 0.0
        self._process: BaseProcess | None = None
        self._told: Connection | None = None
        self._waiting: queue.Queue[tuple[str, Any]] = queue.Queue(_MOST_WAITING)
        self._is_over = False
        self._result: Mapping[str, object] | None = None

    def __enter__(self) -> Self:
        try:
            ours, theirs = processes.SPAWN.Pipe()
            with theirs:
                self._process = processes.start_apart(serve, theirs, self._session)
            self._told = ours
            threading.Thread(target=self._hand_over, args=[ours], name="wandb", daemon=True).start()
        except NO_START as error:
            self._give_up(f"its process cannot be started: {plain(error)}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._snapshot is not None:
            self._tell("progress", facts(self._snapshot, self._outlook))
        # Always the last word, so older ones must make room.
        while not self._tell("end", self._result):
            with suppress(queue.Empty):
                self._waiting.get_nowait()
        self._wait()
        if self._process is not None:
            self._process.kill()
            self._process.join(_GONE_SECONDS)
        if self._told is not None:
            with suppress(OSError):
                self._told.close()

    def notice(self, text: str) -> None:
        """Log a notice, and pass it on."""
        self._tell("notice", printable(plain(text))[:_MOST_NOTICE])
        self._observer.notice(text)

    def update(self, snapshot: Snapshot) -> None:
        """Log how far the run is, if it is time; pass it on."""
        before, self._snapshot = self._snapshot, snapshot
        now = self._clock()
        self._outlook.see(snapshot, now)
        if before is None or before.phase != snapshot.phase or now >= self._due:
            passed = _SHARE * self._outlook.seconds
            self._due = now + min(_LONGEST_SECONDS, max(_SHORTEST_SECONDS, passed))
            self._tell("progress", facts(snapshot, self._outlook))
        self._listen()
        self._observer.update(snapshot)

    def log_result(self, facts: Mapping[str, object]) -> None:
        """Log at the end what came of the session."""
        self._result = facts

    def _tell(self, kind: str, what: object) -> bool:
        """Have something handed over, if there is room; return whether there was."""
        try:
            self._waiting.put_nowait((kind, what))
        except queue.Full:
            return False
        return True

    def _hand_over(self, to: Connection) -> None:
        """Hand over what waits: the thread that the process may hold up."""
        with suppress(OSError, ValueError):
            kind = ""
            while kind != "end":
                kind, what = self._waiting.get()
                to.send((kind, what))

    def _listen(self, seconds: float = 0.0) -> None:
        """Pass on what the process has to say."""
        while not self._is_over and self._told is not None:
            try:
                if not self._told.poll(seconds):
                    return
                said = self._told.recv()
            except (OSError, EOFError):
                self._give_up(self._how_it_ended())
                return
            if said is None:
                self._is_over = True
            else:
                self._observer.notice(f"{_NAME}: {said}")

    def _how_it_ended(self) -> str:
        assert self._process is not None  # noqa: S101  # for mypy
        self._process.join(_GONE_SECONDS)
        return f"its process was ended by {ended_by(self._process.exitcode)}"

    def _give_up(self, why: str) -> None:
        self._is_over = True
        self._observer.notice(f"{_NAME}: {why}; the run goes on without it")

    def _wait(self) -> None:
        """Wait until the process has handed over all that it has; give up in time."""
        begun, has_said, asked = self._clock(), False, self._stop.asked
        while not self._is_over:
            waited = self._clock() - begun
            # Who has stopped the run need not stop this as well.
            if waited > (_PATIENCE_SECONDS if not asked else _GONE_SECONDS) or self._stop.asked > asked:
                self._give_up("it has not taken everything in time")
            elif waited > _QUIET_SECONDS and not has_said:
                has_said = True
                most = f"at most {_PATIENCE_SECONDS:.0f} s; Ctrl-C goes on without"
                self._observer.notice(f"{_NAME}: waiting until it has everything, {most}")
            self._listen(0.1)
