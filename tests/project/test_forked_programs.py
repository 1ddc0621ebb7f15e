"""A program that is forked for a test is in all that it can see one that was started."""

import json
import os
import signal
import subprocess
import sys
from multiprocessing import util
from pathlib import Path
from typing import Any

import forked
import pytest
import runner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every program is started")

LOOK_AROUND = """
import hashlib, json, os, resource, signal, sys
numbers = [number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)]
print(json.dumps({
    "words": sys.argv,
    "environment": hashlib.sha256(repr(sorted(os.environ.items())).encode()).hexdigest(),
    "folder": os.getcwd(),
    "parent": os.getppid(),
    "leads a session": os.getsid(0) == os.getpid(),
    "open": {number: os.readlink(f"/proc/self/fd/{number}").split(":")[0] for number in range(3)},
    "others open": [number for number in os.listdir("/proc/self/fd") if int(number) > 3],
    "umask": os.umask(0),
    "limits": [resource.getrlimit(limit) for limit in range(16)],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handlers": {int(number): str(signal.getsignal(number)).split(" at ")[0] for number in numbers},
    "streams": [(s.encoding, s.errors, s.line_buffering) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "command line": open("/proc/self/cmdline", "rb").read().rstrip(b"\\0").split(b"\\0")[:2] == [
        os.fsencode(sys.executable), b"-c"
    ],
    "main": __name__,
    "imports": sys.path[0],
}))
print("to the other", file=sys.stderr)
sys.exit(3)
"""


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(runner.REPOSITORY), **changes}


def look_around(start: Any, folder: Path, **how: Any) -> tuple[Any, str, int]:
    how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    line = [sys.executable, "-c", LOOK_AROUND, "a word", "\udcff"]
    with start(line, text=True, cwd=folder, env=environment(SOME="thing"), **how) as process:
        said, complained = process.communicate(timeout=60)
    return json.loads(said), complained, process.returncode


@pytest.mark.parametrize("how", [{}, {"start_new_session": True, "umask": 0o077}], ids=str)
def test_it_sees_what_one_that_was_started_sees(how: dict[str, Any], tmp_path: Path) -> None:
    mask = os.umask(0o027)
    held = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    ignored = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        seen, wanted = (look_around(start, tmp_path, **how) for start in (forked.start, subprocess.Popen))
    finally:
        os.umask(mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        signal.signal(signal.SIGUSR1, ignored)
    others = {name: (value, wanted[0][name]) for name, value in seen[0].items() if value != wanted[0][name]}
    assert others == {}
    assert seen == wanted
    assert seen[0]["parent"] == os.getpid()


def test_it_is_forked_at_all() -> None:
    code = "import sys; print('pyarrow.parquet' in sys.modules)"
    assert forked.run([sys.executable, "-c", code], 60, text=True, env=environment()).stdout == "True\n"


@pytest.mark.parametrize(
    "changes",
    [{"FWCONVERT_TESTS_FORK": "0"}, {"PYTHONPATH": "elsewhere"}, {"LC_ALL": "C"}, {"PYTHONUTF8": "1"}],
)
def test_it_is_started_where_that_makes_a_difference(
    changes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "FWCONVERT_TESTS_FORK" in changes:
        monkeypatch.setenv("FWCONVERT_TESTS_FORK", "0")
    code = "import sys; print('pyarrow.parquet' in sys.modules)"
    done = forked.run([sys.executable, "-c", code], 60, text=True, env=environment(**changes))
    assert done.stdout == "False\n"


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), 9)", "raise ValueError('why')", "sys.exit('why')"])
def test_it_ends_as_one_that_was_started(ending: str) -> None:
    line = [sys.executable, "-c", f"import os, sys\nprint('before', end='')\nsys.stdout.flush()\n{ending}"]
    seen = forked.run(line, 60, text=True, env=environment())
    wanted = subprocess.run(line, capture_output=True, text=True, check=False, env=environment())
    assert (seen.returncode, seen.stdout) == (wanted.returncode, wanted.stdout)
    assert seen.stderr.splitlines()[-1:] == wanted.stderr.splitlines()[-1:]


def test_the_files_that_it_is_given_stay_open() -> None:
    """Whatever their numbers: the nursery has files of its own, some of the same."""
    with forked.workers():
        for many in (1, 30):
            files = [os.open(os.devnull, os.O_RDONLY) for _ in range(many)]
            code = f"import gc, os\ngc.collect()\nfor number in {files}:\n    os.fstat(number)"
            pid = util.spawnv_passfds(os.fsencode(sys.executable), [sys.executable, "-c", code], files)
            _, status = os.waitpid(pid, 0)
            for number in files:
                os.close(number)
            assert os.waitstatus_to_exitcode(status) == 0


def test_what_is_to_be_done_at_the_end_is_done() -> None:
    code = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'at the end')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('in a thread'))).start()\n"
    )
    done = forked.run([sys.executable, "-c", code], 60, text=True, env=environment())
    assert done.stdout == "in a thread\nat the end\n"


def test_a_program_that_goes_on_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run([sys.executable, "-c", "import time; time.sleep(600)"], 0.5, env=environment())
