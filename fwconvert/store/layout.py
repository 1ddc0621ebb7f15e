"""The names of all files of a run, relative to its folder. Nothing is opened here, and nobody else makes one.

Names of output follow from the recipe, never from what ran when or where.
Sorted names are in the order of the stream: numbers have a fixed number of
digits, and one that does not fit is an x and nine digits, which sorts behind
them (by code point, and in the locales that people use). Runs of the first
versions just have longer numbers there; they keep them (`plain`).
"""

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from fwconvert.formats import ZIPPED
from fwconvert.recipes import Recipe, Rules

Split = Literal["val", "train"]

# What people and loaders look at. Token shards and their side files stand beside the run manifest.
MANIFEST = "manifest.json"
INDEX = "index"

# Everything else.
PRIVATE = ".fwconvert"
PLAN = f"{PRIVATE}/plan.json"  # the recipe with all its sources
PLACES = f"{PRIVATE}/places.json"  # where the sources were on this machine: a hint
LOCK = f"{PRIVATE}/lock"  # held by the session at work
RECEIPTS = f"{PRIVATE}/receipts"  # one for each finished job
JOINS = f"{PRIVATE}/joins"  # one receipt for each finished joined shard
QUARANTINE = f"{PRIVATE}/quarantine"  # one record for each job that was given up
TAILS = f"{PRIVATE}/tails"  # tokens that wait for the join
SOURCES = f"{PRIVATE}/sources"  # fetched, not converted yet
TEMPORARY = f"{PRIVATE}/temporary"  # drafts
SESSIONS = f"{PRIVATE}/sessions"  # one record for each
VOCABULARIES = f"{PRIVATE}/vocabularies"  # rank tables that do not ship with the package
LOGS = f"{PRIVATE}/logs"  # what workers and libraries print
STATISTICS = f"{PRIVATE}/statistics"  # one record for each finished job, for the page alone
TIMELINES = f"{PRIVATE}/timelines"  # one record for each session, for the page alone

# What every run has, parents first; and what some have.
FOLDERS = (PRIVATE, INDEX, RECEIPTS, JOINS, QUARANTINE, TAILS, TEMPORARY, SESSIONS, LOGS)
OPTIONAL_FOLDERS = (SOURCES, VOCABULARIES, STATISTICS, TIMELINES)

LOCK_SUFFIX = ".lock"
PULSE_SUFFIX = ".progress"
_INDEX_SUFFIX = ".docs"
_SOURCE_DIGITS = 5


def receipt(key: str) -> str:
    """Return the name of a job's receipt."""
    return f"{RECEIPTS}/{key}.json"


def join_receipt(shard: str) -> str:
    """Return the name of the receipt of a joined shard."""
    return f"{JOINS}/{shard}.json"


def quarantined(key: str) -> str:
    """Return the name of the record of a job that was given up."""
    return f"{QUARANTINE}/{key}.json"


def session(session_id: str) -> str:
    """Return the name of the record of a session."""
    return f"{SESSIONS}/{session_id}.json"


def session_lock(session_id: str) -> str:
    """Return the name of the lock that a session holds while its drafts are in use."""
    return f"{SESSIONS}/{session_id}{LOCK_SUFFIX}"


def pulse(session_id: str) -> str:
    """Return the name of the record of how far a session at work is."""
    return f"{SESSIONS}/{session_id}{PULSE_SUFFIX}"


def statistics(key: str) -> str:
    """Return the name of the record of what a job saw in its source."""
    return f"{STATISTICS}/{key}.json"


def timeline(session_id: str) -> str:
    """Return the name of the record of how fast a session was."""
    return f"{TIMELINES}/{session_id}.json"


def tail(key: str) -> str:
    """Return the name of a job's tail."""
    return f"{TAILS}/{key}.tail"


def tail_index(key: str) -> str:
    """Return the name of the document index of a job's tail."""
    return f"{TAILS}/{key}{_INDEX_SUFFIX}"


def shard(name: str) -> str:
    """Return the name of a token shard or a side file: they stand in the run's folder itself."""
    return name


def index(shard: str) -> str:
    """Return the name of the document index of a token shard."""
    whole = shard.removesuffix(ZIPPED)
    return f"{INDEX}/{whole.rpartition('.')[0] or whole}{_INDEX_SUFFIX}"


def job_shard(rules: Rules, split: Split, source_index: int, block: int, *, plain: bool = False) -> str:
    """Return the name of a token shard that a job makes (independent layout)."""
    source = _numbered(source_index, _SOURCE_DIGITS, plain=plain)
    number = _numbered(block, rules.block_digits, plain=plain)
    return f"{rules.name}_{split}_{source}_{number}{rules.suffix}"


def joined_shard(recipe: Recipe, split: Split, number: int, *, plain: bool = False) -> str:
    """Return the name of a token shard that the join makes."""
    rules = recipe.rules
    if rules.shard_format.is_one_stream:
        return f"{split}{rules.suffix}"
    if rules.layout == "contiguous":
        return f"{rules.name}_{split}_{number:06d}{rules.suffix}"
    return job_shard(rules, split, len(recipe.source.files), number, plain=plain)


def _numbered(number: int, digits: int, *, plain: bool) -> str:
    return f"{number:0{digits}d}" if plain or number < 10**digits else f"x{number:09d}"


def are_plain(rules: Rules, shards: Iterable[str]) -> bool:
    """Return whether one of these names has a number that is too long for its digits, as they once were."""
    if rules.layout == "contiguous":
        return False
    too_long = rf"_([0-9]{{{_SOURCE_DIGITS + 1},}}_x?[0-9]+|x?[0-9]+_[0-9]{{{rules.block_digits + 1},}})"
    pattern = re.compile(f".*{too_long}{re.escape(rules.suffix)}")
    return any(pattern.fullmatch(name) for name in shards)


def sidecars(rules: Rules, shard: str) -> list[str]:
    """Return the names of the files beside a token shard, in the order of their suffixes."""
    kind = rules.shard_format
    return [shard.removesuffix(kind.suffix) + suffix for suffix in kind.sidecars]


def is_shard(rules: Rules, file_name: str) -> bool:
    """Return whether a file in the output folder looks like one of the run's token shards."""
    stem = "(val|train)"
    if not rules.shard_format.is_one_stream:
        stem = rf"{re.escape(rules.name)}_{stem}_x?[0-9]+(_x?[0-9]+)?"
    return re.fullmatch(stem + re.escape(rules.suffix), file_name) is not None


def is_own(recipe: Recipe, shard: str) -> bool:
    """Return whether only this recipe makes a file of this name here, in this version or an earlier one."""
    rules = recipe.rules
    if not is_shard(rules, shard) or rules.shard_format.is_one_stream:
        return is_shard(rules, shard)
    split, *numbers = shard.removesuffix(rules.suffix).removeprefix(f"{rules.name}_").split("_")
    if rules.layout == "contiguous":
        return len(numbers) == 1 and len(numbers[0]) >= 6 and numbers[0].isdecimal()
    if len(numbers) != 2:
        return False
    source, block = (int(number.removeprefix("x")) for number in numbers)
    sources = len(recipe.source.files)
    named = {job_shard(rules, "train", source, block, plain=plain) for plain in (False, True)}
    possible = source <= sources if split == "train" else (source, block) == (0, 0)
    return possible and shard.replace(f"_{split}_", "_train_", 1) in named


def is_served(rules: Rules, file_name: str) -> bool:
    """Return whether the trainers of this format would take a file of this name for one of the run."""
    kind = rules.shard_format
    if kind.is_one_stream:
        return is_shard(rules, file_name)
    if kind.reserved:  # Whatever has the split anywhere in its name.
        return any(word in file_name for word in kind.reserved)
    begins = file_name.startswith((f"{rules.name}_train_", f"{rules.name}_val_"))
    return (begins or kind.takes_all) and file_name.endswith((rules.suffix, *kind.sidecars))


def owner(rules: Rules, file_name: str) -> str | None:
    """Return the token shard that a file in the output folder looks like, or would stand beside."""
    for suffix in (rules.suffix, *rules.shard_format.sidecars):
        shard = file_name.removesuffix(suffix) + rules.suffix
        if file_name.endswith(suffix) and is_shard(rules, shard):
            return shard
    return None


def index_owner(rules: Rules, file_name: str) -> str | None:
    """Return the token shard whose document index a file in index/ looks like."""
    shard = file_name.removesuffix(_INDEX_SUFFIX) + rules.suffix
    return shard if file_name.endswith(_INDEX_SUFFIX) and is_shard(rules, shard) else None


@lru_cache(
    65_536
)  # asked for several times during a job, and of all jobs in flight whenever they are looked at
def job_key(path: str) -> str:
    """Return a file name for a job: readable, safe on every system, different for different paths."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", path)[-80:]
    return f"{readable}-{hashlib.sha256(path.encode()).hexdigest()[:12]}"
