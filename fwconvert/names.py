"""The names of output files. Each follows from the recipe, never from what ran when or where."""

import hashlib
import re
from functools import lru_cache
from typing import Literal

from fwconvert.config import Recipe, Rules

Split = Literal["val", "train"]

SUFFIX = ".bin"


def job_shard(rules: Rules, split: Split, source_index: int, block: int) -> str:
    """Return the name of a token shard that a job makes (independent layout)."""
    return f"{rules.name}_{split}_{source_index:05d}_{block:0{rules.block_digits}d}{SUFFIX}"


def joined_shard(recipe: Recipe, split: Split, number: int) -> str:
    """Return the name of a token shard that the join makes."""
    if recipe.rules.layout == "contiguous":
        return f"{recipe.rules.name}_{split}_{number:06d}{SUFFIX}"
    return job_shard(recipe.rules, split, len(recipe.source.files), number)


def index(shard: str) -> str:
    """Return the name of the document index of a token shard, in the folder index/."""
    return f"{shard.removesuffix(SUFFIX)}.docs"


def is_shard(rules: Rules, file_name: str) -> bool:
    """Tell whether a file in the output folder looks like one of the run's token shards."""
    pattern = rf"{re.escape(rules.name)}_(val|train)_[0-9]+(_[0-9]+)?{re.escape(SUFFIX)}"
    return re.fullmatch(pattern, file_name) is not None


@lru_cache(4096)  # asked for several times while a job is in hand
def job_key(path: str) -> str:
    """Return a file name for a job: readable, safe on every system, different for different paths."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", path)[-80:]
    return f"{readable}-{hashlib.sha256(path.encode()).hexdigest()[:12]}"
