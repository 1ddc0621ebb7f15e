"""Nothing secret is in any output, log or record, and no server is given what is another's.

Every secret here has the word canary in it. Whatever happens, the word is nowhere in what the program prints
and in no file that it leaves.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import bounded
import corpus
import hub_runs
import pytest
from hostile_server import Answering, HostileServer, Line, hub, listing_entry
from hub_faults import nobody
from hub_server import COMMIT, REPO

GOOD, BAD, HEAVY = "data/good.parquet", "data/bad.parquet", "data/heavy.parquet"
SECRETS = {
    "HF_TOKEN": "hf_canaryToken",
    "AWS_SECRET_ACCESS_KEY": "canaryKey",
    "AWS_SESSION_TOKEN": "canarySession",
    "HTTPS_PROXY": "http://canaryUser:canaryPassword@127.0.0.1:9",
    "HF_HUB_DOWNLOAD_TIMEOUT": "1",
}
SIGNED = "X-Amz-Signature=canarySignature&Signature=canary&Key-Pair-Id=canary#canary"


@dataclass(frozen=True)
class World:
    """A hub and the server behind it, to which it sends whoever wants a file."""

    front: HostileServer
    behind: HostileServer
    place: Path

    @property
    def endpoint(self) -> str:
        """The hub's address, with a password."""
        return self.front.endpoint.replace("://", "://canaryUser:canary%2FPassword@")

    def run(self, *words: object, **changes: str) -> bounded.Ended:
        """Run a command; fail if there is a secret anywhere."""
        settings = {**SECRETS, "HF_HOME": str(self.place / "home"), **changes}
        env = hub_runs.environment(settings.pop("HF_ENDPOINT", self.endpoint), **settings)
        ended = bounded.run(*words, env=env)
        assert "canary" not in ended.said.lower(), ended.said
        for path in self.place.rglob("*"):
            assert not path.is_file() or b"canary" not in path.read_bytes().lower(), path
        return ended

    def convert(self, *flags: object, **changes: str) -> bounded.Ended:
        """Convert all files of the hub."""
        manifest = {
            "format": "fwconvert source manifest 1",
            "name": "mine",
            "dataset": REPO,
            "revision": COMMIT,
            "folder": "",
            "files": [],
            "totals": {"files": 0, "bytes": 0},
        }
        (self.place / "mine.json").write_text(json.dumps(manifest))
        words = ["--version", self.place / "mine.json", "--out", self.place / "out", "--tokenizer", "bytes"]
        return self.run(*words, "--workers", 1, "--patience", 2, *flags, **changes)

    def pin(self, **changes: str) -> bounded.Ended:
        """Pin the dataset."""
        return self.run("pin", REPO, "-o", self.place / "pinned.json", **changes)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("source")
    corpus.write(folder / "good.parquet", corpus.documents(0, 50))
    corpus.write(folder / "heavy.parquet", corpus.documents(0, 60))
    # A parquet that ends in the middle: its worker fails, and a traceback is recorded.
    whole = (folder / "good.parquet").read_bytes()
    bad = whole[: len(whole) // 3] + b"\0" * 400 + whole[len(whole) // 3 + 400 :]
    return {GOOD: whole, BAD: bad, HEAVY: (folder / "heavy.parquet").read_bytes()}


@contextmanager
def world(
    place: Path,
    files: dict[str, bytes],
    front: dict[str, Answering] | None = None,
    behind: Answering | None = None,
) -> Iterator[World]:
    with ExitStack() as stack:
        second = stack.enter_context(HostileServer(behind or hub(files, {})))

        def moved(head: str, line: Line) -> None:
            path = head.split(" ")[1].rpartition("/resolve/")[2]
            line.answer(b"", 302, Location=f"{second.endpoint}/{path}?{SIGNED}", Set_Cookie="canary=canary")

        first = stack.enter_context(HostileServer(hub(files, {**(front or {}), "/resolve/": moved})))
        yield World(first, second, place)


@pytest.mark.parametrize("debug", ["", "1"])
def test_a_good_run_shows_no_secret(tmp_path: Path, files: dict[str, bytes], debug: str) -> None:
    good = {GOOD: files[GOOD]}
    with world(tmp_path, good) as made:
        assert made.pin(FWCONVERT_DEBUG=debug, HF_DEBUG=debug).code == 0
        ended = made.convert("--keep-source", tmp_path / "kept", FWCONVERT_DEBUG=debug, HF_DEBUG=debug)
    assert ended.code == 0, ended
    assert (tmp_path / "kept" / GOOD).read_bytes() == files[GOOD]
    # The hub has the password, and in the place of the token; whoever is behind it has neither.
    assert all("Basic Y2FuYXJ5VXNlcjpjYW5hcnkvUGFzc3dvcmQ=" in head for head in made.front.heads)
    assert made.behind.heads
    assert not any("authorization" in head.lower() for head in made.behind.heads)


def test_a_source_that_fails_in_its_worker_shows_no_secret(tmp_path: Path, files: dict[str, bytes]) -> None:
    with world(tmp_path, files) as made:
        ended = made.convert(FWCONVERT_DEBUG="1")
    assert ended.code == 1
    recorded = [*(tmp_path / "out" / ".fwconvert" / "quarantine").glob("*.json")]
    assert len(recorded) == 1
    assert "Traceback" in recorded[0].read_text()


def test_a_worker_that_is_lost_shows_no_secret(tmp_path: Path) -> None:
    """Its memory is looked at some times a second, so a worker may be through with its source before.

    A forked one always would be: Python's variable makes the tests start this program, and so its worker.
    """
    corpus.write(tmp_path / "long.parquet", corpus.documents(0, 50_000))
    long = (tmp_path / "long.parquet").read_bytes()
    codes: list[int] = []
    while 1 not in codes:
        assert len(codes) < 20
        place = tmp_path / str(len(codes))
        place.mkdir()
        with world(place, {GOOD: long}) as made:
            codes.append(made.convert("--worker-memory", 1000, FWCONVERT_DEBUG="1", PYTHONHASHSEED="0").code)


def status(number: int, **headers: str) -> Answering:
    def answer(_: str, line: Line) -> None:
        told = f"canary of {number} at http://canary:canary@hub.example/?canary=canary"
        line.answer(told.encode(), number, X_Error_Message=told, X_Request_Id="canary", **headers)

    return answer


def wrong_bytes(_: str, line: Line) -> None:
    line.answer(b"canary")


def cut_off(_: str, line: Line) -> None:
    line.head(Content_Length=100_000)
    line.send(b"canary")


def sent_on(_: str, line: Line) -> None:
    line.answer(b"", 302, Location=f"ftp://canary:canary@127.0.0.1/x?{SIGNED}")


def in_circles(_: str, line: Line) -> None:
    line.answer(b"", 302, Location=f"/again?{SIGNED}")


def no_address(_: str, line: Line) -> None:
    line.answer(b"", 302, Location=f"http://canary:canary@[::1/?{SIGNED}")


BEHIND: dict[str, Answering] = {
    "403": status(403),
    "404": status(404),
    "410": status(410),
    "500": status(500),
    "416": status(416),
    "wrong bytes": wrong_bytes,
    "cut off": cut_off,
    "sent on": sent_on,
    "in circles": in_circles,
    "no address": no_address,
    "not HTTP": lambda _, line: line.send(b"canary canary\r\n\r\n"),
}


@pytest.mark.parametrize("fault", BEHIND)
def test_a_fault_behind_the_hub_shows_no_secret(tmp_path: Path, files: dict[str, bytes], fault: str) -> None:
    with world(tmp_path, {GOOD: files[GOOD]}, behind=BEHIND[fault]) as made:
        assert made.convert(FWCONVERT_DEBUG="1").code == 1
        assert made.behind.heads


FRONT: dict[str, Answering] = {
    "400": status(400),
    "401": status(401),
    "403": status(403),
    "404": status(404),
    "gated": status(403, X_Error_Code="GatedRepo"),
    "no repository": status(404, X_Error_Code="RepoNotFound"),
    "no revision": status(404, X_Error_Code="RevisionNotFound"),
    "no entry": status(404, X_Error_Code="EntryNotFound"),
    "no list": wrong_bytes,
    "no parquet": lambda _, line: line.json([listing_entry("x.txt")]),
}


@pytest.mark.parametrize("fault", FRONT)
@pytest.mark.parametrize("command", ["convert", "pin"])
def test_a_hub_that_refuses_shows_no_secret(
    tmp_path: Path, files: dict[str, bytes], fault: str, command: str
) -> None:
    with world(tmp_path, files, front={"/tree/": FRONT[fault]}) as made:
        ended = made.pin(FWCONVERT_DEBUG="1") if command == "pin" else made.convert(FWCONVERT_DEBUG="1")
        assert ended.code == 1
        assert urlsplit(made.front.endpoint).netloc in ended.stderr


SETTINGS: dict[str, dict[str, str]] = {
    "a timeout": {"HF_HUB_DOWNLOAD_TIMEOUT": "2.5", "HF_XET_WORD": "canary", "HF_PASSWORD": "canary"},
    "a proxy of another kind": {"HTTP_PROXY": "ftp://canary:canary@127.0.0.1:21/?canary"},
    "socks": {"ALL_PROXY": "socks5://canary:canary@127.0.0.1:1080"},
    "old socks": {"ALL_PROXY": "socks4://canary:canary@127.0.0.1:1080"},
    "a proxy that is none": {"HTTP_PROXY": "http://canary:canary@[::1"},
    "a port that is none": {"HTTP_PROXY": "http://canary:canary@127.0.0.1:canary"},
    "a port too high": {"HTTP_PROXY": "http://canary:canary@127.0.0.1:99999999"},
    "no certificates": {"SSL_CERT_FILE": "/nowhere/at/all.pem"},
    "a token that is not ASCII": {"HF_TOKEN": "hf_canary\N{LATIN SMALL LETTER E WITH ACUTE}canary"},
    "a token of two lines": {"HF_TOKEN": "hf_canary\x0bcanary"},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_cannot_be_used_is_said_without_it(
    tmp_path: Path, files: dict[str, bytes], setting: str
) -> None:
    with world(tmp_path, files) as made:
        changes = {"HF_ENDPOINT": made.front.endpoint, "FWCONVERT_DEBUG": "1", **SETTINGS[setting]}
        ended = made.pin(**changes)
        assert ended.code == 2, ended
        assert "->" in ended.stderr
        assert made.front.heads == []
        assert "\N{LATIN SMALL LETTER E WITH ACUTE}" not in ended.said
        assert made.convert(**changes).code in {1, 2}


ENDPOINTS = [
    "http://canary:canary@127.0.0.1:canary",
    "http://canary:can/ary@127.0.0.1:9",
    "http://canary:can?canary@127.0.0.1:9",
    "http://canary:1?canary@127.0.0.1:9",
    "http://canary:can#canary@127.0.0.1:9",
    "http://canary:can@canary@127.0.0.1:9",
    "ftp://canary:canary@127.0.0.1:9",
    "canary:canary@127.0.0.1:9",
    "http://canary:canary@[::1",
    "http://canary:canary@127.0.0.1:9/?canary=canary#canary",
]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_address_of_a_hub_that_makes_no_sense_shows_no_secret(
    tmp_path: Path, files: dict[str, bytes], endpoint: str
) -> None:
    with world(tmp_path, files) as made:
        ended = made.convert(HF_ENDPOINT=endpoint, FWCONVERT_DEBUG="1")
    assert ended.code in {1, 2}


def test_a_hub_or_a_proxy_that_is_down_shows_no_secret(tmp_path: Path, files: dict[str, bytes]) -> None:
    with nobody() as down, world(tmp_path, files) as made:
        hidden = down.replace("://", "://canary:canary@")
        assert made.convert(HF_ENDPOINT=hidden, FWCONVERT_DEBUG="1").code == 1
        assert made.convert(HTTP_PROXY=hidden, FWCONVERT_DEBUG="1").code == 1


def test_exceptions_to_a_proxy_that_make_no_sense_are_passed_over(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    with world(tmp_path, {GOOD: files[GOOD]}) as made:
        assert made.pin(NO_PROXY="[[[,:::,http://[,//,\N{SNOWMAN},127.0.0.1").code == 0


def test_a_token_file_that_is_no_text_is_said_without_it(tmp_path: Path, files: dict[str, bytes]) -> None:
    with world(tmp_path / "below", files) as made:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "token").write_bytes(b"hf_canary\xff\xfecanary")
        ended = made.pin(HF_TOKEN="", HF_ENDPOINT=made.front.endpoint, HF_HOME=str(tmp_path / "home"))
    assert ended.code == 2
    assert "token" in ended.stderr


# What is another's


def setting_cookies(answering: Answering) -> Answering:
    """Answer so, and have everything marked."""

    class Marked(Line):
        def head(self, status: int = 200, /, **headers: object) -> None:
            super().head(status, **headers, Set_Cookie="canary=1; Domain=127.0.0.1; Path=/; Max-Age=9999")

    def answer(head: str, line: Line) -> None:
        answering(head, Marked(line._connection, line._stopping))

    return answer


def test_no_cookie_is_sent_to_anybody(tmp_path: Path, files: dict[str, bytes]) -> None:
    good = {GOOD: files[GOOD]}
    with HostileServer(setting_cookies(hub(good, {}))) as second:

        def moved(_: str, line: Line) -> None:
            line.answer(b"", 302, Location=f"{second.endpoint}/{GOOD}?{SIGNED}")

        with HostileServer(setting_cookies(hub(good, {"/resolve/": moved}))) as first:
            made = World(first, second, tmp_path)
            assert made.pin().code == 0
            assert made.convert().code == 0
    assert len(first.heads) > 3
    assert len(second.heads) > 1
    assert not any("cookie:" in head.lower() for head in (*first.heads, *second.heads))
