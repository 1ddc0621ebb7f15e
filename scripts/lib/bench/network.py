"""Fetch from a loopback hub that limits each connection, or the whole link, as a CDN and a network do.

How long fwconvert takes from the hub to finished token shards, beside tools that
only download the same files, and beside converting them from disk.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.measure import BenchError, Measure, log, run
from bench.rows import Setup, fresh

_SUPPORT = Path(__file__).resolve().parents[3] / "tests" / "support"
_FOLDER = "sample/10BT"
_PROGRAM = (sys.executable, "-P", "-m", "fwconvert")
CONVERT = (*_PROGRAM, "--quiet")


@dataclass(frozen=True)
class Network:
    """A network: bytes a second for each connection and for all of them, and seconds before each answer."""

    key: str
    title: str
    connection: int | None
    link: int | None
    latency: float


def networks(connection: int = 5_000_000) -> list[Network]:
    """Return the networks to measure: each connection is limited, then the link too, then the link alone.

    16 connections fill a link. Where it is limited, also with 50 ms before each answer.
    """
    each = f"{connection / 1e6:g} MB/s for each connection"
    link = 16 * connection
    in_all, late = f"{link / 1e6:g} MB/s in all", "50 ms before each answer"
    return [
        Network("network-each", each, connection, None, 0.0),
        Network("network-both", f"{each}, {in_all}", connection, link, 0.0),
        Network("network-both-late", f"{each}, {in_all}, {late}", connection, link, 0.05),
        Network("network-link", in_all, None, link, 0.0),
        Network("network-link-late", f"{in_all}, {late}", None, link, 0.05),
    ]


@contextmanager
def hub(folder: Path, network: Network) -> Iterator[str]:
    """Serve a folder as a dataset during the block, by a process of its own; yield its address."""
    command = [
        sys.executable, "-P", "-m", "bench.network", str(folder),
        str(network.connection or 0), str(network.link or 0), str(network.latency),
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
    repository, pinned = repository_of(setup)
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


def settings_for(setup: Setup, endpoint: str) -> list[str]:
    """Return the beginning of a command that knows this hub and nothing of the user's."""
    settings = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(setup.work / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_TOKEN": "",
    }
    return ["env", *(f"{name}={value}" for name, value in settings.items())]


def _ways(setup: Setup, repository: Path, pinned: Path, endpoint: str) -> dict[str, Sequence[str]]:
    env = settings_for(setup, endpoint)
    convert = [*CONVERT, "--out", str(setup.out)]
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


def measure_ranks(setup: Setup, network: Network, rounds: int) -> list[tuple[str, Measure]]:
    """Return the best round of one session with all cores, and of two ranks with half of them each."""
    repository, pinned = repository_of(setup)
    best: dict[str, Measure] = {}
    with hub(repository, network) as endpoint:
        env = settings_for(setup, endpoint)
        whole = [*CONVERT, "--out", str(setup.out), "--version", str(pinned), *setup.options(setup.cores)]
        options = setup.options(max(1, setup.cores // 2))
        task = {"out": setup.out, "pinned": pinned, "options": options, "scratch": setup.work / "scratch"}
        ways = {
            f"one session, {setup.cores} workers": [*env, *whole],
            f"two ranks of {max(1, setup.cores // 2)} workers, plan and merge included": [
                *env,
                *_child("bench.network.two_ranks", **task),
            ],
        }
        for number in range(1, rounds + 1):
            for title, command in ways.items():
                with fresh(setup.out):
                    took = run(command, setup.work)
                log(f"  round {number}: {took.seconds:7.2f} s  {title}  {took.reported or ''}")
                if title not in best or took.seconds < best[title].seconds:
                    best[title] = took
    return list(best.items())


def two_ranks(out: str, pinned: str, options: list[str], scratch: str) -> dict[str, float]:
    """Plan, run two ranks at the same time, and merge; return how long each took."""
    seconds = {"begun": time.perf_counter()}
    subprocess.run([*_PROGRAM, "plan", "--version", pinned, "--out", out, "--save", *options], check=True)
    seconds["plan"] = time.perf_counter()
    words = [*CONVERT, "--out", out, "--scratch", scratch, "--world", "2"]
    # Threads too: each rank would take all cores of the machine, which is the other's too.
    given = options[options.index("--workers") :]
    ranks = [subprocess.Popen([*words, "--rank", str(number), *given]) for number in range(2)]
    if any([rank.wait() for rank in ranks]):  # noqa: C419  # both are waited for
        raise BenchError("a rank has failed")
    seconds["ranks"] = time.perf_counter()
    subprocess.run([*_PROGRAM, "merge", out, "--quiet"], check=True)
    seconds["merge"] = time.perf_counter()
    return {name: round(seconds[name] - seconds[before], 2) for before, name in pairwise(seconds)}


def repository_of(setup: Setup) -> tuple[Path, Path]:
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
    with HubServer(Path(folder), rate=int(connection) or None, link=shared) as server:
        print(server.endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
