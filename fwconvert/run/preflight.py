"""Whether the sources are there and have the columns that a recipe asks for: a look before anything is done.

If none of the files is in the folder that a user names, it is the wrong folder;
a few that are missing are each set aside.

A misspelt column is missing everywhere, and would be noticed source by source,
each of them fetched whole: 286 GB of 100B. One footer tells it. A source alone
that lacks a column is its own affair, and so is whatever else may be wrong with
one; only what is wrong with all that can be looked at is the caller's mistake.
"""

import io
import threading
from collections.abc import Sequence
from pathlib import Path

from fwconvert import records
from fwconvert.errors import ColumnError, HubError, SourceError, UsageError, message
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.ranged import RangedFile
from fwconvert.hub.retry import Patience
from fwconvert.recipes import Recipe, SourceShard
from fwconvert.run.prefetch import Origin
from fwconvert.sources import footers
from fwconvert.sources.catalog import LOCAL
from fwconvert.store import layout
from fwconvert.store.folder import RunFolder

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
        if any(True for _ in records.names_in(folder.receipts)):
            return
        files = recipe.source.files
        unfit = self._unfit(recipe, _some(files))
        if unfit:
            looked = f"{len(unfit)} of {len(files):,} sources were looked at, and none fits"
            raise UsageError(f"{unfit[0]}\n  -> mend the command before anything is fetched: {looked}")

    def _unfit(self, recipe: Recipe, files: Sequence[SourceShard]) -> list[ColumnError]:
        """Return what is wrong with the columns of the sources; nothing if those of one of them fit."""
        found = []
        for file in files:
            try:
                footers.check_columns(*self._opened(file), recipe.rules)
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
        # In a folder of the user's something else may lie there.
        if self._dataset is None or (place.is_file() and place.stat().st_size == file.bytes):
            return place, str(place)
        return RangedFile(self._dataset, file, self._patience), f"{self._dataset.name}/{file.path}"


def refuse_other_folder(recipe: Recipe, origin: Origin, root: Path, folder: RunFolder) -> None:
    """Raise UsageError if none of the sources that are left to convert is below `root`.

    With a limit that may be because it is reached: then a run that has begun goes on.
    """
    files, left = recipe.source.files, []
    for file in files:
        if not folder.receipt(layout.job_key(file.path)).is_file():
            if origin.place(file).exists():
                return
            left.append(file.path)
    has_begun = len(left) < len(files)
    if not left or (has_begun and recipe.rules.is_limited):
        return
    can_fetch = recipe.source.dataset != LOCAL
    raise UsageError(
        message(
            f"0 of the {len(left):,} files{' that are left to convert' if has_begun else ''} are there",
            "name the folder that holds them, under these paths or by their bare names",
            *(["or leave --source out: then they are fetched from the hub"] if can_fetch else []),
            folder=root,
            missing=", ".join(left[:3]) + (f" and {len(left) - 3:,} more" if len(left) > 3 else ""),
        )
    )


def _some(files: Sequence[SourceShard]) -> Sequence[SourceShard]:
    return files[:: -(-len(files) // _MOST_LOOKS) or 1]
