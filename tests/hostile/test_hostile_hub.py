"""A hub that means ill costs neither memory nor time: answers without an end, drips, bombs and lies."""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bounded
import corpus
import hub_runs
import pytest
import zstandard
from hostile_server import Answering, HostileServer, Line, hub, listing_entry
from hub_server import COMMIT, REPO

PATH = "data/000.parquet"
# The client's own waits are short, so that what is to end ends soon.
QUICK = {"HF_HUB_DOWNLOAD_TIMEOUT": "1"}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("source") / "000.parquet"
    corpus.write(file, corpus.documents(0, 200), compression="none", use_dictionary=False)
    return file.read_bytes()


def pin(server: HostileServer, place: Path, **settings: str) -> bounded.Ended:
    """Pin the dataset of a server."""
    env = hub_runs.environment(server.endpoint, **{**QUICK, **settings})
    return bounded.run("pin", REPO, "-o", place / "pinned.json", env=env)


def refused_pin(server: HostileServer, place: Path, *words: str, **settings: str) -> bounded.Ended:
    """Pin; fail unless that is refused in these words, and nothing is written."""
    ended = pin(server, place, **settings)
    assert ended.code == 1, ended
    assert not (place / "pinned.json").exists()
    for word in words:
        assert word in ended.stderr
    assert len(ended.said) < 20_000
    return ended


def convert(server: HostileServer, place: Path, *files: dict[str, Any], patience: int = 2) -> bounded.Ended:
    """Convert these files, or if there are none those that the server lists."""
    manifest = {
        "format": "fwconvert source manifest 1",
        "name": "mine",
        "dataset": REPO,
        "revision": COMMIT,
        "folder": "",
        "files": [
            {"path": file["path"], "bytes": file["size"], "sha256": file["lfs"]["oid"]} for file in files
        ],
        "totals": {"files": len(files), "bytes": 0},
    }
    (place / "mine.json").write_text(json.dumps(manifest))
    words = ["--version", place / "mine.json", "--out", place / "out", "--tokenizer", "bytes", "--workers", 1]
    env = hub_runs.environment(server.endpoint, **QUICK)
    return bounded.run(*words, "--patience", patience, env=env)


# Too much of it


def endless_list(_: str, line: Line) -> None:
    line.head(Transfer_Encoding="chunked")
    entry = json.dumps(listing_entry("a.parquet")).encode() + b","
    piece = entry * (60_000 // len(entry))
    line.send(b"1\r\n[\r\n")
    line.endless(b"%x\r\n%s\r\n" % (len(piece), piece))


def test_a_list_without_an_end_is_cut_off(tmp_path: Path) -> None:
    with HostileServer(hub({}, {"/tree/": endless_list})) as server:
        refused_pin(server, tmp_path, "33,554,432 bytes", server.endpoint)


def test_an_endless_answer_to_the_first_question_is_cut_off(tmp_path: Path) -> None:
    with HostileServer(hub({}, {"/revision/": endless_list})) as server:
        refused_pin(server, tmp_path, "33,554,432 bytes", server.endpoint)


def bomb(window: int, megabytes: int = 700) -> bytes:
    """Return a packed list that becomes so many bytes when it is unpacked."""
    packing = zlib.compressobj(1, zlib.DEFLATED, window)
    parts = [packing.compress(b"[")] + [packing.compress(b" " * 10**6) for _ in range(megabytes)]
    return b"".join([*parts, packing.compress(b"]"), packing.flush()])


PACKED: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: bomb(31),
    "deflate": lambda: bomb(15),
    "gzip, gzip": lambda: gzip.compress(bomb(31)),
    # Whether or not the client knows how to unpack it.
    "br": lambda: b"x" * 1000,
    "zstd": lambda: zstandard.compress(b"[" + b" " * 10**6 + b"]"),
}


@pytest.mark.parametrize("encoding", PACKED)
def test_a_packed_list_is_not_unpacked(tmp_path: Path, encoding: str) -> None:
    packed = PACKED[encoding]()
    ways: dict[str, Answering] = {"/tree/": lambda _, line: line.answer(packed, Content_Encoding=encoding)}
    with HostileServer(hub({}, ways)) as server:
        refused_pin(server, tmp_path, encoding)
        assert all("accept-encoding: identity\r\n" in head.lower() for head in server.heads)


def paged(entries: int) -> Answering:
    """Answer with a page, and a link to another that nobody has seen, for ever."""
    numbers = iter(range(10**9))

    def answer(_: str, line: Line) -> None:
        number = next(numbers)
        page = [listing_entry(f"{number}/{at}.parquet") for at in range(entries)]
        line.json(page, Link=f'<http://hub.example/?cursor={number}>; rel="next"')

    return answer


@pytest.mark.parametrize(("entries", "most"), [(0, "2,000 pages"), (5_000, "200,000 entries")])
def test_pages_without_an_end_are_given_up(tmp_path: Path, entries: int, most: str) -> None:
    with HostileServer(hub({}, {"/tree/": paged(entries)})) as server:
        refused_pin(server, tmp_path, "does not end", most)
        assert len(server.asked("/tree/")) <= 2_001


MONSTERS = {
    "a name of 30 MB": json.dumps(
        [listing_entry("a" * 30_000_000 + "\N{PILE OF POO}.parquet")], ensure_ascii=False
    ),
    "a million entries": "[" + ",".join(['{"type":"file","path":"x"}'] * 1_200_000) + "]",
    "brackets": "[" * 1_000_000,
    "a number": '[{"type":"file","path":"a.parquet","size":' + "9" * 5_000 + "}]",
    "another number": '[{"type":"file","path":"a.parquet","size":1e400}]',
}


@pytest.mark.parametrize("monster", MONSTERS)
def test_a_list_that_is_a_monster_is_refused(tmp_path: Path, monster: str) -> None:
    raw = MONSTERS[monster].encode()
    with HostileServer(hub({}, {"/tree/": lambda _, line: line.answer(raw)})) as server:
        refused_pin(server, tmp_path)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 418])
@pytest.mark.parametrize("where", ["/revision/", "/tree/"])
def test_what_stands_in_a_refusal_is_not_read(tmp_path: Path, status: int, where: str) -> None:
    def refusing(_: str, line: Line) -> None:
        line.head(status)
        line.endless(b"sorry")

    with HostileServer(hub({}, {where: refusing})) as server:
        refused_pin(server, tmp_path, str(status) if status not in (401, 403) else "token")
        assert len(server.asked(where)) == 1


def test_what_stands_in_a_trouble_that_may_pass_is_not_read_either(tmp_path: Path) -> None:
    troubles = iter([500, 503, 429, 408])
    line_of: Answering = hub({PATH: b"abc"}, {})

    def troubled(head: str, line: Line) -> None:
        status = next(troubles, None)
        if status is None:
            return line_of(head, line)
        line.head(status, Retry_After="0")
        return line.endless(b"sorry")

    with HostileServer(hub({PATH: b"abc"}, {"/tree/": troubled})) as server:
        assert pin(server, tmp_path).code == 0


def test_what_stands_in_a_redirect_is_not_read(tmp_path: Path) -> None:
    def moved(_: str, line: Line) -> None:
        line.head(302, Location="/elsewhere/tree/")
        line.endless(b"it is elsewhere")

    ways = {"/api/datasets/HuggingFaceFW/fineweb-edu/tree/": moved}
    with HostileServer(hub({PATH: b"abc"}, ways)) as server:
        assert pin(server, tmp_path).code == 0


@pytest.mark.parametrize(
    "location", ["/api/again", "file:///etc/passwd", "gopher://127.0.0.1/x", "http://[", "//"]
)
def test_a_redirect_that_leads_nowhere_is_given_up(tmp_path: Path, content: bytes, location: str) -> None:
    def moved(_: str, line: Line) -> None:
        line.answer(b"", 302, Location=location)

    with HostileServer(hub({}, {"GET": moved})) as server:
        ended = convert(server, tmp_path, listing_entry(PATH, content))
    assert ended.code == 1
    assert "no progress" in ended.stderr
    assert "root:" not in ended.said


def test_an_endless_head_is_cut_off(tmp_path: Path, content: bytes) -> None:
    def endless(_: str, line: Line) -> None:
        line.send(b"HTTP/1.1 200 OK\r\n")
        line.endless(b"X-More: and more of it\r\n")

    with HostileServer(hub({}, {"GET": endless})) as server:
        ended = convert(server, tmp_path, listing_entry(PATH, content))
    assert ended.code == 1
    assert "no progress" in ended.stderr


def test_a_file_without_an_end_is_refused_with_its_size(tmp_path: Path, content: bytes) -> None:
    def endless(_: str, line: Line) -> None:
        line.head()
        line.endless(b"x")

    with HostileServer(hub({}, {"GET": endless})) as server:
        ended = convert(server, tmp_path, listing_entry(PATH, content))
    assert ended.code == 1
    assert f"{len(content):,} bytes" in ended.stderr
    kept = [path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert max(kept, default=0) <= len(content)


# Too little of it


def test_a_list_that_drips_ends_with_the_patience(tmp_path: Path) -> None:
    def dripping(_: str, line: Line) -> None:
        line.head()
        line.drip(b" ")

    with HostileServer(hub({}, {"/tree/": dripping})) as server:
        ended = convert(server, tmp_path)
    assert ended.code == 1
    assert "too slow" in ended.stderr
    assert "512 bytes" in ended.stderr


def dripping_body(content: bytes) -> Answering:
    def answer(_: str, line: Line) -> None:
        line.head(Content_Length=len(content))
        line.drip(b"x")

    return answer


def dripping_head(_: str, line: Line) -> None:
    line.send(b"HTTP/1.1 200 OK\r\nX-More: ")
    line.drip(b"x")


def continuing(_: str, line: Line) -> None:
    line.drip(b"HTTP/1.1 100 Continue\r\n\r\n")


def flooding(_: str, line: Line) -> None:
    line.endless(b"HTTP/1.1 103 Early Hints\r\n\r\n")


def dripping_chunk(_: str, line: Line) -> None:
    line.head(Transfer_Encoding="chunked")
    line.send(b"1;x=")
    line.drip(b"x")


def dripping_redirect(_: str, line: Line) -> None:
    line.head(302, Location="/again", Content_Length=1000)
    line.drip(b"x")


DRIPS: dict[str, Callable[[bytes], Answering]] = {
    "the content": dripping_body,
    "the head": lambda _: dripping_head,
    "continue": lambda _: continuing,
    "a flood of hints": lambda _: flooding,
    "the size of a chunk": lambda _: dripping_chunk,
    "a redirect": lambda _: dripping_redirect,
}


@pytest.mark.parametrize("drip", DRIPS)
def test_a_file_that_drips_ends_with_the_patience(tmp_path: Path, content: bytes, drip: str) -> None:
    with HostileServer(hub({}, {"GET": DRIPS[drip](content)})) as server:
        ended = convert(server, tmp_path, listing_entry(PATH, content))
    assert ended.code == 1
    assert "too slow" in ended.stderr or "no progress" in ended.stderr
    assert server.endpoint in ended.stderr


def test_a_slow_line_is_not_given_up(tmp_path: Path, content: bytes) -> None:
    # All of it takes longer than the patience, and none of it more than a little.
    piece = len(content) // 12

    def slow(_: str, line: Line) -> None:
        line.head(Content_Length=len(content))
        for at in range(0, len(content), piece):
            line.send(content[at : at + piece])
            line.pause(0.3)

    with HostileServer(hub({PATH: content}, {"GET": slow})) as server:
        assert convert(server, tmp_path, listing_entry(PATH, content)).code == 0


# Lies


NUMBER = "9" * 5_000
LIES: dict[str, dict[str, object]] = {
    "a length that nobody can read": {"Content_Length": NUMBER},
    "a length below nothing": {"Content_Length": -1},
    "two lengths": {"Content_Length": "3, 5"},
    "a range that nobody can read": {"Content_Range": f"bytes 0-{NUMBER}/{NUMBER}", "Content_Length": 3},
    "a range that ends before it begins": {"Content_Range": "bytes 9-3/10", "Content_Length": 3},
    "a range behind the end": {"Content_Range": "bytes 0-99/10", "Content_Length": 3},
    "a range below nothing": {"Content_Range": "bytes -5-3/10", "Content_Length": 3},
    "a chunk as large as the world": {"Transfer_Encoding": "chunked"},
    "an encoding that nobody knows": {"Transfer_Encoding": "magic"},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_head_that_lies_is_a_trouble_that_may_pass(tmp_path: Path, content: bytes, lie: str) -> None:
    lies = iter([0, 1])
    truth = hub({PATH: content}, {})

    def lying(head: str, line: Line) -> None:
        if "Range" in head or next(lies, None) is None:
            return truth(head, line)
        line.head(206 if "range" in lie else 200, **LIES[lie])
        return line.send(b"F" * 20 + b"\r\nPAR")

    with HostileServer(hub({}, {"GET": lying})) as server:
        ended = convert(server, tmp_path, listing_entry(PATH, content), patience=20)
    assert ended.code == 0, ended.stderr


WAITS = {
    "RateLimit": f'"api";r={NUMBER};t={NUMBER}',
    "RateLimit-Policy": NUMBER,
    "Retry-After": "nan",
    "retry-after": "-5",
    "RETRY-AFTER": "Wed, 99 Oct 99999999999 25:61:61 +999999",
}


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_that_makes_no_sense_is_not_waited(tmp_path: Path, content: bytes, name: str) -> None:
    busy = iter(range(2))
    truth = hub({PATH: content}, {})

    def answer(head: str, line: Line) -> None:
        if next(busy, None) is None:
            return truth(head, line)
        return line.answer(b"", 429, **{name: WAITS[name]})

    with HostileServer(hub({}, {"GET": answer})) as server:
        ended = convert(server, tmp_path, listing_entry(PATH, content), patience=20)
    assert ended.code == 0, ended.stderr


def test_a_hub_is_not_asked_which_variables_to_look_at(tmp_path: Path) -> None:
    def prying(_: str, line: Line) -> None:
        variables = {"HARMLESS_CANARY": "*"}
        line.json({"standardEnvVars": ["CANARY"], "harnesses": {"it-is-set": {"envVars": variables}}})

    with HostileServer(hub({PATH: b"abc"}, {"agent-harnesses": prying})) as server:
        env = hub_runs.environment(server.endpoint, HF_HOME=str(tmp_path / "home"), HARMLESS_CANARY="x")
        env.pop("HF_HUB_DISABLE_TELEMETRY")
        ended = bounded.run("pin", REPO, "-o", tmp_path / "pinned.json", env=env)
        assert ended.code == 0
        assert server.asked("agent-harnesses") == []
        assert not any("it-is-set" in head for head in server.heads)
    assert not (tmp_path / "home").exists()
