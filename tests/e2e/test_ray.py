"""Conversions on a real Ray cluster of several nodes: the bytes of a local run, whatever dies.

One cluster serves all tests, because it takes long to start; one that loses a node gets another. Programs
connect to it by its address, as users' do. What is to happen while a worker is at a source happens by
`gates`: the worker itself waits, or dies, when it opens that source. So nothing depends on who is faster.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import buckets
import corpus
import hub_runs
import pytest
import ray_cluster
import runner
from buckets import Place
from hub_runs import Miniature
from hub_server import HubServer
from ray_cluster import RayCluster
from runner import PRIVATE
from torture import s3

from fwconvert.run.scheduler import LOST_TRIES

pytest.importorskip("ray", reason="Ray is not installed (the extra `ray`)")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc, by their titles"),
    pytest.mark.xdist_group("ray"),
]

FILES = 6
NAMES = [f"{number}.parquet" for number in range(FILES)]
RECIPE: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 10_000}


@dataclass(frozen=True)
class Cable:
    """Two virtual network cards: one here, the other in a network namespace of the same name."""

    name: str
    here: str
    there: str
    # Why there is none.
    missing: str = ""

    @property
    def within(self) -> list[str]:
        """The words before a command that is to be on the other end."""
        return ["ip", "netns", "exec", self.name]


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    """A cable between this machine and a host that is a network namespace, if one can be made."""
    pid = os.getpid()
    # Another process of tests may have one, too.
    name, net = f"fwc{pid % 1_000_000}", f"10.{200 + pid % 50}.{pid // 50 % 250}"
    here, there = f"{net}.1", f"{net}.2"
    made = [
        f"ip netns add {name}",
        f"ip link add {name} type veth peer name eth0 netns {name}",
        f"ip addr add {here}/30 dev {name}",
        f"ip link set {name} up",
        f"ip -n {name} addr add {there}/30 dev eth0",
        f"ip -n {name} link set eth0 up",
        f"ip -n {name} link set lo up",
    ]
    missing = "" if shutil.which("ip") else "there is no command ip"
    try:
        for command in made:
            if not missing:
                done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
                missing = f"{command}: {done.stderr.strip()}" if done.returncode else ""
        yield Cable(name, here, there, missing)
    finally:
        for command in (f"ip link del {name}", f"ip netns del {name}"):
            with suppress(FileNotFoundError):
                subprocess.run(command.split(), capture_output=True, check=False)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place | None]:
    """An object store that all nodes know, if there can be one."""
    if s3.skip_reason("rclone"):
        yield None
        return
    with buckets.place("rclone", tmp_path_factory.mktemp("rclone")) as made:
        yield made


@pytest.fixture(scope="module")
def shared(cable: Cable, bucket: Place | None) -> Iterator[RayCluster]:
    # At an address that the other end of the cable can reach.
    host = "127.0.0.1" if cable.missing else cable.here
    known: dict[str, str] = {}
    if bucket is not None:
        cache = {"FWCONVERT_CACHE": str(bucket.folder / "cache")}
        known = {**s3.environment(bucket.proxy.endpoint), **cache}
    with ray_cluster.cluster(nodes=2, host=host, environment=known) as made:
        yield made


@pytest.fixture
def cluster(shared: RayCluster) -> Iterator[RayCluster]:
    """A cluster of two nodes, of which a test before may have lost one."""
    while len(shared.alive) < 2:
        shared.add_node()
    yield shared
    shared.gates.open()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files, of twenty token shards each."""
    folder = tmp_path_factory.mktemp("sources")
    for number, name in enumerate(NAMES):
        corpus.write(folder / name, corpus.documents(20_000 * number, 600), row_group_size=20)
    return folder


@pytest.fixture(scope="module")
def golden(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What processes of this machine make of the sources."""
    out = tmp_path_factory.mktemp("golden") / "out"
    runner.assert_tidy_end(runner.run(sources, out, "--workers", "2", **RECIPE), 0)
    return runner.tree(out)


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    return hub_runs.miniature(tmp_path_factory.mktemp("hub"))


def last_of(mini: Miniature) -> str:
    """Return the name of the last file where a node has fetched it: held, it keeps a run from ending."""
    return hub_runs.place_name(mini.manifest.files[-1].path)


def on(cluster: RayCluster) -> tuple[str, ...]:
    return ("--engine", "ray", "--ray-address", cluster.address)


@contextmanager
def running(cluster: RayCluster, sources: Path, out: Path, *flags: str) -> Iterator["subprocess.Popen[str]"]:
    with runner.running(sources, out, *on(cluster), *flags, **RECIPE) as program:
        yield program


def end_well(cluster: RayCluster, program: "subprocess.Popen[str]", out: Path, golden: dict[str, str]) -> str:
    """Fail unless the program ends well, with the bytes of a local run; return what it said."""
    ended = runner.finish(program)
    runner.assert_tidy_end(ended, 0)
    assert runner.tree(out) == golden
    assert runner.litter(out) == []
    assert not cluster.processes(".parquet")
    return ended.stderr


# --- what every run does


def test_a_run_its_repetition_and_an_export_have_the_bytes_of_local_ones(
    cluster: RayCluster, sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    out, new, local = tmp_path / "out", tmp_path / "new", tmp_path / "local"
    flags = ("--job-cpus", "0.5", "--job-memory", "100M")
    for _ in range(2):
        with running(cluster, sources, out, *flags) as program:
            said = end_well(cluster, program, out, golden)
    assert not [line for line in said.splitlines() if line.startswith("[")], "Ray prints"
    session = json.loads(next((out / PRIVATE / "sessions").glob("*.json")).read_bytes())
    assert (session["workers"], session["threads"]) == (4, 1)

    export = ("export", str(out), "--format", "npy")
    for place, engine in ((local, ()), (new, on(cluster)), (new, on(cluster))):
        runner.assert_tidy_end(runner.command_line(*export, "-o", str(place), *engine), 0)
    assert runner.tree(new) == runner.tree(local)


def test_a_run_shows_the_node_of_each_job_and_how_far_it_is(cluster: RayCluster, tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    for name in NAMES[:2]:  # Of several batches, after which progress is told.
        corpus.write(sources / name, [f"document {number}" for number in range(30_000)])
    cluster.gates.shut("slow", *NAMES[:2])
    code = """
        import sys, fwconvert
        from pathlib import Path
        from fwconvert.run.engines.ray import RayEngine

        class Watch:
            nodes, is_seen = set(), False
            def notice(self, text): pass
            def update(self, snapshot):
                for job in snapshot.running:
                    self.nodes.add(job.node)
                    self.is_seen |= 0 < job.fraction < 1 and job.tokens > 0
                if self.is_seen and len(self.nodes) == 2:
                    for gate in Path(sys.argv[4]).glob("*.slow"):
                        gate.unlink()

        recipe = fwconvert.recipe(source=sys.argv[1], tokenizer="bytes", shard_tokens=10_000)
        engine, watch = RayEngine(sys.argv[3]), Watch()
        for number in range(2):
            out = f"{sys.argv[2]}/{number}"
            assert fwconvert.convert(recipe, out, engine=engine, observer=watch).complete
        print(len(watch.nodes), watch.is_seen)
    """
    words = [textwrap.dedent(code), str(sources), str(tmp_path), cluster.address, str(cluster.gates.folder)]
    program = [sys.executable, "-c", *words]
    ended = subprocess.run(program, text=True, capture_output=True, check=False, timeout=runner.PATIENCE)

    runner.assert_tidy_end(ended, 0)
    assert ended.stdout.split() == ["2", "True"]
    assert runner.tree(tmp_path / "0") == runner.tree(tmp_path / "1") != {}


@pytest.mark.parametrize("scratch", [True, False])
def test_each_node_fetches_what_it_converts_and_only_the_driver_asks_for_a_list(
    cluster: RayCluster, mini: Miniature, tmp_path: Path, scratch: bool
) -> None:
    out, place = tmp_path / "out", tmp_path / "scratch"
    flags = [*on(cluster), "--workers", "2", *(["--scratch", str(place)] if scratch else [])]
    with HubServer(mini.repository) as hub:
        for _ in range(2 if scratch else 1):
            runner.assert_tidy_end(
                hub_runs.run(hub_runs.conversion(mini.pinned, out, *flags), hub.endpoint), 0
            )
        fetched = [hub_runs.ranges(hub.log, name) for name in mini.names]

    hub_runs.assert_whole(mini, out)
    assert fetched == [[None]] * len(mini.names)
    assert not scratch or not list(place.iterdir())


def test_a_run_in_a_bucket_and_its_export_there_have_the_bytes_of_local_ones(
    cluster: RayCluster, bucket: Place | None, sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    if bucket is None:
        pytest.skip(s3.skip_reason("rclone"))
    local, scratch = tmp_path / "local", ("--scratch", tmp_path / "scratch")
    words = ["--source", sources, "--out", bucket.uri("run")]
    words += [f"{'--' + name.replace('_', '-')}={value}" for name, value in RECIPE.items()]
    assert "done: all" in bucket.good(*words, *on(cluster), *scratch)
    assert bucket.tree("run") == golden
    export = ("export", bucket.uri("run"), "--format", "npy")
    for said in ("done", "already complete"):
        assert said in bucket.good(*export, "-o", bucket.uri("new"), *on(cluster), *scratch)
    bucket.good(*export, "-o", local)
    assert bucket.tree("new") == runner.tree(local)


# --- what dies


def test_a_source_that_always_kills_its_worker_is_set_aside_and_one_that_did_once_is_not(
    cluster: RayCluster, sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    out, killer = tmp_path / "out", NAMES[0]
    cluster.gates.shut("die", killer)
    ended = runner.run(sources, out, *on(cluster), **RECIPE)

    runner.assert_tidy_end(ended, 1)
    assert cluster.gates.died(killer) == LOST_TRIES
    assert ended.stderr.count("attempt") == ended.stderr.count(f"{killer}: attempt") == LOST_TRIES
    assert [path.name[:9] for path in (out / PRIVATE / "quarantine").iterdir()] == [killer]
    assert len(list((out / PRIVATE / "receipts").iterdir())) == FILES - 1

    cluster.gates.open()
    cluster.gates.shut("die-once", killer)
    with running(cluster, sources, out) as program:
        said = end_well(cluster, program, out, golden)
    assert cluster.gates.died(killer) == 1
    assert said.count("attempt 1 failed, it is tried again: the worker process died") == 1


def test_the_board_and_the_fetchers_may_die(cluster: RayCluster, mini: Miniature, tmp_path: Path) -> None:
    out, place = tmp_path / "out", tmp_path / "scratch"
    words = hub_runs.conversion(mini.pinned, out, *on(cluster), "--workers", "2", "--scratch", str(place))
    cluster.gates.shut("hold", last_of(mini))
    with HubServer(mini.repository, rate=200_000) as hub, hub_runs.running(words, hub.endpoint) as program:
        hub_runs.wait_for(lambda: len(hub_runs.receipts(out)) > 1, program)
        for title in ("Board", "Fetcher"):
            ray_cluster.kill(cluster.wait_for(title, program)[0])
        cluster.gates.open()
        ended = runner.finish(program)

    runner.assert_tidy_end(ended, 0)
    hub_runs.assert_whole(mini, out)


def test_a_node_that_is_killed_costs_what_it_had_and_another_that_joins_is_used(
    cluster: RayCluster, mini: Miniature, tmp_path: Path
) -> None:
    out, place, told = tmp_path / "out", tmp_path / "scratch", tmp_path / "stderr.txt"
    words = hub_runs.conversion(mini.pinned, out, *on(cluster), "--workers", "2", "--scratch", str(place))
    words += ["--max-connections", "1"]
    # Held until the driver has noticed both: it may learn of them when all the others are done.
    cluster.gates.shut("hold", last_of(mini))
    with (
        told.open("w") as file,
        HubServer(mini.repository, rate=50_000) as hub,
        hub_runs.running(words, hub.endpoint, stderr=file) as program,
    ):
        hub_runs.wait_for(lambda: hub_runs.receipts(out), program)
        cluster.alive[-1].kill()
        cluster.add_node()
        hub_runs.wait_for(lambda: "is lost; what it had is done on others" in told.read_text(), program)
        hub_runs.wait_for(lambda: "is used from now on" in told.read_text(), program)
        hub.hurry()
        cluster.gates.open()
        ended = runner.finish(program)

    assert ended.returncode == 0, told.read_text()
    assert "Traceback" not in told.read_text()
    hub_runs.assert_whole(mini, out)


def test_a_node_that_is_killed_at_work_loses_no_job(
    cluster: RayCluster, sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    node, gates = cluster.alive[-1], cluster.gates
    gates.shut("hold", *NAMES)
    with running(cluster, sources, tmp_path / "out") as program:
        hub_runs.wait_for(lambda: node.holds(gates), program)
        node.kill()
        gates.open()
        said = end_well(cluster, program, tmp_path / "out", golden)

    assert "it is tried again" in said


def test_a_driver_that_is_killed_leaves_no_worker_and_can_be_run_again(
    cluster: RayCluster, sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    out, gates = tmp_path / "out", cluster.gates
    gates.shut("hold", *NAMES[-2:])
    with running(cluster, sources, out) as program:
        hub_runs.wait_for(lambda: len(gates.held()) == 2, program)
        hub_runs.wait_for(lambda: runner.steps(out) == FILES - 2, program)
        program.send_signal(signal.SIGKILL)
    ray_cluster.until(lambda: not cluster.processes(".parquet"))
    assert runner.steps(out) == FILES - 2

    gates.open()
    with running(cluster, sources, out) as program:
        end_well(cluster, program, out, golden)


def test_a_driver_that_is_killed_while_nodes_fetch_goes_on_with_what_they_have(
    cluster: RayCluster, mini: Miniature, tmp_path: Path
) -> None:
    out, place = tmp_path / "out", tmp_path / "scratch"
    name = mini.names[3]
    words = hub_runs.conversion(mini.pinned, out, *on(cluster), "--workers", "2", "--scratch", str(place))
    words += ["--max-connections", "1"]
    part = f"*/{mini.sha256(name)}.part"
    with HubServer(mini.repository) as hub:
        hub.fault("stall", path=name, after=60_000)
        with hub_runs.running(words, hub.endpoint) as program:
            hub_runs.wait_for(lambda: [*map(size_of, place.glob(part))] == [60_000], program)
            program.send_signal(signal.SIGKILL)
        ray_cluster.until(lambda: not cluster.processes("Fetcher"))
        runner.assert_tidy_end(hub_runs.run(words, hub.endpoint), 0)
        fetched = hub_runs.ranges(hub.log, name)

    hub_runs.assert_whole(mini, out)
    assert fetched == [None, "bytes=60000-"]
    assert not list(place.iterdir())


def size_of(path: Path) -> int:
    return path.stat().st_size


def test_a_signal_stops_workers_at_a_safe_place(
    cluster: RayCluster, sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    outs = [tmp_path / "out", tmp_path / "other"]
    # There is room for both on one node: neither knows what the other has given out.
    flags = ("--workers", "1", "--job-cpus", "0.5")
    cluster.gates.shut("slow", *NAMES)
    with (
        running(cluster, sources, outs[0], *flags) as one,
        running(cluster, sources, outs[1], *flags) as other,
    ):
        for out, program in zip(outs, (one, other), strict=True):
            hub_runs.wait_for(lambda: any(_temporary(out).glob("*.parquet*")), program)  # noqa: B023  # at once
        one.send_signal(signal.SIGINT)
        other.send_signal(signal.SIGTERM)
        for program, number in ((one, signal.SIGINT), (other, signal.SIGTERM)):
            runner.assert_tidy_end(runner.finish(program), 128 + number)
    assert not cluster.processes(".parquet")
    for out in outs:
        assert not list(_temporary(out).iterdir())
        assert runner.steps(out) == 0  # In the middle of a source, of which the rest would take long.
    cluster.gates.open()
    with running(cluster, sources, outs[0]) as program:
        end_well(cluster, program, outs[0], golden)


def _temporary(out: Path) -> Path:
    return out / PRIVATE / "temporary"


# --- machines that cannot do their part


@contextmanager
def strange_node(cluster: RayCluster, *within: str) -> Iterator[None]:
    """Have one more node during the block, which is not like the others."""
    node = cluster.add_node(within=within)
    try:
        yield
    finally:
        node.kill()


def test_a_node_with_another_fwconvert_is_refused_before_anything_is_written(
    cluster: RayCluster, sources: Path, tmp_path: Path
) -> None:
    # Workers have the driver's path before their own, so another copy of the package would not be seen here.
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib import metadata\n"
        "real = metadata.version\n"
        "metadata.version = lambda name: '9.9.9' if name == 'fwconvert' else real(name)\n"
    )
    with strange_node(cluster, "env", f"PYTHONPATH={tmp_path}"):
        ended = runner.run(sources, tmp_path / "out", *on(cluster), **RECIPE)

    runner.assert_tidy_end(ended, 2)
    assert "1 of 3 nodes of the Ray cluster cannot be used" in ended.stderr
    assert "it has another fwconvert than the driver" in ended.stderr
    assert "fwconvert 9.9.9 (code " in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_node_that_does_not_see_the_output_is_named_before_the_first_job(
    cluster: RayCluster, sources: Path, tmp_path: Path
) -> None:
    hide = f'mount -t tmpfs none "{tmp_path}" && exec "$@"'
    tried = subprocess.run(
        ["unshare", "-m", "sh", "-c", hide, "sh", "true"], capture_output=True, check=False
    )
    if tried.returncode:
        pytest.skip("a folder cannot be hidden from a node here: that takes root")
    with strange_node(cluster, "unshare", "-m", "sh", "-c", hide, "sh"):
        ended = runner.run(sources, tmp_path / "out", *on(cluster), **RECIPE)

    runner.assert_tidy_end(ended, 1)
    assert "it does not see the run that the driver sees" in ended.stderr
    assert "--out must be a folder that all machines share" in ended.stderr
    assert not runner.steps(tmp_path / "out")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--ray-address", "127.0.0.1:9"), "the Ray cluster cannot be reached"),
        (("--ray-address", "ray://127.0.0.1:10001"), "Ray Client"),
        (("--job-cpus", "100"), "no machine of the Ray cluster can carry out a job"),
        (("--job-memory", "100T"), "no machine of the Ray cluster can carry out a job"),
        (("--job-cpus", "0"), "a job needs more than 0 cores"),
    ],
)
def test_a_cluster_that_cannot_do_it_is_told_at_once(
    cluster: RayCluster, sources: Path, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    ended = runner.run(sources, tmp_path / "out", *on(cluster), *words, **RECIPE)

    runner.assert_tidy_end(ended, 2)
    assert told in ended.stderr
    assert not (tmp_path / "out").exists()


# --- a machine that is cut off


def test_a_node_whose_network_is_cut_is_lost_and_its_jobs_are_done_elsewhere(
    cable: Cable, cluster: RayCluster, sources: Path, golden: dict[str, str], tmp_path: Path
) -> None:
    if cable.missing:
        pytest.skip(f"no network namespace can be made here: {cable.missing}")
    out = tmp_path / "out"
    far, gates = cluster.add_node(host=cable.there, within=cable.within), cluster.gates
    gates.shut("hold", *NAMES)
    try:
        with running(cluster, sources, out) as program:
            hub_runs.wait_for(lambda: far.holds(gates), program)
            subprocess.run(["ip", "-n", cable.name, "link", "set", "eth0", "down"], check=True)
            gates.open()
            ended = runner.finish(program)
    finally:
        far.kill()
        subprocess.run(["ip", "-n", cable.name, "link", "set", "eth0", "up"], check=True)

    runner.assert_tidy_end(ended, 0)
    assert "is lost; what it had is done on others" in ended.stderr
    assert "(raylet)" not in ended.stdout + ended.stderr
    assert runner.tree(out) == golden
