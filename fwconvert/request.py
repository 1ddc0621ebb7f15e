"""From what a user asks for, by names and flags, to a recipe and the folder of its files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fwconvert import catalog, demo, formats, records, vocabulary
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
from fwconvert.formats import FormatName

# The demo has about 4 million tokens: small shards show every kind of file.
DEMO_SHARD_TOKENS = 250_000
NAME = "edu_fineweb"

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What a user asks for. None: the default, which may depend on the rest."""

    version: str | None = None
    source: str | None = None
    tokenizer: str = "gpt2"
    format: FormatName = "llmc"
    eot: EotSide | None = None
    text_column: str = "text"
    shard_tokens: int | None = None
    val_tokens: int | None = None
    layout: Layout | None = None
    last: Last | None = None
    name: str | None = None


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
    digits = block_digits(files, recipe.rules.block_tokens)
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
    chosen, kind = vocabulary.find(request.tokenizer), formats.find(request.format)
    default = DEMO_SHARD_TOKENS if request.version == "demo" else SHARD_TOKENS
    # What is one stream has no shards to choose the size, the layout or the names of.
    size, name = (0, "") if kind.is_one_stream else (default, NAME)
    layout: Layout = "contiguous" if kind.is_one_stream else "independent"
    last: Last = "keep" if kind.is_one_stream else "merge"
    shard_tokens = _chosen(request.shard_tokens, size)
    rules = Rules(
        tokenizer=request.tokenizer,
        vocabulary_sha256=chosen.sha256,
        eot=_chosen(request.eot, kind.eot),
        token_type=chosen.token_type,
        text_column=request.text_column,
        shard_tokens=shard_tokens,
        val_tokens=_chosen(request.val_tokens, shard_tokens or default),
        layout=_chosen(request.layout, layout),
        format=kind.name,
        name=_chosen(request.name, name),
        block_digits=1,
        last=_chosen(request.last, last),
    )
    digits = block_digits(manifest.files, rules.block_tokens)
    return check_rules(msgspec.structs.replace(rules, block_digits=digits))


def _chosen(given: T | None, default: T) -> T:
    return default if given is None else given


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
