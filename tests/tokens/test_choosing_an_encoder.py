import importlib
import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import pytest
import small_tokenizers as small
from packaging.specifiers import SpecifierSet

from fwconvert.errors import UsageError
from fwconvert.processes import call_apart
from fwconvert.tokens import registry
from fwconvert.tokens.disagreements import GIGATOKEN
from fwconvert.tokens.tiktoken_kind import Vocabulary, choose, find

has_gigatoken = importlib.util.find_spec("gigatoken") is not None


def works(_: Vocabulary) -> str:
    return ""


def unused(_: Vocabulary) -> str:
    raise AssertionError("there is nothing to be tried")


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
    assert choose(wanted, find(name), works) == ("fast", "")


def test_the_reference_is_used_when_asked_for() -> None:
    assert choose("reference", find("gpt2"), unused) == ("reference", "")


def test_bytes_need_no_encoder_and_nobody_is_told() -> None:
    spec = registry.find("bytes")
    assert registry.kind_of(spec).choose_encoder(spec, "auto", call_apart, lambda: None) == ("reference", "")


def test_an_unknown_vocabulary_falls_back_and_says_so() -> None:
    encoder, reason = choose("auto", find("p50k_base"), unused)
    assert encoder == "reference"
    assert "p50k_base" in reason


@pytest.mark.usefixtures("no_gigatoken")
def test_a_machine_without_the_fast_encoder_falls_back_and_says_so() -> None:
    encoder, reason = choose("auto", find("gpt2"), unused)
    assert encoder == "reference"
    assert "gigatoken is not installed" in reason


@pytest.mark.usefixtures("no_gigatoken")
def test_asking_for_the_fast_encoder_in_vain_is_an_error() -> None:
    with pytest.raises(UsageError, match="gigatoken is not installed"):
        choose("fast", find("gpt2"), unused)


@pytest.mark.skipif(not has_gigatoken, reason="gigatoken is not installed")
def test_what_fails_the_trial_is_not_used() -> None:
    encoder, reason = choose("auto", find("gpt2"), lambda _: "ImportError: no such symbol")
    assert encoder == "reference"
    assert "ImportError: no such symbol" in reason
    with pytest.raises(UsageError, match="no such symbol"):
        choose("fast", find("gpt2"), lambda _: "ImportError: no such symbol")


def test_the_version_that_is_used_is_the_one_that_is_installed_with_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    (wanted,) = (line for line in project["project"]["dependencies"] if line.startswith("gigatoken"))
    assert wanted.startswith(f"gigatoken=={GIGATOKEN};")


def test_the_extra_admits_the_versions_of_tokenizers_that_were_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    hugging_face = importlib.import_module("fwconvert.tokens.hugging_face")
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    (wanted,) = extras["optional-dependencies"]["hf"]
    admitted = SpecifierSet(wanted.removeprefix("tokenizers"))
    assert [f"0.{minor}" for minor in range(100) if f"0.{minor}.3" in admitted] == [*hugging_face.COMPARED]
    content = small.byte_level()
    assert hugging_face.HuggingFace().why_not_fast(content) == ""
    monkeypatch.setattr(library, "__version__", "0.24.0")
    assert "tokenizers 0.24.0 is installed" in hugging_face.HuggingFace().why_not_fast(content)
