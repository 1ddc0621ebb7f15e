"""Which token shards a loader serves: those of a run, by its manifest, or those in a folder of others.

All of them are looked at before the first token is served, so that a missing or
damaged shard is found now and not in three days.
"""

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fwconvert import formats, records
from fwconvert.errors import ManifestError, ShardError, UsageError, message
from fwconvert.formats import ZIPPED
from fwconvert.loader.files import Expected, Kind, TokenFile, look
from fwconvert.recipes import TokenType, is_safe
from fwconvert.shards.shard import numpy_type
from fwconvert.store import layout, run_manifest
from fwconvert.store.folder import RunFolder
from fwconvert.store.layout import Split
from fwconvert.store.receipts import ShardLine
from fwconvert.store.run_manifest import RunManifest

_SUFFIXES = (".bin", ".npy")
# The words in the names of others' files.
_SPLITS: dict[str, Split] = {"train": "train", "val": "val", "valid": "val", "validation": "val"}

# Linux allows a process 65,530 mapped files; a shard and its index are two.
_MOST_MAPPED = 16_384
# A shard of 100M tokens is 200 MB unpacked.
_MOST_UNPACKED = 4


@dataclass(frozen=True)
class Wanted:
    """Which shards."""

    path: str | Path
    split: Split = "train"
    # The type of the tokens in headerless files that their names do not show to be such.
    raw: TokenType | None = None
    # Whether an unfinished run will do: what is there now, or what comes.
    partial: bool = False
    follow: bool = False

    @property
    def folder(self) -> RunFolder:
        """The folder, should it be a run's."""
        return RunFolder(Path(self.path))

    @property
    def is_run(self) -> bool:
        """Whether it is a run's folder. One that is to be followed may have no run manifest yet."""
        return self.folder.manifest.is_file() or (self.follow and self.folder.private.is_dir())


@dataclass(frozen=True)
class Shards:
    """The token shards of one split in the order of their names."""

    token_type: TokenType
    files: tuple[TokenFile, ...]
    # The same in the run manifest; empty for the shards of others.
    lines: tuple[ShardLine, ...]
    # Whether no more will come.
    complete: bool
    # Of a run that is whole, or will be: its recipe, which decides all its shards.
    recipe_id: str
    # What tells this set of shards from others.
    fingerprint: str

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return sum(file.tokens for file in self.files)

    @property
    def type(self) -> np.dtype[Any]:
        """The type of a token."""
        return numpy_type(self.token_type)

    @property
    def most_open(self) -> int:
        """How many of them may be open at a time."""
        return _MOST_UNPACKED if self._packed else _MOST_MAPPED

    def check_any_order(self) -> None:
        """Raise UsageError if only in sequence a shard would not be unpacked for every other window."""
        if not self._packed or len(self.files) <= _MOST_UNPACKED:
            return
        folder = self.files[0].path.parent
        export = (
            [f"fwconvert export {folder} --compress none -o NEW, and serve NEW; or"] if self.lines else []
        )
        raise UsageError(
            message(
                "so many compressed token shards can only be served in sequence",
                *export,
                "unpack them where they are (zstd -d *.zst): plain files are preferred; or",
                "order='sequential'",
                folder=folder,
                shards=f"{len(self.files):,}, of which compressed {self._packed:,}",
                most=f"{_MOST_UNPACKED}, because each is unpacked whole into memory",
            )
        )

    @property
    def _packed(self) -> int:
        return sum(file.path.suffix == ZIPPED for file in self.files)


def find(wanted: Wanted) -> Shards:
    """Return the shards, each looked at; raise UsageError if there are none, ShardError if one is wrong."""
    if wanted.is_run:
        return of_run(wanted)
    files = tuple(look(path, Expected(raw=wanted.raw)) for path in _paths(wanted))
    _refuse_a_mixture(files)
    told = [[file.name, file.tokens, file.token_type] for file in files]
    return Shards(files[0].token_type, files, (), complete=True, recipe_id="", fingerprint=_short(told))


def check_can_be_followed(wanted: Wanted) -> None:
    """Raise UsageError if this will never be the folder of a run; one that is not there yet may be."""
    path = wanted.folder.path
    is_pattern = not path.exists() and any(sign in str(path) for sign in "*?")
    of_others = path.is_dir() and not wanted.is_run and any(_is_shard(file.name) for file in path.iterdir())
    if is_pattern or of_others or path.is_file():
        raise UsageError(
            message(
                "this is not the folder of a run, so it cannot be followed",
                "name the folder that the conversion writes to (--out)",
                given=wanted.path,
            )
        )


def of_run(wanted: Wanted, known: Shards | None = None) -> Shards:
    """Return the shards of a run as of now; those that are `known` already are not looked at again."""
    manifest = run_manifest.read(wanted.folder)
    complete = manifest.headline.complete
    if not (complete or wanted.partial or wanted.follow):
        raise UsageError(
            message(
                "this run is not complete",
                "run its command again, or",
                "follow=True to be served what is there and wait for the rest, or",
                "partial=True to do with what is there now",
                folder=wanted.path,
                jobs_done=f"{manifest.headline.jobs_done:,} of {manifest.headline.jobs:,}",
            )
        )
    # What is followed may be all there before the run is complete.
    complete = complete or (wanted.follow and _has_all(manifest, wanted.split))
    lines = _ready(manifest, wanted)
    before = known.lines if known else ()
    if known and before[: len(lines)] == lines and not complete:
        return known  # Nothing new; or a shard was damaged, and is made again.
    if lines[: len(before)] != before:
        raise ShardError(message("the shards of this run are no longer those it had", folder=wanted.path))
    if complete and not lines:
        raise UsageError(message(f"this run has no {wanted.split} shard", folder=wanted.path))
    files = (*(known.files if known else ()), *_files(manifest, wanted, lines[len(before) :]))
    told = [[line.name, line.tokens, line.sha256] for line in lines]
    return Shards(
        manifest.rules.token_type,
        files,
        lines,
        complete=complete or not wanted.follow,
        recipe_id=manifest.recipe_id if complete or wanted.follow else "",
        fingerprint=_short(told),
    )


def _has_all(manifest: RunManifest, split: Split) -> bool:
    """Tell whether no more shards of the split will come, though the run goes on.

    In the independent layout validation is the beginning of the first source; the join adds nothing to it.
    """
    first = {file.path for file in manifest.sources[:1]}
    is_done = any(job.path in first for job in manifest.jobs)
    return split == "val" and manifest.rules.layout == "independent" and is_done


def _ready(manifest: RunManifest, wanted: Wanted) -> tuple[ShardLine, ...]:
    """Return the lines of the split that can be served: all, or the beginning that will not change.

    While a run goes on that is what comes before the first source that is not
    done. Its joined shards appear at its end.
    """
    chosen = [line for line in manifest.shards if line.split == wanted.split]
    ordered = tuple(sorted(chosen, key=lambda line: line.name))
    if manifest.headline.complete or not wanted.follow:
        return ordered
    if manifest.rules.layout == "contiguous":
        return ()
    done = {job.path for job in manifest.jobs}
    missing = next((at for at, file in enumerate(manifest.sources) if file.path not in done), None)
    first_missing = len(manifest.sources) if missing is None else missing
    border = layout.job_shard(manifest.rules, wanted.split, first_missing, 0)
    ready = tuple(line for line in ordered if line.name < border)
    taken_in = wanted.split == "train" and manifest.rules.last == "merge"
    return _without_the_last(ready) if taken_in else ready


def _without_the_last(lines: tuple[ShardLine, ...]) -> tuple[ShardLine, ...]:
    """Return the lines before that of the last shard that a job has made, which the join may take in."""
    # A block number that has more digits than planned is larger, but sorts before others.
    last = max((line.name for line in lines), key=_source_and_block, default="")
    return tuple(line for line in lines if line.name < last)


def _source_and_block(name: str) -> tuple[str, int, str]:
    return name.rpartition("_")[0], len(name), name


def _files(manifest: RunManifest, wanted: Wanted, lines: Sequence[ShardLine]) -> list[TokenFile]:
    rules = manifest.rules
    kind = _kind(rules.format)
    found = []
    for line in lines:
        if not is_safe(line.name) or "/" in line.name:
            raise ManifestError(message("a run manifest names a file that is no token shard", file=line.name))
        path = _path(wanted.folder, line.name)
        # A line tells the size of the file that the run made, not of what was packed or unpacked since.
        size = line.bytes if path.name == line.name else None
        found.append(look(path, Expected(kind, rules.token_type, line.tokens, size)))
    return found


def _path(folder: RunFolder, name: str) -> Path:
    """Return where the content of a shard is: in the plain file if it is there, or else in the compressed."""
    plain = folder.shard(name.removesuffix(ZIPPED))
    packed = plain.with_name(plain.name + ZIPPED)
    return next((path for path in (plain, packed) if path.exists()), folder.shard(name))


def _kind(format_name: str) -> Kind:
    """Return how to read a format of a run. Those whose token shards have no header are all alike."""
    known = formats.find(format_name).name
    return known if known in {"llmc", "npy"} else "raw"


def _paths(wanted: Wanted) -> list[Path]:
    """Return the shards of others that are of the split: in a folder, or of those that a pattern names."""
    given = Path(wanted.path)
    if given.is_dir():
        found = [path for path in given.iterdir() if path.is_file() and _is_of(wanted.split, path.name)]
    elif given.exists():
        found = _named(wanted, given)
    else:
        found = _matched(wanted)
    there = set(found)
    chosen = [path for path in found if path.with_name(path.name.removesuffix(ZIPPED)) not in there - {path}]
    if not chosen:
        raise UsageError(
            message(
                f"there is no token shard that is '{wanted.split}' by its name"
                if given.is_dir()
                else "there is no such file or folder",
                "name a run's folder, a folder of .bin or .npy shards, or a pattern: 'some/*_train_*.bin'",
                given=wanted.path,
            )
        )
    return sorted(chosen, key=lambda path: (path.name, path))


def _named(wanted: Wanted, path: Path) -> list[Path]:
    """Return the file that was named; what it holds is as the caller says, unless its name says otherwise."""
    if _told_split(path) not in (None, wanted.split):
        raise _other_split(wanted, [path])
    return [path]


def _matched(wanted: Wanted) -> list[Path]:
    """Return those of a pattern that are of the split. If no name says 'train', what says nothing is that."""
    found = sorted(Path(path) for path in glob.glob(str(wanted.path)))  # noqa: PTH207  # may be absolute
    chosen = [path for path in found if _told_split(path) == wanted.split]
    untold = [path for path in found if _told_split(path) is None]
    if wanted.split == "train" and chosen and untold:
        raise UsageError(
            message(
                "of the files that this pattern names, some say 'train' and others do not say what they are",
                "name only those that are to be served: 'some/*_train_*.bin'",
                pattern=wanted.path,
                train=chosen[0],
                not_said=untold[0],
            )
        )
    if wanted.split == "train" and untold:
        return untold
    if found and not chosen:
        raise _other_split(wanted, found)
    return chosen


def _other_split(wanted: Wanted, found: Sequence[Path]) -> UsageError:
    told = _told_split(found[0])
    return UsageError(
        message(
            f"no file that is named here is '{wanted.split}' by its name",
            f"say split='{told}' if it is that which you want" if told else "put the split into the names",
            f"or name others: 'some/*_{wanted.split}_*.bin'",
            given=wanted.path,
            split=wanted.split,
            found=f"{found[0]}" + (f" and {len(found) - 1:,} more" if found[1:] else ""),
        )
    )


def _is_shard(name: str) -> bool:
    return name.removesuffix(ZIPPED).endswith(_SUFFIXES) and not name.startswith(".")


def _is_of(split: Split, name: str) -> bool:
    return _is_shard(name) and _split_in(name) == split


def _told_split(path: Path) -> Split | None:
    """Return what a file is by its name, or else by that of its folder, if it is called just so."""
    return _split_in(path.name) or _SPLITS.get(path.parent.name.lower())


def _split_in(name: str) -> Split | None:
    # The last counts: a dataset's name, which may say anything, stands before the split.
    words = [word for word in re.findall("[a-z]+", name.lower()) if word in _SPLITS]
    return _SPLITS[words[-1]] if words else None


def _refuse_a_mixture(files: Sequence[TokenFile]) -> None:
    for file in files:
        if file.token_type != files[0].token_type:
            raise ShardError(
                message(
                    "token shards of different types cannot be served together",
                    **{files[0].token_type: files[0].path, file.token_type: file.path},
                )
            )


def _short(told: object) -> str:
    return records.digest(told)[:16]
