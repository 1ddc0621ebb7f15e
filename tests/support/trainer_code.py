"""The trainers' own code, from their wheels, for tests that let it read what fwconvert made.

Their wheels are small, what they depend on is not (some pull CUDA builds of PyTorch). So they are fetched
once without what they depend on, and run in a process of their own, in which a module that is not installed
(a client of a cloud, an attention kernel) is an empty stand-in: reading token shards needs none of them, and
whatever touches one fails. What reads is the trainer's real code.
"""

import importlib.abc
import importlib.machinery
import json
import os
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

# Beside the environment, which comes and goes with it.
CACHE = Path(sys.prefix) / "trainers"
WHEELS = {
    "litdata": "litdata==0.2.76",
    "litgpt": "litgpt==0.5.13",
    "streaming": "mosaicml-streaming==0.13.0",
    "olmo_core": "ai2-olmo-core==3.0.0",
    "nemo_automodel": "nemo-automodel==0.7.0",
    "lightning_utilities": "lightning-utilities==0.15.2",
    "xxhash": "xxhash==3.6.0",
    "catalogue": "catalogue==2.0.10",
    "dataclass_extensions": "dataclass-extensions==0.4.0",
}
_SECONDS = 300


def need(*packages: str) -> None:
    """Have these packages in the cache, or skip the test with the reason."""
    pytest.importorskip("torch", reason="torch is not installed, which trainers' readers need")
    for package in packages:
        if not (CACHE / package).is_dir():
            _fetch(WHEELS[package], package)


def _fetch(requirement: str, package: str) -> None:
    wheels = CACHE / f"wheel-{package}-{os.getpid()}"
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    ended = subprocess.run(
        [*words, "-d", str(wheels), requirement], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        pytest.skip(
            f"{requirement} cannot be fetched: {(ended.stderr.strip().splitlines() or ['?'])[-1][:200]}"
        )
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(CACHE / f"new-{package}-{os.getpid()}")
        wheel.unlink()
    wheels.rmdir()
    made = CACHE / f"new-{package}-{os.getpid()}"
    # One by one, the package last: it is there when the rest is.
    for part in sorted(made.iterdir(), key=lambda path: path.name == package):
        if not (CACHE / part.name).exists():
            part.rename(CACHE / part.name)


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
    sys.meta_path.append(_Finder())
