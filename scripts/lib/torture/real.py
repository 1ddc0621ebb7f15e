"""The program as users run it, spawned workers and all.

Killed by strace at a call, by the clock, and by the kernel when memory runs
out; reads that fail. Slow, so there are few of these. They check the quick way
of `torture.faults`: strace sits in the kernel's door and knows nothing of Python.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from torture.checks import lane
from torture.world import WORLDS, World, make_sources, members_of, tree, wait_for_end

_PATIENCE_SECONDS = 120
_CALLS = ("openat", "write", "fsync", "rename", "unlink", "mkdir", "close")
_WORLD = World("real", 4, 12, (*WORLDS[0].options, "--stall-timeout", "60"))
_LONG_WORLD = World("long", 1000, 8, (*WORLDS[0].options, "--shard-tokens", "40000"))
_HUNGRY_WORLD = World("hungry", 4, 12, (*WORLDS[0].options, "--shard-tokens", "5000000"))
_CGROUP = Path("/sys/fs/cgroup/memory/fwconvert-torture")


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
    folders = ("", "temporary", "receipts", "tails", "sessions", "joins")
    touched = [out, *(out / ".fwconvert" / name for name in folders)]
    return _traced(f"{call}:signal=KILL:when={dice.randint(1, 12)}", touched, out)


def misread(number: int) -> list[str]:
    """Let the disk fail while a source is read."""
    dice = random.Random(number)
    out = lane() / "real-misread"
    sources, _ = _golden(_WORLD)
    call = ("pread64", "read", "openat", "fstat")[number % 4]
    return _traced(f"{call}:error=EIO:when={dice.randint(1, 6)}", [*sorted(sources.iterdir())], out)


def _traced(inject: str, touched: list[Path], out: Path) -> list[str]:
    """Run with a fault at a call that touches one of these, then again without."""
    words = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={inject}"]
    words += [word for path in touched for word in ("-P", str(path))]
    try:
        problems = _untidy(_run([*words, *_command(out)]))
        return [*problems, *_finish(out)]
    finally:
        shutil.rmtree(out, ignore_errors=True)


def chaos(seed: int) -> list[str]:
    """Kill the driver or a worker at some instant, three times; then let it finish."""
    dice = random.Random(seed)
    return _hunted(_WORLD, "chaos", [dice.uniform(0.3, 3.0) for _ in range(3)], dice)


def marathon(seed: int, kills: int) -> list[str]:
    """Kill somebody in a longer run, again and again; then let it finish."""
    dice = random.Random(seed)
    return _hunted(_LONG_WORLD, "marathon", [dice.uniform(0.5, 2.5) for _ in range(kills)], dice)


def _hunted(world: World, name: str, delays: list[float], dice: random.Random) -> list[str]:
    out = lane() / f"real-{name}"
    problems: list[str] = []
    driver = None
    try:
        for delay in delays:
            if driver is None or driver.poll() is not None:
                problems += _ended(driver)
                driver = subprocess.Popen(
                    _words(_golden(world)[0], out, world),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            time.sleep(delay)
            _kill_one(driver.pid, dice)
        return [*problems, *_ended(driver), *_finish(out, world)]
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _kill_one(driver: int, dice: random.Random) -> None:
    """Kill the driver or one of its workers."""
    # Not Python's resource tracker, which is neither and complains by itself.
    workers = [pid for pid in members_of(driver) if _is_worker(pid)]
    victim = driver if dice.random() < 0.5 else dice.choice([*workers, driver])
    if victim in members_of(driver):
        with suppress(ProcessLookupError):  # It has ended by itself just now.
            os.kill(victim, signal.SIGKILL)
        if victim == driver:  # Gone before anybody looks whether it is.
            wait_for_end(driver)


def _ended(driver: "subprocess.Popen[str] | None") -> list[str]:
    if driver is None:
        return []
    said, _ = driver.communicate(timeout=_PATIENCE_SECONDS)
    problems = [f"a traceback: {said[-2000:]}"] if "Traceback" in said else []
    return [*problems, "a process lived on"] if wait_for_end(driver.pid) else problems


def why_not_starve() -> str:
    """Return why the kernel cannot be made to run out of memory here, or nothing if it can."""
    try:
        _CGROUP.mkdir()
        _CGROUP.rmdir()
    except OSError as error:
        return f"no memory cgroup can be made ({error.strerror})"
    return ""


def starve(number: int) -> list[str]:
    """Let the kernel end the worker of one huge source because memory runs out: it alone is left out."""
    folder = Path(tempfile.mkdtemp(prefix="fwconvert-starve-"))  # Files in memory would count too.
    sources, out = make_sources(_HUNGRY_WORLD, folder / "sources"), folder / "out"
    huge = sources / f"{number % _HUNGRY_WORLD.files:03}.parquet"
    pq.write_table(pa.table({"text": ["x" * (80 + number) * 2**20]}), huge)
    cgroup = _CGROUP.with_name(f"{_CGROUP.name}-{folder.name}")
    try:
        cgroup.mkdir()
        (cgroup / "memory.limit_in_bytes").write_text(str(300 * 2**20))
        join = f'echo $$ > {cgroup}/cgroup.procs; exec "$@"'
        ended = _run(["sh", "-c", join, "sh", *_words(sources, out, _HUNGRY_WORLD)])
        return [*_untidy(ended), *_starved(cgroup, out, huge.name, ended), *_enough(sources, out)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        cgroup.rmdir()


def _starved(cgroup: Path, out: Path, huge: str, ended: "subprocess.CompletedProcess[str]") -> list[str]:
    killed = int((cgroup / "memory.oom_control").read_text().split("oom_kill ")[1])
    left_out = [path.name.partition("-")[0] for path in (out / ".fwconvert/quarantine").iterdir()]
    if killed and ended.returncode == 1 and left_out == [huge]:
        return []
    return [f"killed {killed}, exit {ended.returncode}, left out {left_out}: {ended.stdout[-300:]}"]


def _enough(sources: Path, out: Path) -> list[str]:
    """Give the same command again with memory enough; compare with a run that always had it."""
    again, undisturbed = _run(_words(sources, out, _HUNGRY_WORLD)), out.with_name("golden")
    wanted = _run(_words(sources, undisturbed, _HUNGRY_WORLD))
    if (again.returncode, wanted.returncode) != (0, 0):
        return [f"with memory enough: exit {again.returncode}: {again.stdout[-300:]}"]
    return [] if tree(out) == tree(undisturbed) else ["other bytes than the undisturbed run"]


def _is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@cache
def _golden(world: World) -> tuple[Path, dict[str, str]]:
    sources = make_sources(world, lane() / f"{world.name}-sources")
    out = lane() / f"{world.name}-golden"
    ended = _run(_words(sources, out, world))
    assert ended.returncode == 0, ended.stdout
    return sources, tree(out)


def _command(out: Path, world: World = _WORLD) -> list[str]:
    return _words(_golden(world)[0], out, world)


def _words(sources: Path, out: Path, world: World = _WORLD) -> list[str]:
    # The interpreter itself: strace would trace a script that only looks for it.
    interpreter = os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else sys.executable
    return [interpreter, "-m", "fwconvert", *world.command(sources, out)]


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


def _finish(out: Path, world: World = _WORLD) -> list[str]:
    ended = _run(_command(out, world))
    if ended.returncode != 0:
        return [f"the same command ends with {ended.returncode}: {ended.stdout[-500:]}"]
    problems = _untidy(ended)
    if tree(out) != _golden(world)[1]:
        problems.append("other bytes than the undisturbed run")
    checked = _run([*_words(out, out)[:3], "verify", str(out)])
    return problems if checked.returncode == 0 else [*problems, f"verify: {checked.stdout[-500:]}"]
