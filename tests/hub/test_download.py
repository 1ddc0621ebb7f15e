"""Fetching: whatever goes wrong on the way, the file arrives byte for byte, or the error says why it cannot.

The hub's client reads its settings when it is imported, and that takes a second. So a process of its own
fetches, one file after another, for many tests. Each test has its own file on the server, of which alone it
reads in the server's log.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any, Self

import child
import pytest
from hub_faults import nobody
from hub_runs import environment
from hub_server import COMMIT, REPO, HubServer, Seen

from fwconvert.hub.part import part_name
from fwconvert.recipes import SourceShard

posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX")

SIZE = 300_000
# A fetch here takes seconds; one that hangs must not take the suite with it.
LONGEST = 300

FETCHER = """
import json, os, sys, threading, time
from pathlib import Path
from fwconvert.hub import client, connections, dataset as hub, download, part, retry
from fwconvert.recipes import SourceShard

calls, hold = [], None

def open_files():
    fds = "/proc/self/fd"
    links = [f"{fds}/{fd}" for fd in os.listdir(fds)] if os.path.isdir(fds) else []
    return [os.readlink(link) for link in links if os.path.lexists(link)]

def watch(event, args):
    if event not in ("os.rename", "os.remove"):
        return
    path = str(args[0])
    calls.append([event, path, path in open_files()])
    if event == "os.rename" and hold is not None:
        Path(hold, "held").touch()
        while not Path(hold, "go").exists():
            time.sleep(0.005)

def fsync(descriptor, really=os.fsync):
    calls.append(["fsync", os.readlink(f"/proc/self/fd/{descriptor}"), True])
    really(descriptor)

sys.addaudithook(watch)
if os.path.isdir("/proc/self/fd"):
    os.fsync = fsync

def carry_out(order):
    global hold
    calls.clear()
    hold = order["hold"]
    client.client().constants.HF_HUB_DOWNLOAD_TIMEOUT = order["timeout"]
    part.Part.piece_bytes = order["piece"]
    retry._LONGEST_BACKOFF = order["longest_backoff"]
    retry._LONGEST_ASKED_WAIT = order["longest_asked_wait"]
    stop, told, came = threading.Event(), [], [0]

    def count(size):
        came[0] += size
        if order["stop_at"] is not None and came[0] >= order["stop_at"]:
            stop.set()

    dataset = hub.Dataset(order["repo"], order["revision"])
    pool = connections.Connections(order["connections"])
    fetching = download.Download(dataset, order["patience"], stop, count, told.append, pool, order["keeps"])
    error = text = ""
    begin = time.monotonic()
    try:
        fetching.fetch(SourceShard(*order["file"]), Path(order["place"]), Path(order["parts"]))
    except Exception as caught:
        error, text = type(caught).__name__, str(caught)
    seconds = time.monotonic() - begin
    return {"error": error, "text": text, "told": told, "bytes": came[0], "seconds": seconds, "calls": calls}

def limited(order):
    if order["file_limit"] is None:
        return carry_out(order)
    import resource
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"], before[1]))
    try:
        return carry_out(order)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

for line in sys.stdin:
    print(json.dumps(limited(json.loads(line))), flush=True)
"""

# For what is to time out.
SOON = 2
ORDINARY: dict[str, Any] = {
    "repo": REPO,
    "revision": COMMIT,
    "timeout": 30,
    "patience": 20,
    "longest_backoff": 0.05,
    # So large that the files here have one, unless a test wants more.
    "piece": 4 * 2**20,
    "connections": 64,
    "longest_asked_wait": 300,
    "stop_at": None,
    "file_limit": None,
    "keeps": False,
    # A folder: before a part is renamed, "held" appears there, and "go" is waited for.
    "hold": None,
}


@dataclass(frozen=True)
class Outcome:
    """How a fetch ended: `error` is the name of the exception, or empty.

    `calls`: what was renamed, removed or brought to the disk, and whether it was open then.
    """

    error: str
    text: str
    told: list[str]
    bytes: int
    seconds: float
    calls: list[list[Any]]


class Fetcher:
    """A process that fetches, one order after another."""

    def __init__(self, endpoint: str, home: Path, **changes: str) -> None:
        self._process = subprocess.Popen(
            child.command(FETCHER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(endpoint, HF_HOME=str(home), **changes),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def gone(self) -> bool:
        return self._process.poll() is not None

    def send(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def outcome(self) -> Outcome:
        assert self._process.stdout is not None
        watchdog = threading.Timer(LONGEST, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        assert line, "the process that fetches has died, or took too long"
        return Outcome(**json.loads(line))

    def kill(self) -> None:
        """End the process as a power failure would, and wait until it is gone."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


class Fetchers:
    """A process that fetches from one hub, and another one if it dies."""

    def __init__(self, endpoint: str, home: Path) -> None:
        self._endpoint, self._home = endpoint, home
        self._running: Fetcher | None = None

    def get(self) -> Fetcher:
        if self._running is None or self._running.gone:
            self._running = self.another()
        return self._running

    def another(self) -> Fetcher:
        return Fetcher(self._endpoint, self._home)

    def stop(self) -> None:
        if self._running is not None:
            self._running.__exit__()


@dataclass
class Case:
    """A file on the hub, and the folders where a test wants it."""

    hub: HubServer
    served: Path
    fetchers: Fetchers
    file: SourceShard
    content: bytes
    place: Path
    parts: Path

    @property
    def part(self) -> Path:
        return self.parts / part_name(self.file, COMMIT)

    def have(self, part: bytes) -> None:
        """Let a part lie there from an earlier time."""
        self.parts.mkdir(exist_ok=True)
        self.part.write_bytes(part)

    def fault(self, kind: Any, **how: Any) -> None:
        self.hub.fault(kind, path=self.file.path, **how)

    def order(self, **changes: Any) -> dict[str, Any]:
        file = [self.file.path, self.file.bytes, self.file.sha256]
        return {**ORDINARY, "file": file, "place": str(self.place), "parts": str(self.parts), **changes}

    def fetch(self, **changes: Any) -> Outcome:
        fetcher = self.fetchers.get()
        fetcher.send(self.order(**changes))
        return fetcher.outcome()

    def arrives(self, **changes: Any) -> Outcome:
        outcome = self.fetch(**changes)
        assert (outcome.error, outcome.text) == ("", "")
        self.assert_right()
        return outcome

    def fails(self, error: str, *words: str, **changes: Any) -> Outcome:
        outcome = self.fetch(**changes)
        assert_says(outcome, error, *words)
        assert not self.place.exists()
        return outcome

    def assert_right(self) -> None:
        assert self.place.read_bytes() == self.content
        assert list(self.parts.glob("*")) == []

    def seen(self) -> list[Seen]:
        """Return the requests for the content, in their order."""
        sha256 = hashlib.sha256(self.content).hexdigest()
        return [seen for seen in self.hub.log if seen.server == "cdn" and sha256 in seen.path]

    def ranges(self) -> list[str | None]:
        return [seen.range for seen in self.seen()]

    def assert_no_byte_came_twice(self) -> None:
        have = 0
        for seen in self.seen():
            assert seen.range == (f"bytes={have}-" if have else None)
            have += seen.bytes
        assert have == SIZE


def assert_says(outcome: Outcome, error: str, *words: str) -> None:
    """Fail unless that error came, with these words, something to do, and nothing secret."""
    assert outcome.error == error, outcome
    for word in (*words, "->"):
        assert word in outcome.text
    for secret in ("Traceback", "X-Amz-Signature", "Expires="):
        assert secret not in outcome.text + "".join(outcome.told)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def hub(served: Path) -> Iterator[HubServer]:
    with HubServer(served, branches={"main": COMMIT, "next": "f" * 40}) as hub:
        yield hub


@pytest.fixture(scope="module")
def fetchers(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fetchers]:
    fetchers = Fetchers(hub.endpoint, tmp_path_factory.mktemp("home"))
    yield fetchers
    fetchers.stop()


@pytest.fixture
def case(
    hub: HubServer, served: Path, fetchers: Fetchers, tmp_path: Path, request: pytest.FixtureRequest
) -> Case:
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    path = f"sample/10BT/{name}.parquet"
    content = random.Random(name).randbytes(SIZE)
    (served / path).parent.mkdir(parents=True, exist_ok=True)
    (served / path).write_bytes(content)
    file = SourceShard(path, SIZE, hashlib.sha256(content).hexdigest())
    return Case(hub, served, fetchers, file, content, tmp_path / "kept" / path, tmp_path / "parts")


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONGEST
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def with_sha256(file: SourceShard, sha256: str | None) -> SourceShard:
    return SourceShard(file.path, file.bytes, sha256)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


# What should happen


def test_a_file_comes_in_one_request_and_nothing_else_is_left(case: Case) -> None:
    outcome = case.arrives()
    assert (outcome.bytes, outcome.told) == (SIZE, [])
    asked = [seen for seen in case.hub.log if case.file.path in seen.path]
    assert [seen.path for seen in asked] == [f"/datasets/{REPO}/resolve/{COMMIT}/{case.file.path}"]
    assert case.ranges() == [None]


def test_a_file_that_is_there_and_right_needs_no_request(case: Case) -> None:
    case.place.parent.mkdir(parents=True)
    case.place.write_bytes(case.content)
    assert case.arrives().bytes == 0
    assert not [seen for seen in case.hub.log if case.file.path in seen.path]


@pytest.mark.parametrize("there", ["shorter", "longer", "as long"])
def test_a_wrong_file_in_the_place_is_replaced(case: Case, there: str) -> None:
    wrong = {
        "shorter": case.content[:-1],
        "longer": case.content + b"x",
        "as long": b"x" + case.content[1:],
    }
    case.place.parent.mkdir(parents=True)
    case.place.write_bytes(wrong[there])
    case.arrives()
    assert case.ranges() == [None]


def as_long(case: Case) -> None:
    case.place.write_bytes(b"x" + case.content[1:])


def shorter(case: Case) -> None:
    case.place.write_bytes(case.content[:-1])


def empty(case: Case) -> None:
    case.place.write_bytes(b"")


def folder(case: Case) -> None:
    case.place.mkdir()


def link_to_nowhere(case: Case) -> None:
    case.place.symlink_to("nowhere")


@posix
@pytest.mark.parametrize("lay", [as_long, shorter, empty, folder, link_to_nowhere])
def test_what_lies_in_a_folder_of_the_user_is_never_replaced(case: Case, lay: Callable[[Case], None]) -> None:
    case.place.parent.mkdir(parents=True)
    lay(case)
    before = case.place.lstat()
    content = case.place.read_bytes() if case.place.is_file() else b""

    outcome = case.fetch(keeps=True)

    assert_says(outcome, "SourceError", "not replaced", str(case.place), "move it away", "--keep-source")
    assert os.path.samestat(case.place.lstat(), before)
    assert content == (case.place.read_bytes() if case.place.is_file() else b"")
    assert case.ranges() == [], "nothing is fetched for a place that is taken"


@posix
def test_what_is_laid_in_the_place_while_the_file_is_fetched_stays_too(case: Case) -> None:
    case.fault("slow", rate=100_000)
    with case.fetchers.another() as fetcher:
        fetcher.send(case.order(keeps=True))
        wait_until(lambda: size(case.part) > 50_000)
        case.place.write_bytes(b"mine")
        outcome = fetcher.outcome()
    assert_says(outcome, "SourceError", "not replaced", str(case.place))
    assert case.place.read_bytes() == b"mine"
    case.place.unlink()
    assert case.arrives(keeps=True).bytes == 0, "what came is kept until the place is free"


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are found in /proc")
def test_a_kept_file_is_on_the_disk_before_it_has_its_name(case: Case) -> None:
    calls = case.arrives(keeps=True).calls
    synced = [path for call, path, _ in calls if call == "fsync"]
    assert synced == [str(case.part), str(case.place.parent)]
    assert [call for call, _, _ in calls] == ["fsync", "os.rename", "fsync"]


def test_an_empty_file_is_a_file(case: Case) -> None:
    (case.served / case.file.path).write_bytes(b"")
    case.content = b""
    case.file = SourceShard(case.file.path, 0, hashlib.sha256(b"").hexdigest())
    case.arrives()


def test_a_file_whose_sha256_nobody_knows_arrives_too(case: Case) -> None:
    case.file = with_sha256(case.file, None)
    case.fault("close", after=100_000)
    case.arrives()
    case.assert_no_byte_came_twice()


def test_a_part_is_named_by_the_content_wherever_the_file_lies(case: Case) -> None:
    elsewhere = SourceShard("other/name.parquet", case.file.bytes, case.file.sha256)
    assert part_name(case.file, COMMIT) == part_name(elsewhere, "other") == f"{case.file.sha256}.part"
    unknown = [with_sha256(file, None) for file in (case.file, elsewhere)]
    assert len({part_name(file, COMMIT) for file in (*unknown, case.file)}) == 3
    assert not any("/" in part_name(file, COMMIT) for file in unknown)


# What may pass: connections that break


@pytest.mark.parametrize("after", [1, 65_536, 100_000, SIZE - 1])
@pytest.mark.parametrize("kind", ["close", "reset"])
def test_a_broken_connection_is_taken_up_at_the_byte_where_it_broke(
    case: Case, kind: str, after: int
) -> None:
    case.fault(kind, after=after)
    outcome = case.arrives()
    assert case.ranges() == [None, f"bytes={after}-"]
    case.assert_no_byte_came_twice()
    assert outcome.bytes == SIZE


@pytest.mark.parametrize("on", ["hub", "cdn"])
@pytest.mark.parametrize("kind", ["close", "reset", "refuse"])
def test_a_connection_that_breaks_before_the_answer_is_tried_again(case: Case, on: str, kind: str) -> None:
    how = {} if kind == "refuse" else {"after": -1}
    case.fault(kind, on=on, times=2, **how)
    case.arrives()
    case.assert_no_byte_came_twice()
    assert len([seen for seen in case.hub.log if case.file.path in seen.path]) == 3


def test_a_stalled_body_times_out_and_goes_on_where_it_stalled(case: Case) -> None:
    case.fault("stall", after=100_000)
    case.arrives(timeout=SOON)
    assert case.ranges() == [None, "bytes=100000-"]


@pytest.mark.parametrize("on", ["hub", "cdn"])
def test_a_silent_server_times_out_and_is_asked_again(case: Case, on: str) -> None:
    case.fault("hang", on=on)
    case.arrives(timeout=SOON)


def test_several_troubles_in_a_row_cost_no_byte(case: Case) -> None:
    case.fault("reset", after=100_000)
    case.fault("status", status=502)
    case.fault("close", after=50_000)
    case.fault("reset", after=-1)
    case.fault("close", after=0)
    case.fault("status", on="hub", status=500)
    case.arrives()
    came = [seen for seen in case.seen() if seen.bytes]
    assert [seen.range for seen in came] == [None, "bytes=100000-", "bytes=150000-"]
    case.assert_no_byte_came_twice()


def test_a_link_that_drops_again_and_again_is_endured_while_something_comes(case: Case) -> None:
    case.fault("close", after=20_000, times=12)
    # Each try waits a little: all together longer than the patience, and no single one.
    outcome = case.arrives(patience=1.0, longest_backoff=0.2)
    assert outcome.seconds > 1.0
    assert case.ranges() == [None, *(f"bytes={20_000 * number}-" for number in range(1, 13))]
    case.assert_no_byte_came_twice()


def test_a_server_that_ignores_ranges_costs_time_but_no_bytes(case: Case) -> None:
    case.fault("close", after=100_000)
    case.fault("ignore_range", times=None)
    outcome = case.arrives()
    assert case.ranges() == [None, "bytes=100000-"]
    assert [seen.status for seen in case.seen()] == [200, 200]
    assert outcome.bytes == SIZE


def test_a_server_that_ignores_ranges_and_breaks_while_we_skip_is_endured(case: Case) -> None:
    case.have(case.content[:200_000])
    case.fault("ignore_range")
    case.fault("close", after=50_000)
    case.arrives()
    assert case.ranges() == ["bytes=200000-"]


# What may pass: answers that say "later"


@pytest.mark.parametrize("on", ["hub", "cdn"])
@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_status_that_may_pass_is_tried_again(case: Case, status: int, on: str) -> None:
    case.fault("status", status=status, on=on, times=2)
    case.arrives()
    case.assert_no_byte_came_twice()


@pytest.mark.parametrize("status", [401, 403])
def test_a_signature_that_ran_out_is_asked_for_again(case: Case, status: int) -> None:
    # The hub's own 401 and 403 speak of the token; those of the CDN behind it do not.
    case.fault("status", status=status, on="cdn")
    case.arrives()


@pytest.mark.parametrize("on", ["hub", "cdn"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "1"},
        {"RateLimit": '"resolvers";r=0;t=1', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'},
    ],
    ids=["seconds", "RateLimit"],
)
def test_a_server_that_says_for_how_long_to_stay_away_is_not_asked_before(
    case: Case, headers: dict[str, str], on: str
) -> None:
    case.fault("status", status=429, headers=headers, on=on)
    assert case.arrives().seconds >= 1


@pytest.mark.parametrize("on", ["hub", "cdn"])
def test_a_server_that_says_when_to_come_again_is_not_asked_before(case: Case, on: str) -> None:
    due = int(time.time()) + 3
    case.fault("status", status=429, headers={"Retry-After": formatdate(due, usegmt=True)}, on=on)
    case.arrives()
    assert time.time() >= due


def test_a_503_may_say_when_to_come_again_too(case: Case) -> None:
    case.fault("status", status=503, headers={"Retry-After": "1"})
    assert case.arrives().seconds >= 1


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "86400"},
        {"Retry-After": "Wed, 21 Oct 2150 07:28:00 GMT"},
        {"RateLimit": '"resolvers";r=0;t=86400'},
    ],
)
def test_a_server_that_asks_for_too_long_a_wait_is_asked_sooner(case: Case, headers: dict[str, str]) -> None:
    case.fault("status", status=429, headers=headers)
    case.arrives(longest_asked_wait=0.1)


def test_what_the_server_asks_for_is_not_held_against_it_and_a_person_is_told(case: Case) -> None:
    case.fault("status", status=429, headers={"Retry-After": "4"})
    outcome = case.arrives(patience=1)
    assert len(outcome.told) == 1
    assert case.file.path in outcome.told[0]
    assert "429" in outcome.told[0]
    assert "4 s" in outcome.told[0]


def test_patience_ends_and_the_part_is_kept_for_the_next_time(case: Case) -> None:
    case.fault("close", after=100_000)
    case.fault("status", status=503, times=None)
    outcome = case.fails("HubError", case.hub.endpoint, case.file.path, "503", "again", patience=1)
    assert "no progress" in outcome.text
    assert case.part.read_bytes() == case.content[:100_000]


# What is wrong with the content


@pytest.mark.parametrize("after", [0, 150_000, SIZE - 1])
def test_one_flipped_byte_is_noticed_and_the_file_fetched_again(case: Case, after: int) -> None:
    case.fault("corrupt", after=after)
    outcome = case.arrives()
    assert case.ranges() == [None, None]
    assert len(outcome.told) == 1
    assert case.file.path in outcome.told[0]


def test_bytes_flipped_twice_are_an_error_that_blames_the_mirror(case: Case) -> None:
    case.fault("corrupt", after=150_000, times=2)
    outcome = case.fails("SourceError", case.file.path, case.hub.endpoint, "corrupt bytes", "HF_ENDPOINT")
    assert str(case.file.sha256) in outcome.text
    assert list(case.parts.iterdir()) == []
    case.arrives()


def test_a_file_that_is_too_short_once_is_fetched_again(case: Case) -> None:
    case.fault("short", missing=10)
    case.arrives()


def test_a_file_that_is_too_short_is_an_error_that_blames_the_mirror(case: Case) -> None:
    case.fault("short", missing=10, times=None)
    case.fails("SourceError", case.file.path, "299,990 bytes", "300,000", "corrupt bytes", "HF_ENDPOINT")


def test_a_file_that_is_too_long_is_an_error_that_blames_the_mirror(case: Case) -> None:
    longer = case.content + b"x"
    (case.served / case.file.path).write_bytes(longer)
    case.fails("SourceError", case.file.path, "300,001 bytes", "300,000", "corrupt bytes", "HF_ENDPOINT")


def test_a_file_that_ends_before_our_part_does_is_an_error_of_this_file_only(case: Case) -> None:
    case.have(case.content[:200_000])
    (case.served / case.file.path).write_bytes(case.content[:100_000])
    case.fails("SourceError", case.file.path, "corrupt bytes", "HF_ENDPOINT")


# Parts


def test_a_part_is_taken_up_by_another_process(case: Case) -> None:
    case.have(case.content[:123_456])
    assert case.arrives().bytes == SIZE - 123_456
    assert case.ranges() == ["bytes=123456-"]


def test_a_part_that_is_whole_needs_no_request(case: Case) -> None:
    case.have(case.content)
    assert case.arrives().bytes == 0
    assert case.ranges() == []


@pytest.mark.parametrize("length", [1, 100_000, SIZE, SIZE + 1, 2 * SIZE])
def test_a_part_that_was_damaged_while_nobody_looked_ends_right(case: Case, length: int) -> None:
    case.have((b"x" + case.content[1:] + case.content)[:length])
    case.arrives()
    resumed = [f"bytes={length}-"] if length < SIZE else []
    assert case.ranges() == [*resumed, None]


def test_a_part_that_is_too_long_ends_right_though_nobody_knows_the_sha256(case: Case) -> None:
    case.file = with_sha256(case.file, None)
    case.have(case.content + b"x")
    case.arrives()


def test_parts_of_two_revisions_are_never_mixed_though_nobody_knows_the_sha256(case: Case) -> None:
    case.file = with_sha256(case.file, None)
    case.fault("close", after=100_000)
    case.fault("status", status=503, on="hub", times=2, skip=1)
    case.fetch(patience=0)
    assert not case.place.exists()
    case.content = bytes(reversed(case.content))
    (case.served / case.file.path).write_bytes(case.content)
    case.fetch(revision="f" * 40)
    assert case.place.read_bytes() == case.content
    assert size(case.part) == 100_000  # of the other revision, and still good for it


@posix
def test_a_process_killed_in_the_middle_leaves_a_part_that_the_next_one_completes(case: Case) -> None:
    case.fault("slow", rate=100_000)
    with case.fetchers.another() as doomed:
        doomed.send(case.order())
        wait_until(lambda: size(case.part) > 50_000)
        doomed.kill()
    have = size(case.part)
    assert case.part.read_bytes() == case.content[:have]
    assert not case.place.exists()
    assert case.arrives().bytes == SIZE - have
    assert case.ranges() == [None, f"bytes={have}-"]


@posix
def test_two_processes_that_want_the_same_file_fetch_it_once(case: Case) -> None:
    case.fault("slow", rate=200_000)
    with case.fetchers.another() as first, case.fetchers.another() as second:
        first.send(case.order())
        second.send(case.order())
        outcomes = [first.outcome(), second.outcome()]
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert sorted(outcome.bytes for outcome in outcomes) == [0, SIZE]
    assert case.place.read_bytes() == case.content
    assert case.ranges() == [None]
    assert list(case.parts.iterdir()) == [], "an empty part is left"


@posix
def test_a_process_that_waits_goes_on_when_the_one_that_fetches_is_killed(case: Case) -> None:
    case.fault("slow", rate=100_000)
    with case.fetchers.another() as doomed, case.fetchers.another() as heir:
        doomed.send(case.order())
        wait_until(lambda: size(case.part) > 50_000)
        heir.send(case.order())
        wait_until(lambda: size(case.part) > 100_000)
        doomed.kill()
        have = size(case.part)
        outcome = heir.outcome()
    assert (outcome.error, outcome.bytes) == ("", SIZE - have)
    case.assert_right()
    assert case.ranges() == [None, f"bytes={have}-"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are found in /proc")
def test_a_part_is_closed_before_it_is_renamed_or_removed(case: Case) -> None:
    """Windows does neither with a file that is open."""
    renamed = case.arrives().calls
    assert renamed == [["os.rename", str(case.part), False]]
    case.place.unlink()
    case.fault("corrupt", after=150_000, times=2)
    removed = case.fails("SourceError", "corrupt bytes").calls
    assert {tuple(call) for call in removed} == {("os.remove", str(case.part), False)}


@posix
def test_a_process_that_takes_a_part_in_the_instant_before_it_is_renamed_does_no_harm(
    case: Case, tmp_path: Path
) -> None:
    with case.fetchers.another() as first, case.fetchers.another() as second:
        first.send(case.order(hold=str(tmp_path)))
        wait_until((tmp_path / "held").exists)
        second.send(case.order())
        taken = second.outcome()
        (tmp_path / "go").touch()
        published = first.outcome()
    assert (taken.error, taken.bytes) == ("", 0)
    assert (published.error, published.bytes) == ("", SIZE)
    case.assert_right()
    assert case.ranges() == [None]


def test_a_stop_ends_a_stalled_fetch_soon_and_keeps_the_part(case: Case) -> None:
    case.fault("stall", after=100_000)
    outcome = case.fetch(stop_at=100_000, timeout=SOON)
    assert (outcome.error, outcome.text) == ("Stopped", "stopped by the user")
    assert outcome.seconds < 30  # and not the 60 of the stall
    assert case.part.read_bytes() == case.content[:100_000]
    case.arrives()
    assert case.ranges() == [None, "bytes=100000-"]


def test_a_stop_ends_a_wait_that_the_server_asked_for(case: Case) -> None:
    case.fault("close", after=100_000)
    case.fault("status", status=429, headers={"Retry-After": "300"})
    assert case.fetch(stop_at=100_000).error == "Stopped"


def test_a_stop_ends_a_fetch_in_the_middle_of_the_content(case: Case) -> None:
    case.fault("slow", rate=100_000)
    assert case.fetch(stop_at=5000).error == "Stopped"
    assert case.part.read_bytes() == case.content[: size(case.part)]


# What is wrong here


@pytest.mark.parametrize("blocked", ["parts", "folder", "part"])
def test_a_file_where_a_folder_should_be_is_an_output_error(case: Case, blocked: str) -> None:
    where = {"parts": case.parts, "folder": case.place.parent.parent, "part": case.part}[blocked]
    where.parent.mkdir(parents=True, exist_ok=True)
    if blocked == "part":
        where.mkdir()
    else:
        where.write_bytes(b"")
    case.fails("OutputError", "cannot be written", str(where))
    assert case.ranges() == []


def test_a_folder_where_the_file_should_be_is_an_output_error(case: Case) -> None:
    (case.place / "inside").mkdir(parents=True)
    assert_says(case.fetch(), "OutputError", "cannot be written", str(case.place))
    assert (case.place / "inside").is_dir()


@posix
def test_a_disk_that_takes_no_more_is_an_output_error_and_nothing_that_came_is_lost(case: Case) -> None:
    case.fails("OutputError", "cannot be written", str(case.part), "again", file_limit=70_000)
    assert case.part.read_bytes() == case.content[:70_000]
    case.arrives()
    assert case.ranges() == [None, "bytes=70000-"]


# What will not pass


def test_a_file_that_the_repository_does_not_have_is_an_error_of_this_file(case: Case) -> None:
    (case.served / case.file.path).unlink()
    case.fails("SourceError", "no such file", case.file.path, REPO, COMMIT, case.hub.endpoint)


def test_a_revision_that_the_repository_does_not_have_is_said(case: Case) -> None:
    revision = "e" * 40
    case.fails("HubError", "no such revision", REPO, revision, case.hub.endpoint, revision=revision)


def test_a_repository_that_does_not_exist_is_said(case: Case) -> None:
    other = "somebody/something"
    case.fails(
        "HubError", "the repository does not exist", other, case.hub.endpoint, "hf auth login", repo=other
    )


def test_what_is_refused_for_good_is_asked_for_once(case: Case) -> None:
    case.fault("status", status=400, on="hub", times=None)
    outcome = case.fetch()
    assert outcome.error == "HubError"
    assert "400" in outcome.text
    assert len([seen for seen in case.hub.log if case.file.path in seen.path]) == 1


def test_a_token_that_is_not_valid_is_said(case: Case) -> None:
    headers = {"X-Error-Message": "Invalid credentials in Authorization header"}
    case.fault("status", status=401, headers=headers, on="hub")
    case.fails("HubError", "token is not accepted", "hf auth login", "HF_TOKEN", case.hub.endpoint)


def other_hub(case: Case, endpoint: str, tmp_path: Path, **changes: str) -> Outcome:
    """Fetch the file from another hub, with other settings."""
    with Fetcher(endpoint, tmp_path / "home", **changes) as fetcher:
        fetcher.send(case.order(patience=1))
        return fetcher.outcome()


@pytest.mark.parametrize("token", ["", "hf_canary_of_somebody_else"])
def test_a_gated_repository_is_said_with_the_page_where_its_terms_are(
    case: Case, tmp_path: Path, token: str
) -> None:
    with HubServer(case.served, token="hf_right", gated=True) as gated:
        outcome = other_hub(case, gated.endpoint, tmp_path, HF_TOKEN=token)
    page = f"{gated.endpoint}/datasets/{REPO}"
    assert_says(outcome, "HubError", "gated", "terms", page, "hf auth login", "HF_TOKEN")
    assert "canary" not in outcome.text


def test_a_private_repository_needs_a_token_that_the_cdn_never_sees(case: Case, tmp_path: Path) -> None:
    with HubServer(case.served, token="hf_canary") as private:
        case.hub = private
        outcome = other_hub(case, private.endpoint, tmp_path)
        assert_says(outcome, "HubError", "private", REPO, "hf auth login", "HF_TOKEN")
        case.fault("close", after=100_000)
        outcome = other_hub(case, private.endpoint, tmp_path, HF_TOKEN="hf_canary")
        assert outcome.error == ""
        case.assert_right()
        assert {seen.authorization for seen in case.seen()} == {None}
        tokens = [seen.authorization for seen in private.log if seen.server == "hub"]
        assert tokens == [None, "Bearer hf_canary", "Bearer hf_canary"]


def test_a_hub_without_a_cdn_is_as_good(case: Case, tmp_path: Path) -> None:
    with HubServer(case.served, cdn=False) as alone:
        alone.fault("reset", on="hub", path=case.file.path, after=100_000)
        assert other_hub(case, alone.endpoint, tmp_path).error == ""
        assert [seen.range for seen in alone.log] == [None, "bytes=100000-"]
    case.assert_right()


def test_offline_mode_is_said_and_nothing_is_asked(case: Case, tmp_path: Path) -> None:
    outcome = other_hub(case, case.hub.endpoint, tmp_path, HF_HUB_OFFLINE="1")
    assert_says(outcome, "HubError", "offline", "HF_HUB_OFFLINE", "--keep-source", case.file.path)
    assert not [seen for seen in case.hub.log if case.file.path in seen.path]


def test_a_server_that_is_down_is_said_with_its_address(case: Case, tmp_path: Path) -> None:
    with nobody() as endpoint:
        outcome = other_hub(case, endpoint, tmp_path)
    assert_says(outcome, "HubError", "no progress", endpoint, case.file.path, "network", "again")


# Several ranges at once

PIECE = 20_000


def spans(case: Case) -> list[tuple[int, int]]:
    """Return the ranges that were sent whole or in part: where each began, and how many bytes were sent."""
    found = [(seen.range or "bytes=0-", seen.bytes) for seen in case.seen() if seen.bytes]
    return sorted((int(wanted.removeprefix("bytes=").split("-")[0]), sent) for wanted, sent in found)


def test_a_file_of_many_pieces_comes_by_many_ranges_and_the_hub_is_asked_once(case: Case) -> None:
    case.fault("slow", rate=100_000, times=None)
    outcome = case.arrives(piece=PIECE)
    assert outcome.bytes == SIZE
    assert spans(case) == [(begin, PIECE) for begin in range(0, SIZE, PIECE)]
    asked = [seen for seen in case.hub.log if case.file.path in seen.path]
    assert len(asked) == 1, "the address on the CDN is known after the first answer"
    # 3 s by one connection.
    assert outcome.seconds < 2.5


def test_no_more_connections_than_allowed_are_used(case: Case) -> None:
    case.fault("slow", rate=200_000, times=None)
    case.arrives(piece=PIECE, connections=1)
    begins = [int((seen.range or "bytes=0-")[6:].split("-")[0]) for seen in case.seen()]
    assert begins == sorted(begins)


@pytest.mark.parametrize("kind", ["close", "reset"])
def test_ranges_that_break_go_on_where_they_broke(case: Case, kind: str) -> None:
    case.fault(kind, after=7_000, times=6)
    assert case.arrives(piece=PIECE).bytes == SIZE
    covered = 0
    for begin, sent in spans(case):
        assert begin == covered, "no byte comes twice, and none is left out"
        covered += sent
    assert covered == SIZE


def test_a_range_that_stalls_is_taken_over_by_another_connection(case: Case) -> None:
    case.fault("stall", after=5_000, skip=3)
    case.fault("slow", rate=4_000, times=None)  # The others go on for a while.
    outcome = case.arrives(piece=PIECE, timeout=60)
    assert outcome.seconds < 30  # and not the 60 of the stall


@posix
def test_a_process_killed_with_ranges_under_way_leaves_them_to_the_next_one(case: Case) -> None:
    case.fault("slow", rate=20_000, times=8)
    with case.fetchers.another() as doomed:
        doomed.send(case.order(piece=PIECE, connections=8))
        wait_until(lambda: size(case.part.with_suffix(".pieces")) and size(case.part) > PIECE)
        time.sleep(0.5)
        doomed.kill()
    sent = sum(seen.bytes for seen in case.seen())
    outcome = case.arrives(piece=PIECE)
    # What was sent and not yet written is sent again, some KB of each connection.
    assert SIZE - sent <= outcome.bytes <= SIZE - sent + 8 * 20_000
    assert outcome.bytes < SIZE


def test_a_server_that_ignores_ranges_is_served_by_one_connection(case: Case) -> None:
    case.fault("ignore_range", times=None)
    case.arrives(piece=PIECE)
    # Those that had asked before the first answer came, and none after it.
    assert len(case.seen()) < SIZE // PIECE


def test_a_server_that_ignores_ranges_fills_the_gaps_of_a_part(case: Case) -> None:
    case.fault("status", status=503, times=None, skip=3)
    case.fails("HubError", "503", piece=PIECE, patience=1, connections=3)
    had = size(case.part)
    assert had
    case.hub._faults._faults.clear()
    case.fault("ignore_range", times=None)
    case.arrives(piece=PIECE)


@pytest.mark.parametrize("damage", ["counts", "magic", "cut", "data"])
def test_counts_that_lie_cost_a_second_fetch_and_no_byte(case: Case, damage: str) -> None:
    case.fault("status", status=503, times=None, skip=3)
    case.fails("HubError", "503", piece=PIECE, patience=1, connections=3)
    case.hub._faults._faults.clear()
    counts = case.part.with_suffix(".pieces")
    raw = bytearray(counts.read_bytes())
    if damage == "counts":
        raw[-60:] = (PIECE.to_bytes(4, "little")) * 15
    elif damage == "magic":
        raw[:4] = b"xxxx"
    elif damage == "cut":
        raw = raw[:-4]
    else:
        content = bytearray(case.part.read_bytes())
        content[:10] = bytes(10)
        case.part.write_bytes(content)
    counts.write_bytes(raw)
    case.arrives(piece=PIECE)


def test_a_part_of_an_earlier_version_has_no_gaps(case: Case) -> None:
    case.have(case.content[:123_456])
    assert case.arrives(piece=PIECE).bytes == SIZE - 123_456


def test_a_part_with_gaps_is_not_believed_after_a_restart_if_nobody_knows_the_sha256(case: Case) -> None:
    case.file = with_sha256(case.file, None)
    case.fault("status", status=503, times=None, skip=3)
    case.fails("HubError", "503", piece=PIECE, patience=1, connections=3)
    case.hub._faults._faults.clear()
    counts = case.part.with_suffix(".pieces")
    raw = bytearray(counts.read_bytes())
    raw[24:34] = b"0123456789"  # of the machine's last start
    counts.write_bytes(raw)
    content = bytearray(case.part.read_bytes())
    content[:10] = bytes(10)  # that never reached the disk
    case.part.write_bytes(content)
    assert case.arrives(piece=PIECE).bytes == SIZE
