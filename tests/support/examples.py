"""A recipe for tests that need some recipe, and ways to change a part of it; settings for property tests."""

from typing import Any

import msgspec
from hypothesis import HealthCheck, settings

from fwconvert.recipes import Recipe, Rules, SourceManifest, SourceShard, Totals

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

RULES = Rules(
    tokenizer="gpt2",
    vocabulary_sha256="ab" * 32,
    eot="before",
    token_type="uint16",
    text_column="text",
    shard_tokens=100_000_000,
    val_tokens=100_000_000,
    layout="independent",
    format="llmc",
    name="edu_fineweb",
    block_digits=3,
)
# Another value for each rule.
CHANGED_RULES: dict[str, Any] = {
    "tokenizer": "cl100k_base",
    "vocabulary_sha256": "ef" * 32,
    "tokenizer_kind": "tokenizer.json",
    "vocabulary_size": 60_000,
    "eot_id": 59_999,
    "eot": "after",
    "token_type": "uint32",
    "text_column": "body",
    "shard_tokens": 99,
    "val_tokens": 0,
    "layout": "contiguous",
    "format": "npy",
    "name": "other",
    "block_digits": 4,
    "last": "merge",
    "compress": "zstd 1.5.7, level 3",
    "min_score": 2.5,
    "min_int_score": 3,
    "where": "score",
    "limit_documents": 1000,
    "limit_tokens": 2000,
    "bos_id": 50_000,
    "sequence_length": 2048,
    "writer": "pyarrow 26.0.1",
}
FILES = (SourceShard("a/0.parquet", 10, "cd" * 32), SourceShard("a/1.parquet", 20))
SOURCE = SourceManifest("10B", "some/dataset", "main", "a", FILES, Totals(2, 30))
RECIPE = Recipe(SOURCE, RULES)


def rules_with(**changes: Any) -> Rules:
    return msgspec.structs.replace(RULES, **changes)


def recipe_with(**changes: Any) -> Recipe:
    """Return the recipe with other sources."""
    return Recipe(msgspec.structs.replace(SOURCE, **changes), RULES)
