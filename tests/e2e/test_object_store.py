"""Runs and sources in an object store, through the real program and real servers on loopback."""

import json
import shutil
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import buckets
import child
import corpus
import pytest
import runner
import small_tokenizers
from buckets import KINDS, Place
from torture import s3

import fwconvert
from fwconvert.errors import UsageError
from fwconvert.store.bucket import Bucket

if sys.platform != "linux":
    pytest.skip("the servers and the proxy were tried on Linux alone", allow_module_level=True)

SHAPE = ("--tokenizer", "bytes", "--shard-tokens", "3000", "--val-tokens", "1000", "--workers", "1")


# What uses one server runs in one process.
IN_ONE_PROCESS = {kind: pytest.mark.xdist_group(f"bucket-{kind}") for kind in KINDS}


def at(kind: str, *more: object) -> Any:
    """Return the parameters of a test at a server of this kind."""
    return pytest.param(kind, *more, marks=IN_ONE_PROCESS[kind])


@pytest.fixture(scope="module", params=[*map(at, KINDS)])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with buckets.place(request.param, tmp_path_factory.mktemp(request.param)) as made:
        yield made


@pytest.fixture
def rclone(tmp_path: Path) -> Iterator[Place]:
    """Return a place whose server checks signatures."""
    with buckets.place("rclone", tmp_path / "server") as made:
        yield made


@pytest.fixture(autouse=True)
def _calm(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "place" in request.fixturenames:
        request.getfixturevalue("place").proxy.plan = s3.Plan()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for number in range(3):
        corpus.write(folder / f"{number}.parquet", corpus.documents(number * 100, 60))
    return folder


@pytest.fixture(scope="module")
def whole(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same run in a folder."""
    out = tmp_path_factory.mktemp("whole") / "out"
    runner.assert_tidy_end(
        runner.command_line("--source", sources, "--out", out, *SHAPE, capture_output=True), 0
    )
    return out


def assert_nothing_left(place: Place) -> None:
    assert not place.scratch.exists() or [*place.scratch.iterdir()] == []


def test_every_command_on_a_run_in_a_bucket_and_each_twice(
    place: Place, sources: Path, whole: Path, tmp_path: Path
) -> None:
    uri, shard = place.uri("every/command"), "train_00000_001"
    planned = json.loads(place.good("plan", "--source", sources, "--out", uri, *SHAPE, "--json"))
    assert planned["out"] == uri
    for word in ("done: all 3 sources", "already complete"):
        assert word in place.good("--source", sources, "--out", uri, *SHAPE, "--workers", "2")
    assert place.tree("every/command") == runner.tree(whole)
    for _ in range(2):
        assert f"{uri}: complete" in place.good("status", uri)
        assert f"{uri}: no problems" in place.good("verify", uri)
        said = place.good("show", uri, shard)
        assert said == runner.command_line("show", whole, shard, capture_output=True).stdout
        assert place.good("show", uri, "--document", "70") != ""
        traced = place.good("trace", uri, f"{shard}:123", "--json")
        assert (
            traced
            == runner.command_line("trace", whole, f"{shard}:123", "--json", capture_output=True).stdout
        )
    scratch = tmp_path / "scratch"
    export = ("--format", "npy", "--shard-tokens", "2000", "--workers", "1", "--scratch", scratch)
    here = tmp_path / "npy"
    for word in ("done", "already complete"):
        assert word in place.good("export", uri, *export, "-o", place.uri("every/npy"))
        assert word in place.good("export", uri, *export, "-o", here)
    assert place.tree("every/npy") == runner.tree(here)
    assert [*scratch.iterdir()] == []  # It was used.
    for word in ("copied", "nothing was sent"):
        assert word in place.good("copy", whole, place.uri("every/copy"))
        assert word in place.good("copy", uri, tmp_path / "back")
    assert runner.tree(tmp_path / "back") == runner.tree(whole)
    assert "no problems" in place.good("verify", place.uri("every/copy"))
    assert "already complete" in place.good("--source", sources, "--out", place.uri("every/copy"), *SHAPE)
    for run in (uri, place.uri("every/copy")):
        place.good("report", run, "-o", tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        assert 'id="chart-lengths"' in page
        assert 'class="t eot"' in page
        assert "token shards, byte for byte" in place.good("compare", run, whole)
    assert_nothing_left(place)


def test_sources_in_a_bucket_give_the_same_bytes(
    place: Place, sources: Path, whole: Path, tmp_path: Path
) -> None:
    put(place, "sources", {path.name: path.read_bytes() for path in sources.iterdir()})
    out = tmp_path / "out"
    for word in ("done: all 3 sources", "already complete"):
        assert word in place.good("--source", place.uri("sources"), "--out", out, *SHAPE)
    assert runner.tree(out) == runner.tree(whole)
    for _ in range(2):
        traced = json.loads(place.good("trace", out, "train_00000_001:123", "--json"))
        assert traced["missing"] == ""
        there = place.good("trace", whole, "train_00000_001:123", "--json", "--source", place.uri("sources"))
        assert json.loads(there)["missing"] == ""
    both = place.uri("from/bucket")
    place.good("--source", place.uri("sources/[0-2].parquet"), "--out", both, *SHAPE)
    assert place.tree("from/bucket") == runner.tree(whole)
    kept = tmp_path / "kept"
    words = ("--source", place.uri("sources"), "--out", tmp_path / "again", "--keep-source", kept, *SHAPE)
    place.good(*words)
    place.good(*words)
    assert {path.name for path in kept.iterdir()} == {"0.parquet", "1.parquet", "2.parquet"}
    assert_nothing_left(place)


def test_a_source_that_is_not_there_is_refused(place: Place, tmp_path: Path) -> None:
    ended = place.run("--source", place.uri("no/such"), "--out", tmp_path / "out", *SHAPE)

    assert ended.returncode == 2
    assert "there are no parquet, jsonl or Arrow files here" in ended.stderr


def put(place: Place, prefix: str, files: dict[str, bytes]) -> None:
    """Put objects into the bucket, in a process of its own: this one must not have used the client."""
    code = """
        import sys
        from pathlib import Path
        from fwconvert.store.bucket import Bucket
        bucket = Bucket.at(sys.argv[1])
        for path in Path(sys.argv[2]).iterdir():
            bucket.put(path.name, path.read_bytes())
    """
    folder = place.folder / "to-put" / prefix
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    child.run(code, place.uri(prefix), folder, **place.environment())


def test_ranks_convert_into_a_bucket_and_merge_finishes(
    place: Place, sources: Path, whole: Path, tmp_path: Path
) -> None:
    uri = place.uri("by/ranks")
    for _ in range(2):
        place.good("plan", "--source", sources, "--out", uri, *SHAPE, "--save")
    assert place.run("merge", uri).returncode == 1
    for _ in range(2):
        for rank in range(2):
            place.good("--out", uri, "--rank", rank, "--world", 2)
    for _ in range(2):
        place.good("merge", uri, "--scratch", tmp_path / "scratch")

    assert place.tree("by/ranks") == runner.tree(whole)
    assert_nothing_left(place)


# Shards of two parts.
LARGE = ("--tokenizer", "bytes", "--shard-tokens", "4500000", "--val-tokens", "0", "--workers", "1")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    base = tmp_path_factory.mktemp("large")
    corpus.write(base / "sources/a.parquet", [f"{number:07}" * 20_000 for number in range(70)])
    words = ("--source", base / "sources", "--out", base / "out", *LARGE)
    runner.assert_tidy_end(runner.command_line(*words, capture_output=True), 0)
    return base / "sources", runner.tree(base / "out")


@pytest.mark.parametrize(("kind", "at"), [("kill after", 1), ("kill before", 2), ("kill before", 4)])
def test_a_writer_killed_in_the_middle_of_an_upload_leaves_nothing_visible(
    place: Place, large: tuple[Path, dict[str, str]], kind: str, at: int
) -> None:
    sources, expected = large
    prefix = f"killed/{kind.replace(' ', '-')}-{at}"
    # When the upload is begun; at a part; and before its end, which makes it visible. `scripts/torture` has
    # every request.
    plan = s3.Plan(
        kind, at, lambda _method, path: ".bin" in path and ("uploads" in path or "uploadId" in path)
    )
    words = ("--source", sources, "--out", place.uri(prefix), *LARGE)
    code, said = buckets.finished(place.start(*words, plan=plan))

    assert (code, plan.happened) == (-9, 1), said
    names = place.names(prefix)
    assert not [name for name in names if name.endswith(".bin")], (
        "only a receipt's PUT comes after the upload"
    )
    assert not [name for name in names if "/receipts/" in name]
    place.proxy.plan = s3.Plan()
    place.good(*words)
    assert place.tree(prefix) == expected


# Of some faults no server knows, so one of them is enough.
PASSING = [*product(["rclone"], s3.PASSING), *product(["moto"], s3.UNHEARD)]


@pytest.mark.parametrize(("place", "kind"), [at(*one) for one in PASSING], indirect=["place"])
def test_a_fault_that_passes_is_not_even_noticed(
    place: Place, large: tuple[Path, dict[str, str]], kind: str
) -> None:
    sources, expected = large
    prefix = f"passing/{kind.replace(' ', '-')}"
    plan = s3.Plan(kind, 2, lambda _method, path: "uploadId" in path)
    code, said = buckets.finished(
        place.start("--source", sources, "--out", place.uri(prefix), *LARGE, plan=plan)
    )

    assert (code, plan.happened) == (0, 1), said
    place.proxy.plan = s3.Plan()
    assert place.tree(prefix) == expected


@pytest.mark.parametrize(
    ("place", "kind"), [at(*one) for one in zip(KINDS, s3.LASTING, strict=True)], indirect=["place"]
)
def test_a_store_that_is_gone_stops_the_run_and_the_same_command_goes_on(
    place: Place, sources: Path, whole: Path, kind: str
) -> None:
    uri = place.uri(f"gone/{kind.partition(' ')[0]}")
    plan = s3.Plan(kind, 30)
    code, said = buckets.finished(place.start("--source", sources, "--out", uri, *SHAPE, plan=plan))

    assert code == 1, said
    assert "an object store cannot be used" in said
    assert "run the same command again" in said
    place.proxy.plan = s3.Plan()
    place.good("--source", sources, "--out", uri, *SHAPE)
    assert place.tree(f"gone/{kind.partition(' ')[0]}") == runner.tree(whole)
    assert_nothing_left(place)


def test_uploads_that_killed_processes_have_left_are_aborted(
    tmp_path: Path, large: tuple[Path, dict[str, str]]
) -> None:
    code = """
        import sys
        from fwconvert.store.bucket import Bucket
        print(*(Bucket.at(uri).abort_uploads(0.0) for uri in sys.argv[1:]))
    """
    with buckets.place("moto", tmp_path) as place:
        plan = s3.Plan("kill after", 2, lambda _method, path: "uploadId" in path)
        words = ("--source", large[0], "--out", place.uri("run"), *LARGE)
        assert buckets.finished(place.start(*words, plan=plan))[0] == -9
        place.proxy.plan = s3.Plan()

        # How old they are nobody can tell here: to moto all of them began in 2010. Those of a whole bucket
        # are left, in which others may be at work.
        places = (place.uri("other"), f"s3://{s3.BUCKET}", place.uri("run"), place.uri("run"))
        assert child.run(code, *places, **place.environment()).split() == ["0", "0", "1", "0"]


# The proxy cannot sign the request by which it aborts an upload, and moto does not ask for that.
@pytest.mark.parametrize("place", [at("moto")], indirect=True)
def test_an_upload_that_somebody_aborts_begins_anew(place: Place, large: tuple[Path, dict[str, str]]) -> None:
    sources, expected = large
    plan = s3.Plan(s3.ABORTED, 2, lambda _method, path: "uploadId" in path)
    words = ("--source", sources, "--out", place.uri("aborted"), *LARGE)
    code, said = buckets.finished(place.start(*words, plan=plan))

    assert (code, plan.happened) == (0, 1), said
    place.proxy.plan = s3.Plan()
    assert place.tree("aborted") == expected


def test_a_notice_that_somebody_removes_is_given_again(place: Place) -> None:
    code = """
        import sys, time
        from fwconvert.store import lease
        from fwconvert.store.bucket import Bucket, Changed
        lease._BEAT_SECONDS = 0.05
        bucket = Bucket.at(sys.argv[1])
        with lease.Lease(bucket, "lock", "ours"):
            for _ in range(2):
                bucket.remove("lock")
                deadline = time.monotonic() + 60
                while bucket.look("lock") is None and time.monotonic() < deadline:
                    time.sleep(0.02)
                print(lease.holder(bucket, "lock").partition(", ")[2])
            held = bucket.look("lock")
        bucket.remove("lock")
        try:
            bucket.put("lock", b"", instead_of=held.version)
        except Changed:
            print("changed")
    """

    said = child.run(code, place.uri("cleaned"), **place.environment()).splitlines()

    # rclone heeds no condition.
    assert said == ["session ours", "session ours", *(["changed"] if place.server.kind == "moto" else [])]


# A session that takes another for dead after so many seconds.
IMPATIENT = """
    import sys
    from fwconvert import cli
    from fwconvert.store import lease
    lease._SILENT_SECONDS = float(sys.argv[1])
    sys.exit(cli.main(sys.argv[2:]))
"""


def test_two_drivers_at_once_do_no_harm(place: Place, sources: Path, whole: Path) -> None:
    """The second does not see the first: as if that had been taken for dead, and went on."""
    for number, (first_at, second_at) in enumerate(((".docs", ".docs"), ("/receipts/", ".docs"))):
        prefix = f"two/{number}"
        words = ("--source", sources, "--out", place.uri(prefix), *SHAPE)
        plans = [_held_at_a_put(first_at), _held_at_a_put(second_at)]
        first = place.start(*words, plan=plans[0])
        runner.wait_until(lambda: plans[0].happened, first)  # noqa: B023  # before the next round
        place.proxy.plan = plans[1]
        second = child.start(IMPATIENT, 0, *words, **place.environment())
        runner.wait_until(lambda: plans[1].happened, second)  # noqa: B023  # the same
        assert [plan.happened for plan in plans] == [1, 1]
        for plan in plans:
            plan.let_go.set()
        said_by_second, _ = second.communicate(timeout=runner.PATIENCE)
        code_of_first, said = buckets.finished(first)

        assert (code_of_first, second.returncode) == (0, 0), said + said_by_second
        assert "no problems" in place.good("verify", place.uri(prefix))
        assert place.tree(prefix) == runner.tree(whole)
    assert_nothing_left(place)


def _held_at_a_put(part_of_name: str) -> s3.Plan:
    return s3.Plan(s3.HELD, 1, lambda method, path: method == "PUT" and part_of_name in path)


def test_a_session_that_was_frozen_for_long_loses_the_run_and_does_no_harm(
    place: Place, sources: Path, whole: Path
) -> None:
    uri = place.uri("held")
    words = ("--source", sources, "--out", uri, *SHAPE)
    plan = s3.Plan(s3.HELD, 1, lambda _method, path: path.endswith("000.docs"))
    first = place.start(*words, plan=plan)
    runner.wait_until(lambda: plan.happened, first)
    for member in runner.members(first.pid):
        member.suspend()
    plan.let_go.set()
    try:
        # Its notice does not change any more, though its process is there: after a while it counts as dead.
        assert "done" in child.run(IMPATIENT, 2, *words, **place.environment())
    finally:
        for member in runner.members(first.pid):
            member.resume()
    code, said = buckets.finished(first)

    assert (code in (0, 1), plan.happened) == (True, 1), said
    assert "no problems" in place.good("verify", uri)
    assert place.tree("held") == runner.tree(whole)


def test_a_second_session_is_refused_while_the_first_lives(place: Place, sources: Path) -> None:
    uri = place.uri("lives")
    code = """
        import sys
        from fwconvert.store.local import open_store
        with open_store(sys.argv[1], "theirs").lock():
            print("held", flush=True)
            sys.stdin.read()
    """
    holder = child.start(code, uri, **place.environment())
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        ended = place.run("--source", sources, "--out", uri, *SHAPE)
        assert ended.returncode == 2
        assert f"pid {holder.pid} on host {runner.HOST}, session theirs" in ended.stderr
    finally:
        holder.communicate("", timeout=runner.PATIENCE)

    assert "done" in place.good("--source", sources, "--out", uri, *SHAPE)


def test_credentials_of_a_profile_are_used(rclone: Place, sources: Path) -> None:
    profile = rclone.folder / "credentials"
    profile.write_text(f"[mine]\naws_access_key_id = {s3.KEY}\naws_secret_access_key = {s3.SECRET}\n")
    changes = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "mine"}
    changes["AWS_SHARED_CREDENTIALS_FILE"] = str(profile)
    uri = rclone.uri("by/profile")

    assert "done" in rclone.good("--source", sources, "--out", uri, *SHAPE, **changes)
    assert "complete" in rclone.good("status", uri, **changes)
    unknown = rclone.run("status", uri, **{**changes, "AWS_PROFILE": "nobody"})
    assert unknown.returncode == 2
    assert "nobody" in unknown.stderr


def test_wrong_credentials_are_an_error_without_them(rclone: Place, sources: Path) -> None:
    ended = rclone.run(
        "--source", sources, "--out", rclone.uri("x"), *SHAPE, AWS_SECRET_ACCESS_KEY="canaryWrong"
    )

    assert ended.returncode == 1
    assert "403" in ended.stderr or "denied" in ended.stderr, ended.stderr
    assert "AWS_PROFILE" in ended.stderr


def test_no_secret_is_in_any_object_or_log(rclone: Place, sources: Path) -> None:
    uri = rclone.uri("clean")
    rclone.good("--source", sources, "--out", uri, *SHAPE)
    plan = rclone.proxy.plan = s3.Plan("500 from here on", 5)
    rclone.run("verify", uri)

    assert plan.happened
    assert rclone.server.folder is not None
    for path in (*rclone.server.folder.rglob("*"), *(rclone.folder / "cache").rglob("*")):
        assert not path.is_file() or b"canary" not in path.read_bytes().lower(), path


@pytest.mark.parametrize(
    "place_given",
    ["s3://canaryUser:canaryKey@bucket/x", "s3://bucket/x?secret=canary", "s3://bucket/x#canary"],
)
def test_an_address_with_a_secret_is_refused_and_not_shown(place_given: str) -> None:
    ended = runner.command_line("status", place_given, capture_output=True)

    assert ended.returncode == 2
    assert "canary" not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "given", ["ftp://bucket/x", "s3://", "s3:///x", "s3:/bucket/x", "s3://bucket/../x", "http://x/y"]
)
def test_a_place_that_is_none_is_refused(given: str, sources: Path, tmp_path: Path) -> None:
    for words in (("--source", sources, "--out", given), ("--source", given, "--out", tmp_path / "out")):
        ended = runner.command_line(*words, *SHAPE, capture_output=True, cwd=tmp_path)

        assert ended.returncode == 2, ended.stderr
        assert "s3://bucket/some/prefix" in ended.stderr
    assert [*tmp_path.iterdir()] == []


def test_an_address_that_was_made_a_path_is_refused(sources: Path) -> None:
    recipe = fwconvert.recipe(source=str(sources), tokenizer="bytes")
    with pytest.raises(UsageError, match="an address of an object store cannot be a Path"):
        fwconvert.convert(recipe, Path("s3://bucket/x"))
    assert not Path("s3:").exists()


def test_the_scheme_of_an_address_may_be_in_capitals() -> None:
    assert Bucket.at("S3://bucket/x").uri == "s3://bucket/x"


def test_without_the_extra_an_error_names_it_and_all_else_works(tmp_path: Path, sources: Path) -> None:
    code = """
        import sys
        sys.modules["obstore"] = None
        from fwconvert import cli
        sys.exit(cli.main(sys.argv[1:]))
    """
    for words in (
        ("--source", sources, "--out", "s3://bucket/x", *SHAPE),
        ("--source", "s3://bucket/x", "--out", tmp_path / "out", *SHAPE),
        ("status", "s3://bucket/x"),
        ("copy", sources, "s3://bucket/x"),
    ):
        ended = child.ended(code, *words)
        assert ended.returncode == 2, ended.stderr
        assert "fwconvert[s3]" in ended.stderr or "no run manifest" in ended.stderr
    assert child.ended(code, "--source", sources, "--out", tmp_path / "out", *SHAPE).returncode == 0


def test_a_loader_serves_a_bucket_as_it_serves_a_folder(place: Place, whole: Path) -> None:
    place.good("copy", whole, place.uri("loaded"))
    code = """
        import sys
        import numpy as np
        from fwconvert.loader import Loader
        for order in ("sequential", "shuffled", "documents"):
            here = [*Loader(sys.argv[1], seq_len=64, batch=4, order=order)]
            # Copies of all shards; of one at a time, or ranges.
            for cache_bytes in (2**30, 7000):
                loader = Loader(sys.argv[2], seq_len=64, batch=4, order=order, cache_bytes=cache_bytes)
                there = [*loader]
                assert len(here) == len(there) > 10
                assert all(map(np.array_equal, here, there)), (order, cache_bytes)
                some = Loader(sys.argv[2], seq_len=64, batch=4, order=order, cache_bytes=cache_bytes)
                first = next(iter(some))
                again = Loader(sys.argv[2], seq_len=64, batch=4, order=order, cache_bytes=cache_bytes)
                assert np.array_equal(next(iter(again.resume(some.state()))), here[1])
                assert np.array_equal(first, here[0])
        print("same")
    """

    assert child.run(code, whole, place.uri("loaded"), **place.environment()).strip() == "same"
    assert_nothing_left(place)


def test_a_forked_process_is_told_that_it_cannot(place: Place, whole: Path) -> None:
    place.good("copy", whole, place.uri("forked"))
    code = """
        import os, sys
        from fwconvert.errors import UsageError
        from fwconvert.inspection.status import status
        status(sys.argv[1])
        pid = os.fork()
        if pid == 0:
            try:
                status(sys.argv[1])
            except UsageError as error:
                os._exit(7 if "spawn" in str(error) else 8)
            os._exit(9)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """

    assert child.run(code, place.uri("forked"), **place.environment()).strip() == "7"


def test_damage_is_found_and_repaired(rclone: Place, sources: Path, whole: Path) -> None:
    uri, prefix = rclone.uri("damaged"), "damaged"
    rclone.good("--source", sources, "--out", uri, *SHAPE)
    code = """
        import sys
        from fwconvert.store.bucket import Bucket
        bucket = Bucket.at(sys.argv[1])
        shards = sorted(found.name for found in bucket.list() if "_train_" in found.name)
        bucket.put(shards[0], bucket.read(shards[0], 2**20)[:-1] + b"?")
        bucket.remove(shards[1])
    """
    child.run(code, uri, **rclone.environment())

    said = rclone.run("verify", uri)
    assert said.returncode == 1
    assert "is damaged" in said.stdout
    assert "is missing" in said.stdout
    assert rclone.run("status", uri).returncode == 1
    rclone.good("--source", sources, "--out", uri, *SHAPE, "--rehash")
    assert rclone.tree(prefix) == runner.tree(whole)


def test_a_copy_that_was_cut_off_goes_on_and_a_damaged_file_is_never_copied(
    rclone: Place, whole: Path, tmp_path: Path
) -> None:
    uri = rclone.uri("copy")
    plan = s3.Plan("kill after", 12, lambda method, _path: method == "PUT")
    code, said = buckets.finished(rclone.start("copy", whole, uri, plan=plan))
    assert (code, plan.happened) == (-9, 1), said
    rclone.proxy.plan = s3.Plan()
    assert "no run manifest" in rclone.run("verify", uri).stderr

    went_on = rclone.good("copy", whole, uri)
    assert "copied" in went_on
    assert ", of which 0 were there" not in went_on
    assert rclone.tree("copy") == runner.tree(whole)

    bad = tmp_path / "bad"
    shutil.copytree(whole, bad)
    shard = min(bad.glob("*train*.bin"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
    for target in (rclone.uri("bad"), tmp_path / "new"):
        ended = rclone.run("copy", bad, target)
        assert ended.returncode == 1
        assert "damaged" in ended.stderr
        assert "no run manifest" in rclone.run("verify", target).stderr


def test_a_copy_of_another_run_is_refused(rclone: Place, sources: Path, whole: Path) -> None:
    other = rclone.uri("other")
    rclone.good("--source", sources, "--out", other, *SHAPE, "--eot", "after")
    ended = rclone.run("copy", whole, other)

    assert ended.returncode == 2
    assert "another recipe" in ended.stderr


def test_a_tokenizer_of_a_file_is_kept_in_the_bucket(rclone: Place, sources: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    path = small_tokenizers.written(tmp_path, "tokenizer.json", small_tokenizers.byte_level())
    uri = rclone.uri("tokenizer")
    words = ("--source", sources, "--shard-tokens", "3000", "--workers", "1", "--tokenizer", path)
    assert "done: all 3 sources" in rclone.good(*words, "--out", uri)
    here = tmp_path / "here"
    runner.assert_tidy_end(runner.command_line(*words, "--out", here, capture_output=True), 0)
    assert rclone.tree("tokenizer") == runner.tree(here)
    path.unlink()
    assert "already complete" in rclone.good(*words, "--out", uri)
    assert f"{uri}: no problems" in rclone.good("verify", uri)
    assert "document 1 " in rclone.good("show", uri, "--document", "2")
    assert "done" in rclone.good(
        "export", uri, "--format", "npy", "--eot-token", "<|begin|>", "-o", rclone.uri("npy")
    )
    assert "document 1 " in rclone.good("show", rclone.uri("npy"), "--document", "2")
