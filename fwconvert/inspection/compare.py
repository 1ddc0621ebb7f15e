"""Compare two runs: their recipes, their counts, their token shards, and where the first difference is.

Token shards are compared by the sha256 in the run manifests, without reading them;
of the first pair that differs the tokens are read, up to the first that is another.
Shards are pairs if they are the same part of the stream, whatever `--name` and
`--format` the runs have.
"""

import os
from contextlib import ExitStack

import numpy as np

from fwconvert.errors import ManifestError, message
from fwconvert.inspection.reader import read_manifest
from fwconvert.recipes import Rules
from fwconvert.records import Part
from fwconvert.shards import shard
from fwconvert.store import layout
from fwconvert.store.base import Store
from fwconvert.store.local import open_store
from fwconvert.store.receipts import ShardLine
from fwconvert.store.run_manifest import RunManifest
from fwconvert.store.saved_recipe import differences

_STEP = 2**22
_COUNTED = (
    "complete", "jobs", "jobs_done", "train_shards", "val_shards", "documents", "tokens",
    "null_rows", "empty_rows", "filtered_rows", "dropped_tokens",
)  # fmt: skip


class FirstDifference(Part, frozen=True):
    """The first token shard that is not the same, and its first other token; None if there is none."""

    a: str
    b: str
    token: int | None
    # The tokens there; None where a shard has ended.
    a_token: int | None
    b_token: int | None
    # What else is to say.
    note: str


class Comparison(Part, frozen=True):
    """Two runs beside each other."""

    a: str
    b: str
    same_recipe: bool
    # What differs in the recipes and in the counts: the values of both.
    recipe: dict[str, tuple[object, object]]
    counts: dict[str, tuple[object, object]]
    equal_shards: tuple[str, ...]
    different_shards: tuple[str, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    first_difference: FirstDifference | None

    @property
    def equal(self) -> bool:
        """Whether both have the same token shards, byte for byte."""
        return not (self.different_shards or self.only_in_a or self.only_in_b)


def compare(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Comparison:
    """Return how the runs in `a` and `b` differ. Changes nothing; raises UsageError if one is no run."""
    one, other = open_store(a), open_store(b)
    first, second = read_manifest(one), read_manifest(other)
    left, right = _by_part(first), _by_part(second)
    both = [part for part in left if part in right]
    differing = [part for part in both if left[part].sha256 != right[part].sha256]
    return Comparison(
        a=one.uri,
        b=other.uri,
        same_recipe=first.recipe_id == second.recipe_id,
        recipe=_recipe_differences(first, second),
        counts={
            name: (getattr(first.headline, name), getattr(second.headline, name))
            for name in _COUNTED
            if getattr(first.headline, name) != getattr(second.headline, name)
        },
        equal_shards=tuple(left[part].name for part in both if part not in set(differing)),
        different_shards=tuple(left[part].name for part in differing),
        only_in_a=tuple(line.name for part, line in left.items() if part not in right),
        only_in_b=tuple(line.name for part, line in right.items() if part not in left),
        first_difference=_first_difference(
            one, first.rules, left[differing[0]], other, second.rules, right[differing[0]]
        )
        if differing
        else None,
    )


def _by_part(manifest: RunManifest) -> dict[str, ShardLine]:
    """Return the token shards by the part of the stream that they are: names without prefix and suffix."""
    rules = manifest.rules
    for line in manifest.shards:
        if not layout.is_shard(rules, line.name):
            raise ManifestError(message("a run manifest names a file that is no token shard", file=line.name))
    prefix = "" if rules.shard_format.is_one_stream else f"{rules.name}_"
    return {
        line.name.removeprefix(prefix).removesuffix(rules.suffix): line
        for line in sorted(manifest.shards, key=lambda line: line.name)
    }


def _recipe_differences(first: RunManifest, second: RunManifest) -> dict[str, tuple[object, object]]:
    told = differences(first.recipe(), second.recipe())
    found: dict[str, tuple[object, object]] = {}
    for name, value in told.items():
        if name.endswith("_in_folder"):
            plain = name.removesuffix("_in_folder")
            found[plain] = (value, told[f"{plain}_in_command"])
        elif name == "sources_missing_now":
            found["sources only in A"] = (value, "")
        elif name == "sources_new":
            found["sources only in B"] = ("", value)
        elif not name.endswith("_in_command"):
            found[name.replace("_", " ")] = (value, value)
    return found


def _first_difference(
    one: Store, rules: Rules, line: ShardLine, other: Store, other_rules: Rules, other_line: ShardLine
) -> FirstDifference:
    with ExitStack() as opened:
        path = opened.enter_context(one.on_disk(layout.shard(line.name)))
        other_path = opened.enter_context(other.on_disk(layout.shard(other_line.name)))
        tokens = shard.read_tokens(path, rules.token_type, rules.shard_format, line.tokens)
        others = shard.read_tokens(
            other_path, other_rules.token_type, other_rules.shard_format, other_line.tokens
        )
        common = min(len(tokens), len(others))
        for begin in range(0, common, _STEP):
            end = min(begin + _STEP, common)
            unequal = np.flatnonzero(tokens[begin:end] != others[begin:end])
            if len(unequal):
                at = begin + int(unequal[0])
                return FirstDifference(line.name, other_line.name, at, int(tokens[at]), int(others[at]), "")
        if len(tokens) != len(others):
            return FirstDifference(
                line.name,
                other_line.name,
                common,
                int(tokens[common]) if common < len(tokens) else None,
                int(others[common]) if common < len(others) else None,
                f"up to here they are equal; one has {len(tokens):,} tokens, the other {len(others):,}",
            )
    formats = {(rules.format, rules.compress, rules.token_type)}
    formats.add((other_rules.format, other_rules.compress, other_rules.token_type))
    reason = (
        "the tokens are the same, in another format"
        if len(formats) > 1
        else "the tokens are the same now: a file is not what its run manifest says (see fwconvert verify)"
    )
    return FirstDifference(line.name, other_line.name, None, None, None, reason)
