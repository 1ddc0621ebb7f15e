"""What hostile hubs, files and folders never achieved, through the real program: so that it stays so."""

import json
import random
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bounded
import corpus
import hub_runs
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import receipt_files
import runner
from hub_faults import Answer, Body, Exchange, Faults, Origin, Request
from hub_server import COMMIT, REPO

from fwconvert import records
from fwconvert.store import layout, saved_recipe
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import JoinReceipt, Receipt

RUN = Path(__file__).parent / "run"
CANARY = "hf_canary0123456789"
GOOD = {"type": "file", "path": "a.parquet", "size": 5, "lfs": {"oid": "ab" * 32}}


@contextmanager
def serving(answer: Callable[[Request], Answer]) -> Iterator[tuple[str, list[Exchange]]]:
    """Yield the address of a server that answers so, and what it was asked."""
    log: list[Exchange] = []
    origin = Origin("hub", answer, faults=Faults(), log=log)
    try:
        yield origin.endpoint, log
    finally:
        origin.stop()


def json_answer(value: object, **headers: str) -> Answer:
    text = json.dumps(value).encode()
    return Answer(200, {"Content-Type": "application/json", **headers}, Body(text, len(text)))


def hub_with(*entries: dict[str, Any]) -> Callable[[Request], Answer]:
    """Return a hub that lists these, and names a commit."""
    info = json_answer({"id": REPO, "sha": COMMIT, "siblings": []})
    return lambda request: json_answer(entries) if "/tree/" in request.path else info


LISTED_WRONG: dict[str, dict[str, Any]] = {
    "a name that leads upwards": {"path": "../a.parquet"},
    "a name that leads upwards from within": {"path": "data/../../a.parquet"},
    "an absolute name": {"path": "/a.parquet"},
    "a drive": {"path": "C:a.parquet"},
    "a backslash": {"path": "..\\a.parquet"},
    "an empty part": {"path": "a//b.parquet"},
    "a null byte": {"path": "a\0b.parquet"},
    "an escape": {"path": "\x1b[2Ja.parquet"},
    "half a character": {"path": "\ud800.parquet"},
    "a name beyond all measure": {"path": "a" * 2000 + ".parquet"},
    "a size below zero": {"size": -1},
    "a size that is no number": {"size": "5"},
    "a sha256 that is none": {"lfs": {"oid": "sha256:" + "ab" * 32}},
    "a sha256 that leads elsewhere": {"lfs": {"oid": "../" * 10 + "a"}},
}


@pytest.mark.parametrize("wrong", LISTED_WRONG.values(), ids=LISTED_WRONG.keys())
def test_a_listing_with_what_cannot_be_is_refused_and_nothing_is_written(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    with serving(hub_with(GOOD, {**GOOD, **wrong})) as (endpoint, _):
        environment = hub_runs.environment(endpoint)
        ended = bounded.run("pin", REPO, "-o", tmp_path / "m.json", env=environment, cwd=tmp_path)

    assert ended.code != 0, ended.said
    assert "\x1b" not in ended.said
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_to_ask_what_there_is_believes_no_name_either(tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = tmp_path / "m.json"
    listed = {"name": "m", "dataset": REPO, "revision": COMMIT, "folder": "", "files": []}
    totals = {"files": 1, "bytes": 5, "rows": 0, "tokens": 0}
    manifest.write_text(
        json.dumps({"format": "fwconvert source manifest 1", **listed, "totals": totals}), "utf-8"
    )
    with serving(hub_with({**GOOD, "path": "../../a.parquet"})) as (endpoint, log):
        environment = hub_runs.environment(endpoint)
        ended = bounded.run(*hub_runs.conversion(manifest, out), env=environment, cwd=tmp_path)

    assert ended.code != 0, ended.said
    assert "/resolve/" not in "".join(exchange.request.path for exchange in log)
    assert {path.name for path in tmp_path.iterdir()} == {"m.json"}


def test_the_token_follows_neither_a_redirect_nor_a_link_to_another_origin(tmp_path: Path) -> None:
    with serving(hub_with(GOOD)) as (elsewhere, others):

        def answer(request: Request) -> Answer:
            if "/tree/" not in request.path:
                return Answer(307, {"Location": f"{elsewhere}{request.path}"})
            if "cursor" in request.query:
                return json_answer([])
            return json_answer([GOOD], Link=f'<{elsewhere}{request.raw_path}?cursor=b>; rel="next"')

        with serving(answer) as (endpoint, asked):
            environment = hub_runs.environment(endpoint, HF_TOKEN=CANARY)
            ended = bounded.run("pin", REPO, "-o", tmp_path / "m.json", env=environment, cwd=tmp_path)

    assert {exchange.request.authorization for exchange in asked} == {f"Bearer {CANARY}"}
    assert {exchange.request.authorization for exchange in others} <= {None}
    assert CANARY not in ended.said
    assert all(CANARY.encode() not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="wants a limit of memory that is kept")
def test_a_bomb_ends_its_worker_at_its_limit_and_costs_the_driver_nothing(tmp_path: Path) -> None:
    """Some hundred bytes that unpack to 2 GB: one text of 1 MB, named in each of 2,000 rows."""
    sources, out = tmp_path / "sources", tmp_path / "out"
    corpus.write(sources / "00.parquet", corpus.documents(0, 20))
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 1_000_000]))
    pq.write_table(pa.table({"text": text}), sources / "01.parquet", compression="zstd")

    recipe = ("--tokenizer", "bytes", "--shard-tokens", 2000, "--workers", 1, "--worker-memory", "400M")
    ended = bounded.run("--source", sources, "--out", out, *recipe, seconds=240)

    assert ended.code == 1
    assert "too much memory" in ended.said
    assert [path.name[:2] for path in (out / runner.PRIVATE / "receipts").iterdir()] == ["00"]


def mutant(good: bytes, chance: random.Random) -> bytes:
    """Return a parquet file with some bytes of its footer changed, whose length is right."""
    length = int.from_bytes(good[-8:-4], "little")
    footer = bytearray(good[-8 - length : -8])
    for _ in range(chance.choice((1, 2, 4))):
        at = chance.randrange(len(footer))
        put = (
            bytes([footer[at] ^ 1 << chance.randrange(8)]),
            b"\xff" * 9 + b"\x01",
            b"",
            b"\x19\xfc\xff\xff\x7f",
        )
        footer[at : at + 1] = chance.choice(put)
    return good[: -8 - length] + bytes(footer) + struct.pack("<I", len(footer)) + b"PAR1"


def test_no_mutated_footer_ends_the_driver(tmp_path: Path) -> None:
    good, chance = (RUN / "sources/00.parquet").read_bytes(), random.Random(20240520)
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "000.parquet").write_bytes(good)
    for number in range(1, 300):
        (sources / f"{number:03}.parquet").write_bytes(mutant(good, chance))

    ended = bounded.run(
        "plan", "--source", sources, "--out", tmp_path / "out", "--tokenizer", "bytes", seconds=240
    )

    assert ended.code in {0, 1}, ended.said


def test_no_mutated_footer_ends_a_run(tmp_path: Path) -> None:
    good, chance = (RUN / "sources/00.parquet").read_bytes(), random.Random(17)
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "00.parquet").write_bytes(good)
    for number in range(1, 20):
        (sources / f"{number:02}.parquet").write_bytes(mutant(good, chance))
    words = ("--source", sources, "--out", tmp_path / "out", "--tokenizer", "bytes", "--shard-tokens", 300)

    ended = bounded.run(*words, "--workers", 1, "--worker-memory", "1G", seconds=240)

    assert ended.code in {0, 1}, ended.said
    receipts = (tmp_path / "out" / runner.PRIVATE / "receipts").iterdir()
    assert "00" in {path.name[:2] for path in receipts}, "the good one is converted"


@pytest.fixture
def run(tmp_path: Path) -> LocalStore:
    """A finished run beside which something precious lies."""
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "run" / "precious.bin").write_bytes(b"precious")
    return LocalStore(tmp_path / "run" / "out")


def gone_on(run: LocalStore) -> bounded.Ended:
    words = ("--source", run.root.parent / "sources", "--out", run.root, "--workers", 1)
    return bounded.run(*words, "--tokenizer", "bytes", "--shard-tokens", 300)


def assert_untouched(run: LocalStore, whole: dict[str, str]) -> None:
    assert (run.root.parent / "precious.bin").read_bytes() == b"precious"
    assert {path.name for path in run.root.parent.iterdir()} == {"out", "sources", "tails", "precious.bin"}
    assert runner.tree(run.root) == whole


def test_the_kept_run_is_one_that_the_program_has_nothing_to_add_to(run: LocalStore) -> None:
    whole = runner.tree(run.root)

    ended = gone_on(run)

    assert ended.code == 0, ended.said
    assert "nothing was changed" in ended.said
    assert_untouched(run, whole)


@pytest.mark.parametrize("way", ["../precious.bin", "index/../../precious.bin", "ABSOLUTE"])
@pytest.mark.parametrize("kind", [Receipt, JoinReceipt])
def test_receipts_that_lead_outside_touch_nothing_there_and_are_made_again(
    run: LocalStore, way: str, kind: type[Receipt] | type[JoinReceipt]
) -> None:
    whole, recipe_id = runner.tree(run.root), saved_recipe.read_plan(run).recipe_id
    name = way.replace("ABSOLUTE", str(run.root.parent / "precious.bin"))
    made: Receipt | JoinReceipt
    if kind is Receipt:
        path = min(run.local(layout.RECEIPTS).iterdir())
        job = receipt_files.read(path, Receipt, recipe_id)
        made = msgspec.structs.replace(job, shards=(msgspec.structs.replace(job.shards[0], name=name),))
    else:
        path = min(run.local(layout.JOINS).iterdir())
        join = receipt_files.read(path, JoinReceipt, recipe_id)
        made = msgspec.structs.replace(join, shard=msgspec.structs.replace(join.shard, name=name))
    receipt_files.write(made, path)  # Sealed, as who means ill would do it.

    # What the joined shard came from is gone, so all of it is converted again.
    ended = gone_on(run)

    assert ended.code == 0, ended.said
    assert_untouched(run, whole)


def test_a_run_manifest_that_leads_outside_reads_nothing_there(run: LocalStore) -> None:
    found = json.loads(run.local(layout.MANIFEST).read_text("utf-8"))
    found["shards"][0]["name"] = "../precious.bin"
    run.local(layout.MANIFEST).write_bytes(records.encode(found))

    for words in (
        ("verify", run.root),
        ("show", run.root, "precious"),
        ("trace", run.root, "precious.bin:0"),
    ):
        ended = bounded.run(*words)
        assert ended.code != 0, ended.said
    assert (run.root.parent / "precious.bin").read_bytes() == b"precious"
