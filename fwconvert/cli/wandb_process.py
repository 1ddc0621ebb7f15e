"""The process in which wandb lives: it logs what it is told, and the page at the end.

It tells the driver what people should know, and None when all is done. Whatever
wandb raises is told once; what it hangs in is the driver's to end.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from fwconvert import processes
from fwconvert.addresses import plain
from fwconvert.errors import FwconvertError, printable

# A service that cannot be reached by then is not waited for.
_INIT_SECONDS = 20.0


@dataclass(frozen=True)
class Session:
    """What wandb is told of a session when it begins."""

    project: str
    entity: str | None
    # The sessions of a run are a group.
    group: str
    name: str
    # The command.
    job_type: str
    config: Mapping[str, object]
    # Where the run lies; and whether its page is logged at the end.
    out: str
    has_page: bool


def serve(driver: Connection, session: Session) -> None:
    """Log what the driver tells until the end."""
    processes.prepare(os.devnull)
    _Logging(driver, session).carry_out()


class _Logging:
    def __init__(self, driver: Connection, session: Session) -> None:
        self._driver = driver
        self._session = session
        self._run: Any = None
        # Said already: a service that is gone fails at each point of a curve.
        self._failed: set[str] = set()

    def carry_out(self) -> None:
        self._try("it cannot be used", self._begin)
        kind = ""
        while kind != "end":
            kind, what = self._driver.recv()
            if self._run is None:
                continue
            if kind == "progress":
                self._try("progress cannot be logged", self._run.log, _flat(what))
            elif kind == "notice":
                self._try("notices cannot be logged", self._run.write_logs, what)
            else:
                self._end(what)
        self._driver.send(None)

    def _begin(self) -> None:
        import wandb  # noqa: PLC0415  # an extra, and slow to load

        session = self._session
        given: dict[str, Any] = {
            "project": session.project,
            "entity": session.entity,
            # As the user of wandb knows them, these win over what we would choose.
            "group": os.environ.get("WANDB_RUN_GROUP") or session.group,
            "name": os.environ.get("WANDB_NAME") or session.name,
            "job_type": os.environ.get("WANDB_JOB_TYPE") or session.job_type,
            "config": dict(session.config),
            "settings": wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                save_code=False,
                init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT") or _INIT_SECONDS),
            ),
        }
        try:
            self._run = wandb.init(**given)
        except Exception as error:  # noqa: BLE001  # no key, no network, no such project: all of theirs
            self._say(f"{_told(error)}; trying again, into a folder")
            self._run = wandb.init(**given, mode="offline")
        self._run.define_metric("*", step_metric="seconds")
        settings = self._run.settings
        if settings.mode == "disabled":
            return
        where = self._run.url if self._run.url and not self._run.offline else ""
        self._say(where or f"{settings.sync_dir}  (to send it: wandb sync {settings.sync_dir})")

    def _end(self, result: Mapping[str, object] | None) -> None:
        if result is not None:
            self._try("the result cannot be logged", self._run.summary.update, _flat(result))
        if self._session.has_page:
            self._try("the page cannot be logged", self._log_page)
        code = result["exit_code"] if result is not None else 1
        self._try("it cannot be ended", self._run.finish, code)

    def _log_page(self) -> None:
        import wandb  # noqa: PLC0415

        from fwconvert.page import facts, render  # noqa: PLC0415  # loads numpy, jinja2 and tokenizers

        try:
            html = render.render(facts.gather(self._session.out)).html
        except FwconvertError:  # Nothing is there yet of which there could be a page.
            return
        page = wandb.Artifact(f"{self._session.group}-page", "page")
        with page.new_file("page.html", encoding="utf-8") as file:
            file.write(html)
        self._run.log_artifact(page)

    def _try(self, what: str, call: Callable[..., object], *given: object) -> None:
        try:
            call(*given)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is not the run's
            if what not in self._failed:
                self._failed.add(what)
                self._say(f"{what}: {_told(error)}; the run goes on")

    def _say(self, text: str) -> None:
        with suppress(OSError):
            self._driver.send(text)


def _told(error: BaseException) -> str:
    text = printable(plain(error)).strip().split("\n")[0][:500]
    return f"{type(error).__name__}: {text}"


def _flat(said: Mapping[str, object]) -> dict[str, object]:
    """Return what a curve or a table can show: lists by their length, groups as name/name, and no None."""
    flat: dict[str, object] = {}
    for name, value in said.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}/{inner}": number for inner, number in value.items()})
        elif isinstance(value, list | tuple):
            flat[name] = len(value)
        elif value is not None:
            flat[name] = value
    return flat
