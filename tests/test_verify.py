"""verify: a good run is proven, and whatever is done to it is told, each thing for itself."""

import hashlib
import itertools
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fwconvert
from fwconvert import names, scan, shard, verify_shard
from fwconvert.config import TokenType
from fwconvert.errors import ManifestError, UsageError
from fwconvert.folder import Lock, RunFolder
from fwconvert.formats import Format
from fwconvert.receipt import ShardLine
from fwconvert.verify import verify
from fwconvert.vocabulary import find

SIZE = 64
# llm.c's.
HEADER_BYTES = 1024
EOT = find("bytes").eot

Json = dict[str, Any]
Change = Callable[[Path], None]


def of(*lengths: int) -> list[str | None]:
    """Make documents of so many tokens each, EOT included."""
    return [(f"document {number} " * length)[: length - 1] for number, length in enumerate(lengths)]


# With 64 tokens a shard. Tails begin with a document, within one, and right behind one's end.
SOURCES: dict[str, list[str | None]] = {
    "0-ends-with-its-shards": [*of(64, 32), None, "", *of(32, 64)],
    "1-longer-than-three-shards": of(10, 260, 64, 20),
    "2-all-tail": ["one", None, "😀 two", "<|endoftext|>"],
    "3-no-rows": [],
    "4-tail-within-a-document": of(100, 11),
    "5-tail-begins-a-document": of(50, 14, 12),
    "6-only-nulls": [None, None],
    "7-tail-fills-a-joined-shard": of(30, 42),
    "8-short": of(2, 2, 3),
}
DOCUMENTS = sum(1 for texts in SOURCES.values() for text in texts if text)
TOKENS = sum(len(text.encode()) + 1 for texts in SOURCES.values() for text in texts if text)


@dataclass(frozen=True)
class Kind:
    layout: str = "independent"
    eot: str = "before"
    val_tokens: int = SIZE
    tokenizer: str = "bytes"


KINDS = [
    Kind(layout, eot, val_tokens)
    for layout, eot, val_tokens in itertools.product(
        ("independent", "contiguous"), ("before", "after"), (SIZE, 0, 100_000)
    )
]
BEFORE, AFTER = Kind(), Kind(eot="after")


def write_sources(folder: Path, sources: dict[str, list[str | None]]) -> None:
    folder.mkdir()
    for name, texts in sources.items():
        pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), folder / f"{name}.parquet")


def convert(sources: Path, out: Path, kind: Kind, shard_tokens: int = SIZE) -> fwconvert.Result:
    recipe, root = fwconvert.make_recipe(
        source=str(sources),
        tokenizer=kind.tokenizer,
        shard_tokens=shard_tokens,
        layout=kind.layout,
        eot=kind.eot,
        val_tokens=kind.val_tokens,
        name="t",
        last="keep",
    )
    return fwconvert.convert(recipe, fwconvert.Options(out=out, root=root, workers=1))


Run = Callable[[Kind], Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Give the finished run of a kind; each is made once, and none may be changed."""
    base = tmp_path_factory.mktemp("runs")
    write_sources(base / "sources", SOURCES)
    made: dict[Kind, Path] = {}

    def give(kind: Kind) -> Path:
        if kind not in made:
            out = base / f"{kind.layout}-{kind.eot}-{kind.val_tokens}"
            assert convert(base / "sources", out, kind).complete
            made[kind] = out
        return made[kind]

    return give


@pytest.fixture
def before(run: Run, tmp_path: Path) -> Path:
    """Give a copy to damage, without the private folder: EOT before each document."""
    return copy(run(BEFORE), tmp_path)


@pytest.fixture
def after(run: Run, tmp_path: Path) -> Path:
    """Give a copy to damage, without the private folder: EOT after each document."""
    return copy(run(AFTER), tmp_path)


@pytest.fixture
def whole(run: Run, tmp_path: Path) -> Path:
    """Give a copy to damage with everything in it."""
    return copy(run(BEFORE), tmp_path, private=True)


def copy(out: Path, folder: Path, *, private: bool = False) -> Path:
    ignored = shutil.ignore_patterns() if private else shutil.ignore_patterns(".fwconvert")
    return Path(shutil.copytree(out, folder / "copy", ignore=ignored))


def told(out: Path) -> list[str]:
    return [f"{problem.file}: {problem.what}" for problem in verify(out).problems]


def assert_told(out: Path, *wanted: str) -> None:
    """Each of `wanted` must be part of a problem, and no other problem may be told."""
    found = told(out)
    missing = [part for part in wanted if not any(part in problem for problem in found)]
    surplus = [problem for problem in found if not any(part in problem for part in wanted)]
    assert (missing, surplus) == ([], []), found


def read_manifest(out: Path) -> Json:
    found: Json = json.loads((out / "manifest.json").read_bytes())
    return found


def edit(out: Path, change: Callable[[Json], object]) -> None:
    manifest = read_manifest(out)
    change(manifest)
    (out / "manifest.json").write_text(json.dumps(manifest))


def seal(out: Path) -> None:
    """Put the sizes and hashes of the files into the manifest, so that only their meaning can be wrong."""

    def change(manifest: Json) -> None:
        for line in manifest["shards"]:
            content, index = (out / line["name"]).read_bytes(), index_of(out, line["name"]).read_bytes()
            line["bytes"], line["sha256"] = len(content), hashlib.sha256(content).hexdigest()
            line["index_sha256"] = hashlib.sha256(index).hexdigest()

    edit(out, change)


def index_of(out: Path, name: str) -> Path:
    return out / "index" / names.index(name)


def tokens_of(out: Path, name: str) -> "np.ndarray[Any, Any]":
    """Map the tokens of a shard so that they can be changed."""
    return np.memmap(out / name, "<u2", "r+", HEADER_BYTES)


def entries_of(out: Path, name: str) -> "np.ndarray[Any, Any]":
    """Map the entries of a document index so that they can be changed."""
    return np.memmap(index_of(out, name), shard.INDEX_TYPE, "r+")


def write_entries(out: Path, name: str, entries: list[tuple[int, int]]) -> None:
    """Replace a document index, and its number of documents in the manifest."""
    index_of(out, name).write_bytes(np.array(entries, shard.INDEX_TYPE).tobytes())
    edit(out, lambda manifest: line_of(manifest, name).update(documents=len(entries)))


def line_of(manifest: Json, name: str) -> Json:
    return next(line for line in manifest["shards"] if line["name"] == name)


def job_of(manifest: Json, number: int) -> Json:
    found: Json = manifest["jobs"][number]
    return found


# --- good runs


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_good_run_is_proven_to_its_last_token(run: Run, kind: Kind) -> None:
    report = verify(run(kind))
    assert report.problems == ()
    assert report.ok
    assert (report.tokens, report.documents) == (TOKENS, DOCUMENTS)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_copy_without_the_private_folder_is_proven_too(run: Run, kind: Kind, tmp_path: Path) -> None:
    assert told(copy(run(kind), tmp_path)) == []


@pytest.mark.parametrize("kind", [BEFORE, AFTER, Kind("contiguous", "after")], ids=str)
@pytest.mark.parametrize("step", [1, 2, 7, SIZE])
def test_the_size_of_a_step_makes_no_difference(
    run: Run, kind: Kind, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_shard, "STEP", step)
    monkeypatch.setattr(scan, "STEP", step)
    assert told(run(kind)) == []


def test_the_runs_have_the_borders_that_are_hard(run: Run) -> None:
    """Else the tests above would prove little."""
    out = run(AFTER)
    lines = [ShardLine(**line) for line in read_manifest(out)["shards"]]
    last = [tokens_of(out, line.name)[-1] == EOT for line in lines]
    first = [line.documents > 0 and entries_of(out, line.name)["start"][0] == 0 for line in lines]
    middle = [
        (begin in entries_of(out, line.name)["start"], tokens_of(out, line.name)[begin - 1] == EOT)
        for line in lines
        for _, begin in line.segments[1:]
    ]
    assert any(last)
    assert not all(last)
    assert any(first)
    assert not all(first)
    assert {(True, True), (False, True)} <= set(middle)
    assert any(line.documents == 0 for line in lines)


@pytest.mark.parametrize("layout", ["independent", "contiguous"])
@pytest.mark.parametrize("eot", ["before", "after"])
def test_shards_shorter_than_most_documents_are_proven(layout: str, eot: str, tmp_path: Path) -> None:
    dice = random.Random(7)
    sources = {f"{number:02d}": of(*dice.choices(range(2, 20), k=dice.randrange(8))) for number in range(9)}
    write_sources(tmp_path / "sources", sources)
    convert(tmp_path / "sources", tmp_path / "out", Kind(layout, eot, 8), shard_tokens=5)
    assert told(tmp_path / "out") == []


def test_tokens_of_four_bytes_are_proven(tmp_path: Path) -> None:
    write_sources(tmp_path / "sources", SOURCES)
    out, known = tmp_path / "out", find("cl100k_base")
    convert(tmp_path / "sources", out, Kind(eot="after", tokenizer=known.name))
    assert told(out) == []
    name = read_manifest(out)["shards"][0]["name"]
    np.memmap(out / name, "<u4", "r+", HEADER_BYTES)[1] = known.size
    assert_told(
        out, "is damaged", "1 ids are not below the vocabulary's size of 100,277, the first at token 1"
    )


def test_symbolic_links_to_good_files_are_good(before: Path, tmp_path: Path) -> None:
    (before / "t_train_00001_000.bin").rename(tmp_path / "elsewhere")
    (before / "t_train_00001_000.bin").symlink_to(tmp_path / "elsewhere")
    assert told(before) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_makes_no_difference(before: Path, threads: int) -> None:
    (before / "t_train_00001_000.bin").unlink()
    alone = verify(before, threads)
    assert alone.problems == verify(before).problems
    assert not alone.ok


# --- damaged files


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def change_magic(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def change_count(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] -= 1
    path.write_bytes(content)


def use_reserved(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES - 1] = 1
    path.write_bytes(content)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def break_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


HARM: list[tuple[Change, list[str]]] = [
    (Path.unlink, ["is missing"]),
    (break_link, ["is missing"]),
    (make_folder, ["is not a regular file"]),
    (cut_short, ["has 1,151 bytes instead of 1,152", "another size than its header says"]),
    (lengthen, ["has 1,153 bytes instead of 1,152", "another size than its header says"]),
    (empty, ["has 0 bytes instead of 1,152", "not a token shard of uint16"]),
    (change_magic, ["not a token shard of uint16"]),
    (change_count, ["another size than its header says"]),
    (use_reserved, ["is damaged: its sha256", "something other than zeros"]),
]


@pytest.mark.parametrize(("harm", "wanted"), HARM, ids=lambda part: getattr(part, "__name__", ""))
def test_a_damaged_shard_is_told(before: Path, harm: Change, wanted: list[str]) -> None:
    name = "t_train_00001_001.bin"
    harm(before / name)
    assert_told(before, *wanted)
    assert all(problem.startswith(name) for problem in told(before))


INDEX_HARM: list[tuple[Change, list[str]]] = [
    (Path.unlink, ["is missing"]),
    (make_folder, ["is not a regular file"]),
    (cut_short, ["has 31 bytes instead of 32", "sha256", "a file is cut short"]),
    (lengthen, ["has 33 bytes instead of 32", "sha256", "a file is cut short"]),
    (
        empty,
        ["has 0 bytes instead of 32", "sha256", "4 documents are missing", "where 2-all-tail.parquet begins"],
    ),
]


@pytest.mark.parametrize(("harm", "wanted"), INDEX_HARM, ids=lambda part: getattr(part, "__name__", ""))
def test_a_damaged_index_is_told(before: Path, harm: Change, wanted: list[str]) -> None:
    harm(index_of(before, "t_train_00009_000.bin"))
    found = [problem for problem in told(before) if problem.startswith("index/t_train_00009_000.docs")]
    assert len(found) == len(wanted)
    assert all(any(part in problem for problem in found) for part in wanted)


def test_one_wrong_byte_of_text_is_told_by_the_hash(before: Path) -> None:
    tokens_of(before, "t_train_00001_001.bin")[5] ^= 1
    assert_told(before, "t_train_00001_001.bin: is damaged: its sha256 is")


def test_one_wrong_byte_of_an_index_is_told_by_the_hash(before: Path) -> None:
    entries_of(before, "t_train_00000_001.bin")["row"][0] = 2
    assert_told(before, "index/t_train_00000_001.docs: is damaged: its sha256 is")


def test_no_damage_to_a_file_goes_unnoticed(before: Path) -> None:
    dice = random.Random(11)
    files = sorted(path for path in before.rglob("*") if path.suffix in {".bin", ".docs"})
    for _ in range(60):
        path = dice.choice(files)
        content = path.read_bytes()
        at = dice.randrange(len(content) + 1)
        path.write_bytes(
            content[:at] + dice.randbytes(dice.randrange(1, 9)) + content[at + dice.randrange(9) :]
        )
        assert told(before) or path.read_bytes() == content
        path.write_bytes(content)


def test_a_disk_that_cannot_be_read_is_told(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> str:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(verify_shard, "sha256_of", fail)
    monkeypatch.setattr(scan.Scan, "read_header", fail)
    found = told(before)
    assert len(found) == 2 * len(read_manifest(before)["shards"])
    assert all("cannot be read (Input/output error)" in problem for problem in found)


def test_a_file_that_is_cut_while_it_is_read_is_told(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token_count = shard.token_count

    def count_then_cut(path: Path, token_type: TokenType, kind: Format) -> int:
        tokens = token_count(path, token_type, kind)
        if path.name == "t_train_00001_001.bin":
            os.truncate(path, HEADER_BYTES + 10)
        return tokens

    monkeypatch.setattr(shard, "token_count", count_then_cut)
    assert_told(before, "t_train_00001_001.bin: was cut short while it was read")


def test_every_problem_is_told_at_once(before: Path) -> None:
    (before / "t_train_00001_000.bin").unlink()
    cut_short(before / "t_train_00001_001.bin")
    (before / "index" / "t_train_00001_002.docs").unlink()
    tokens_of(before, "t_train_00005_000.bin")[7] = 300
    (before / "t_train_99999_000.bin").write_bytes(b"")
    edit(before, lambda manifest: manifest["headline"].update(tokens=1))
    assert_told(
        before,
        "t_train_00001_000.bin: is missing",
        "t_train_00001_001.bin: has 1,151 bytes",
        "t_train_00001_001.bin: a token shard has another size",
        "index/t_train_00001_002.docs: is missing",
        "t_train_00005_000.bin: is damaged",
        "t_train_00005_000.bin: 1 ids are not below the vocabulary's size of 257, the first at token 7",
        "t_train_99999_000.bin: is not in the run manifest",
        "manifest.json: the headline's tokens is 1",
    )


# --- files that are wrong although their hashes are right: EOT before each document


def test_an_eot_in_another_place_is_told(before: Path) -> None:
    tokens = tokens_of(before, "t_train_00001_000.bin")
    tokens[[9, 10]] = tokens[[10, 9]]
    seal(before)
    assert_told(
        before,
        "index/t_train_00001_000.docs: 1 documents are missing, the first at token 9",
        "index/t_train_00001_000.docs: 1 documents start where no EOT says so, the first at token 10",
    )


def test_a_lost_eot_is_told(before: Path) -> None:
    tokens_of(before, "t_train_00001_000.bin")[10] = 46
    seal(before)
    assert_told(
        before,
        "index/t_train_00001_000.docs: 1 documents start where no EOT says so, the first at token 10",
        "the job 1-longer-than-three-shards.parquet has 4 documents, its tokens 3 EOTs",
    )


def test_an_eot_too_many_is_told(before: Path) -> None:
    tokens_of(before, "t_train_00001_002.bin")[[7, 9]] = EOT
    seal(before)
    assert_told(
        before,
        "index/t_train_00001_002.docs: 2 documents are missing, the first at token 7",
        "the job 1-longer-than-three-shards.parquet has 4 documents, its tokens 6 EOTs",
    )


def test_ids_outside_the_vocabulary_are_told(before: Path) -> None:
    tokens_of(before, "t_train_00001_002.bin")[[3, 5]] = find("bytes").size, 2**16 - 1
    seal(before)
    what = "2 ids are not below the vocabulary's size of 257, the first at token 3"
    assert_told(before, f"t_train_00001_002.bin: {what}")


def test_a_start_that_is_off_by_one_is_told(before: Path) -> None:
    entries_of(before, "t_train_00001_000.bin")["start"][1] += 1
    seal(before)
    assert_told(
        before,
        "index/t_train_00001_000.docs: 1 documents are missing, the first at token 10",
        "index/t_train_00001_000.docs: 1 documents start where no EOT says so, the first at token 11",
    )


def test_starts_that_do_not_rise_are_told(before: Path) -> None:
    entries_of(before, "t_train_00009_000.bin")["start"][2] = 34
    seal(before)
    assert_told(before, "index/t_train_00009_000.docs: entry 2 does not start behind the entry before it")


def test_a_start_outside_the_shard_is_told(before: Path) -> None:
    entries_of(before, "t_train_00009_000.bin")["start"][3] = SIZE
    seal(before)
    what = "a document starts at token 64, but there are only 64"
    assert_told(before, f"index/t_train_00009_000.docs: {what}")


def test_swapped_rows_are_told(before: Path) -> None:
    entries = entries_of(before, "t_train_00001_000.bin")
    entries["row"] = entries["row"][::-1].copy()
    seal(before)
    what = "the document at token 10 is not of a later row than the last"
    assert_told(before, f"index/t_train_00001_000.docs: {what}")


def test_rows_that_go_back_from_shard_to_shard_are_told(before: Path) -> None:
    entries_of(before, "t_train_00000_002.bin")["row"][0] = 4
    seal(before)
    what = "begins with row 4 of 0-ends-with-its-shards.parquet, but row 4 was before it"
    assert_told(before, f"index/t_train_00000_002.docs: {what}")


def test_rows_that_go_back_from_a_source_to_its_joined_tail_are_told(before: Path) -> None:
    entries_of(before, "t_train_00009_000.bin")["row"][0] = 1
    seal(before)
    what = "begins with row 1 of 1-longer-than-three-shards.parquet, but row 2 was before it"
    assert_told(before, f"index/t_train_00009_000.docs: {what}")


def test_a_row_that_the_source_does_not_have_is_told(before: Path) -> None:
    entries_of(before, "t_train_00000_002.bin")["row"][0] = 6
    seal(before)
    what = "names row 6 of 0-ends-with-its-shards.parquet, which has 6"
    assert_told(before, f"index/t_train_00000_002.docs: {what}")


def test_a_source_that_does_not_begin_with_a_document_is_told(before: Path) -> None:
    tokens_of(before, "t_train_00004_000.bin")[0] = 46
    write_entries(before, "t_train_00004_000.bin", [])
    seal(before)
    assert_told(
        before,
        "index/t_train_00004_000.docs: has no document where 4-tail-within-a-document.parquet begins",
        "the job 4-tail-within-a-document.parquet has 2 documents, its indexes 1",
        "the job 4-tail-within-a-document.parquet has 2 documents, its tokens 1 EOTs",
        "the token shards have 20 documents, but the jobs gave 21",
    )


def test_a_document_given_to_another_source_is_told(before: Path) -> None:
    tokens = tokens_of(before, "t_train_00009_000.bin")
    tokens[[33, 34]] = tokens[[34, 33]]
    write_entries(before, "t_train_00009_000.bin", [(14, 3), (33, 4), (38, 2), (47, 3)])
    seal(before)
    assert_told(
        before,
        "index/t_train_00009_000.docs: names row 4 of 1-longer-than-three-shards.parquet, which has 4",
        "the job 1-longer-than-three-shards.parquet has 4 documents, its indexes 5",
        "the job 1-longer-than-three-shards.parquet has 4 documents, its tokens 5 EOTs",
        "index/t_train_00009_000.docs: has no document where 2-all-tail.parquet begins",
        "the job 2-all-tail.parquet has 3 documents, its indexes 2",
        "the job 2-all-tail.parquet has 3 documents, its tokens 2 EOTs",
    )


def test_two_files_that_changed_their_names_are_told(before: Path) -> None:
    one, other = before / "t_train_00001_001.bin", before / "t_train_00001_002.bin"
    one.rename(before / "x")
    other.rename(one)
    (before / "x").rename(other)
    assert_told(before, f"{one.name}: is damaged: its sha256", f"{other.name}: is damaged: its sha256")


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_a_fall_is_seen_within_a_step_and_between_two(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_shard, "STEP", step)
    assert verify_shard.first_fall(np.arange(7)) == -1
    for at in range(1, 7):
        assert verify_shard.first_fall(np.arange(7) - (np.arange(7) >= at)) == at


# --- the same with EOT after each document


def test_an_eot_after_a_document_in_another_place_is_told(after: Path) -> None:
    tokens = tokens_of(after, "t_train_00001_000.bin")
    tokens[[9, 10]] = tokens[[10, 9]]
    seal(after)
    assert_told(
        after,
        "index/t_train_00001_000.docs: 1 documents start where no EOT says so, the first at token 10",
        "index/t_train_00001_000.docs: 1 documents are missing, the first at token 11",
    )


def test_an_eot_lost_at_the_end_of_a_shard_is_told(after: Path) -> None:
    tokens_of(after, "t_train_00000_001.bin")[-1] = 46
    seal(after)
    what = "begins a document here, though t_train_00000_001.bin ends without an EOT"
    assert_told(
        after,
        f"index/t_train_00000_002.docs: 0-ends-with-its-shards.parquet {what}",
        "the job 0-ends-with-its-shards.parquet has 4 documents, its tokens 3 EOTs",
    )


def test_an_eot_lost_at_the_end_of_a_source_is_told(after: Path) -> None:
    tokens_of(after, "t_train_00009_001.bin")[-1] = 46
    seal(after)
    assert_told(
        after,
        "t_train_00009_001.bin: 7-tail-fills-a-joined-shard.parquet ends in it without an EOT",
        "the job 7-tail-fills-a-joined-shard.parquet has 2 documents, its tokens 1 EOTs",
    )


@pytest.mark.parametrize(
    ("name", "entries", "source", "end"),
    [
        ("t_train_00000_002.bin", [], "0-ends-with-its-shards.parquet", "t_train_00000_001.bin"),
        ("t_train_00009_001.bin", [(33, 1)], "5-tail-begins-a-document.parquet", "t_train_00005_000.bin"),
    ],
)
def test_a_document_that_is_missing_behind_a_border_is_told(
    after: Path, name: str, entries: list[tuple[int, int]], source: str, end: str
) -> None:
    count = read_manifest(after)["headline"]["documents"]
    documents = next(job["documents"] for job in read_manifest(after)["jobs"] if job["path"] == source)
    write_entries(after, name, entries)
    seal(after)
    assert_told(
        after,
        f"index/{names.index(name)}: {source} begins no document here, though {end} ends with an EOT",
        f"the job {source} has {documents} documents, its indexes {documents - 1}",
        f"the token shards have {count - 1} documents, but the jobs gave {count}",
    )


@pytest.mark.parametrize(
    ("name", "entry", "source", "end"),
    [
        ("t_train_00001_001.bin", (0, 2), "1-longer-than-three-shards.parquet", "t_train_00001_000.bin"),
        ("t_train_00009_000.bin", (61, 1), "4-tail-within-a-document.parquet", "t_train_00004_000.bin"),
    ],
)
def test_a_document_that_starts_behind_a_border_within_another_is_told(
    after: Path, name: str, entry: tuple[int, int], source: str, end: str
) -> None:
    entries = shard.read_index(index_of(after, name)).tolist()
    write_entries(after, name, [*entries, entry])
    seal(after)
    found = told(after)
    what = f"{source} begins a document here, though {end} ends without an EOT"
    assert f"index/{names.index(name)}: {what}" in found
    assert any(f"the job {source} has" in problem and "its indexes" in problem for problem in found)


@pytest.mark.parametrize("kind", [BEFORE, AFTER, Kind("contiguous", "after")], ids=str)
def test_no_eot_comes_or_goes_unnoticed(run: Run, kind: Kind, tmp_path: Path) -> None:
    """At the borders of documents, segments and shards, with every hash put right."""
    out = copy(run(kind), tmp_path)
    for line in read_manifest(out)["shards"]:
        tokens = tokens_of(out, line["name"])
        borders = {
            0,
            len(tokens),
            *np.flatnonzero(tokens == EOT).tolist(),
            *(at for _, at in line["segments"]),
        }
        for at in sorted({near for border in borders for near in (border - 1, border)}):
            if 0 <= at < len(tokens):
                old = tokens[at]
                tokens[at] = 46 if old == EOT else EOT
                seal(out)
                assert told(out), (line["name"], at)
                tokens[at] = old
    seal(out)
    assert told(out) == []


# --- the run manifest


def test_a_folder_without_a_run_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run manifest"):
        verify(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(format="fwconvert run manifest 2"),
        lambda manifest: manifest.update(surprise=1),
        lambda manifest: manifest["rules"].update(tokenizer="unheard-of"),
        lambda manifest: manifest["rules"].update(shard_tokens=0),
        lambda manifest: manifest["rules"].update(name="../t"),
    ],
)
def test_a_run_manifest_of_another_kind_is_refused(before: Path, change: Callable[[Json], None]) -> None:
    edit(before, change)
    with pytest.raises(ManifestError):
        verify(before)


def drop_own_shard(manifest: Json) -> None:
    manifest["shards"].remove(line_of(manifest, "t_train_00001_002.bin"))


def drop_joined_shard(manifest: Json) -> None:
    manifest["shards"].remove(line_of(manifest, "t_train_00009_002.bin"))


def rename_shard(manifest: Json) -> None:
    line_of(manifest, "t_train_00001_004.bin")["name"] = "t_train_00001_005.bin"


def repeat_shard(manifest: Json) -> None:
    manifest["shards"].insert(0, dict(manifest["shards"][0]))


def drop_job(manifest: Json) -> None:
    del manifest["jobs"][8]


def swap_jobs(manifest: Json) -> None:
    manifest["jobs"][:2] = manifest["jobs"][1::-1]


def rename_job(manifest: Json) -> None:
    job_of(manifest, 8)["path"] = "another.parquet"


def pin(manifest: Json) -> None:
    manifest["sources"][8]["sha256"] = "0" * 64


CONTRADICTIONS: list[tuple[Callable[[Json], object], list[str]]] = [
    (lambda m: m.update(recipe_id="0"), ["recipe_id is 0, but the recipe's is"]),
    (
        lambda m: m["rules"].update(vocabulary_sha256="0"),
        ["the vocabulary's sha256 is 0, but bytes's is", "recipe_id"],
    ),
    (
        lambda m: m["sources"][8].update(path="../8-short.parquet"),
        ["a source manifest has a bad entry", "the job 8-short.parquet is of no source", "recipe_id",
         "the headline's complete is True, but the lines below make it False"],
    ),
    (
        lambda m: m["headline"].update(complete=False),
        ["complete is False", "not finished: 9 of 9 jobs, 3 of 3"],
    ),
    (lambda m: m["headline"].update(jobs=10), ["the headline's jobs is 10, but the lines below make it 9"]),
    (lambda m: m["headline"].update(jobs_done=8), ["the headline's jobs_done is 8"]),
    (lambda m: m["headline"].update(train_shards=1), ["the headline's train_shards is 1"]),
    (lambda m: m["headline"].update(val_shards=0), ["the headline's val_shards is 0"]),
    (lambda m: m["headline"].update(documents=22), ["documents is 22, but the lines below make it 21"]),
    (
        lambda m: m["headline"].update(tokens=TOKENS + 1),
        [f"tokens is {TOKENS + 1}, but the lines below make it"],
    ),
    (lambda m: m["headline"].update(null_rows=0), ["the headline's null_rows is 0"]),
    (lambda m: m["headline"].update(empty_rows=0), ["the headline's empty_rows is 0"]),
    (
        lambda m: job_of(m, 0).update(bytes=1),
        ["the job 0-ends-with-its-shards.parquet read 1 bytes of a source"],
    ),
    (pin, ["the job 8-short.parquet read a source of sha256", "recipe_id"]),
    (
        lambda m: job_of(m, 1).update(rows=5),
        ["has 5 rows, but its documents, null rows and empty rows make 4"],
    ),
    (
        lambda m: job_of(m, 1).update(text_bytes=9),
        ["has 354 tokens, which 4 documents of 9 bytes cannot give"],
    ),
    (lambda m: job_of(m, 1).update(tail_tokens=35), ["has a tail of 35 tokens, but its 354 tokens leave 34"]),
    (swap_jobs, ["the jobs do not stand in the order of their sources, each once"]),
    (
        rename_job,
        ["the job another.parquet is of no source of this recipe", "the headline's complete is True"],
    ),
    (
        lambda m: line_of(m, "t_train_00001_002.bin").update(documents=1),
        ["the token shards have 22 documents, but the jobs gave 21",
         "index/t_train_00001_002.docs: has 0 bytes instead of 8"],
    ),
    (
        lambda m: line_of(m, "t_train_00001_002.bin").update(split="val"),
        ["t_train_00001_002.bin: has split val in its line instead of train",
         "the headline's train_shards is 13", "the headline's val_shards is 1"],
    ),
    (
        lambda m: line_of(m, "t_train_00001_002.bin").update(tokens=65),
        [f"the token shards have {TOKENS + 1} tokens, but the jobs gave {TOKENS}",
         "t_train_00001_002.bin: has tokens 65 in its line instead of 64",
         "t_train_00001_002.bin: has 1,152 bytes in its line, but 65 tokens take 1,154",
         "t_train_00001_002.bin: has 64 tokens instead of 65"],
    ),
    (
        lambda m: line_of(m, "t_train_00001_002.bin").update(bytes=1153),
        ["has 1,153 bytes in its line, but 64 tokens take 1,152", "has 1,152 bytes instead of 1,153"],
    ),
    (
        lambda m: line_of(m, "t_train_00009_001.bin").update(segments=[[4, 0]]),
        ["t_train_00009_001.bin: has segments ((4, 0),) in its line instead of ((4, 0), (5, 44), (7, 56))"],
    ),
    (
        drop_own_shard,
        ["t_train_00001_002.bin: has no line in the run manifest",
         "t_train_00001_002.bin: is not in the run manifest",
         "index/t_train_00001_002.docs: is not in the run manifest",
         "the headline's complete is True, but the lines below make it False",
         "the headline's train_shards is 13, but the lines below make it 12",
         "tokens, but the jobs gave"],
    ),
    (
        drop_joined_shard,
        ["t_train_00009_002.bin: has no line in the run manifest",
         "t_train_00009_002.bin: is not in the run manifest",
         "index/t_train_00009_002.docs: is not in the run manifest",
         "the headline's complete is True, but the lines below make it False",
         "the headline's train_shards is 13, but the lines below make it 12",
         "tokens, but the jobs gave", "documents, but the jobs gave"],
    ),
    (
        rename_shard,
        ["t_train_00001_004.bin: has no line in the run manifest",
         "t_train_00001_005.bin: is not a token shard that the jobs of this run give",
         "t_train_00001_005.bin: is missing", "index/t_train_00001_005.docs: is missing",
         "t_train_00001_004.bin: is not in the run manifest",
         "index/t_train_00001_004.docs: is not in the run manifest",
         "the headline's complete is True"],
    ),
    (
        repeat_shard,
        ["the token shard t_train_00000_001.bin has 2 lines", "the headline's train_shards is 13",
         "tokens, but the jobs gave", "documents, but the jobs gave"],
    ),
    (
        lambda m: m["shards"].reverse(),
        ["the token shards do not stand in the order of their names"],
    ),
    (
        drop_job,
        ["the headline's complete is True", "the headline's jobs_done is 9", "the headline's documents is 21",
         f"the headline's tokens is {TOKENS}", "tokens, but the jobs gave", "documents, but the jobs gave"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "wanted"), CONTRADICTIONS, ids=itertools.repeat(""))
def test_a_run_manifest_that_contradicts_itself_is_told(
    before: Path, change: Callable[[Json], object], wanted: list[str]
) -> None:
    edit(before, change)
    assert_told(before, *wanted)


# What only a receipt or the source itself could prove.
UNPROVABLE = {("jobs", "sha256"), ("jobs", "text_bytes")}


def leaves(value: Any, *place: Any) -> list[tuple[Any, ...]]:
    """Return the way to every single value."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for key, part in parts for leaf in leaves(part, *place, key)]
    return [place]


def another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else f"{value or ''}x"


def assert_change_is_noticed(out: Path, original: bytes, way: list[Any], last: Any) -> None:
    """Change one value of a run manifest, found by keys and indices."""
    manifest = json.loads(original)
    parent = manifest
    for key in way:
        parent = parent[key]
    parent[last] = another(parent[last])
    (out / "manifest.json").write_text(json.dumps(manifest))
    try:
        assert told(out), (way, last)
    except ManifestError:
        assert way in ([], ["rules"])


@pytest.mark.parametrize(("kind", "step"), [(AFTER, 3), (Kind("contiguous"), 7)], ids=str)
def test_no_value_of_a_run_manifest_changes_unnoticed(
    run: Run, kind: Kind, step: int, tmp_path: Path
) -> None:
    """Of every few values one: the numbers of fields being what they are, each field has its turn."""
    out = copy(run(kind), tmp_path)
    original = (out / "manifest.json").read_bytes()
    for *way, last in leaves(json.loads(original))[::step]:
        if last == "sessions" or "sessions" in way or (way and (way[0], last) in UNPROVABLE):
            continue
        assert_change_is_noticed(out, original, way, last)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: job_of(m, 0).update(tokens=10**18),
        lambda m: job_of(m, 0).update(tokens=-1),
        lambda m: job_of(m, 0).update(tail_tokens=-(10**18), rows=-1, documents=-5),
        lambda m: m["shards"][0].update(name="../t_train_00000_001.bin"),
        lambda m: m["shards"][0].update(name="t_train_00000_001.bin\n"),
        lambda m: m["shards"][0].update(tokens=-1, documents=-1, bytes=-1),
        lambda m: m["shards"][0].update(tokens=2**40, documents=2**40),
        lambda m: m["shards"][0].update(
            name="t_train_00077_000.bin", segments=[[-7, 99], [10**9, -3], [0, 7]]
        ),
        lambda m: m.update(sources=[]),
        lambda m: m.update(jobs=[]),
        lambda m: m.update(shards=[]),
        lambda m: m["rules"].update(layout="contiguous"),
        lambda m: m["rules"].update(eot="after"),
        lambda m: m["rules"].update(token_type="uint32"),
        lambda m: m["rules"].update(tokenizer="o200k_base"),
        lambda m: m["rules"].update(shard_tokens=1),
    ],
)
def test_a_nonsensical_run_manifest_is_told_and_never_raises(
    before: Path, change: Callable[[Json], None]
) -> None:
    edit(before, change)
    assert told(before)


# --- runs with a filter and a limit

# Within a document of the fifth source, 4-tail-within-a-document.
LIMIT = sum(len(text.encode()) + 1 for texts in [*SOURCES.values()][:4] for text in texts if text) + 70


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("limited")
    write_sources(base / "sources", SOURCES)
    recipe, root = fwconvert.make_recipe(
        source=str(base / "sources"),
        tokenizer="bytes",
        shard_tokens=SIZE,
        eot="after",
        name="t",
        where="text is None or not startswith(text, 'one')",
        limit_tokens=LIMIT - 4,
    )
    assert fwconvert.convert(recipe, fwconvert.Options(out=base / "out", root=root, workers=1)).complete
    return base / "out"


@pytest.fixture
def limited(made: Path, tmp_path: Path) -> Path:
    """A copy of the run; nothing but its output can tell."""
    return copy(made, tmp_path)


def test_a_run_that_was_cut_by_its_limit_is_proven(made: Path) -> None:
    assert verify(made).problems == ()
    manifest = json.loads((made / "manifest.json").read_text())
    assert [job.get("cut", False) for job in manifest["jobs"]] == [False] * 4 + [True]
    assert manifest["headline"]["filtered_rows"] == 1
    assert manifest["headline"]["tokens"] == LIMIT - 4


def test_no_value_of_a_limited_run_manifest_changes_unnoticed(limited: Path) -> None:
    original = (limited / "manifest.json").read_bytes()
    assert told(limited) == []
    # Nobody has read the sources behind the limit.
    unread = [(["sources", index], "bytes") for index in range(5, len(SOURCES))]
    for *way, last in leaves(json.loads(original)):
        if "sessions" in [*way, last] or "shards" in way or (way and (way[0], last) in UNPROVABLE):
            continue
        if (way, last) in unread:
            continue
        assert_change_is_noticed(limited, original, way, last)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda m: job_of(m, 0).update(limited=True), "was ended by a limit that is not reached there"),
        (lambda m: job_of(m, 0).update(cut=True), "has a document that is cut, though no limit asks for it"),
        (lambda m: job_of(m, 4).update(limited=False), "has a document that is cut, though no limit"),
        (lambda m: job_of(m, 0).update(filtered_rows=1), "null rows, empty rows and filtered rows make"),
        (lambda m: m["rules"].update(limit_tokens=5), "tokens, more than the limit of 5"),
        (lambda m: m["rules"].update(limit_tokens=5), "there are 5 jobs, but the limit is reached after 1"),
        (lambda m: m["rules"].update(limit_documents=3), "documents, more than the limit of 3"),
        (lambda m: m["rules"].update(limit_tokens=10**9), "the run is not finished: 5 of 9 jobs"),
    ],
)  # fmt: skip
def test_a_limit_that_is_contradicted_is_told(
    limited: Path, change: Callable[[Json], object], wanted: str
) -> None:
    edit(limited, change)
    if "not finished" in wanted:
        edit(limited, lambda m: m["headline"].update(complete=False, jobs=9))
    assert any(wanted in line for line in told(limited)), told(limited)


# --- runs that are not finished


SUMS = ("documents", "tokens", "null_rows", "empty_rows")


def unfinish(out: Path, sources: int) -> None:
    """Take the jobs of all but the first sources away, and the join."""

    def change(manifest: Json) -> None:
        del manifest["jobs"][sources:]
        kept = [line for line in manifest["shards"] if int(line["name"].split("_")[2]) < sources]
        for line in manifest["shards"]:
            if line not in kept:
                (out / line["name"]).unlink()
                index_of(out, line["name"]).unlink()
        manifest["shards"] = kept
        val = sum(line["split"] == "val" for line in kept)
        sums = {name: sum(job[name] for job in manifest["jobs"]) for name in SUMS}
        manifest["headline"].update(
            complete=False, jobs_done=sources, train_shards=len(kept) - val, val_shards=val, **sums
        )

    edit(out, change)


@pytest.mark.parametrize("kind", [BEFORE, AFTER], ids=str)
def test_a_run_that_is_not_finished_is_told_once(run: Run, kind: Kind, tmp_path: Path) -> None:
    out = copy(run(kind), tmp_path)
    unfinish(out, 5)
    assert_told(out, "manifest.json: the run is not finished: 5 of 9 jobs; run the same command again")


def test_joined_shards_wait_for_a_job_that_is_done_again(after: Path) -> None:
    """As after a shard was damaged, and its source was gone when the same command was run again."""
    edit(after, lambda manifest: manifest["jobs"].pop(2))
    edit(after, lambda manifest: manifest["headline"].update(complete=False, jobs_done=8))
    sums = {name: sum(job[name] for job in read_manifest(after)["jobs"]) for name in SUMS}
    edit(after, lambda manifest: manifest["headline"].update(sums))
    assert_told(after, "the run is not finished: 8 of 9 jobs")


def test_a_join_that_is_not_finished_is_told_once(after: Path) -> None:
    (after / "t_train_00009_001.bin").unlink()
    index_of(after, "t_train_00009_001.bin").unlink()
    edit(after, lambda m: m["shards"].remove(line_of(m, "t_train_00009_001.bin")))
    edit(after, lambda m: m["headline"].update(complete=False, train_shards=12))
    assert_told(after, "the run is not finished: 9 of 9 jobs, 2 of 3 joined token shards")


def test_what_there_is_of_an_unfinished_run_is_proven(before: Path) -> None:
    unfinish(before, 5)
    tokens_of(before, "t_train_00004_000.bin")[3] = EOT
    seal(before)
    edit(before, lambda manifest: job_of(manifest, 1).update(tokens=355, tail_tokens=35, text_bytes=351))
    assert_told(
        before,
        "the run is not finished: 5 of 9 jobs",
        "the headline's tokens is",
        "index/t_train_00004_000.docs: 1 documents are missing, the first at token 3",
    )


def test_a_run_with_a_broken_source_is_told(tmp_path: Path) -> None:
    write_sources(tmp_path / "sources", {"good": of(100, 100)})
    (tmp_path / "sources" / "bad.parquet").write_bytes(b"PAR1 nonsense PAR1")
    assert not convert(tmp_path / "sources", tmp_path / "out", AFTER).complete
    assert_told(tmp_path / "out", "manifest.json: the run is not finished: 1 of 2 jobs")


# --- other things in the folder


def test_files_that_the_manifest_does_not_know_are_told(before: Path) -> None:
    for stray in ("t_train_00009_003.bin", "t_val_000000.bin", "index/t_train_00009_003.docs"):
        (before / stray).write_bytes(b"")
    for harmless in ("notes.txt", "u_train_00009_003.bin", "index/notes.txt", "t_train_x.bin"):
        (before / harmless).write_bytes(b"")
    assert_told(
        before,
        "t_train_00009_003.bin: is not in the run manifest",
        "t_val_000000.bin: is not in the run manifest",
        "index/t_train_00009_003.docs: is not in the run manifest",
    )


def test_temporary_files_are_told_unless_somebody_is_at_work(whole: Path) -> None:
    folder = RunFolder(whole)
    (folder.temporary / "litter").write_bytes(b"")
    (whole / "t_train_00009_003.bin").write_bytes(b"")
    with Lock(folder, "session-7"):
        assert_told(whole, ".fwconvert: a session is at work here, so nothing is final: pid")
    assert_told(
        whole,
        ".fwconvert/temporary/litter: was left behind by a crash",
        "t_train_00009_003.bin: is not in the run manifest",
    )


def test_a_receipt_that_is_damaged_is_told(whole: Path) -> None:
    folder = RunFolder(whole)
    path = folder.receipt(names.job_key("8-short.parquet"))
    path.write_bytes(path.read_bytes().replace(b'"rows":3', b'"rows":4'))
    join = folder.join("t_train_00009_002.bin")
    join.write_bytes(b"{}")
    assert_told(
        whole,
        f".fwconvert/receipts/{path.name}: a receipt is damaged: its digest does not fit",
        f".fwconvert/joins/{join.name}: this file is not a readable record",
        "manifest.json: the job 8-short.parquet is not as its receipt says",
        "manifest.json: the token shard t_train_00009_002.bin is not as its receipt says",
    )


def test_a_manifest_that_is_not_what_its_receipts_say_is_told(whole: Path) -> None:
    edit(whole, lambda manifest: job_of(manifest, 2).update(sha256="0" * 64))
    entries_of(whole, "t_train_00000_001.bin")["row"][0] = 2
    seal(whole)
    assert_told(
        whole,
        "manifest.json: the job 2-all-tail.parquet is not as its receipt says",
        "manifest.json: the token shard t_train_00000_001.bin is not as its receipt says",
    )


def test_looking_changes_nothing(whole: Path) -> None:
    def state() -> dict[str, bytes]:
        return {path.as_posix(): path.read_bytes() for path in whole.rglob("*") if path.is_file()}

    earlier = state()
    verify(whole)
    assert state() == earlier
