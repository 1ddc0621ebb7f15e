"""From what a user asks for, by names and flags, to a recipe and the folder of its files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from fwconvert import formats, records, where
from fwconvert import where as expression
from fwconvert.errors import UsageError, message
from fwconvert.formats import Format, FormatName
from fwconvert.recipes import (
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
from fwconvert.sources import catalog, demo
from fwconvert.tokens import vocabulary

# The demo has about 4 million tokens: small shards show every kind of file.
DEMO_SHARD_TOKENS = 250_000
NAME = "edu_fineweb"

Compression = Literal["none", "zstd"]

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
    compress: Compression | None = None
    name: str | None = None
    min_score: float | None = None
    min_int_score: int | None = None
    where: str | None = None
    limit_documents: int | None = None
    limit_tokens: int | None = None


def resolve(request: Request) -> Recipe:
    """Return the recipe; it remembers where its files are if they are on this machine."""
    records.check(request)
    manifest, root = _sources(request)
    return Recipe(manifest, _rules(request, manifest)).at(root)


def make_recipe(**choices: Any) -> Recipe:
    """Return `resolve(Request(...))`: the short way for Python programs."""
    paths = {name: str(path) for name, path in choices.items() if isinstance(path, Path)}
    return resolve(Request(**{**choices, **paths}))


def with_files(recipe: Recipe, files: tuple[SourceShard, ...]) -> Recipe:
    """Return the recipe of a version that does not list its files, with the files."""
    source = msgspec.structs.replace(recipe.source, files=files)
    source.check()
    digits = block_digits(files, recipe.rules.block_tokens)
    return Recipe(source, msgspec.structs.replace(recipe.rules, block_digits=digits)).at(recipe.root)


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
    usual = shape(kind, demo=request.version == "demo")
    shard_tokens = _chosen(request.shard_tokens, usual["shard_tokens"])
    rules = Rules(
        tokenizer=request.tokenizer,
        vocabulary_sha256=chosen.sha256,
        eot=_chosen(request.eot, kind.eot),
        token_type=chosen.token_type,
        text_column=request.text_column,
        shard_tokens=shard_tokens,
        val_tokens=_chosen(request.val_tokens, shard_tokens or default),
        layout=_chosen(request.layout, usual["layout"]),
        format=kind.name,
        name=_chosen(request.name, usual["name"]),
        block_digits=1,
        last=_chosen(request.last, usual["last"]),
        compress=method(request.compress),
        # One number, one text: 3 and 3.0, or 0 and -0.0, are no two recipes.
        min_score=None if request.min_score is None else float(request.min_score) + 0.0,
        min_int_score=request.min_int_score,
        where=None if request.where is None else expression.text(where.parse(request.where)),
        limit_documents=request.limit_documents,
        limit_tokens=request.limit_tokens,
    )
    digits = block_digits(manifest.files, rules.block_tokens)
    return check_rules(msgspec.structs.replace(rules, block_digits=digits))


def shape(kind: Format, *, demo: bool = False) -> dict[str, Any]:
    """Return the rules of a format that nobody has told otherwise."""
    if kind.is_one_stream:  # It has no shards to choose the size, the layout or the names of.
        return {"shard_tokens": 0, "layout": "contiguous", "last": "keep", "name": ""}
    size = DEMO_SHARD_TOKENS if demo else SHARD_TOKENS
    return {"shard_tokens": size, "layout": "independent", "last": "merge", "name": NAME}


def method(compress: Compression | None) -> str | None:
    """Return what decides the bytes of compressed shards: zstd gives others in other versions."""
    if compress in (None, "none"):
        return None
    import zstandard  # noqa: PLC0415  # only for those who ask for it

    return f"zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}, level {formats.ZIP_LEVEL}"


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
        if request.source is not None:
            raise UsageError(
                message(
                    "the demo makes the files that it converts, so --source cannot be given with it",
                    "leave --source out to see the demo, or --version out to convert your files",
                    source=request.source,
                )
            )
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
