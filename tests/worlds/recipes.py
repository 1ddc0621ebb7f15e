"""What a world asks for: the flags of a recipe as they are typed, and the rules that they mean.

The defaults are those of README.md and FORMAT.md, said again; nothing here comes from fwconvert.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import zstandard
from worlds import expressions
from worlds.expressions import Node

# By tokenizer: the id of EOT, the bytes of a token, and the sha256 of what defines it.
GPT2 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
TOKENIZERS = {
    "bytes": (256, 2, "623e820ea7607f6c6a162323b14ecb7be69fb69457cc2845e86bfe0e27a7c9d1"),
    "gpt2": (50256, 2, GPT2),
    "r50k_base": (50256, 2, GPT2),
    "cl100k_base": (100257, 4, "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"),
}
# By tokenizer: what else may separate documents, as it is typed, and how many ids there are. By FORMAT.md.
SPECIALS = {
    "cl100k_base": (
        {"<|endoftext|>": 100257, "<|fim_prefix|>": 100258, "<|endofprompt|>": 100276, "100256": 100256},
        100277,
        "tiktoken",
    ),
    "gpt2": ({"<|endoftext|>": 50256, "50256": 50256}, 50257, "tiktoken"),
    "bytes": ({"<|endoftext|>": 256, "256": 256}, 257, "bytes"),
}
BEFORE = ("llmc", "npy", "nemo")
ZIPS = ("llmc", "npy", "raw")
MILLIONS = 100_000_000


@dataclass(frozen=True)
class Rules:
    """How sources become token shards, with nothing left open."""

    tokenizer: str
    eot: str
    text_column: str
    shard_tokens: int
    val_tokens: int
    layout: str
    format: str
    name: str
    last: str
    compress: bool
    min_score: float | None
    min_int_score: int | None
    where: Node | None
    limit_documents: int | None
    limit_tokens: int | None
    # The ids of other separators than the usual one; with a BOS it stands before and the EOT after.
    eot_id: int | None = None
    bos_id: int | None = None
    # Of an MDS sample.
    sequence_length: int | None = None

    @property
    def separator(self) -> int:
        return TOKENIZERS[self.tokenizer][0] if self.eot_id is None else self.eot_id

    @property
    def before(self) -> list[int]:
        """What stands before the text of a document."""
        if self.bos_id is not None:
            return [self.bos_id]
        return [self.separator] if self.eot == "before" else []

    @property
    def after(self) -> list[int]:
        """What stands after it."""
        return [self.separator] if self.eot == "after" else []

    @property
    def token_bytes(self) -> int:
        return TOKENIZERS[self.tokenizer][1]

    @property
    def suffix(self) -> str:
        kinds = {"npy": ".npy", "datatrove": ".ds", "mds": ".mds"}
        return kinds.get(self.format, ".bin") + (".zst" if self.compress else "")

    def line(self, block_digits: int) -> dict[str, Any]:
        """Return the rules as the run manifest has them."""
        version = ".".join(map(str, zstandard.ZSTD_VERSION))
        optional = {
            "last": None if self.last == "keep" else self.last,
            "compress": f"zstd {version}, level 3" if self.compress else None,
            "min_score": self.min_score,
            "min_int_score": self.min_int_score,
            "where": None if self.where is None else expressions.text(self.where),
            "limit_documents": self.limit_documents,
            "limit_tokens": self.limit_tokens,
            "sequence_length": self.sequence_length,
        }
        if self.eot_id is not None:
            _, size, kind = SPECIALS[self.tokenizer]
            optional |= {"tokenizer_kind": kind, "vocabulary_size": size}
            optional |= {"eot_id": self.eot_id, "bos_id": self.bos_id}
        return {
            "tokenizer": self.tokenizer,
            "vocabulary_sha256": TOKENIZERS[self.tokenizer][2],
            "eot": self.eot,
            "token_type": f"uint{8 * self.token_bytes}",
            "text_column": self.text_column,
            "shard_tokens": self.shard_tokens,
            "val_tokens": self.val_tokens,
            "layout": self.layout,
            "format": self.format,
            "name": self.name,
            "block_digits": block_digits,
            **{name: value for name, value in optional.items() if value is not None},
        }


@dataclass(frozen=True)
class Recipe:
    """The flags that a user gives; None: not given."""

    tokenizer: str | None = None
    format: str | None = None
    eot: str | None = None
    shard_tokens: int | None = None
    val_tokens: int | None = None
    layout: str | None = None
    last: str | None = None
    compress: str | None = None
    name: str | None = None
    text_column: str | None = None
    min_score: float | None = None
    min_int_score: int | None = None
    where: Node | None = None
    # As it is typed.
    where_text: str | None = None
    limit_documents: int | None = None
    limit_tokens: int | None = None
    # As they are typed.
    eot_token: str | None = None
    bos_token: str | None = None
    sequence_length: int | None = None

    def words(self) -> list[str]:
        """Return the flags of a command line."""
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "where" and value is not None:
                flag = field.name.removesuffix("_text").replace("_", "-")
                # A value such as -1 would be taken for a flag.
                words += [f"--{flag}={value}"] if str(value).startswith("-") else [f"--{flag}", str(value)]
        return words

    def rules(self) -> Rules:
        """Return what the flags mean."""
        kind = self.format or "llmc"
        one_stream = kind == "raw"
        size = 0 if one_stream else self.shard_tokens or MILLIONS
        tokenizer = self.tokenizer or "gpt2"
        eot = self.eot or ("before" if kind in BEFORE else "after")
        return Rules(
            tokenizer=tokenizer,
            **separated(tokenizer, eot, self.eot_token, self.bos_token),
            text_column=self.text_column or "text",
            shard_tokens=size,
            val_tokens=(size or MILLIONS) if self.val_tokens is None else self.val_tokens,
            layout="contiguous" if one_stream else self.layout or "independent",
            format=kind,
            name="" if one_stream else self.name or "edu_fineweb",
            last="keep" if one_stream else self.last or "merge",
            compress=self.compress == "zstd",
            min_score=self.min_score,
            min_int_score=self.min_int_score,
            where=self.where,
            limit_documents=self.limit_documents,
            limit_tokens=self.limit_tokens,
            sequence_length=self.sequence_length,
        )


def separated(tokenizer: str, eot: str, eot_token: str | None, bos_token: str | None) -> dict[str, Any]:
    """Return the side and the ids of the separators, if the side is this where nothing forces another."""
    if eot_token is None and bos_token is None:
        return {"eot": eot}
    known = SPECIALS[tokenizer][0]
    if bos_token is not None and eot_token is not None:
        return {"eot": "after", "eot_id": known[eot_token], "bos_id": known[bos_token]}
    side = eot if bos_token is None else "before"
    one = known[eot_token or bos_token or ""]
    # The usual one is not written.
    return {"eot": side, "eot_id": None if one == TOKENIZERS[tokenizer][0] else one, "bos_id": None}


def exported(old: Rules, changes: Recipe) -> Rules:
    """Return the rules of an export: what is not said stays as it was, or is as a new format has it."""
    kind = changes.format or old.format
    usual = old
    if kind != old.format:
        # Two separators have their sides in every format.
        usual = replace(
            usual, format=kind, eot="before" if kind in BEFORE and old.bos_id is None else "after"
        )
        usual = replace(usual, compress=usual.compress and kind in ZIPS)
    if (kind == "raw") != (old.format == "raw"):
        fresh = Recipe(format=kind).rules()
        same = {"shard_tokens", "layout", "last", "name"}
        usual = replace(usual, **{name: getattr(fresh, name) for name in same})
    size = changes.shard_tokens or usual.shard_tokens
    val_tokens = usual.val_tokens
    # One shard for validation stays one shard.
    if old.shard_tokens and size and old.val_tokens == old.shard_tokens:
        val_tokens = size
    given = {
        name: getattr(changes, name)
        for name in ("eot", "val_tokens", "layout", "last", "name")
        if getattr(changes, name) is not None
    }
    if changes.compress is not None:
        given["compress"] = changes.compress == "zstd"
    if changes.eot_token is not None or changes.bos_token is not None:
        fresh_side = "before" if kind in BEFORE else "after"
        side = given.pop("eot", fresh_side if kind != old.format or old.bos_id is not None else old.eot)
        given |= separated(old.tokenizer, side, changes.eot_token, changes.bos_token)
    return replace(usual, **{"shard_tokens": size, "val_tokens": val_tokens, **given})
