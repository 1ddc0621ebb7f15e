"""From what a user asks for, by names and flags, to a recipe and the folder of its files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fwconvert import catalog, demo, records, vocabulary
from fwconvert.config import (
    SHARD_TOKENS,
    EotSide,
    Last,
    Layout,
    Recipe,
    Rules,
    SourceManifest,
    SourceShard,
    Totals,
    block_digits,
    check_rules,
)
from fwconvert.errors import UsageError, message

# The demo has about 4 million tokens: small shards show every kind of file.
DEMO_SHARD_TOKENS = 250_000


@dataclass(frozen=True)
class Request:
    """What a user asks for. None: the default, which may depend on the rest."""

    version: str | None = None
    source: str | None = None
    tokenizer: str = "gpt2"
    eot: EotSide = "before"
    text_column: str = "text"
    shard_tokens: int | None = None
    val_tokens: int | None = None
    layout: Layout = "independent"
    last: Last = "merge"
    name: str = "edu_fineweb"


def resolve(request: Request) -> tuple[Recipe, Path | None]:
    """Return the recipe, and the folder of its files or None if they are not on this machine."""
    manifest, root = _sources(request)
    return Recipe(manifest, _rules(request, manifest)), root


def make_recipe(**choices: Any) -> tuple[Recipe, Path | None]:
    """Return `resolve(Request(...))`: the short way for Python programs."""
    return resolve(Request(**choices))


def with_files(recipe: Recipe, files: tuple[SourceShard, ...]) -> Recipe:
    """Return the recipe of a version that does not list its files, with the files."""
    source = msgspec.structs.replace(recipe.source, files=files)
    source.check()
    digits = block_digits(files, recipe.rules.shard_tokens)
    return Recipe(source, msgspec.structs.replace(recipe.rules, block_digits=digits))


def differences(source: SourceManifest, files: tuple[SourceShard, ...]) -> list[str]:
    """Return a line if these files are not as many, or as large, as the version should have."""
    wanted, size = source.totals, sum(file.bytes for file in files)
    if wanted.files in (0, len(files)) and wanted.bytes in (0, size):
        return []
    return [
        message(
            f"{source.name} was expected to have other files; a mirror may be incomplete",
            expected=f"{wanted.files:,} files, {wanted.bytes:,} bytes",
            listed=f"{len(files):,} files, {size:,} bytes",
        )
    ]


def _rules(request: Request, manifest: SourceManifest) -> Rules:
    chosen = vocabulary.find(request.tokenizer)
    default = DEMO_SHARD_TOKENS if request.version == "demo" else SHARD_TOKENS
    shard_tokens = default if request.shard_tokens is None else request.shard_tokens
    return check_rules(
        Rules(
            tokenizer=request.tokenizer,
            vocabulary_sha256=chosen.sha256,
            eot=request.eot,
            token_type=chosen.token_type,
            text_column=request.text_column,
            shard_tokens=shard_tokens,
            val_tokens=shard_tokens if request.val_tokens is None else request.val_tokens,
            layout=request.layout,
            format="llmc",
            name=request.name,
            block_digits=block_digits(manifest.files, max(1, shard_tokens)),
            last=request.last,
        )
    )


def _sources(request: Request) -> tuple[SourceManifest, Path | None]:
    if request.version is None:
        if request.source is None:
            raise UsageError(
                message(
                    "nothing to convert was named",
                    "pass --version demo to try it, --version 10B, or --source DIR with parquet files",
                )
            )
        return catalog.local(request.source)
    manifest = catalog.find(request.version)
    if manifest.dataset == "demo":
        return _demo(manifest)
    if request.source is None:
        if manifest.dataset == catalog.LOCAL:
            raise UsageError(
                message(
                    "this manifest lists files that are on no hub",
                    "say where they are: --source DIR",
                    manifest=request.version,
                )
            )
        return manifest, None
    root = Path(request.source).expanduser()
    if not root.is_dir():
        raise UsageError(
            message("--source must be a folder when --version names its files", given=request.source)
        )
    return manifest, root


def _demo(manifest: SourceManifest) -> tuple[SourceManifest, Path]:
    paths = demo.make(demo.cache_folder())
    root = paths[0].parent
    files = records.read(root / demo.RECORD, demo.Corpus).files
    totals = Totals(len(files), sum(file.bytes for file in files))
    return SourceManifest("demo", manifest.dataset, manifest.revision, "", files, totals), root
