"""Every command that README shows is run by the real program, as a user types it.

What a reader puts in is put in here: a miniature of the dataset on a loopback hub stands for 10B and 100B,
and a bucket on loopback for the reader's own. Its files are small, so shards are, too.
"""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import buckets
import corpus
import forked
import hub_runs
import pytest
import runner
import serving
from buckets import Place
from hub_server import REPO, HubServer

README = (runner.REPOSITORY / "README.md").read_text()
FOLDER = "sample/10BT"
SMALL = ["--tokenizer", "bytes", "--shard-tokens", "20000"]

# Where commands are run that are not run here.
ELSEWHERE = {
    "scripts/run --version demo": "test_documents.py, which has what it prints",
    "scripts/run": "below: the program is started without the script, which test_scripts.py tests",
    "pip install": "test_wheel.py",
    "fwconvert --version 100B --out /shared/OUT --scratch /local/disk --engine ray": "test_ray.py",
}


@dataclass(frozen=True)
class Command:
    """A line of README that a reader can type."""

    words: tuple[str, ...]

    @property
    def verb(self) -> str:
        return self.words[0] if self.words and not self.words[0].startswith("-") else "convert"


def blocks() -> list[list[str]]:
    """Return the commands of each block that has any, without the remarks that stand after them."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    plain = [block for kind, block in found if not kind]
    lines = [[re.sub(r"\s+#.*", "", line) for line in block.splitlines()] for block in plain]
    typed = ("fwconvert", "pip", "scripts")
    return [block for block in lines if all(line.startswith(typed) for line in block)]


def commands(block: list[str]) -> list[Command]:
    return [
        Command(tuple(shlex.split(line)[1:]))
        for line in block
        if not any(line.startswith(one) for one in ELSEWHERE)
    ]


@dataclass(frozen=True)
class Reader:
    """Somebody who types what README shows, with a dataset, a folder, and a bucket of their own."""

    folder: Path
    hub: HubServer
    # What stands in README, and what this reader puts there.
    own: dict[str, str]
    bucket: Place | None = None

    def words(self, command: Command) -> list[str]:
        words = [self.own.get(word, word) for word in command.words]
        makes = command.verb == "convert" and "--rank" not in words
        return [*words, *(SMALL if makes or command.verb == "plan" else ())]

    def types(self, command: Command, code: int = 0) -> str:
        """Run a command, which must end so; return what it prints."""
        settings = {"FWCONVERT_CACHE": str(self.folder / "cache"), "PYTHONPATH": str(runner.REPOSITORY)}
        if self.bucket:
            settings |= self.bucket.environment()
        words = self.words(command)
        ended = forked.run(
            [sys.executable, "-P", "-m", "fwconvert", *words],
            cwd=self.folder,
            env=hub_runs.environment(self.hub.endpoint, **settings),
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=runner.PATIENCE,
        )
        assert ended.returncode == code, (words, ended.stdout, ended.stderr)
        assert "Traceback" not in ended.stderr
        said: str = ended.stdout
        return said


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three files, with the columns of FineWeb-Edu that README names."""
    repository = tmp_path_factory.mktemp("hub")
    for number in range(3):
        texts = corpus.documents(1_000 * number, 600)
        corpus.write_columns(
            repository / FOLDER / f"{number:03d}_00000.parquet",
            text=texts,
            id=[f"<urn:{number}:{row}>" for row in range(len(texts))],
            url=[f"https://example.com/{row}" for row in range(len(texts))],
            int_score=[3 + row % 3 for row in range(len(texts))],
        )
    return repository


@pytest.fixture(scope="module")
def hub(repository: Path) -> Iterator[HubServer]:
    with HubServer(repository) as hub:
        yield hub


@pytest.fixture(scope="module")
def pinned(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pinned") / "mini.json"
    runner.assert_tidy_end(hub_runs.run(["pin", REPO, FOLDER, "-o", str(path)], hub.endpoint), 0)
    return path


@pytest.fixture
def own(repository: Path, pinned: Path, tmp_path: Path) -> dict[str, str]:
    local = str(tmp_path / "local")
    return {"10B": str(pinned), "100B": str(pinned), "DIR": str(repository), "/local": local}


def test_every_command_of_the_readme_is_run_somewhere() -> None:
    lines = [line for block in blocks() for line in block]
    assert len(lines) > 20
    known = {line for block in HERE for line in block}
    assert [line for line in lines if line not in known and not any(map(line.startswith, ELSEWHERE))] == []
    # In the text: the one that a Slurm user types, and the tests of the clone, of which this is one.
    shown = set(re.findall(r"`([^`]*\b(?:scripts/\w[^` ]*|fwconvert) [^`]*)`", README))
    assert {line for line in shown if "sbatch" in line} == {SLURM}


SLURM = "OUT=/shared/OUT WORLD=16 scripts/slurm.sbatch --version 100B"
FIRST, USE, RANKS, BUCKET = [
    block for block in blocks() if not block[0].startswith("scripts/run --") and "ray" not in block[0]
]
HERE = [FIRST, USE, RANKS, BUCKET]


def test_the_first_two_lines(own: dict[str, str], hub: HubServer, tmp_path: Path) -> None:
    reader = Reader(tmp_path, hub, own)
    first, again = (reader.types(command) for command in commands(FIRST))
    assert first.startswith("done: all 3 sources are converted")
    assert again.startswith("already complete; nothing was changed")


def test_the_lines_of_use_it(own: dict[str, str], hub: HubServer, tmp_path: Path) -> None:
    # The second run to compare with is the filtered one, which differs from the first.
    reader = Reader(tmp_path, hub, own | {"OTHER": "GOOD"})
    for command in commands(USE):
        if command.verb == "browse":
            with serving.served(tmp_path / command.words[1]) as (_, process):
                process.send_signal(signal.SIGINT)
                assert process.wait(runner.PATIENCE) == 0
        else:
            said = reader.types(command, code=1 if command.verb == "compare" else 0)
            assert said.strip(), command


def test_the_lines_of_ranks(own: dict[str, str], hub: HubServer, tmp_path: Path) -> None:
    plan, rank, merge = commands(RANKS)
    for number in range(2):
        reader = Reader(tmp_path, hub, own | {"16": "2", "3": str(number)})
        if number == 0:
            reader.types(plan)
        reader.types(rank)
    assert reader.types(merge).startswith("done: all 3 sources are converted")


def test_the_lines_of_object_stores(own: dict[str, str], hub: HubServer, tmp_path: Path) -> None:
    convert, copy = commands(BUCKET)
    with buckets.place("moto", tmp_path / "bucket") as bucket:
        mine = own | {"s3://bucket/edu10B": bucket.uri("edu10B")}
        Reader(tmp_path, hub, mine, bucket).types(convert)
        Reader(tmp_path, hub, own).types(Command(("--source", "DIR", "--out", "OUT")))
        mine["s3://bucket/edu10B"] = bucket.uri("copied")
        assert Reader(tmp_path, hub, mine, bucket).types(copy).startswith("copied")


def test_the_lines_after_the_demo(tmp_path: Path) -> None:
    demo = re.findall(r"```demo\n(.*?)```", README, re.DOTALL)[0]
    lines = re.findall(r"^  scripts/run (.*)", demo, re.MULTILINE)
    assert len(lines) == 4

    def types(words: list[str]) -> subprocess.CompletedProcess[str]:
        return runner.command_line(*words, cwd=tmp_path)

    runner.assert_tidy_end(types(["--version", "demo"]), 0)
    for line in lines:
        command = Command(tuple(shlex.split(line)))
        if command.verb == "browse":
            with serving.served(tmp_path / command.words[1]):
                continue
        ended = types(list(command.words))
        # A plan that does not fit on this machine's disk is a plan all the same.
        assert ended.returncode in ({0, 1} if command.verb == "plan" else {0}), ended.stderr
        assert ended.stdout
