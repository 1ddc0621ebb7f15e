"""Token shards that fwconvert need not have made: in any folder, by a pattern, or one file.

No manifest lists them, so their names say whether they are for training or for
validation: the last of the words train, val, valid and validation in the file
name, or else the name of the folder.
"""

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from fwconvert.errors import UsageError, message
from fwconvert.formats import ZIPPED
from fwconvert.store.layout import Split

_SUFFIXES = (".bin", ".npy")
_SPLITS: dict[str, Split] = {"train": "train", "val": "val", "valid": "val", "validation": "val"}


def shard_paths(given: str | Path, split: Split) -> list[Path]:
    """Return the token shards of a split, sorted by name; where there are both, the plain file is taken.

    Raises UsageError if there are none, or if their names are ambiguous.
    """
    place = Path(given)
    if place.is_dir():
        found = [
            path
            for path in place.iterdir()
            if path.is_file() and is_shard_name(path.name) and _split_in(path.name) == split
        ]
    elif place.exists():
        # A single file is of the requested split, unless its name says otherwise.
        if _split_of(place) not in (None, split):
            raise _other_split(given, split, [place])
        found = [place]
    else:
        found = _matching(given, split)
    there = set(found)
    chosen = [path for path in found if path.with_name(path.name.removesuffix(ZIPPED)) not in there - {path}]
    if not chosen:
        raise UsageError(
            message(
                f"no token shard in this folder has '{split}' in its name"
                if place.is_dir()
                else "there is no such file or folder",
                "name a run's folder, a folder of .bin or .npy shards, or a pattern: 'some/*_train_*.bin'",
                given=given,
            )
        )
    return sorted(chosen, key=lambda path: (path.name, path))


def is_shard_name(name: str) -> bool:
    """Return whether a file of this name could be a token shard."""
    return name.removesuffix(ZIPPED).endswith(_SUFFIXES) and not name.startswith(".")


def _matching(pattern: str | Path, split: Split) -> list[Path]:
    """Return the files of a pattern in the split. If no name has 'train', files without a split are it."""
    found = sorted(Path(path) for path in glob.glob(str(pattern)))  # noqa: PTH207  # may be absolute
    chosen = [path for path in found if _split_of(path) == split]
    unnamed = [path for path in found if _split_of(path) is None]
    if split == "train" and chosen and unnamed:
        raise UsageError(
            message(
                "some of the files that match this pattern have 'train' in their names, others no split",
                "match only the files to serve: 'some/*_train_*.bin'",
                pattern=pattern,
                train=chosen[0],
                no_split=unnamed[0],
            )
        )
    if split == "train" and unnamed:
        return unnamed
    if found and not chosen:
        raise _other_split(pattern, split, found)
    return chosen


def _other_split(given: str | Path, split: Split, found: Sequence[Path]) -> UsageError:
    named = _split_of(found[0])
    return UsageError(
        message(
            f"none of these files has '{split}' in its name",
            f"pass split='{named}' if that is what you want" if named else "put the split into the names",
            f"or name others: 'some/*_{split}_*.bin'",
            given=given,
            split=split,
            found=f"{found[0]}" + (f" and {len(found) - 1:,} more" if found[1:] else ""),
        )
    )


def _split_of(path: Path) -> Split | None:
    return _split_in(path.name) or _SPLITS.get(path.parent.name.lower())


def _split_in(name: str) -> Split | None:
    # The last word counts: the dataset's name, which may contain anything, comes before the split.
    words = [word for word in re.findall("[a-z]+", name.lower()) if word in _SPLITS]
    return _SPLITS[words[-1]] if words else None
