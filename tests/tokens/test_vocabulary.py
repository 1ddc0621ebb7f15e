import hashlib
import importlib
import importlib.resources
import itertools
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hostile_server import Answering, HostileServer, Line

from fwconvert.errors import ManifestError, UsageError
from fwconvert.tokens import registry, tiktoken_kind
from fwconvert.tokens.tiktoken_kind import (
    MOST_TABLE_BYTES,
    VOCABULARIES,
    Vocabulary,
    find,
    provide_table,
    read_table,
)
from fwconvert.tokens.tokenizer import parse_ranks

OPENAI: Any = importlib.import_module("tiktoken_ext.openai_public")

MADE_UP_TABLE = b"YQ== 0\nYg== 1\nYWI= 2\n"
MADE_UP = Vocabulary(
    kind="tiktoken",
    name="made_up",
    table="made_up",
    sha256=hashlib.sha256(MADE_UP_TABLE).hexdigest(),
    size=4,
    eot=3,
    specials={"<|endoftext|>": 3},
    free=range(3, 4),
    pattern=".",
    text_bytes_per_token=1.0,
)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Bound but not listening: a connection to it is refused at once.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{closed.getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tiktoken cache"
    folder.mkdir()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
    return folder


def sha1(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


@pytest.mark.parametrize("name", VOCABULARIES)
def test_pattern_eot_size_url_and_hash_are_those_of_tiktoken(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, str | None] = {}

    def load(url: str, expected_hash: str | None = None) -> dict[bytes, int]:
        asked[url] = expected_hash
        return {}

    monkeypatch.setattr(OPENAI, "load_tiktoken_bpe", load)
    monkeypatch.setattr(OPENAI, "data_gym_to_mergeable_bpe_ranks", lambda **_: {})
    theirs = OPENAI.ENCODING_CONSTRUCTORS[name]()
    ours = find(name)
    assert ours.pattern == theirs["pat_str"]
    assert ours.eot == theirs["special_tokens"]["<|endoftext|>"]
    assert ours.size == theirs.get("explicit_n_vocab", max(theirs["special_tokens"].values()) + 1)
    assert name == "gpt2" or asked == {ours.url: ours.sha256}


def test_types_are_the_smallest_that_fit() -> None:
    types = {name: vocabulary.token_type for name, vocabulary in VOCABULARIES.items()}
    types["bytes"] = registry.find("bytes").token_type
    assert types == {
        "gpt2": "uint16",
        "r50k_base": "uint16",
        "p50k_base": "uint16",
        "cl100k_base": "uint32",
        "o200k_base": "uint32",
        "bytes": "uint16",
    }


def test_the_definition_of_bytes_stays_as_it_is() -> None:
    # Runs made with it carry this hash in their recipe.
    pinned = "623e820ea7607f6c6a162323b14ecb7be69fb69457cc2845e86bfe0e27a7c9d1"
    definition = b"fwconvert bytes 1: a token is one byte of UTF-8, <|endoftext|> is 256\n"
    assert registry.find("bytes").sha256 == pinned
    assert hashlib.sha256(definition).hexdigest() == pinned


@pytest.mark.parametrize("name", ["gpt2", "r50k_base", "cl100k_base"])
def test_bundled_tables_are_proven_and_need_no_folder(name: str, tmp_path: Path) -> None:
    vocabulary = find(name)
    provide_table(vocabulary, tmp_path / "never made")
    table = read_table(vocabulary, tmp_path / "never made")
    assert hashlib.sha256(table).hexdigest() == vocabulary.sha256
    ids = parse_ranks(table).values()
    assert max(ids) < vocabulary.size
    assert vocabulary.eot not in ids
    assert list(tmp_path.iterdir()) == []


def test_the_two_files_of_gpt2_follow_from_the_table_of_r50k_base() -> None:
    """So both have the same ids: from the table come the very bytes that tiktoken pins for gpt2."""
    ranks = parse_ranks(read_table(find("gpt2"), Path()))
    letters = data_gym_letters()

    def spell(piece: bytes) -> str:
        return "".join(letters[byte] for byte in piece)

    merges = [" ".join(map(spell, last_two(piece, ranks))) for piece in ranks if len(piece) > 1]
    vocab_bpe = "\n".join(["#version: 0.2", *merges, ""])
    encoder = {spell(piece): rank for piece, rank in ranks.items()} | {"<|endoftext|>": find("gpt2").eot}
    assert (
        hashlib.sha256(vocab_bpe.encode()).hexdigest()
        == "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
    )
    assert (
        hashlib.sha256(json.dumps(encoder).encode()).hexdigest()
        == "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
    )


def data_gym_letters() -> dict[int, str]:
    """Return the visible character that stands for each byte in the files of gpt2."""
    visible = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    others = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def last_two(piece: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """Return the two parts whose merge gives `piece`, by merging the lowest ranks first."""
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while len(parts) > 2:
        joined = [ranks.get(left + right, sys.maxsize) for left, right in itertools.pairwise(parts)]
        at = joined.index(min(joined))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


@pytest.mark.parametrize(
    ("given", "meant"), [("gpt-2", "gpt2"), ("GPT2", "gpt2"), ("o200k", "o200k_base"), ("byte", "bytes")]
)
def test_an_unknown_name_is_answered_with_the_nearest_one(given: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean {meant}\\?"):
        registry.find(given)


def test_a_name_like_no_other_is_answered_with_all_of_them() -> None:
    with pytest.raises(UsageError) as caught:
        registry.find("")
    assert ", ".join(VOCABULARIES) in str(caught.value)


def test_importing_the_module_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'pyarrow', 'tiktoken', 'zstandard', 'requests'}"
    script = f"import sys, fwconvert.tokens.tiktoken_kind; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("name", ["p50k_base", "o200k_base"])
def test_a_table_that_cannot_be_had_is_explained_in_full(name: str, tmp_path: Path, cache: Path) -> None:
    vocabulary = find(name)
    with pytest.raises(UsageError) as caught:
        provide_table(vocabulary, tmp_path / "never made")
    said = str(caught.value)
    for part in (name, vocabulary.url, vocabulary.sha256, str(cache / sha1(vocabulary.url))):
        assert part in said
    assert f"TIKTOKEN_CACHE_DIR={cache}" in said
    assert "ConnectError" in said
    assert not (tmp_path / "never made").exists()


def test_a_wrong_file_in_the_cache_is_left_alone_and_named(tmp_path: Path, cache: Path) -> None:
    vocabulary = find("p50k_base")
    wrong = cache / sha1(vocabulary.url)
    wrong.write_bytes(b"half a tab")
    with pytest.raises(UsageError) as caught:
        provide_table(vocabulary, tmp_path / "never made")
    assert wrong.read_bytes() == b"half a tab"
    assert "left alone" in str(caught.value)
    assert str(wrong) in str(caught.value)
    assert hashlib.sha256(b"half a tab").hexdigest() in str(caught.value)


def test_an_unreadable_cache_is_explained(tmp_path: Path, cache: Path) -> None:
    (cache / sha1(MADE_UP.url)).mkdir()
    with pytest.raises(UsageError, match=r"folder|denied"):
        provide_table(MADE_UP, tmp_path / "never made")


def test_the_place_of_the_cache_follows_the_rules_of_tiktoken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place() -> str:
        with pytest.raises(UsageError) as caught:
            provide_table(MADE_UP, tmp_path)
        assert sha1(MADE_UP.url) in str(caught.value)
        return next(line for line in str(caught.value).splitlines() if line.startswith("  place "))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    assert str(tmp_path / "data-gym-cache" / sha1(MADE_UP.url)) in place()
    monkeypatch.setenv("DATA_GYM_CACHE_DIR", str(tmp_path / "gym"))
    assert str(tmp_path / "gym" / sha1(MADE_UP.url)) in place()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    assert "none" in place()


@pytest.mark.parametrize("cache_folder", ["", "somewhere"])
def test_a_wrong_download_is_refused_with_and_without_a_cache(
    cache_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", cache_folder and str(tmp_path / cache_folder))
    monkeypatch.setattr(tiktoken_kind, "_downloaded", lambda _: b"<html>please log in</html>")
    with pytest.raises(UsageError, match=MADE_UP.sha256):
        provide_table(MADE_UP, tmp_path / "never made")
    assert list(tmp_path.iterdir()) == []


def test_a_provided_table_needs_the_cache_only_once(tmp_path: Path, cache: Path) -> None:
    cached = cache / sha1(MADE_UP.url)
    cached.write_bytes(MADE_UP_TABLE)
    folder = tmp_path / "run" / "vocabularies"
    provide_table(MADE_UP, folder)
    cached.unlink()
    provide_table(MADE_UP, folder)
    assert read_table(MADE_UP, folder) == MADE_UP_TABLE
    assert [path.name for path in folder.iterdir()] == [f"{MADE_UP.sha256}.tiktoken"]


def test_a_damaged_provided_table_is_refused_by_workers_and_made_anew_by_the_parent(
    tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / f"{MADE_UP.sha256}.tiktoken"
    path.write_bytes(MADE_UP_TABLE[:-1])
    with pytest.raises(ManifestError) as caught:
        read_table(MADE_UP, tmp_path)
    for part in (str(path), MADE_UP.sha256, hashlib.sha256(MADE_UP_TABLE[:-1]).hexdigest()):
        assert part in str(caught.value)
    (cache / sha1(MADE_UP.url)).write_bytes(MADE_UP_TABLE)
    provide_table(MADE_UP, tmp_path)
    assert read_table(MADE_UP, tmp_path) == MADE_UP_TABLE


def test_a_worker_never_fetches_a_missing_table(tmp_path: Path, cache: Path) -> None:
    (cache / sha1(MADE_UP.url)).write_bytes(MADE_UP_TABLE)
    with pytest.raises(ManifestError, match=MADE_UP.sha256):
        read_table(MADE_UP, tmp_path)


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"not zstd at all",
        zstandard.compress(MADE_UP_TABLE),
        zstandard.compress(MADE_UP_TABLE)[:-4],
        zstandard.compress(bytes(2 * MOST_TABLE_BYTES)),
    ],
    ids=["empty", "not zstd", "another table", "cut short", "bomb"],
)
def test_a_damaged_bundle_is_refused(packed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vocabularies").mkdir()
    (tmp_path / "vocabularies" / "r50k_base.tiktoken.zst").write_bytes(packed)
    monkeypatch.setattr(importlib.resources, "files", lambda _: tmp_path)
    with pytest.raises(ManifestError, match="install fwconvert again"):
        provide_table(find("gpt2"), tmp_path)


# A table that is fetched


def test_a_table_that_was_fetched_is_kept_in_the_cache_of_tiktoken(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiktoken_kind, "_downloaded", lambda _: MADE_UP_TABLE)
    provide_table(MADE_UP, tmp_path / "run")
    assert read_table(MADE_UP, tmp_path / "run") == MADE_UP_TABLE
    assert [path.name for path in cache.iterdir()] == [sha1(MADE_UP.url)]
    assert (cache / sha1(MADE_UP.url)).read_bytes() == MADE_UP_TABLE


def test_a_table_is_fetched_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with HostileServer(lambda _, line: line.answer(MADE_UP_TABLE)) as server:
        assert tiktoken_kind._downloaded(f"{server.endpoint}/x") == MADE_UP_TABLE
        assert not any("authorization" in head.lower() for head in server.heads)


def endless(_: str, line: Line) -> None:
    line.head()
    line.endless(b"YQ== 0\n")


def dripping(_: str, line: Line) -> None:
    line.head()
    line.drip(b"Y", 0.02)


WAYS: dict[str, Answering] = {
    "endless": endless,
    "dripping": dripping,
    "silent": lambda _, line: line.pause(60),
    "dripping head": lambda _, line: line.drip(b"H"),
    "packed": lambda _, line: line.answer(b"x", 200, Content_Encoding="gzip"),
    "refused": lambda _, line: line.answer(b"x", 404),
    "a length that nobody can read": lambda _, line: line.head(200, Content_Length="9" * 5000),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_table_that_comes_without_an_end_is_given_up(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(tiktoken_kind, "_CALL_SECONDS", 1.0)
    monkeypatch.setattr(tiktoken_kind, "_MOST_SECONDS", 3.0)
    with HostileServer(WAYS[way]) as server, pytest.raises(OSError, match=r"."):
        tiktoken_kind._downloaded(f"{server.endpoint}/x")
