"""The flags that commands share, by what they are for."""

import argparse
from collections.abc import Callable
from typing import Any, TypeAlias, get_args

from fwconvert import formats
from fwconvert.cli import values
from fwconvert.formats import FormatName

# A parser, or a group of its flags.
Group: TypeAlias = "argparse._ActionsContainer"  # noqa: SLF001  # it has no other name


def add_recipe(parser: Group) -> None:
    """Add what decides the output bytes."""
    source = parser.add_argument_group("what to convert")
    source.add_argument(
        "--version", metavar="NAME", type=values.given, help="10B, 100B, 350B, full, demo, or a manifest file"
    )
    source.add_argument(
        "--source",
        metavar="DIR|GLOB|FILE",
        action="append",
        type=values.given,
        help="parquet, jsonl (.gz, .zst) or Arrow files on this machine, or s3://...; several times",
    )
    source.add_argument("--text-column", metavar="NAME", default="text", help="default: text; or a.b.c")
    recipe = parser.add_argument_group("what to make (part of the recipe)")
    add = recipe.add_argument
    add("--tokenizer", metavar="NAME|FILE|OWNER/NAME", default="gpt2", type=values.given,
        help="gpt2 (default), cl100k_base, o200k_base, r50k_base, p50k_base, bytes; "
        "tokenizer.json, NAME.model, NAME.tiktoken; or a model of the hub")  # fmt: skip
    add_shape(recipe)
    add_choice(parser.add_argument_group("which documents (part of the recipe)").add_argument)


def _add_separators(add: Callable[..., object], *, changes: bool) -> None:
    """Add which tokens separate documents."""
    default = "as in OUT" if changes else "<|endoftext|>, or that of the tokenizer's file"
    add("--eot-token", metavar="TOKEN", type=values.given,
        help=f"the separator of documents, by name or id (default: {default})")  # fmt: skip
    add("--bos-token", metavar="TOKEN", type=values.given,
        help="begins each document: alone, or with --eot-token, which then ends it")  # fmt: skip


def add_shape(group: Group, *, changes: bool = False) -> None:
    """Add the flags that decide the files but not the tokens; for an export, those that may differ."""
    add, same = group.add_argument, "as in OUT"
    _add_separators(add, changes=changes)
    _add_choices(group, "--format", get_args(FormatName), default=None if changes else "llmc",
        help="llmc: llm.c, modded-nanogpt; npy: build-nanogpt; raw: nanoGPT, one file; "
        "megatron: Megatron-LM; datatrove: nanotron; nemo: NeMo Automodel; litdata: LitGPT; "
        "mds: LLM Foundry; parquet: a row of input_ids for each document "
        f"(default: {same if changes else 'llmc'})")  # fmt: skip
    side = f"{same}, or that of a new --format" if changes else "before for llmc, npy and nemo, else after"
    _add_choices(
        group, "--eot", ("before", "after"), help=f"where a document's separator is (default: {side})"
    )
    add("--shard-tokens", metavar="N", type=values.count(1, "tokens"),
        help=f"tokens in a shard (default: {same if changes else '100M; demo: 250k'})")  # fmt: skip
    add("--val-tokens", metavar="N", type=values.count(0, "tokens"),
        help="tokens for validation, from the first source "
        f"(default: {same if changes else 'one shard'}; 0: none)")  # fmt: skip
    _add_choices(group, "--layout", ("independent", "contiguous"),
        help="independent: shards per source; contiguous: one stream, as in llm.c "
        f"(default: {same if changes else 'independent'})")  # fmt: skip
    _add_choices(group, "--last", ("merge", "keep", "drop"),
        help="a last shard that is not full: merge it into the one before, keep it or drop it "
        f"(default: {same if changes else 'merge'})")  # fmt: skip
    _add_choices(group, "--compress", ("none", "zstd"), default=None if changes else "none",
        help="zstd: shards to be shipped, not memory-mapped (llmc, npy, raw) "
        f"(default: {same if changes else 'none'})")  # fmt: skip
    add("--sequence-length", metavar="N", type=values.count(formats.LEAST_SEQUENCE_LENGTH, "tokens"),
        help="tokens in a sample (mds) "
        f"(default: {same if changes else formats.SEQUENCE_LENGTH})")  # fmt: skip
    add("--name", metavar="PREFIX",
        help=f"prefix of file names (default: {same if changes else 'edu_fineweb'})")  # fmt: skip


def add_choice(add: Callable[..., object]) -> None:
    """Add which documents are taken."""
    add("--min-score", metavar="X", type=values.finite, help="keep rows whose column score is at least X")
    add(
        "--min-int-score",
        metavar="N",
        type=values.whole,
        help="keep rows whose column int_score is at least N",
    )
    add("--where", metavar="EXPR",
        help="keep rows for which this is true: \"language_score > 0.9 and language == 'en'\"")  # fmt: skip
    add("--limit-documents", metavar="N", type=values.count(1), help="stop after N documents")
    add("--limit-tokens", metavar="N", type=values.count(1, "tokens"),
        help="stop after N tokens, separators included; the last document is cut there")  # fmt: skip


def add_out(group: Group) -> None:
    """Add where the output goes."""
    group.add_argument(
        "-o", "--out", metavar="DIR", type=values.place,
        help="output folder, or s3://bucket/prefix (default: edu_fineweb{VERSION})",
    )  # fmt: skip


def add_encoding(group: Group) -> None:
    """Add how text is encoded."""
    group.add_argument(
        "--threads", metavar="N", type=values.count(1), help="in each process (default: cores / workers)"
    )
    _add_choices(group, "--encoder", ("auto", "fast", "reference"), default="auto",
        help="fast: gigatoken, audited; reference: tiktoken, or the library of the tokenizer "
        "(default: auto)")  # fmt: skip


def add_work(group: Group, *, rehash: bool = True) -> None:
    """Add how the work is done on this machine."""
    group.add_argument(
        "--workers", metavar="N", type=values.count(1), help="processes (default: one for each core)"
    )
    if rehash:
        group.add_argument(
            "--rehash", action="store_true",
            help="hash all existing output, and remake what is damaged "
            "(default: hash what has been modified since)",
        )  # fmt: skip
    group.add_argument(
        "--no-disk-check", dest="check_disk", action="store_false",
        help="start even if the disk seems too small",
    )  # fmt: skip
    group.add_argument(
        "--worker-memory", metavar="BYTES", type=values.size,
        help="kill a process that uses more, 4GB say (default: its share of 80 %% of the machine's memory)",
    )  # fmt: skip
    group.add_argument(
        "--stall-timeout", metavar="SECONDS", type=values.count(1), default=900,
        help="kill a process without progress for this long (default: 900)",
    )  # fmt: skip


def add_engine(group: Group) -> None:
    """Add whose processes do the work."""
    _add_choices(group, "--engine", ("local", "ray"), dest="engine_name", default="local",
        help="where the work is done: processes of this machine, or a Ray cluster "
        "(default: local)")  # fmt: skip
    group.add_argument(
        "--ray-address", metavar="HOST:PORT", type=values.given,
        help="the Ray cluster (default: RAY_ADDRESS, or the one that this machine is part of)",
    )  # fmt: skip
    group.add_argument(
        "--job-cpus",
        metavar="X",
        type=values.finite,
        help="cores that a job takes of a Ray node (default: 1)",
    )
    group.add_argument(
        "--job-memory",
        metavar="BYTES",
        type=values.size,
        help="memory that a job takes of a Ray node, 4GB say",
    )


def _add_choices(group: Group, flag: str, names: tuple[str, ...], **how: Any) -> None:
    """Add a flag that takes one of some words, or what people say for them."""
    group.add_argument(flag, choices=names, type=values.one_of(names, _ALIASES.get(flag)), **how)


# What the shapes of files are called elsewhere.
_ALIASES = {
    "--format": {
        "bin": "llmc", "llm": "llmc", "moddednanogpt": "llmc", "kjj0": "llmc", "numpy": "npy",
        "buildnanogpt": "npy", "memmap": "raw", "nanogpt": "raw", "headerless": "raw",
        "megatronlm": "megatron", "gptneox": "megatron", "neox": "megatron", "idx": "megatron",
        "olmo": "megatron",
        "nanotron": "datatrove", "ds": "datatrove",
    },
    "--compress": {"zst": "zstd", "zstandard": "zstd", "gzip": "zstd", "no": "none", "off": "none"},
    "--eot": {"start": "before", "begin": "before", "end": "after", "first": "before", "last": "after"},
    "--layout": {"stream": "contiguous", "continuous": "contiguous", "persource": "independent"},
    "--encoder": {"gigatoken": "fast", "tiktoken": "reference", "slow": "reference"},
}  # fmt: skip


def add_copies(add: Callable[..., object]) -> None:
    """Add where commands that fetch no sources have copies of what is in an object store."""
    add("--scratch", metavar="DIR", type=values.path,
        help="a folder of this machine for files on their way to or from an object store "
        "(default: in the user's cache)")  # fmt: skip


def add_fetching(add: Callable[..., object]) -> None:
    """Add how sources are fetched."""
    add("--keep-source", metavar="DIR", type=values.path,
        help="keep fetched files here, and reuse those already there (default: remove them)")  # fmt: skip
    add("--scratch", metavar="DIR", type=values.path,
        help="a folder of this machine for files on their way, which may be shared "
        "(default: fetched files lie in the output folder)")  # fmt: skip
    add("--prefetch", metavar="N", type=values.count(1),
        help="files fetched ahead of the workers (default: 4, or half the workers)")  # fmt: skip
    add("--max-connections", metavar="N", type=values.count(1), default=64,
        help="connections to the hub; as many as make it faster are used (default: at most 64)")  # fmt: skip
    add("--patience", metavar="SECONDS", type=values.count(1), default=600,
        help="how long to retry without progress from the hub (default: 600)")  # fmt: skip


def add_world(group: Group) -> None:
    """Add how many ranks there are."""
    group.add_argument("--world", metavar="N", type=values.count(1), help="how many ranks there are")


def add_display(group: Group) -> None:
    """Add how progress is shown, or that nothing but errors is printed."""
    group.add_argument(
        "--progress", choices=("auto", "bar", "plain", "json"), default="auto",
        help="a live display, log lines, or an object a line, on standard error "
        "(default auto: bar on a terminal, else plain)",
    )  # fmt: skip
    group.add_argument("--quiet", action="store_true", help="print errors only")


def add_wandb(group: Group) -> None:
    """Add a project of Weights & Biases that is shown the session."""
    group.add_argument(
        "--wandb", metavar="PROJECT", type=values.wandb_project,
        help="log progress, faults and the page to Weights & Biases, too ([ENTITY/]PROJECT)",
    )  # fmt: skip


def add_run(parser: Group) -> None:
    """Add the run that a command is about."""
    parser.add_argument(
        "out", metavar="OUT", type=values.place, help="the output folder of a run, or s3://..."
    )


def add_json(group: Group) -> None:
    """Add that the answer is for programs."""
    group.add_argument("--json", action="store_true", help="print JSON")
