"""The names of output files. Each follows from the recipe, never from what ran when or where."""

import hashlib
import re
from functools import lru_cache
from typing import Literal

from fwconvert.config import Recipe, Rules
from fwconvert.formats import ZIPPED

Split = Literal["val", "train"]

_INDEX_SUFFIX = ".docs"


def job_shard(rules: Rules, split: Split, source_index: int, block: int) -> str:
    """Return the name of a token shard that a job makes (independent layout)."""
    return f"{rules.name}_{split}_{source_index:05d}_{block:0{rules.block_digits}d}{rules.suffix}"


def joined_shard(recipe: Recipe, split: Split, number: int) -> str:
    """Return the name of a token shard that the join makes."""
    rules = recipe.rules
    if rules.kind.is_one_stream:
        return f"{split}{rules.suffix}"
    if rules.layout == "contiguous":
        return f"{rules.name}_{split}_{number:06d}{rules.suffix}"
    return job_shard(rules, split, len(recipe.source.files), number)


def index(shard: str) -> str:
    """Return the name of the document index of a token shard, in the folder index/."""
    whole = shard.removesuffix(ZIPPED)
    return f"{whole.rpartition('.')[0] or whole}{_INDEX_SUFFIX}"


def sidecars(rules: Rules, shard: str) -> list[str]:
    """Return the names of the files beside a token shard, in the order of their suffixes."""
    kind = rules.kind
    return [shard.removesuffix(kind.suffix) + suffix for suffix in kind.sidecars]


def is_shard(rules: Rules, file_name: str) -> bool:
    """Tell whether a file in the output folder looks like one of the run's token shards."""
    stem = "(val|train)"
    if not rules.kind.is_one_stream:
        stem = rf"{re.escape(rules.name)}_{stem}_[0-9]+(_[0-9]+)?"
    return re.fullmatch(stem + re.escape(rules.suffix), file_name) is not None


def owner(rules: Rules, file_name: str) -> str | None:
    """Return the token shard that a file in the output folder looks like, or would stand beside."""
    for suffix in (rules.suffix, *rules.kind.sidecars):
        shard = file_name.removesuffix(suffix) + rules.suffix
        if file_name.endswith(suffix) and is_shard(rules, shard):
            return shard
    return None


def index_owner(rules: Rules, file_name: str) -> str | None:
    """Return the token shard whose document index a file in index/ looks like."""
    shard = file_name.removesuffix(_INDEX_SUFFIX) + rules.suffix
    return shard if file_name.endswith(_INDEX_SUFFIX) and is_shard(rules, shard) else None


@lru_cache(4096)  # asked for several times while a job is in hand
def job_key(path: str) -> str:
    """Return a file name for a job: readable, safe on every system, different for different paths."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", path)[-80:]
    return f"{readable}-{hashlib.sha256(path.encode()).hexdigest()[:12]}"
