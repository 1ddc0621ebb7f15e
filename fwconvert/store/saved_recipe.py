"""The plan of a run as it is saved: the recipe with all its sources.

It is what makes a folder belong to a recipe. It changes only in what the
recipe's id does not count: the size of a source that nobody pinned, when a
damaged file was replaced by a good copy before it was converted. A folder in
which nothing was made belongs to nobody yet.

A plan that is lost or damaged is made again from what else is there: the run
manifest has the same recipe, and each receipt the recipe's id.
"""

from pathlib import Path
from typing import ClassVar

import msgspec

from fwconvert import records
from fwconvert.errors import FwconvertError, ManifestError, UsageError, message
from fwconvert.recipes import Recipe, SourceShard
from fwconvert.records import Record
from fwconvert.store import base, layout, run_manifest
from fwconvert.store.base import Store
from fwconvert.store.bucket import absolute, is_uri
from fwconvert.store.receipts import Receipt


class Places(Record, frozen=True, tag="fwconvert places 1", omit_defaults=True):
    """Where a run's sources were on this machine: a hint for whoever looks for a document in them later.

    No decision rests on it: sources move.
    """

    # A path has 4096 bytes at the most, and each may be written as six.
    most_bytes: ClassVar[int] = 2**16
    root: str
    # They were fetched and kept there. A rank that is told nothing fetches what it does not find.
    kept: bool = False


class SavedPlan(Record, frozen=True, tag="fwconvert plan 1"):
    """The recipe of a run."""

    recipe_id: str
    recipe: Recipe


def save_plan(store: Store, recipe: Recipe) -> None:
    """Save the plan, unless it is saved already; that of a run of another recipe is never overwritten."""
    before, recipe = _owner(store, recipe), adopt(store, recipe)
    if before is not None and before.recipe_id != recipe.recipe_id:  # A first try that made nothing.
        for left in (layout.QUARANTINE, layout.TAILS, layout.RECEIPTS, layout.JOINS):
            store.clear(left)
    content = records.encode(SavedPlan(recipe.recipe_id, recipe)) + b"\n"
    if base.holds(store, layout.PLAN, content):
        return
    if before is None and not records.can_be_read(content):
        raise UsageError(
            message(
                "a run cannot have this many sources: its records would be too large to read",
                "convert some of them at a time, each time into another --out",
                sources=f"{len(recipe.source.files):,}",
            )
        )
    store.write(layout.PLAN, content)


def read_plan(store: Store) -> Recipe:
    """Return the recipe of a run, or raise UsageError if the folder holds none."""
    saved = _owner(store)
    if saved is None:
        raise UsageError(
            message("this folder is not a run of fwconvert", "name the folder of a run", folder=store.uri)
        )
    return saved.recipe.known_as(saved.recipe_id)


def save_source_root(store: Store, root: Path | str | None, *, kept: bool = False) -> None:
    """Keep where the paths of the sources start from, a folder or an address, if it is known and news."""
    if root is None or not str(root).isprintable():
        return
    content = records.encode(Places(str(absolute(root)), kept)) + b"\n"
    if not base.holds(store, layout.PLACES, content):
        store.write(layout.PLACES, content)


def read_source_root(store: Store) -> Path | str | None:
    """Return where the paths of the sources started from, or None if that is not known."""
    try:
        return _place(base.read_record(store, layout.PLACES, Places).root)
    except ManifestError:
        return None


def named_source_root(store: Store) -> Path | str | None:
    """Return where the sources are that a user has named, or None: then they are fetched from the hub.

    Raises ManifestError if it was named and cannot be read: nothing should be fetched instead.
    """
    if not base.exists(store, layout.PLACES):
        return None
    places = base.read_record(store, layout.PLACES, Places)
    return None if places.kept else _place(places.root)


def _place(root: str) -> Path | str:
    return root if is_uri(root) else Path(root)


def known_sources(store: Store, recipe: Recipe) -> tuple[SourceShard, ...] | None:
    """Return the sources that a run of the same version has kept, or None."""
    owner = _owner(store)
    if owner is None:
        return None
    saved, wanted = owner.recipe.source, recipe.source
    same = (saved.dataset, saved.revision) == (wanted.dataset, wanted.revision)
    # A plan that was made again from the run manifest does not know the folder.
    below = f"{wanted.folder}/" if wanted.folder else ""
    known = saved.folder == wanted.folder or all(file.path.startswith(below) for file in saved.files)
    return saved.files if same and known else None


def adopt(store: Store, recipe: Recipe) -> Recipe:
    """Return the recipe as the folder has it; raise UsageError if the folder belongs to something else.

    What an earlier version decided for a run stays: the recipe's id, and how many
    digits the numbers of blocks have.
    """
    saved = _owner(store, recipe)
    if saved is None:
        _refuse_foreign_shards(store, recipe)
        return recipe
    rules = msgspec.structs.replace(recipe.rules, block_digits=saved.recipe.rules.block_digits)
    same = Recipe(recipe.source, rules).at(recipe.place)
    if same.recipe_id == saved.recipe.recipe_id:
        return same.known_as(saved.recipe_id)
    if _is_unused(store, saved.recipe):
        _refuse_foreign_shards(store, recipe)
        return recipe
    differing = differences(saved.recipe, recipe)
    back = ["put the missing sources back"] if "sources_missing_now" in differing else []
    raise UsageError(
        message(
            "this folder was made by another recipe",
            *back,
            "choose another --out, or give the same options as before",
            folder=store.uri,
            **differing,
        )
    )


def has_plan(store: Store) -> bool:
    """Return whether the plan itself is there and can be read."""
    try:
        return base.exists(store, layout.PLAN) and bool(_read(store))
    except FwconvertError:
        return False


def _is_unused(store: Store, recipe: Recipe) -> bool:
    """Return whether nothing was made of a recipe yet: no token, and no file with the name of an output."""
    if any(True for _ in base.record_names(store, layout.JOINS)):
        return False
    if any(layout.owner(recipe.rules, name) for name in store.list("")):
        return False
    return not any(_has_tokens(store, name) for name in base.record_names(store, layout.RECEIPTS))


def _has_tokens(store: Store, name: str) -> bool:
    """Return whether a receipt tells of tokens, as that of a filter that keeps nothing does not."""
    try:
        return base.read_record(store, f"{layout.RECEIPTS}/{name}", Receipt).counts.tokens > 0
    except ManifestError:
        return True


def _owner(store: Store, wanted: Recipe | None = None) -> SavedPlan | None:
    """Return the plan of the folder, if need be as its other records have it; None if nobody claims it.

    Receipts alone tell no recipe, but whether they are of the one that is `wanted`.
    """
    try:
        if base.exists(store, layout.PLAN):
            return _read(store)
        damaged = None
    except OSError as error:  # For example a name that is too long.
        reason = error.strerror
        raise UsageError(message("--out cannot be used", given=store.uri, reason=reason)) from error
    except ManifestError as error:
        damaged = error
    receipts = _receipt_ids(store)
    for told in (_of_manifest(store), None if wanted is None else _of_recipe(wanted, receipts)):
        if told is not None and told.recipe_id in receipts:
            return told
    if damaged is not None and (wanted is None or receipts):
        raise _lost(damaged)
    return None


def _of_manifest(store: Store) -> SavedPlan | None:
    try:
        manifest = run_manifest.read(store)
        told = SavedPlan(manifest.recipe_id, manifest.recipe())
        told.recipe.source.check()
    except FwconvertError:
        return None
    return told if told.recipe_id in told.recipe.ids else None


def _of_recipe(wanted: Recipe, receipts: set[str]) -> SavedPlan | None:
    known = next((one for one in wanted.ids if one in receipts), None)
    return None if known is None else SavedPlan(known, wanted)


def _receipt_ids(store: Store) -> set[str]:
    """Return the ids of the recipes that the readable receipts are of."""
    found = set()
    for name in base.record_names(store, layout.RECEIPTS):
        try:
            found.add(base.read_record(store, f"{layout.RECEIPTS}/{name}", Receipt).recipe_id)
        except ManifestError:
            continue
    return found


def _lost(damaged: ManifestError) -> ManifestError:
    advice = "run the command that made this run: the plan is made again if the receipts fit"
    return ManifestError(f"{damaged}\n  -> {advice}\n  -> or remove the folder to start over")


def _refuse_foreign_shards(store: Store, recipe: Recipe) -> None:
    rules = recipe.rules
    try:
        foreign = next(
            (name for name in store.list("") if layout.owner(rules, name) or layout.is_served(rules, name)),
            None,
        )
    except NotADirectoryError as error:
        raise UsageError(
            message("--out is a file, not a folder", "choose another --out", given=store.uri)
        ) from error
    if foreign is not None:
        raise UsageError(
            message(
                "this folder holds token shards of something else",
                "choose another --out, or another --name",
                "if they are of this recipe: their records, the folder .fwconvert, are missing",
                folder=store.uri,
                file=foreign,
            )
        )


def differences(saved: Recipe, wanted: Recipe) -> dict[str, object]:
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


def _read(store: Store) -> SavedPlan:
    saved = base.read_record(store, layout.PLAN, SavedPlan, lambda: run_manifest.files_described(store))
    if saved.recipe_id not in saved.recipe.ids:
        raise ManifestError(
            message("a plan is damaged: its recipe has another recipe_id", file=store.address(layout.PLAN))
        )
    return saved
