"""Addresses as anybody may see them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fwconvert.addresses import is_one, plain, shown


@pytest.mark.parametrize(
    ("address", "seen"),
    [
        ("https://huggingface.co", "https://huggingface.co"),
        ("https://mirror.example:8443/hub/", "https://mirror.example:8443/hub/"),
        ("https://me:secret@mirror.example/hub?key=secret#secret", "https://mirror.example/hub"),
        ("http://me:sec@ret@[::1]:80/x", "http://[::1]:80/x"),
        ("mirror.example", "mirror.example"),
        ("localhost:8000", "localhost:8000"),
        ("mirror.example/hub?key=secret", "mirror.example/hub"),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret(address: str, seen: str) -> None:
    assert shown(address) == seen
    assert is_one(address)


@pytest.mark.parametrize(
    "address",
    [
        "http://me:sec/ret@mirror.example",
        "http://me:sec?ret@mirror.example",
        "http://me:1?ret@mirror.example",
        "http://me:sec#ret@mirror.example",
        "http://127.0.0.1:secret",
        "http://127.0.0.1:99999999",
        "http://me:secret@[::1",
        "me:secret@mirror.example",
    ],
)
def test_of_an_address_that_makes_no_sense_nothing_is_shown(address: str) -> None:
    assert not is_one(address)
    assert not any(part in shown(address) for part in ("sec", "ret", "me:", "mirror"))


def test_addresses_in_a_text_are_shortened_and_the_rest_stays() -> None:
    text = "cannot get 'https://me:it@cdn.example/x?sig=it' (see http://docs.example/y?it#it), http://h:80."
    assert plain(text) == "cannot get 'https://cdn.example/x' (see http://docs.example/y), http://h:80."
    assert plain(ValueError("no address in here: a@b?c")) == "no address in here: a@b?c"


@given(st.text(), st.text("abc/?#@:%[] ", min_size=1))
def test_any_text_can_be_shown_and_once_is_enough(text: str, secret: str) -> None:
    for one in (text, f"http://{text}", f"http://me:{secret}@h/{text}"):
        assert plain(plain(one)) == plain(one)
        assert shown(shown(one)) == shown(one)


@given(st.text("abcdefg", min_size=4), st.sampled_from(["", "/", "?", "#", "@", ":", "%2F"]))
def test_no_password_is_shown_whatever_is_in_it(word: str, sign: str) -> None:
    address = f"https://me:XX{word}{sign}{word}XX@hub.example/x"
    assert "XX" not in shown(address)
    assert "XX" not in plain(f"failed: {address}")
