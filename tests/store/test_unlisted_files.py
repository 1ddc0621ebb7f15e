"""What a trainer would read beside the files of a run is found: what the run made goes, the rest is told."""

from pathlib import Path

import pytest
from examples import RULES, SOURCE, rules_with

from fwconvert.recipes import Recipe
from fwconvert.store import run_manifest
from fwconvert.store.local import LocalStore

KEPT = "edu_fineweb_train_00000_000"


def found(folder: Path, recipe: Recipe, listed: set[str]) -> tuple[set[str], set[str]]:
    found = run_manifest.find_unlisted(LocalStore(folder), recipe, listed)
    return {*found.own}, {*found.foreign}


def fill(folder: Path, *groups: set[str]) -> None:
    LocalStore(folder).prepare()
    for name in (name for group in groups for name in group):
        (folder / name).write_text(name)


def test_only_what_this_recipe_makes_is_taken_for_its_own_and_removed(tmp_path: Path) -> None:
    recipe = Recipe(SOURCE, RULES)
    stay = {
        f"{KEPT}.bin", f"index/{KEPT}.docs", "manifest.json", "notes.txt", "index/mine.docs",
        "index/notes.txt", "other_train_00000_001.bin", ".fwconvert/plan.json", ".fwconvert/receipts/a.json",
    }  # fmt: skip
    own = {
        "edu_fineweb_train_00001_000.bin", "edu_fineweb_val_00000_000.bin", "edu_fineweb_train_00002_007.bin",
        "edu_fineweb_train_00000_x000001000.bin", "edu_fineweb_train_00000_1000.bin",
        "index/edu_fineweb_train_00001_000.docs",
    }  # fmt: skip
    # Names of another layout, of a source that there is not, and of a hand: a glob finds them all.
    foreign = {
        "edu_fineweb_train_000001.bin", "edu_fineweb_train_00003_000.bin", "edu_fineweb_val_00001_000.bin",
        "edu_fineweb_train_mine.bin", "edu_fineweb_train_00000_01.bin",
    }  # fmt: skip
    fill(tmp_path, stay, own, foreign)

    assert found(tmp_path, recipe, {f"{KEPT}.bin"}) == (own, foreign)
    store = LocalStore(tmp_path)
    run_manifest.remove_unlisted(store, run_manifest.find_unlisted(store, recipe, {f"{KEPT}.bin"}))
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == stay | foreign


@pytest.mark.parametrize(
    ("rules", "listed", "own", "foreign"),
    [
        (
            {"format": "npy"},
            {f"{KEPT}.npy"},
            {"edu_fineweb_train_00001_000.npy"},
            {"training notes.txt", "edu_fineweb_train_00001_000.bin"},
        ),
        (
            {"format": "megatron"},
            {f"{KEPT}.bin", f"{KEPT}.idx"},
            {"edu_fineweb_train_00001_000.idx"},
            {"edu_fineweb_train_mine.idx"},
        ),
        (
            {"format": "datatrove"},
            {f"{KEPT}.ds", f"{KEPT}.ds.index", f"{KEPT}.ds.metadata"},
            {"edu_fineweb_train_00001_000.ds.metadata"},
            {"anything.ds"},
        ),
        (
            {"format": "raw", "name": "", "layout": "contiguous", "shard_tokens": 0},
            {"train.bin"},
            {"val.bin"},
            set[str](),
        ),
        (
            {"compress": "zstd 1.5.7, level 3"},
            {f"{KEPT}.bin.zst", f"{KEPT}.bin"},
            {"edu_fineweb_train_00001_000.bin.zst"},
            set[str](),
        ),
    ],
    ids=["npy", "megatron", "datatrove", "raw", "zstd"],
)
def test_each_format_has_its_own_idea_of_what_belongs_to_a_run(
    tmp_path: Path, rules: dict[str, object], listed: set[str], own: set[str], foreign: set[str]
) -> None:
    fill(tmp_path, listed, own, foreign, {"notes.txt"})
    shard = min(listed, key=lambda name: (not name.endswith(rules_with(**rules).suffix), name))

    assert found(tmp_path, Recipe(SOURCE, rules_with(**rules)), {shard}) == (own, foreign)
