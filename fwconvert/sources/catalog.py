"""Find the source manifest that a command refers to, and source files on this machine.

The shipped manifests are files, not code, so that people can read, diff and
replace them. A clone has them in `manifests/` beside the package, an
installation inside the package.

Their totals are what the publisher says. `tokens` is the sum of FineWeb-Edu's
`token_count` column: GPT-2 tokens of the texts alone, without the separator
that a run adds to each document. So the totals are good for a plan and nothing more.

Local files are listed by walking, never by `glob`, which passes over a folder
that it may not read and follows links in circles: lost or doubled documents.
"""

import difflib
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path, PurePosixPath

from fwconvert import files, kinds, records
from fwconvert.errors import UsageError, message
from fwconvert.recipes import SourceManifest, SourceShard, Totals, is_safe

# The dataset name of files that are not on the hub.
LOCAL = "local"


@dataclass(frozen=True)
class Size:
    """The text of one source shard: counted in its footer, or estimated from its size."""

    rows: int
    text_bytes: int


def names() -> list[str]:
    """Return the names of the shipped source manifests, shorter ones first: 10B before 100B."""
    return sorted((path.stem for path in _shipped().glob("*.json")), key=lambda name: (len(name), name))


def find(name: str) -> SourceManifest:
    """Return the checked source manifest of a shipped version, or the one in a file.

    A `name` with a path separator or the ending .json is the path of a file.
    """
    path = _manifest_path(name)
    manifest = records.read(path, SourceManifest)
    manifest.check()
    return manifest


def local(pattern: str) -> tuple[SourceManifest, Path]:
    """Return the source manifest of the files that `pattern` names, and the folder that its paths start from.

    A folder means every file of text below it (`kinds.chosen`); a file, itself,
    whatever its name; a glob, the files of text that it matches and those below
    the folders that it matches. A glob that spells out its ending (*.pq) is taken
    at its word, and what exists literally is never a glob. Hidden names are passed
    over. Links to files are followed; links to folders only if a part of the
    glob other than ** matches them, since links can go in circles.
    """
    given = _path(pattern, "--source")
    with _reading(pattern):
        root, found = _look(given)
        shards = sorted((_shard(root, path) for path in found), key=lambda shard: shard.path)
    totals = Totals(files=len(shards), bytes=sum(shard.bytes for shard in shards))
    return SourceManifest(LOCAL, LOCAL, "", "", tuple(shards), totals), root.absolute()


def several(patterns: Sequence[str]) -> tuple[SourceManifest, Path]:
    """Return the source manifest of what several patterns name, and the folder that all paths start from.

    That is the deepest one that holds them all, so that each path says by its first folders which of
    them it is from. The files of a pattern come before those of the next one, each in their own order.
    """
    if len(patterns) == 1:
        return local(patterns[0])
    # As a shell would say it: links stay, since they are what the user has named.
    found = [local(pattern) for pattern in patterns]
    places = [
        Path(os.path.abspath(root)) / file.path  # noqa: PTH100  # it leaves links alone
        for manifest, root in found
        for file in manifest.files
    ]
    try:
        root = Path(os.path.commonpath([place.parent for place in places]))
    except ValueError:
        roots = {f"source {number}": root for number, (_, root) in enumerate(found, 1)}
        wrong, action = "no folder holds all --source", "copy them to one drive, or convert them one by one"
        raise UsageError(message(wrong, action, **roots)) from None
    refuse_doubled([str(place) for place in places])
    with _reading(str(root)):
        shards = tuple(_shard(root, place) for place in places)
    totals = Totals(files=len(shards), bytes=sum(shard.bytes for shard in shards))
    return SourceManifest(LOCAL, LOCAL, "", "", shards, totals), root


def refuse_doubled(places: Iterable[str]) -> None:
    """Raise UsageError if a file is named by two patterns: its documents would count twice."""
    twice = [place for place, count in Counter(places).items() if count > 1]
    if twice:
        raise UsageError(
            message(
                "two --source name the same file",
                "leave one of them out, or make a pattern narrower",
                file=twice[0],
                **({"and": f"{len(twice) - 1:,} more files"} if len(twice) > 1 else {}),
            )
        )


def locate(manifest: SourceManifest, root: Path) -> dict[str, Path]:
    """Return where the files of a manifest are below `root`, by their paths, without those that are missing.

    A file is looked for under its path, then under its bare name, as copying
    leaves it; the latter only if no other file of the manifest has that name.
    Only names are compared: sizes and hashes are checked elsewhere.
    """
    manifest.check()
    with _reading(str(root)):
        bare_names = _bare_names(manifest)
        places = {file.path: _place(file, root, bare_names) for file in manifest.files}
    return {path: place for path, place in places.items() if place is not None}


def bare(manifest: SourceManifest, root: Path) -> dict[str, Path]:
    """Return those files of `locate` that are there under a bare name and can be verified.

    Anything may be called train-00000-of-00001.parquet. So whoever uses such a
    file proves it first, and one whose sha256 nobody knows is passed over.
    """
    found = locate(manifest, root)
    pinned = {file.path for file in manifest.files if file.sha256 is not None}
    return {path: place for path, place in found.items() if path in pinned and place != root / path}


def _shipped() -> Path:
    package = Path(str(resources.files("fwconvert")))
    inside = package / "manifests"
    return inside if inside.is_dir() else package.parent / "manifests"


def _manifest_path(name: str) -> Path:
    if not (name.endswith(".json") or "/" in name or os.sep in name):
        if name in names():
            return _shipped() / f"{name}.json"
        raise UsageError(_unknown("there is no version with this name", name))
    path = _path(name, "--version")
    with _reading(name):
        if path.is_file():
            return path
    raise UsageError(_unknown("this source manifest does not exist", name))


def _unknown(wrong: str, given: str) -> str:
    known = {name.lower(): name for name in names()}
    close = difflib.get_close_matches(Path(given).name.lower(), known, n=1, cutoff=0.4)
    meant = [f"did you mean {known[name]}?" for name in close]
    shipped = f"choose one of {', '.join(names())}, or give the path of a source manifest"
    return message(wrong, *meant, shipped, given=given)


def _path(given: str, flag: str) -> Path:
    if not given:
        raise UsageError(message(f"{flag} is empty", "give a path; '.' is the current folder"))
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise UsageError(message(f"{flag} names an unknown home", given=given, reason=error)) from error


@contextmanager
def _reading(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(message("the source cannot be read", source=where, reason=error)) from error


def _look(given: Path) -> tuple[Path, Iterable[Path]]:
    if given.is_dir():
        return given, _chosen(given, _below(given), "")
    if given.exists():
        _refuse_other_kind(given)
        return given.parent, [given]
    root, parts = _split(given)
    if not parts or not root.is_dir():
        missing = root if parts else given
        raise UsageError(message("the source does not exist", source=given, missing=missing.absolute()))
    ending = "" if _is_wild(given.suffix) else given.suffix
    return root, _chosen(given, _matches(root, parts), ending)


def _split(pattern: Path) -> tuple[Path, list[str]]:
    """Return the longest leading part that is not a pattern, and the parts after it."""
    root, parts = Path(pattern.anchor), list(pattern.relative_to(pattern.anchor).parts)
    while parts and (not _is_wild(parts[0]) or (root / parts[0]).is_dir()):
        root /= parts.pop(0)
    return root, parts


def _is_wild(part: str) -> bool:
    return any(sign in part for sign in "*?[")


def _chosen(given: Path, files: Iterable[Path], ending: str) -> set[Path]:
    """Return the files of text, or those with that ending, each once; raise UsageError if there are none."""
    seen = set(files)
    if ending:
        chosen = {path for path in seen if path.name.lower().endswith(ending.lower())}
    else:
        chosen = {*kinds.chosen(sorted(seen), str, str(given))}
    if not chosen:
        endings = Counter("".join(path.suffixes[-2:]).lower() for path in seen)
        others = ", ".join(
            f"{count:,} {ending or 'without an ending'}" for ending, count in endings.most_common(4)
        )
        wanted = f"{ending} files" if ending else kinds.ALL
        text = next((path for path in sorted(seen) if path.suffix.lower() in (".csv", ".json")), None)
        raise UsageError(
            message(
                f"there are no {wanted} here",
                *([_advice(text)] if text else []),
                f"give a folder that holds {wanted}, a pattern in quotes, or a single file",
                source=given,
                other_files=others or "none",
            )
        )
    return chosen


# What people have text in that is not read.
_OTHERS = (".csv", ".txt", ".tsv", ".zip", ".bin", ".npy", ".warc", ".tar")


def _refuse_other_kind(path: Path) -> None:
    """Raise UsageError for a file that certainly cannot be read: its name and its first bytes say so."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    if not path.is_file() or not name.endswith(_OTHERS):
        return
    with files.open_to_read(path) as file:
        if file.read(4) == b"PAR1":
            return
    raise UsageError(message(f"this is not one of the {kinds.ALL} that are read", _advice(path), source=path))


def _advice(path: Path) -> str:
    """Return how the text in a file of another kind is converted."""
    suffix = path.suffix.lower()
    if suffix == ".json":
        return f"if {path.name} has an object in each line, name it: --source {shlex.quote(str(path))}"
    if suffix != ".csv":
        return "make parquet of it, with a column of text: pandas, pyarrow, duckdb and datasets can"
    code = (
        f"from pyarrow import csv, parquet as p; p.write_table(csv.read_csv({str(path)!r}), 'data.parquet')"
    )
    # In double quotes it can be read; a name that a shell would change in them is quoted otherwise.
    quoted = shlex.quote(code) if set("\"$`\\!'") & set(str(path)) else f'"{code}"'
    return f"make parquet of it: python -c {quoted}"


def _matches(folder: Path, parts: list[str]) -> Iterator[Path]:
    """Yield the files that the pattern `parts` leads to from `folder`, some perhaps more than once."""
    if not parts:
        yield from _below(folder)
        return
    first, *rest = parts
    if first == "**":
        yield from _matches(folder, rest)
        for inner in _real_folders(folder):
            yield from _matches(inner, parts)
        return
    for entry in _entries(folder, hidden=first.startswith(".")):
        if fnmatchcase(entry.name, first):
            if entry.is_dir():
                yield from _matches(entry, rest)
            elif not rest:
                yield entry


def _below(folder: Path) -> Iterator[Path]:
    yield from (entry for entry in _entries(folder) if not entry.is_dir())
    for inner in _real_folders(folder):
        yield from _below(inner)


def _real_folders(folder: Path) -> list[Path]:
    return [entry for entry in _entries(folder) if entry.is_dir() and not entry.is_symlink()]


def _entries(folder: Path, *, hidden: bool = False) -> list[Path]:
    return [entry for entry in folder.iterdir() if hidden or not entry.name.startswith(".")]


def _shard(root: Path, path: Path) -> SourceShard:
    name = path.relative_to(root).as_posix()
    if not is_safe(name):
        raise UsageError(
            message(
                "a source file has a name that a manifest cannot hold",
                "rename it: use printable characters and no backslash",
                file=ascii(str(path)),
            )
        )
    try:
        return SourceShard(path=name, bytes=files.state_of(path).st_size)
    except files.Refused as error:
        wrong, action = "a source is not a regular file", "copy it into a file first"
        raise UsageError(message(wrong, action, source=path, found=error.strerror)) from None


def _bare_names(manifest: SourceManifest) -> set[str]:
    """Return the bare names that belong to one file only."""
    counts = Counter(PurePosixPath(file.path).name for file in manifest.files)
    return {name for name, count in counts.items() if count == 1}


def _place(file: SourceShard, root: Path, bare_names: set[str]) -> Path | None:
    bare = PurePosixPath(file.path).name
    places = [root / file.path, root / bare] if bare in bare_names else [root / file.path]
    return next((place for place in places if place.is_file()), None)
