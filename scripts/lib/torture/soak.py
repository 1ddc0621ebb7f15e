"""A long run over many sources: memory, open files and the driver's CPU time must not grow with their number.

scripts/torture soak --sources 5000
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torture.testbed import members_of

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")
_EVERY_SECONDS = 0.5
_DIFFERENT = 20


@dataclass(frozen=True)
class Sample:
    """The state of a process at one moment."""

    done: int
    bytes: int
    files: int
    user: float
    kernel: float


def main() -> int:
    """Convert, sample the processes, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--sources", metavar="N", type=int, default=5000, help="default: 5000")
    parser.add_argument(
        "--kilobytes", metavar="N", type=int, default=500, help="of text in each (default: 500)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fwconvert-soak-") as folder:
        sources = _make(Path(folder) / "sources", given.sources, given.kilobytes)
        started = time.monotonic()
        seen = _watch(sources, Path(folder) / "out")
        print(_table(seen, given.sources, time.monotonic() - started))
    return 0


def _make(folder: Path, count: int, kilobytes: int) -> Path:
    """Write a few different sources, and link them under as many names as are wanted."""
    folder.mkdir()
    random = np.random.Generator(np.random.PCG64(1))
    for number in range(count):
        path = folder / f"{number:05}.parquet"
        if number >= _DIFFERENT:
            path.hardlink_to(folder / f"{number % _DIFFERENT:05}.parquet")
            continue
        letters = random.integers(97, 123, (max(1, kilobytes // 2), 2000), np.uint8)
        pq.write_table(pa.table({"text": [row.tobytes().decode() for row in letters]}), path)
    return folder


def _watch(sources: Path, out: Path) -> dict[str, list[Sample]]:
    words = ["--source", str(sources), "--out", str(out), "--tokenizer", "bytes", "--shard-tokens", "1000000"]
    driver = subprocess.Popen(
        [sys.executable, "-m", "fwconvert", *words, "--workers", "2", "--quiet"], start_new_session=True
    )
    seen: dict[str, list[Sample]] = {"driver": [], "worker": []}
    while driver.poll() is None:
        receipts = out / ".fwconvert/receipts"
        done = sum(1 for _ in os.scandir(receipts)) if receipts.is_dir() else 0
        for pid in members_of(driver.pid):
            try:
                if pid == driver.pid:
                    seen["driver"].append(_look(pid, done))
                elif b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    seen["worker"].append(_look(pid, done))
            except (OSError, IndexError):  # It has just exited.
                continue
        time.sleep(_EVERY_SECONDS)
    if driver.returncode:
        raise SystemExit(f"the run failed with exit code {driver.returncode}")
    return seen


def _look(pid: int, done: int) -> Sample:
    proc = Path(f"/proc/{pid}")
    stat = (proc / "stat").read_text().rpartition(")")[2].split()
    size = int((proc / "statm").read_text().split()[1]) * _PAGE
    return Sample(done, size, len([*(proc / "fd").iterdir()]), int(stat[11]) / _TICK, int(stat[12]) / _TICK)


def _table(seen: dict[str, list[Sample]], count: int, seconds: float) -> str:
    lines = [
        "| process | MB at a tenth | MB at the end | MB per 1,000 sources | open files, first and last |"
    ]
    lines.append("|---|--:|--:|--:|--:|")
    for name, samples in seen.items():
        steady = [sample for sample in samples if count / 10 <= sample.done < count]
        done = np.array([sample.done for sample in steady])
        sizes = np.array([sample.bytes / 1e6 for sample in steady])
        slope = np.polyfit(done / 1000, sizes, 1)[0]
        files = f"{steady[0].files}, {steady[-1].files}"
        lines.append(f"| {name} | {sizes[0]:.0f} | {sizes[-1]:.0f} | {slope:+.2f} | {files} |")
    last = seen["driver"][-1]
    cpu = last.user + last.kernel
    share = cpu / seconds
    lines += [
        "",
        f"The run took {seconds:.0f} s, {count / seconds:.0f} sources a second.",
        f"The driver used {cpu:.1f} s of CPU, {last.kernel:.1f} s of it in the kernel,",
        f"{cpu / count * 1000:.2f} s for 1,000 sources:",
        f"{share:.1%} of a core, {share / count * 1000:.2%} per 1,000 sources.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
