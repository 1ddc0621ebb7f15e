"""The plan of a run as it is saved: the recipe with all its sources.

It is what makes a folder belong to a recipe. It changes only in what the
recipe's id does not count: the size of a source that nobody pinned, when a
damaged file was replaced by a good copy before it was converted. A folder in
which nothing was made belongs to nobody yet.

A plan that is lost or damaged is made again from what else is there: the run
manifest has the same recipe, and each receipt the recipe's id.
"""

from pathlib import Path

import msgspec

from fwconvert import files, records
from fwconvert.errors import FwconvertError, ManifestError, UsageError, message
from fwconvert.recipes import Recipe, Rules, SourceShard
from fwconvert.records import Record
from fwconvert.store import atomic, layout, run_manifest
from fwconvert.store.folder import RunFolder
from fwconvert.store.receipts import Receipt


class SavedPlan(Record, frozen=True, tag="fwconvert plan 1"):
    """The recipe of a run."""

    recipe_id: str
    recipe: Recipe


def save_plan(folder: RunFolder, recipe: Recipe) -> None:
    """Save the plan, unless it is saved already; that of a run of another recipe is never overwritten."""
    before, recipe = _owner(folder, recipe), adopt(folder, recipe)
    if before is not None and before.recipe_id != recipe.recipe_id:  # A first try that made nothing.
        for left in (folder.quarantine, folder.tails):
            atomic.sweep(left)
    content = records.encode(SavedPlan(recipe.recipe_id, recipe)) + b"\n"
    if files.holds(folder.plan, content):
        return
    if before is None and not records.can_be_read(content):
        raise UsageError(
            message(
                "these are more sources than a run can keep records of",
                "convert some of them at a time, each time into another --out",
                sources=f"{len(recipe.source.files):,}",
            )
        )
    folder.write(folder.plan, content)


def read_plan(folder: RunFolder) -> Recipe:
    """Return the recipe of a run, or raise UsageError if the folder holds none."""
    saved = _owner(folder)
    if saved is None:
        raise UsageError(
            message("this folder is not a run of fwconvert", "name the folder of a run", folder=folder.path)
        )
    return saved.recipe.known_as(saved.recipe_id)


def known_sources(folder: RunFolder, recipe: Recipe) -> tuple[SourceShard, ...] | None:
    """Return the sources that a run of the same version has kept, or None."""
    owner = _owner(folder)
    if owner is None:
        return None
    saved, wanted = owner.recipe.source, recipe.source
    same = (saved.dataset, saved.revision) == (wanted.dataset, wanted.revision)
    # A plan that was made again from the run manifest does not know the folder.
    below = f"{wanted.folder}/" if wanted.folder else ""
    known = saved.folder == wanted.folder or all(file.path.startswith(below) for file in saved.files)
    return saved.files if same and known else None


def adopt(folder: RunFolder, recipe: Recipe) -> Recipe:
    """Return the recipe as the folder has it; raise UsageError if the folder belongs to something else.

    What an earlier version decided for a run stays: the recipe's id, and how many
    digits the numbers of blocks have.
    """
    saved = _owner(folder, recipe)
    if saved is None:
        _refuse_foreign_shards(folder, recipe)
        return recipe
    rules = msgspec.structs.replace(recipe.rules, block_digits=saved.recipe.rules.block_digits)
    same = Recipe(recipe.source, rules).at(recipe.root)
    if same.recipe_id == saved.recipe.recipe_id:
        return same.known_as(saved.recipe_id)
    if _is_unused(folder, saved.recipe):
        _refuse_foreign_shards(folder, recipe)
        return recipe
    differences = _differences(saved.recipe, recipe)
    back = ["put the missing sources back"] if "sources_missing_now" in differences else []
    raise UsageError(
        message(
            "this folder was made by another recipe",
            *back,
            "choose another --out, or give the same options as before",
            folder=folder.path,
            **differences,
        )
    )


def has_plan(folder: RunFolder) -> bool:
    """Tell whether the plan itself is there and can be read."""
    try:
        return folder.plan.is_file() and bool(_read(folder))
    except FwconvertError:
        return False


def _is_unused(folder: RunFolder, recipe: Recipe) -> bool:
    """Tell whether nothing was made of a recipe yet: no receipt, and no file under the name of an output."""
    if any(True for place in (folder.receipts, folder.joins) for _ in records.names_in(place)):
        return False
    return not any(layout.owner(recipe.rules, entry.name) for entry in folder.path.iterdir())


def _owner(folder: RunFolder, wanted: Recipe | None = None) -> SavedPlan | None:
    """Return the plan of the folder, if need be as its other records have it; None if nobody claims it.

    Receipts alone tell no recipe, but whether they are of the one that is `wanted`.
    """
    try:
        if folder.plan.is_file():
            return _read(folder)
        damaged = None
    except OSError as error:  # For example a name that is too long.
        reason = error.strerror
        raise UsageError(message("--out cannot be used", given=folder.path, reason=reason)) from error
    except ManifestError as error:
        damaged = error
    receipts = _receipt_ids(folder)
    for told in (_of_manifest(folder), None if wanted is None else _of_recipe(wanted, receipts)):
        if told is not None and told.recipe_id in receipts:
            return told
    if damaged is not None and (wanted is None or receipts):
        raise _lost(damaged)
    return None


def _of_manifest(folder: RunFolder) -> SavedPlan | None:
    try:
        manifest = run_manifest.read(folder)
        told = SavedPlan(manifest.recipe_id, manifest.recipe())
        told.recipe.source.check()
    except FwconvertError:
        return None
    return told if told.recipe_id in told.recipe.ids else None


def _of_recipe(wanted: Recipe, receipts: set[str]) -> SavedPlan | None:
    known = next((one for one in wanted.ids if one in receipts), None)
    return None if known is None else SavedPlan(known, wanted)


def _receipt_ids(folder: RunFolder) -> set[str]:
    """Return the ids of the recipes that the readable receipts are of."""
    found = set()
    for name in records.names_in(folder.receipts):
        try:
            found.add(records.read(folder.receipts / name, Receipt).recipe_id)
        except ManifestError:
            continue
    return found


def _lost(damaged: ManifestError) -> ManifestError:
    advice = "run the command that made this run: the plan is made again if the receipts fit"
    return ManifestError(f"{damaged}\n  -> {advice}\n  -> or remove the folder to start over")


def _refuse_foreign_shards(folder: RunFolder, recipe: Recipe) -> None:
    entries = folder.path.iterdir() if folder.path.is_dir() else iter(())
    foreign = next((entry.name for entry in entries if _is_taken_for_ours(recipe.rules, entry)), None)
    if folder.path.exists() and not folder.path.is_dir():
        raise UsageError(message("--out is a file, not a folder", "choose another --out", given=folder.path))
    if foreign is not None:
        raise UsageError(
            message(
                "this folder holds token shards of something else",
                "choose another --out, or another --name",
                "if they are of this recipe: their records, the folder .fwconvert, are missing",
                folder=folder.path,
                file=foreign,
            )
        )


def _is_taken_for_ours(rules: Rules, entry: Path) -> bool:
    looks_so = layout.owner(rules, entry.name) is not None or layout.is_served(rules, entry.name)
    return looks_so and not entry.is_dir()


def _differences(saved: Recipe, wanted: Recipe) -> dict[str, object]:
    """Return the fields that differ, as lines for a message."""
    lines: dict[str, object] = {}
    for name in saved.rules.__struct_fields__:
        if name == "block_digits":  # Nobody chooses it: a folder keeps its own.
            continue
        old, new = getattr(saved.rules, name), getattr(wanted.rules, name)
        if old != new:
            lines |= {f"{name}_in_folder": old, f"{name}_in_command": new}
    if (saved.source.dataset, saved.source.revision) != (wanted.source.dataset, wanted.source.revision):
        lines["source_in_folder"] = f"{saved.source.dataset} {saved.source.revision}"
        lines["source_in_command"] = f"{wanted.source.dataset} {wanted.source.revision}"
    return lines | _source_differences(saved, wanted)


def _source_differences(saved: Recipe, wanted: Recipe) -> dict[str, object]:
    old = {file.path: file for file in saved.source.files}
    new = {file.path: file for file in wanted.source.files}
    groups = {
        "sources_missing_now": [path for path in old if path not in new],
        "sources_new": [path for path in new if path not in old],
        "sources_in_another_order": [*new] if [*old] != [*new] and sorted(old) == sorted(new) else [],
        "sources_changed": [path for path in old if path in new and old[path] != new[path]],
    }
    return {name: _some(paths) for name, paths in groups.items() if paths}


def _some(paths: list[str]) -> str:
    shown = ", ".join(paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"


def _read(folder: RunFolder) -> SavedPlan:
    saved = records.read(folder.plan, SavedPlan, lambda: run_manifest.files_described(folder))
    if saved.recipe_id not in saved.recipe.ids:
        raise ManifestError(message("a plan is damaged: its recipe has another recipe_id", file=folder.plan))
    return saved
