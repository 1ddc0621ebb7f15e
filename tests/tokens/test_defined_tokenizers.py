"""Tokenizers of files: both encoders give the library's ids, text is text, and files of strangers."""

import hashlib
import importlib
import json
import os
import pickle
import struct
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import small_tokenizers as small
from small_tokenizers import BOS, EOT, SPECIALS, TOOL

from fwconvert import recipes
from fwconvert.errors import ManifestError, ShardError, UsageError
from fwconvert.processes import call_apart
from fwconvert.tokens import definition, given, rank_files, registry
from fwconvert.tokens.defined import DefinedKind
from fwconvert.tokens.spec import Loading, TokenizerSpec
from fwconvert.tokens.tokenizer import Encoded, Tokenizer

tokenizers: Any = pytest.importorskip("tokenizers", reason="the extra hf is not installed")
sentencepiece: Any = pytest.importorskip("sentencepiece", reason="the extra sentencepiece is not installed")

Found = tuple[str, Path, TokenizerSpec]
# Nobody's words: what a tokenizer of a few hundred ids has to spell out, and what libraries treat apart.
NASTY = [
    *small.TEXT, "", " ", "  two", "a\r\n\r\nb", "e\u0301e\u0301", "\u1100\u1161",
    "\u2581x", "\u0085\u2028\ufeff", "\U0001f469\u200d\U0001f680 \u6f22",
    *(name for name in (*SPECIALS, "</s>", "<s>", "<unk>", "<0x41>")),
    *(f"a {name} b" for name in (*SPECIALS, "</s>", "<s>", "<unk>", "<0x41>")),
    f"x{TOOL}y", f" {TOOL} ", TOOL * 3, "12345 1,234.5", "DON'T we'Ll", " " * 500,
]  # fmt: skip


def documents_of(encoded: Encoded) -> list[list[int]]:
    return [encoded.tokens[a:b].tolist() for a, b in pairwise(encoded.offsets.tolist())]


def find(path: Path, eot: str | None = None, bos: str | None = None) -> TokenizerSpec:
    """Return what the registry finds, in this process: to start another for each file takes a second."""
    file = given.named(str(path))
    assert file is not None
    apart = lambda function, argument, _: function(argument)  # noqa: E731
    return registry.DEFINED[file.kind].examine(replace(file, eot_token=eot, bos_token=bos), apart)


def load(spec: TokenizerSpec, folder: Path, encoder: str) -> Tokenizer:
    kind = registry.kind_of(spec)
    kind.provide(spec, folder)
    return kind.load(spec, folder, Loading("fast" if encoder == "fast" else "reference"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module", params=list(small.JSONS))
def of_json(request: pytest.FixtureRequest, folder: Path) -> Found:
    name: str = request.param
    path = small.written(folder / name.replace(" ", "-"), "tokenizer.json", small.JSONS[name]())
    return name, path, registry.find(str(path))


def the_library_alone(path: Path) -> Callable[[str], list[int]]:
    """Return what encodes ordinary text by the library alone, from the file as it is."""
    engine = tokenizers.Tokenizer.from_file(str(path))
    engine.no_truncation()
    engine.no_padding()
    engine.encode_special_tokens = True  # Its own word for: special tokens in the text are text.
    return lambda text: list(engine.encode(text, add_special_tokens=False).ids)


def test_a_json_gives_the_ids_of_its_library_from_the_file_as_it_is(of_json: Found, tmp_path: Path) -> None:
    name, path, spec = of_json
    wanted = [*map(the_library_alone(path), NASTY)]
    texts = pa.array(NASTY, pa.string())
    for encoder in ("reference",) if name == "digits" else ("reference", "fast"):
        encoded = load(spec, tmp_path, encoder).encode(texts)
        assert documents_of(encoded) == wanted, encoder
        assert encoded.tokens.dtype == np.uint16
    for at in (spec.eot, spec.bos):
        assert not any(at in ids for ids in wanted)


def test_the_encoder_is_chosen_by_a_trial_and_the_slow_one_says_how_slow(of_json: Found) -> None:
    name, _, spec = of_json
    encoder, notice = registry.kind_of(spec).choose_encoder(spec, "auto", call_apart, lambda: None)
    if name == "digits":
        assert encoder == "reference"
        assert "1 to 3 MB of text a second" in notice
        with pytest.raises(UsageError, match="the fast encoder cannot be used"):
            registry.kind_of(spec).choose_encoder(spec, "fast", call_apart, lambda: None)
    else:
        assert (encoder, notice) == ("fast", "")


def test_what_is_decoded_is_the_text_as_the_tokenizer_has_changed_it(of_json: Found, tmp_path: Path) -> None:
    name, _, spec = of_json
    tokenizer = load(spec, tmp_path, "reference")
    changed: dict[str, Callable[[str], str]] = {
        "nfc": lambda text: unicodedata.normalize("NFC", text),
        "metaspace": lambda text: text and f" {text}".replace("\u2581", " "),
    }
    for text in NASTY:
        found = tokenizer.decode(tokenizer.encode(pa.array([text], pa.string())).tokens).decode()
        assert found == changed.get(name, str)(text)
    tokens = tokenizer.encode(pa.array(["\u6f22 a"], pa.string())).tokens
    assert b"".join(tokenizer.decode(tokens[at : at + 1]) for at in range(len(tokens))) == tokenizer.decode(
        tokens
    )
    with pytest.raises(ShardError, match="not in the vocabulary"):
        tokenizer.decode(np.array([spec.size], np.uint16))


def test_added_tokens_that_are_text_keep_their_ids_though_those_before_them_are_dropped() -> None:
    for make in (small.byte_level, small.nfc):
        content = make()
        wanted = {token["content"]: token["id"] for token in json.loads(content)["added_tokens"]}
        text = definition.for_text(content)
        assert [token["content"] for token in json.loads(text)["added_tokens"]] == [TOOL]
        assert tokenizers.Tokenizer.from_str(text.decode()).encode(TOOL).ids == [wanted[TOOL]]
        assert definition.for_text(text) == text


def test_special_tokens_among_the_words_of_a_unigram_or_a_word_model_are_no_words() -> None:
    pieces = [["<unk>", 0.0], ["</s>", 0.0], *([character, -3.0] for character in "\u2581<>/sabcdunk")]
    unigram = {
        "version": "1.0",
        "added_tokens": [
            {"id": at, "content": name, "special": True, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False}
            for at, name in enumerate(("<unk>", "</s>"))
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces},
    }  # fmt: skip
    engine = tokenizers.Tokenizer.from_str(definition.for_text(json.dumps(unigram).encode()).decode())
    assert [pieces[at][0] for at in engine.encode("a</s>b").ids] == ["a", "<", "/", "s", ">", "b"]
    words = {**unigram, "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {
        "type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "</s>": 1, "word": 2}}}  # fmt: skip
    engine = tokenizers.Tokenizer.from_str(definition.for_text(json.dumps(words).encode()).decode())
    assert engine.encode("word </s> word").ids == [2, 0, 2]


# --- sentencepiece and rank tables


def test_a_sentencepiece_model_gives_the_ids_of_its_library_by_both_encoders(tmp_path: Path) -> None:
    content = small.sentence_pieces()
    path = small.written(tmp_path, "tokenizer.model", content)
    spec = registry.find(str(path))
    assert (spec.kind, spec.size, spec.eot, spec.sha256) == (
        "sentencepiece", 340, 2, hashlib.sha256(content).hexdigest()
    )  # fmt: skip
    engine = sentencepiece.SentencePieceProcessor(model_proto=content)
    unspelt = f"before {chr(0xFDD0) * 4}1 after"  # what gigatoken has in the place of </s>
    texts = [*NASTY, unspelt]
    wanted = [engine.encode(text, out_type=int) for text in texts]
    assert registry.kind_of(spec).choose_encoder(spec, "auto", call_apart, lambda: None) == ("fast", "")
    for encoder in ("reference", "fast"):
        tokenizer = load(spec, tmp_path, encoder)
        assert documents_of(tokenizer.encode(pa.array(texts, pa.string()))) == wanted
        found = tokenizer.encode(pa.array(["some \u6f22 text"], pa.string())).tokens
        assert tokenizer.decode(found).decode() == " some \u6f22 text"
    assert not any({1, 2} & {*ids} for ids in wanted)


@pytest.mark.parametrize("pattern", [small.GPT2, small.OTHER])
def test_a_rank_table_gives_the_ids_of_tiktoken(tmp_path: Path, pattern: str) -> None:
    spec = registry.find(str(small.rank_files(tmp_path, pattern)))
    assert (spec.kind, spec.eot, spec.size) == ("ranks", len(small.ranks()), len(small.ranks()) + 2)
    oracle = importlib.import_module("tiktoken").Encoding(
        "small", pat_str=pattern, mergeable_ranks=small.ranks(), special_tokens={EOT: spec.eot}
    )
    encoder, notice = registry.kind_of(spec).choose_encoder(spec, "auto", call_apart, lambda: None)
    assert (encoder, bool(notice)) == (("fast", False) if pattern == small.GPT2 else ("reference", True))
    for one in {"reference", encoder}:
        tokenizer = load(spec, tmp_path, one)
        encoded = tokenizer.encode(pa.array(NASTY, pa.string()))
        assert documents_of(encoded) == [oracle.encode_ordinary(text) for text in NASTY]
        assert tokenizer.decode(encoded.tokens).decode() == "".join(NASTY)


def test_what_nanochat_saves_is_read_and_not_obeyed(tmp_path: Path) -> None:
    path = small.nanochat(tmp_path)
    with pytest.raises(
        UsageError, match=r"which token separates documents is not known(.|\n)*<\|bos\|> \(277\)"
    ):
        registry.find(str(path))
    spec = registry.find(str(path), bos_token="<|bos|>")
    assert (spec.kind, spec.eot, spec.bos) == ("ranks", len(small.ranks()), None)
    tokenizer = load(spec, tmp_path, "reference")
    oracle = pickle.loads(path.read_bytes())
    assert documents_of(tokenizer.encode(pa.array(NASTY))) == [oracle.encode_ordinary(text) for text in NASTY]


class Order:
    """What a pickle may hold: the order to run something."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return importlib.import_module("os").mkdir, (str(self.file),)


def test_a_pickle_that_orders_something_is_refused(tmp_path: Path) -> None:
    proof = tmp_path / "obeyed"
    for value in (Order(proof), {"pat_str": Order(proof), "mergeable_ranks": {}, "special_tokens": {}}):
        path = small.written(tmp_path, "tokenizer.pkl", pickle.dumps(value))
        with pytest.raises(UsageError, match="no plain value"):
            registry.find(str(path))
    assert not proof.exists()


def test_a_pickle_that_asks_for_room_is_refused_before_it_is_read() -> None:
    dictionary, numbered, end = b"\x80\x04}", b"r" + struct.pack("<I", 2**24), b"."
    with pytest.raises(UsageError, match="the number 16,777,216"):
        rank_files._parsed(dictionary + numbered + end, "tokenizer.pkl")


# --- separators


def described(**others: Any) -> bytes:
    """Return a tokenizer.json with other special tokens than the usual ones."""
    tree = json.loads(small.byte_level())
    for token in tree["added_tokens"]:
        token["content"] = others.get(token["content"].strip("<|>").replace("|", ""), token["content"])
    return json.dumps(tree).encode()


def find_with(folder: Path, content: bytes, config: Any = None, **separators: str) -> TokenizerSpec:
    path = small.written(folder, "tokenizer.json", content)
    if config is not None:
        small.written(folder, "tokenizer_config.json", json.dumps(config).encode())
    return find(path, separators.get("eot"), separators.get("bos"))


def test_the_separator_is_what_the_config_says_unless_it_ends_a_turn(tmp_path: Path) -> None:
    ids = {token["content"]: token["id"] for token in json.loads(small.byte_level())["added_tokens"]}
    content = small.byte_level()
    assert find_with(tmp_path / "a", content).eot == ids[EOT]
    assert find_with(tmp_path / "b", content, {"eos_token": BOS}).eot == ids[BOS]
    assert find_with(tmp_path / "c", content, {"eos_token": {"content": BOS}}).eot == ids[BOS]
    assert find_with(tmp_path / "d", content, {"eos_token": "<|im_end|>"}).eot == ids[EOT]
    assert find_with(tmp_path / "e", content, ["odd"]).eot == ids[EOT]
    both = find_with(tmp_path / "f", content, bos=BOS, eot=str(ids[EOT]))
    assert (both.bos, both.eot) == (ids[BOS], ids[EOT])
    assert find_with(tmp_path / "g", content, bos=BOS).eot == ids[BOS]


def test_where_nothing_says_which_token_separates_the_candidates_are_named(tmp_path: Path) -> None:
    for others, wanted in (
        ({"im_end": "</s>"}, r"has several that may(.|\n)*<\|endoftext\|>, </s>"),
        ({"endoftext": "<|fin|>"}, r"does not say(.|\n)*<\|fin\|> \(37\d\)"),
    ):
        with pytest.raises(UsageError, match=wanted):
            find_with(tmp_path / "x", described(**others))
    for name in (TOOL, "a", "<|nothing|>", "99999"):
        with pytest.raises(UsageError, match="special tokens"):
            find_with(tmp_path / "y", small.byte_level(), eot=name)


def test_a_special_token_that_the_model_gives_for_text_separates_nothing(tmp_path: Path) -> None:
    tree = json.loads(small.byte_level())
    word = "\u0120document"  # of the vocabulary, made by a merge
    number = tree["model"]["vocab"][word]
    tree["added_tokens"].append({**tree["added_tokens"][0], "content": word, "id": number})
    with pytest.raises(UsageError, match="is a token of ordinary text"):
        find_with(tmp_path, json.dumps(tree).encode(), eot=word)


# --- files of strangers


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "no tokenizer.json"),
    "not JSON": (b"{", "no tokenizer.json"),
    "not UTF-8": (b'{"model": "\xff"}', "no tokenizer.json"),
    "too deep": (b"[" * 500_000, "no tokenizer.json"),
    "another JSON": (b'{"a": 1}', "no tokenizer.json"),
    "no object": (b"[1, 2]", "no tokenizer.json"),
    "half a character": (b'{"model": {"vocab": {"\\ud800": 1}}}', "no tokenizer.json"),
    "an id of text": (b'{"model": {"vocab": {"a": "1"}}}', "is no id"),
    "two with one id": (b'{"model": {"vocab": {"a": 1, "b": 1}}}', "one id"),
    "a merge of nothing": (b'{"model": {"vocab": {"a": 1}, "merges": [7], "ignore_merges": true}}',
                           "no tokenizer.json"),
    "what the library refuses": (b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}',
                                 "cannot read this tokenizer"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_one_plain_message(tmp_path: Path, content: bytes, said: str) -> None:
    path = small.written(tmp_path, "tokenizer.json", content)
    with pytest.raises(UsageError, match=said):
        registry.find(str(path)) if len(content) > 1000 else find(path)


def test_ids_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    tree = json.loads(small.byte_level())
    tool = next(token for token in tree["added_tokens"] if token["content"] == TOOL)
    for number, said in ((tool["id"] + 7, "gives it"), (5, "two tokens have the id 5")):
        tool["id"] = number
        with pytest.raises(UsageError, match=said):
            find_with(tmp_path, json.dumps(tree).encode())
    tree = json.loads(small.byte_level())
    tree["model"]["dropout"] = 0.1
    with pytest.raises(UsageError, match="dropout"):
        find_with(tmp_path, json.dumps(tree).encode())


def test_broken_models_and_rank_tables_are_one_plain_message(tmp_path: Path) -> None:
    for name, content, said in (
        ("tokenizer.model", b"", "no model of sentencepiece"),
        ("tokenizer.model", b"\x00\xff" * 100, "no model of sentencepiece"),
        ("tokenizer.model", b"IQ== 0\nIg== 1\n", r"name its tokenizer.json instead"),
        ("tokenizer.pkl", b"\x80\x04", "no rank table"),
        ("tokenizer.pkl", pickle.dumps({"pat_str": "x"}), "no rank table"),
        ("a.ranks", b'{"pattern": "x"}\nIQ== 0\n', "of the 256 bytes have no token"),
    ):
        with pytest.raises(UsageError, match=said):
            find(small.written(tmp_path, name, content))
    table = small.rank_files(tmp_path / "lossy", r"\w+")
    with pytest.raises(UsageError, match="passes over a part of the text"):
        find(table)
    table.with_suffix(".json").unlink()
    with pytest.raises(UsageError, match="a rank table alone"):
        find(table)


def test_names_that_mean_no_file_say_what_may_be_meant(tmp_path: Path) -> None:
    path = small.written(tmp_path / "model", "tokenizer.json", small.byte_level())
    with pytest.raises(UsageError, match=r"did you mean --tokenizer .*tokenizer\.json"):
        registry.find(str(tmp_path / "model"))
    with pytest.raises(UsageError, match=r"did you mean .*tokenizer\.json"):
        registry.find(str(path.with_name("tokeniser.json")))
    with pytest.raises(UsageError, match="did you mean gpt2"):
        registry.find("gtp2")
    with path.open("r+b") as file:
        file.truncate(definition.MOST_BYTES + 1)
    with pytest.raises(UsageError, match="too large"):
        registry.find(str(path))


def test_a_folder_of_a_run_keeps_the_file_and_another_file_in_its_place_is_not_believed(
    tmp_path: Path,
) -> None:
    path = small.written(tmp_path, "tokenizer.json", small.digits())
    spec = registry.find(str(path))
    kind = registry.kind_of(spec)
    kind.provide(spec, tmp_path / "run")
    kind.copy(spec, tmp_path / "run", tmp_path / "other")
    (kept,) = (tmp_path / "other").iterdir()
    assert kept.read_bytes() == path.read_bytes()
    lost = TokenizerSpec(kind="hf", name="lost.json", sha256="0" * 64, size=10, eot=1)
    with pytest.raises(ManifestError, match="missing, or is another one"):
        registry.load(lost, tmp_path / "run")


def test_a_run_has_its_tokenizer_though_the_file_is_gone_or_the_branch_has_moved(tmp_path: Path) -> None:
    path = small.written(tmp_path, "tokenizer.json", small.byte_level())
    spec = registry.find(str(path), bos_token=BOS, eot_token=EOT)
    rules = recipes.Rules(
        **registry.as_rules(spec), eot="after", text_column="text", shard_tokens=10, val_tokens=0,
        layout="independent", format="llmc", name="x", block_digits=3,
    )  # fmt: skip
    kept = given.Kept(rules, path.read_bytes())
    path.unlink()
    assert registry.find(str(path), kept=lambda: kept) == spec
    assert registry.find(str(path), EOT, kept=lambda: kept).bos is None
    with pytest.raises(UsageError, match="does not exist"):
        registry.find(str(path.with_name("another.json")), kept=lambda: kept)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
def test_a_pipe_and_a_device_are_no_files(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    (tmp_path / "zero.model").symlink_to("/dev/zero")
    for path in (pipe, tmp_path / "zero.model"):
        with pytest.raises(UsageError, match="not a regular file"):
            find(path)


def test_a_missing_extra_says_what_to_install(tmp_path: Path) -> None:
    path = small.written(tmp_path, "tokenizer.json", small.digits())
    file = given.named(str(path))
    assert file is not None
    absent = DefinedKind("hf", ".json", "no_such_module", "hf", "a library", "1")
    with pytest.raises(UsageError, match=r"pip install 'fwconvert\[hf\]'"):
        absent.examine(file)
    with pytest.raises(UsageError, match=r"pip install 'fwconvert\[hf\]'"):
        absent.load(find(path), tmp_path, Loading())
