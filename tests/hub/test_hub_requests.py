"""The hub as its own client shows it: what is listed, what each refusal means, and where the token goes.

The client reads its settings when it is imported, and that takes a second: so a child asks for a lot.
"""

import hashlib
import http.client
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import child
import pytest
from hub_faults import Answer, Body, Faults, Origin, Request, nobody
from hub_runs import environment
from hub_server import COMMIT, REPO, HubServer, write_files

CANARY = "hf_canaryInTheCoalMine0123456789abcd"
FOLDER = "sample/10BT"
BIG = f"{FOLDER}/000_00000.parquet"
FILES = {
    "README.md": b"a dataset",
    "data/CC-MAIN-2013-20/000_00000.parquet": b"of another folder",
    BIG: b"zero" * 1000,
    f"{FOLDER}/001_00000.parquet": b"one",
    f"{FOLDER}/002_00000.parquet": b"",
    f"{FOLDER}/003_00000.PARQUET": b"as local files may end, too",
    f"{FOLDER}/notes.txt": b"no parquet",
    f"{FOLDER}/part/000_00000.parquet": b"below",
    "text/only.txt": b"no parquet at all",
}
# A question here takes seconds; one that hangs must not take the suite with it.
LONGEST = 300
# A stall must not last; the client takes whole seconds only.
QUICK = {"HF_HUB_DOWNLOAD_TIMEOUT": "2"}

ASKER = """
import json, sys, threading
from pathlib import Path
from fwconvert.hub import connections, dataset as hub, download, retry
from fwconvert.recipes import SourceShard

retry._LONGEST_BACKOFF = 0.05
how, *questions = json.loads(sys.argv[1])
hub._CALL_SECONDS = how["call_seconds"]
retry._LONGEST_ASKED_WAIT = how["longest_asked_wait"]
stop, told = threading.Event(), []
endure = retry.Retry.wait_or_raise

def enduring(self, trouble, what):
    if how["trouble"]:
        Path(how["trouble"]).touch()
    endure(self, trouble, what)

retry.Retry.wait_or_raise = enduring

def answer(kind, repo, revision, *more):
    dataset = hub.Dataset(repo, revision)
    if kind == "commit":
        return retry.with_retries(dataset.commit, repo, retry.Retry(how["patience"], stop, told.append))
    if kind == "files":
        ask = lambda: dataset.files(*more)
        found = retry.with_retries(ask, repo, retry.Retry(how["patience"], stop, told.append))
        return [[file.path, file.bytes, file.sha256] for file in found]
    file, folder = more
    pool = connections.Connections(4)
    fetching = download.Download(dataset, how["patience"], stop, lambda size: None, told.append, pool)
    fetching.fetch(SourceShard(*file), Path(folder) / file[0], Path(folder) / ".parts")

for question in questions:
    found, error, text = None, "", ""
    try:
        found = answer(*question)
    except Exception as caught:
        error, text = type(caught).__name__, str(caught)
    print(json.dumps({"found": found, "error": error, "text": text}))
print(json.dumps(told), file=sys.stderr)
"""


@dataclass(frozen=True)
class Told:
    """The answer to a question: `error` is the name of the exception, or empty."""

    found: Any
    error: str
    text: str

    def assert_says(self, error: str, *words: str) -> None:
        """Fail unless that error came, with these words and something to do."""
        assert self.error == error, self
        for word in (*words, "->"):
            assert word in self.text


@dataclass(frozen=True)
class Asking:
    """Asks a hub, in a process of its own."""

    endpoint: str
    home: Path
    patience: float = 20
    call_seconds: float = 10
    longest_asked_wait: float = 300
    # Is there as soon as something went wrong.
    trouble: Path | None = None

    def __call__(self, *questions: tuple[Any, ...], **changes: str) -> list[Told]:
        """Return what came of each question; whatever is said, no secret is in it."""
        how = {
            "patience": self.patience,
            "call_seconds": self.call_seconds,
            "longest_asked_wait": self.longest_asked_wait,
            "trouble": str(self.trouble or ""),
        }
        ended = subprocess.run(
            child.command(ASKER, json.dumps([how, *questions])),
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
            env=environment(self.endpoint, HF_HOME=str(self.home), **{**QUICK, **changes}),
        )
        said = ended.stdout + ended.stderr
        assert ended.returncode == 0, said
        for secret in ("Traceback", "X-Amz-Signature", "canary"):
            assert secret not in said
        return [Told(**json.loads(line)) for line in ended.stdout.splitlines()]


def commit(repo: str = REPO, revision: str = "main") -> tuple[Any, ...]:
    return "commit", repo, revision


def files(folder: str = FOLDER, repo: str = REPO, revision: str = COMMIT) -> tuple[Any, ...]:
    return "files", repo, revision, folder


def fetch(path: str, place: Path, repo: str = REPO) -> tuple[Any, ...]:
    content = FILES.get(path, b"x")
    file = path, len(content), hashlib.sha256(content).hexdigest()
    return "fetch", repo, COMMIT, file, str(place)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_files(folder, FILES)
    return folder


@pytest.fixture
def hub(folder: Path) -> Iterator[HubServer]:
    with HubServer(folder, page_size=2) as hub:
        yield hub


def json_answer(value: object, **headers: str) -> Answer:
    text = json.dumps(value).encode()
    return Answer(200, {"Content-Type": "application/json", **headers}, Body(text, len(text)))


@contextmanager
def serving(answer: Callable[[Request], Answer]) -> Iterator[tuple[str, list[Request]]]:
    """Serve these answers; yield the endpoint, and the requests as they come."""
    asked: list[Request] = []

    def answered(request: Request) -> Answer:
        asked.append(request)
        return answer(request)

    origin = Origin("hub", answered, faults=Faults(), log=[])
    try:
        yield origin.endpoint, asked
    finally:
        origin.stop()


# Listings


def expected(*paths: str) -> list[list[object]]:
    return [[path, len(FILES[path]), hashlib.sha256(FILES[path]).hexdigest()] for path in sorted(paths)]


def test_a_listing_has_every_parquet_file_with_its_size_and_sha256(hub: HubServer, tmp_path: Path) -> None:
    told = Asking(hub.endpoint, tmp_path)(commit(), commit(revision=COMMIT), files(), files(""))
    parquet = [path for path in FILES if path.lower().endswith(".parquet")]
    below = [path for path in parquet if path.startswith(FOLDER)]
    assert [answer.error for answer in told] == [""] * 4
    assert [answer.found for answer in told] == [COMMIT, COMMIT, expected(*below), expected(*parquet)]
    pages = [seen for seen in hub.log if "/tree/" in seen.path]
    assert len(pages) > 4


@pytest.mark.parametrize("kind", ["status", "reset", "close", "refuse"])
def test_a_listing_that_fails_is_asked_for_again(hub: HubServer, tmp_path: Path, kind: Any) -> None:
    how = {"after": -1} if kind in {"reset", "close"} else {}
    hub.fault(kind, on="hub", path="/revision/", times=2, **how)
    hub.fault(kind, on="hub", path="/tree/", **how)
    hub.fault(kind, on="hub", path="cursor=2", **how)
    told = Asking(hub.endpoint, tmp_path)(commit(), files())
    assert [answer.error for answer in told] == ["", ""]
    assert len(told[1].found) == 5
    assert hub.faults_left == 0


def test_a_listing_that_is_put_off_for_too_long_is_asked_for_sooner(hub: HubServer, tmp_path: Path) -> None:
    for path in ("/revision/", "/tree/"):
        for after in ("86400", "Wed, 21 Oct 2150 07:28:00 GMT"):
            hub.fault("status", on="hub", path=path, status=429, headers={"Retry-After": after})
    told = Asking(hub.endpoint, tmp_path, longest_asked_wait=0.1)(commit(), files())
    assert [answer.error for answer in told] == ["", ""]
    assert hub.faults_left == 0


def test_a_listing_that_is_put_off_waits_as_long_as_it_is_asked(hub: HubServer, tmp_path: Path) -> None:
    hub.fault("status", on="hub", path="/revision/", status=429, headers={"Retry-After": "1"})
    hub.fault("status", on="hub", path="/tree/", status=429, headers={"RateLimit": '"api";r=0;t=1'})
    begin = time.monotonic()
    told = Asking(hub.endpoint, tmp_path)(commit(), files())
    assert [answer.error for answer in told] == ["", ""]
    assert time.monotonic() - begin >= 2


def test_a_server_that_is_silent_for_once_is_asked_again(hub: HubServer, tmp_path: Path) -> None:
    hub.fault("hang", on="hub", path="/revision/")
    hub.fault("hang", on="hub", path="cursor=2")
    told = Asking(hub.endpoint, tmp_path, call_seconds=1)(commit(), files())
    assert [answer.error for answer in told] == ["", ""]
    assert hub.faults_left == 0


@pytest.mark.parametrize("question", [commit(), files()], ids=["commit", "files"])
def test_a_server_that_stays_silent_is_given_up(
    hub: HubServer, tmp_path: Path, question: tuple[Any, ...]
) -> None:
    hub.fault("hang", on="hub", times=None)
    (told,) = Asking(hub.endpoint, tmp_path, patience=2, call_seconds=1)(question)
    told.assert_says("HubError", "no progress", REPO, hub.endpoint, "network", "again")


def test_a_server_that_comes_back_silent_is_given_up_too(tmp_path: Path) -> None:
    # The client throws its session away when it cannot connect, and all that was set in it.
    refused, over = tmp_path / "refused", threading.Event()

    def come_back() -> None:
        while not refused.exists() and not over.wait(0.005):
            pass
        silent.listen()

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        listening = threading.Thread(target=come_back)
        listening.start()
        try:
            asking = Asking(endpoint, tmp_path / "home", patience=3, call_seconds=1, trouble=refused)
            (told,) = asking(files())
        finally:
            over.set()
            listening.join()
    assert refused.exists()
    told.assert_says("HubError", "no progress", endpoint, "ReadTimeout")


def test_a_listing_without_an_end_is_given_up(tmp_path: Path) -> None:
    # A mirror that forgets the cursor has the first page, and the way to the second, for every question.
    link = f'<http://hub.example/api/datasets/{REPO}/tree/main?cursor=2>; rel="next"'
    with serving(lambda _: json_answer([entry()], Link=link)) as (endpoint, _):
        (told,) = Asking(endpoint, tmp_path)(files())
    assert told.error == "HubError"


def entry(path: object = "a.parquet", size: object = 1, sha256: object = "ab" * 32) -> dict[str, object]:
    lfs = {"oid": sha256, "size": size, "pointerSize": 133}
    return {"type": "file", "path": path, "size": size, "oid": "c" * 40, "lfs": lfs}


def listed(home: Path, *answers: object) -> list[Told]:
    """Return what comes of listings that the hub answers so."""

    def answer(request: Request) -> Answer:
        return json_answer(answers[int(request.path.rpartition("/")[2])])

    with serving(answer) as (endpoint, _):
        return Asking(endpoint, home)(*(files(str(number)) for number in range(len(answers))))


def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    names = [
        "../x",
        f"{FOLDER}/../../x",
        "/etc/x",
        "..\\x",
        "C:/x",
        "a//x",
        "./x",
        "a\nb",
        "a\0b",
        "a\x1b[2J",
    ]
    paths = [f"{name}.parquet" for name in names]
    for path, told in zip(paths, listed(tmp_path, *([entry(), entry(path)] for path in paths)), strict=True):
        assert (told.error, told.found) == ("HubError", None)
        assert ascii(path) in told.text


def test_a_sha256_that_is_none_is_refused(tmp_path: Path) -> None:
    # A part is named by it.
    wrong = ["../../outside", "/outside", "a/b", "ab", "AB" * 32, "ab" * 31 + "/x", "x" * 64, ""]
    for told in listed(tmp_path, *([entry(sha256=sha256)] for sha256 in wrong)):
        assert (told.error, told.found) == ("HubError", None)


def test_a_listing_that_makes_no_sense_is_a_hub_error(tmp_path: Path) -> None:
    nonsense = [[entry(size=-1)], [entry(size="many")], [{"type": "file"}], {"error": "sorry"}, ["a.parquet"]]
    for told in listed(tmp_path, *nonsense, None, [entry(path=7)], [entry(sha256=7)]):
        assert (told.error, told.found) == ("HubError", None)


@pytest.mark.parametrize("body", [b'"busy"', b"[]", b"null", b"<html>busy</html>", b"\xff"])
def test_what_a_status_that_may_pass_has_to_say_does_not_matter(tmp_path: Path, body: bytes) -> None:
    busy = Answer(503, {"Content-Type": "application/json"}, Body(body, len(body)))
    answers = iter([busy, busy, json_answer({"id": REPO, "sha": COMMIT})])
    with serving(lambda _: next(answers)) as (endpoint, _):
        (told,) = Asking(endpoint, tmp_path)(commit())
    assert (told.error, told.found) == ("", COMMIT)


def test_a_web_page_in_place_of_a_hub_is_said(tmp_path: Path) -> None:
    page = b"<html>Please log in to this network</html>"
    answer = Answer(200, {"Content-Type": "text/html"}, Body(page, len(page)))
    with serving(lambda _: answer) as (endpoint, _):
        for told in Asking(endpoint, tmp_path, patience=1)(commit(), files()):
            told.assert_says("HubError", endpoint)


def test_a_hub_that_names_no_commit_is_said(tmp_path: Path) -> None:
    with serving(lambda _: json_answer({"id": REPO, "siblings": []})) as (endpoint, _):
        (told,) = Asking(endpoint, tmp_path, patience=1)(commit())
    told.assert_says("HubError", REPO, endpoint)


# Refusals


def test_what_the_hub_does_not_have_is_said(hub: HubServer, tmp_path: Path) -> None:
    other = "somebody/something"
    told = Asking(hub.endpoint, tmp_path)(
        commit(other),
        files(repo=other),
        commit(revision="mian"),
        files(revision="e" * 40),
        files("text"),
        files("sample/10TB"),
        files(revision=""),
    )
    for answer in told[:2]:
        answer.assert_says("HubError", "the repository does not exist", other, hub.endpoint, "hf auth login")
    told[2].assert_says("HubError", "no such revision", REPO, "mian", hub.endpoint, "branch")
    told[3].assert_says("HubError", "no such revision", REPO, "e" * 40, hub.endpoint)
    none = "no parquet, jsonl or Arrow files"
    told[4].assert_says("HubError", none, REPO, COMMIT, hub.endpoint, "text", "browser")
    told[5].assert_says("SourceError", "no such file or folder", REPO, COMMIT, hub.endpoint, "sample/10TB")


def test_a_name_that_can_be_no_repository_is_said(hub: HubServer, tmp_path: Path) -> None:
    names = ["some body/thing", "a--b/../c", "owner/na\u00efve", "owner/-x", "owner/x.git"]
    asked = [*map(commit, names), *(fetch(BIG, tmp_path, repo=name) for name in names)]
    for name, told in zip([*names, *names], Asking(hub.endpoint, tmp_path)(*asked), strict=True):
        assert told.error in {"HubError", "UsageError"}
        assert name in told.text


@pytest.mark.parametrize("token", ["", CANARY])
def test_a_gated_repository_is_said_with_the_page_where_its_terms_are(
    folder: Path, tmp_path: Path, token: str
) -> None:
    with HubServer(folder, token="hf_right", gated=True) as gated:
        told = Asking(gated.endpoint, tmp_path)(commit(), files(), HF_TOKEN=token)
    page = f"{gated.endpoint}/datasets/{REPO}"
    for answer in told:
        answer.assert_says("HubError", "gated", "terms", page, "hf auth login", "HF_TOKEN")


@pytest.mark.parametrize("token", ["", CANARY])
def test_a_private_repository_is_said_to_be_one_perhaps(folder: Path, tmp_path: Path, token: str) -> None:
    with HubServer(folder, token="hf_right") as private:
        told = Asking(private.endpoint, tmp_path)(commit(), files(), HF_TOKEN=token)
    for answer in told:
        answer.assert_says("HubError", "private", REPO, private.endpoint, "hf auth login", "HF_TOKEN")


def test_a_token_that_is_not_valid_is_said(hub: HubServer, tmp_path: Path) -> None:
    headers = {"X-Error-Message": "Invalid credentials in Authorization header"}
    hub.fault("status", on="hub", status=401, headers=headers, times=None)
    for told in Asking(hub.endpoint, tmp_path)(commit(), files(), HF_TOKEN=CANARY):
        told.assert_says("HubError", "token is not accepted", REPO, hub.endpoint, "hf auth login", "HF_TOKEN")


def test_offline_mode_is_said_and_nothing_is_asked(hub: HubServer, tmp_path: Path) -> None:
    for told in Asking(hub.endpoint, tmp_path)(commit(), files(), HF_HUB_OFFLINE="1"):
        told.assert_says("HubError", "offline", "unset HF_HUB_OFFLINE", "--source", REPO)
    assert hub.log == []


def test_an_endpoint_without_a_scheme_is_said(tmp_path: Path) -> None:
    for told in Asking("huggingface.example", tmp_path)(commit(), files()):
        told.assert_says("HubError", "huggingface.example", "HF_ENDPOINT", "https://huggingface.co")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:port", "http://[::1"])
def test_an_endpoint_that_is_no_address_is_a_mistake_of_the_user(tmp_path: Path, endpoint: str) -> None:
    for told in Asking(endpoint, tmp_path, patience=1)(commit()):
        told.assert_says(told.error, "HF_")
        assert told.error in {"HubError", "UsageError"}


def test_a_timeout_that_the_client_cannot_read_is_a_mistake_of_the_user(
    hub: HubServer, tmp_path: Path
) -> None:
    for told in Asking(hub.endpoint, tmp_path)(commit(), files(), HF_HUB_DOWNLOAD_TIMEOUT="2.5"):
        told.assert_says("UsageError", "HF_", "2.5")
    assert hub.log == []


def test_a_server_that_is_down_is_said_with_its_address(tmp_path: Path) -> None:
    with nobody() as endpoint:
        (told,) = Asking(endpoint, tmp_path, patience=1)(commit())
    told.assert_says("HubError", "no progress", endpoint, REPO, "network", "again")


# Retry


PATIENCE = """
import json, random, types
from email.utils import formatdate
from fwconvert.hub import client, dataset as hub, retry
from fwconvert.errors import HubError, Stopped

now = [1_000_000_000.0]
hub.time = retry.time = types.SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0])
retry.random = random.Random(1)

class Stop:
    # Time passes while somebody waits for it, and no other time does.
    def __init__(self, at=None):
        self.waits, self.at = [], at

    def wait(self, seconds):
        self.waits.append(seconds)
        now[0] += seconds
        return len(self.waits) == self.at

def tried(seconds, *waits, progress=(), stop_at=None):
    stop, told = Stop(stop_at), []
    patient = retry.Retry(seconds, stop, told.append)
    end = ""
    for number, wait in enumerate(waits):
        if number in progress:
            patient.progress()
        try:
            patient.wait_or_raise(retry.TransientError(f"trouble {number}", wait), "the file")
        except (HubError, Stopped) as caught:
            end = f"{type(caught).__name__}: {caught}"
            break
    return {"waits": stop.waits, "told": told, "end": end}

def dripped(seconds, size, every, **how):
    # Return how long bytes come before they are too few; 1,000 s are long enough.
    patient, begun = retry.Retry(seconds, Stop(), lambda _: None), now[0]
    try:
        while now[0] < begun + 1000:
            now[0] += every
            patient.received(size, "the file", **how)
    except HubError as caught:
        return [now[0] - begun, str(caught)]
    return [now[0] - begun, ""]

def asked(status, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return hub._retry_after(client.client().httpx.Headers(named), status)

def date(seconds):
    return formatdate(now[0] + seconds, usegmt=True)

print(json.dumps({
    "seconds": asked(429, Retry_After="7"),
    "zero": asked(503, Retry_After="0"),
    "date": asked(503, Retry_After=date(90)),
    "date that is past": asked(429, Retry_After=date(-90)),
    "no sense": [asked(429, Retry_After=text) for text in ("soon", "-5", "1.5", "", "Wed, 99 Oct 2150")],
    "nothing": asked(429),
    "limit": asked(429, RateLimit='"api";r=0;t=55'),
    "limit and seconds": asked(429, RateLimit='"api";r=0;t=55', Retry_After="7"),
    "monsters": [asked(429, Retry_After="9" * 5000), asked(429, Retry_After="9" * 5000 + "x"),
        asked(429, RateLimit=f'"api";r=0;t={"9" * 5000}'), asked(429, RateLimit=f'"api";r=0;t={"9" * 400}'),
        asked(429, Retry_After="nan"), asked(429, Retry_After="inf"), asked(429, Retry_After="1e9"),
        asked(429, Retry_After="Wed, 21 Oct 99999 07:28:00 GMT")],
    "drip": dripped(10, 1, 0.5), "stream": dripped(10, 300, 1.0), "bursts": dripped(10, 3000, 9.0),
    "skipped": dripped(10, 300, 1.0, new=False),
    "limit, and another trouble": asked(503, RateLimit='"api";r=0;t=55'),
    "backoff": tried(1e9, *[None] * 12),
    "backoff of a person": tried(8, *[None] * 4),
    "progress": tried(1e9, *[None] * 8, progress={4}),
    "end": tried(10, *[None] * 50),
    "progress every time": tried(2, *[None] * 50, progress=range(50)),
    "stop": tried(600, *[None] * 9, stop_at=3),
    "asked waits": tried(5, 100.0, 100.0, 100.0),
    "ceiling": tried(600, 1e6, float("inf")),
    "asked for ever": tried(600, *[300.0] * 1000),
    "short asked waits": [tried(600, *[wait] * 40) for wait in (0.0, 1.0)],
}))
"""


@pytest.fixture(scope="module")
def patience(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    ended = subprocess.run(
        child.command(PATIENCE),
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
        env=environment("http://hub.example", HF_HOME=str(tmp_path_factory.mktemp("home"))),
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_what_a_server_asks_for_is_read_in_all_spellings(patience: dict[str, Any]) -> None:
    assert patience["seconds"] == 7
    assert patience["zero"] == 0
    assert patience["date"] == 90
    assert patience["date that is past"] == 0
    assert patience["no sense"] == [None] * 5
    assert patience["nothing"] is None
    assert patience["limit"] == 55
    assert patience["limit and seconds"] == 7
    assert patience["limit, and another trouble"] is None


def test_numbers_that_nobody_can_read_are_no_wait_that_never_ends(patience: dict[str, Any]) -> None:
    long, *others = patience["monsters"]
    assert long > 10**9
    assert others[1] is None
    assert all(wait is None or 0 <= wait < float("inf") for wait in others)


def test_a_drip_is_given_up_with_the_patience_and_a_slow_line_is_not(patience: dict[str, Any]) -> None:
    seconds, said = patience["drip"]
    assert 10 < seconds < 11
    for word in ("too slow", "the file", "2,560 bytes", "http://hub.example", "->"):
        assert word in said
    assert patience["stream"] == [1000, ""]
    assert patience["bursts"][1] == ""
    assert patience["skipped"] == [1000, ""]


def test_backoff_grows_to_a_ceiling_and_is_never_quite_the_same(patience: dict[str, Any]) -> None:
    found = patience["backoff"]
    longest = [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60]
    for wait, most in zip(found["waits"], longest, strict=True):
        assert most / 2 <= wait <= most
    assert len(set(found["waits"])) == len(longest)
    assert found["end"] == ""
    assert all(wait <= 2 for wait in patience["backoff of a person"]["waits"])


def test_a_person_is_told_of_a_long_wait_only(patience: dict[str, Any]) -> None:
    found = patience["backoff"]
    assert len(found["told"]) == len([wait for wait in found["waits"] if wait >= 4])
    assert all("the file: trouble" in line for line in found["told"])


def test_progress_begins_the_backoff_anew_and_renews_the_patience(patience: dict[str, Any]) -> None:
    waits = patience["progress"]["waits"]
    assert waits[3] >= 4
    assert waits[4] <= 1
    assert waits[7] >= 4
    found = patience["progress every time"]
    assert found["end"] == ""
    assert sum(found["waits"]) > 2
    assert max(found["waits"]) <= 1


def test_patience_ends_with_an_error_that_says_what_to_do(patience: dict[str, Any]) -> None:
    found = patience["end"]
    assert found["end"].startswith("HubError: no progress")
    for word in ("the file", "trouble", "http://hub.example", "->", "again"):
        assert word in found["end"]
    assert 10 < sum(found["waits"]) < 20


def test_a_stop_ends_a_wait(patience: dict[str, Any]) -> None:
    found = patience["stop"]
    assert found["end"] == "Stopped: stopped by the user"
    assert len(found["waits"]) == 3


def test_what_the_server_asks_for_is_not_held_against_it_up_to_a_ceiling(patience: dict[str, Any]) -> None:
    assert patience["asked waits"]["waits"] == [100, 100, 100]
    assert patience["asked waits"]["end"] == ""
    assert patience["ceiling"]["waits"] == [300, 300]


def test_a_server_that_asks_for_ever_is_given_up_with_a_true_time(patience: dict[str, Any]) -> None:
    found = patience["asked for ever"]
    assert found["end"].startswith("HubError: no progress")
    assert f"for {sum(found['waits']):,.0f} s" in found["end"]


@pytest.mark.parametrize("wait", [0, 1])
def test_short_waits_that_the_server_asks_for_do_not_use_up_the_patience(
    patience: dict[str, Any], wait: int
) -> None:
    found = patience["short asked waits"][wait]
    assert found["end"] == ""
    assert sum(found["waits"]) < 600


# Proxies


@contextmanager
def proxying(aliases: dict[str, str]) -> Iterator[tuple[str, list[Request]]]:
    """Have a proxy that sends on what it is asked, to other addresses for some names."""

    def answer(request: Request) -> Answer:
        asked = urlsplit(f"{request.raw_path}?{request.query}")
        connection = http.client.HTTPConnection(aliases.get(asked.netloc, asked.netloc), timeout=10)
        headers = {"Range": request.range, "Authorization": request.authorization}
        try:
            given = {name: value for name, value in headers.items() if value}
            connection.request(request.method, f"{asked.path}?{asked.query}", headers=given)
            response = connection.getresponse()
            body = response.read()
            kept = {name: value for name, value in response.getheaders() if name != "Content-Length"}
            return Answer(response.status, kept, Body(body, len(body)))
        finally:
            connection.close()

    with serving(answer) as served:
        yield served


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
def test_a_proxy_is_used_for_everything(hub: HubServer, tmp_path: Path, variable: str) -> None:
    with proxying({"hub.example": urlsplit(hub.endpoint).netloc}) as (proxy, asked):
        told = Asking("http://hub.example", tmp_path / "home")(
            commit(), fetch(BIG, tmp_path), **{variable: proxy, "HF_TOKEN": CANARY}
        )
    assert [answer.error for answer in told] == ["", ""]
    assert (tmp_path / BIG).read_bytes() == FILES[BIG]
    assert {urlsplit(request.raw_path).netloc for request in asked} == {
        "hub.example",
        urlsplit(hub.cdn_endpoint).netloc,
    }
    assert {(seen.server, seen.authorization) for seen in hub.log} == {
        ("hub", f"Bearer {CANARY}"),
        ("cdn", None),
    }


def test_no_proxy_is_used_for_those_that_are_excepted(hub: HubServer, tmp_path: Path) -> None:
    with proxying({}) as (proxy, asked):
        told = Asking(hub.endpoint, tmp_path)(commit(), HTTP_PROXY=proxy, NO_PROXY="127.0.0.1")
        assert told[0].found == COMMIT
        assert asked == []


def test_a_proxy_that_is_down_is_an_error_without_its_password(hub: HubServer, tmp_path: Path) -> None:
    with nobody() as endpoint:
        proxy = f"http://me:canary@{urlsplit(endpoint).netloc}"
        (told,) = Asking(hub.endpoint, tmp_path, patience=1)(commit(), HTTP_PROXY=proxy)
    told.assert_says("HubError", "no progress", REPO)
    assert hub.log == []


# The token


def test_a_token_is_found_where_users_keep_it(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{CANARY}\n")
    ask = Asking(hub.endpoint, tmp_path)
    ask(commit())
    ask(commit(), HF_TOKEN="hf_other")
    ask(commit(), HF_HUB_DISABLE_IMPLICIT_TOKEN="1")
    assert [seen.authorization for seen in hub.log] == [f"Bearer {CANARY}", "Bearer hf_other", None]


def test_the_token_is_shown_to_the_hub_alone_whatever_happens(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with HubServer(folder, token=CANARY, page_size=2) as hub:
        hub.fault("reset", on="hub", path="/revision/", after=-1)
        hub.fault("status", on="hub", path="/tree/", status=503)
        hub.fault("reset", path=BIG, after=1000)
        hub.fault("status", path=BIG, status=500)
        hub.fault("corrupt", path=BIG, after=10)
        hub.fault("corrupt", path="001_00000", times=None)
        told = Asking(hub.endpoint, tmp_path / "home")(
            commit(),
            files(),
            fetch(BIG, kept),
            fetch(f"{FOLDER}/001_00000.parquet", kept),
            fetch("missing.parquet", kept),
            commit("somebody/something"),
            files(revision="e" * 40),
            HF_TOKEN=CANARY,
        )
    errors = [answer.error for answer in told]
    assert errors == ["", "", "", "SourceError", "SourceError", "HubError", "HubError"]
    assert {(seen.server, seen.authorization) for seen in hub.log} == {
        ("hub", f"Bearer {CANARY}"),
        ("cdn", None),
    }
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in written if CANARY.encode() in path.read_bytes()] == []
    assert (kept / BIG).read_bytes() == FILES[BIG]


def test_the_token_does_not_follow_a_listing_to_another_origin(tmp_path: Path) -> None:
    with serving(lambda _: json_answer([entry("b.parquet")])) as (elsewhere, asked):
        link = f'<{elsewhere}/page/2>; rel="next"'
        with serving(lambda _: json_answer([entry()], Link=link)) as (endpoint, hub_asked):
            Asking(endpoint, tmp_path)(files(), HF_TOKEN=CANARY)
    assert {request.authorization for request in hub_asked} == {f"Bearer {CANARY}"}
    assert {request.authorization for request in asked} <= {None}


def test_the_token_does_not_follow_a_redirect_to_another_origin(tmp_path: Path) -> None:
    with serving(lambda _: json_answer({"id": REPO, "sha": COMMIT, "siblings": []})) as (elsewhere, asked):
        moved = Answer(307, {"Location": f"{elsewhere}/moved"})
        with serving(lambda _: moved) as (endpoint, hub_asked):
            Asking(endpoint, tmp_path)(commit(), HF_TOKEN=CANARY)
    assert {request.authorization for request in hub_asked} == {f"Bearer {CANARY}"}
    assert {request.authorization for request in asked} == {None}
