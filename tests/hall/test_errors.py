"""Errors must arrive whole in the parent, and look alike."""

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from fwconvert import errors
from fwconvert.errors import FwconvertError, message

KINDS: list[type[FwconvertError]] = [FwconvertError, *FwconvertError.__subclasses__()]


def raise_by_name(name: str, text: str) -> None:
    raise getattr(errors, name)(text)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling_with_its_kind_and_its_text(kind: type[FwconvertError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("what is wrong\n  file  x")))

    assert type(copy) is kind
    assert str(copy) == "what is wrong\n  file  x"


def test_every_error_raised_in_a_spawned_process_reaches_the_parent() -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        futures = {kind: pool.submit(raise_by_name, kind.__name__, f"a {kind.__name__}") for kind in KINDS}
        for kind, future in futures.items():
            error = future.exception(timeout=300)
            assert type(error) is kind
            assert str(error) == f"a {kind.__name__}"


def test_the_kinds_do_not_catch_each_other() -> None:
    for kind in KINDS[1:]:
        assert kind.__mro__[1] is FwconvertError


def test_a_message_says_what_is_wrong_then_the_values_then_what_to_do() -> None:
    text = message(
        "this folder was made by another recipe",
        "choose another --out, or pass --tokenizer gpt2",
        folder="edu-10B",
        tokenizer_in_manifest="gpt2",
        tokenizer_in_command="cl100k_base",
    )

    assert text == (
        "this folder was made by another recipe\n"
        "  folder                 edu-10B\n"
        "  tokenizer in manifest  gpt2\n"
        "  tokenizer in command   cl100k_base\n"
        "  -> choose another --out, or pass --tokenizer gpt2"
    )


def test_a_message_needs_neither_values_nor_actions() -> None:
    assert message("all is lost") == "all is lost"
    assert message("all is lost", "go home", "sleep") == "all is lost\n  -> go home\n  -> sleep"
    assert message("all is lost", wrong="a value may be named like the first part") == (
        "all is lost\n  wrong  a value may be named like the first part"
    )
