"""The saved plan makes a folder belong to a recipe; every other recipe is refused with what differs."""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from examples import CHANGED_RULES, FILES, RECIPE, RULES, SOURCE, recipe_with, rules_with

from fwconvert import records
from fwconvert.errors import FwconvertError, ManifestError, UsageError
from fwconvert.recipes import Recipe, SourceShard
from fwconvert.store import layout, run_manifest
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import Counts, Receipt, Tail
from fwconvert.store.saved_recipe import adopt, read_plan, save_plan


@pytest.fixture
def folder(tmp_path: Path) -> LocalStore:
    """Return the folder of a run of RECIPE in which something was made."""
    folder = LocalStore(tmp_path / "out")
    folder.prepare()
    save_plan(folder, RECIPE)
    (folder.root / "edu_fineweb_train_00000_000.bin").write_bytes(b"tokens")
    (folder.local(layout.RECEIPTS) / "a.json").write_bytes(b"a receipt that cannot be read is one, too")
    return folder


def state(folder: LocalStore) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.root.rglob("*") if path.is_file()}


def test_a_plan_is_read_as_it_was_saved(folder: LocalStore) -> None:
    assert read_plan(folder) == RECIPE
    assert read_plan(folder).recipe_id == RECIPE.recipe_id


def test_the_plan_of_another_recipe_is_never_overwritten(folder: LocalStore) -> None:
    before = state(folder)
    with pytest.raises(UsageError, match="another recipe"):
        save_plan(folder, recipe_with(revision="other"))

    assert state(folder) == before


def test_a_plan_that_is_saved_again_is_not_touched(folder: LocalStore) -> None:
    before = state(folder)
    save_plan(folder, RECIPE)

    assert state(folder) == before


def test_a_plan_follows_the_size_of_a_source_that_nobody_pinned(folder: LocalStore) -> None:
    mended = recipe_with(files=(FILES[0], SourceShard(FILES[1].path, 21)))
    save_plan(folder, mended)

    assert read_plan(folder) == mended


def test_the_same_recipe_is_let_in_and_nothing_is_written(folder: LocalStore) -> None:
    before = state(folder)
    assert adopt(folder, RECIPE) == RECIPE
    adopt(folder, recipe_with(name="the display name does not count"))

    assert state(folder) == before


def test_a_folder_keeps_the_digits_that_it_has(folder: LocalStore) -> None:
    # They once followed from sizes: a source that was mended gave others.
    wanted = Recipe(SOURCE, rules_with(block_digits=4))

    assert adopt(folder, wanted) == RECIPE
    assert adopt(folder, wanted).recipe_id == RECIPE.recipe_id


def test_a_folder_keeps_the_id_that_the_words_of_a_command_line_once_gave(folder: LocalStore) -> None:
    plan = json.loads(folder.local(layout.PLAN).read_bytes())
    plan["recipe"]["rules"]["last"] = "keep"
    files = [[FIRST.path, 10, FIRST.sha256], [SECOND.path]]
    text = json.dumps(["some/dataset", "main", files, plan["recipe"]["rules"]], separators=(",", ":"))
    plan["recipe_id"] = written_out = hashlib.sha256(text.encode()).hexdigest()
    folder.local(layout.PLAN).write_text(json.dumps(plan))

    assert written_out != RECIPE.recipe_id
    assert read_plan(folder).recipe_id == written_out
    assert adopt(folder, RECIPE).recipe_id == written_out
    save_plan(folder, RECIPE)
    assert read_plan(folder).recipe_id == written_out


def test_a_folder_in_which_nothing_was_made_belongs_to_nobody(tmp_path: Path) -> None:
    folder = LocalStore(tmp_path)
    folder.prepare()
    save_plan(folder, recipe_with(revision="a first try"))
    (folder.local(layout.QUARANTINE) / "job.json").write_bytes(b"why it failed")

    save_plan(folder, RECIPE)

    assert read_plan(folder) == RECIPE
    assert not any(folder.local(layout.QUARANTINE).iterdir()), "what failed was of another recipe"


@pytest.mark.parametrize("field", [name for name in RULES.__struct_fields__ if name != "block_digits"])
def test_a_recipe_with_another_rule_is_refused_with_both_values(folder: LocalStore, field: str) -> None:
    before = state(folder)
    with pytest.raises(UsageError) as caught:
        adopt(folder, Recipe(SOURCE, rules_with(**{field: CHANGED_RULES[field]})))

    told = [line.split() for line in str(caught.value).splitlines()]
    words = field.split("_")
    assert [*words, "in", "folder", *str(getattr(RULES, field)).split()] in told
    assert [*words, "in", "command", *str(CHANGED_RULES[field]).split()] in told
    assert sum("command" in line for line in told) == 1  # And what is equal is not mentioned.
    assert str(folder.root) in str(caught.value)
    assert state(folder) == before


FIRST, SECOND = FILES
OTHER_SOURCES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "another dataset": ({"dataset": "other/dataset"}, ["some/dataset main", "other/dataset main"]),
    "another revision": ({"revision": "v2"}, ["some/dataset main", "some/dataset v2"]),
    "a source less": ({"files": (FIRST,)}, ["sources missing now", SECOND.path]),
    "a source more": ({"files": (*FILES, SourceShard("z.parquet", 1))}, ["sources new", "z.parquet"]),
    "another size": (
        {"files": (SourceShard(FIRST.path, 11, FIRST.sha256), SECOND)},
        ["sources changed", FIRST.path],
    ),
    "another hash": ({"files": (SourceShard(FIRST.path, 10, "0"), SECOND)}, ["sources changed", FIRST.path]),
    "many more": (
        {"files": (*FILES, *(SourceShard(f"z{at}.parquet", 1) for at in range(10)))},
        ["z0.parquet, z1.parquet, z2.parquet and 7 more"],
    ),
    "another order": ({"files": (SECOND, FIRST)}, ["order"]),
}


@pytest.mark.parametrize(("changes", "wanted"), OTHER_SOURCES.values(), ids=OTHER_SOURCES.keys())
def test_a_recipe_with_other_sources_is_refused_with_what_differs(
    folder: LocalStore, changes: dict[str, Any], wanted: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        adopt(folder, recipe_with(**changes))

    differences = [line for line in str(caught.value).splitlines() if "source" in line]
    assert differences
    assert all(text in "\n".join(differences) for text in wanted)


@pytest.mark.parametrize("spoil", [b"", b"{}", b"\0" * 100, b'{"format":"fwconvert plan 2"}'])
def test_a_plan_that_cannot_be_read_is_not_overlooked(folder: LocalStore, spoil: bytes) -> None:
    folder.local(layout.PLAN).write_bytes(spoil)

    (folder.local(layout.RECEIPTS) / "a.json").write_bytes(records.encode(receipt_of("another recipe")))
    with pytest.raises(ManifestError, match=r"plan\.json"):
        adopt(folder, RECIPE)
    with pytest.raises(ManifestError, match=r"plan\.json"):
        read_plan(folder)


@pytest.mark.parametrize("spoil", [b"", b"{}", None])
def test_a_plan_that_is_lost_is_made_again_if_the_receipts_fit(
    folder: LocalStore, spoil: bytes | None
) -> None:
    folder.local(layout.PLAN).unlink() if spoil is None else folder.local(layout.PLAN).write_bytes(spoil)
    (folder.local(layout.RECEIPTS) / "a.json").write_bytes(records.encode(receipt_of(RECIPE.recipe_id)))

    save_plan(folder, RECIPE)

    assert read_plan(folder) == RECIPE


def test_a_plan_that_is_lost_is_known_from_the_run_manifest(folder: LocalStore) -> None:
    run_manifest.write(folder, run_manifest.build(RECIPE, {}, {}, (), complete=False))
    (folder.local(layout.RECEIPTS) / "a.json").write_bytes(records.encode(receipt_of(RECIPE.recipe_id)))
    folder.local(layout.PLAN).unlink()

    assert read_plan(folder).recipe_id == RECIPE.recipe_id
    with pytest.raises(UsageError, match="another recipe"):
        adopt(folder, recipe_with(revision="other"))


def receipt_of(recipe_id: str) -> Receipt:
    counts, tail = Counts(0, 0, 0, 0, 0, 0), Tail(0, 0, 0, "", 0, "")
    return Receipt(recipe_id, FIRST.path, 10, "", 0, counts, (), tail, "session")


def test_a_plan_whose_recipe_does_not_fit_its_id_is_not_believed(folder: LocalStore) -> None:
    # A flipped bit, or a hand that meant well: whoever reads this would look for shards of another size.
    plan = json.loads(folder.local(layout.PLAN).read_bytes())
    plan["recipe"]["rules"]["shard_tokens"] += 1
    folder.local(layout.PLAN).write_bytes(json.dumps(plan).encode())

    with pytest.raises(ManifestError, match=r"plan\.json"):
        read_plan(folder)


def test_a_folder_without_a_plan_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="not a run"):
            read_plan(LocalStore(path))


def test_a_new_or_an_empty_or_a_lived_in_folder_is_let_in(tmp_path: Path) -> None:
    adopt(LocalStore(tmp_path / "missing"), RECIPE)
    adopt(LocalStore(tmp_path), RECIPE)
    for name in ("notes.txt", "other_train_000001.bin", "edu_fineweb_train.txt"):
        (tmp_path / name).write_bytes(b"")
    adopt(LocalStore(tmp_path), RECIPE)

    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("name", ["edu_fineweb_val_000000.bin", "edu_fineweb_train_00003_001.bin"])
def test_a_folder_with_shards_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"precious")

    with pytest.raises(UsageError, match=name):
        adopt(LocalStore(tmp_path), RECIPE)
    assert (tmp_path / name).read_bytes() == b"precious"


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(UsageError, match="file, not a folder"):
        adopt(LocalStore(tmp_path / "file"), RECIPE)


def test_a_folder_with_an_impossible_name_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(FwconvertError):
        adopt(LocalStore(tmp_path / ("x" * 300)), RECIPE)


def test_a_recipe_survives_its_way_through_json() -> None:
    again = msgspec.json.decode(msgspec.json.encode(RECIPE), type=Recipe)

    assert again == RECIPE
    assert again.recipe_id == RECIPE.recipe_id
