"""Records of a run that are larger than any can be, or whose numbers have no measure."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bounded
import corpus
import msgspec
import pytest
import runner
from runner import PRIVATE

from fwconvert import records
from fwconvert.errors import ManifestError
from fwconvert.store.receipts import JoinReceipt, Receipt
from fwconvert.store.run_manifest import RunManifest

RECIPE = ("--tokenizer", "bytes", "--shard-tokens", "2000", "--workers", "1")
Record = dict[str, Any]


class Run:
    """A run that was made by the command line, and can be gone on with."""

    def __init__(self, sources: Path, out: Path, *flags: str) -> None:
        self.sources, self.out, self.flags = sources, out, flags
        self.words = ("--source", sources, "--out", out, *RECIPE, *flags)
        if not out.exists():
            assert bounded.run(*self.words).code == 0
        self.tree = runner.tree(out)

    def private(self, pattern: str) -> Path:
        return min((self.out / PRIVATE).glob(pattern))

    def forge(self, pattern: str, kind: type[Receipt | JoinReceipt], lie: Callable[[Record], object]) -> None:
        """Change a receipt, with the digest that fits it."""
        path = self.private(pattern)
        record = json.loads(path.read_bytes())
        lie(record)
        found = records.decode(json.dumps({**record, "digest": ""}).encode(), kind, "x")
        path.write_bytes(records.encode(msgspec.structs.replace(found, digest=records.digest(found))))

    def assert_goes_on(self) -> bounded.Ended:
        """Fail unless the run comes to what it was; return how it ended."""
        ended = bounded.run(*self.words, "--rehash")
        assert ended.code == 0, ended.said
        assert runner.tree(self.out) == self.tree
        return ended


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.equal_sources(tmp_path_factory.mktemp("sources"), files=3, rows=30)


@pytest.fixture(scope="module")
def made(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(sources, tmp_path_factory.mktemp("made") / "out")


@pytest.fixture
def run(made: Run, tmp_path: Path) -> Run:
    return Run(made.sources, Path(shutil.copytree(made.out, tmp_path / "out")))


def make_vast(path: Path) -> None:
    """Make a file 8 GB long; it is a hole, and takes no disk."""
    with path.open("r+b") as file:
        file.truncate(8 * 10**9)


@pytest.mark.parametrize(
    "name", ["places.json", "plan.json", "sessions/*.json", "receipts/*.json", "joins/*"]
)
def test_a_record_of_8_gigabytes_is_not_read(run: Run, name: str) -> None:
    make_vast(run.private(name))

    for words in (("status", run.out), ("verify", run.out)):
        bounded.run(*words)
    run.assert_goes_on()


LIES: dict[str, Callable[[Record], object]] = {
    "a tail beyond all measure": lambda job: job["tail"].update(tokens=2**60),
    "a tail that fits its own size": lambda job: (
        job["tail"].update(tokens=2**60, bytes=1024 + 2**61),
        job["counts"].update(tokens=2**60 + sum(line["tokens"] for line in job["shards"])),
    ),
    "a tail of less than nothing": lambda job: job["tail"].update(tokens=-1),
    "tokens that nobody has": lambda job: job["counts"].update(tokens=2**60),
    "a shard that is longer": lambda job: job["shards"][0].update(tokens=2**50, bytes=1024 + 2**51),
    "a shard again and again": lambda job: job.update(shards=job["shards"] * 1000),
    "documents of a tail that has no such index": lambda job: job["tail"].update(documents=2**40),
}


@pytest.mark.parametrize("layout", ["independent", "contiguous"])
@pytest.mark.parametrize("last", ["keep", "drop"])
def test_a_tail_beyond_all_measure_is_withdrawn_with_its_receipt(
    layout: str, last: str, sources: Path, tmp_path: Path
) -> None:
    run = Run(sources, tmp_path / "out", "--layout", layout, "--last", last)
    for lie in ("a tail beyond all measure", "a tail that fits its own size"):
        run.forge("receipts/01*.json", Receipt, LIES[lie])
        bounded.run("status", run.out)
        bounded.run("verify", run.out)
        run.assert_goes_on()


@pytest.mark.parametrize("lie", LIES)
def test_a_receipt_whose_numbers_cannot_be_is_withdrawn(run: Run, lie: str) -> None:
    run.forge("receipts/01*.json", Receipt, LIES[lie])

    assert "01.parquet" in run.assert_goes_on().said


JOIN_LIES: dict[str, Callable[[Record], object]] = {
    "a source that there is not": lambda join: join["segments"][0].update(source=999_999),
    "a source before the first": lambda join: join["segments"][0].update(source=-1),
    "a source of its line": lambda join: join["shard"].update(segments=[[999_999, 0]]),
    "a source that was taken in": lambda join: join.update(
        absorbed={"name": join["shard"]["name"], "source": 999_999, "tokens": 0}
    ),
    "more tokens than all": lambda join: join["segments"][-1].update(tokens=2**60),
    "tokens of its line": lambda join: join["shard"].update(tokens=2**60),
    "a gap": lambda join: join["segments"][-1].update(first=2**40),
}


@pytest.mark.parametrize("lie", JOIN_LIES)
def test_a_joined_shard_of_a_source_that_there_is_not_is_made_again(run: Run, lie: str) -> None:
    run.forge("joins/*.json", JoinReceipt, JOIN_LIES[lie])

    run.assert_goes_on()


def vast_manifest(run: Run, part: bytes, count: int) -> str:
    """Put a run manifest in place in which one line has so many segments; return the name of a shard."""
    path = run.out / "manifest.json"
    record = json.loads(path.read_bytes())
    record["shards"][0]["segments"] = "HERE"
    before, after = json.dumps(record).encode().split(b'"HERE"')
    path.write_bytes(before + b"[" + b",".join([part] * count) + b"]" + after)
    return str(record["shards"][0]["name"])


def test_a_manifest_of_more_lines_than_there_are_files_is_not_decoded(run: Run) -> None:
    name = vast_manifest(run, b"[0,0]", 10_000_000)

    for words in (
        ("verify", run.out),
        ("show", run.out, name),
        ("trace", run.out, f"{name}:5"),
        ("export", run.out, "--eot", "after", "-o", run.out.parent / "new"),
    ):
        ended = bounded.run(*words)
        assert ended.code == 1, ended.said
        assert "far more entries than there are files" in ended.said
    bounded.run("status", run.out)
    run.assert_goes_on()


def test_jobs_that_promise_more_shards_than_lines_take_no_room_for_them(run: Run) -> None:
    path = run.out / "manifest.json"
    record = json.loads(path.read_bytes())
    for job in record["jobs"]:
        job["tokens"] = 300_000 * 2000
    path.write_text(json.dumps(record))
    name = record["shards"][0]["name"]

    for words in (("verify", run.out), ("trace", run.out, f"{name}:5"), ("show", run.out, "--document", "3")):
        assert bounded.run(*words).code in {1, 2}, words


def test_more_sessions_than_a_run_can_have_had_are_told(run: Run) -> None:
    folder = run.out / PRIVATE / "sessions"
    for number in range(100_001):  # An array of Slurm that was requeued a lot has thousands.
        (folder / f"{number}.json").touch()

    ended = bounded.run(*run.words)

    assert ended.code == 1
    assert "more session records" in ended.said


SHARD = (
    b'{"name":"edu_fineweb_train_00123_045.bin","split":"train","tokens":1,"documents":1,"bytes":1,"sha256":"'
    + b"ab" * 32
    + b'","index_sha256":"'
    + b"cd" * 32
    + b'","segments":[[123,0]]}'
)


def test_a_large_manifest_is_read_if_its_files_are_there(run: Run) -> None:
    """A million lines are as good as the files that they tell of; who counts them is asked only then."""
    path = run.out / "manifest.json"
    record = json.loads(path.read_bytes())
    record["shards"] = "HERE"
    before, after = json.dumps(record).encode().split(b'"HERE"')
    small, large = (before + b"[" + b",".join([SHARD] * count) + b"]" + after for count in (30_000, 200_000))
    asked: list[int] = []

    def there() -> int:
        asked.append(1)
        return 200_000

    assert len(records.decode(small, RunManifest, "x", there).shards) == 30_000
    assert not asked
    with pytest.raises(ManifestError, match="far more entries"):
        records.decode(large, RunManifest, "x")
    assert len(records.decode(large, RunManifest, "x", there).shards) == 200_000
