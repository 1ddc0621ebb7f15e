"""A run in words: what its recipe means, how long and how large, and how each trainer loads it."""

import shlex
from dataclasses import dataclass

from fwconvert import kinds, trainers
from fwconvert.recipes import Rules
from fwconvert.store.run_manifest import RunManifest


@dataclass(frozen=True)
class Way:
    """How one trainer loads the run: a line to copy, or to set."""

    trainer: str
    line: str


def recipe_in_words(manifest: RunManifest) -> list[tuple[str, str]]:
    """Return what the recipe decides, each with what it means."""
    rules, files = manifest.rules, len(manifest.sources)
    dataset = {"local": "on this machine", "demo": "of a small made-up corpus"}
    origin = dataset.get(manifest.dataset, f"of {manifest.dataset}")
    revision = f", at revision {manifest.revision}" if manifest.revision else ""
    found = [
        ("Sources", f"{number(files, _kind(manifest))} {origin}{revision}, {size(_bytes(manifest))}."),
        ("Text", f"The column “{rules.text_column}”{_choice(rules)}"),
        (
            "Tokens",
            f"{rules.tokenizer}, ids of {rules.token_bytes * 8} bits; {rules.separated}.",
        ),
        ("Token shards", _shards(rules)),
        ("Validation", _validation(rules)),
        ("The rest", _last(rules)),
    ]
    if rules.is_limited:
        limits = [
            f"after {limit:,} {what}"
            for limit, what in ((rules.limit_documents, "documents"), (rules.limit_tokens, "tokens"))
            if limit is not None
        ]
        found.append(("Limit", f"The run ends {' or '.join(limits)}, whichever is first."))
    return [(name, text) for name, text in found if text]


def _kind(manifest: RunManifest) -> str:
    """Return what a source is."""
    found = {kinds.of(file.path) for file in manifest.sources}
    return f"{found.pop()} file" if len(found) == 1 and None not in found else "file"


def _bytes(manifest: RunManifest) -> int:
    return sum(file.bytes for file in manifest.sources)


def _choice(rules: Rules) -> str:
    kept = []
    if rules.min_score is not None:
        kept.append(f"score ≥ {rules.min_score:g}")
    if rules.min_int_score is not None:
        kept.append(f"int_score ≥ {rules.min_int_score}")
    if rules.where is not None:
        kept.append(rules.where)
    return f" of the rows where {' and '.join(kept)}." if kept else " of every row; empty ones are skipped."


def _shards(rules: Rules) -> str:
    kind = f"{rules.format} ({rules.shard_format.trainer})"
    if rules.shard_format.is_one_stream:
        return f"One file for training and one for validation, in the format {kind}."
    whose = "each source has its own" if rules.layout == "independent" else "one stream over all sources"
    packed = ", compressed with zstd" if rules.compress else ""
    return f"Exactly {rules.shard_tokens:,} tokens each, {whose}, in the format {kind}{packed}."


def _validation(rules: Rules) -> str:
    if not rules.val_tokens:
        return "No validation shard was asked for."
    return f"The first {rules.val_tokens:,} tokens of the first source, if it has so many."


def _last(rules: Rules) -> str:
    if rules.shard_format.is_one_stream:
        return ""
    return {
        "merge": "Tokens that fill no last shard are merged into the one before.",
        "keep": "Tokens that fill no last shard are a shard of their own.",
        "drop": "Tokens that fill no last shard are left out, and counted.",
    }[rules.last]


def where_separated(rules: Rules) -> str:
    """Return where a separator stands: before or after each document, or both."""
    return "before and after" if rules.separators_each == 2 else rules.eot


def ways(manifest: RunManifest, address: str, program: str) -> list[Way]:
    """Return how each trainer loads the run; for those that need another format, how to make it."""
    rules = manifest.rules
    there = shlex.quote(address)
    own = [
        Way(
            "fwconvert",
            f'from fwconvert.loader import Loader\nloader = Loader("{address}", seq_len=1024, batch=8)',
        )
    ]
    if rules.compress:
        unpacked = Way("Other trainers", f"{program} export {there} --compress none -o NEW")
        return [*own, unpacked]
    named = [line.name for line in manifest.shards if line.split == "train"]
    first = f"{address}/{named[0] if named else f'train{rules.suffix}'}"
    header = rules.shard_format.header_bytes
    if rules.shard_format.is_table:
        line = f'import pyarrow.parquet as pq\nrows = pq.read_table("{first}")["input_ids"]'
        own.append(Way("pyarrow", line))
    else:
        line = (
            f'import numpy as np\ntokens = np.memmap("{first}", np.{rules.token_type}, "r", offset={header})'
        )
        own.append(Way("numpy", line))
    shards = manifest.headline.train_shards
    read = [
        Way(one.trainer, one.line) for one in trainers.readings(rules, address, shards) if not one.why_not
    ]
    return [*own, *read, *(Way(*other) for other in trainers.exports(rules, address, program))]


def number(count: int, what: str) -> str:
    """Return a count and what is counted."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Return bytes for people."""
    return scaled(count, "B")


def scaled(count: float, unit: str = "") -> str:
    """Return a number with three digits or so, and k, M, G or T before its unit."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(count) >= 10**power:
            return f"{count / 10**power:.3g} {prefix}{unit}".rstrip()
    return f"{count:.3g} {unit}".rstrip() if count % 1 else f"{int(count):,} {unit}".rstrip()


def billions(count: float) -> str:
    """Return a number of tokens as this field writes it: 9.82B, 350k."""
    for power, letter in ((12, "T"), (9, "B"), (6, "M"), (3, "k")):
        if abs(count) >= 10**power:
            return f"{count / 10**power:.3g}{letter}"
    return f"{count:,.0f}"


def duration(seconds: float) -> str:
    """Return a time for people."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"
