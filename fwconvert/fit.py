"""Whether the sources have the columns that a recipe asks for: a look at a footer before anything is fetched.

A misspelt column is missing everywhere, and would be noticed source by source,
each of them fetched whole: 286 GB of 100B. One footer tells it. A source alone
that lacks a column is its own affair, and so is whatever else may be wrong with
one; only what is wrong with all that can be looked at is the caller's mistake.
"""

import io
import threading
from collections.abc import Sequence
from pathlib import Path

from fwconvert import sieve, source
from fwconvert.config import Recipe, SourceShard
from fwconvert.errors import ColumnError, HubError, SourceError, UsageError
from fwconvert.folder import RunFolder
from fwconvert.hub import Dataset
from fwconvert.origin import Origin
from fwconvert.patience import Patience
from fwconvert.ranges import RangedFile

# If the first does not fit, so many in all, from everywhere, before the command is blamed.
_MOST_LOOKS = 8
# While nothing comes, and for all looks: whoever fetches has more patience, and tells of the trouble.
_PATIENCE_SECONDS = 3.0
_MOST_SECONDS = 15.0


class Footers:
    """The footers of a run's sources: of files that are here, or over the hub by ranges."""

    def __init__(self, origin: Origin, dataset: Dataset | None, stop: threading.Event) -> None:
        self._origin = origin
        self._dataset = dataset
        self._patience = Patience(_PATIENCE_SECONDS, stop, lambda _: None, most=_MOST_SECONDS)

    def check(self, recipe: Recipe, folder: RunFolder) -> None:
        """Raise UsageError if no source has the columns, as far as a few of them tell.

        What cannot be read is passed over. A run that has a receipt needs no
        look: the columns were in that source.
        """
        if any(folder.receipts.glob("*.json")):
            return
        files = recipe.source.files
        unfit = self._unfit(recipe, _some(files))
        if unfit:
            looked = f"{len(unfit)} of {len(files):,} sources were looked at, and none fits"
            raise UsageError(f"{unfit[0]}\n  -> mend the command before anything is fetched: {looked}")

    def _unfit(self, recipe: Recipe, files: Sequence[SourceShard]) -> list[ColumnError]:
        """Return what is wrong with the columns of the sources; nothing if those of one of them fit."""
        chosen, found = sieve.of(recipe.rules), []
        for file in files:
            try:
                source.check_columns(*self._opened(file), recipe.rules.text_column, chosen)
            except ColumnError as error:
                found.append(error)
            except SourceError:
                continue
            except HubError:  # It is reported by whoever fetches.
                break
            else:
                return []
        return found

    def _opened(self, file: SourceShard) -> tuple[Path | io.RawIOBase, str]:
        place = self._origin.place(file)
        if self._dataset is None or place.is_file():
            return place, str(place)
        return RangedFile(self._dataset, file, self._patience), f"{self._dataset.name}/{file.path}"


def _some(files: Sequence[SourceShard]) -> Sequence[SourceShard]:
    return files[:: -(-len(files) // _MOST_LOOKS) or 1]
