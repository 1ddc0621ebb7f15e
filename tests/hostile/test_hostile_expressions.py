"""Expressions of --where that are made to break whoever reads them: as a word, and in a run's records."""

import json
from pathlib import Path

import bounded
import corpus
import pytest

from fwconvert import where
from fwconvert.errors import UsageError

RECIPE = ("--tokenizer", "bytes", "--shard-tokens", "1000")
CHAIN = f"score in ({'-' * 2000}1,)"
# Each may be as long as an expression can be.
BROKEN = {
    "more signs": f"score in ({'-' * 3900}1,)",
    "signs in a list": CHAIN,
    "signs": f"{'-' * 2000}score > 1",
    "signs of an argument": f"contains(text, {'-' * 2000}'x')",
    "signs of a name": f"column({'-' * 2000}'x') > 1",
    "signs of a null": f"score is {'-' * 2000}None",
    "signs and brackets": f"score in ({'-(' * 1300}1{')' * 1300},)",
    "brackets": f"{'(' * 1900}score{')' * 1900} > 1",
    "open brackets": "[" * 3900,
    "negations": f"{'not ' * 900}score",
    "parts": f"score{'[0]' * 1200} > 1",
    "attributes": f"score{'.a' * 1900} > 1",
    "sums": f"{'score + ' * 480}1 > 1",
    "a number": f"score > 1{'0' * 3900}",
    "a number with a base": f"score > 0x{'f' * 3900}",
    "an exponent": f"score > 1e{'9' * 3900}",
    "functions": f"{'lambda: ' * 450}score",
    "a null byte": "score > 1\0",
    "half a character": "score > '\ud800'",
    "a text too long": f"text == '{'x' * 5000}'",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_an_expression_that_nobody_can_read_is_refused_in_words(kind: str) -> None:
    with pytest.raises(UsageError):
        where.parse(BROKEN[kind])


def test_signs_before_a_number_in_a_list_are_read() -> None:
    assert where.parse("score in (--1, -2)") == where.parse("score in (1, -2)")


def test_a_chain_of_signs_is_the_callers_mistake(tmp_path: Path) -> None:
    sources = corpus.equal_sources(tmp_path / "sources", files=1, rows=5)
    for command in ("plan", "convert"):
        words = (command,) if command == "plan" else ()
        ended = bounded.run(*words, "--source", sources, "--out", tmp_path / "out", *RECIPE, "--where", CHAIN)
        assert ended.code == 2
        assert "nested too deeply" in ended.said


@pytest.mark.parametrize("kind", ["signs in a list", "brackets", "a text too long", "a null byte"])
def test_an_expression_in_the_records_of_a_run_is_refused_by_every_command(kind: str, tmp_path: Path) -> None:
    sources, out = corpus.equal_sources(tmp_path / "sources", files=1, rows=20), tmp_path / "out"
    flags = ("--source", sources, "--out", out, *RECIPE, "--workers", "1")
    assert bounded.run(*flags).code == 0
    for path in (out / "manifest.json", out / ".fwconvert/plan.json"):
        record = json.loads(path.read_bytes())
        record.get("recipe", record)["rules"]["where"] = BROKEN[kind]
        path.write_text(json.dumps(record))
    name = min(out.glob("*.bin")).name

    for words in (
        ("verify", out),
        ("trace", out, f"{name}:5"),
        ("show", out, "--document", "1"),
        ("export", out, "--eot", "after", "-o", tmp_path / "new"),
        ("status", out),
    ):
        assert bounded.run(*words).code in {1, 2}, words
    assert not (tmp_path / "new").exists()
    assert bounded.run(*flags).code == 0, "both are made again"
    assert bounded.run("verify", out).code == 0
