"""Fetch from a loopback hub that limits each connection, or the whole link, as a CDN and a network do.

How long fwconvert takes from the hub to finished token shards, beside tools that
only download the same files, and beside converting them from disk.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measure import BenchError, Measure, log, run
from bench.rows import Setup, fresh

_SUPPORT = Path(__file__).resolve().parents[3] / "tests" / "support"
_FOLDER = "sample/10BT"


@dataclass(frozen=True)
class Network:
    """A network: bytes a second for each connection and for all of them, and seconds before each answer."""

    title: str
    connection: int
    link: int | None
    latency: float


def networks(connection: int = 5_000_000) -> list[Network]:
    """Return the networks to measure; 16 connections fill a link of them."""
    each = f"{connection / 1e6:g} MB/s for each connection"
    link = 16 * connection
    return [
        Network(each, connection, None, 0.0),
        Network(f"{each}, {link / 1e6:g} MB/s in all", connection, link, 0.0),
        Network(f"{each}, {link / 1e6:g} MB/s in all, 50 ms before each answer", connection, link, 0.05),
    ]


@contextmanager
def hub(folder: Path, network: Network) -> Iterator[str]:
    """Serve a folder as a dataset during the block, by a process of its own; yield its address."""
    command = [
        sys.executable, "-P", "-m", "bench.network", str(folder),
        str(network.connection), str(network.link or 0), str(network.latency),
    ]  # fmt: skip
    path = os.pathsep.join([str(Path(__file__).resolve().parent.parent), str(_SUPPORT)])
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        if not endpoint:
            raise BenchError("the loopback hub does not start")
        yield endpoint
    finally:
        process.kill()
        process.communicate()


def measure_network(setup: Setup, network: Network, rounds: int) -> list[tuple[str, Measure]]:
    """Return the best round of each way."""
    repository, pinned = _repository(setup)
    best: dict[str, Measure] = {}
    with hub(repository, network) as endpoint:
        ways = _ways(setup, repository, pinned, endpoint)
        for number in range(1, rounds + 1):
            for title, command in ways.items():
                with fresh(setup.out):
                    took = run(command, setup.work)
                log(f"  round {number}: {took.seconds:7.2f} s  {title}")
                if title not in best or took.seconds < best[title].seconds:
                    best[title] = took
    return list(best.items())


def _ways(setup: Setup, repository: Path, pinned: Path, endpoint: str) -> dict[str, Sequence[str]]:
    settings = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(setup.work / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_TOKEN": "",
    }
    env = ["env", *(f"{name}={value}" for name, value in settings.items())]
    convert = [sys.executable, "-P", "-m", "fwconvert", "--out", str(setup.out), "--quiet"]
    options = setup.options(setup.cores)
    ways: dict[str, Sequence[str]] = {
        "fwconvert, from the hub to token shards": [*env, *convert, "--version", str(pinned), *options],
        "fwconvert, the same files from disk": [*convert, "--source", str(repository / _FOLDER), *options],
    }
    hf = Path(sys.executable).with_name("hf")
    if hf.exists():
        from_hub = [
            "download",
            "--repo-type",
            "dataset",
            "HuggingFaceFW/fineweb-edu",
            "--local-dir",
            str(setup.out),
        ]
        ways["hf download: the files alone"] = [*env, str(hf), *from_hub]
    aria2c = shutil.which("aria2c")
    if aria2c:
        listed = setup.work / "addresses.txt"
        names = sorted(path.name for path in (repository / _FOLDER).iterdir())
        base = f"{endpoint}/datasets/HuggingFaceFW/fineweb-edu/resolve/main/{_FOLDER}"
        listed.write_text("".join(f"{base}/{name}\n" for name in names), "utf-8")
        for files, ranges in ((2, 8), (4, 8)):
            title = f"aria2c: the files alone, {files * ranges} connections"
            ways[title] = [
                *(aria2c, "-q", "-i", str(listed), "-d", str(setup.out)),
                *(f"-j{files}", f"-x{ranges}", f"-s{ranges}", "-k1M"),
            ]
    return ways


def _repository(setup: Setup) -> tuple[Path, Path]:
    """Return a folder as the hub has it, of links to the sources, and its pinned manifest."""
    repository, pinned = setup.work / "repository", setup.work / "network.json"
    if not pinned.exists():
        (repository / _FOLDER).mkdir(parents=True)
        for number, file in enumerate(sorted(setup.all_folder.iterdir())):
            os.link(file.resolve(), repository / _FOLDER / f"{number:03}_00000.parquet")
        run(_child("bench.network.pin", repository=repository, pinned=pinned), setup.work)
    return repository, pinned


def _child(name: str, **task: object) -> list[str]:
    return [sys.executable, "-P", "-m", "bench.task", name, json.dumps(task, default=str)]


def pin(repository: str, pinned: str) -> dict[str, int]:
    """Write the source manifest of a repository that the loopback hub serves."""
    from fwconvert import records  # noqa: PLC0415  # in a process of its own
    from fwconvert.files import sha256_of  # noqa: PLC0415
    from fwconvert.recipes import SourceManifest, SourceShard, Totals  # noqa: PLC0415

    folder = Path(repository)
    files = tuple(
        SourceShard(path.relative_to(folder).as_posix(), path.stat().st_size, sha256_of(path))
        for path in sorted((folder / _FOLDER).iterdir())
    )
    commit = "0123456789abcdef0123456789abcdef01234567"
    totals = Totals(len(files), sum(file.bytes for file in files))
    manifest = SourceManifest("network", "HuggingFaceFW/fineweb-edu", commit, _FOLDER, files, totals)
    Path(pinned).write_bytes(records.encode(manifest))
    return {"files": len(files)}


def _serve(folder: str, connection: str, link: str, latency: str) -> None:
    from hub_server import HubServer, Link  # noqa: PLC0415  # only this process has it on its path

    shared = Link(int(link) or None, float(latency))
    with HubServer(Path(folder), rate=int(connection), link=shared) as server:
        print(server.endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
