"""Runs with tokenizers of files and of the hub, by the real program: exact, and without the original after.

The oracle joins what each library gives for each text with the separators, and
that is what has to stand in the token shards.
"""

import importlib
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import corpus
import hub_runs
import numpy as np
import pytest
import runner
import small_tokenizers as small
import tokenizer_files
from hub_faults import nobody
from hub_server import COMMIT, HubServer
from runner import PRIVATE, assert_tidy_end
from small_tokenizers import BOS, EOT

from fwconvert.inspection.show import numbered
from fwconvert.inspection.trace import trace
from fwconvert.inspection.verify import verify
from fwconvert.loader import Loader

pytest.importorskip("tokenizers", reason="the extra hf is not installed")
pytest.importorskip("sentencepiece", reason="the extra sentencepiece is not installed")

Ids = Callable[[str], list[int]]
SHAPE = ("--shard-tokens", "3000", "--val-tokens", "0", "--layout", "contiguous", "--last", "keep")


# Null and empty rows are no documents.
TEXTS = [text for number in range(3) for text in (*corpus.documents(40 * number, 25), *corpus.ODD) if text]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for number in range(3):
        corpus.write(folder / f"{number}.parquet", [*corpus.documents(40 * number, 25), *corpus.ODD])
    return folder


# The file, the library's ids, and the separator: named as --bos-token, or as it is found.
Made = tuple[Path, Ids, str, str]


def of_json(make: Callable[[], bytes]) -> Callable[[Path], Made]:
    def made(folder: Path) -> Made:
        path = small.written(folder, "tokenizer.json", make())
        engine = importlib.import_module("tokenizers").Tokenizer.from_file(str(path))
        engine.no_truncation()
        engine.no_padding()
        engine.encode_special_tokens = True
        ends = "</s>" if engine.token_to_id("</s>") is not None else EOT
        return path, lambda text: list(engine.encode(text, add_special_tokens=False).ids), "", ends

    return made


def of_model(folder: Path) -> Made:
    path = small.written(folder, "tokenizer.model", small.sentence_pieces())
    engine = importlib.import_module("sentencepiece").SentencePieceProcessor(model_file=str(path))
    return path, lambda text: list(engine.encode(text, out_type=int)), "", "</s>"


def of_ranks(folder: Path) -> Made:
    path = small.rank_files(folder)
    engine = importlib.import_module("tiktoken").Encoding(
        "small", pat_str=small.GPT2, mergeable_ranks=small.ranks(), special_tokens={}
    )
    return path, engine.encode_ordinary, "", EOT


def of_nanochat(folder: Path) -> Made:
    path = small.nanochat(folder)
    engine = importlib.import_module("tiktoken").Encoding(
        "small", pat_str=small.OTHER, mergeable_ranks=small.ranks(), special_tokens={}
    )
    return path, engine.encode_ordinary, "<|bos|>", ""


KINDS: dict[str, Callable[[Path], Made]] = {
    "json": of_json(small.byte_level), "json, slow": of_json(small.digits), "json, nfc": of_json(small.nfc),
    "json, blanks marked": of_json(small.metaspace), "model": of_model, "ranks": of_ranks,
    "nanochat": of_nanochat,
}  # fmt: skip


def convert(sources: Path, out: Path, *words: str, code: int = 0) -> str:
    ended = runner.command_line(
        "--source", sources, "--out", out, "--workers", "1", *words, capture_output=True
    )
    assert_tidy_end(ended, code)
    return ended.stdout + ended.stderr


def all_tokens(out: Path) -> list[int]:
    lines = json.loads((out / "manifest.json").read_bytes())["shards"]
    names = sorted(line["name"] for line in lines)
    return [token for name in names for token in np.fromfile(out / name, np.uint16, offset=1024).tolist()]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_a_run_has_the_ids_of_the_library_and_never_needs_the_file_again(
    sources: Path, tmp_path: Path, kind: Callable[[Path], Made]
) -> None:
    path, ids, begins, ends = kind(tmp_path / "tokenizer")
    out = tmp_path / "out"
    words = (*SHAPE, "--tokenizer", str(path), *(("--bos-token", begins) if begins else ()))
    said = convert(sources, out, *words)
    assert ("MB of text a second" in said) == (kind in (KINDS["json, slow"], KINDS["nanochat"]))

    rules = json.loads((out / "manifest.json").read_bytes())["rules"]
    assert (rules["tokenizer"], rules["token_type"]) == (path.name, "uint16")
    separator = rules["eot_id"]
    wanted = [(separator, *ids(text)) for text in TEXTS]
    assert split(all_tokens(out), separator) == wanted

    shutil.rmtree(path.parent)
    before = runner.state(out)
    assert "already complete" in convert(sources, out, *words)
    assert runner.state(out) == before
    assert verify(out).ok
    document, _ = numbered(out, 2)
    assert document.text.removeprefix(begins or ends).lstrip() == corpus.document(1)
    found = trace(out, f"{shard(out)}:7")
    assert found.missing == ""
    assert found.id is not None
    ended = runner.command_line(
        "export", out, "-o", tmp_path / "npy", "--format", "npy", "--eot-token", begins or ends,
        capture_output=True,
    )  # fmt: skip
    assert_tidy_end(ended, 0)
    assert verify(tmp_path / "npy").ok
    windows = next(iter(Loader(out, seq_len=32, batch=2)))
    assert 0 <= int(windows.min()) <= int(windows.max()) < rules["vocabulary_size"]


def shard(out: Path) -> str:
    return str(json.loads((out / "manifest.json").read_bytes())["shards"][0]["name"])


def split(tokens: list[int], separator: int) -> list[tuple[int, ...]]:
    """Return the documents, each with the separator that begins it."""
    starts = [at for at, token in enumerate(tokens) if token == separator]
    return [tuple(tokens[a:b]) for a, b in zip(starts, [*starts[1:], len(tokens)], strict=True)]


def test_both_separators_and_a_run_that_was_killed_goes_on_without_the_file(
    sources: Path, tmp_path: Path
) -> None:
    path = small.written(tmp_path / "a", "tokenizer.json", small.byte_level())
    words = (*SHAPE, "--tokenizer", str(path), "--bos-token", BOS, "--eot-token", EOT)
    convert(sources, tmp_path / "whole", *words)
    out = tmp_path / "out"
    with runner.running(sources, out, "--workers", "1", *words) as process:
        runner.wait_until(lambda: runner.steps(out), process)
        process.send_signal(signal.SIGKILL)
        runner.finish(process)
    path.unlink()
    convert(sources, out, *words)
    assert runner.tree(out) == runner.tree(tmp_path / "whole")

    # Another file under that name is another recipe; and where there is no run, there has to be a file.
    small.written(tmp_path / "a", "tokenizer.json", small.nfc())
    assert "made by another recipe" in convert(sources, out, *words, code=2)
    path.unlink()
    assert "does not exist" in convert(sources, tmp_path / "new", *words, code=2)
    assert not (tmp_path / "new").exists()


def test_ranks_convert_with_the_file_that_the_plan_has_kept(sources: Path, tmp_path: Path) -> None:
    path = small.written(tmp_path, "tokenizer.json", small.digits())
    words = ("--tokenizer", str(path), "--shard-tokens", "3000")
    convert(sources, tmp_path / "whole", *words)
    out = tmp_path / "out"
    assert_tidy_end(
        runner.command_line("plan", "--source", sources, "--out", out, *words, "--save", capture_output=True),
        0,
    )
    path.unlink()
    for number in range(2):
        ended = runner.command_line(
            "--out", out, "--rank", number, "--world", 2, "--tokenizer", path, "--workers", "1",
            capture_output=True,
        )  # fmt: skip
        assert_tidy_end(ended, 0)
    assert_tidy_end(runner.command_line("merge", out, "--workers", "1", capture_output=True), 0)
    assert runner.tree(out) == runner.tree(tmp_path / "whole")


def test_a_broken_file_and_a_missing_one_leave_nothing_behind(sources: Path, tmp_path: Path) -> None:
    deep = small.written(tmp_path, "tokenizer.json", b'{"model":' * 100_000)
    for path, said in ((deep, "no tokenizer.json"), (tmp_path / "gone.model", "does not exist")):
        for command in ((), ("plan",)):
            ended = runner.command_line(
                *command, "--source", sources, "--out", tmp_path / "out", "--tokenizer", path,
                capture_output=True,
            )  # fmt: skip
            assert_tidy_end(ended, 2)
            assert said in ended.stderr
    assert not (tmp_path / "out").exists()


# --- the hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    small.written(tmp_path / "repository", "tokenizer.json", small.byte_level())
    config = json.dumps({"eos_token": BOS}).encode()
    small.written(tmp_path / "repository", "tokenizer_config.json", config)
    with HubServer(tmp_path / "repository", repo="owner/small") as hub:
        yield hub


def test_a_tokenizer_of_the_hub_is_pinned_and_asked_for_once(
    sources: Path, tmp_path: Path, hub: HubServer
) -> None:
    out = tmp_path / "out"
    words = ["--source", str(sources), "--workers", "1", *SHAPE, "--tokenizer", "owner/small"]
    hub.fault("reset", path="tokenizer.json", after=1_000)
    hub.fault("corrupt", path="tokenizer.json", after=100)
    assert_tidy_end(hub_runs.run([*words, "--out", str(out)], hub.endpoint), 0)
    assert hub.faults_left == 0
    rules = json.loads((out / "manifest.json").read_bytes())["rules"]
    assert rules["tokenizer"] == f"owner/small@{COMMIT}"
    config = json.loads((tmp_path / "repository/tokenizer.json").read_bytes())
    assert rules["eot_id"] == next(token["id"] for token in config["added_tokens"] if token["content"] == BOS)

    # The same command again, and without a hub; and the same from the file.
    asked, before = len(hub.log), runner.state(out)
    with nobody() as nowhere:
        for endpoint, settings in ((hub.endpoint, {}), (nowhere, {}), (nowhere, {"HF_HUB_OFFLINE": "1"})):
            assert_tidy_end(hub_runs.run([*words, "--out", str(out)], endpoint, **settings), 0)
            assert runner.state(out) == before
        assert len(hub.log) == asked

        # Elsewhere it is needed, or the cache of the hub's client.
        there = tmp_path / "home/hub/models--owner--small"
        new = [*words, "--out", str(tmp_path / "new")]
        ended = hub_runs.run(new, nowhere, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "home"))
        assert_tidy_end(ended, 2)
        assert "hf download owner/small tokenizer.json" in ended.stderr
        assert not (tmp_path / "new").exists()
        shutil.copytree(tmp_path / "repository", there / "snapshots" / COMMIT)
        small.written(there / "refs", "main", COMMIT.encode())
        ended = hub_runs.run(new, nowhere, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "home"))
        assert_tidy_end(ended, 0)
    assert runner.tree(tmp_path / "new") == runner.tree(out)


def test_a_repository_without_access_or_without_a_tokenizer_is_one_plain_message(
    sources: Path, tmp_path: Path
) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository/README.md").write_text("a model")
    words = ["--source", str(sources), "--out", str(tmp_path / "out"), "--tokenizer"]
    with HubServer(tmp_path / "repository", repo="owner/small", token="hf_secret", gated=True) as hub:
        ended = hub_runs.run([*words, "owner/small"], hub.endpoint)
        assert_tidy_end(ended, 2)
        assert f"accept its terms at {hub.endpoint}/owner/small" in ended.stderr
        ended = hub_runs.run([*words, "owner/small"], hub.endpoint, HF_TOKEN="hf_secret")
        assert_tidy_end(ended, 2)
        assert "has no tokenizer.json" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_that_the_hub_says_is_huge_is_not_read(sources: Path, tmp_path: Path) -> None:
    path = small.written(tmp_path / "repository", "tokenizer.json", b"")
    with path.open("r+b") as file:
        file.truncate(200 * 2**20)
    with HubServer(tmp_path / "repository", repo="owner/small") as hub:
        words: list[Any] = [
            "--source",
            str(sources),
            "--out",
            str(tmp_path / "out"),
            "--tokenizer",
            "owner/small",
        ]
        ended = hub_runs.run(words, hub.endpoint)
    assert_tidy_end(ended, 2)
    assert "too large" in ended.stderr


def test_the_files_that_keep_a_tokenizer_have_its_hash_for_a_name(sources: Path, tmp_path: Path) -> None:
    path = small.written(tmp_path, "tokenizer.json", small.digits())
    out = tmp_path / "out"
    convert(sources, out, *SHAPE, "--tokenizer", str(path))
    (kept,) = (out / PRIVATE / "vocabularies").iterdir()
    assert kept.name == f"{runner.sha256(path)}.json"
    # It is damaged: what needs it says so, and the same command repairs it from the file.
    kept.write_bytes(b"{}")
    ended = runner.command_line("show", out, "--document", "1", capture_output=True)
    assert_tidy_end(ended, 1)
    assert "is missing, or is another one" in ended.stderr


def test_llama_3_stands_in_the_shards_as_llm_c_writes_it(sources: Path, tmp_path: Path) -> None:
    """What its fineweb.py does for `-m llama-3`: the token of an empty text, then the text's, as uint32."""
    path, out = tokenizer_files.need("llama-3.1"), tmp_path / "out"
    engine = importlib.import_module("tokenizers").Tokenizer.from_file(str(path))
    engine.encode_special_tokens = True
    (begin,) = engine.encode("").ids
    texts = ((begin, *engine.encode(text, add_special_tokens=False).ids) for text in TEXTS)
    wanted = [token for text in texts for token in text]

    words = ("--tokenizer", str(path), "--bos-token", "<|begin_of_text|>", *SHAPE)
    convert(sources, out, *words)
    made = runner.tree(out)
    convert(sources, out, *words)

    assert runner.tree(out) == made
    assert begin == 128000
    shards = [path.read_bytes() for path in sorted(out.glob("*.bin"))]
    assert [np.frombuffer(shard[:12], "<i4").tolist() for shard in shards] == [
        [20240801, 7, min(3000, len(wanted) - 3000 * number)] for number in range(len(shards))
    ]
    assert np.frombuffer(b"".join(shard[1024:] for shard in shards), "<u4").tolist() == wanted


def test_a_plan_counts_the_tokens_of_a_file_by_a_sample(sources: Path, tmp_path: Path) -> None:
    path = small.written(tmp_path, "tokenizer.json", small.nfc())
    words = ("--source", sources, "--tokenizer", path, "--shard-tokens", "3000")
    ended = runner.command_line("plan", *words, "--json", capture_output=True)
    assert_tidy_end(ended, 0)
    engine = importlib.import_module("tokenizers").Tokenizer.from_file(str(path))
    engine.no_truncation()
    engine.no_padding()
    engine.encode_special_tokens = True
    exact = sum(1 + len(engine.encode(text, add_special_tokens=False).ids) for text in TEXTS)
    assert json.loads(ended.stdout)["plan"]["tokens"] == pytest.approx(exact, rel=0.05)
