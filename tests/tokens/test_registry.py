"""Kinds of tokenizers: by its name, or by a recipe's rules, one gets all that there is to know of one."""

from collections.abc import Callable
from pathlib import Path

import corpus
import msgspec
import numpy as np
import pyarrow as pa
import pytest

import fwconvert
from fwconvert.errors import UsageError
from fwconvert.options import Encoder, EncoderChoice
from fwconvert.processes import CallApart
from fwconvert.recipes import Rules, check_rules
from fwconvert.tokens import registry
from fwconvert.tokens.spec import Loading, TokenizerSpec
from fwconvert.tokens.tokenizer import BytesTokenizer, Encoded, Tokens, text_bytes

NAMES = ["gpt2", "r50k_base", "p50k_base", "cl100k_base", "o200k_base", "bytes"]


def rules_of(name: str, folder: Path) -> Rules:
    corpus.write(folder / "a.parquet", ["text"])
    return fwconvert.recipe(source=folder, tokenizer=name).rules


@pytest.mark.parametrize("name", NAMES)
def test_the_rules_of_a_recipe_give_the_tokenizer_back(name: str, tmp_path: Path) -> None:
    rules = rules_of(name, tmp_path)

    assert registry.of_rules(rules) == registry.find(name)
    assert registry.of_rules(rules).sha256 == rules.vocabulary_sha256


@pytest.mark.parametrize("name", NAMES)
def test_what_is_built_in_leaves_the_rules_as_they_were(name: str, tmp_path: Path) -> None:
    """The ids of recipes rest on it."""
    assert not {"tokenizer_kind", "vocabulary_size", "eot_id"} & {
        *msgspec.json.decode(msgspec.json.encode(rules_of(name, tmp_path)))
    }


def test_the_names_of_all_kinds_are_known() -> None:
    assert [name for kind in registry.KINDS.values() for name in kind.names()] == NAMES
    with pytest.raises(UsageError, match="gpt2, r50k_base, p50k_base, cl100k_base, o200k_base, bytes"):
        registry.find("nonsense")


class Shifted(BytesTokenizer):
    """A token is a byte plus 1."""

    def encode(self, texts: pa.Array) -> Encoded:
        content, bounds = text_bytes(texts)
        return Encoded(content.astype(np.uint16) + np.uint16(1), bounds)

    def decode(self, tokens: Tokens) -> bytes:
        return bytes((tokens - 1).tolist())


class ShiftedKind:
    """A kind that is not built in: a recipe must say all about it."""

    def names(self) -> list[str]:
        return ["shifted"]

    def find(
        self, name: str, eot_token: str | None = None, bos_token: str | None = None
    ) -> TokenizerSpec | None:
        del eot_token, bos_token
        spec = TokenizerSpec(kind="shifted", name="shifted", sha256="5" * 64, size=70_000, eot=69_999)
        return spec if name == "shifted" else None

    def choose_encoder(
        self, spec: TokenizerSpec, wanted: EncoderChoice, apart: CallApart, folder: Callable[[], Path | None]
    ) -> tuple[Encoder, str]:
        del spec, wanted, apart, folder
        return "reference", ""

    def provide(self, spec: TokenizerSpec, folder: Path) -> None:
        """Need no file."""

    def copy(self, spec: TokenizerSpec, folder: Path, target: Path) -> None:
        """Need no file."""

    def load(self, spec: TokenizerSpec, folder: Path, how: Loading) -> Shifted:
        del folder, how
        return Shifted(spec)

    def estimate_tokens(self, spec: TokenizerSpec, text_bytes: int, documents: int) -> int:
        del spec
        return text_bytes + documents


def test_a_new_kind_is_all_that_a_new_kind_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.KINDS, "shifted", ShiftedKind())
    rules = rules_of("shifted", tmp_path / "sources")

    read_again = msgspec.json.decode(msgspec.json.encode(rules), type=Rules)
    assert read_again == rules == check_rules(read_again)
    assert registry.of_rules(read_again) == registry.find("shifted")
    assert (rules.token_type, rules.tokenizer_kind, rules.eot_id) == ("uint32", "shifted", 69_999)
    loaded = registry.load(registry.of_rules(read_again), tmp_path)
    assert loaded.decode(loaded.encode(pa.array(["abc"])).tokens) == b"abc"
    recipe = fwconvert.recipe(source=tmp_path / "sources", tokenizer="shifted")
    plan = fwconvert.plan(recipe, tmp_path / "out").plan
    assert plan.tokens == plan.text_bytes + plan.rows


def test_a_kind_that_this_version_lacks_is_refused(tmp_path: Path) -> None:
    rules = msgspec.structs.replace(
        rules_of("bytes", tmp_path), tokenizer_kind="newer", vocabulary_size=9, eot_id=8
    )

    with pytest.raises(UsageError, match="newer"):
        registry.of_rules(check_rules(rules))


@pytest.mark.parametrize(
    ("kind", "size", "eot"),
    [
        ("tiktoken", None, 8),
        ("tiktoken", 9, None),
        (None, 9, 8),
        ("tiktoken", 9, 9),
        ("x", 9, -1),
        ("x", 2**33, 1),
    ],
)
def test_half_a_tokenizer_is_none(
    kind: str | None, size: int | None, eot: int | None, tmp_path: Path
) -> None:
    rules = msgspec.structs.replace(
        rules_of("bytes", tmp_path), tokenizer_kind=kind, vocabulary_size=size, eot_id=eot
    )

    with pytest.raises(UsageError, match="do not describe a tokenizer"):
        check_rules(rules)
