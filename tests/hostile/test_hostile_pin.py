"""What pin writes, a run takes: a list that cannot be is refused before it is written, in the same words."""

from pathlib import Path
from typing import Any

import bounded
import hub_runs
import pytest
from hostile_server import HostileServer, hub, listing_entry
from hub_server import COMMIT, REPO

ESCAPES = "\x1b]0;owned\x07\x1b[2J" + "a" * 30


def pin(place: Path, listed: list[dict[str, Any]], commit: object = COMMIT) -> bounded.Ended:
    """Pin a dataset with this list at this commit."""
    ways = {
        "/revision/": lambda _, line: line.json({"id": REPO, "sha": commit}),
        "/tree/": lambda _, line: line.json(listed),
    }
    with HostileServer(hub({}, ways)) as server:
        env = hub_runs.environment(server.endpoint)
        return bounded.run("pin", REPO, "-o", place / "pinned.json", env=env)


def assert_taken(place: Path) -> None:
    """Fail unless a command takes the manifest that was written."""
    env = hub_runs.environment("http://127.0.0.1:9")
    words = ["--version", place / "pinned.json", "--out", place / "out", "--tokenizer", "bytes"]
    planned = bounded.run("plan", *words, env=env)
    assert "manifest" not in planned.stderr
    assert "this is what the run needs" in planned.stdout


LISTS: dict[str, list[dict[str, Any]]] = {
    "a name that stands twice": [listing_entry("a.parquet"), listing_entry("a.parquet", b"other")],
    "a size below nothing": [listing_entry("a.parquet", size=-1)],
    "a size that no file has": [listing_entry("a.parquet", size=2**63)],
    "a size that no record has": [listing_entry("a.parquet", size=10**30)],
    "sizes that no disk has": [listing_entry(f"{at}.parquet", size=2**62) for at in range(4)],
    "a name that leads outside": [listing_entry("../a.parquet")],
    "a name that commands a terminal": [listing_entry(f"{ESCAPES}.parquet")],
    "a name without an end": [listing_entry("a/" * 600 + "a.parquet")],
}


@pytest.mark.parametrize("wrong", LISTS)
def test_a_list_that_cannot_be_is_not_pinned(tmp_path: Path, wrong: str) -> None:
    ended = pin(tmp_path, LISTS[wrong])
    assert ended.code == 1, ended
    assert [*tmp_path.iterdir()] == []
    assert "\x1b" not in ended.said


@pytest.mark.parametrize(
    "commit", [ESCAPES, "main", "", "g" * 40, "a" * 39, "a" * 41, "../" * 20, "A" * 40, "a" * 5000, 7, None]
)
def test_a_commit_that_is_none_is_not_pinned(tmp_path: Path, commit: object) -> None:
    ended = pin(tmp_path, [listing_entry("a.parquet")], commit)
    assert ended.code == 1, ended
    assert [*tmp_path.iterdir()] == []
    assert "\x1b" not in ended.said
    assert len(ended.said) < 8_000


def test_names_that_differ_only_for_people_are_pinned_and_taken(tmp_path: Path) -> None:
    names = [
        "a.parquet",
        "A.parquet",
        "\N{LATIN SMALL LETTER E WITH ACUTE}.parquet",
        "e\N{COMBINING ACUTE ACCENT}.parquet",
    ]
    assert pin(tmp_path, [listing_entry(name, name.encode()) for name in names]).code == 0
    assert_taken(tmp_path)


def test_a_large_but_possible_list_is_pinned_and_taken(tmp_path: Path) -> None:
    listed = [listing_entry(f"data/{at:05d}.parquet", size=10**9) for at in range(30_000)]
    assert pin(tmp_path, listed).code == 0
    assert_taken(tmp_path)


@pytest.mark.parametrize("field", ["revision", "folder", "bytes"])
def test_a_manifest_that_pin_would_not_write_is_not_read(tmp_path: Path, field: str) -> None:
    assert pin(tmp_path, [listing_entry("a.parquet", b"abc")]).code == 0
    written = (tmp_path / "pinned.json").read_text()
    wrong = {
        "revision": written.replace(COMMIT, r"\u001b[2J"),
        "folder": written.replace('"folder": ""', '"folder": "../.."'),
        "bytes": written.replace('"bytes":3', f'"bytes":{2**62}'),
    }[field]
    if field == "bytes":
        line = next(line for line in wrong.splitlines() if "a.parquet" in line)
        copies = [line.replace("a.parquet", f"{at}.parquet") for at in range(3)]
        wrong = wrong.replace(line, ",\n".join(copies))
    assert wrong != written
    (tmp_path / "pinned.json").write_text(wrong)
    words = ["--version", tmp_path / "pinned.json", "--out", tmp_path / "out", "--tokenizer", "bytes"]
    ended = bounded.run(*words, env=hub_runs.environment("http://127.0.0.1:9"))
    assert ended.code == 1
    assert "manifest" in ended.stderr
    assert not (tmp_path / "out").exists()
