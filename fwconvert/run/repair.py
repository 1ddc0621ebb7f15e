"""Repair a run: make what is damaged or missing again, from the same sources, by the same resume.

A repair is a conversion of the recipe that the run has, which hashes everything first.
So it may be killed and repeated, it finishes a run that is not finished, and what it makes
has the bytes that were there. What it needs beyond the run itself are the sources of
what is damaged: they are looked for where they were, and on the hub.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from fwconvert.errors import ManifestError, UsageError, message
from fwconvert.options import Options
from fwconvert.recipes import Recipe
from fwconvert.run import request
from fwconvert.run.convert import Conversion, Result, environment
from fwconvert.run.engines import Engine
from fwconvert.run.events import Observer, StopSwitch
from fwconvert.run.inputs import LocalFiles
from fwconvert.run.node_prefetch import NodePrefetch
from fwconvert.run.prefetch import Prefetch, open_input
from fwconvert.run.resume import Found, Tick
from fwconvert.sources import catalog
from fwconvert.store import saved_recipe
from fwconvert.store.base import Store
from fwconvert.store.bucket import Bucket, is_uri
from fwconvert.store.local import absolute, open_store


class Repair:
    """The run in a folder, and where its sources are. `source` is where the user says that they are."""

    def __init__(
        self,
        out: str | os.PathLike[str],
        source: str | os.PathLike[str] | None = None,
        options: Options | None = None,
    ) -> None:
        options = replace(options or Options(), rehash=True)
        self._store = open_store(absolute(out), scratch=options.scratch_folder)
        self._store.refuse_links()
        recipe = saved_recipe.read_plan(self._store)
        named, kept = _places(self._store, recipe) if source is None else (_named(source), None)
        if kept is not None and options.keep_source is None and kept.is_dir():
            options = replace(options, keep_source=kept)
        if named is None and recipe.source.dataset == catalog.LOCAL:
            raise UsageError(
                message(
                    "the sources are local files, and the run does not say where",
                    "pass --source DIR, the folder that holds them",
                    folder=self._store.uri,
                )
            )
        self.recipe = _as_they_are(recipe, named).at(named)
        self._options = options
        self._found: list[str] = []

    @property
    def problems(self) -> int:
        """How many damaged or missing things were found."""
        return len(self._found)

    def carry_out(
        self,
        *,
        engine: Engine | None = None,
        observer: Observer | None = None,
        stop: StopSwitch | None = None,
    ) -> Result:
        """Make again what is damaged or missing; raises as `convert` does. The same call continues."""
        given = environment(self._options, engine, observer, stop)
        inputs = open_input(self.recipe, given.options, self._store)
        if given.engine.nodes is not None and isinstance(inputs, Prefetch):
            inputs = NodePrefetch(inputs, given.options, given.engine.nodes)
        return _Repairing(self._store, self.recipe, inputs, given, told=self._found).run()


@dataclass
class _Repairing(Conversion):
    """A session that hashes everything, and changes nothing if it cannot make again what it would remove."""

    told: list[str] = field(default_factory=list)

    def _find_done(self, cut_off: frozenset[str], tick: Tick) -> Found:
        found = super()._find_done(cut_off, tick)
        self.told += found.problems
        self._refuse_lost_sources(found)
        return found

    def _refuse_lost_sources(self, found: Found) -> None:
        if not isinstance(self.inputs, LocalFiles):
            return
        needed = [file for file in self.recipe.source.files if file.path not in found.jobs]
        if self.recipe.rules.is_limited:  # Sources beyond the limit are not needed.
            needed = [file for file in needed if file.path in found.known_sources]
        missing = [file.path for file in needed if not self.inputs.location(file).exists()]
        if missing and len(missing) == len(needed):
            raise UsageError(
                message(
                    "the sources of what is damaged are not where they were; nothing was changed",
                    "pass --source DIR, the folder that holds them now",
                    *found.problems[:3],
                    folder=self.inputs.root,
                    missing=", ".join(missing[:3])
                    + (f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""),
                )
            )


def _as_they_are(recipe: Recipe, root: Path | str | None) -> Recipe:
    """Return the recipe with the sizes that files have now which nobody pinned: a bad one may be replaced."""
    if not isinstance(root, Path):
        return recipe
    files = []
    for file in recipe.source.files:
        place = root / file.path
        is_free = file.sha256 is None and place.is_file()
        files.append(msgspec.structs.replace(file, bytes=place.stat().st_size) if is_free else file)
    source = msgspec.structs.replace(recipe.source, files=tuple(files))
    return Recipe(source, recipe.rules).known_as(recipe.recipe_id)


def _named(source: str | os.PathLike[str]) -> Path | str:
    text = os.fspath(source)
    if is_uri(text):
        return Bucket.at(text).uri
    root = Path(text).expanduser()
    if not root.is_dir():
        raise UsageError(message("--source must be the folder that has the run's sources", given=text))
    return root.absolute()


def _places(store: Store, recipe: Recipe) -> tuple[Path | str | None, Path | None]:
    """Return where the sources are that a user has named, and the folder where fetched ones were kept."""
    if recipe.source.dataset == "demo":
        return request.sources("demo", None)[1], None
    try:
        named = saved_recipe.named_source_root(store)
    except ManifestError:  # The run is still worth repairing: what is fetched is proven.
        return None, None
    known = saved_recipe.read_source_root(store)
    return named, known if named is None and isinstance(known, Path) else None
