"""Small tokenizers of every kind, made here: their files, as people have them.

Each has a few hundred ids, special tokens and one added token that text may
contain, so that a run with it takes no time.
"""

import base64
import importlib
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus

EOT, BOS, TOOL = "<|endoftext|>", "<|begin|>", "<tool>"
SPECIALS = (BOS, EOT, "<|im_end|>")
TEXT = [*corpus.documents(0, 30), *(text for text in corpus.ODD if text), "Don't stop: it's 3.14, isn't it?"]
# As tiktoken has it for gpt2.
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
# What no fast encoder has a name for: at most two digits together.
OTHER = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)


def _library() -> Any:
    return importlib.import_module("tokenizers")


def _finished(tokenizer: Any) -> bytes:
    """Add special tokens, then one that text may contain, and what a chat program wants."""
    lib = _library()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.add_tokens([lib.AddedToken(TOOL, special=False)])
    ids = [(name, tokenizer.token_to_id(name)) for name in (BOS, EOT)]
    tokenizer.post_processor = lib.processors.TemplateProcessing(single=f"{BOS} $A {EOT}", special_tokens=ids)
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=4)
    return str(tokenizer.to_str()).encode()


def _byte_level(*before: Any, normalizer: Any = None) -> bytes:
    lib = _library()
    parts = lib.pre_tokenizers
    tokenizer = lib.Tokenizer(lib.models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    level = parts.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = parts.Sequence([*before, level]) if before else level
    tokenizer.decoder = lib.decoders.ByteLevel()
    trainer = lib.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(parts.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return _finished(tokenizer)


def byte_level() -> bytes:
    """Return a tokenizer.json like that of GPT-2."""
    return _byte_level()


def digits() -> bytes:
    """Return one with SmolLM's pipeline: digits alone, then the words."""
    return _byte_level(_library().pre_tokenizers.Digits(individual_digits=True))


def nfc() -> bytes:
    """Return one that changes text before it cuts it."""
    return _byte_level(normalizer=_library().normalizers.NFC())


def metaspace() -> bytes:
    """Return one like that of Llama 2: blanks are marked, one is put before the text, and bytes fall back."""
    lib = _library()
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = lib.Tokenizer(lib.models.BPE(unk_token="<unk>"))
    trained.normalizer = lib.normalizers.Replace(" ", "\u2581")
    trainer = lib.trainers.BpeTrainer(vocab_size=200, show_progress=False)
    trained.train_from_iterator(TEXT, trainer)
    model = json.loads(trained.to_str())["model"]
    first = ["<unk>", "<s>", "</s>", *tokens]
    words = [word for word in model["vocab"] if word not in first]
    vocab = {word: number for number, word in enumerate([*first, *words])}
    merges = [
        tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ", 1)) for merge in model["merges"]
    ]
    tokenizer = lib.Tokenizer(
        lib.models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    norm, decode = lib.normalizers, lib.decoders
    tokenizer.normalizer = norm.Sequence([norm.Prepend("\u2581"), norm.Replace(" ", "\u2581")])
    tokenizer.decoder = decode.Sequence(
        [decode.Replace("\u2581", " "), decode.ByteFallback(), decode.Fuse(), decode.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return str(tokenizer.to_str()).encode()


JSONS: dict[str, Callable[[], bytes]] = {
    "byte level": byte_level, "digits": digits, "nfc": nfc, "metaspace": metaspace,
}  # fmt: skip


def sentence_pieces() -> bytes:
    """Return a model of sentencepiece."""
    made = io.BytesIO()
    importlib.import_module("sentencepiece").SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in TEXT for line in text.splitlines() if "\x00" not in line),
        model_writer=made, vocab_size=340, model_type="bpe", byte_fallback=True, minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=1,
    )  # fmt: skip
    return made.getvalue()


def ranks() -> dict[bytes, int]:
    """Return the ranks of a small table: bytes, and some words built from them."""
    pieces = [bytes([byte]) for byte in range(256)]
    for word in (b" document", b"document", b" it", b" the", b"'s"):
        for end in range(2, len(word) + 1):
            if word[:end] not in pieces:
                pieces.append(word[:end])
    return {piece: rank for rank, piece in enumerate(pieces)}


def rank_files(folder: Path, pattern: str = GPT2) -> Path:
    """Write a rank table, and the JSON beside it; return the table's path."""
    table = b"".join(base64.b64encode(piece) + b" %d\n" % rank for piece, rank in ranks().items())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.tiktoken").write_bytes(table)
    said = {"pattern": pattern, "special_tokens": {EOT: len(ranks()), BOS: len(ranks()) + 1}}
    (folder / "small.json").write_text(json.dumps(said, indent=2))
    return folder / "small.tiktoken"


def nanochat(folder: Path) -> Path:
    """Write what nanochat saves: a pickle of tiktoken's encoding."""
    encoding = importlib.import_module("tiktoken").Encoding(
        "rustbpe", pat_str=OTHER, mergeable_ranks=ranks(), special_tokens={"<|bos|>": len(ranks())}
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.pkl").write_bytes(pickle.dumps(encoding))
    return folder / "tokenizer.pkl"


def written(folder: Path, name: str, content: bytes) -> Path:
    """Write a file; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name
