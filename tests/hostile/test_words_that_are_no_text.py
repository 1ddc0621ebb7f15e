"""A command line may hold any bytes; what is no text is refused in words, or is a name like any other."""

import os
from pathlib import Path

import bounded
import pytest

RUN = Path(__file__).parent / "run"
NO_TEXT = os.fsdecode(b"\xff")

pytestmark = pytest.mark.skipif(os.name == "nt", reason="wants any bytes in words")


@pytest.mark.parametrize(
    "flag", ["--text-column", "--name", "--where", "--tokenizer", "--version", "--format"]
)
def test_a_value_that_is_no_text_is_refused_and_nothing_is_written(flag: str, tmp_path: Path) -> None:
    source = () if flag == "--version" else ("--source", RUN / "sources")

    ended = bounded.run(*source, "--out", tmp_path / "out", "--tokenizer", "bytes", flag, NO_TEXT)

    assert ended.code == 2, ended.said
    assert not (tmp_path / "out").exists()
