"""A Slurm cluster on this machine: its controller and two nodes, from the packages of the distribution.

Everything lies in one folder, with a key and sockets of its own, so it does not meet a Slurm that is
installed here. The nodes say that they have 64 cores each, because the script that is shipped asks for them.
"""

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
_PATIENCE = 300

_CONFIGURATION = """\
ClusterName=here
SlurmctldHost=localhost
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={ports[0]}
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
SlurmdParameters=config_overrides
SlurmctldTimeout=30
SlurmdTimeout=30
MinJobAge=3600
KillWait=5
ReturnToService=2
JobRequeue=1
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=one NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=64 RealMemory=200000 State=UNKNOWN
NodeName=two NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=64 RealMemory=200000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Return why no cluster can be started here, or "" if one can."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]
    if missing:
        packages = "slurmctld slurmd slurm-client munge"
        return f"Slurm is not installed ({', '.join(missing)}): apt-get install {packages}"
    return "" if os.geteuid() == 0 else "Slurm's programs need root"


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs."""

    folder: Path
    environment: Mapping[str, str]

    def call(self, *words: str, cwd: Path | None = None, **variables: str) -> str:
        """Run one of Slurm's commands, or the script; return what it says. It must not fail."""
        ended = subprocess.run(
            words,
            capture_output=True,
            text=True,
            env={**self.environment, **variables},
            cwd=cwd or self.folder,
            timeout=_PATIENCE,
            check=False,
        )
        assert ended.returncode == 0, f"{words}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout.strip()

    def states(self, job: str) -> dict[str, str]:
        """Return the state of a job, or of the tasks of an array, by their numbers."""
        lines = self.call("scontrol", "--oneliner", "show", "job", job).splitlines()
        fields = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
        return {one.get("ArrayTaskId", ""): one["JobState"] for one in fields}

    def wait_for(self, job: str, *states: str) -> None:
        """Wait until all tasks of a job are in one of these states."""
        deadline = time.monotonic() + _PATIENCE
        while not set(found := self.states(job).values()) <= set(states):
            assert time.monotonic() < deadline, (found, self.logs())
            time.sleep(0.3)

    def logs(self) -> str:
        """Return the ends of all logs, for whoever has to find out what went wrong."""
        found = [*self.folder.glob("*.log")]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in found)


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Have a cluster during the block."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    key, configuration = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    (folder / "state").mkdir()
    configuration.write_text(_CONFIGURATION.format(folder=folder, ports=_free_ports(3)))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))
    }
    environment |= {"SLURM_CONF": str(configuration), "PATH": _path()}
    with ExitStack() as stack:
        for words in (
            _munged(folder, key),
            ["slurmctld", "-D"],
            ["slurmd", "-D", "-N", "one"],
            ["slurmd", "-D", "-N", "two"],
        ):
            log = stack.enter_context(
                (folder / f"{words[0]}-{words[-1].rpartition('/')[2]}.out.log").open("wb")
            )
            process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, cwd=folder)
            stack.callback(_end, process)
        cluster = Cluster(folder, environment)
        _wait_for_nodes(cluster)
        try:
            yield cluster
        finally:
            subprocess.run(
                ["scancel", "--full", "-u", "root"], env=environment, check=False, timeout=_PATIENCE
            )


def _munged(folder: Path, key: Path) -> list[str]:
    places = {
        "key-file": key.name,
        "socket": "munge.socket",
        "pid-file": "munge.pid",
        "log-file": "munge.log",
        "seed-file": "munge.seed",
    }
    return [
        "munged",
        "--foreground",
        "--force",
        *(f"--{name}={folder / place}" for name, place in places.items()),
    ]


def _wait_for_nodes(cluster: Cluster) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        ended = subprocess.run(
            ["sinfo", "--Node", "--noheader", "--format=%N %t"],
            env=dict(cluster.environment), capture_output=True, text=True, timeout=_PATIENCE, check=False,
        )  # fmt: skip
        if sorted(ended.stdout.split()) == ["idle", "idle", "one", "two"]:
            return
        assert time.monotonic() < deadline, (ended.stdout, ended.stderr, cluster.logs())
        time.sleep(0.3)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
