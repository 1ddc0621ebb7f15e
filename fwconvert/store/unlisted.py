"""What a trainer's glob finds in the output folder and is not in the run manifest.

A trainer takes every file whose name fits its pattern, so tokens that stand in
a file of nobody would be trained on twice. They come about in honest ways: a
worker was killed between giving its files their names and its receipt, and the
source was then replaced by a shorter one; a source was converted again whose
last shard a joined shard had taken in; a source was converted on trial and lies
behind the limit.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fwconvert.formats import ZIPPED
from fwconvert.recipes import Recipe
from fwconvert.store import atomic, layout
from fwconvert.store.folder import RunFolder


@dataclass(frozen=True)
class Unlisted:
    """Files that are not in the run manifest."""

    # Made by this run, whose names nothing else has; and what somebody else may have put here.
    own: tuple[Path, ...]
    foreign: tuple[Path, ...]


def find(folder: RunFolder, recipe: Recipe, shards: Collection[str]) -> Unlisted:
    """Return what carries the names of this run's output, or could be taken for it, beyond `shards`."""
    rules, listed = recipe.rules, frozenset(shards)
    beside = {name for shard in listed for name in (shard, *layout.sidecars(rules, shard))}
    beside |= {name.removesuffix(ZIPPED) for name in listed}  # Somebody may have unpacked them.
    own, foreign = [], []
    for path in folder.path.iterdir() if folder.path.is_dir() else ():
        if path.name in beside or path.is_dir():
            continue
        owner = layout.owner(rules, path.name)
        if owner is not None and layout.is_own(recipe, owner):
            own.append(path)
        elif layout.is_served(rules, path.name):
            foreign.append(path)
    for path in folder.index.iterdir() if folder.index.is_dir() else ():
        owner = layout.index_owner(rules, path.name)
        if owner is not None and owner not in listed:
            own.append(path)
    return Unlisted(tuple(sorted(own)), tuple(sorted(foreign)))


def remove(unlisted: Unlisted) -> None:
    """Remove what the run itself has made."""
    for path in unlisted.own:
        atomic.remove(path)
    for changed in {path.parent for path in unlisted.own}:
        atomic.sync_folder(changed)
