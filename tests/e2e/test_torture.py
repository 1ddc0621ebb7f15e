"""A sample of scripts/torture: it finds nothing wrong with us, and its controls show that it would."""

import os
import subprocess
import sys

import pytest
from runner import REPOSITORY

if sys.platform != "linux":
    pytest.skip("it forks, mounts and reads /proc", allow_module_level=True)

pytestmark = pytest.mark.xdist_group("torture")

ROWS = [
    "SIGKILL at a call",
    "SIGKILL, and again while resuming",
    "a call fails (ENOSPC, EIO, …)",
    "power cut on ext4 at a call",
    "power cut on xfs at a call",
    "a disk too small",
    "a source that ends its workers",
    "two sessions at once",
    "deaths at random, 4 sessions",
    "ranks: killed, failing, twice, in other worlds",
    "strace kills the spawned program",
    "a read of a source fails (strace)",
    "SIGKILL by the clock, spawned workers",
    "SIGKILL by the clock, 1,000 sources",
    "memory runs out (cgroup)",
    "a bucket: SIGKILL at a request",
    "a bucket: a request goes wrong",
    "a bucket: it is gone from a request on",
    "a bucket: and again while resuming",
]
CONTROLS = [
    "control: receipts before their files, in a bucket",
    "control: a rank's receipt before its shards, believed unseen",
    "control: no fsync, power cut on ext4",
    "control: no fsync, power cut on xfs",
]


@pytest.fixture(scope="module")
def table() -> dict[str, list[str]]:
    """Return the cells of each row: checks, faults, failed, seconds."""
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "torture", "--quick", "--most", "2", "--jobs", "1"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "scripts/lib")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [line.strip("|").split("|") for line in ended.stdout.splitlines() if line.startswith("|")]
    return {title.strip(): [cell.strip() for cell in cells] for title, *cells in rows}


@pytest.mark.parametrize("row", [*ROWS, *CONTROLS])
def test_a_sample_of_the_torture(row: str, table: dict[str, list[str]]) -> None:
    checks, _, failed, _ = table[row]
    if failed.startswith("skipped"):
        pytest.skip(failed)
    assert int(checks) > 0
    assert failed == ("1, as it must" if row in CONTROLS else "0")
