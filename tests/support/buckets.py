"""Runs in an object store: a real server on loopback, and the program with the variables to find it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import forked
import pytest
import runner
from torture import s3

KINDS = ("moto", "rclone")


@dataclass
class Place:
    """A server behind a proxy that may go wrong, and a folder for what programs need on this machine."""

    server: s3.Server
    proxy: s3.Proxy
    folder: Path
    scheme: str = "s3"
    # The variables by which a program finds it; None: those for S3.
    settings: dict[str, str] | None = None

    @property
    def scratch(self) -> Path:
        return self.folder / "cache" / "scratch"

    def uri(self, prefix: str) -> str:
        return f"{self.scheme}://{s3.BUCKET}/{prefix}"

    def environment(self, **changes: str) -> dict[str, str]:
        cache = {"FWCONVERT_CACHE": str(self.folder / "cache"), "HOME": str(self.folder)}
        settings = s3.environment(self.proxy.endpoint) if self.settings is None else self.settings
        return {**settings, **cache, **changes}

    def run(self, *words: object, **changes: str) -> "subprocess.CompletedProcess[str]":
        """Run the program; fail if it says anything secret."""
        ended = runner.command_line(*words, env=self.environment(**changes), capture_output=True)
        assert "canary" not in (ended.stdout + ended.stderr).lower(), ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended

    def good(self, *words: object, **changes: str) -> str:
        """Run the program, which must succeed; return what it prints."""
        ended = self.run(*words, **changes)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def start(self, *words: object, plan: s3.Plan | None = None) -> "subprocess.Popen[str]":
        """Start the program; the plan's victim is its session."""
        self.proxy.plan = plan = plan or s3.Plan()
        process = forked.start(
            [sys.executable, "-m", "fwconvert", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(runner.REPOSITORY), **self.environment()},
        )
        plan.victim = process.pid
        return process

    def names(self, prefix: str) -> list[str]:
        """Return the names of all objects below a prefix, relative to it."""
        if self.server.folder is not None:
            here = self.server.folder / s3.BUCKET / prefix
            found = (path for path in here.rglob("*") if path.is_file() and not _is_of_rclone(path.name))
            return sorted(path.relative_to(here).as_posix() for path in found)
        query = f"/{s3.BUCKET}?list-type=2&max-keys=1000&prefix={prefix}/"
        listing = ET.fromstring(s3.get(self.server, query))
        space = listing.tag.partition("}")[0] + "}"
        assert listing.findtext(f"{space}IsTruncated") == "false"
        return sorted((key.text or "").removeprefix(f"{prefix}/") for key in listing.iter(f"{space}Key"))

    def tree(self, prefix: str) -> dict[str, str]:
        """Return the sha256 of every output file of a run, as the server has it."""
        if self.server.folder is not None:
            found = runner.tree(self.server.folder / s3.BUCKET / prefix)
            return {name: sha256 for name, sha256 in found.items() if not _is_of_rclone(name)}
        copy = self.folder / "copies" / prefix
        if self.server.kind == "azurite":  # It answers signed requests alone.
            self.good("copy", self.uri(prefix), copy, "--quiet")
        else:
            for name in self.names(prefix):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                (copy / name).write_bytes(s3.get(self.server, f"/{s3.BUCKET}/{prefix}/{name}"))
        return runner.tree(copy)


def _is_of_rclone(name: str) -> bool:
    """Return whether a file is no object, but has what came of an upload that is not complete."""
    return name.rpartition("/")[2].startswith(".rclone_temp_multipart_")


@contextmanager
def place(kind: str, folder: Path) -> Iterator[Place]:
    """Have a place with an empty bucket; skip the test if there can be none."""
    if reason := s3.skip_reason(kind):
        pytest.skip(reason)
    with s3.serving(kind, folder) as server:
        proxy = s3.Proxy(server.endpoint)
        try:
            yield Place(server, proxy, folder)
        finally:
            proxy.shutdown()
            proxy.server_close()


def finished(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Wait for a program; return its exit code and what it said."""
    said, _ = process.communicate(timeout=runner.PATIENCE)
    assert "canary" not in said.lower(), said
    return process.returncode, said
