"""Make the private environment `.venv` of this clone, or tell whether it is ready.

A stamp, written last, says for what and from what the environment was made. So
one that was killed half-way has no stamp and is made anew, and one that was
made for another Python or in another place (a clone that was moved or copied
would still import from the old one) is noticed. Only one process at a time
works on it: the lock is the kernel's, and no crash can leave it behind.

What is installed is what `scripts/lock` wrote into `scripts/requirements/`, to the last
version and hash, so that a clone works next year as it does today.

    python set_up.py check run          exit 0 if `scripts/run` can start at once
    python set_up.py make test          make it so for `scripts/test`, which needs more
    python set_up.py make fuzz          make it so for `scripts/fuzz`, which needs the fuzzer too
    python set_up.py make everything    make it so for `scripts/test --everything`, which needs PyTorch too
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
VENV = REPOSITORY / ".venv"
LOCK = VENV / "fwconvert-lock"
STAMP = VENV / "fwconvert-stamp"

# Each needs all that the one before it needs, and more.
PURPOSES = ("run", "test", "fuzz", "everything")

# Settings of a user's pip that would put packages outside the environment.
MISLEADING = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PYTHONPATH", "PYTHONHOME")


def main() -> int:
    """Do what the arguments say."""
    verb, purpose = sys.argv[1:]
    if is_ready(purpose):
        return 0
    if verb == "check":
        return 1
    try:
        return make(purpose)
    except OSError as error:  # For example a clone that only others may write to.
        complain("the environment .venv could not be made", str(error))
        return 1
    except KeyboardInterrupt:
        return 130


def is_ready(purpose: str) -> bool:
    """Tell whether a finished environment is there that suits `purpose`."""
    enough = PURPOSES[PURPOSES.index(purpose) :]
    try:
        return STAMP.read_text("utf-8") in [stamp(made_for) for made_for in enough]
    except (OSError, UnicodeDecodeError):
        return False


def stamp(purpose: str) -> str:
    """Return what an environment is stamped with that this Python made now."""
    names = ("pyproject.toml", requirements(purpose))
    hashes = [hashlib.sha256((REPOSITORY / name).read_bytes()).hexdigest() for name in names]
    lines = [f"{name} {digest}\n" for name, digest in zip(names, hashes, strict=True)]
    return f"{base()}{''.join(lines)}for {purpose}\n"


def requirements(purpose: str) -> str:
    """Return the file that lists what `purpose` needs, seen from the repository."""
    return f"scripts/requirements/{purpose}.txt"


def base() -> str:
    """Return the part of the stamp without which the environment cannot be mended, only made anew."""
    return f"python {sys.version_info.major}.{sys.version_info.minor}\nrepository {REPOSITORY}\n"


def make(purpose: str) -> int:
    """Make the environment ready for `purpose`; return the exit code."""
    VENV.mkdir(exist_ok=True)
    present = {path.name for path in VENV.iterdir()}
    if present and LOCK.name not in present:
        complain("the folder .venv was not made by these scripts", f"move it away: {VENV}")
        return 2
    took = "some minutes" if purpose == "everything" else "a minute"
    print(f"fwconvert: setting up .venv (once; this can take {took})", file=sys.stderr, flush=True)
    with locked():
        if is_ready(purpose):  # Another process made it while we waited.
            return 0
        return build(purpose)


def build(purpose: str) -> int:
    """Make or mend the environment, and stamp it. Without a stamp it does not count."""
    mendable = STAMP.exists() and STAMP.read_bytes().startswith(base().encode())
    STAMP.unlink(missing_ok=True)
    if not mendable:
        clear()
    wanted = stamp(purpose)
    for command in commands(purpose, mendable=mendable):
        if not succeeds(command):
            return 1
    STAMP.write_text(wanted, "utf-8")
    return 0


def clear() -> None:
    """Empty the environment, but for the lock that is being held."""
    for path in VENV.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != LOCK:
            path.unlink()


def commands(purpose: str, *, mendable: bool) -> list[list[str]]:
    """Return the commands that make the environment."""
    python = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install = [str(python), "-I", "-m", "pip", "install"]
    if purpose == "everything":
        install.append("--no-compile")  # 50 s of CPU, most of it for modules that no test imports.
    listed = str(REPOSITORY / requirements(purpose))
    steps = [
        # The list is complete; pip would also look for what the list leaves out on purpose (see `torch`).
        [*install, "--no-deps", "--require-hashes", "--requirement", listed],
        # The clone has no hash, so it goes by itself; what builds it was on the list.
        [*install, "--no-deps", "--no-build-isolation", "--editable", str(REPOSITORY)],
    ]
    if purpose == "everything":
        steps.append([*install, *group("torch")])
    create = [sys.executable, "-I", "-m", "venv", str(VENV)]
    return steps if mendable else [create, *steps]


def group(name: str) -> list[str]:
    """Return a dependency group of pyproject.toml. The pip of Python 3.11 cannot read it by itself."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    found: list[str] = project["dependency-groups"][name]
    return found


def succeeds(command: list[str]) -> bool:
    """Run a command unseen; show what it said if it fails."""
    settings = {name: value for name, value in os.environ.items() if name not in MISLEADING}
    settings |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    # The child inherits the lock: should we be killed, nobody disturbs it before it ends too.
    unseen = subprocess.run(command, env=settings, close_fds=False, capture_output=True, check=False)
    if unseen.returncode:
        sys.stderr.write((unseen.stdout + unseen.stderr).decode(errors="replace"))
        complain("the environment .venv could not be made", "mend what is said above, then run this again")
    return unseen.returncode == 0


def complain(wrong: str, action: str) -> None:
    """Say what is wrong and what to do."""
    print(f"fwconvert: {wrong}\n  -> {action}", file=sys.stderr)


@contextmanager
def locked() -> Iterator[None]:
    """Hold the lock on the environment, waiting for it as long as it takes."""
    with LOCK.open("w") as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003 - it has no name
        if sys.platform == "win32":
            import msvcrt  # noqa: PLC0415 - exists on Windows only

            while True:  # Each try waits for ten seconds.
                try:
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
                except OSError:
                    pass
        else:
            import fcntl  # noqa: PLC0415 - does not exist on Windows

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
