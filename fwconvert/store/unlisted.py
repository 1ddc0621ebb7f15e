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

from fwconvert.formats import ZIPPED
from fwconvert.recipes import Recipe
from fwconvert.store import layout
from fwconvert.store.base import Store


@dataclass(frozen=True)
class Unlisted:
    """The names of files that are not in the run manifest."""

    # Made by this run, whose names nothing else has; and what somebody else may have put here.
    own: tuple[str, ...]
    foreign: tuple[str, ...]


def find(store: Store, recipe: Recipe, shards: Collection[str]) -> Unlisted:
    """Return what carries the names of this run's output, or could be taken for it, beyond `shards`."""
    rules, listed = recipe.rules, frozenset(shards)
    beside = {name for shard in listed for name in (shard, *layout.sidecars(rules, shard))}
    beside |= {name.removesuffix(ZIPPED) for name in listed}  # Somebody may have unpacked them.
    own, foreign = [], []
    for name in store.list(""):
        if name in beside:
            continue
        owner = layout.owner(rules, name)
        if owner is not None and layout.is_own(recipe, owner):
            own.append(name)
        elif layout.is_served(rules, name):
            foreign.append(name)
    for name in store.list(layout.INDEX):
        owner = layout.index_owner(rules, name)
        if owner is not None and owner not in listed:
            own.append(f"{layout.INDEX}/{name}")
    return Unlisted(tuple(sorted(own)), tuple(sorted(foreign)))


def remove(store: Store, unlisted: Unlisted) -> None:
    """Remove what the run itself has made, durably."""
    store.remove(*unlisted.own)
    store.settle(*sorted({name.rpartition("/")[0] for name in unlisted.own}))
