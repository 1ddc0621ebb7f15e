"""Which trainers read which runs, and what to type there: the one table of it.

The last screen of a run, `plan`, the page and REFERENCE.md's table say what stands here. A trainer stands
here when its own reader was tried on our output; the version that was tried stands beside it.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from fwconvert import formats
from fwconvert.formats import FormatName
from fwconvert.recipes import Rules

# Where a text stands in a line to type.
_MEGATRON_LIST = formats.MEGATRON.listings[0]


@dataclass(frozen=True)
class Trainer:
    """A trainer, or several that are fed alike."""

    name: str
    # The version whose own reader read our files.
    tried: str
    format: FormatName
    # What is typed or set there. {out}: the folder, {typed}: as a shell takes it, {name}: its last part,
    # {train}, {val}: the token shards.
    line: str
    # What it must be told, or does, beside that; for the table.
    note: str = ""
    # The flags beside --version 10B that make what it reads.
    flags: str = ""
    # From the rules, and the number of training shards if known, to why it cannot read them; "": it can.
    refuses: Callable[[Rules, int | None], str] = lambda _rules, _shards: ""
    # The line where the run lies in an object store; "": it reads none of those.
    remote: str = ""


def _uint16(rules: Rules, _: int | None = None) -> str:
    return "" if rules.token_bytes == 2 else "it reads uint16 alone"


def _gpt2_sized(rules: Rules, _: int | None = None) -> str:
    """Say why a model whose vocabulary is gpt2's, padded to 50,304, cannot be fed with these ids."""
    large = rules.vocabulary_size is not None and rules.vocabulary_size > 50_304
    return _uint16(rules) or ("its model has 50,304 ids at the most" if large else "")


def _modded(rules: Rules, shards: int | None) -> str:
    if why := _uint16(rules):
        return why
    if rules.tokenizer not in ("gpt2", "r50k_base") or rules.eot != "before":
        return "it looks for 50256, gpt2's separator, before each document"
    return "it needs two training shards" if shards == 1 else ""


def _uint32(rules: Rules, _: int | None) -> str:
    return "" if rules.token_bytes == 4 else "it reads uint32 alone"


def _nanotron(rules: Rules, _: int | None) -> str:
    return "it trains on every file of the folder, validation too: --val-tokens 0" if rules.val_tokens else ""


def _after(rules: Rules, _: int | None) -> str:
    return "" if rules.eot == "after" else "it looks for the separator after each document"


TRAINERS: Sequence[Trainer] = (
    Trainer(
        "llm.c", "f1e2ace", "llmc", "-i '{train}' -j '{val}'",
        note="`gpt2`, or any uint16", refuses=_gpt2_sized,
    ),
    Trainer(
        "llm.c, train_llama3.py", "f1e2ace", "llmc", "--input_bin '{train}' --input_val_bin '{val}'",
        flags="--tokenizer cl100k_base", note="uint32", refuses=_uint32,
    ),
    Trainer(
        "modded-nanogpt", "f411b3d", "llmc", "train_files = '{train}', val_files = '{val}'",
        flags="--name fineweb --out data/fineweb10B",
        note='as it is with these flags: at least 2 training shards, `gpt2`, at most 64 documents in 16,384 '
        'tokens (where many are short: `--where "len(text) > 1500"`)',
        refuses=_modded,
    ),
    Trainer(
        "NeMo Automodel", "0.7.0", "llmc", "NanogptDataset, file_pattern: {train}",
        note="uint16; the next row has uint32 and an index", refuses=_uint16,
    ),
    Trainer(
        "NeMo Automodel", "0.7.0", "nemo", "NanogptDataset, file_pattern: {train}",
        flags="--format nemo",
        note="uint16 and uint32; `align_to_bos` finds documents by the `.bos.idx` beside the shards",
    ),
    Trainer(
        "build-nanogpt", "6104ab1", "npy", 'data_root = "{out}"', flags="--format npy", refuses=_gpt2_sized,
    ),
    Trainer(
        "nanoGPT", "3adf61e", "raw", "--dataset={name} (with the folder in its data/)",
        flags="--format raw --out data/fineweb", note="one `train.bin`, one `val.bin`", refuses=_gpt2_sized,
    ),
    Trainer(
        "Megatron-LM", "core 0.16.1", "megatron",
        "--per-split-data-args-path {typed}/" + _MEGATRON_LIST,
        flags="--format megatron",
        note="it has each token shard with its tokens as the weight, and the path of the folder: after a "
        "move run the command again",
    ),
    Trainer(
        "GPT-NeoX", "ea7aefd", "megatron",
        '"train_data_paths": [{train}, each without .bin], "data_impl": "mmap"',
        flags="--format megatron",
    ),
    Trainer(
        "OLMo-core", "3.0.0", "megatron", "NumpyFSLDatasetConfig(paths=['{train}'], expand_glob=True)",
        flags="--format megatron --tokenizer cl100k_base",
        note="these are the ids of dolma2; with `gpt2` it wants `bos_token_id=None`. Not `--format npy`: it "
        "would take its header for tokens",
        refuses=_after,
    ),
    Trainer(
        "MaxText", "e591f30", "megatron", "olmo_grain, the files {train}",
        flags="--format megatron --tokenizer cl100k_base", note="not `--format npy` either", refuses=_after,
    ),
    Trainer(
        "nanotron", "2411b02", "datatrove", "dataset_folder: {out}, use_old_brrr_dataloader: true",
        flags="--format datatrove --val-tokens 0", note="datatrove 0.10.1 reads the same files",
        refuses=_nanotron,
    ),
    Trainer(
        "LitGPT", "0.5.13", "litdata",
        "--data LitData --data.data_path {typed} --data.split_names '[train, val]'",
        flags="--format litdata",
    ),
    Trainer(
        "litdata", "0.2.76", "litdata",
        "StreamingDataset('{out}/train', item_loader=TokensLoader(block_size=T + 1))",
        flags="--format litdata",
        note="the folder itself has a list of the training shards too, for a run in a bucket",
        remote="StreamingDataset('{out}', item_loader=TokensLoader(block_size=T + 1))",
    ),
    Trainer(
        "LLM Foundry", "streaming 0.13.0", "mds",
        "dataset: {{local: {out}, split: train, max_seq_len: {length}}}",
        flags="--format mds --sequence-length 2048",
        note="in a bucket `remote: s3://...` without `split`, for training",
        remote="dataset: {{remote: {out}, max_seq_len: {length}}}",
    ),
    Trainer(
        "TRL, HF Trainer", "datasets 5.2.0", "parquet",
        "load_dataset('parquet', data_files={{'train': '{train}', 'validation': '{val}'}})",
        flags="--format parquet",
        note="a row of `input_ids` for each document; axolotl wants `attention_mask` and `labels` too, which "
        "`map` adds",
        remote="load_dataset('parquet', data_files={{'train': '{train}', 'validation': '{val}'}})",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """What one trainer does with a run: it reads it by `line`, or does not, and why."""

    trainer: str
    line: str
    why_not: str = ""


def readings(rules: Rules, place: str, train_shards: int | None = None) -> list[Reading]:
    """Return what the trainers of a run's format do with it. `train_shards` is None while nobody knows it."""
    found = []
    for one in TRAINERS:
        if one.format != rules.format:
            continue
        is_remote = "://" in place
        line = one.remote if is_remote else one.line
        why = "its shards are compressed: fwconvert export --compress none" if rules.compress else ""
        why = why or one.refuses(rules, train_shards)
        why = why or ("" if line else "it reads no object store: fwconvert copy")
        found.append(Reading(one.name, _filled(line, rules, place) if not why else "", why))
    return found


def _filled(line: str, rules: Rules, place: str) -> str:
    prefix = "" if rules.shard_format.is_one_stream else f"{rules.name}_"
    many = "" if rules.shard_format.is_one_stream else "_*"
    return line.format(
        out=place,
        typed=shlex.quote(place),
        name=place.rstrip("/").rpartition("/")[2],
        train=f"{place}/{prefix}train{many}{rules.suffix}",
        val=f"{place}/{prefix}val{many}{rules.suffix}",
        length=rules.sequence_length,
    )


def exports(rules: Rules, place: str, program: str) -> list[tuple[str, str]]:
    """Return the trainers of other formats that can be fed with these tokens, and what makes their files."""
    names: dict[str, list[str]] = {}
    for one in TRAINERS:
        if one.format == rules.format:
            continue
        without = "--val-tokens 0" in one.flags
        val_tokens = 0 if without else rules.val_tokens
        changed = structs.replace(
            rules, format=one.format, eot=formats.find(one.format).eot, val_tokens=val_tokens
        )
        if not one.refuses(changed, None):
            how = f"--format {one.format}" + (" --val-tokens 0" if without else "")
            names.setdefault(f"{program} export {shlex.quote(place)} {how} -o NEW", []).append(one.name)
    return [(", ".join(dict.fromkeys(trainers)), command) for command, trainers in names.items()]


def warnings(rules: Rules, train_shards: int | None = None) -> list[str]:
    """Return what users of a run would stumble over in silence, or after hours."""
    kind, wide, found = rules.format, rules.token_bytes == 4, []
    if kind == "llmc" and train_shards == 1:
        found.append("modded-nanogpt needs two training shards: see --shard-tokens")
    if kind == "llmc" and wide:  # Each of these compares the magic number of the header.
        found.append(
            "these tokens are uint32: llm.c's train_llama3.py reads them, its other programs, modded-nanogpt "
            "and NeMo Automodel read uint16 alone, as --tokenizer gpt2 gives it; for NeMo, --format nemo"
        )
    if kind == "llmc" and rules.separators_each == 2:
        found.append(
            "each document has two separators: a trainer that looks for where documents start "
            "(modded-nanogpt, NeMo Automodel) has to look for the first, that of --bos-token"
        )
    if kind == "npy":
        # They call files .npy that have no header, and would read ours as 64 tokens, without an error.
        found.append(
            "OLMo-core and MaxText take the header of these files for tokens: for them, --format megatron"
        )
    if kind == "raw" and wide:
        found.append("nanoGPT reads uint16, and these tokens are uint32: tell it so")
    return found


def nobody(rules: Rules) -> dict[str, str]:
    """Return why each trainer of the format cannot read what these rules make; {} if one can."""
    told = readings(rules, "")
    # Compressed shards are to be shipped, which everybody knows who asks for them.
    if rules.compress or not all(one.why_not for one in told):
        return {}
    return {one.trainer: one.why_not for one in told}


def reference_rows() -> list[str]:
    """Return the table of REFERENCE.md: each trainer, what makes its files, and what is typed there."""
    rows = []
    for one in TRAINERS:
        out = next((word for word in one.flags.split() if word.startswith("data/")), "edu_fineweb10B")
        name = "fineweb" if "--name" in one.flags else "edu_fineweb"
        kind = formats.find(one.format)
        many = f"{{}}{kind.suffix}" if kind.is_one_stream else f"{name}_{{}}_*{kind.suffix}"
        train, val = (f"{out}/{many.format(split)}" for split in ("train", "val"))
        values = {"out": out, "typed": out, "name": out.rpartition("/")[2], "train": train, "val": val}
        values["length"] = str(formats.SEQUENCE_LENGTH)
        made = f"`{one.flags}`" if one.flags else ""
        said = "; ".join(filter(None, (f"`{one.line.format(**values)}`", one.note.format(**values))))
        rows.append(f"| {one.name} | {one.tried} | {made} | {said} |")
    return rows
