"""From what a user asks for, by names and flags, to a recipe and the folder of its files."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from fwconvert import formats, kinds, records
from fwconvert import where as expressions
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
from fwconvert.sources import catalog, demo, objects
from fwconvert.store.bucket import Bucket, is_uri
from fwconvert.tokens import registry

# The demo has about 4 million tokens: small shards show every kind of file.
DEMO_SHARD_TOKENS = 250_000
NAME = "edu_fineweb"

Compression = Literal["none", "zstd"]


def recipe(  # noqa: PLR0913  # every choice is one of its own
    *,
    version: str | None = None,
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    tokenizer: str = "gpt2",
    format: FormatName = "llmc",  # noqa: A002  # as the flag is called
    eot: EotSide | None = None,
    text_column: str = "text",
    shard_tokens: int | None = None,
    val_tokens: int | None = None,
    layout: Layout | None = None,
    last: Last | None = None,
    compress: Compression | None = None,
    name: str | None = None,
    min_score: float | None = None,
    min_int_score: int | None = None,
    where: str | None = None,
    limit_documents: int | None = None,
    limit_tokens: int | None = None,
) -> Recipe:
    """Return the recipe of a published version, or of the files of text that `source` names: one, or several.

    The choices are the flags of the command line, and mean the same. None is the
    default, which may depend on the other choices. The recipe remembers where its
    files are if they are on this machine. Raises UsageError for what cannot be
    carried out; writes nothing but the demo's files, in their cache.
    """
    given = dict(locals())  # Nothing else is known yet.
    if isinstance(source, list | tuple):
        given["source"] = [os.fspath(one) if isinstance(one, os.PathLike) else one for one in source]
    types = get_type_hints(recipe) | {"source": str | os.PathLike[str] | list[str] | None}
    records.check_values(given, types)
    manifest, root = sources(version, given["source"])
    spec, kind = registry.find(tokenizer), formats.find(format)
    usual = shape(kind, demo=version == "demo")
    size = usual["shard_tokens"] if shard_tokens is None else shard_tokens
    a_shard = size or (DEMO_SHARD_TOKENS if version == "demo" else SHARD_TOKENS)
    rules = Rules(
        **registry.as_rules(spec),
        eot=eot or kind.eot,
        text_column=text_column,
        shard_tokens=size,
        val_tokens=a_shard if val_tokens is None else val_tokens,
        layout=layout or usual["layout"],
        format=format,
        name=usual["name"] if name is None else name,
        block_digits=1,
        last=last or usual["last"],
        compress=compression(compress),
        # One number, one text: 3 and 3.0, or 0 and -0.0, are no two recipes.
        min_score=None if min_score is None else float(min_score) + 0.0,
        min_int_score=min_int_score,
        where=None if where is None else expressions.text(expressions.parse(where)),
        limit_documents=limit_documents,
        limit_tokens=limit_tokens,
    )
    digits = block_digits(manifest.files, rules.block_tokens)
    return Recipe(manifest, check_rules(msgspec.structs.replace(rules, block_digits=digits))).at(root)


def with_files(recipe: Recipe, files: tuple[SourceShard, ...]) -> Recipe:
    """Return the recipe of a version that does not list its files, with the files."""
    source = msgspec.structs.replace(recipe.source, files=files)
    source.check()
    digits = block_digits(files, recipe.rules.block_tokens)
    return Recipe(source, msgspec.structs.replace(recipe.rules, block_digits=digits)).at(recipe.place)


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


def shape(kind: Format, *, demo: bool = False) -> dict[str, Any]:
    """Return the rules of a format that nobody has told otherwise."""
    if kind.is_one_stream:  # It has no shards to choose the size, the layout or the names of.
        return {"shard_tokens": 0, "layout": "contiguous", "last": "keep", "name": ""}
    size = DEMO_SHARD_TOKENS if demo else SHARD_TOKENS
    return {"shard_tokens": size, "layout": "independent", "last": "merge", "name": NAME}


def compression(compress: Compression | None) -> str | None:
    """Return what decides the bytes of compressed shards: other versions of zstd give other bytes."""
    if compress in (None, "none"):
        return None
    import zstandard  # noqa: PLC0415  # only for those who ask for it

    return f"zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}, level {formats.ZIP_LEVEL}"


def changed_rules(rules: Rules, given: Mapping[str, Any]) -> Rules:
    """Return the rules with the choices in `given`, by the names that they have in `recipe`."""
    changes = {name: value for name, value in given.items() if name in Rules.__struct_fields__}
    if "tokenizer" in changes:
        changes |= registry.as_rules(registry.find(changes["tokenizer"]))
    if "compress" in changes:
        changes["compress"] = compression(changes["compress"])
    if changes.get("min_score") is not None:
        changes["min_score"] = float(changes["min_score"]) + 0.0
    if changes.get("where") is not None:
        changes["where"] = expressions.text(expressions.parse(changes["where"]))
    return msgspec.structs.replace(rules, **changes)


def sources(
    version: str | None, source: str | os.PathLike[str] | Sequence[str] | None
) -> tuple[SourceManifest, Path | str | None]:
    """Return the files that are meant, and the folder that their paths start from if they are here."""
    named = [os.fspath(source)] if isinstance(source, str | os.PathLike) else [*(source or ())]
    if version is None:
        if not named:
            raise UsageError(
                message(
                    "there is nothing to convert",
                    f"pass --version demo to try it, --version 10B, or --source DIR with {kinds.ALL}",
                )
            )
        return _named(named)
    manifest = catalog.find(version)
    if manifest.dataset == "demo":
        if named:
            raise UsageError(
                message(
                    "--source cannot be combined with --version demo, which generates its own files",
                    "drop --source to see the demo, or --version to convert your files",
                    source=named[0],
                )
            )
        return _demo(manifest)
    if not named:
        if manifest.dataset == catalog.LOCAL:
            raise UsageError(
                message(
                    "this manifest lists local files, which are not on the hub",
                    "pass --source DIR, the folder that holds them",
                    manifest=version,
                )
            )
        return manifest, None
    if len(named) > 1:
        action = "name the one folder that holds the files of the version"
        raise UsageError(message("--version takes one --source", action, given=f"{len(named)} times"))
    if is_uri(named[0]):
        return manifest, Bucket.at(named[0]).uri
    root = Path(named[0]).expanduser()
    if not root.is_dir():
        raise UsageError(message("--source must be a folder when --version is given", source=named[0]))
    return manifest, root


def _named(sources: Sequence[str]) -> tuple[SourceManifest, Path | str]:
    """Return the files that several folders, patterns or addresses name, in that order."""
    remote = [one for one in sources if is_uri(one)]
    if remote and len(remote) < len(sources):
        raise UsageError(
            message(
                "several --source of one run are all on this machine, or all in one bucket",
                "copy some of them, or convert them one by one",
                here=next(one for one in sources if not is_uri(one)),
                in_a_bucket=remote[0],
            )
        )
    return objects.find_several(sources) if remote else catalog.several(sources)


def _demo(manifest: SourceManifest) -> tuple[SourceManifest, Path]:
    paths = demo.make(demo.cache_folder())
    root = paths[0].parent
    files = records.read(root / demo.RECORD, demo.Corpus).files
    totals = Totals(len(files), sum(file.bytes for file in files))
    return SourceManifest("demo", manifest.dataset, manifest.revision, "", files, totals), root
