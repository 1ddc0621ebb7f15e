"""Which tokens may separate documents: those that no text gives, by name or id, and never by guessing."""

import importlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fwconvert.errors import UsageError
from fwconvert.recipes import check_rules
from fwconvert.run.request import recipe
from fwconvert.tokens import registry
from fwconvert.tokens.tiktoken_kind import VOCABULARIES, read_table
from fwconvert.tokens.tokenizer import parse_ranks

OPENAI: Any = importlib.import_module("tiktoken_ext.openai_public")


@pytest.mark.parametrize("name", sorted(VOCABULARIES))
def test_special_tokens_are_those_of_tiktoken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPENAI, "load_tiktoken_bpe", lambda *_, **__: {})
    monkeypatch.setattr(OPENAI, "data_gym_to_mergeable_bpe_ranks", lambda **_: {})
    assert dict(VOCABULARIES[name].specials) == getattr(OPENAI, name)()["special_tokens"]


@pytest.mark.parametrize("name", ["gpt2", "cl100k_base"])
def test_the_free_ids_are_those_that_no_text_gives(name: str) -> None:
    known = VOCABULARIES[name]
    ranks = {*parse_ranks(read_table(known, Path("nowhere"))).values()}
    assert {*known.free} == {*range(known.size)} - ranks


@pytest.mark.parametrize(
    ("tokenizer", "eot", "bos", "found"),
    [
        ("cl100k_base", "<|endofprompt|>", None, (100276, None)),
        ("cl100k_base", "100256", None, (100256, None)),
        ("cl100k_base", None, "<|fim_prefix|>", (100258, None)),
        ("cl100k_base", "<|endoftext|>", "100276", (100257, 100276)),
        ("o200k_base", "<|endoftext|>", "199998", (199999, 199998)),
        ("p50k_base", "50256", None, (50256, None)),
        ("bytes", "256", None, (256, None)),
        ("bytes", None, "<|endoftext|>", (256, None)),
    ],
)
def test_names_and_ids_are_the_same(
    tokenizer: str, eot: str | None, bos: str | None, found: tuple[int, int | None]
) -> None:
    spec = registry.find(tokenizer, eot, bos)
    assert (spec.eot, spec.bos) == found


@pytest.mark.parametrize(
    ("tokenizer", "eot", "bos", "said"),
    [
        ("gpt2", "a", None, "no special token"),
        ("gpt2", "64", None, "ordinary text"),
        ("gpt2", "50257", None, "outside the vocabulary"),
        ("gpt2", "99999999999999999999", None, "no special token"),
        ("gpt2", "-1", None, "no special token"),
        ("gpt2", "\u0665", None, "no special token"),
        ("p50k_base", "50257", None, "ordinary text"),  # its ranks go on behind the special token
        ("cl100k_base", "100255", None, "ordinary text"),
        ("cl100k_base", None, "100277", "outside the vocabulary"),
        ("cl100k_base", "100257", "<|endoftext|>", "cannot both begin and end"),
        ("bytes", "255", None, "ordinary text"),
        ("bytes", "256", "256", "cannot both begin and end"),
    ],
)
def test_what_text_may_contain_separates_nothing(
    tokenizer: str, eot: str | None, bos: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        registry.find(tokenizer, eot, bos)
    assert "<|endoftext|> (" in str(refused.value), "the candidates are named"


def test_the_usual_separator_is_no_other_recipe() -> None:
    usual = recipe(version="10B").recipe_id
    for one in (
        recipe(version="10B", eot_token="<|endoftext|>"),
        recipe(version="10B", eot_token=50256),
        recipe(version="10B", bos_token=50256),
    ):
        assert one.recipe_id == usual
    assert recipe(version="10B", bos_token=50256, format="megatron").rules.eot == "before"


def test_two_separators_have_their_sides_in_every_format() -> None:
    given: dict[str, Any] = {"tokenizer": "cl100k_base", "eot_token": 100257, "bos_token": 100276}
    for kind in ("llmc", "megatron"):
        rules = recipe(version="10B", format=kind, **given).rules
        assert (rules.eot, rules.eot_id, rules.bos_id) == ("after", 100257, 100276)
        spec = registry.of_rules(rules)
        assert registry.as_rules(spec) == {name: getattr(rules, name) for name in registry.as_rules(spec)}


@pytest.mark.parametrize(
    "given",
    [
        {"eot_token": 100257, "bos_token": 100276, "eot": "after"},
        {"eot_token": 100257, "bos_token": 100276, "eot": "before"},
        {"bos_token": 100276, "eot": "after"},
    ],
)
def test_a_side_that_contradicts_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="leave --eot out"):
        recipe(version="10B", tokenizer="cl100k_base", **given)


@pytest.mark.parametrize(
    "damage",
    [
        {"bos_id": 100257},
        {"bos_id": 100277},
        {"bos_id": 5},
        {"eot_id": 5},
        {"eot": "before"},
        {"vocabulary_size": 200_000},
        {"vocabulary_sha256": "ab" * 32},
        {"tokenizer": "gpt2"},
        {"tokenizer": "nothing"},
        {"tokenizer_kind": None},
        {"tokenizer_kind": "bytes"},
    ],
)
def test_rules_that_cannot_be_are_refused(damage: dict[str, Any]) -> None:
    rules = recipe(version="10B", tokenizer="cl100k_base", eot_token=100257, bos_token=100276).rules
    with pytest.raises(UsageError):
        registry.of_rules(check_rules(msgspec.structs.replace(rules, **damage)))
