"""The served page: who may read it, and that its reader tells what stands in the token shards."""

import http.client
import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import corpus
import hub_runs
import pytest
import runner
from hub_server import REPO, HubServer
from runner import PRIVATE
from serving import served

SIZE = ("--tokenizer", "bytes", "--shard-tokens", "300", "--val-tokens", "0", "--workers", "1")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browse")
    corpus.write(
        folder / "source" / "0.parquet", [*corpus.documents(0, 12), None, "x" * 1000, "Grüße an Łódź"]
    )
    corpus.write(folder / "source" / "1.parquet", corpus.documents(20, 12))
    line = ("--source", folder / "source", "--out", folder / "out", *SIZE)
    assert runner.command_line(*line, capture_output=True).returncode == 0
    return folder / "out"


@pytest.fixture(scope="module")
def port(out: Path) -> Iterator[int]:
    with served(out) as (port, _):
        yield port


def asked(
    port: int, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return (
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            answer.read().decode(),
        )
    finally:
        connection.close()


def told(port: int, what: str, **values: object) -> dict[str, Any]:
    code, _, body = asked(port, f"/api/{what}?{urlencode(values)}")
    assert code == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


# --- who may read it


@pytest.mark.parametrize(
    ("headers", "method", "code"),
    [
        ({}, "GET", 200),
        ({}, "HEAD", 200),
        ({"Sec-Fetch-Site": "same-origin"}, "GET", 200),
        ({"Host": "evil.example"}, "GET", 421),
        ({"Host": "127.0.0.1"}, "GET", 421),
        ({"Host": "127.0.0.1.evil.example:{port}"}, "GET", 421),
        ({"Host": "evil.example:{port}"}, "GET", 421),
        ({"Origin": "http://evil.example"}, "GET", 403),
        ({"Origin": "null"}, "GET", 403),
        ({"Origin": "https://127.0.0.1:{port}"}, "GET", 403),
        ({"Origin": "http://127.0.0.1:{port}"}, "GET", 200),
        ({"Sec-Fetch-Site": "cross-site"}, "GET", 403),
        ({"Sec-Fetch-Site": "same-site"}, "GET", 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, "GET", 403),
        ({}, "POST", 405),
        ({}, "PUT", 405),
        ({}, "DELETE", 405),
        ({"Origin": "http://evil.example", "Access-Control-Request-Method": "GET"}, "OPTIONS", 403),
    ],
)
def test_only_this_page_may_read_it(port: int, headers: dict[str, str], method: str, code: int) -> None:
    given = {name: value.format(port=port) for name, value in headers.items()}

    status, answered, body = asked(port, "/api/document?document=1", method, given)

    assert status == code
    assert not [name for name in answered if name.startswith("access-control-")]
    if code != 200:
        assert "tokens" not in body


def test_a_link_elsewhere_may_lead_to_the_page_but_no_page_may_hold_it(port: int) -> None:
    status, headers, _ = asked(
        port, "/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    )

    assert status == 200
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff"
    assert asked(port, "/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})[0] == 403


def test_it_listens_on_loopback_alone(port: int) -> None:
    for family, _, _, _, address in socket.getaddrinfo(socket.gethostname(), port, type=socket.SOCK_STREAM):
        if address[0] in {"127.0.0.1", "::1"}:
            continue
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.settimeout(5)
            assert tried.connect_ex(address) != 0


@pytest.mark.parametrize(
    "query",
    [
        "", "shard=../../../etc/passwd", "shard=manifest.json", "shard=%00", "document=0", "document=-1",
        "document=999", "document=" + "9" * 30, "shard=train_00000_000&number=99",
        "shard=train_00000_000&token=300", "shard=train_00000_000&token=1e5",
        "shard=train_00000_000&token=-2",
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_as_an_error(port: int, query: str) -> None:
    code, _, body = asked(port, f"/api/document?{query}")

    assert code == 400
    assert json.loads(body)["error"]


# --- the reader


def text_of(found: dict[str, Any]) -> str:
    """Return the text that is shown, without the names of separators."""
    return "".join(token[1] for token in found["tokens"] if len(token) == 2)


def test_every_document_is_read_by_its_number_and_leads_to_the_next(port: int, out: Path) -> None:
    sources: list[list[str | None]] = [
        [*corpus.documents(0, 12), None, "x" * 1000, "Grüße an Łódź"],
        [*corpus.documents(20, 12)],
    ]
    wanted = [
        (f"{n}.parquet", row, text)
        for n, texts in enumerate(sources)
        for row, text in enumerate(texts)
        if text
    ]

    for number, (path, row, text) in enumerate(wanted, 1):
        found = told(port, "document", document=number)
        read = text_of(found)
        assert (found["path"], found["row"], found["in_run"]) == (path, row, number)
        while found["continued_in"]:
            place = found["continued_in"]
            found = told(port, "document", shard=place["shard"], token=place["offset"])
            assert found["number"] == 0
            back = found["continued_from"]
            assert told(port, "document", shard=back["shard"], token=back["offset"])["in_run"] == number
            read += text_of(found)
        # A character may be cut in two by the end of a shard.
        assert len(read) == len(text)
        assert read == text or "\ufffd" in read

    shown = runner.command_line("show", out, "--document", "9", capture_output=True).stdout
    assert wanted[8][2].strip() in shown


def test_any_token_is_found_and_traced(port: int, out: Path) -> None:
    shard = sorted(path.name for path in out.glob("*.bin"))[1]

    found = told(port, "document", shard=shard, token=7)
    traced = json.loads(runner.command_line("trace", out, f"{shard}:7", "--json", capture_output=True).stdout)
    looked_up = dict(told(port, "trace", shard=shard, token=7)["rows"])

    assert found["begin"] <= 7 < found["end"]
    assert (found["path"], found["in_run"]) == (traced["source"], traced["document"])
    assert (looked_up["source"], looked_up["row"]) == (traced["source"], f"{traced['row']:,}")


def test_a_text_is_found_where_it_stands_and_then_where_it_stands_next(port: int) -> None:
    shard = told(port, "document", document=5)["shard"]
    line = told(port, "document", shard=shard, token=0)["shard_tokens"]
    whole, at = "", 0
    while at < line:
        found = told(port, "document", shard=shard, token=at)
        whole += "".join("|" if len(token) > 2 else token[1] for token in found["tokens"])
        at = found["end"]
    wanted = [match.start() for match in re.finditer("document 4 ", whole)]

    begin, places = 0, []
    while (found := told(port, "search", shard=shard, text="DOCument 4 ", begin=begin))["place"]:
        places.append(found["place"]["offset"])
        begin = found["next"]

    assert places == wanted
    assert found["next"] == line


def test_long_documents_come_in_parts(tmp_path: Path) -> None:
    corpus.write(tmp_path / "source" / "0.parquet", ["ab" * 4000])
    line = (
        "--source",
        tmp_path / "source",
        "--out",
        tmp_path / "out",
        "--tokenizer",
        "bytes",
        "--shard-tokens",
    )
    assert runner.command_line(*line, "9000", "--val-tokens", "0", capture_output=True).returncode == 0
    with served(tmp_path / "out") as (port, process):
        found = told(port, "document", document=1)
        read, at = text_of(found), len(found["tokens"])
        while at < found["end"]:
            found = told(port, "document", shard=found["shard"], token=at, first=at)
            assert found["first"] == at
            read, at = read + text_of(found), at + len(found["tokens"])
        assert read == "ab" * 4000

        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(timeout=60)
    assert (process.returncode, said, complained) == (0, "", "")


def test_a_run_that_goes_on_is_told_live(tmp_path: Path) -> None:
    for number in range(6):
        corpus.write(tmp_path / "source" / f"{number}.parquet", corpus.documents(0, 4000))
    out = tmp_path / "out"
    line = ("--tokenizer", "gpt2", "--shard-tokens", "20_000", "--encoder", "reference", "--workers", "1")
    with runner.running(tmp_path / "source", out, *line) as process:
        runner.wait_until(lambda: runner.steps(out) >= 1, process)
        with served(out) as (port, _):
            news = told(port, "now")
            at_work = process.poll() is None
            runner.finish(process)
            page = asked(port, "/")[2]
    if at_work:
        assert f"pid {process.pid}" in news["at_work"]
    assert "sources converted" in page


def test_a_run_that_fetches_shows_its_terminals_progress_and_its_downloads(tmp_path: Path) -> None:
    rows = [f"{number} {'x' * 400}" for number in range(3000)]
    for number in range(3):
        place = tmp_path / "hub" / f"part/{number}.parquet"
        corpus.write(place, rows, compression="none", use_dictionary=False)
    pinned, out = tmp_path / "pinned.json", tmp_path / "out"
    with HubServer(tmp_path / "hub", rate=15_000) as hub:
        runner.assert_tidy_end(hub_runs.run(["pin", REPO, "part", "-o", str(pinned)], hub.endpoint), 0)
        words = hub_runs.conversion(pinned, out, "--max-connections", "2")
        with hub_runs.running(words, hub.endpoint) as process:
            hub_runs.wait_for(lambda: [*out.glob(f"{PRIVATE}/timelines/*.json")], process)
            with served(out) as (port, _):
                seen: list[dict[str, Any]] = []

                def is_coming() -> bool:
                    seen.append(told(port, "now"))
                    latest = seen[-1]["latest"]
                    return bool(latest and latest["downloads"] and " left" in latest["line"])

                runner.wait_until(is_coming, process, pause=0.1)
                hub.hurry()
    latest = seen[-1]["latest"]
    assert re.search(r"part/\d\.parquet$", latest["downloads"][0]["title"])
    assert 0 < latest["downloads"][0]["share"] <= 1
    # Bytes that have come count, before the first of them is converted.
    assert re.match(r"converting · \d of 3 sources are done · fetched \d", latest["details"])
    assert 0 < latest["share"] < 0.5
    assert latest["line"].startswith(f"{latest['share']:.1%} · ")


def test_a_port_that_is_taken_is_told(out: Path, port: int) -> None:
    ended = runner.command_line("browse", out, "--port", port, capture_output=True)

    assert ended.returncode == 2
    assert "this port cannot be used" in ended.stderr


@pytest.mark.parametrize("words", [("--port", "70000"), ("--port", "-1"), ("--port", "x")])
def test_a_port_that_cannot_be_is_refused(out: Path, words: tuple[str, str]) -> None:
    assert runner.command_line("browse", out, *words, capture_output=True).returncode == 2


def test_what_is_no_run_is_not_served(tmp_path: Path) -> None:
    ended = runner.command_line("browse", tmp_path, capture_output=True)

    assert ended.returncode == 2
    assert str(tmp_path) in ended.stderr
