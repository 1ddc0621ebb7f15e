"""The plan of a run as it is saved: the recipe with all its sources.

It is what makes a folder belong to a recipe. It changes only in what the
recipe's id does not count: the size of a source that nobody pinned, when a
damaged file was replaced by a good copy before it was converted.
"""

from fwconvert import names, records
from fwconvert.config import Recipe, SourceShard
from fwconvert.errors import ManifestError, UsageError, message
from fwconvert.folder import RunFolder
from fwconvert.records import Record


class SavedPlan(Record, frozen=True, tag="fwconvert plan 1"):
    """The recipe of a run."""

    recipe_id: str
    recipe: Recipe


def save_plan(folder: RunFolder, recipe: Recipe) -> None:
    """Save the plan, unless it is saved already; one of another recipe is never overwritten."""
    refuse_other_recipe(folder, recipe)
    content = records.encode(SavedPlan(recipe.recipe_id, recipe)) + b"\n"
    if not folder.plan.exists() or folder.plan.read_bytes() != content:
        folder.write(folder.plan, content)


def read_plan(folder: RunFolder) -> Recipe:
    """Return the recipe of a run, or raise UsageError if the folder holds none."""
    if not folder.plan.is_file():
        raise UsageError(
            message("this folder is not a run of fwconvert", "name the folder of a run", folder=folder.path)
        )
    return _read(folder).recipe


def known_sources(folder: RunFolder, recipe: Recipe) -> tuple[SourceShard, ...] | None:
    """Return the sources that a run of the same version has kept, or None."""
    if not _has_plan(folder):
        return None
    saved, wanted = _read(folder).recipe.source, recipe.source
    same = (saved.dataset, saved.revision, saved.folder) == (wanted.dataset, wanted.revision, wanted.folder)
    return saved.files if same else None


def refuse_other_recipe(folder: RunFolder, recipe: Recipe) -> None:
    """Raise UsageError if the folder belongs to something else than `recipe`."""
    if not _has_plan(folder):
        _refuse_foreign_shards(folder, recipe)
        return
    saved = _read(folder)
    if saved.recipe_id != recipe.recipe_id:
        raise UsageError(
            message(
                "this folder was made by another recipe",
                "choose another --out, or give the same options as before",
                folder=folder.path,
                **_differences(saved.recipe, recipe),
            )
        )


def _has_plan(folder: RunFolder) -> bool:
    try:
        return folder.plan.is_file()
    except OSError as error:  # For example a name that is too long.
        reason = error.strerror
        raise UsageError(message("--out cannot be used", given=folder.path, reason=reason)) from error


def _refuse_foreign_shards(folder: RunFolder, recipe: Recipe) -> None:
    entries = folder.path.iterdir() if folder.path.is_dir() else iter(())
    foreign = next((entry.name for entry in entries if names.owner(recipe.rules, entry.name)), None)
    if folder.path.exists() and not folder.path.is_dir():
        raise UsageError(message("--out is a file, not a folder", "choose another --out", given=folder.path))
    if foreign is not None:
        raise UsageError(
            message(
                "this folder holds token shards of something else",
                "choose another --out, or another --name",
                folder=folder.path,
                file=foreign,
            )
        )


def _differences(saved: Recipe, wanted: Recipe) -> dict[str, object]:
    """Return the fields that differ, as lines for a message."""
    lines: dict[str, object] = {}
    for name in saved.rules.__struct_fields__:
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
    saved = records.read(folder.plan, SavedPlan)
    if saved.recipe_id != saved.recipe.recipe_id:
        raise ManifestError(message("a plan is damaged: its recipe has another recipe_id", file=folder.plan))
    return saved
