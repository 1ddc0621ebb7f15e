"""verify: runs with a filter and a limit."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from verified import (
    SIZE,
    SOURCES,
    UNPROVABLE,
    Json,
    assert_change_is_noticed,
    copy,
    edit,
    job_of,
    leaves,
    told,
    write_sources,
)

import fwconvert
from fwconvert.inspection.verify import verify

# Within a document of the fifth source, 4-tail-within-a-document.
LIMIT = sum(len(text.encode()) + 1 for texts in [*SOURCES.values()][:4] for text in texts if text) + 70


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("limited")
    write_sources(base / "sources", SOURCES)
    recipe = fwconvert.recipe(
        source=str(base / "sources"),
        tokenizer="bytes",
        shard_tokens=SIZE,
        eot="after",
        name="t",
        where="text is None or not startswith(text, 'one')",
        limit_tokens=LIMIT - 4,
    )
    assert fwconvert.convert(recipe, base / "out", fwconvert.Options(workers=1)).complete
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
        (lambda m: job_of(m, 0).update(cut=True), "has a document that is cut off, though no limit"),
        (lambda m: job_of(m, 4).update(limited=False), "has a document that is cut off, though no limit"),
        (lambda m: job_of(m, 0).update(filtered_rows=1), "null rows, empty rows and filtered rows add up to"),
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
