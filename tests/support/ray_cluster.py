"""A Ray cluster of several nodes on this machine, and what its workers look like from outside.

Each node is a `ray start` of its own, in a session of its own, so that it can be killed as a machine dies:
all at once. Ray itself is never loaded here; programs of their own connect to the cluster.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import runner
from source_gates import Gates

# A node that is silent is lost after eight seconds, and not after a minute as in the world; after fewer, one
# of a busy machine would be.
_HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 8,
}
_ENVIRONMENT = {
    "RAY_ADDRESS": "",
    # Ray's workers are nice to all others; beside other tests they would hardly run.
    "RAY_worker_niceness": "0",
}
_STARTS = 3
# Between two looks at all processes of the machine, each of which costs milliseconds.
PAUSE = 0.03
_RAY = [sys.executable, "-m", "ray.scripts.scripts"]


@dataclass
class Node:
    """One `ray start`."""

    process: "subprocess.Popen[str]"

    def members(self) -> list[psutil.Process]:
        """Return its processes: the raylet, its agents, its workers."""
        return runner.members(self.process.pid)

    def workers(self, title: str) -> list[psutil.Process]:
        """Return its workers that are at something whose title has this in it: a source, or an actor."""
        found = []
        for process in self.members():
            with suppress(psutil.Error):
                words = process.cmdline()
                if words and words[0].startswith("ray::") and title in words[0]:
                    found.append(process)
        return found

    def holds(self, gates: Gates) -> bool:
        """Tell whether one of its workers waits at a source."""
        return any(member.pid in gates.held() for member in self.members())

    def kill(self) -> None:
        """Let it be gone as a machine is that loses power."""
        for member in self.members():
            with suppress(psutil.NoSuchProcess):
                member.suspend()  # Nobody of them is to notice that another is gone.
        runner.kill_all(self.process.pid)
        self.process.wait(runner.PATIENCE)


@dataclass
class RayCluster:
    """A head and any number of other nodes."""

    folder: Path
    gates: Gates
    host: str = "127.0.0.1"
    # Variables of all nodes.
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    address: str = ""

    def start_head(self, cpus: int) -> None:
        """Start the node that all others, and programs, connect to."""
        text = self._start(
            [*_RAY, "start", "--head", "--port=0", "--include-dashboard=false"],
            cpus,
            self.host,
            f"--system-config={json.dumps(_HEALTH)}",
            f"--temp-dir={self.folder}",
        )
        # For 127.0.0.1 Ray takes the machine's own address, if it has one.
        found = re.search(r"--address='([^']+:\d+)'", text)
        assert found is not None, text
        self.address = found[1]

    def add_node(self, cpus: int = 1, *, host: str | None = None, within: Sequence[str] = ()) -> Node:
        """Start another node, within the words of another command (`unshare -m`) if there are any."""
        self._start([*within, *_RAY, "start", f"--address={self.address}"], cpus, host or self.host)
        return self.nodes[-1]

    def _start(self, words: Sequence[str], cpus: int, host: str, *more: str) -> str:
        words = [*words, f"--num-cpus={cpus}", f"--node-ip-address={host}", *more]
        words += ["--object-store-memory=100000000", "--disable-usage-stats", "--block"]
        log = self.folder / f"node-{len(self.nodes)}.log"
        # On a busy machine Ray may give up its own start, after half a minute that cannot be set.
        for _ in range(_STARTS):
            with log.open("w") as file:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                    env={**os.environ, **_ENVIRONMENT, **self.gates.environment, **self.environment},
                )
            self.nodes.append(Node(process))
            _put_first(process.pid)
            runner.wait_until(lambda: "block forever" in log.read_text(), process, PAUSE)
            if process.poll() is None:
                return log.read_text()
            self.nodes.pop().kill()
        raise AssertionError(log.read_text())

    @property
    def alive(self) -> list[Node]:
        """The nodes that are there, the head first."""
        return [node for node in self.nodes if node.process.poll() is None]

    def processes(self, title: str) -> list[psutil.Process]:
        """Return the workers of all nodes that are at something of this title.

        Only this cluster's: another may be at work on the machine, on sources of the same names.
        """
        found = []
        for node in self.alive:
            found += node.workers(title)
        return found

    def wait_for(self, title: str, program: "subprocess.Popen[str]") -> list[psutil.Process]:
        """Wait until a worker is at something of this title; the program must not end before."""
        found: list[psutil.Process] = []

        def look() -> bool:
            found[:] = self.processes(title)
            return bool(found)

        runner.wait_until(look, program, PAUSE)
        assert found, f"it ended too early\n{runner.finish(program)}"
        return found

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.kill()


def _put_first(session: int) -> None:
    """Let the processes of a session run before others, where that may be said: Linux is fair to sessions."""
    with suppress(OSError):
        Path(f"/proc/{session}/autogroup").write_text("-10")


@contextmanager
def cluster(
    *, nodes: int, host: str = "127.0.0.1", environment: Mapping[str, str] | None = None
) -> Iterator[RayCluster]:
    """Have a cluster of so many nodes of one core each, and nothing of it after the block."""
    # Paths of sockets are in it, which may not be long.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        made = RayCluster(Path(folder), Gates(Path(folder, "gates")), host, environment or {})
        try:
            made.start_head(cpus=1)
            for _ in range(nodes - 1):
                made.add_node()
            yield made
        finally:
            made.stop()


def until(true: Callable[[], object], seconds: float = runner.PATIENCE) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(PAUSE)


def kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)
