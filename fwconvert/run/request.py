"""From what a user asks for, by names and flags, to a recipe and the folder of its files."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from fwconvert import formats, kinds, records
from fwconvert import where as expressions
from fwconvert.errors import ManifestError, UsageError, message
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
from fwconvert.store import layout, saved_recipe
from fwconvert.store.base import Store
from fwconvert.store.bucket import Bucket, is_uri
from fwconvert.store.local import absolute, open_store
from fwconvert.tokens import registry
from fwconvert.tokens.given import Kept
from fwconvert.tokens.spec import TokenizerSpec

# The demo has about 4 million tokens: small shards show every kind of file.
DEMO_SHARD_TOKENS = 250_000
NAME = "edu_fineweb"

Compression = Literal["none", "zstd"]


def recipe(  # noqa: PLR0913  # every choice is one of its own
    *,
    version: str | None = None,
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    tokenizer: str = "gpt2",
    eot_token: str | int | None = None,
    bos_token: str | int | None = None,
    format: FormatName = "llmc",  # noqa: A002  # as the flag is called
    eot: EotSide | None = None,
    text_column: str = "text",
    shard_tokens: int | None = None,
    val_tokens: int | None = None,
    layout: Layout | None = None,
    last: Last | None = None,
    compress: Compression | None = None,
    sequence_length: int | None = None,
    name: str | None = None,
    min_score: float | None = None,
    min_int_score: int | None = None,
    where: str | None = None,
    limit_documents: int | None = None,
    limit_tokens: int | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Recipe:
    """Return the recipe of a published version, or of the files of text that `source` names: one, or several.

    The choices are the flags of the command line, and mean the same. None is the
    default, which may depend on the other choices. The recipe remembers where its
    files are if they are on this machine. `out` is the run that it may continue: it
    has the tokenizer whose file, or whose repository, is not there any more. Raises
    UsageError for what cannot be carried out; writes nothing but the demo's files, in their cache.
    """
    given = dict(locals())  # Nothing else is known yet.
    if isinstance(source, list | tuple):
        given["source"] = [os.fspath(one) if isinstance(one, os.PathLike) else one for one in source]
    types = get_type_hints(recipe) | {"source": str | os.PathLike[str] | list[str] | None}
    records.check_values(given, types)
    manifest, root = sources(version, given["source"])
    kind = formats.find(format)
    spec, side = separated(tokenizer, eot, eot_token, bos_token, lambda: kept_tokenizer(out))
    usual = shape(kind, demo=version == "demo")
    size = usual["shard_tokens"] if shard_tokens is None else shard_tokens
    a_shard = size or (DEMO_SHARD_TOKENS if version == "demo" else SHARD_TOKENS)
    rules = Rules(
        **registry.as_rules(spec),
        eot=side or kind.eot,
        text_column=text_column,
        shard_tokens=size,
        val_tokens=a_shard if val_tokens is None else val_tokens,
        layout=layout or usual["layout"],
        format=format,
        name=usual["name"] if name is None else name,
        block_digits=1,
        last=last or usual["last"],
        compress=compression(compress),
        **windows(kind, sequence_length),
        # One number, one text: 3 and 3.0, or 0 and -0.0, are no two recipes.
        min_score=None if min_score is None else float(min_score) + 0.0,
        min_int_score=min_int_score,
        where=None if where is None else expressions.text(expressions.parse(where)),
        limit_documents=limit_documents,
        limit_tokens=limit_tokens,
    )
    digits = block_digits(manifest.files, rules.block_tokens)
    return Recipe(manifest, check_rules(msgspec.structs.replace(rules, block_digits=digits))).at(root)


def separated(
    tokenizer: str | TokenizerSpec,
    eot: EotSide | None,
    eot_token: str | int | None,
    bos_token: str | int | None,
    kept: Callable[[], Kept | None] = lambda: None,
) -> tuple[TokenizerSpec, EotSide | None]:
    """Return a tokenizer with the separators of documents, and their side; None where nobody decides it.

    A tokenizer that a run has already need not be found by its name. `kept` returns the one that the
    run has which is continued.
    """
    ends, begins = (None if one is None else str(one) for one in (eot_token, bos_token))
    if isinstance(tokenizer, str):
        spec = registry.find(tokenizer, ends, begins, kept)
    else:
        spec = registry.reseparated(tokenizer, ends, begins, kept)
    if begins is None:
        return spec, eot
    side: EotSide = "before" if ends is None else "after"
    if ends is not None and eot is not None:
        raise UsageError(
            message(
                "--eot says where one separator is, and here are two: --bos-token begins each document and "
                "--eot-token ends it",
                "leave --eot out, or write one separator: drop --bos-token or --eot-token",
                bos_token=begins,
                eot_token=ends,
                eot=eot,
            )
        )
    if eot not in (None, side):
        raise UsageError(
            message(
                "--bos-token begins each document, so it cannot be after it",
                "leave --eot out, or pass --eot-token instead of --bos-token",
                bos_token=begins,
                eot=eot,
            )
        )
    return spec, side


def kept_tokenizer(out: str | os.PathLike[str] | Store | None) -> Kept | None:
    """Return the tokenizer of the run in `out`, if there is a run and its tokenizer is not built in."""
    if out is None:
        return None
    try:
        store = open_store(absolute(out)) if isinstance(out, str | os.PathLike) else out
        store.refuse_links()
        return registry.kept(saved_recipe.read_plan(store).rules, store.pull(layout.VOCABULARIES))
    except (UsageError, ManifestError):  # There is no run, or one that cannot be read: its owner will say so.
        return None


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


def windows(kind: Format, sequence_length: int | None) -> dict[str, Any]:
    """Return the rules that formats with windows, and tables, have beside the others."""
    if kind.has_windows and sequence_length is None:
        sequence_length = formats.SEQUENCE_LENGTH
    if not kind.is_table:
        return {"sequence_length": sequence_length, "writer": None}
    from fwconvert.shards import table  # noqa: PLC0415  # loads pyarrow

    return {"sequence_length": sequence_length, "writer": table.writer()}


def changed_rules(
    rules: Rules, given: Mapping[str, Any], kept: Callable[[], Kept | None] = lambda: None
) -> Rules:
    """Return the rules with the choices in `given`, by the names that they have in `recipe`.

    `kept` is as for `separated`.
    """
    changes = {name: value for name, value in given.items() if name in Rules.__struct_fields__}
    ends, begins = given.get("eot_token"), given.get("bos_token")
    if "tokenizer" in changes or (ends, begins) != (None, None):
        if rules.bos_id is not None:  # Who names one of two leaves the other as it is.
            ends = rules.eot_id if ends is None else ends
            begins = rules.bos_id if begins is None else begins
        tokenizer = changes.get("tokenizer") or registry.of_rules(rules)
        spec, side = separated(tokenizer, changes.get("eot"), ends, begins, kept)
        changes |= registry.UNSEPARATED | registry.as_rules(spec) | ({} if side is None else {"eot": side})
    if "format" in changes or "sequence_length" in changes:
        kind = formats.find(changes.get("format", rules.format))
        length = changes.get("sequence_length", rules.sequence_length if kind.has_windows else None)
        changes |= windows(kind, length)
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
