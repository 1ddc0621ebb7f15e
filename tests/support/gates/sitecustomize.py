"""What befalls a process when it opens a source: Python loads this at its start, where it is on the path.

`source_gates.Gates` makes the files that are looked for here. So what a test does to a worker happens while
it is at that source, however busy the machine is: nobody has to look for it, and none is found too late.
"""

import os
import signal
import sys
import time
from pathlib import Path

_LOOK_SECONDS = 0.01
_SLOW_SECONDS = 1.0

_folder = Path(os.environ["FWCONVERT_TESTS_GATES"])


def _at_open(event: str, given: tuple[object, ...]) -> None:
    if event != "open" or not isinstance(given[0], (str, os.PathLike)):
        return
    name = os.path.basename(os.fspath(given[0]))  # noqa: PTH119  # called for every file that is opened
    if ".parquet" not in name or _folder in Path(given[0]).parents:
        return
    if name.endswith(".parquet"):
        _at_source(name)
    else:  # {session}.{source}-...: a draft of what is made of a source.
        _at_draft(f"{name.partition('.')[2].partition('.parquet')[0]}.parquet")


def _at_source(name: str) -> None:
    _hold(name, _folder / f"{name}.hold")
    if (_folder / f"{name}.die").exists():
        _die(name)
    try:
        (_folder / f"{name}.die-once").unlink()
    except FileNotFoundError:
        return
    _die(name)


def _hold(name: str, gate: Path) -> None:
    if gate.exists():
        (_folder / f"{name}.held-by-{os.getpid()}").touch()
        while gate.exists():
            time.sleep(_LOOK_SECONDS)


def _at_draft(name: str) -> None:
    _hold(name, _folder / f"{name}.hold-draft")
    gate, deadline = _folder / f"{name}.slow", time.monotonic() + _SLOW_SECONDS
    while gate.exists() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def _die(name: str) -> None:
    (_folder / f"{name}.died-{os.getpid()}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


sys.addaudithook(_at_open)
