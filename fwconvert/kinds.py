"""What kinds of files hold text, and which of the files in one place are meant.

Known by their names alone, so that files can be chosen where they are only listed: in a
folder, on the hub, in an object store.
"""

from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

from fwconvert.errors import UsageError, message

Kind = Literal["parquet", "jsonl", "arrow"]
T = TypeVar("T")

PARQUET = ".parquet"
_PACKED = (".gz", ".zst", ".zstd")
_ENDINGS: dict[Kind, tuple[str, ...]] = {
    "parquet": (PARQUET,),
    # What is called .json alone describes a dataset more often than it holds one.
    "jsonl": (
        *(plain + packed for plain in (".jsonl", ".ndjson") for packed in ("", *_PACKED)),
        *(f".json{packed}" for packed in _PACKED),
    ),
    "arrow": (".arrow", ".feather", ".ipc"),
}
# As people read it.
ALL = "parquet, jsonl or Arrow files"


def ending(path: str) -> str:
    """Return how the name of a file with text ends, in lower case; "" if it says nothing."""
    name = path.rpartition("/")[2].lower()
    known = (one for endings in _ENDINGS.values() for one in (*endings, ".json"))
    return next((one for one in known if name.endswith(one)), "")


def of(path: str) -> Kind | None:
    """Return the kind that the name of a file says, or None."""
    found = ending(path)
    if found == ".json":
        return "jsonl"
    return next((kind for kind, endings in _ENDINGS.items() if found in endings), None)


def is_listed(path: str) -> bool:
    """Return whether a file is taken where a folder is named, and not the file itself."""
    # What `datasets` leaves beside the data of a folder: the same documents again.
    is_cache = path.rpartition("/")[2].startswith("cache-") and of(path) == "arrow"
    return ending(path) not in ("", ".json") and not is_cache


def chosen(files: Iterable[T], path_of: Callable[[T], str], place: str) -> list[T]:
    """Return the files that are meant by a place that holds them: parquet, or else the one kind there is.

    Raises UsageError if there is no parquet and more than one other kind: nobody can tell which of them
    has the text, or whether they have the same one.
    """
    by_kind: dict[Kind, list[T]] = {}
    for file in files:
        path = path_of(file)
        kind = of(path)
        if kind is not None and is_listed(path):
            by_kind.setdefault(kind, []).append(file)
    if "parquet" in by_kind:
        return by_kind["parquet"]
    if len(by_kind) > 1:
        raise UsageError(
            message(
                "there are text files of two kinds here, and they may hold the same text",
                "name the ones that are meant: a folder below, or a pattern such as 'DIR/**/*.jsonl'",
                place=place,
                **{kind: f"{len(found):,}, {path_of(found[0])}" for kind, found in by_kind.items()},
            )
        )
    return next(iter(by_kind.values()), [])
