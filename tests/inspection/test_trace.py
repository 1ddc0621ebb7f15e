"""Where a token comes from: every token of small runs, compared with tokens that carry their origin."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus
import hub_runs
import naive
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runner
from hub_server import COMMIT, REPO, HubServer

from fwconvert.cli import main
from fwconvert.errors import ManifestError, ShardError, UsageError
from fwconvert.inspection import show
from fwconvert.inspection.trace import Trace, in_words, trace

SIDES = ["before", "after"]
# The layout, the size of a shard, and what becomes of a short last one. Shards of 30 leave the third
# source one full shard, which takes in the tails of all: two passages of one source.
SHAPES = [
    ("independent", 7, "keep"),
    ("contiguous", 7, "merge"),
    ("independent", 30, "merge"),
    ("independent", 7, "drop"),
    ("contiguous", 30, "drop"),
]


@dataclass(frozen=True)
class Origin:
    """What a token of the oracle says of itself."""

    source: str
    row: int
    document: int
    position: int
    tokens: int
    text: str

    @property
    def is_last(self) -> bool:
        return self.position + 1 == self.tokens


def labelled(folder: Path) -> list[naive.Stream]:
    """Return the sources as streams of tokens that are their own origins."""
    streams, number = [], 0
    for path in sorted(folder.glob("*.parquet")):
        labels: list[Any] = []
        for row, text in enumerate(pq.read_table(path)["text"].to_pylist()):
            if text:
                number += 1
                count = len(text.encode()) + 1
                labels += [Origin(path.name, row, number, at, count, text) for at in range(count)]
        streams.append(naive.Stream(labels, []))
    return streams


def shards_of(folder: Path, layout: str, size: int, last: str) -> dict[str, list[Any]]:
    streams = labelled(folder)
    cut = naive.contiguous(naive.concatenate(streams), size, 0)
    if layout == "independent":
        cut = naive.independent(streams, size, 0, 3)
    settled = naive.settled([*cut], size, last)
    return {f"edu_fineweb_{stem}.bin": stream.tokens for stem, stream in settled}


def made(folder: Path, **choices: Any) -> Path:
    """Convert the sources of a folder into small token shards."""
    chosen = {"tokenizer": "bytes", "shard_tokens": 7, "val_tokens": 0, "last": "keep", **choices}
    assert runner.convert(folder / "source", folder / "run", **chosen).complete
    return folder / "run"


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read sources in this very process: one for each of hundreds of tokens would take minutes."""
    monkeypatch.setattr("fwconvert.inspection.trace.call_apart", lambda function, asked, _: function(asked))


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("layout", "size", "last"), SHAPES)
def test_every_token_is_traced_to_its_row(
    layout: str, size: int, last: str, side: str, tmp_path: Path
) -> None:
    source = corpus.tiny(tmp_path / "source")
    run = made(tmp_path, layout=layout, eot=side, shard_tokens=size, last=last)
    shards = shards_of(source, layout, size, last)
    whole = {token.document for tokens in shards.values() for token in tokens if token.is_last}
    for shard, tokens in shards.items():
        for offset, wanted in enumerate(tokens):
            found = trace(run, f"{shard}:{offset}")
            assert (found.shard, found.offset) == (shard, offset)
            assert (found.source, found.row) == (wanted.source, wanted.row)
            assert (found.document, found.position) == (wanted.document, wanted.position)
            assert found.document_tokens == (wanted.tokens if wanted.document in whole else None)
            assert (found.id, found.url, found.missing) == (str(wanted.row), None, "")
            assert wanted.text.startswith(found.first_words.rstrip("\ufffd"))
    assert sum(map(len, shards.values())) > 50


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("layout", "size", "last"), SHAPES)
def test_every_document_is_shown_whole_by_its_number(
    layout: str, size: int, last: str, side: str, tmp_path: Path
) -> None:
    source = corpus.tiny(tmp_path / "source")
    run = made(tmp_path, layout=layout, eot=side, shard_tokens=size, last=last)
    shards = shards_of(source, layout, size, last)
    tokens = [(f"{shard}:{at}", token) for shard, inside in shards.items() for at, token in enumerate(inside)]
    places = {token.document: place for place, token in tokens if token.position == 0}
    shown = 0
    for wanted in (token for _, token in tokens if token.is_last):
        found, place = show.numbered(run, wanted.document)
        text = f"<|endoftext|>{wanted.text}" if side == "before" else f"{wanted.text}<|endoftext|>"
        assert (found.source, found.row, found.tokens) == (wanted.source, wanted.row, wanted.tokens)
        assert (found.text, found.whole, place) == (text, True, places[wanted.document])
        shown += 1
    assert shown == 7 or last == "drop"
    with pytest.raises(UsageError, match="from 1 to 7"):
        show.numbered(run, 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced")
    write(folder / "source/a.parquet", [None, "hello world", "", "a second document", "x" * 500])
    write(folder / "source/b.parquet", ["of b"])
    return made(folder, shard_tokens=100)


def write(path: Path, texts: list[str | None], **more: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [f"<urn:uuid:{path.stem}{row}>" for row in range(len(texts))]
    urls = [f"https://example.org/{path.stem}/{row}" for row in range(len(texts))]
    columns = {"text": pa.array(texts, pa.string()), "id": names, "url": urls, **more}
    pq.write_table(pa.table(columns), path, row_group_size=2)


def test_a_document_that_spans_shards_is_found_from_the_middle(run: Path) -> None:
    found = trace(run, "train_00000_003:42")
    # 12 + 18 tokens stand before it.
    assert (found.row, found.starts_in, found.starts_at) == (4, "edu_fineweb_train_00000_000.bin", 30)
    assert (found.position, found.document_tokens, found.document) == (312, 501, 3)
    assert (found.token, found.token_text, found.first_words) == (ord("x"), "x", "x" * 40)
    assert (found.id, found.url) == ("<urn:uuid:a4>", "https://example.org/a/4")


def test_the_command_prints_it_for_people_and_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(run), "train_00000_000:14"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "a.parquet",
        "row       3",
        "<urn:uuid:a3>",
        "https://example.org/a/3",
        '"a second document"',
    ):
        assert part in shown
    assert "document 2 of the run, from edu_fineweb_train_00000_000.bin:12" in shown
    assert main(["trace", str(run), "train_00000_000:14", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["row"], facts["id"], facts["url"], facts["position"]) == (
        3, "<urn:uuid:a3>", "https://example.org/a/3", 2,
    )  # fmt: skip


def test_show_prints_a_document_of_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run), "--document", "4"]) == 0
    shown = capsys.readouterr().out
    assert "--- document 4 of the run, from edu_fineweb_train_00002_000.bin:31: row 0 of b.parquet" in shown
    assert "<|endoftext|>of b" in shown


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("limit", [14, 25, 29, 30])
def test_the_document_that_a_limit_cuts_is_traced_to_its_row(side: str, limit: int, tmp_path: Path) -> None:
    """Documents of 13 and 17 tokens: the second has its first token, its text, or all but its separator."""
    write(tmp_path / "source/a.parquet", ["twelve bytes", None, "and sixteen more"])
    words = {"limit_tokens": limit, "eot": side, "tokenizer": "bytes", "val_tokens": 0, "workers": 1}
    runner.assert_tidy_end(runner.run(tmp_path / "source", tmp_path / "run", **words), 0)
    for offset in (12, 13, limit - 1):
        ended = runner.command_line("trace", tmp_path / "run", f"train:{offset}", "--json")
        runner.assert_tidy_end(ended, 0)
        found = json.loads(ended.stdout)
        row, start = (0, 0) if offset < 13 else (2, 13)
        assert (found["missing"], found["row"], found["position"]) == ("", row, offset - start)
        assert found["url"] == f"https://example.org/a/{row}"
        whole = row == 0 or limit == 30
        assert found["document_tokens"] == ((13 if row == 0 else 17) if whole else None)
        first, had = (
            ("twelve bytes", 12) if row == 0 else ("and sixteen more", limit - 13 - (side == "before"))
        )
        assert found["first_words"] == first[:had]
    last = runner.command_line("show", tmp_path / "run", "--document", "2").stdout
    assert ("(it may not end here)" in last) == (limit < 30)


def test_a_cut_document_of_another_source_is_not_believed(tmp_path: Path) -> None:
    write(tmp_path / "source/a.parquet", ["twelve bytes", None, "and sixteen more"])
    words = {"limit_tokens": 20, "tokenizer": "bytes", "val_tokens": 0, "workers": 1}
    runner.assert_tidy_end(runner.run(tmp_path / "source", tmp_path / "run", **words), 0)
    write(tmp_path / "source/a.parquet", ["twelve bytes", None, "Xnd sixteen more"])
    found = json.loads(runner.command_line("trace", tmp_path / "run", "train:19", "--json").stdout)
    assert "has a different text" in found["missing"]


@pytest.mark.parametrize("words", [[], ["train", "--document", "1"]])
def test_show_wants_a_shard_or_a_document(
    words: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(run), *words]) == 2
    assert "--document N" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        ("train_00000_000", "does not name a token"),
        ("train_00000_000:", "does not name a token"),
        ("train_00000_000:x", "does not name a token"),
        ("train_00000_000:-1", "does not name a token"),
        ("train_00000_000:1.5", "does not name a token"),
        ("", "does not name a token"),
        ("train_00000_000:100", "from 0 to 99"),
        ("train_00000_000:1e12", "from 0 to 99"),
        ("train_00002:36", "from 0 to 35"),
        ("train_00000:5", "several token shards"),
        (":5", "several token shards"),
        ("train_00009_000:5", "no such token shard"),
        ("../../etc/passwd:5", "no such token shard"),
    ],
)
def test_a_bad_place_is_explained(
    place: str, wrong: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(run), place]) == 2
    assert wrong in capsys.readouterr().err


def test_a_path_to_a_shard_will_do(run: Path) -> None:
    assert trace(run, f"{run}/edu_fineweb_train_00000_000.bin:1_0").position == 10


def test_a_folder_without_a_run_and_a_source_that_is_no_folder_are_explained(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(tmp_path), "x:1"]) == 2
    assert "no run manifest" in capsys.readouterr().err
    assert main(["trace", str(run), "train_00000_000:1", "--source", str(tmp_path / "none")]) == 2
    assert "--source" in capsys.readouterr().err


@pytest.fixture
def moved(run: Path, tmp_path: Path) -> Path:
    """A copy of the run that does not know where its sources are."""
    shutil.copytree(run, tmp_path / "moved")
    (tmp_path / "moved" / runner.PRIVATE / "places.json").unlink()
    return tmp_path / "moved"


def test_without_the_sources_the_rest_is_told(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(moved), "train_00000_000:14"]) == 0
    shown = capsys.readouterr().out
    assert "row       3" in shown
    assert '"a second document"' in shown
    assert "--source DIR" in shown
    assert "url " not in shown.replace("the url", "")


def test_the_sources_may_be_elsewhere_and_under_their_bare_names(moved: Path, run: Path) -> None:
    found = trace(moved, "train_00000_000:14", run.parent / "source")
    assert found.url == "https://example.org/a/3"


def test_a_record_of_the_place_that_is_damaged_or_old_is_no_harm(moved: Path) -> None:
    place = moved / runner.PRIVATE / "places.json"
    for content in ("{", '{"format":"fwconvert places 1","root":"/no/such/folder"}'):
        place.write_text(content)
        assert trace(moved, "train_00000_000:14").missing


@pytest.mark.parametrize("size", ["another", "the same"])
def test_another_file_under_the_same_name_is_not_believed(size: str, moved: Path, tmp_path: Path) -> None:
    texts: list[str | None] = [None, "hello world", "", "a secone document", "x" * 500]
    more = {"more": list(range(5))} if size == "another" else {}
    write(tmp_path / "other/a.parquet", texts, **more)
    right = (moved.parent / "other/a.parquet").stat().st_size
    if size == "the same":
        manifest = json.loads((moved / "manifest.json").read_text())
        # Whatever the writer made of it: only the text is to tell.
        assert abs(right - manifest["sources"][0]["bytes"]) < 100
        manifest["sources"][0]["bytes"] = manifest["jobs"][0]["bytes"] = right
        (moved / "manifest.json").write_text(json.dumps(manifest))

    found = trace(moved, "train_00000_000:14", tmp_path / "other")

    assert (found.id, found.url) == (None, None)
    assert "not the one that was converted" in found.missing
    assert ("a different text" in found.missing) == (size == "the same")
    assert found.first_words == "a second document"


def test_what_a_file_says_cannot_command_a_terminal(tmp_path: Path) -> None:
    evil = "\x1b[2J\x07\u202e"
    table = pa.table({"text": [f"{evil} text"], "id": [evil], "url": [f"https://{evil}\n  id  forged"]})
    (tmp_path / "source").mkdir()
    pq.write_table(table, tmp_path / "source/a.parquet")

    found = trace(made(tmp_path, shard_tokens=100), "train:0")

    assert found.id == "\ufffd[2J\ufffd\ufffd"
    shown = in_words(found)
    assert not set(evil[:1] + evil[-2:]) & set(shown)
    assert "\n  id  forged" not in shown


def test_a_file_without_id_and_url_and_a_null_in_them_are_told_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    table = pa.table({"text": ["one", "two"], "id": pa.array([None, "b"], pa.string())})
    pq.write_table(table, tmp_path / "source/a.parquet")
    run = made(tmp_path, shard_tokens=100)

    assert (trace(run, "train:0").id, trace(run, "train:4").id) == (None, "b")
    assert trace(run, "train:0").missing == ""


def damaged(run: Path, name: str, folder: Path) -> Path:
    shutil.copytree(run, folder / "damaged")
    content = bytearray((folder / "damaged" / name).read_bytes())
    content[-1] ^= 1
    (folder / "damaged" / name).write_bytes(content)
    return folder / "damaged"


@pytest.mark.parametrize(
    "name", ["edu_fineweb_train_00000_003.bin", "index/edu_fineweb_train_00000_000.docs"]
)
def test_a_damaged_file_is_not_believed(name: str, run: Path, tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="damaged"):
        trace(damaged(run, name, tmp_path), "train_00000_003:42")


def test_a_missing_index_is_told(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/index/edu_fineweb_train_00000_001.docs").unlink()
    assert main(["trace", str(tmp_path / "run"), "train_00000_003:42"]) == 1
    assert "edu_fineweb_train_00000_001.docs" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "run"), "--document", "3"]) == 1
    assert "edu_fineweb_train_00000_001.docs" in capsys.readouterr().err


def test_a_manifest_that_lies_about_a_shard_is_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    manifest["shards"][2]["segments"] = [[1, 0]]
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ManifestError, match="contradicts itself"):
        trace(tmp_path / "run", "train_00000_003:42")


@pytest.mark.parametrize("lie", [{"dataset": "../../x"}, {"sources": [{"path": "/etc/passwd", "bytes": 1}]}])
def test_a_manifest_that_leads_elsewhere_is_refused(lie: dict[str, Any], run: Path, tmp_path: Path) -> None:
    manifest = {**json.loads((run / "manifest.json").read_text()), **lie}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ManifestError):
        trace(tmp_path, "train_00000_003:42")
    with pytest.raises(ManifestError):
        show.numbered(tmp_path, 1)


def test_an_unfinished_run_is_traced_as_far_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "source/a.parquet", ["x" * 450])
    (tmp_path / "source/b.parquet").write_bytes(b"not parquet")
    chosen: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 100, "val_tokens": 0}
    assert not runner.convert(tmp_path / "source", tmp_path / "run", **chosen).complete

    found = trace(tmp_path / "run", "train_00000_002:7")

    assert (found.row, found.position, found.document) == (0, 207, 1)
    # Its end is in the tail, which is joined when all sources are converted.
    assert (found.document_tokens, found.url) == (None, "https://example.org/a/0")
    document, _ = show.numbered(tmp_path / "run", 1)
    assert (document.tokens, document.whole) == (400, False)
    with pytest.raises(UsageError, match=r"not finished[\s\S]*b\.parquet"):
        show.numbered(tmp_path / "run", 2)


def test_a_joined_shard_that_is_not_made_yet_is_a_gap(run: Path, tmp_path: Path) -> None:
    source = corpus.tiny(tmp_path / "source")
    run = made(tmp_path, layout="contiguous")
    manifest = json.loads((run / "manifest.json").read_text())
    gone = manifest["shards"].pop(2)
    manifest["headline"].update(complete=False, train_shards=manifest["headline"]["train_shards"] - 1)
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / gone["name"]).unlink()
    before = "edu_fineweb_train_000002.bin"
    last = shards_of(source, "contiguous", 7, "keep")[before][-1]
    assert not last.is_last

    found: Trace = trace(run, f"{before}:6")

    assert (found.row, found.position, found.document_tokens) == (last.row, last.position, None)
    with pytest.raises(UsageError, match="not made yet"):
        trace(run, "train_000004:0")


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose sources were fetched and are gone; the repository is beside it."""
    folder = tmp_path_factory.mktemp("fetched")
    texts: list[str | None] = [corpus.document(number) for number in range(3000)]
    noise = [f"{number * 2654435761 % 2**32:032b}" * 20 for number in range(3000)]
    path = folder / "repository" / hub_runs.FOLDER / "000_00000.parquet"
    path.parent.mkdir(parents=True)
    ids = [f"id {row}" for row in range(3000)]
    urls = [f"https://example.org/{row}" for row in range(3000)]
    table = pa.table({"text": texts, "noise": noise, "id": ids, "url": urls})
    pq.write_table(table, path, row_group_size=300, compression="none", use_dictionary=False)
    with HubServer(folder / "repository") as hub:
        words = ["pin", REPO, hub_runs.FOLDER, "-o", str(folder / "mini.json")]
        runner.assert_tidy_end(hub_runs.run(words, hub.endpoint), 0)
        words = hub_runs.conversion(folder / "mini.json", folder / "run")
        runner.assert_tidy_end(hub_runs.run(words, hub.endpoint), 0)
    return folder


PLACE = "train_00000_002:77"


def wanted_row(folder: Path) -> int:
    """Return the row of the token at that place: the third shard of 100,000 tokens begins at 200,000."""
    position = 0
    for row in range(3000):
        position += len(corpus.document(row).encode()) + 1
        if position > 200_077:
            return row
    raise AssertionError(folder)


def test_the_row_comes_over_the_hub_without_the_whole_file(fetched: Path) -> None:
    with HubServer(fetched / "repository") as hub:
        ended = hub_runs.run(["trace", str(fetched / "run"), PLACE, "--json"], hub.endpoint)
        runner.assert_tidy_end(ended, 0)
        asked = [seen.range for seen in hub_runs.looks(hub.log)]
        assert hub_runs.bodies(hub.log) == []
    facts, row = json.loads(ended.stdout), wanted_row(fetched)
    assert (facts["row"], facts["id"], facts["url"]) == (row, f"id {row}", f"https://example.org/{row}")
    assert (facts["dataset"], facts["revision"], facts["missing"]) == (REPO, COMMIT, "")
    spans = [part.removeprefix("bytes=").split("-") for part in asked if part]
    size = next((fetched / "repository" / hub_runs.FOLDER).iterdir()).stat().st_size
    assert spans
    assert len(spans) == len(asked)
    assert sum(int(end) + 1 - int(begin) for begin, end in spans) < size * 3 // 4


def test_a_hub_that_stumbles_is_asked_again(fetched: Path) -> None:
    with HubServer(fetched / "repository") as hub:
        hub.fault("status", on="cdn", status=503, times=1)
        ended = hub_runs.run(["trace", str(fetched / "run"), PLACE, "--json"], hub.endpoint)
        runner.assert_tidy_end(ended, 0)
        assert hub.faults_left == 0
    assert json.loads(ended.stdout)["url"] == f"https://example.org/{wanted_row(fetched)}"


def test_another_file_on_the_hub_is_not_believed(fetched: Path, tmp_path: Path) -> None:
    shutil.copytree(fetched / "repository", tmp_path / "repository")
    path = next((tmp_path / "repository" / hub_runs.FOLDER).iterdir())
    table = pq.read_table(path)
    texts = pa.array([text.upper() for text in table["text"].to_pylist()])
    table = table.set_column(0, "text", texts)
    pq.write_table(table, path, row_group_size=300, compression="none", use_dictionary=False)
    with HubServer(tmp_path / "repository") as hub:
        ended = hub_runs.run(["trace", str(fetched / "run"), PLACE], hub.endpoint)
    runner.assert_tidy_end(ended, 0)
    assert "a different text" in ended.stdout
    assert "example.org" not in ended.stdout


@pytest.mark.parametrize("settings", [{"HF_HUB_OFFLINE": "1"}, {}])
def test_without_a_network_the_rest_is_told(settings: dict[str, str], fetched: Path, tmp_path: Path) -> None:
    with HubServer(fetched / "repository") as hub:
        gone = hub.endpoint if settings else "http://127.0.0.1:9"
        words = ["trace", str(fetched / "run"), PLACE]
        ended = hub_runs.run(words, gone, **settings)
    runner.assert_tidy_end(ended, 0)
    assert f"row       {wanted_row(fetched):,}" in ended.stdout
    assert "--source DIR" in ended.stdout
    assert ("offline" in ended.stdout) == bool(settings)
    assert tmp_path.exists()
