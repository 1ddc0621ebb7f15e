"""Texts reach the fast encoder without awkward in a worker, by awkward elsewhere; the tokens are the same."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fwconvert.processes import ProcessLimits, call_apart
from fwconvert.tokens import disagreements
from fwconvert.tokens.gigatoken import of_table
from fwconvert.tokens.registry import load
from fwconvert.tokens.spec import Loading
from fwconvert.tokens.tiktoken_kind import find, read_table

pytest.importorskip("gigatoken", reason="the fast encoder has no wheel for this machine")

NOWHERE = Path("nowhere")
BATCHES: tuple[list[str], ...] = (
    [],
    [""],
    ["", "", ""],
    ["one document, and no more"],
    ["a", "", "caf\u00e9 \U0001f600", "", f"doubtful {chr(disagreements.RANGES[0][0])}", "the end\n"],
    [f"document {number} " * (number % 70) for number in range(3000)],
)


def encoded(threads: int) -> tuple[list[tuple[bytes, list[int]]], str]:
    """Return the tokens and offsets of each batch, and the file of the module that is called awkward."""
    vocabulary = find("gpt2")
    quick = of_table(vocabulary, read_table(vocabulary, NOWHERE), threads)
    made = [quick.encode(pa.array(texts, pa.large_string())) for texts in BATCHES]
    found = [(one.tokens.astype(np.uint32).tobytes(), one.offsets.tolist()) for one in made]
    return found, str(getattr(sys.modules["awkward"], "__file__", ""))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_worker_makes_the_reference_s_tokens_without_awkward(threads: int) -> None:
    reference = load(find("gpt2"), NOWHERE, Loading("reference"))
    wanted = [reference.encode(pa.array(texts, pa.large_string())) for texts in BATCHES]

    found, awkward = call_apart(encoded, threads, ProcessLimits())

    assert found == [(one.tokens.astype(np.uint32).tobytes(), one.offsets.tolist()) for one in wanted]
    assert awkward == ""


def test_in_a_process_of_somebody_else_awkward_is_awkward() -> None:
    _, awkward = encoded(1)

    assert Path(awkward).parent.name == "awkward"
