"""The same conversion, from a hub that limits its connections, by each engine with as many cores.

Ray gets two nodes on this machine, each with half of the cores; all that is
measured includes the start of the program, its connection to the cluster and the checks of
the nodes, which cost the same few seconds however much is converted.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import util
from pathlib import Path

from bench.measure import BenchError, Measure, log, run
from bench.network import CONVERT, Network, hub, repository_of, settings_for
from bench.rows import Setup, fresh

_START_SECONDS = 120.0
_NODES = 2


def measure_ray(setup: Setup, network: Network, rounds: int) -> list[tuple[str, Measure]]:
    """Return the best round of each engine."""
    repository, pinned = repository_of(setup)
    scratch = ["--scratch", str(setup.work / "scratch")]
    best: dict[str, Measure] = {}
    with hub(repository, network) as endpoint, _clusters(setup) as address:
        words = [*CONVERT, "--out", str(setup.out), "--version", str(pinned), *setup.options(setup.cores)]
        convert = [*settings_for(setup, endpoint), *words, *scratch]
        ways = {f"local, {setup.cores} workers": convert}
        if address:
            title = f"Ray, {_NODES} nodes of {setup.cores // _NODES or 1} cores"
            ways[title] = [*convert, "--engine", "ray", "--ray-address", address]
        for number in range(1, rounds + 1):
            for title, command in ways.items():
                with fresh(setup.out):
                    took = run(command, setup.work)
                log(f"  round {number}: {took.seconds:7.2f} s  {title}")
                if title not in best or took.seconds < best[title].seconds:
                    best[title] = took
    return list(best.items())


@contextmanager
def _clusters(setup: Setup) -> Iterator[str]:
    """Have a Ray cluster during the block, if Ray is installed; yield its address, or ""."""
    if util.find_spec("ray") is None:
        log("  Ray is not installed: pip install 'fwconvert[ray]'")
        yield ""
        return
    started: list[subprocess.Popen[bytes]] = []
    # Paths of sockets are in it, which may not be long.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        try:
            cpus = max(1, setup.cores // _NODES)
            head = ["--head", "--port=0", "--include-dashboard=false", f"--temp-dir={folder}"]
            said = _start(started, Path(folder), head, cpus)
            found = re.search(r"--address='([^']+:\d+)'", said)
            if found is None:
                raise BenchError(f"Ray does not start:\n{said}")
            for _ in range(_NODES - 1):
                _start(started, Path(folder), [f"--address={found[1]}"], cpus)
            yield found[1]
        finally:
            for process in started:  # A gentle end takes Ray half a minute, and nothing is to be kept.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _start(started: "list[subprocess.Popen[bytes]]", folder: Path, words: list[str], cpus: int) -> str:
    """Start a node; return what it said when it was ready."""
    log_file = folder / f"node-{len(started)}.log"
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", *words]
    command += [f"--num-cpus={cpus}", "--disable-usage-stats", "--object-store-memory=100000000", "--block"]
    with log_file.open("wb") as file:
        started.append(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
    deadline = time.monotonic() + _START_SECONDS
    while "block forever" not in (said := log_file.read_text("utf-8")):
        if started[-1].poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"Ray does not start:\n{said}")
        time.sleep(0.1)
    return said
