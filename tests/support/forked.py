"""Start Python programs without the price of their imports: forked from a process that has them all.

Starting `python -m fwconvert` and one worker takes a second of CPU, nearly all of it for importing numpy,
pyarrow and the tokenizers; the tests do it thousands of times. So a nursery, one for each process of pytest,
imports them once. For each program it forks a process that takes the place of a newly started one: with the
environment, the folder, the open files, the limits and the signals that it would have got, a child of the
one who asked, running the same `__main__`. A program that is started so has a nursery of its own, which forks
its workers.

Nothing is forked where the difference could be seen: where a variable is set that Python or a library reads
at its own start, where an option of Python is passed, or on another system than Linux. FWCONVERT_TESTS_FORK=0
starts every program for real.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import importlib.util
import io
import itertools
import json
import os
import pkgutil
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

_REPOSITORY = str(Path(__file__).parent.parent.parent)

# What the package imports when it needs it, and what huggingface_hub imports. Not that itself: it reads its
# settings from the environment when it is imported.
_LIBRARIES = (
    "boto3",
    "botocore.config",
    "concurrent.futures.process",
    "filelock",
    "gigatoken",
    "httpx2",
    "multiprocessing.resource_tracker",
    "multiprocessing.spawn",
    "obstore.store",
    "pyarrow.compute",
    "pyarrow.parquet",
    "rich.console",
    "rich.progress",
    "tiktoken",
    "tqdm.auto",
    "yaml",
)
# Modules of the package that import what is large or need not be installed, and what few programs use.
_RARE = ("torch", "ray", "hugging_face", "sentence_pieces")
# Variables that are read when Python or a library starts: the nursery has long started.
_READ_AT_THE_START = (
    "ARROW_",
    "GLIBC_",
    "LANG",
    "LC_",
    "LD_",
    "MALLOC_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "TQDM_",
)
_READ_AGAIN = {"PYTHONIOENCODING", "PYTHONPATH"}
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_CORE)
# Descriptors above those that a program has.
_OUT_OF_THE_WAY = 200
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl
_ROOM_FOR_A_NAME = 400

_spawn_for_real = util.spawnv_passfds
_asking = threading.Lock()
_nursery: socket.socket | None = None


def start(line: Sequence[str], **how: Any) -> "subprocess.Popen[Any]":
    """Start a Python program; `how` is as for subprocess.Popen."""
    forked = how.get("preexec_fn") is None and _can_be_forked(line, how.get("env"))
    return (_Forked if forked else subprocess.Popen)(line, **how)


def run(
    line: Sequence[str], timeout: float, *, capture_output: bool = True, **how: Any
) -> "subprocess.CompletedProcess[Any]":
    """Run a Python program to its end, as subprocess.run does."""
    if capture_output:
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    with start(line, **how) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextlib.contextmanager
def workers() -> Iterator[None]:
    """Have processes that this one spawns during the block forked."""
    util.spawnv_passfds = _spawn
    try:
        yield
    finally:
        util.spawnv_passfds = _spawn_for_real


class _Forked(subprocess.Popen[Any]):
    """A process that was not started by this one, though it is a child of it."""

    def _execute_child(
        self, args: Sequence[str], *given: Any
    ) -> None:  # Of Popen, and called by its __init__; see there for what is given.
        _, _, _, _, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest = given
        streams = {0: p2cread, 1: c2pwrite, 2: errwrite}
        files = {number: number if fd == -1 else fd for number, fd in streams.items()}
        umask, new_session = rest[4:6]
        env = dict(os.environ if env is None else env)
        try:
            self.pid = _ask(list(args)[1:], env, files, cwd=cwd, umask=umask, new_session=new_session)
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


def _spawn(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """Take the place of multiprocessing.util.spawnv_passfds."""
    words = [os.fsdecode(word) for word in args]
    if not _can_be_forked(words, None):
        return _spawn_for_real(path, args, passfds)
    return _ask(words[1:], dict(os.environ), {fd: fd for fd in (0, 1, 2, *passfds)})


def _can_be_forked(line: Sequence[str], env: Mapping[str, str] | None) -> bool:
    if sys.platform != "linux" or os.environ.get("FWCONVERT_TESTS_FORK") == "0" or line[0] != sys.executable:
        return False
    words = _without_options(line[1:])
    if words[:2] != ["-m", "fwconvert"] and words[:1] != ["-c"]:
        return False
    given = os.environ if env is None else env
    theirs, ours = _read_at_the_start(given), _read_at_the_start(os.environ)
    return theirs == ours and given.get("PYTHONPATH", _REPOSITORY) == _REPOSITORY


def _without_options(words: Sequence[str]) -> list[str]:
    """Leave out the options of Python that make no difference here: of sys.path and of cached bytecode."""
    return list(itertools.dropwhile(lambda word: word in {"-B", "-P"}, words))


def _read_at_the_start(env: Mapping[str, str]) -> dict[str, str]:
    names = {name for name in env if name.startswith(_READ_AT_THE_START)} - _READ_AGAIN
    return {name: env[name] for name in names}


def _ask(
    words: list[str],
    env: dict[str, str],
    files: dict[int, int],
    *,
    cwd: Any = None,
    umask: int = -1,
    new_session: bool = False,
) -> int:
    """Have a process forked; return its id. It is a child of this process."""
    request = {
        "words": _without_options(words),
        "env": env,
        "cwd": str(Path.cwd() if cwd is None else cwd),
        "files": list(files),
        "new_session": new_session,
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "ignored": [int(number) for number in signal.Signals if _is_ignored(number)],
        "limits": [resource.getrlimit(limit) for limit in _LIMITS],
        "umask": _umask() if umask == -1 else umask,
    }
    with _asking, os.fdopen(os.memfd_create("request"), "w+b") as body:
        body.write(json.dumps(request).encode())
        body.flush()
        nursery = _nursery_of_this_process()
        # Who forks it forks twice and lets the one between end: the orphan becomes a child of this process.
        _prctl(_SUBREAPER, 1)
        try:
            socket.send_fds(nursery, [b"+"], [body.fileno(), *files.values()])
            answer = nursery.recv(64)
        finally:
            _prctl(_SUBREAPER, 0)
    assert answer, "the nursery of the tests has ended"
    return int(answer)


def _nursery_of_this_process() -> socket.socket:
    global _nursery  # noqa: PLW0603  # a process has one
    if _nursery is None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = f"import forked; forked.be_a_nursery({theirs.fileno()})"
        places = os.pathsep.join((_REPOSITORY, str(Path(__file__).parent)))
        started = subprocess.Popen(
            # A process that is forked writes its own command line over this one.
            [sys.executable, "-P", "-c", program, " " * _ROOM_FOR_A_NAME],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": places, "OPENBLAS_NUM_THREADS": "1"},
        )
        theirs.close()
        _nursery = ours
        atexit.register(_end_nursery, started)
    return _nursery


def _end_nursery(started: "subprocess.Popen[bytes]") -> None:
    if _nursery is not None:
        _nursery.close()
    started.wait()


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


def _umask() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc().prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def be_a_nursery(number: int) -> None:
    """Import everything, then fork a process for each request; end with the one who asks."""
    modules = pkgutil.walk_packages([f"{_REPOSITORY}/fwconvert"], "fwconvert.")
    package = [module.name for module in modules if not module.name.endswith(("__main__", *_RARE))]
    for name in (*_LIBRARIES, *package):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:  # Not all of them are everywhere.
            importlib.import_module(name)
    assert "huggingface_hub.constants" not in sys.modules
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    # pyarrow's allocator has a thread, of which it takes care when its process is forked.
    assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1, threads
    _play(_serve(socket.socket(fileno=number)))


def _serve(asked: socket.socket) -> Callable[[], object]:
    """Answer requests. Return, in each process that was forked, what it is there for."""
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # Of the group, and meant for others.
    gc.collect()
    gc.freeze()
    while True:
        message, files, _, _ = socket.recv_fds(asked, 1, 250)
        if not message:
            os._exit(0)
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            between, forked = os.getpid(), os.fork()
            if forked == 0:
                while os.getppid() == between:
                    time.sleep(0.0002)
                asked.detach()  # Its number may be that of a file of the program, which it would close.
                return _become(files)
            os.write(write, str(forked).encode())
            os._exit(0)
        os.waitpid(between, 0)
        for fd in (write, *files):
            os.close(fd)
        asked.send(os.read(read, 64))
        os.close(read)


def _become(files: list[int]) -> Callable[[], object]:
    """Make this process one that was just started as the request says; return what it has to run."""
    with os.fdopen(files[0], "rb", closefd=False) as body:
        body.seek(0)
        request = json.load(body)
    _take_files(dict(zip(request["files"], files[1:], strict=True)))
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    for limit, allowed in zip(_LIMITS, request["limits"], strict=True):
        resource.setrlimit(limit, tuple(allowed))
    words = request["words"]
    _name([sys.executable, *words])
    if words[0] == "-m":
        _have_a_nursery()
    for number in request["ignored"]:
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    _open_streams()
    sys.path[:] = ["", *(place for place in sys.path if place != str(Path(__file__).parent))]
    sys.argv, sys.orig_argv = [words[0], *words[2:]], [sys.executable, *words]
    if words[0] == "-m":
        return functools.partial(runpy.run_module, words[1], run_name="__main__", alter_sys=True)
    return functools.partial(_run_code, words[1])


def _take_files(files: dict[int, int]) -> None:
    """Have these files open under their numbers, and no others."""
    above = max([_OUT_OF_THE_WAY, *files, *files.values()]) + 1
    moved = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, above) for number, fd in files.items()}
    os.closerange(0, above)
    for number, fd in moved.items():
        os.dup2(fd, number)
        os.close(fd)


def _have_a_nursery() -> None:
    """Fork a nursery for the workers of this program; now, since there are no threads yet."""
    global _nursery  # noqa: PLW0603  # a process has one
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        for number in range(3):
            os.close(number)
        _play(_serve(theirs))
    theirs.close()
    _nursery = socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY))
    ours.close()
    util.spawnv_passfds = _spawn


def _open_streams() -> None:
    """Open the standard streams as Python does at its start."""
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        with contextlib.suppress(OSError):
            os.fstat(number)
            unbuffered = number > 0 and bool(os.environ.get("PYTHONUNBUFFERED"))
            raw = os.fdopen(number, "wb" if number else "rb", 0 if unbuffered else -1, closefd=False)
            kept = getattr(sys, name)
            stream = io.TextIOWrapper(
                raw,
                encoding or kept.encoding,
                "backslashreplace" if number == 2 else errors or kept.errors,
                line_buffering=not unbuffered and (number == 2 or os.isatty(number)),
                write_through=unbuffered,
            )
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _play(program: Callable[[], object]) -> NoReturn:
    """Run a program to its end, as Python does; only its modules are not taken apart, which takes longest."""
    code = 0
    try:
        program()
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        code = ended.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):  # Closed.
            if stream is not None:
                stream.flush()
    os._exit(code & 0xFF)


def _run_code(code: str) -> None:
    exec(compile(code, "<string>", "exec"), sys.modules["__main__"].__dict__)


def _name(line: list[str]) -> None:
    """Let this process be listed by the command line that it stands for."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    told = b"\0".join(map(os.fsencode, line))[: end - begin - 1]
    ctypes.memmove(begin, told.ljust(end - begin, b"\0"), end - begin)
