"""An export is a conversion: its bytes are those of a direct one, and of the naive converter."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus
import naive
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runner
from runner import PRIVATE, Notices, shards, tree

import fwconvert
from fwconvert import records
from fwconvert.cli import main
from fwconvert.errors import FwconvertError, ManifestError, UsageError
from fwconvert.options import Options
from fwconvert.sources import catalog, pin

BASE: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 1000}
CHANGES: list[dict[str, Any]] = [
    {"layout": "contiguous"},
    {"layout": "independent", "eot": "after", "shard_tokens": 777},
    {"eot": "before", "shard_tokens": 499, "val_tokens": 3, "name": "small"},
    {"eot": "after", "layout": "contiguous", "shard_tokens": 7000, "val_tokens": 0, "last": "drop"},
    {"layout": "contiguous", "shard_tokens": 633, "val_tokens": 5000, "last": "keep", "name": "n.2"},
    {"eot": "before", "layout": "independent", "shard_tokens": 15_000},
]
RUNS: dict[str, dict[str, Any]] = {
    "independent, before": {},
    # One full shard, which takes in all tails.
    "independent, after": {"eot": "after", "shard_tokens": 20_000, "val_tokens": 0},
    "contiguous, before": {"layout": "contiguous", "shard_tokens": 1500, "val_tokens": 100, "last": "keep"},
    "contiguous, after": {"layout": "contiguous", "eot": "after", "shard_tokens": 10**6},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    corpus.tiny(folder / "tiny")
    return corpus.varied(folder)


@pytest.fixture(scope="module")
def run_of(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a finished run with these choices; made once."""
    made: dict[str, Path] = {}

    def find(**choices: Any) -> Path:
        key = json.dumps(choices, sort_keys=True)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("direct") / "run"
            assert runner.convert(source, made[key], **{**BASE, **choices}).complete
        return made[key]

    return find


def export(run: Path, out: Path, notices: Notices | None = None, **changes: Any) -> fwconvert.Result:
    return fwconvert.export(run, out, Options(workers=1), observer=notices, **changes)


def merged(old: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return what a direct conversion must be asked for: one validation shard stays one."""
    return {**BASE, **old, **changes}


# Each change from a run of each layout.
PAIRS = [
    pytest.param(name, changes, id=f"{name} to {','.join(map(str, changes.values()))}")
    for one, name in enumerate(RUNS)
    for other, changes in enumerate(CHANGES)
    if (one + other) % 2 == 0
]


@pytest.mark.parametrize(("name", "changes"), PAIRS)
@pytest.mark.xdist_group("export")
def test_an_export_is_what_a_conversion_gives(
    name: str,
    changes: dict[str, Any],
    run_of: Callable[..., Path],
    source: Path,
    tmp_path: Path,
) -> None:
    old = RUNS[name]
    wanted = merged(old, changes)
    direct = run_of(**{name: value for name, value in wanted.items() if BASE.get(name) != value})

    result = export(run_of(**old), tmp_path / "out", **changes)

    assert result.complete
    assert tree(tmp_path / "out") == tree(direct)
    assert runner.litter(tmp_path / "out") == [] or wanted.get("last") == "drop"
    naive.convert(source, tmp_path / "naive", **{"val_tokens": wanted["shard_tokens"], **wanted})
    assert shards(tmp_path / "out") == shards(tmp_path / "naive")


@pytest.mark.parametrize("old", [{"shard_tokens": 7}, {"layout": "contiguous", "eot": "after"}])
def test_the_smallest_shards_come_out_the_same(old: dict[str, Any], tmp_path: Path) -> None:
    source = corpus.tiny(tmp_path / "source")
    wanted: dict[str, Any] = {"layout": "independent", "eot": "before", "shard_tokens": 1, "val_tokens": 2}
    runner.convert(source, tmp_path / "run", **{**BASE, **old})

    export(tmp_path / "run", tmp_path / "out", **wanted)

    naive.convert(source, tmp_path / "naive", tokenizer="bytes", **wanted)
    assert shards(tmp_path / "out") == shards(tmp_path / "naive")
    assert len(shards(tmp_path / "naive")) > 100


@pytest.mark.parametrize("tokenizer", ["gpt2", "cl100k_base"])
def test_real_tokenizers_come_out_the_same(tokenizer: str, source: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"layout": "contiguous", "eot": "after"}
    for name, choices in {"run": {}, "direct": changes}.items():
        runner.convert(source, tmp_path / name, tokenizer=tokenizer, shard_tokens=500, **choices)

    assert export(tmp_path / "run", tmp_path / "out", **changes).complete
    assert tree(tmp_path / "out") == tree(tmp_path / "direct")


FORMATS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"format": "npy"}),
    ({}, {"format": "raw", "val_tokens": 900}),
    ({"layout": "contiguous"}, {"format": "megatron"}),
    ({"eot": "after"}, {"format": "datatrove", "shard_tokens": 3000}),
    ({"format": "megatron"}, {"format": "llmc", "last": "keep"}),
    ({"format": "npy", "eot": "after"}, {"format": "datatrove", "eot": "before"}),
    ({}, {"format": "nemo"}),
    ({"format": "nemo"}, {"format": "parquet"}),
    ({"format": "parquet"}, {"format": "mds", "sequence_length": 64}),
    ({"format": "mds", "sequence_length": 64}, {"format": "litdata"}),
    ({"format": "litdata"}, {"format": "llmc"}),
]


@pytest.mark.parametrize(("old", "changes"), FORMATS, ids=str)
@pytest.mark.xdist_group("export")
def test_another_format_is_what_a_conversion_gives(
    old: dict[str, Any], changes: dict[str, Any], run_of: Callable[..., Path], source: Path, tmp_path: Path
) -> None:
    wanted = {name: value for name, value in {**BASE, **old, **changes}.items() if name != "eot"}
    if "eot" in changes:  # Otherwise it is that of the format.
        wanted["eot"] = changes["eot"]
    if changes["format"] == "raw":  # One stream has no shards.
        del wanted["shard_tokens"]
    if changes["format"] != "mds":
        wanted.pop("sequence_length", None)
    assert runner.convert(source, tmp_path / "direct", **wanted).complete

    assert export(run_of(**old), tmp_path / "out", **changes).complete

    assert tree(tmp_path / "out") == tree(tmp_path / "direct")
    assert main(["verify", str(tmp_path / "out")]) == 0


CHOSEN: list[dict[str, Any]] = [
    {"limit_tokens": 9999},
    {"limit_documents": 50, "layout": "contiguous"},
    {"limit_tokens": 12_345, "last": "keep", "eot": "after"},
]


@pytest.mark.parametrize("chosen", CHOSEN, ids=str)
@pytest.mark.xdist_group("export")
def test_a_limited_run_can_be_exported(
    chosen: dict[str, Any], run_of: Callable[..., Path], source: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"shard_tokens": 800, "layout": "independent"}
    wanted = {**BASE, **chosen, **changes}
    assert runner.convert(source, tmp_path / "direct", **wanted).complete

    assert export(run_of(**chosen), tmp_path / "out", **changes).complete

    assert tree(tmp_path / "out") == tree(tmp_path / "direct")
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_a_limited_run_with_more_tokens_than_its_text_promises_can_be_exported(tmp_path: Path) -> None:
    """By the size of its text the first source would not reach the limit, so that the second would count."""
    corpus.write(tmp_path / "source/a.parquet", ["1 2 3 4 5 6 7 8 9"] * 5)
    corpus.write(tmp_path / "source/b.parquet", ["hello world again"] * 500)
    words = {"limit_tokens": 40, "val_tokens": 0, "workers": 1}
    for name, more in (("run", {}), ("direct", {"format": "npy"})):
        runner.assert_tidy_end(runner.run(tmp_path / "source", tmp_path / name, **words, **more), 0)
    for _ in range(2):
        ended = runner.command_line("export", tmp_path / "run", "--format", "npy", "-o", tmp_path / "out")
        runner.assert_tidy_end(ended, 0)
    assert tree(tmp_path / "out") == tree(tmp_path / "direct")


def test_an_export_goes_on_with_a_conversion_that_was_killed_while_a_source_was_on_trial(
    tmp_path: Path,
) -> None:
    """The first source has one text again and again: by its footer it is small, and in truth it has all.

    So the second is converted on trial, and done long before.
    """
    corpus.write(tmp_path / "source/a.parquet", ["0123456789" * 2000] * 2000)
    corpus.write(tmp_path / "source/b.parquet", ["hello world"] * 5)
    words: dict[str, Any] = {**BASE, "shard_tokens": 10**6, "limit_tokens": 20 * 10**6, "workers": 2}
    for name, more in (("run", {}), ("direct", {"format": "npy"})):
        runner.assert_tidy_end(runner.run(tmp_path / "source", tmp_path / name, **words, **more), 0)
    half = tmp_path / "half"
    receipts = half / PRIVATE / "receipts"
    for _ in range(10):  # In case the first is quicker than the kill.
        with runner.running(tmp_path / "source", half, **words, format="npy") as process:
            runner.wait_until(lambda: runner.steps(half), process)
            runner.kill_all(process.pid)
            process.wait(runner.PATIENCE)
        if [path.name.startswith("b.parquet") for path in receipts.iterdir()] == [True]:
            break
        shutil.rmtree(half)
    assert len([*receipts.iterdir()]) == 1, "no kill fell while the second source was on trial"

    for _ in range(2):
        ended = runner.command_line("export", tmp_path / "run", "--format", "npy", "-o", half)
        runner.assert_tidy_end(ended, 0)
    assert tree(half) == tree(tmp_path / "direct")


def test_a_document_that_is_cut_cannot_change_sides(run_of: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--eot before"):
        export(run_of(limit_tokens=9999), tmp_path / "out", eot="after")
    assert not (tmp_path / "out").exists()


def test_one_stream_becomes_shards_again(run_of: Callable[..., Path], tmp_path: Path) -> None:
    export(run_of(), tmp_path / "raw", format="raw", val_tokens=1000)
    export(tmp_path / "raw", tmp_path / "back", format="llmc", shard_tokens=1000)
    assert tree(tmp_path / "back") == tree(run_of())


def test_a_stream_without_validation_becomes_shards_without_it(source: Path, tmp_path: Path) -> None:
    raw, new, direct = (tmp_path / name for name in ("raw", "new", "direct"))
    words = ["--source", str(source), "--tokenizer", "bytes", "--workers", "1", "--val-tokens", "0"]
    assert not runner.command_line(*words, "--out", raw, "--format", "raw").returncode
    for _ in range(2):
        made = runner.command_line("export", raw, "-o", new, "--format", "llmc", "--shard-tokens", "300")
        assert not made.returncode, made.stderr
    assert not runner.command_line(*words, "--out", direct, "--shard-tokens", "300").returncode

    assert runner.tree(new) == runner.tree(direct)


def test_an_export_of_an_export_leads_back(run_of: Callable[..., Path], tmp_path: Path) -> None:
    there: dict[str, Any] = {
        "eot": "after",
        "layout": "contiguous",
        "shard_tokens": 3700,
        "val_tokens": 0,
        "name": "x",
    }
    export(run_of(), tmp_path / "there", **there)
    back: dict[str, Any] = {
        "eot": "before",
        "layout": "independent",
        "shard_tokens": 1000,
        "val_tokens": 1000,
    }
    export(tmp_path / "there", tmp_path / "back", name="edu_fineweb", **back)

    assert tree(tmp_path / "back") == tree(run_of())


def test_workers_share_an_export(run_of: Callable[..., Path], tmp_path: Path) -> None:
    exported = fwconvert.export(run_of(), tmp_path / "out", Options(workers=3), layout="contiguous")

    assert exported.complete
    assert tree(tmp_path / "out") == tree(run_of(layout="contiguous"))


def test_a_pinned_version_keeps_its_recipe(source: Path, tmp_path: Path) -> None:
    manifest, _ = catalog.local(str(source))
    pinned = pin.pin(source)
    assert pinned.files != manifest.files
    pin.write(pinned, tmp_path / "mine.json")
    choices = {**BASE, "version": str(tmp_path / "mine.json")}
    runner.convert(source, tmp_path / "run", **choices)
    runner.convert(source, tmp_path / "direct", **choices, eot="after")

    export(tmp_path / "run", tmp_path / "out", eot="after")

    assert tree(tmp_path / "out") == tree(tmp_path / "direct")


def test_another_text_column_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    pq.write_table(pa.table({"body": corpus.documents(0, 9)}), tmp_path / "source/a.parquet")
    for name, size in {"run": 100, "direct": 70}.items():
        chosen: dict[str, Any] = {
            "text_column": "body",
            "tokenizer": "bytes",
            "shard_tokens": size,
            "val_tokens": 0,
        }
        runner.convert(tmp_path / "source", tmp_path / name, **chosen)

    export(tmp_path / "run", tmp_path / "out", shard_tokens=70)

    assert tree(tmp_path / "out") == tree(tmp_path / "direct")


def test_a_copy_without_private_files_can_be_exported(run_of: Callable[..., Path], tmp_path: Path) -> None:
    shutil.copytree(run_of(), tmp_path / "copy", ignore=shutil.ignore_patterns(PRIVATE))

    assert export(tmp_path / "copy", tmp_path / "out", layout="contiguous").complete
    assert tree(tmp_path / "out") == tree(run_of(layout="contiguous"))
    assert not (tmp_path / "copy" / PRIVATE).exists()


def test_the_run_is_left_as_it_is(run_of: Callable[..., Path], tmp_path: Path) -> None:
    shutil.copytree(run_of(), tmp_path / "run")
    before = runner.state(tmp_path / "run")

    export(tmp_path / "run", tmp_path / "out", eot="after")

    assert runner.state(tmp_path / "run") == before


def test_a_second_export_changes_nothing(run_of: Callable[..., Path], tmp_path: Path) -> None:
    export(run_of(), tmp_path / "out", eot="after")
    before = runner.state(tmp_path / "out")

    assert export(run_of(), tmp_path / "out", eot="after").untouched
    assert runner.state(tmp_path / "out") == before


def test_another_export_into_the_same_folder_is_refused(run_of: Callable[..., Path], tmp_path: Path) -> None:
    export(run_of(), tmp_path / "out", eot="after")

    with pytest.raises(UsageError, match="another recipe"):
        export(run_of(), tmp_path / "out", eot="before")


def test_a_conversion_goes_on_with_an_export_and_the_other_way_round(
    run_of: Callable[..., Path], source: Path, tmp_path: Path
) -> None:
    # Both have the same recipe, so each finds the other's work done.
    choices = {**BASE, "layout": "contiguous"}
    export(run_of(), tmp_path / "out", layout="contiguous")
    assert runner.convert(source, tmp_path / "out", **choices).untouched

    runner.convert(source, tmp_path / "half", **choices)
    for receipt in sorted((tmp_path / "half" / PRIVATE / "receipts").iterdir())[::2]:
        receipt.unlink()
    for join in (tmp_path / "half" / PRIVATE / "joins").iterdir():
        join.unlink()
    assert export(run_of(), tmp_path / "half", layout="contiguous").complete
    assert tree(tmp_path / "half") == tree(tmp_path / "out")


def test_a_source_that_was_another_is_not_mixed_in(tmp_path: Path) -> None:
    for name, words in {"one": "first", "other": "other"}.items():
        corpus.write(tmp_path / name / "a.parquet", [words])
        corpus.write(tmp_path / name / "b.parquet", ["the same"])
        runner.convert(tmp_path / name, tmp_path / f"{name} run", **BASE)
    export(tmp_path / "one run", tmp_path / "out", eot="after")

    with pytest.raises(UsageError, match="changed since it was converted"):
        export(tmp_path / "other run", tmp_path / "out", eot="after")


def test_an_unfinished_run_is_refused_and_says_what_is_missing(tmp_path: Path) -> None:
    corpus.write(tmp_path / "source/a.parquet", ["fine"])
    (tmp_path / "source/b.parquet").write_bytes(b"not parquet")
    assert not runner.convert(tmp_path / "source", tmp_path / "run", **BASE).complete

    with pytest.raises(UsageError, match=r"only a finished run.*\n.*\n.*1 of 2 sources\n.*b\.parquet"):
        export(tmp_path / "run", tmp_path / "out", eot="after")
    assert not (tmp_path / "out").exists()


def test_a_run_that_dropped_tokens_is_refused(run_of: Callable[..., Path], tmp_path: Path) -> None:
    run = run_of(last="drop")
    dropped = json.loads((run / "manifest.json").read_text())["headline"]["dropped_tokens"]
    assert dropped > 0
    with pytest.raises(UsageError, match=rf"dropped[\s\S]*{dropped} tokens"):
        export(run, tmp_path / "out", last="keep")
    assert not (tmp_path / "out").exists()


def test_a_run_that_drops_nothing_although_it_would_is_exported(tmp_path: Path) -> None:
    corpus.write(tmp_path / "source/a.parquet", ["1234", "123456789"])
    chosen: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 5, "val_tokens": 0}
    for name, last in {"run": "drop", "direct": "keep"}.items():
        runner.convert(tmp_path / "source", tmp_path / name, last=last, **chosen)

    export(tmp_path / "run", tmp_path / "out", last="keep")

    assert tree(tmp_path / "out") == tree(tmp_path / "direct")


@pytest.mark.parametrize("place", ["", "inner", "inner/deep", "../run", "index"])
def test_an_export_inside_its_run_is_refused(place: str, run_of: Callable[..., Path], tmp_path: Path) -> None:
    shutil.copytree(run_of(), tmp_path / "run")
    before = runner.state(tmp_path / "run")

    with pytest.raises(UsageError, match="inside the run"):
        export(tmp_path / "run", tmp_path / "run" / place, eot="after")
    assert runner.state(tmp_path / "run") == before


def test_a_link_into_the_run_is_inside_it_too(run_of: Callable[..., Path], tmp_path: Path) -> None:
    shutil.copytree(run_of(), tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")

    with pytest.raises(UsageError, match="inside the run"):
        export(tmp_path / "run", tmp_path / "link" / "out", eot="after")


def test_a_damaged_shard_costs_its_source_alone_and_is_mended_by_a_good_copy(
    run_of: Callable[..., Path], tmp_path: Path
) -> None:
    shutil.copytree(run_of(), tmp_path / "run")
    damaged = tmp_path / "run" / "edu_fineweb_train_00003_002.bin"
    good = damaged.read_bytes()
    damaged.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))

    result = export(tmp_path / "run", tmp_path / "out", layout="contiguous")

    assert not result.complete
    (failed,) = result.failed
    assert failed.path == "03.parquet"
    assert "edu_fineweb_train_00003_002.bin" in failed.reason
    assert "sha256" in failed.reason
    damaged.write_bytes(good)
    assert export(tmp_path / "run", tmp_path / "out", layout="contiguous").complete
    assert tree(tmp_path / "out") == tree(run_of(layout="contiguous"))


def _shard(lines: list[Any], name: str) -> Any:
    return next(line for line in lines if line["name"] == name)


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a job has more tokens": lambda m: m["jobs"][0].update(tokens=m["jobs"][0]["tokens"] + 1),
    "a job has fewer documents": lambda m: m["jobs"][0].update(documents=1),
    "a shard is missing": lambda m: m["shards"].pop(3),
    "a shard stands twice": lambda m: m["shards"].insert(3, m["shards"][3]),
    "a shard is of another source": lambda m: m["shards"][3].update(segments=[[4, 0]]),
    "a shard is of no source": lambda m: m["shards"][3].update(segments=[[400, 0]]),
    "segments go back": lambda m: m["shards"][-4].update(segments=[[5, 7], [6, 0]]),
    "a shard is longer": lambda m: m["shards"][3].update(tokens=1001),
    "two shards have changed places": lambda m: m["shards"][2].update(name=m["shards"][3]["name"]),
    "another recipe": lambda m: m["rules"].update(eot="after"),
    "a name that leads elsewhere": lambda m: m["rules"].update(name="../run"),
    "no shard size": lambda m: m["rules"].update(shard_tokens=0),
    "a source that leads elsewhere": lambda m: m["sources"][0].update(path="../a.parquet"),
    "complete without its jobs": lambda m: m["jobs"].clear(),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_manifest_that_lies_is_refused_before_anything_is_written(
    lie: Callable[[dict[str, Any]], object], run_of: Callable[..., Path], tmp_path: Path
) -> None:
    shutil.copytree(run_of(), tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    lie(manifest)
    path.write_text(json.dumps(manifest))

    with pytest.raises(ManifestError):
        export(tmp_path / "run", tmp_path / "out", layout="contiguous")
    assert not (tmp_path / "out").exists()


def test_documents_that_a_lying_index_moves_are_noticed(run_of: Callable[..., Path], tmp_path: Path) -> None:
    """The hashes fit, because the liar made them fit: what is left is that index and tokens agree."""
    shutil.copytree(run_of(), tmp_path / "run")
    index = tmp_path / "run/index/edu_fineweb_train_00000_001.docs"
    content = bytearray(index.read_bytes())
    content[0] ^= 1
    index.write_bytes(content)
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    line = _shard(manifest["shards"], "edu_fineweb_train_00000_001.bin")
    line["index_sha256"] = runner.sha256(index)
    path.write_text(json.dumps(manifest))

    (failed,) = export(tmp_path / "run", tmp_path / "out", eot="after").failed

    assert failed.path == "00.parquet"
    assert "not what their run manifest says" in failed.reason


def test_a_disk_that_is_too_small_is_refused_with_exact_numbers(
    run_of: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = json.loads((run_of() / "manifest.json").read_text())["headline"]
    monkeypatch.setattr("fwconvert.run.preflight.free_bytes", lambda _: 10)

    with pytest.raises(UsageError, match="not enough disk") as refused:
        export(run_of(), tmp_path / "out", eot="after", shard_tokens=10**6)
    # 2 bytes a token, one header, 8 bytes a document.
    assert f"{head['tokens'] * 2 + 1024 + head['documents'] * 8:,} bytes" in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wrong", [{"shard_tokens": 0}, {"shard_tokens": 2 * 10**9}, {"name": "../x"}, {"val_tokens": -1}]
)
def test_changes_that_cannot_be_made_are_refused(
    wrong: dict[str, Any], run_of: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError):
        export(run_of(), tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def killed(words: list[str], out: Path, steps: int) -> int:
    """Run an export until it has made so many steps, and kill it; return how many it had made then."""
    environment = {**os.environ, "PYTHONPATH": str(runner.REPOSITORY)}
    process = subprocess.Popen(
        [*words, "-o", str(out)], stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
    )
    try:
        runner.wait_until(lambda: runner.steps(out) >= steps, process)
    finally:
        runner.kill_all(process.pid)
        _, said = process.communicate(timeout=runner.PATIENCE)
    assert process.returncode in (-signal.SIGKILL, 0), said
    return runner.steps(out)


def test_a_killed_export_goes_on_to_the_same_bytes(run_of: Callable[..., Path], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fwconvert", "export", str(run_of())]
    words += ["--layout", "contiguous", "--workers", "1", "--quiet"]
    total = runner.steps(run_of(layout="contiguous"))
    for attempt in range(9):  # One that is through before it is killed three times proves nothing.
        out = tmp_path / str(attempt)
        reached = [killed(words, out, steps) for steps in (1, 3, 6, 9, 12, 40)]
        if sum(steps < total for steps in reached) >= 3:
            break
    else:
        raise AssertionError(f"it was never killed in time: {reached} of {total}")

    notices = Notices()
    assert export(run_of(), out, notices, layout="contiguous").complete
    assert tree(out) == tree(run_of(layout="contiguous"))
    assert runner.litter(out) == []


def test_the_command_says_what_it_made_and_verify_is_content(
    run_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(run_of()), "-o", str(tmp_path / "out"), "--eot", "after", "--shard-tokens", "2k"]
    assert main([*words, "--val-tokens", "1_000", "--name", "n", "--workers", "1"]) == 0
    shown = capsys.readouterr()
    assert "done: all 11 sources are converted" in shown.out
    assert "1 for validation" in shown.out
    assert "taking the tokens from" in shown.err
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert main(["status", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main([*words[:4], "--quiet", "--name", "m"]) == 2
    assert "another recipe" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), "-o", str(tmp_path / "out")]) == 2
    assert "no run manifest" in capsys.readouterr().err
    assert main(["export", str(tmp_path)]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_session_that_exports_says_so(run_of: Callable[..., Path], tmp_path: Path) -> None:
    export(run_of(), tmp_path / "out", eot="after")
    (session,) = json.loads((tmp_path / "out/manifest.json").read_text())["sessions"]
    assert session["encoder"] == "exported"


def test_the_folder_of_an_export_belongs_to_the_recipe_of_a_conversion(
    run_of: Callable[..., Path], source: Path, tmp_path: Path
) -> None:
    recipe = fwconvert.recipe(source=str(source), **BASE, eot="after")
    export(run_of(), tmp_path / "out", eot="after")

    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["recipe_id"] == recipe.recipe_id
    assert records.as_builtin(recipe.rules) == manifest["rules"]
    assert issubclass(UsageError, FwconvertError)
