"""A hub that we did not write: olah, a mirror from PyPI, in front of the loopback hub and then without it.

It has dependencies of its own, so it is installed in an environment of its
own, which is kept in the folder for what can be made again. Where it cannot be
installed or does not start, the test is skipped and says why.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import hub_runs
import pytest
from hub_runs import assert_whole, conversion, run
from hub_server import COMMIT, REPO, HubServer
from runner import assert_tidy_end

from fwconvert.sources import demo

pytestmark = pytest.mark.skipif(os.name == "nt", reason="processes are found by their POSIX session")

OLAH = "0.5.4"

# Settings of a user's pip that would put packages outside the environment.
MISLEADING = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PYTHONPATH", "PYTHONHOME")

CONFIG = """\
[basic]
host = "127.0.0.1"
port = {port}
repos-path = "repos"
hf-scheme = "http"
hf-netloc = "{hub}"
hf-lfs-netloc = "{cdn}"
mirror-scheme = "http"
mirror-netloc = "127.0.0.1:{port}"
mirror-lfs-netloc = "127.0.0.1:{port}"

[accessibility]
offline = {offline}
"""


@pytest.fixture(scope="module")
def olah() -> Path:
    """The Python of an environment that has olah."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    place = demo.cache_folder() / f"olah-{OLAH}-python-{version}"
    if not place.is_dir():
        try:
            install(place)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or ""
            pytest.skip(f"olah {OLAH} cannot be installed: {error} {said[-500:]}".strip())
    return place / "bin/python"


def install(place: Path) -> None:
    """Make the environment under another name: one that was cut off half-way does not count."""
    place.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: value for name, value in os.environ.items() if name not in MISLEADING}
    settings |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    with tempfile.TemporaryDirectory(prefix=".olah-", dir=place.parent) as folder:
        new = Path(folder) / "environment"
        for words in (
            [sys.executable, "-m", "venv", str(new)],
            [str(new / "bin/python"), "-I", "-m", "pip", "install", f"olah=={OLAH}"],
        ):
            subprocess.run(words, env=settings, capture_output=True, text=True, check=True, timeout=300)
        if not place.exists():
            new.rename(place)


@contextmanager
def mirror(olah: Path, folder: Path, hub: HubServer, *, offline: bool) -> Iterator[str]:
    """Have the mirror serve during the block, from its cache in `folder`; give its address."""
    folder.mkdir(exist_ok=True)
    port = free_port()
    origins = {"hub": urlsplit(hub.endpoint).netloc, "cdn": urlsplit(hub.cdn_endpoint).netloc}
    config = folder / "olah.toml"
    config.write_text(CONFIG.format(port=port, offline=str(offline).lower(), **origins))
    words = [
        str(olah),
        "-I",
        "-m",
        "olah.server",
        "--config",
        str(config),
        "--log-path",
        str(folder / "logs"),
    ]
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=hub_runs.environment(hub.endpoint),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        wait_for_port(port, process, folder / "said.txt")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for_port(port: int, process: "subprocess.Popen[bytes]", said: Path) -> None:
    """Wait until somebody listens; skip the test if nobody does."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.skip(f"olah {OLAH} does not start: {said.read_text(errors='replace')[-500:]}")


def test_a_mirror_gives_equal_bytes_and_from_its_cache_again_when_the_hub_is_gone(
    olah: Path, tmp_path: Path
) -> None:
    mini = hub_runs.miniature(tmp_path / "miniature")
    pinned, cache = tmp_path / "mini.json", tmp_path / "olah"
    with HubServer(mini.repository) as hub, mirror(olah, cache, hub, offline=False) as endpoint:
        assert_tidy_end(run(["pin", REPO, hub_runs.FOLDER, "-o", str(pinned)], endpoint), 0)
        assert pinned.read_text() == mini.pinned.read_text()
        assert_tidy_end(run(conversion(pinned, tmp_path / "through"), endpoint), 0)
        assert hub.log
    assert_whole(mini, tmp_path / "through")

    shutil.rmtree(mini.repository)
    with mirror(olah, cache, hub, offline=True) as endpoint:
        words = ["pin", REPO, hub_runs.FOLDER, "--revision", COMMIT, "-o", str(pinned)]
        assert_tidy_end(run(words, endpoint), 0)
        assert pinned.read_text() == mini.pinned.read_text()
        assert_tidy_end(run(conversion(pinned, tmp_path / "from cache"), endpoint), 0)
    assert_whole(mini, tmp_path / "from cache")
