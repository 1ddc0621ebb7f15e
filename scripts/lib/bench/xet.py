"""Fetch through hf_xet, as `hf download` does, beside fetching by ranges over HTTP, as fwconvert does.

The hub is that of bench.network, with its limits, and has its files in Xet storage too (bench.xet_store).
One row is what fwconvert would do with hf_xet: its own fetching, where each range is a stream of hf_xet.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any

from bench.measure import BenchError, Measure, child, log, run
from bench.network import Network
from bench.rows import Setup, fresh

_LIB = Path(__file__).resolve().parent.parent
_SUPPORT = _LIB.parents[1] / "tests" / "support"
_REPO, _FOLDER = "HuggingFaceFW/fineweb-edu", "sample/10BT"
_RANGES = 32


def measure_xet(setup: Setup, network: Network, rounds: int) -> list[tuple[str, Measure]]:
    """Return the best round of each way; raise BenchError if one brings other bytes."""
    if not util.find_spec("hf_xet"):
        raise BenchError("hf_xet is not installed")
    repository, store = setup.work / "xet-repository", setup.work / "xet-store"
    wanted = _prepare(setup, repository, store)
    best: dict[str, Measure] = {}
    with _hub(repository, store, network) as endpoint:
        ways = _ways(setup, repository, store, endpoint)
        for number in range(1, rounds + 1):
            for title, command in ways.items():
                shutil.rmtree(setup.work / "home", ignore_errors=True)
                with fresh(setup.out):
                    took = run(command, setup.work)
                    _check(title, setup.out, wanted)
                log(f"  round {number}: {took.seconds:7.2f} s  {title}")
                if title not in best or took.seconds < best[title].seconds:
                    best[title] = took
    return list(best.items())


def _ways(setup: Setup, repository: Path, store: Path, endpoint: str) -> dict[str, Sequence[str]]:
    home = setup.work / "home"  # For the hub client's records, and the log of hf_xet.
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": home, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": ""}
    env = ["env", *(f"{name}={value}" for name, value in settings.items())]
    convert = [sys.executable, "-P", "-m", "fwconvert", "--version", str(store / "pinned.json")]
    convert += ["--out", str(setup.out), "--quiet", *setup.options(setup.cores)]
    fetch = {"store": store, "out": setup.out}
    download = [str(Path(sys.executable).with_name("hf")), "download", "--repo-type", "dataset", _REPO]
    download += ["--local-dir", str(setup.out)]
    many = [
        *(f"HF_XET_CLIENT_AC_{which}_DOWNLOAD_CONCURRENCY={_RANGES}" for which in ("MIN", "INITIAL")),
        f"HF_XET_DATA_MAX_CONCURRENT_FILE_DOWNLOADS={_RANGES}",
        "HF_XET_HIGH_PERFORMANCE=1",
    ]
    ways: dict[str, Sequence[str]] = {
        "fwconvert, to token shards": [*env, *convert],
        "fwconvert's fetching alone": [*env, *child("bench.xet.fetch", **fetch, through_xet=False)],
        "the same, ranges through hf_xet": [*env, *child("bench.xet.fetch", **fetch, through_xet=True)],
        "hf download, HF_HUB_DISABLE_XET": [*env, "HF_HUB_DISABLE_XET=1", *download],
        "hf download through hf_xet": [*env, *download],
        f"hf download through hf_xet, {_RANGES} at once": [
            *(*env, *many, *download),
            *("--max-workers", str(_RANGES)),
        ],
    }
    aria2c = shutil.which("aria2c")
    if aria2c:
        listed = setup.work / "xet-addresses.txt"
        base = f"{endpoint}/datasets/{_REPO}/resolve/main/{_FOLDER}"
        names = sorted(path.name for path in (repository / _FOLDER).iterdir())
        listed.write_text("".join(f"{base}/{name}\n out={name}\n" for name in names), "utf-8")
        files = min(4, len(names))
        each = min(16, _RANGES // files)  # It takes no more for a file.
        ways[f"aria2c, {files * each} connections"] = [
            *(aria2c, "-q", "-i", str(listed), "-d", str(setup.out / _FOLDER)),
            *(f"-j{files}", f"-x{each}", f"-s{each}", "-k1M"),
        ]
    return ways


def _prepare(setup: Setup, repository: Path, store: Path) -> dict[str, str]:
    """Make the repository and its Xet storage; return the sha256 of each file by its path."""
    if not repository.exists():
        (repository / _FOLDER).mkdir(parents=True)
        store.mkdir()
        for number, file in enumerate(sorted(setup.all_folder.iterdir())):
            os.link(file.resolve(), repository / _FOLDER / f"{number:03}_00000.parquet")
        run(child("bench.network.pin", repository=repository, pinned=store / "pinned.json"), setup.work)
        pack = child("bench.xet.upload", files=_files(repository), store=store)
        hashes = run(["env", f"HF_HOME={setup.work / 'home'}", *pack], setup.work).reported
        named = {Path(path).relative_to(repository).as_posix(): name for path, name in hashes.items()}
        (store / "hashes.json").write_text(json.dumps(named), "utf-8")
    pinned = json.loads((store / "pinned.json").read_text("utf-8"))
    return {file["path"]: file["sha256"] for file in pinned["files"]}


def _files(repository: Path) -> list[str]:
    return sorted(str(path) for path in (repository / _FOLDER).iterdir())


def _check(title: str, out: Path, wanted: dict[str, str]) -> None:
    """Compare what was fetched; a conversion has proven it itself."""
    for path, sha256 in wanted.items() if not (out / "manifest.json").exists() else ():
        with (out / path).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise BenchError(f"{title}: {path} has other bytes")


@contextmanager
def _hub(repository: Path, store: Path, network: Network) -> Iterator[str]:
    """Serve a repository and its Xet storage during the block, by a process of its own."""
    limits = (str(network.connection), str(network.link or 0), str(network.latency))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "bench.xet_store", str(repository), str(store), *limits],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_LIB), str(_SUPPORT)])},
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


def upload(files: list[str], store: str) -> dict[str, str]:
    """Pack files into a local store of hf_xet; return the Xet hash of each."""
    from hf_xet import XetSession  # noqa: PLC0415  # in a process of its own

    with XetSession().new_upload_commit(endpoint=f"local://{store}") as commit:
        uploads = [commit.start_upload_file(path) for path in files]
    return {path: upload.result().xet_info.hash for path, upload in zip(files, uploads, strict=True)}


def fetch(store: str, out: str, *, through_xet: bool) -> dict[str, int]:
    """Fetch all files of a source manifest with fwconvert's own fetching, without converting them."""
    from fwconvert import records  # noqa: PLC0415  # in a process of its own
    from fwconvert.hub.connections import Connections  # noqa: PLC0415
    from fwconvert.hub.dataset import Dataset  # noqa: PLC0415
    from fwconvert.hub.download import Download  # noqa: PLC0415
    from fwconvert.hub.remote import Remote  # noqa: PLC0415
    from fwconvert.options import Options  # noqa: PLC0415
    from fwconvert.recipes import SourceManifest  # noqa: PLC0415

    manifest = records.read(Path(store, "pinned.json"), SourceManifest)
    remote: Remote = Dataset(manifest.dataset, manifest.revision)
    if through_xet:
        remote = _Streams(manifest.files, json.loads(Path(store, "hashes.json").read_text("utf-8")))
    connections = Connections(Options().max_connections)
    download = Download(remote, 60.0, threading.Event(), lambda _: None, log, connections)
    with ThreadPoolExecutor(4) as pool:
        numbered = enumerate(manifest.files)
        tasks = [
            pool.submit(download.fetch, file, Path(out, file.path), Path(out, "parts"), turn)
            for turn, file in numbered
        ]
        for task in tasks:
            task.result()
    return {"files": len(tasks)}


class _Streams:
    """A remote whose ranges are streams of hf_xet; it has what a download asks of one."""

    name, revision = _REPO, "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, files: Sequence[Any], hashes: dict[str, str]) -> None:
        from hf_xet import XetConfig, XetFileInfo, XetSession  # noqa: PLC0415

        # Fetching counts its connections itself.
        fixed = {f"client.ac_{which}_download_concurrency": 64 for which in ("min", "initial", "max")}
        session = XetSession(XetConfig().with_config(fixed))
        route = f"{os.environ['HF_ENDPOINT']}/api/datasets/{_REPO}/xet-read-token/{self.revision}"
        self._group = session.new_download_stream_group(token_refresh_url=route)
        self._files = {file.path: XetFileInfo(hashes[file.path], file.bytes) for file in files}

    def files(self, folder: str, received: object) -> Any:  # noqa: ARG002  # part of the protocol
        """Return all files: what is measured begins after the listing."""
        return [*self._files]

    @contextmanager
    def open_range(self, path: str, begin: int, end: int | None = None) -> Iterator[Any]:
        """Open a stream; it is cancelled at the end of the block."""
        from fwconvert.hub.retry import TransientError  # noqa: PLC0415

        info = self._files[path]
        try:
            stream = self._group.download_stream(info, begin, info.file_size if end is None else end)
            try:
                yield _Range(stream, begin, info.file_size)
            finally:
                stream.cancel()
        except (OSError, RuntimeError) as error:
            raise TransientError(str(error)) from None


class _Range:
    is_past_end = is_whole = False

    def __init__(self, stream: Any, begin: int, total: int) -> None:
        self._stream, self.begin, self.total = stream, begin, total

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream)
