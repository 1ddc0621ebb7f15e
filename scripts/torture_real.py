"""The program as users run it, spawned workers and all: killed by strace at a call, and by the clock.

Slow, so there are few of these. They check the quick way of `torture_faults`:
strace sits in the kernel's door and knows nothing of Python.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import torture_world
from torture_checks import lane
from torture_world import WORLDS, World, make_sources, tree

_PATIENCE_SECONDS = 120
_CALLS = ("openat", "write", "fsync", "rename", "unlink", "mkdir", "close")
_WORLD = World("real", 4, 12, (*WORLDS[0].options, "--stall-timeout", "60"))


def why_not() -> str:
    """Return why strace cannot be used here, or nothing if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "strace may not trace here"


def kill(number: int) -> list[str]:
    """Die at a call, driver or worker, whichever comes to it first."""
    dice = random.Random(number)
    call = _CALLS[number % len(_CALLS)]
    out = lane() / "real-strace"
    private = f"{out}/"
    inject = f"inject={call}:signal=KILL:when={dice.randint(1, 12)}"
    words = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-P",
        str(out),
        "-P",
        f"{out}/.fwconvert",
        "-e",
        inject,
    ]
    folders = ("temporary", "receipts", "tails", "sessions", "joins")
    words += [word for name in folders for word in ("-P", f"{private}.fwconvert/{name}")]
    try:
        problems = _untidy(_run([*words, *_command(out)]))
        return [*problems, *_finish(out)]
    finally:
        shutil.rmtree(out, ignore_errors=True)


def chaos(seed: int) -> list[str]:
    """Kill the driver or a worker at some instant, three times; then let it finish."""
    dice = random.Random(seed)
    out = lane() / "real-chaos"
    problems: list[str] = []
    try:
        for _ in range(3):
            driver = subprocess.Popen(
                _command(out),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            time.sleep(dice.uniform(0.3, 3.0))
            # Not Python's resource tracker, which is neither and complains by itself.
            members = [pid for pid in torture_world.members_of(driver.pid) if _is_worker(pid)]
            victim = driver.pid if dice.random() < 0.5 else dice.choice([*members, driver.pid])
            if driver.poll() is None and victim in torture_world.members_of(driver.pid):
                os.kill(victim, signal.SIGKILL)
            said, _ = driver.communicate(timeout=_PATIENCE_SECONDS)
            problems += ["a traceback"] if "Traceback" in said else []
            problems += ["a process lived on"] if torture_world.wait_for_end(driver.pid) else []
        return [*problems, *_finish(out)]
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@cache
def _golden() -> tuple[Path, dict[str, str]]:
    sources = make_sources(_WORLD, lane() / "real-sources")
    out = lane() / "real-golden"
    ended = _run(_words(sources, out))
    assert ended.returncode == 0, ended.stdout
    return sources, tree(out)


def _command(out: Path) -> list[str]:
    return _words(_golden()[0], out)


def _words(sources: Path, out: Path) -> list[str]:
    # The interpreter itself: strace would trace a script that only looks for it.
    interpreter = os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else sys.executable
    return [interpreter, "-m", "fwconvert", *_WORLD.command(sources, out)]


def _run(words: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
        start_new_session=True,
    )


def _untidy(ended: "subprocess.CompletedProcess[str]") -> list[str]:
    return [f"a traceback: {ended.stdout[-500:]}"] if "Traceback" in ended.stdout else []


def _finish(out: Path) -> list[str]:
    ended = _run(_command(out))
    if ended.returncode != 0:
        return [f"the same command ends with {ended.returncode}: {ended.stdout[-500:]}"]
    problems = _untidy(ended)
    if tree(out) != _golden()[1]:
        problems.append("other bytes than the undisturbed run")
    checked = _run([*_words(out, out)[:3], "verify", str(out)])
    return problems if checked.returncode == 0 else [*problems, f"verify: {checked.stdout[-500:]}"]
