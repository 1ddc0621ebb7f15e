"""The trainers' own code, from their wheels, for tests that let it read what fwconvert made.

Their wheels are small, what they depend on is not (some pull CUDA builds of PyTorch). So they are fetched
once without what they depend on, and run in a process of their own, in which a module that is not installed
(a client of a cloud, an attention kernel) is an empty stand-in: reading token shards needs none of them, and
whatever touches one fails. What reads is the trainer's real code.
"""

import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

_WHEELS = Path(__file__).with_name("trainers.txt")
# Beside the environment, which comes and goes with it; another list of wheels is another folder.
CACHE = Path(sys.prefix) / f"trainers-{hashlib.sha256(_WHEELS.read_bytes()).hexdigest()[:8]}"
# They have 7 MB. Without a network pip gives up sooner by itself.
_FETCH_SECONDS = 120
_SECONDS = 300


def need(package: str) -> None:
    """Skip the test unless a package is installed; it is not imported, which may take seconds."""
    parts = package.split(".")
    if any(importlib.util.find_spec(".".join(parts[: at + 1])) is None for at in range(len(parts))):
        pytest.skip(f"{package} is not installed, which a trainer's reader needs")


def need_wheels() -> None:
    """Have the trainers' code in the cache, or skip the test with the reason."""
    if why_not := _why_not_there():
        pytest.skip(f"the trainers' wheels cannot be fetched: {why_not}")


@functools.cache  # a process that cannot fetch them does not try for each test
def _why_not_there() -> str:
    """Fetch the wheels unless they are there; return why that is impossible, or nothing.

    The folder gets its name when all of them are in it. Of processes that fetch at the same time the first
    one to be done wins, and the others throw theirs away.
    """
    if CACHE.is_dir():
        return ""
    if not os.access(CACHE.parent, os.W_OK):
        return f"{CACHE.parent} may not be written to"
    with tempfile.TemporaryDirectory(prefix="trainers-", dir=CACHE.parent) as folder:
        wheels, code = Path(folder) / "wheels", Path(folder) / "code"
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        words += ["--no-deps", "--only-binary=:all:", "--retries=1", "--timeout=15", f"--dest={wheels}"]
        words += ["--require-hashes", f"--requirement={_WHEELS}"]
        try:
            subprocess.run(words, capture_output=True, text=True, check=True, timeout=_FETCH_SECONDS)
        except subprocess.TimeoutExpired:
            return f"it takes longer than {_FETCH_SECONDS} s"
        except subprocess.CalledProcessError as error:
            said: list[str] = error.stderr.splitlines()
            lines = [line for line in said if "ERROR" in line] or said or ["pip does not say why"]
            return lines[-1][:300]
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(code)
        try:
            code.rename(CACHE)
        except OSError:
            if not CACHE.is_dir():
                raise
    return ""


def run(code: str, *arguments: object, cwd: Path | None = None) -> Any:
    """Run code in a process that has the trainers; return what it gave to `tell`."""
    given = [str(word) for word in arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(CACHE)])}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    whole = f"import trainer_code\ntrainer_code.stand_in()\nfrom trainer_code import tell\nimport sys\n{code}"
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", whole, *given],
        capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=_SECONDS,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.rpartition("\n@")[2])


def tell(value: object) -> None:
    """Hand a value to the process that called `run`."""
    print(f"\n@{json.dumps(value)}")  # noqa: T201


class _Empty(type):
    """Classes of modules that are not installed; what one asks of them is empty."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return ()


class _StandIn(types.ModuleType):
    """A module that is not installed: names can be imported from it, and are classes without anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith(("Error", "Exception")):
            made: type = type(name, (Exception,), {})
        elif self.__name__.startswith(
            "torchvision"
        ):  # Its classes are bases, beside others with metaclasses.
            made = type(name, (), {})
        else:
            made = _Empty(name, (), {})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last: what is not installed is a stand-in, where a trainer imports it and for nobody else."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:  # noqa: ARG002
        frame: Any = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            if "util" in frame.f_code.co_filename:  # It asks what is installed, and imports nothing.
                return None
            frame = frame.f_back
        if frame is None or not frame.f_code.co_filename.startswith(str(CACHE)):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        made = _StandIn(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is in it."""


def stand_in() -> None:
    """Let trainers import modules that are not installed, empty."""
    # It looks for pandas once, and must not find a stand-in.
    import pyarrow.dataset  # noqa: F401, PLC0415

    sys.meta_path.append(_Finder())
    known = importlib.metadata.version
    # `datasets` asks for it at once, and needs it for tables of pandas alone.
    importlib.metadata.version = lambda distribution_name: (
        "2.0" if distribution_name == "pandas" else known(distribution_name)
    )
