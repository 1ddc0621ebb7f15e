"""Where the tokens of a run come from, and what it takes to have them.

The seam between a run and its input: source shards here, the token shards of
another run in `export_run`.
"""

import threading
from pathlib import Path
from typing import Protocol

from fwconvert.hub.dataset import Dataset
from fwconvert.options import Options
from fwconvert.recipes import Recipe
from fwconvert.run import estimate
from fwconvert.run.prefetch import HubOrigin, LocalOrigin, Origin, Terms
from fwconvert.run.preflight import Footers, refuse_other_folder
from fwconvert.run.state import Observer
from fwconvert.store import sessions
from fwconvert.store.folder import RunFolder
from fwconvert.tokens import registry


class Supply(Protocol):
    """Where the tokens of a run come from, and what it takes to have them."""

    # Where the sources lie on this machine, for whoever looks for them later.
    place: Path | None

    def origin(self, folder: RunFolder) -> Origin:
        """Return what hands out the orders of the run."""

    def check_disk(self, folder: RunFolder) -> None:
        """Raise UsageError if the disk is too small."""

    def check_columns(self, folder: RunFolder, origin: Origin, stop: threading.Event) -> None:
        """Raise UsageError if the input is not there or has not the columns that the recipe asks for."""

    def session(self, folder: RunFolder, observer: Observer) -> sessions.Session:
        """Return a session that can begin."""


class Sources:
    """The source shards themselves."""

    def __init__(self, recipe: Recipe, options: Options) -> None:
        self._recipe = recipe
        self._options = options
        self.place = recipe.root if recipe.root is not None else options.keep_folder

    def origin(self, folder: RunFolder) -> Origin:
        """Return the files on this machine, or the hub."""
        options, manifest = self._options, self._recipe.source
        if self._recipe.root is not None:
            return LocalOrigin(manifest, self._recipe.root)
        terms = Terms(options.prefetch_count, options.max_fetches, options.worker_count, options.patience)
        keep = None if options.keep_folder is None else options.keep_folder.absolute()
        return HubOrigin(manifest, terms, folder.sources, keep)

    def check_disk(self, folder: RunFolder) -> None:
        """Raise UsageError if the output, or the sources that are fetched, do not fit."""
        estimate.check_disk(self._recipe, self._options, folder)

    def check_columns(self, folder: RunFolder, origin: Origin, stop: threading.Event) -> None:
        """Raise UsageError if no source is there, or none has the columns that the recipe asks for."""
        manifest, root = self._recipe.source, self._recipe.root
        if root is not None:
            refuse_other_folder(self._recipe, origin, root, folder)
        dataset = Dataset(manifest.dataset, manifest.revision) if root is None else None
        Footers(origin, dataset, stop).check(self._recipe, folder)

    def session(self, folder: RunFolder, observer: Observer) -> sessions.Session:
        """Return a session that can begin: its encoder is there, and its vocabulary.

        Whatever fails here fails before the folder belongs to the recipe.
        """
        options = self._options
        spec = registry.of_rules(self._recipe.rules)
        kind = registry.kind_of(spec)
        encoder, reason = kind.choose_encoder(spec, options.encoder)
        if reason:
            observer.notice(reason)
        kind.provide(spec, folder.vocabularies)
        # With a limit fewer sources are at work than there are, and may have more threads each.
        limited, files = self._recipe.rules.is_limited, self._recipe.source.files
        threads = options.thread_count(
            estimate.plan_for(self._recipe, options).files if limited else len(files)
        )
        return sessions.new(options.worker_count, threads, encoder)
