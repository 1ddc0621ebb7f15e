"""The page of a run, through the command: what it says, and that it is one file which asks nobody."""

import json
import re
import shutil
import signal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import corpus
import pytest
import runner
from runner import PRIVATE

SIZE = ("--tokenizer", "gpt2", "--shard-tokens", "2000", "--val-tokens", "1000", "--workers", "1")
EVIL = "<script>document.title='evil'</script><img src=x onerror=alert(1)>\u202e</script>]]>&amp;{{ 7*7 }}"


class Elements(HTMLParser):
    """All elements of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def convert(source: Path, out: Path, *words: str) -> Path:
    ended = runner.command_line("--source", source, "--out", out, *SIZE, *words, capture_output=True)
    assert ended.returncode == 0, ended.stderr
    return out


def page_of(out: Path, page: Path, *words: str, code: int = 0, **how: Any) -> str:
    ended = runner.command_line("report", out, "-o", page, *words, **how)
    runner.assert_tidy_end(ended, code)
    return page.read_text()


def data_in(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    for number in range(4):
        texts = [*corpus.documents(100 * number, 30), "", EVIL]
        if number == 2:
            texts = ["=-=-=-=-=-=-=-=- " * 30] * 32
        urls = [f"https://host{row % 3}.example/{number}/{row}" for row in range(31)]
        corpus.write_columns(
            folder / "source" / f"{number}.parquet",
            text=texts,
            url=[*urls, f"https://{EVIL}/"],
            score=[row / 10 for row in range(32)],
        )
    convert(folder / "source", folder / "out")
    return folder


@pytest.fixture(scope="module")
def html(place: Path) -> str:
    return page_of(place / "out", place / "page.html")


def test_the_numbers_are_those_of_the_manifest(place: Path, html: str) -> None:
    manifest, data = json.loads((place / "out" / "manifest.json").read_text()), data_in(html)

    assert [one[2] for one in data["sources"]] == [job["tokens"] for job in manifest["jobs"]]
    assert sum(count for _, count in data["lengths"]["bins"]) == manifest["headline"]["documents"]
    assert sum(count for _, count in data["scores"]["bins"]) == manifest["headline"]["documents"]
    for number in (manifest["headline"]["tokens"], manifest["headline"]["documents"]):
        assert f"{number:,}" in html
    assert "host1.example" in html
    assert manifest["recipe_id"] in html


def test_a_source_that_stands_out_is_marked_and_no_other(html: str) -> None:
    assert [one[4] for one in data_in(html)["sources"]] == [False, False, True, False]
    assert "<strong>1 of 4 sources stands out</strong>" in html


def test_the_page_asks_nobody_and_has_a_table_for_each_chart(html: str) -> None:
    page = Elements(html)
    for tag, attributes in page.found:
        assert not {"src", "srcset", "action", "background", "data", "poster"} & attributes.keys(), tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        address = attributes.get("href") or "#"
        assert address.startswith("#") or (tag == "link" and address == "data:,"), address
    assert not re.search(r"@import|url\(", html)
    (policy,) = [one for one in page.named("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert (policy["content"] or "").startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'none'" in (policy["content"] or "")
    figures = html.split("<figure")[1:]
    assert len(figures) >= 4
    assert html.count("<table") > len(figures)


def test_lines_of_json_and_two_separators_are_told_as_what_they_are(tmp_path: Path) -> None:
    source = tmp_path / "lines.jsonl"
    source.write_text("".join(json.dumps({"text": "x" * 99}) + "\n" for _ in range(20)))
    two = ("--bos-token", "<|endofprompt|>", "--eot-token", "100257")
    words = ("--tokenizer", "cl100k_base", *two, "--shard-tokens", "200")
    ended = runner.command_line("--source", source, "--out", tmp_path / "out", "--val-tokens", "0", *words)
    runner.assert_tidy_end(ended, 0)
    headline = json.loads((tmp_path / "out/manifest.json").read_text())["headline"]

    html = page_of(tmp_path / "out", tmp_path / "page.html", env={"FWCONVERT_CALLED": "./my way"})

    assert "1 jsonl file on this machine" in html
    assert "stands before and after each document" in html
    # No separator counts as a token of a text.
    of_texts = headline["tokens"] - 2 * 20
    assert data_in(html)["sources"][0][3] == round(99 * 20 / of_texts, 4)
    # Commands can be typed as the program was called, from any folder.
    text = Elements(html).text
    assert f"'./my way' trace {tmp_path / 'out'} " in text
    assert f"'./my way' export {tmp_path / 'out'} --format nemo -o NEW" in text


def test_what_texts_and_addresses_say_is_text(html: str) -> None:
    assert "<script>document" not in html
    assert "<img" not in html
    assert "\u202e" not in html
    assert "49" not in re.findall(r"\]\]&gt;&amp;amp;(.{0,10})", html)
    assert len(Elements(html).named("script")) == 3


@pytest.mark.parametrize(
    ("without", "lost"),
    [
        (f"{PRIVATE}/statistics", "Their lengths are not recorded"),
        (f"{PRIVATE}/timelines", "How fast it was is not recorded"),
        (PRIVATE, "Not known from here."),
    ],
)
def test_what_is_not_known_is_said(place: Path, tmp_path: Path, without: str, lost: str) -> None:
    out = shutil.copytree(place / "out", tmp_path / "out")
    shutil.rmtree(out / without)

    html = page_of(out, tmp_path / "page.html")

    assert lost in html
    assert next(one[2] for one in data_in(html)["sources"]) > 1000
    assert "end of text" in html, "a document is shown"


def test_damaged_records_are_as_if_they_were_lost(place: Path, tmp_path: Path) -> None:
    out = shutil.copytree(place / "out", tmp_path / "out")
    for path in [*(out / PRIVATE / "statistics").iterdir(), *(out / PRIVATE / "timelines").iterdir()]:
        path.write_bytes(path.read_bytes().replace(b":1", b":-1").replace(b"0", b"[", 1))

    html = page_of(out, tmp_path / "page.html")

    assert "Their lengths are not recorded" in html


def test_a_run_that_was_killed_has_a_page_and_so_has_the_rest_of_it(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = ("--tokenizer", "gpt2", "--shard-tokens", "2000", "--val-tokens", "1000", "--workers", "1")
    with runner.running(place / "source", out, *line) as process:
        runner.wait_until(lambda: runner.steps(out) >= 1, process)
        process.send_signal(signal.SIGKILL)
        runner.finish(process)

    half = page_of(out, tmp_path / "half.html")
    convert(place / "source", out)
    whole = page_of(out, tmp_path / "whole.html")

    assert "This run is not finished" in half
    assert "cut off" in half
    assert ">complete<" in whole.replace("\n", "")
    assert ">cut off</td>" in whole


def test_it_can_be_verified_and_damage_is_told(place: Path, tmp_path: Path) -> None:
    assert "Every byte was read and proven" in page_of(place / "out", tmp_path / "good.html", "--verify")
    out = shutil.copytree(place / "out", tmp_path / "out")
    shard = min(out.glob("*_train_*.bin"))
    shard.write_bytes(shard.read_bytes()[:-2])

    quick = page_of(out, tmp_path / "quick.html", code=1)

    assert "1 of" in Elements(quick).text
    assert f"{shard.name} has" in quick


@pytest.mark.parametrize("name", ["manifest.json", "edu_fineweb_train_00000_001.bin", "index/page.html"])
def test_a_page_never_replaces_a_file_of_the_run(place: Path, name: str) -> None:
    before = runner.state(place / "out")

    ended = runner.command_line("report", place / "out", "-o", place / "out" / name, capture_output=True)

    assert ended.returncode == 2
    assert runner.state(place / "out") == before


def test_without_a_name_it_is_named_after_the_run_and_lies_here(place: Path, tmp_path: Path) -> None:
    ended = runner.command_line("report", place / "out", cwd=tmp_path, capture_output=True)

    assert ended.returncode == 0
    assert str(tmp_path / "out.html") in ended.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]


def test_what_is_no_run_has_no_page(tmp_path: Path) -> None:
    ended = runner.command_line("report", tmp_path, "-o", tmp_path / "page.html", capture_output=True)

    assert ended.returncode == 2
    assert [*tmp_path.iterdir()] == []
