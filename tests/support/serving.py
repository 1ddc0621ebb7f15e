"""Have `fwconvert browse` serve a run, as a user starts it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forked
import runner


@contextmanager
def served(out: Path, *words: str) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """Serve the page of a run during the block; give its port."""
    process = forked.start(
        [sys.executable, "-m", "fwconvert", "browse", str(out), "--port", "0", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(runner.REPOSITORY)},
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.match(r"http://127\.0\.0\.1:(\d+)/ ", said)
        assert found, said or process.communicate(timeout=runner.PATIENCE)
        yield int(found[1]), process
    finally:
        runner.kill_all(process.pid)
        process.communicate(timeout=runner.PATIENCE)
