"""Tests that share something costly run in one process: what `xdist_group` asks for is done."""

import subprocess
import sys
from pathlib import Path

GROUPED = """
import os
import pytest

@pytest.mark.xdist_group("costly")
@pytest.mark.parametrize("number", range(4))
def test_where(number):
    with open("where", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def test_a_group_of_tests_runs_in_one_process(tmp_path: Path) -> None:
    """One release of pytest ignored groups: each process had a cluster of its own, and all met each other."""
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "-p",
        "no:cacheprovider",
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    where = (tmp_path / "where").read_text().split()
    assert len(where) == 4
    assert len(set(where)) == 1
