"""Run the real program where somebody means ill, and hold it to its bounds.

The driver may take 500 MB at the most, must end by itself within the seconds
that a test gives it, and says what is wrong without a traceback.
"""

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import forked
import psutil
import runner

MOST_BYTES = 500 * 10**6
# Over the patience that a test gives to the program: starting it takes seconds on a busy machine.
SPARE_SECONDS = 60.0


@dataclass(frozen=True)
class Ended:
    """How the program ended, what it said, and the most memory that its driver had."""

    code: int
    stdout: str
    stderr: str
    most_bytes: int
    seconds: float

    @property
    def said(self) -> str:
        """All that a person sees."""
        return self.stdout + self.stderr


def run(
    *words: object, env: dict[str, str] | None = None, seconds: float = SPARE_SECONDS, **how: Any
) -> Ended:
    """Run the program with these words; fail if it exceeds its memory or its time, or shows a traceback.

    `how` is as for subprocess.Popen.
    """
    return run_line([sys.executable, "-m", "fwconvert", *map(str, words)], env, seconds, **how)


def run_line(
    line: list[str],
    env: dict[str, str] | None = None,
    seconds: float = SPARE_SECONDS,
    **how: Any,
) -> Ended:
    """Run a command line of its own; fail as `run` does."""
    begun = time.monotonic()
    process = forked.start(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**(os.environ if env is None else env), "PYTHONPATH": str(runner.REPOSITORY)},
        **how,
    )
    watch = _Watch(process)
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"still at work after {seconds:.0f} s: {' '.join(line)}") from None
    finally:
        runner.kill_all(process.pid)
        process.kill()
        process.communicate()  # After a timeout its pipes are still open.
        watch.join()
    ended = Ended(process.returncode, out, err, watch.most_bytes, time.monotonic() - begun)
    assert ended.most_bytes <= MOST_BYTES, f"{ended.most_bytes:,} bytes in the driver\n{ended.said[:2000]}"
    assert "Traceback" not in ended.said, ended.said[:4000]
    assert "FWCONVERT_DEBUG" not in ended.said, f"an error that nobody foresaw\n{ended.said[:2000]}"
    assert ended.code in {0, 1, 2}, ended
    return ended


class _Watch(threading.Thread):
    """Samples the memory of a driver, without its workers; ends the driver when it has far too much."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        super().__init__(daemon=True)
        self.most_bytes = 0
        self._process = process
        self.start()

    def run(self) -> None:
        try:
            watched = psutil.Process(self._process.pid)
            while self._process.poll() is None:
                self.most_bytes = max(self.most_bytes, watched.memory_info().rss)
                if self.most_bytes > 2 * MOST_BYTES:  # Others want memory, too.
                    watched.kill()
                time.sleep(0.01)
        except psutil.Error:
            pass
