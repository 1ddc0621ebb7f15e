"""Whether the fast encoder works is tried in a process of its own, whatever becomes of that."""

import importlib.resources
import os
import time
from pathlib import Path

import psutil
import pytest

from fwconvert.errors import EndedApart
from fwconvert.processes import ProcessLimits, call_apart
from fwconvert.tokens import tiktoken_kind
from fwconvert.tokens.tiktoken_kind import find, read_table


@pytest.mark.parametrize("name", ["gpt2", "cl100k_base", "o200k_base"])
def test_the_fast_encoder_passes_where_it_works(name: str) -> None:
    pytest.importorskip("gigatoken", reason="the fast encoder has no wheel for this machine")

    assert tiktoken_kind.why_fast_fails(find(name)) == ""


def test_the_table_of_the_trial_is_the_beginning_of_a_real_one() -> None:
    table = (importlib.resources.files("fwconvert") / "vocabularies" / "trial.tiktoken").read_bytes()

    assert len(table.splitlines()) == 512
    assert read_table(find("gpt2"), Path("nowhere")).startswith(table)


def quote(word: str) -> str:
    return f"{word} in {os.getpid()}"


def leave(code: int) -> str:
    os._exit(code)


def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "awake"


def divmod_by(number: int) -> str:
    return str(divmod(1, number))


def take(megabytes: int) -> str:
    taken = bytearray(megabytes * 2**20)
    time.sleep(10_000)
    return str(len(taken))


def test_a_function_that_takes_too_much_memory_is_ended() -> None:
    with pytest.raises(EndedApart, match=r"its process wanted more than 500,000,000 bytes of memory"):
        call_apart(take, 600, ProcessLimits(memory_bytes=500_000_000))


def test_what_a_function_raises_in_another_process_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        call_apart(divmod_by, 0, ProcessLimits())


def test_what_a_function_returns_in_another_process_comes_back() -> None:
    word, _, pid = call_apart(quote, "hello", ProcessLimits()).partition(" in ")

    assert word == "hello"
    assert int(pid) != os.getpid()
    assert not psutil.pid_exists(int(pid))


def test_a_function_that_ends_its_process_ends_only_that() -> None:
    with pytest.raises(EndedApart, match="its process was ended by exit code 3"):
        call_apart(leave, 3, ProcessLimits())


def test_a_function_that_never_returns_is_not_waited_for() -> None:
    before = {child.pid for child in psutil.Process().children()}

    with pytest.raises(EndedApart, match="no answer in 1 s"):
        call_apart(sleep, 10_000.0, ProcessLimits(stall_seconds=1))

    spawned = [child for child in psutil.Process().children() if child.pid not in before]
    assert not [child for child in spawned if any("spawn_main" in word for word in child.cmdline())]
