"""Other separators, and two of them: BOS text EOT. Made, cut, proven, shown, exported and served.

cl100k_base has special tokens to choose from. What is made is held against the naive converter, and what is
damaged against the places of the separators, which it knows from its list of tokens.
"""

import hashlib
import itertools
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus
import loader_oracle
import naive
import numpy as np
import pytest
import runner
from runner import shards, tree

import fwconvert
from fwconvert.errors import UsageError
from fwconvert.formats import FormatName
from fwconvert.inspection.reader import RunReader
from fwconvert.options import Options
from fwconvert.page.reading import Reader

BOS, EOT = 100276, 100257
BOTH: dict[str, Any] = {"bos_token": BOS, "eot_token": EOT}
SIZE = 40
TEXTS: dict[str, list[str | bytes | None]] = {
    "a": ["ab", "", "cde", None, *corpus.documents(0, 6)],
    "b": [],
    "c": ["p", "<|endoftext|> and <|endofprompt|>", corpus.document(7, times=40), "\u20ac"],
    # Its last document ends with a token shard.
    "d": ["q", " q" * (SIZE - 6), "z"],
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for name, texts in TEXTS.items():
        corpus.write(folder / f"{name}.parquet", texts)
    return folder


@pytest.fixture(scope="module")
def run_of(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a finished run with these choices; made once."""
    made: dict[str, Path] = {}

    def find(**choices: Any) -> Path:
        key = json.dumps(choices, sort_keys=True)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("direct") / "run"
            how = {"tokenizer": "cl100k_base", "shard_tokens": SIZE, **choices}
            if how.get("format") == "raw":
                del how["shard_tokens"]
            assert runner.convert(source, made[key], **how).complete
        return made[key]

    return find


def oracle(source: Path, out: Path, **choices: Any) -> dict[str, str]:
    """Return the digests of what the naive converter makes."""
    how = {"shard_tokens": SIZE, **choices}
    naive.convert(source, out, tokenizer="cl100k_base", **{"val_tokens": how["shard_tokens"], **how})
    return shards(out)


def streams(source: Path) -> list[naive.Stream]:
    encode = naive.encoder("cl100k_base")
    return [naive.read(path, encode, EOT, "after", None, BOS) for path in sorted(source.glob("*.parquet"))]


def documents(source: Path) -> list[list[int]]:
    """Return each document with its separators."""
    found = []
    for stream in streams(source):
        bounds = [*(start.position for start in stream.starts), len(stream.tokens)]
        found += [stream.tokens[begin:end] for begin, end in itertools.pairwise(bounds) if stream.starts]
    assert all(one[0] == BOS and one[-1] == EOT for one in found)
    return found


# --- made


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"shard_tokens": 1},
        {"shard_tokens": 7, "val_tokens": 0},
        {"shard_tokens": 63, "layout": "contiguous"},
        {"layout": "contiguous", "last": "keep", "val_tokens": 5},
        {"last": "drop"},
        {"limit_documents": 9},
    ],
    ids=str,
)
def test_a_run_is_what_the_oracle_makes(
    choices: dict[str, Any], run_of: Callable[..., Path], source: Path, tmp_path: Path
) -> None:
    out = run_of(**BOTH, **choices)
    assert shards(out) == oracle(source, tmp_path, **BOTH, **choices)
    assert fwconvert.verify(out).problems == ()


def test_a_limit_cuts_where_it_is_reached(source: Path, tmp_path: Path) -> None:
    first = documents(source)[0]
    for limit in range(len(first) - 2, len(first) + 4):  # In the text, before and after EOT, after BOS...
        choices = {**BOTH, "limit_tokens": limit, "shard_tokens": 3, "last": "keep"}
        out = tmp_path / f"{limit}"
        runner.convert(source, out, tokenizer="cl100k_base", **choices)
        assert shards(out) == oracle(source, tmp_path / f"naive {limit}", **choices)
        assert fwconvert.verify(out).problems == ()
        (job,) = json.loads((out / "manifest.json").read_bytes())["jobs"]
        begun = 1 + (limit > len(first))
        # The empty row between the two belongs to whoever reads on.
        rows = {1: 2 if limit == len(first) else 1, 2: 3}[begun]
        assert (job["tokens"], job["documents"], job["rows"]) == (limit, begun, rows)
        assert job.get("cut", False) == (limit != len(first))


@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        (("--bos-token", "<|fim_prefix|>"), {"bos_token": 100258}),
        (("--eot-token", "100256", "--eot", "after"), {"eot_token": 100256, "eot": "after"}),
        (("--bos-token", "<|endofprompt|>", "--eot-token", "<|endoftext|>", "--format", "llmc"), BOTH),
    ],
    ids=str,
)
def test_the_command_makes_it_and_makes_it_again(
    given: tuple[str, ...], meaning: dict[str, Any], source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("--source", source, "--out", out, "--tokenizer", "cl100k_base", "--shard-tokens", SIZE, *given)
    runner.assert_tidy_end(runner.command_line(*words), 0)
    before = runner.state(out)
    assert shards(out) == oracle(source, tmp_path / "naive", **meaning)
    runner.assert_tidy_end(runner.command_line(*words), 0)
    assert runner.state(out) == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--eot-token", "a"), "<|endoftext|> (100257), <|fim_prefix|> (100258)"),
        (("--bos-token", "64"), "ordinary text"),
        (("--bos-token", "100277"), "outside the vocabulary of 100,277 ids"),
        (("--bos-token", "100257", "--eot-token", "<|endoftext|>"), "cannot both begin and end"),
        (("--bos-token", "100276", "--eot-token", "100257", "--eot", "after"), "leave --eot out"),
        (("--bos-token", "100276", "--eot", "after"), "leave --eot out"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_words(
    given: tuple[str, ...], said: str, source: Path, tmp_path: Path
) -> None:
    words = ("--source", source, "--out", tmp_path / "out", "--tokenizer", "cl100k_base", *given)
    for _ in range(2):
        ended = runner.command_line(*words)
        runner.assert_tidy_end(ended, 2)
        assert said in ended.stderr
    assert not (tmp_path / "out").exists()


def test_the_plan_tells_both(source: Path, tmp_path: Path) -> None:
    words = ("plan", "--source", source, "--out", tmp_path / "out", "--tokenizer", "cl100k_base")
    ended = runner.command_line(*words, "--bos-token", BOS, "--eot-token", EOT, "--shard-tokens", SIZE)
    runner.assert_tidy_end(ended, 0)
    assert "the token 100276 before and 100257 after each document" in ended.stdout
    assert "has to look for the first, that of --bos-token" in ended.stdout


# --- proven


def sealed(run: Path, out: Path, change: Callable[[list[int]], None]) -> list[str]:
    """Return what verify says of a copy whose only training shard has other tokens, under hashes that fit."""
    manifest = json.loads((run / "manifest.json").read_bytes())
    (line,) = manifest["shards"]
    content = (run / line["name"]).read_bytes()
    tokens = np.frombuffer(content, "<u4", offset=1024).tolist()
    length = len(tokens)
    change(tokens)
    assert len(tokens) == length
    (out / "index").mkdir(parents=True)
    changed = content[:1024] + np.array(tokens, "<u4").tobytes()
    (out / line["name"]).write_bytes(changed)
    index = f"index/{Path(line['name']).stem}.docs"
    (out / index).write_bytes((run / index).read_bytes())
    line["sha256"] = hashlib.sha256(changed).hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest))
    return [problem.what for problem in fwconvert.verify(out).problems]


def test_a_separator_that_is_lost_doubled_or_swapped_is_found(
    run_of: Callable[..., Path], source: Path, tmp_path: Path
) -> None:
    run = run_of(**BOTH, val_tokens=0, shard_tokens=10**6, layout="contiguous")
    first, second, *_ = documents(source)
    end = len(first)
    assert len(second) > 3

    def told(name: str, *changes: tuple[int, int]) -> str:
        def change(tokens: list[int]) -> None:
            for at, token in changes:
                tokens[at] = token

        found = sealed(run, tmp_path / name, change)
        return "\n".join(found)

    assert told("another word", (1, first[1] + 1)) == "", "text is not proven by separators"
    lost = told("lost BOS", (end, 5))
    assert f"1 documents start where there is no BOS, the first at token {end}" in lost
    assert "its tokens" in lost
    lost = told("lost EOT", (end - 1, 5))
    assert f"1 documents start without an EOT before them, the first at token {end}" in lost
    doubled = told("doubled BOS", (end + 1, BOS))
    assert f"1 documents are missing, the first at token {end + 1}" in doubled
    doubled = told("doubled EOT", (end - 2, EOT))
    assert (
        f"EOTs end no document: another should start at the next token, the first at token {end - 1}"
        in doubled
    )
    swapped = told("swapped", (end - 1, BOS), (end, EOT))
    assert "no BOS" in swapped
    assert "without an EOT" in swapped
    last = told("last EOT", (-1, 5))
    assert "without an EOT" in last


def test_trace_and_show_know_both(run_of: Callable[..., Path], source: Path) -> None:
    run = run_of(**BOTH, val_tokens=0, shard_tokens=10**6, layout="contiguous")
    (line,) = json.loads((run / "manifest.json").read_bytes())["shards"]
    first, second, *_ = documents(source)
    for position, text in ((0, "<|endofprompt|>"), (1, None), (len(second) - 1, "<|endoftext|>")):
        place = f"{line['name']}:{len(first) + position}"
        ended = runner.command_line("trace", run, place, "--json", "--source", source)
        runner.assert_tidy_end(ended, 0)
        found = json.loads(ended.stdout)
        assert (found["document"], found["row"], found["position"]) == (2, 2, position)
        assert found["document_tokens"] == len(second)
        assert found["first_words"] == "cde"
        assert found["id"] == "2", found["missing"]
        assert text is None or found["token_text"] == text

    ended = runner.command_line("show", run, "--document", "2")
    runner.assert_tidy_end(ended, 0)
    assert ended.stdout.endswith("\n<|endofprompt|>cde<|endoftext|>\n")


def test_the_page_tells_both_apart(run_of: Callable[..., Path]) -> None:
    reader = Reader(RunReader(run_of(**BOTH, val_tokens=0, shard_tokens=10**6, layout="contiguous")))
    shown = reader.tokens(piece := reader.document(2), piece.begin)
    assert [one.is_separator for one in shown] == [True, *[False] * (len(shown) - 2), True]
    assert (shown[0].id, shown[0].text, shown[-1].id, shown[-1].text) == (
        BOS, "begin of text", EOT, "end of text",
    )  # fmt: skip
    assert "".join(one.text for one in shown[1:-1]) == "cde"


def test_every_token_of_small_shards_knows_its_document(run_of: Callable[..., Path], source: Path) -> None:
    run = RunReader(run_of(**BOTH, shard_tokens=7, val_tokens=0))
    wanted = [(number, at) for number, one in enumerate(documents(source), 1) for at in range(len(one))]
    found = []
    for line in run.manifest.shards:
        for offset in range(line.tokens):
            located = run.find(line, offset)
            assert located.document.is_whole
            found.append((located.number, located.position - located.document.start))
    assert sorted(found) == wanted


# --- exported

CHANGES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    # From, what is asked for, and what a direct conversion is asked for.
    (BOTH, {"eot_token": EOT}, {"eot_token": EOT, "eot": "before"}),
    (BOTH, {"eot_token": EOT, "eot": "after", "shard_tokens": 13}, {"eot": "after", "shard_tokens": 13}),
    (BOTH, {"bos_token": BOS, "layout": "contiguous"}, {"bos_token": BOS, "layout": "contiguous"}),
    (BOTH, {"bos_token": EOT, "eot_token": BOS}, {"bos_token": EOT, "eot_token": BOS}),
    (BOTH, {"shard_tokens": 21}, {**BOTH, "shard_tokens": 21}),
    ({}, BOTH, BOTH),
    ({"eot": "after"}, {"bos_token": BOS}, {"bos_token": BOS}),
    ({"eot": "after"}, {"eot_token": "<|fim_prefix|>"}, {"eot_token": 100258, "eot": "after"}),
]


@pytest.mark.parametrize(("old", "asked", "wanted"), CHANGES, ids=str)
def test_an_export_is_what_a_conversion_gives(
    old: dict[str, Any],
    asked: dict[str, Any],
    wanted: dict[str, Any],
    run_of: Callable[..., Path],
    source: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        assert fwconvert.export(run_of(**old), out, Options(workers=1), **asked).complete
    assert shards(out) == oracle(source, tmp_path / "naive", **wanted)
    assert tree(out) == tree(run_of(**wanted))
    assert fwconvert.verify(out).problems == ()


@pytest.mark.parametrize("kind", ["megatron", "datatrove", "raw", "npy"])
def test_other_formats_have_both(kind: FormatName, run_of: Callable[..., Path], tmp_path: Path) -> None:
    fwconvert.export(run_of(**BOTH), tmp_path / "out", Options(workers=1), format=kind, val_tokens=0)
    assert tree(tmp_path / "out") == tree(run_of(**BOTH, format=kind, val_tokens=0))
    assert fwconvert.verify(tmp_path / "out").problems == ()


def test_trainers_are_told_documents_with_both(run_of: Callable[..., Path], source: Path) -> None:
    lengths = [len(one) for one in documents(source)]
    how = {"val_tokens": 0, "shard_tokens": 10**6, "layout": "contiguous"}
    (index,) = run_of(**BOTH, **how, format="megatron").glob("*.idx")
    content = index.read_bytes()
    (count,) = struct.unpack_from("<Q", content, 18)
    assert struct.unpack_from(f"<{count}i", content, 34) == tuple(lengths)
    (index,) = run_of(**BOTH, **how, format="datatrove").glob("*.ds.index")
    ends = struct.unpack(f"<{len(lengths)}Q", index.read_bytes())
    assert ends == tuple(np.cumsum(lengths).tolist())


def test_the_command_exports_and_refuses(run_of: Callable[..., Path], tmp_path: Path) -> None:
    run, out = run_of(**BOTH), tmp_path / "out"
    words = ("export", run, "-o", out, "--bos-token", "<|endofprompt|>")
    runner.assert_tidy_end(runner.command_line(*words), 0)
    before = runner.state(out)
    assert tree(out) == tree(run_of(bos_token=BOS))
    runner.assert_tidy_end(runner.command_line(*words), 0)
    assert runner.state(out) == before

    for flags, said in (
        (("--eot", "before"), "--bos-token 100276"),
        (("--eot-token", "64"), "ordinary text"),
        (("--bos-token", "100257", "--eot-token", "100257"), "cannot both"),
    ):
        ended = runner.command_line("export", run, "-o", tmp_path / "refused", *flags)
        runner.assert_tidy_end(ended, 2)
        assert said in ended.stderr
        assert not (tmp_path / "refused").exists()


def test_a_limit_of_tokens_is_kept_or_the_export_is_refused(
    run_of: Callable[..., Path], tmp_path: Path
) -> None:
    reached = run_of(**BOTH, limit_tokens=50)
    with pytest.raises(UsageError, match="convert the sources again"):
        fwconvert.export(reached, tmp_path / "a", eot_token=EOT)
    turned: dict[str, Any] = {"bos_token": EOT, "eot_token": BOS}
    fwconvert.export(reached, tmp_path / "b", Options(workers=1), **turned)
    assert tree(tmp_path / "b") == tree(run_of(**turned, limit_tokens=50))

    # Not reached with one separator, but it would be with two.
    one = run_of(eot="after", limit_tokens=10**6)
    tokens = sum(line["tokens"] for line in json.loads((one / "manifest.json").read_bytes())["jobs"])
    narrow = run_of(eot="after", limit_tokens=tokens + 1)
    with pytest.raises(UsageError, match="another document"):
        fwconvert.export(narrow, tmp_path / "c", **BOTH)
    fwconvert.export(one, tmp_path / "d", Options(workers=1), **BOTH)
    assert tree(tmp_path / "d") == tree(run_of(**BOTH, limit_tokens=10**6))


# --- served


def test_a_window_of_documents_begins_with_the_first_separator(
    run_of: Callable[..., Path], source: Path
) -> None:
    run = run_of(**BOTH, val_tokens=0, shard_tokens=10**6, layout="contiguous")
    loader = fwconvert.Loader(run, batch=1, seq_len=6, order="documents", seed=3)
    found = [window.tolist() for batch in loader for window in batch]
    wanted = loader_oracle.packed(loader_oracle.shuffled(documents(source), 3, 0), 6)
    assert found == wanted
    assert all(window[0] == BOS for window in found)


def test_lengths_of_documents_leave_both_out(run_of: Callable[..., Path], source: Path) -> None:
    run = run_of(**BOTH)
    records = [json.loads(path.read_text()) for path in (run / runner.PRIVATE / "statistics").glob("*.json")]
    lengths = [len(one) - 2 for one in documents(source)]
    assert sum(one["lengths"]["sum"] for one in records) == sum(lengths)
    assert sum(one["lengths"]["count"] for one in records) == len(lengths)
    counted = {token for one in records for token, _ in one["top_tokens"]}
    assert counted
    assert not {BOS, EOT} & counted
