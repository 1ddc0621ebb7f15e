"""verify: a run manifest that contradicts itself or the files is told, whatever is changed in it."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from verified import (
    AFTER,
    TOKENS,
    UNPROVABLE,
    Json,
    Kind,
    Run,
    assert_change_is_noticed,
    assert_told,
    copy,
    edit,
    job_of,
    leaves,
    line_of,
    told,
)

from fwconvert.errors import ManifestError, UsageError
from fwconvert.inspection.verify import verify


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
        ["a source manifest has a bad entry", "the job 8-short.parquet does not belong to a source",
         "recipe_id",
         "the headline's complete is True, but the lines below give False"],
    ),
    (
        lambda m: m["headline"].update(complete=False),
        ["complete is False", "not finished: 9 of 9 jobs, 3 of 3"],
    ),
    (lambda m: m["headline"].update(jobs=10), ["the headline's jobs is 10, but the lines below give 9"]),
    (lambda m: m["headline"].update(jobs_done=8), ["the headline's jobs_done is 8"]),
    (lambda m: m["headline"].update(train_shards=1), ["the headline's train_shards is 1"]),
    (lambda m: m["headline"].update(val_shards=0), ["the headline's val_shards is 0"]),
    (lambda m: m["headline"].update(documents=22), ["documents is 22, but the lines below give 21"]),
    (
        lambda m: m["headline"].update(tokens=TOKENS + 1),
        [f"tokens is {TOKENS + 1}, but the lines below give"],
    ),
    (lambda m: m["headline"].update(null_rows=0), ["the headline's null_rows is 0"]),
    (lambda m: m["headline"].update(empty_rows=0), ["the headline's empty_rows is 0"]),
    (
        lambda m: job_of(m, 0).update(bytes=1),
        ["the job 0-ends-with-its-shards.parquet read 1 bytes of a source"],
    ),
    (pin, ["the job 8-short.parquet read a source with sha256", "recipe_id"]),
    (
        lambda m: job_of(m, 1).update(rows=5),
        ["has 5 rows, but its documents, null rows and empty rows add up to 4"],
    ),
    (
        lambda m: job_of(m, 1).update(text_bytes=9),
        ["has 354 tokens, which is impossible for 4 documents of 9 bytes"],
    ),
    (lambda m: job_of(m, 1).update(tail_tokens=35), ["has a tail of 35 tokens, but its 354 tokens leave 34"]),
    (swap_jobs, ["the jobs are not in the order of their sources, each once"]),
    (
        rename_job,
        ["the job another.parquet does not belong to a source of this recipe",
         "the headline's complete is True"],
    ),
    (
        lambda m: line_of(m, "t_train_00001_002.bin").update(documents=1),
        ["the token shards have 22 documents, but the jobs have 21",
         "index/t_train_00001_002.docs: has 0 bytes instead of 8"],
    ),
    (
        lambda m: line_of(m, "t_train_00001_002.bin").update(split="val"),
        ["t_train_00001_002.bin: has split val in its line instead of train",
         "the headline's train_shards is 13", "the headline's val_shards is 1"],
    ),
    (
        lambda m: line_of(m, "t_train_00001_002.bin").update(tokens=65),
        [f"the token shards have {TOKENS + 1} tokens, but the jobs have {TOKENS}",
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
         "the headline's complete is True, but the lines below give False",
         "the headline's train_shards is 13, but the lines below give 12",
         "tokens, but the jobs have"],
    ),
    (
        drop_joined_shard,
        ["t_train_00009_002.bin: has no line in the run manifest",
         "t_train_00009_002.bin: is not in the run manifest",
         "index/t_train_00009_002.docs: is not in the run manifest",
         "the headline's complete is True, but the lines below give False",
         "the headline's train_shards is 13, but the lines below give 12",
         "tokens, but the jobs have", "documents, but the jobs have"],
    ),
    (
        rename_shard,
        ["t_train_00001_004.bin: has no line in the run manifest",
         "t_train_00001_005.bin: does not follow from the jobs of this run",
         "t_train_00001_005.bin: is missing", "index/t_train_00001_005.docs: is missing",
         "t_train_00001_004.bin: is not in the run manifest",
         "index/t_train_00001_004.docs: is not in the run manifest",
         "the headline's complete is True"],
    ),
    (
        repeat_shard,
        ["the token shard t_train_00000_001.bin has 2 lines", "the headline's train_shards is 13",
         "tokens, but the jobs have", "documents, but the jobs have"],
    ),
    (
        lambda m: m["shards"].reverse(),
        ["the token shards are not sorted by name"],
    ),
    (
        drop_job,
        ["the headline's complete is True", "the headline's jobs_done is 9", "the headline's documents is 21",
         f"the headline's tokens is {TOKENS}", "tokens, but the jobs have", "documents, but the jobs have"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "wanted"), CONTRADICTIONS, ids=itertools.repeat(""))
def test_a_run_manifest_that_contradicts_itself_is_told(
    before: Path, change: Callable[[Json], object], wanted: list[str]
) -> None:
    edit(before, change)
    assert_told(before, *wanted)


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
