"""The loopback hub, judged by the real client of the Hugging Face hub and by plain HTTP.

The client reads its settings when it is imported, and that takes a second: so a few children check a lot.
"""

import hashlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import child
import pytest
from hub_faults import Fault, Kind
from hub_server import COMMIT, REPO, HubServer, write_files

BIG = "sample/10BT/000_00000.parquet"
SMALL = "sample/10BT/001_00000.parquet"
ODD = "odd/\u00e4 %2F+#?.txt"
SIZE = 300_000
CONTENT = bytes(number * 7 % 251 for number in range(SIZE))
FILES = {
    "README.md": b"a dataset",
    "data/CC-MAIN-2013-20/000_00000.parquet": b"another file of this name",
    ODD: b"odd",
    BIG: CONTENT,
    SMALL: b"one",
    "sample/10BT/002_00000.parquet": b"",
    "sample/10BT/003_00000.parquet": b"three",
    "sample/10BT/004_00000.parquet": b"four",
}
FOLDERS = ["data", "data/CC-MAIN-2013-20", "odd", "sample", "sample/10BT"]
SHA256 = {path: hashlib.sha256(content).hexdigest() for path, content in FILES.items()}
BLOB = f"/blob/{SHA256[BIG]}"
RESOLVE = f"/datasets/{REPO}/resolve/main"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_files(folder, FILES)
    return folder


@pytest.fixture
def hub(folder: Path) -> Iterator[HubServer]:
    with HubServer(folder) as hub:
        yield hub


class Got(NamedTuple):
    """An answer as far as it came: `end` is whole, closed, reset or late; status 0 is none."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    end: str


def ask(
    endpoint: str,
    path: str,
    method: str = "GET",
    body: str | None = None,
    timeout: float = 30,
    **headers: str,
) -> Got:
    """Ask on a new connection, and read to the end, whatever it is."""
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=timeout)
    try:
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
    except http.client.RemoteDisconnected:
        return Got(0, http.client.HTTPMessage(), b"", "closed")
    except ConnectionResetError:
        return Got(0, http.client.HTTPMessage(), b"", "reset")
    except TimeoutError:
        return Got(0, http.client.HTTPMessage(), b"", "late")
    else:
        with response:
            return read(response)
    finally:
        connection.close()


def read(response: http.client.HTTPResponse) -> Got:
    length = response.length or 0
    body, end = bytearray(), ""
    try:
        while chunk := response.read1(1 << 16):
            body += chunk
    except ConnectionResetError:
        end = "reset"
    except TimeoutError:
        end = "late"
    end = end or ("whole" if len(body) == length else "closed")
    return Got(response.status, response.headers, bytes(body), end)


def client(code: str, *arguments: object, home: Path, **changes: str) -> Any:
    """Run code in a child that has the client; return what it prints, which is JSON."""
    quiet = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    here = {"HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "HF_TOKEN": ""}
    return json.loads(child.run(code, *arguments, **{**quiet, **here, **changes}))


ORDINARY = """
import hashlib, json, sys
from pathlib import Path
from huggingface_hub import HfApi, RepoFile, hf_hub_download, snapshot_download

repo, commit, big, odd, local = sys.argv[1:]
api, kind = HfApi(), {"repo_type": "dataset"}

def told(entry):
    return [entry.size, entry.lfs.sha256] if isinstance(entry, RepoFile) else None

def tree(*path, **how):
    entries = api.list_repo_tree(repo, *path, revision=commit, **kind, **how)
    return {entry.path: told(entry) for entry in entries}

def download(path, revision):
    file = hf_hub_download(repo, path, revision=revision, local_dir=local, **kind)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()

info = api.repo_info(repo, revision="main", files_metadata=True, **kind)
paths = api.get_paths_info(repo, [big, "sample", "missing"], revision="main", **kind)
snapshot = Path(snapshot_download(repo, allow_patterns="sample/10BT/00[1-4]*", **kind))
print(json.dumps({
    "sha": [api.repo_info(repo, **kind).sha, info.sha, api.dataset_info(repo, revision=commit).sha],
    "siblings": {file.rfilename: [file.size, file.lfs.sha256] for file in info.siblings},
    "tree": tree(recursive=True),
    "folder": tree("sample/10BT"),
    "paths": [path.path for path in paths],
    "sha256": [download(big, "main"), download(odd, commit)],
    "snapshot": [path.name for path in sorted(snapshot.rglob("*.parquet"))],
}))
"""


def test_the_real_client_lists_and_downloads_and_shows_its_token_to_the_hub_only(
    folder: Path, tmp_path: Path
) -> None:
    with HubServer(folder, token="secret", page_size=2) as hub:
        settings = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "secret"}
        told = client(ORDINARY, REPO, COMMIT, BIG, ODD, tmp_path / "local", home=tmp_path, **settings)
    files = {path: [len(content), SHA256[path]] for path, content in FILES.items()}
    assert told["sha"] == [COMMIT] * 3
    assert told["siblings"] == files
    assert told["tree"] == {**files, **dict.fromkeys(FOLDERS)}
    assert told["folder"] == {path: told for path, told in files.items() if path.startswith("sample/10BT/")}
    assert told["paths"] == [BIG, "sample"]
    assert told["sha256"] == [SHA256[BIG], SHA256[ODD]]
    assert told["snapshot"] == [f"00{number}_00000.parquet" for number in range(1, 5)]
    pages = [seen.query for seen in hub.log if seen.path.endswith("/tree/" + COMMIT + "/sample/10BT")]
    assert [parse_qs(query).get("cursor") for query in pages] == [None, ["2"], ["4"]]
    shown = {(seen.server, seen.authorization) for seen in hub.log}
    assert shown == {("hub", "Bearer secret"), ("cdn", None)}
    assert [seen.bytes for seen in hub.log if seen.path == BLOB] == [SIZE]


ERRORS = """
import json, sys, tempfile
from huggingface_hub import HfApi

public, private, gated, repo, temporary = sys.argv[1:]

def caught(call, *arguments, **how):
    try:
        call(*arguments, **how)
    except Exception as error:
        return [type(error).__name__, error.response.status_code]
    return None

def seen(endpoint, token, *, repo=repo, revision="main", path="README.md", folder=None):
    api = HfApi(endpoint=endpoint, token=token)
    named = {"repo_id": repo, "repo_type": "dataset", "revision": revision}
    local = tempfile.mkdtemp(dir=temporary)  # the client forgives every error if it finds the file there
    return [
        caught(api.repo_info, **named),
        caught(lambda: list(api.list_repo_tree(path_in_repo=folder, **named))),
        caught(api.get_paths_info, paths=[path], **named),
        caught(api.hf_hub_download, filename=path, local_dir=local, **named),
    ]

print(json.dumps({
    "private, no token": seen(private, False),
    "private, wrong token": seen(private, "wrong"),
    "private, token": seen(private, "secret"),
    "gated, no token": seen(gated, False),
    "gated, wrong token": seen(gated, "wrong"),
    "gated, token": seen(gated, "secret"),
    "no repository, no token": seen(public, False, repo="somebody/something"),
    "no repository, token": seen(public, "any", repo="somebody/something"),
    "no revision": seen(public, False, revision="missing"),
    "no entry": seen(public, False, path="missing", folder="missing"),
}))
"""


def test_the_real_client_raises_the_error_that_is_meant(folder: Path, tmp_path: Path) -> None:
    with (
        HubServer(folder) as public,
        HubServer(folder, token="secret") as private,
        HubServer(folder, token="secret", gated=True) as gated,
    ):
        endpoints = [server.endpoint for server in (public, private, gated)]
        told = client(ERRORS, *endpoints, REPO, tmp_path, home=tmp_path)
    no_repository = "RepositoryNotFoundError"
    assert told == {
        "private, no token": [[no_repository, 401]] * 4,
        "private, wrong token": [[no_repository, 401]] * 4,
        "private, token": [None] * 4,
        "gated, no token": [["GatedRepoError", 401]] * 4,
        "gated, wrong token": [["GatedRepoError", 403]] * 4,
        "gated, token": [None] * 4,
        "no repository, no token": [[no_repository, 401]] * 4,
        "no repository, token": [[no_repository, 404]] * 4,
        "no revision": [["RevisionNotFoundError", 404]] * 4,
        "no entry": [None, ["RemoteEntryNotFoundError", 404], None, ["RemoteEntryNotFoundError", 404]],
    }


def test_a_file_is_a_redirect_to_the_cdn_with_all_that_the_client_wants_to_know(hub: HubServer) -> None:
    for method in ("HEAD", "GET"):
        got = ask(hub.endpoint, f"{RESOLVE}/{BIG}", method)
        assert (got.status, got.headers["X-Repo-Commit"]) == (302, COMMIT)
        assert got.headers["X-Linked-Size"] == str(SIZE)
        assert got.headers["ETag"] == got.headers["X-Linked-Etag"] == f'"{SHA256[BIG]}"'
        assert got.headers["Accept-Ranges"] == "bytes"
        location = urlsplit(got.headers["Location"])
        assert (f"http://{location.netloc}", location.path) == (hub.cdn_endpoint, BLOB)
        assert {"X-Amz-Signature", "Expires"} < parse_qs(location.query).keys()
        assert ask(hub.cdn_endpoint, f"{location.path}?{location.query}").body == CONTENT


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("bytes=0-", 0, SIZE),
        ("bytes=1000-", 1000, SIZE),
        ("bytes=1000-1000", 1000, 1001),
        ("bytes=299999-400000", SIZE - 1, SIZE),
        ("bytes=-5", SIZE - 5, SIZE),
        ("bytes=-400000", 0, SIZE),
    ],
)
def test_a_range_is_sent_by_the_cdn_and_by_a_hub_without_one(
    folder: Path, hub: HubServer, wanted: str, start: int, end: int
) -> None:
    with HubServer(folder, cdn=False) as alone:
        answers = [
            ask(hub.cdn_endpoint, BLOB, Range=wanted),
            ask(alone.endpoint, f"{RESOLVE}/{BIG}", Range=wanted),
        ]
    for got in answers:
        assert (got.status, got.end) == (206, "whole")
        assert got.headers["Content-Range"] == f"bytes {start}-{end - 1}/{SIZE}"
        assert got.body == CONTENT[start:end]


def test_a_range_past_the_end_is_refused_and_one_without_sense_ignored(hub: HubServer) -> None:
    past = ask(hub.cdn_endpoint, BLOB, Range=f"bytes={SIZE}-")
    assert (past.status, past.headers["Content-Range"], past.body) == (416, f"bytes */{SIZE}", b"")
    for wanted in ("bytes=-", "lines=1-2", "bytes=x-"):
        assert ask(hub.cdn_endpoint, BLOB, Range=wanted)[::2] == (200, CONTENT)


def test_a_tree_takes_a_path_in_any_spelling(hub: HubServer) -> None:
    tree = f"/api/datasets/{REPO}/tree/main"
    spellings = ("sample/10BT", "sample%2F10BT", "sample/10BT/", "sample%2F10BT/?recursive=false")
    answers = {ask(hub.endpoint, f"{tree}/{path}").body for path in spellings}
    assert [len(json.loads(answer)) for answer in answers] == [5]
    assert ask(hub.endpoint, tree).body == ask(hub.endpoint, f"{tree}/").body
    for path in (BIG, "missing", "..", "%2e%2e"):
        assert ask(hub.endpoint, f"{tree}/{path}").headers["X-Error-Code"] == "EntryNotFound"


def test_a_branch_has_its_own_commit(folder: Path) -> None:
    other = "f" * 40
    with HubServer(folder, branches={"main": COMMIT, "refs/pr/1": other}) as hub:
        for revision, commit in (("refs%2Fpr%2F1", other), (other, other), ("main", COMMIT)):
            got = ask(hub.endpoint, f"/datasets/{REPO}/resolve/{revision}/README.md", "HEAD")
            assert got.headers["X-Repo-Commit"] == commit


def test_a_changed_file_has_a_new_sha256_and_the_old_one_is_gone(tmp_path: Path) -> None:
    with HubServer(tmp_path) as hub:
        blobs = []
        for content in (b"old", b"newer"):
            (tmp_path / "file").write_bytes(content)
            got = ask(hub.endpoint, f"{RESOLVE}/file", "HEAD")
            assert got.headers["X-Linked-Etag"] == f'"{hashlib.sha256(content).hexdigest()}"'
            blobs.append(urlsplit(got.headers["Location"]).path)
        assert [ask(hub.cdn_endpoint, blob).status for blob in blobs] == [404, 200]


def test_what_the_hub_does_not_know_is_a_404(hub: HubServer) -> None:
    assert ask(hub.endpoint, "/api/agent-harnesses").status == 404
    assert ask(hub.cdn_endpoint, "/blob/missing").status == 404


def test_the_log_tells_what_was_asked_and_sent(hub: HubServer) -> None:
    ask(hub.endpoint, f"{RESOLVE}/sample%2F10BT/001_00000.parquet?download=true", Authorization="Bearer t")
    ask(hub.cdn_endpoint, BLOB, Range="bytes=10-19")
    ask(hub.cdn_endpoint, BLOB, "HEAD")
    first, second, third = hub.log
    assert (first.server, first.method, first.status) == ("hub", "GET", 302)
    assert first.path == f"{RESOLVE}/sample/10BT/001_00000.parquet"
    assert (first.query, first.range, first.authorization) == ("download=true", None, "Bearer t")
    assert (second.server, second.path, second.range) == ("cdn", BLOB, "bytes=10-19")
    assert (second.status, second.bytes) == (206, 10)
    assert (third.method, third.status, third.bytes) == ("HEAD", 200, 0)


@pytest.mark.parametrize("after", [0, 1, 65_536, 200_001])
@pytest.mark.parametrize(("kind", "end"), [("reset", "reset"), ("close", "closed"), ("stall", "closed")])
def test_a_body_is_cut_off_after_exactly_so_many_bytes(
    hub: HubServer, kind: Kind, end: str, after: int
) -> None:
    hub.fault(kind, after=after, seconds=0.1)
    got = ask(hub.cdn_endpoint, BLOB)
    assert (got.status, got.headers["Content-Length"], got.end) == (200, str(SIZE), end)
    assert got.body == CONTENT[:after]
    assert (hub.log[-1].status, hub.log[-1].bytes) == (200, after)
    assert ask(hub.cdn_endpoint, BLOB).body == CONTENT


@pytest.mark.parametrize(
    ("kind", "how", "end"),
    [
        ("reset", {"after": -1}, "reset"),
        ("close", {"after": -1}, "closed"),
        ("stall", {"after": -1}, "late"),
        ("reset", {"method": "HEAD"}, "reset"),
        ("refuse", {}, "closed"),
        ("hang", {}, "late"),
        ("hang", {"seconds": 0.1}, "closed"),
    ],
)
def test_there_may_be_no_answer_at_all(hub: HubServer, kind: Kind, how: dict[str, Any], end: str) -> None:
    hub.fault(kind, on="hub", **how)
    path = f"/api/datasets/{REPO}"
    got = ask(hub.endpoint, path, how.get("method", "GET"), timeout=3 if end == "late" else 30)
    assert (got.status, got.end) == (0, end)
    assert (hub.log[-1].status, hub.log[-1].bytes) == (0, 0)
    assert ask(hub.endpoint, path).status == 200


def test_a_stall_outlasts_the_patience_of_a_client(hub: HubServer) -> None:
    hub.fault("stall", after=1000)
    got = ask(hub.cdn_endpoint, BLOB, timeout=3)
    assert (got.status, got.body, got.end) == (200, CONTENT[:1000], "late")


def test_a_status_comes_with_its_headers_in_place_of_the_content(hub: HubServer) -> None:
    hub.fault("status", status=429, headers={"Retry-After": "1"})
    got = ask(hub.cdn_endpoint, BLOB)
    assert (got.status, got.headers["Retry-After"], got.body, got.end) == (429, "1", b"", "whole")


@pytest.mark.parametrize("after", [0, 70_000, SIZE - 1])
def test_one_byte_is_corrupt(hub: HubServer, after: int) -> None:
    hub.fault("corrupt", after=after)
    body = ask(hub.cdn_endpoint, BLOB).body
    assert len(body) == SIZE
    assert [at for at in range(SIZE) if body[at] != CONTENT[at]] == [after]


def test_a_short_answer_agrees_with_itself(hub: HubServer) -> None:
    hub.fault("short", missing=10, times=2)
    whole, part = ask(hub.cdn_endpoint, BLOB), ask(hub.cdn_endpoint, BLOB, Range="bytes=1000-")
    assert (whole.body, whole.end) == (CONTENT[:-10], "whole")
    assert (part.body, part.end) == (CONTENT[1000:-10], "whole")
    assert part.headers["Content-Range"] == f"bytes 1000-{SIZE - 11}/{SIZE - 10}"


def test_a_range_can_be_ignored(hub: HubServer) -> None:
    hub.fault("ignore_range", times=2)
    assert ask(hub.cdn_endpoint, BLOB).status == 200
    assert hub.faults_left == 2
    for wanted in ("bytes=1000-", f"bytes={SIZE}-"):
        got = ask(hub.cdn_endpoint, BLOB, Range=wanted)
        assert (got.status, got.headers["Content-Range"], got.body) == (200, None, CONTENT)


def test_headers_can_be_left_out(hub: HubServer) -> None:
    hub.fault("noheader", on="hub")
    hub.fault("noheader", on="hub", names=["X-Repo-Commit"])
    first, second, third = [ask(hub.endpoint, f"{RESOLVE}/{BIG}", "HEAD").headers for _ in range(3)]
    assert not {"X-Repo-Commit", "ETag", "X-Linked-Etag"} & set(first)
    assert set(third) - set(second) == {"X-Repo-Commit"}


def test_content_can_be_slow_for_once_or_on_all_of_the_cdn(folder: Path, hub: HubServer) -> None:
    hub.fault("slow", rate=SIZE * 4)
    with HubServer(folder, rate=SIZE * 4) as limited:
        for server in (hub, limited):
            start = time.monotonic()
            assert ask(server.cdn_endpoint, BLOB).body == CONTENT
            assert time.monotonic() - start > 0.2


def test_faults_happen_in_order_and_as_often_as_told(hub: HubServer) -> None:
    hub.fault("status", status=500, times=2)
    hub.fault("status", status=502, skip=1)
    hub.fault("status", status=504, skip=1, times=None)
    assert hub.faults_left == 3
    assert [ask(hub.cdn_endpoint, BLOB).status for _ in range(6)] == [500, 500, 200, 502, 504, 504]
    assert hub.faults_left == 0


def test_a_fault_happens_only_where_it_fits(hub: HubServer) -> None:
    hub.fault("status", path="10BT/001_")
    hub.fault("status", method="HEAD", status=500)
    hub.fault("status", on="hub", path="sample/10BT", status=502)
    locations = [
        ask(hub.endpoint, f"{RESOLVE}/{path}").headers["Location"] for path in ("README.md", SMALL, SMALL)
    ]
    assert [location is None for location in locations] == [False, True, False]
    urls = [urlsplit(location) for location in locations if location]
    statuses = [ask(hub.cdn_endpoint, f"{url.path}?{url.query}").status for url in urls]
    assert statuses == [200, 503]
    assert hub.faults_left == 1
    assert ask(hub.cdn_endpoint, BLOB, "HEAD").status == 500


@pytest.mark.parametrize("kind", ["reset", "close", "stall", "corrupt"])
def test_a_fault_past_the_end_of_an_answer_waits_for_a_longer_one(hub: HubServer, kind: Kind) -> None:
    hub.fault(kind, after=100, seconds=0.1)
    assert ask(hub.cdn_endpoint, BLOB, Range="bytes=0-99").body == CONTENT[:100]
    assert hub.faults_left == 1
    assert ask(hub.cdn_endpoint, BLOB, Range="bytes=0-100").body != CONTENT[:101]
    assert hub.faults_left == 0


def test_a_fault_that_could_never_happen_is_a_mistake_of_the_test(folder: Path) -> None:
    with HubServer(folder, cdn=False) as hub:
        with pytest.raises(AssertionError, match="there is no CDN"):
            hub.fault("reset")
        with pytest.raises(AssertionError):
            Fault("rset")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            hub.fault("reset", afer=3)


def test_stop_ends_stalls_hangs_and_idle_connections_at_once_and_leaves_no_thread(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(threading.enumerate())
    hub = HubServer(folder, rate=SIZE)
    hub.fault("hang", on="hub", path="hang")
    hub.fault("stall", method="GET", after=10)
    idle = http.client.HTTPConnection(urlsplit(hub.cdn_endpoint).netloc)
    idle.request("HEAD", BLOB)
    idle.getresponse().read()
    asked = [(hub.endpoint, "/hang"), (hub.cdn_endpoint, BLOB), (hub.cdn_endpoint, BLOB)]
    clients = [threading.Thread(target=ask, args=arguments) for arguments in asked]
    for thread in clients:
        thread.start()
    deadline = time.monotonic() + 30
    while len(hub.log) < 4 or sum(seen.bytes for seen in hub.log) <= 10:
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)
    start = time.monotonic()
    hub.stop()
    assert time.monotonic() - start < 5  # and not the 60 of a stall
    hub.stop()
    for thread in clients:
        thread.join()
    idle.close()
    assert set(threading.enumerate()) <= before
    assert capfd.readouterr() == ("", "")


def test_a_client_that_goes_away_is_no_failure_but_a_mistake_in_the_server_is(folder: Path) -> None:
    hub = HubServer(folder)
    connection = http.client.HTTPConnection(urlsplit(hub.cdn_endpoint).netloc)
    connection.request("GET", BLOB)
    connection.close()
    hub.stop()
    hub = HubServer(folder)
    assert ask(hub.endpoint, f"/api/datasets/{REPO}/tree/main?cursor=x").end == "closed"
    with pytest.raises(ValueError, match="invalid literal"):
        hub.stop()
