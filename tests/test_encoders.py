import importlib.util
from typing import Any

import pytest

from fwconvert.encoders import choose
from fwconvert.errors import UsageError
from fwconvert.vocabulary import find

has_gigatoken = importlib.util.find_spec("gigatoken") is not None


@pytest.fixture
def no_gigatoken(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, *rest: Any) -> Any:
        return None if name == "gigatoken" else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


@pytest.mark.skipif(not has_gigatoken, reason="gigatoken is not installed")
@pytest.mark.parametrize("name", ["gpt2", "r50k_base", "cl100k_base", "o200k_base"])
@pytest.mark.parametrize("wanted", ["auto", "fast"])
def test_the_fast_encoder_is_used_where_it_knows_the_vocabulary(name: str, wanted: Any) -> None:
    assert choose(wanted, find(name)) == ("fast", "")


def test_the_reference_is_used_when_asked_for() -> None:
    assert choose("reference", find("gpt2")) == ("reference", "")


def test_bytes_need_no_encoder_and_nobody_is_told() -> None:
    assert choose("auto", find("bytes")) == ("reference", "")


def test_an_unknown_vocabulary_falls_back_and_says_so() -> None:
    encoder, reason = choose("auto", find("p50k_base"))
    assert encoder == "reference"
    assert "p50k_base" in reason


@pytest.mark.usefixtures("no_gigatoken")
def test_a_machine_without_the_fast_encoder_falls_back_and_says_so() -> None:
    encoder, reason = choose("auto", find("gpt2"))
    assert encoder == "reference"
    assert "gigatoken is not installed" in reason


@pytest.mark.usefixtures("no_gigatoken")
def test_asking_for_the_fast_encoder_in_vain_is_an_error() -> None:
    with pytest.raises(UsageError, match="gigatoken is not installed"):
        choose("fast", find("gpt2"))
