"""Run Python code in a process of its own, with the package under test."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import fwconvert

_PACKAGE_ROOT = str(Path(fwconvert.__file__).parent.parent)


def command(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": _PACKAGE_ROOT, **changes}


def ended(code: str, *arguments: object, **changes: str) -> "subprocess.CompletedProcess[str]":
    """Run the code to its end, however it ends."""
    return subprocess.run(
        command(code, *arguments),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment(**changes),
    )


def run(code: str, *arguments: object, **changes: str) -> str:
    """Return what the code prints; `changes` are environment variables. It must end with exit code 0."""
    finished = ended(code, *arguments, **changes)
    assert finished.returncode == 0, f"exit code {finished.returncode}\n{finished.stdout}{finished.stderr}"
    return finished.stdout


def start(code: str, *arguments: object, **changes: str) -> "subprocess.Popen[str]":
    """Start the code; the caller reads what it prints, and ends it."""
    return subprocess.Popen(
        command(code, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(**changes),
    )
