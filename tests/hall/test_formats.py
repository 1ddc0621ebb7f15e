"""Headers, names and limits of each format, against numpy and against bytes built by hand."""

import bisect
import io
import struct
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from examples import recipe_with, rules_with, unhurried
from hypothesis import given
from hypothesis import strategies as st

from fwconvert import formats, records
from fwconvert.errors import ShardError, UsageError
from fwconvert.formats import Contents, FormatName
from fwconvert.recipes import Recipe, Rules, check_rules
from fwconvert.run.request import recipe as make_recipe
from fwconvert.store import layout

NAMES: tuple[FormatName, ...] = get_args(FormatName)
STREAM: dict[str, Any] = {"format": "raw", "layout": "contiguous", "shard_tokens": 0, "name": ""}
# What rules of a format have that others must not.
OWN: dict[str, dict[str, Any]] = {"mds": {"sequence_length": 2048}, "parquet": {"writer": "pyarrow 26.0.0"}}
# litdata skips llm.c's header, and does not look at it.
HEADERS_OF = {"litdata": "llmc"}


def rules_of(name: FormatName) -> Rules:
    return rules_with(**STREAM) if name == "raw" else rules_with(format=name, **OWN.get(name, {}))


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("tokens", [0, 1, 9, 10, 99_999, 1_000_000])
def test_an_npy_header_is_numpy_s_to_the_byte(width: int, tokens: int) -> None:
    made = formats.NPY.header_of(width, tokens)

    assert made + bytes(width * tokens) == saved(np.zeros(tokens, f"<u{width}"))


@pytest.mark.parametrize("tokens", [2**31, 2**32 - 1, 10**10])
def test_an_npy_header_of_a_large_array_is_numpy_s(tokens: int) -> None:
    wanted = io.BytesIO()
    described = {"descr": "<u2", "fortran_order": False, "shape": (tokens,)}
    np.lib.format.write_array_header_1_0(wanted, described)

    assert formats.NPY.header_of(2, tokens) == wanted.getvalue()


@given(width=st.sampled_from([2, 4]), tokens=st.integers(0, 2**31 - 1), kind=st.sampled_from(NAMES))
@unhurried
def test_a_header_tells_its_tokens_and_nothing_else_does(width: int, tokens: int, kind: FormatName) -> None:
    found = formats.find(kind)
    head = found.header_of(width, tokens)

    size = len(head) + width * tokens
    assert len(head) == found.header_bytes
    assert found.own_contents("a.bin", head, size, width) == Contents(tokens, width, len(head))
    assert found.contents("a.bin", head, size, width) == Contents(tokens, width, len(head))
    assert formats.recognised(head) is (formats.find(HEADERS_OF.get(kind, kind)) if head else None)
    if head:
        with pytest.raises(ShardError, match=r"(?s)not a token shard of uint.*a\.bin"):
            found.own_contents("a.bin", head, size, 6 - width)
        for other, other_size in ((head[:-1], size), (bytes(len(head)), size), (head, size + 1)):
            with pytest.raises(ShardError, match=r"a\.bin"):
                found.contents("a.bin", other, other_size)


def test_no_format_is_mistaken_for_another_that_has_a_header() -> None:
    with pytest.raises(ShardError, match="numpy's format"):
        formats.NPY.contents("a.npy", formats.LLMC.header_of(2, 5)[:128], 138)
    with pytest.raises(ShardError, match=r"llm\.c's format"):
        formats.LLMC.contents("a.bin", formats.NPY.header_of(2, 5).ljust(1024, b"\0"), 1034)


def test_an_npy_header_of_another_spelling_is_read_but_is_not_that_of_a_run() -> None:
    spelt = formats.NPY.header_of(2, 5).replace(b"False, ", b"False,  ").replace(b"  \n", b" \n")

    assert len(spelt) == formats.NPY.header_bytes
    assert formats.NPY.contents("a.npy", spelt, 138) == Contents(5, 2, 128)
    with pytest.raises(ShardError, match=r"(?s)not a token shard of uint16 in build-nanogpt's format"):
        formats.NPY.own_contents("a.npy", spelt, 138, 2)


def test_a_header_of_mds_tells_its_tokens_and_nothing_else_does() -> None:
    found = formats.windowed("mds", 64, 6400)
    for width, tokens in ((2, 0), (4, 63), (2, 6400), (4, 6400)):
        head = found.header_of(width, tokens)
        size = len(head) + width * tokens
        assert len(head) == found.header_bytes
        assert found.own_contents("a.mds", head, size, width) == Contents(tokens, width, len(head))
        with pytest.raises(ShardError, match=r"(?s)not a token shard of uint.*a\.mds"):
            found.own_contents("a.mds", head, size, 6 - width)
        for other, other_size in ((head[:-1], size), (bytes(len(head)), size), (head, size + 1)):
            with pytest.raises(ShardError, match=r"a\.mds"):
                found.contents("a.mds", other, other_size)


@pytest.mark.parametrize("tokens", [2**29, 2**30, 2**31, 2**62])
def test_a_header_of_mds_that_claims_what_it_has_no_room_for_is_refused(tokens: int) -> None:
    """A file may be as large as it claims without having been written: sparse."""
    found = formats.windowed("mds", 2**20, 9 * 2**20)
    head = found.header_of(4, 9 * 2**20).rstrip()
    claim = head.replace(b'"tokens": 9437184', b'"tokens": %d' % tokens).ljust(found.header_bytes)

    assert claim != head.ljust(found.header_bytes)
    with pytest.raises(ShardError, match="not a token shard in MDS's format"):
        found.own_contents("a.mds", claim, len(claim) + 4 * tokens, 4)


def test_the_largest_shards_are_those_that_the_fields_can_tell_of() -> None:
    # llm.c: a file below 2 GiB. Megatron: int32 lengths. The others: uint32 starts, or none at all.
    assert formats.LLMC.most(2) == (2**31 - 1 - 1024) // 2
    assert formats.LLMC.most(4) == (2**31 - 1 - 1024) // 4
    assert formats.MEGATRON.most(2) == formats.MEGATRON.most(4) == np.iinfo(np.int32).max
    assert formats.NPY.most(2) - 1 == formats.DATATROVE.most(4) - 1 == np.iinfo(np.uint32).max
    assert formats.RAW.most(2) > 2**40


def most_of_mds(width: int) -> int:
    """Return the most tokens of a shard in which every offset is below 2 ** 32, headed as FORMAT.md says."""

    def size(tokens: int) -> int:
        return -(-(4 * (2 + tokens // 2048) + 512) // 64) * 64 + width * tokens

    return bisect.bisect_left(range(2**32), 2**32, key=size) - 1


@pytest.mark.parametrize("name", [name for name in NAMES if name != "raw"])
@pytest.mark.parametrize("token_type", ["uint16", "uint32"])
def test_a_shard_may_be_as_large_as_its_format_allows_and_no_larger(
    name: FormatName, token_type: str
) -> None:
    width = 2 if token_type == "uint16" else 4
    most = most_of_mds(width) if name == "mds" else formats.find(name).most(width)
    own = {"format": name, "token_type": token_type, **OWN.get(name, {})}
    for flag in ("shard_tokens", "val_tokens"):
        check_rules(rules_with(**own, **{flag: most}))
        with pytest.raises(UsageError, match=rf"(?s)--{flag.replace('_', '-')}.*{most:,}"):
            check_rules(rules_with(**own, **{flag: most + 1}))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "raw"])
def test_a_shard_that_may_take_in_another_may_be_half_as_large(name: FormatName) -> None:
    most = (most_of_mds(2) if name == "mds" else formats.find(name).most(2)) // 2
    own = {"format": name, "last": "merge", **OWN.get(name, {})}
    check_rules(rules_with(**own, shard_tokens=most))
    with pytest.raises(UsageError, match=f"{most:,}"):
        check_rules(rules_with(**own, shard_tokens=most + 1))


def test_an_unknown_format_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"(?s)'npz'.*llmc, npy, raw, megatron, datatrove"):
        formats.find("npz")
    with pytest.raises(UsageError, match="'npz'"):
        check_rules(rules_with(format="npz"))


@pytest.mark.parametrize(
    ("name", "shard", "index", "beside"),
    [
        ("llmc", "edu_fineweb_train_00003_001.bin", "edu_fineweb_train_00003_001.docs", []),
        ("npy", "edu_fineweb_train_00003_001.npy", "edu_fineweb_train_00003_001.docs", []),
        ("megatron", "edu_fineweb_train_00003_001.bin", "edu_fineweb_train_00003_001.docs",
         ["edu_fineweb_train_00003_001.idx"]),
        ("datatrove", "edu_fineweb_train_00003_001.ds", "edu_fineweb_train_00003_001.docs",
         ["edu_fineweb_train_00003_001.ds.index", "edu_fineweb_train_00003_001.ds.metadata"]),
        ("nemo", "edu_fineweb_train_00003_001.bin", "edu_fineweb_train_00003_001.docs",
         ["edu_fineweb_train_00003_001.bos.idx"]),
        ("litdata", "edu_fineweb_train_00003_001.bin", "edu_fineweb_train_00003_001.docs", []),
        ("mds", "edu_fineweb_train_00003_001.mds", "edu_fineweb_train_00003_001.docs", []),
        ("parquet", "edu_fineweb_train_00003_001.parquet", "edu_fineweb_train_00003_001.docs", []),
    ],
)  # fmt: skip
def test_files_are_named_as_their_trainer_wants_them(
    name: FormatName, shard: str, index: str, beside: list[str]
) -> None:
    rules = rules_of(name)

    assert layout.job_shard(rules, "train", 3, 1) == shard
    assert layout.index(shard) == f"index/{index}"
    assert layout.sidecars(rules, shard) == beside
    assert [layout.owner(rules, file) for file in (shard, *beside)] == [shard] * (1 + len(beside))
    assert layout.index_owner(rules, index) == shard


def test_one_stream_is_train_bin_and_val_bin() -> None:
    rules = rules_of("raw")
    recipe = Recipe(recipe_with().source, rules)

    assert [layout.joined_shard(recipe, split, 7) for split in ("train", "val")] == ["train.bin", "val.bin"]
    assert all(layout.is_shard(rules, name) for name in ("train.bin", "val.bin"))
    assert layout.index_owner(rules, "train.docs") == "train.bin"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "file",
    [
        "", ".", "..", "manifest.json", "../train.bin", "x/train.bin", "/train.bin", "train.bin\n", "train",
        "xtrain.bin", "test.bin", "train.bin.index", "edu_fineweb_train_000001", "edu_fineweb_train_1.ds.los",
        "edu_fineweb_train_/../x.bin", "../edu_fineweb_train_000001.idx", "edu_fineweb_train_000001.idx\n",
        ".ds.index", ".docs", ".idx", "edu_fineweb_train_000001.bin.ds.index", "../train.docs",
    ],
)  # fmt: skip
def test_other_names_belong_to_no_shard(name: FormatName, file: str) -> None:
    rules = rules_of(name)

    assert not layout.is_shard(rules, file)
    assert layout.owner(rules, file) is None
    assert layout.index_owner(rules, file) is None


@pytest.mark.parametrize(
    ("chosen", "flag"),
    [
        ({"layout": "independent"}, "--layout"),
        ({"shard_tokens": 1000}, "--shard-tokens"),
        ({"name": "mine"}, "--name"),
        ({"last": "drop"}, "--last"),
        ({"last": "merge"}, "--last"),
    ],
)
def test_what_one_stream_does_not_have_cannot_be_chosen(
    chosen: dict[str, Any], flag: str, tmp_path: Any
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"never read")
    with pytest.raises(UsageError, match=rf"(?s)train\.bin and val\.bin.*leave {flag} out"):
        make_recipe(source=str(tmp_path), format="raw", **chosen)
    with pytest.raises(UsageError, match=flag):
        check_rules(rules_with(**{**STREAM, **chosen}))


def test_one_stream_has_its_defaults(tmp_path: Any) -> None:
    (tmp_path / "a.parquet").write_bytes(b"never read")
    recipe = make_recipe(source=str(tmp_path), format="raw", layout="contiguous")
    rules = recipe.rules

    assert (rules.shard_tokens, rules.val_tokens, rules.layout) == (0, 100_000_000, "contiguous")
    assert (rules.eot, rules.name, rules.format, rules.last) == ("after", "", "raw", "keep")
    assert make_recipe(source=str(tmp_path), format="raw", val_tokens=2**40).rules.val_tokens == 2**40


@pytest.mark.parametrize(
    ("name", "side"),
    [("llmc", "before"), ("npy", "before"), ("raw", "after"), ("megatron", "after"), ("datatrove", "after")],
)
def test_the_separator_stands_where_the_trainer_has_it_unless_told(
    name: FormatName, side: str, tmp_path: Any
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"never read")

    assert make_recipe(source=str(tmp_path), format=name).rules.eot == side
    for told in ("before", "after"):
        assert make_recipe(source=str(tmp_path), format=name, eot=told).rules.eot == told


@pytest.mark.parametrize("name", ["interval", "train", "my-training-set", "eval"])
def test_a_name_that_would_put_validation_into_training_is_refused(name: str) -> None:
    # build-nanogpt takes every file with "train" in its name for training.
    with pytest.raises(UsageError, match="build-nanogpt"):
        check_rules(rules_with(format="npy", name=name))
    check_rules(rules_with(format="llmc", name=name))


def test_a_recipe_without_a_format_is_llm_c_s_as_ever(tmp_path: Any) -> None:
    (tmp_path / "a.parquet").write_bytes(b"never read")
    rules = make_recipe(source=str(tmp_path)).rules

    assert (rules.format, rules.eot, rules.layout, rules.name) == (
        "llmc", "before", "independent", "edu_fineweb",
    )  # fmt: skip
    assert formats.LLMC.header_of(2, 7)[:12] == struct.pack("<3i", 20240520, 1, 7)


def test_a_record_with_a_format_that_nobody_knows_is_not_read() -> None:
    raw = records.encode(rules_with(format="npy"))
    assert msgspec.json.decode(raw, type=Rules).shard_format is formats.NPY
    with pytest.raises(msgspec.ValidationError, match="npz"):
        msgspec.json.decode(raw.replace(b"npy", b"npz"), type=Rules)
