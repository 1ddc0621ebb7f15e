"""Which trainers are named for a recipe: those that read exactly what it makes, and why the others do not.

The reasons are those that the trainers' own code gave when it was run on such shards.
"""

import shlex
from typing import Any

import pytest

from fwconvert import trainers
from fwconvert.recipes import Rules

GPT2 = {"tokenizer": "gpt2", "token_type": "uint16", "vocabulary_size": 50257}
CL100K = {"tokenizer": "cl100k_base", "token_type": "uint32", "vocabulary_size": 100277}


def rules(kind: str, side: str, **more: Any) -> Rules:
    given = {
        "vocabulary_sha256": "", "eot": side, "text_column": "text", "shard_tokens": 1000, "val_tokens": 1000,
        "layout": "independent", "format": kind, "name": "edu_fineweb", "block_digits": 3,
    }  # fmt: skip
    return Rules(**{**given, **GPT2, **more})


def told(which: Rules, train_shards: int | None = None, place: str = "OUT") -> dict[str, str]:
    """Return why each trainer of a format does not read a run; "" for those that do."""
    found = trainers.readings(which, place, train_shards)
    # Each has a line to type, or else a reason.
    assert all(bool(one.line) != bool(one.why_not) for one in found)
    return {one.trainer: one.why_not for one in found}


UINT16 = "it reads uint16 alone"
LLMC = {
    "llm.c": "",
    "llm.c, train_llama3.py": "it reads uint32 alone",
    "modded-nanogpt": "",
    "NeMo Automodel": "",
}
EOT_BEFORE = "it looks for 50256, gpt2's separator, before each document"


@pytest.mark.parametrize(
    ("which", "train_shards", "wanted"),
    [
        (rules("llmc", "before"), 9, LLMC),
        (rules("llmc", "before"), 1, {**LLMC, "modded-nanogpt": "it needs two training shards"}),
        (rules("llmc", "after"), 9, {**LLMC, "modded-nanogpt": EOT_BEFORE}),
        (
            rules("llmc", "before", **CL100K), 9,
            {**dict.fromkeys(LLMC, UINT16), "llm.c, train_llama3.py": ""},
        ),
        (
            rules("llmc", "before", tokenizer="o", vocabulary_size=60_000), 9,
            {**LLMC, "llm.c": "its model has 50,304 ids at the most", "modded-nanogpt": EOT_BEFORE},
        ),
        (rules("nemo", "before", **CL100K), 9, {"NeMo Automodel": ""}),
        (rules("npy", "before"), 9, {"build-nanogpt": ""}),
        (rules("npy", "before", **CL100K), 9, {"build-nanogpt": UINT16}),
        (rules("raw", "after", **CL100K), 1, {"nanoGPT": UINT16}),
        (
            rules("megatron", "after", **CL100K), 9,
            {"Megatron-LM": "", "GPT-NeoX": "", "OLMo-core": "", "MaxText": ""},
        ),
        (
            rules("megatron", "before"), 9,
            {
                "Megatron-LM": "", "GPT-NeoX": "",
                "OLMo-core": "it looks for the separator after each document",
                "MaxText": "it looks for the separator after each document",
            },
        ),
        (
            rules("datatrove", "after"), 9,
            {"nanotron": "it trains on every file of the folder, validation too: --val-tokens 0"},
        ),
        (rules("datatrove", "after", val_tokens=0), 9, {"nanotron": ""}),
        (rules("litdata", "after", **CL100K), 9, {"LitGPT": "", "litdata": ""}),
        (rules("mds", "after", sequence_length=64), 9, {"LLM Foundry": ""}),
        (rules("parquet", "after", writer="pyarrow 26"), 9, {"TRL, HF Trainer": ""}),
    ],
)  # fmt: skip
def test_a_trainer_reads_a_run_or_it_is_said_why_not(
    which: Rules, train_shards: int, wanted: dict[str, str]
) -> None:
    assert told(which, train_shards) == wanted
    all_refuse = all(wanted.values())
    assert trainers.nobody(which) == (wanted if all_refuse else {})


def test_compressed_shards_are_to_be_unpacked_first() -> None:
    shipped = rules("llmc", "before", compress="zstd 1.5.7, level 3")

    assert {*told(shipped).values()} == {"its shards are compressed: fwconvert export --compress none"}
    # Whoever asks for it knows.
    assert trainers.nobody(shipped) == {}


def test_what_reads_no_object_store_is_told_of_copy() -> None:
    place = "s3://bucket/run"
    for kind in ("llmc", "megatron", "litdata", "mds", "parquet"):
        found = told(rules(kind, "before" if kind == "llmc" else "after"), 9, place)
        assert any("fwconvert copy" in why for why in found.values()) == (kind not in ("mds", "parquet"))
        assert {name for name, why in found.items() if not why} == {
            "litdata": {"litdata"}, "mds": {"LLM Foundry"}, "parquet": {"TRL, HF Trainer"}
        }.get(kind, set())  # fmt: skip


def test_what_is_typed_in_a_shell_holds_a_folder_with_a_blank() -> None:
    for kind, side, name in (
        ("megatron", "after", "Megatron-LM"),
        ("litdata", "after", "LitGPT"),
        ("llmc", "before", "llm.c"),
    ):
        line = next(
            one.line for one in trainers.readings(rules(kind, side), "/my runs/a", 9) if one.trainer == name
        )
        assert any(word.startswith("/my runs/a") for word in shlex.split(line)), line


def test_a_run_names_the_way_to_every_other_format() -> None:
    found = trainers.exports(rules("llmc", "before"), "my run", "fwconvert")
    assert len(found) == len({one.format for one in trainers.TRAINERS}) - 1
    assert ("NeMo Automodel", "fwconvert export 'my run' --format nemo -o NEW") in found


def test_who_cannot_be_fed_with_these_tokens_is_not_named() -> None:
    narrow = dict(trainers.exports(rules("npy", "before"), "OUT", "fwconvert"))
    wide = dict(trainers.exports(rules("npy", "before", **CL100K), "OUT", "fwconvert"))

    assert narrow["llm.c, modded-nanogpt, NeMo Automodel"] == "fwconvert export OUT --format llmc -o NEW"
    assert wide["llm.c, train_llama3.py"] == "fwconvert export OUT --format llmc -o NEW"
    assert "nanoGPT" in narrow
    assert "nanoGPT" not in wide
    # It trains on all files of a folder.
    assert narrow["nanotron"] == "fwconvert export OUT --format datatrove --val-tokens 0 -o NEW"
