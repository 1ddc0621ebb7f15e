"""The program as users run it, spawned workers and all.

Killed by strace at a call, after a random time, and by the kernel when memory
runs out; reads that fail. Slow, so there are few of these. They validate the
fast method of `torture.faults`: strace works in the kernel, below Python.
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

from torture.checks import scratch
from torture.testbed import SCENARIOS, Scenario, make_sources, members_of, tree, wait_for_end

_PATIENCE_SECONDS = 120
# The interpreter itself: strace would trace a script that only looks for it.
_PYTHON = os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else sys.executable
_FWCONVERT = (_PYTHON, "-P", "-m", "fwconvert")
_CALLS = ("openat", "write", "fsync", "rename", "unlink", "mkdir", "close")
_SCENARIO = Scenario("real", 4, 12, (*SCENARIOS[0].options, "--stall-timeout", "60"))
_LONG_SCENARIO = Scenario("long", 1000, 8, (*SCENARIOS[0].options, "--shard-tokens", "40000"))
_HUNGRY_SCENARIO = Scenario("hungry", 4, 12, (*SCENARIOS[0].options, "--shard-tokens", "5000000"))
_CGROUP = Path("/sys/fs/cgroup/memory/fwconvert-torture")


def skip_reason() -> str:
    """Return why strace cannot be used here; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "strace is not permitted to trace"


def kill(number: int) -> list[str]:
    """Kill the driver or a worker at a call, whichever comes to it first."""
    rng = random.Random(number)
    call = _CALLS[number % len(_CALLS)]
    out = scratch() / "real-strace"
    folders = ("", "temporary", "receipts", "tails", "sessions", "joins")
    touched = [out, *(out / ".fwconvert" / name for name in folders)]
    return _traced(f"{call}:signal=KILL:when={rng.randint(1, 12)}", touched, out)


def fail_read(number: int) -> list[str]:
    """Fail a read of a source."""
    rng = random.Random(number)
    out = scratch() / "real-misread"
    sources, _ = _expected(_SCENARIO)
    call = ("pread64", "read", "openat", "fstat")[number % 4]
    return _traced(f"{call}:error=EIO:when={rng.randint(1, 6)}", [*sorted(sources.iterdir())], out)


def _traced(inject: str, touched: list[Path], out: Path) -> list[str]:
    """Run with a fault at a call that touches one of these paths, then again without."""
    words = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={inject}"]
    words += [word for path in touched for word in ("-P", str(path))]
    try:
        problems = _exit_problems(_run([*words, *_command(out)]))
        return [*problems, *_resume(out)]
    finally:
        shutil.rmtree(out, ignore_errors=True)


def random_kills(seed: int) -> list[str]:
    """Kill the driver or a worker after a random time, three times; then let the run finish."""
    rng = random.Random(seed)
    return _killed_at_random(_SCENARIO, "chaos", [rng.uniform(0.3, 3.0) for _ in range(3)], rng)


def many_kills(seed: int, kills: int) -> list[str]:
    """The same on a longer run, with many kills."""
    rng = random.Random(seed)
    return _killed_at_random(_LONG_SCENARIO, "marathon", [rng.uniform(0.5, 2.5) for _ in range(kills)], rng)


def _killed_at_random(scenario: Scenario, name: str, delays: list[float], rng: random.Random) -> list[str]:
    out = scratch() / f"real-{name}"
    problems: list[str] = []
    driver = None
    try:
        for delay in delays:
            if driver is None or driver.poll() is not None:
                problems += _ended(driver)
                driver = subprocess.Popen(
                    _words(_expected(scenario)[0], out, scenario),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            time.sleep(delay)
            _kill_one(driver.pid, rng)
        return [*problems, *_ended(driver), *_resume(out, scenario)]
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _kill_one(driver: int, rng: random.Random) -> None:
    """Kill the driver or one of its workers."""
    # Not Python's resource tracker, which is neither and complains by itself.
    workers = [pid for pid in members_of(driver) if _is_worker(pid)]
    victim = driver if rng.random() < 0.5 else rng.choice([*workers, driver])
    if victim in members_of(driver):
        with suppress(ProcessLookupError):  # It has just exited by itself.
            os.kill(victim, signal.SIGKILL)
        if victim == driver:  # Wait, so that poll() sees it.
            wait_for_end(driver)


def _ended(driver: "subprocess.Popen[str] | None") -> list[str]:
    if driver is None:
        return []
    said, _ = driver.communicate(timeout=_PATIENCE_SECONDS)
    problems = [f"a traceback: {said[-2000:]}"] if "Traceback" in said else []
    return [*problems, "a process survived"] if wait_for_end(driver.pid) else problems


def memory_skip_reason() -> str:
    """Return why memory cannot be limited here; empty if it can."""
    try:
        _CGROUP.mkdir()
        _CGROUP.rmdir()
    except OSError as error:
        return f"no memory cgroup can be made ({error.strerror})"
    return ""


def exhaust_memory(number: int) -> list[str]:
    """Let the kernel kill the worker of one huge source when memory runs out: it alone is quarantined."""
    folder = Path(tempfile.mkdtemp(prefix="fwconvert-starve-"))  # Files in memory would count too.
    sources, out = make_sources(_HUNGRY_SCENARIO, folder / "sources"), folder / "out"
    huge = sources / f"{number % _HUNGRY_SCENARIO.files:03}.parquet"
    pq.write_table(pa.table({"text": ["x" * (80 + number) * 2**20]}), huge)
    cgroup = _CGROUP.with_name(f"{_CGROUP.name}-{folder.name}")
    try:
        cgroup.mkdir()
        (cgroup / "memory.limit_in_bytes").write_text(str(300 * 2**20))
        join = f'echo $$ > {cgroup}/cgroup.procs; exec "$@"'
        result = _run(["sh", "-c", join, "sh", *_words(sources, out, _HUNGRY_SCENARIO)])
        return [
            *_exit_problems(result),
            *_oom_problems(cgroup, out, huge.name, result),
            *_resume_with_memory(sources, out),
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        cgroup.rmdir()


def _oom_problems(
    cgroup: Path, out: Path, huge: str, result: "subprocess.CompletedProcess[str]"
) -> list[str]:
    killed = int((cgroup / "memory.oom_control").read_text().split("oom_kill ")[1])
    quarantined = [path.name.partition("-")[0] for path in (out / ".fwconvert/quarantine").iterdir()]
    if killed and result.returncode == 1 and quarantined == [huge]:
        return []
    return [f"killed {killed}, exit {result.returncode}, quarantined {quarantined}: {result.stdout[-300:]}"]


def _resume_with_memory(sources: Path, out: Path) -> list[str]:
    """Run the same command again with enough memory; compare with a run that always had it."""
    again, undisturbed = _run(_words(sources, out, _HUNGRY_SCENARIO)), out.with_name("expected")
    wanted = _run(_words(sources, undisturbed, _HUNGRY_SCENARIO))
    if (again.returncode, wanted.returncode) != (0, 0):
        return [f"with enough memory: exit {again.returncode}: {again.stdout[-300:]}"]
    return [] if tree(out) == tree(undisturbed) else ["other bytes than the undisturbed run"]


def _is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@cache
def _expected(scenario: Scenario) -> tuple[Path, dict[str, str]]:
    sources = make_sources(scenario, scratch() / f"{scenario.name}-sources")
    out = scratch() / f"{scenario.name}-expected"
    result = _run(_words(sources, out, scenario))
    assert result.returncode == 0, result.stdout
    return sources, tree(out)


def _command(out: Path, scenario: Scenario = _SCENARIO) -> list[str]:
    return _words(_expected(scenario)[0], out, scenario)


def _words(sources: Path, out: Path, scenario: Scenario = _SCENARIO) -> list[str]:
    return [*_FWCONVERT, *scenario.command(sources, out)]


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


def _exit_problems(result: "subprocess.CompletedProcess[str]") -> list[str]:
    return [f"a traceback: {result.stdout[-500:]}"] if "Traceback" in result.stdout else []


def _resume(out: Path, scenario: Scenario = _SCENARIO) -> list[str]:
    result = _run(_command(out, scenario))
    if result.returncode != 0:
        return [f"the same command exits with {result.returncode}: {result.stdout[-500:]}"]
    problems = _exit_problems(result)
    if tree(out) != _expected(scenario)[1]:
        problems.append("other bytes than the undisturbed run")
    checked = _run([*_FWCONVERT, "verify", str(out)])
    return problems if checked.returncode == 0 else [*problems, f"verify: {checked.stdout[-500:]}"]
