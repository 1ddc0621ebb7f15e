"""What a user asks for: numbers mean what they say, and equal recipes are known by an equal id."""

import hashlib
import json
import math
import ntpath
import posixpath
from fractions import Fraction

import child
import msgspec
import pytest
from examples import CHANGED_RULES, FILES, RECIPE, RULES, SOURCE, recipe_with, rules_with, unhurried
from hypothesis import given
from hypothesis import strategies as st

from fwconvert import machine
from fwconvert.errors import ManifestError, UsageError
from fwconvert.options import Options, parse_count
from fwconvert.recipes import Recipe, Rules, SourceShard, Totals, block_digits, check_rules, is_safe


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("1", 1),
        ("100M", 100_000_000),
        ("100m", 100_000_000),
        ("1_000_000", 1_000_000),
        ("1,000", 1_000),
        ("1,234,567", 1_234_567),
        ("1e6", 1_000_000),
        ("1E6", 1_000_000),
        ("1e+6", 1_000_000),
        ("2.5e3", 2_500),
        ("2.5k", 2_500),
        ("2.5K", 2_500),
        ("1.000", 1),
        ("0.5M", 500_000),
        ("10B", 10_000_000_000),
        ("10G", 10_000_000_000),
        ("1T", 1_000_000_000_000),
        ("1e99", 10**99),
        ("007", 7),
        (" 12 ", 12),
    ],
)
def test_a_count_is_read_exactly(text: str, number: int) -> None:
    assert parse_count(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "M", "k", "-1", "+1", "1.5", "1e-3", "2.5", "1.2345k", "0.1", ".5k", "5.", "1e", "1e100",
        "e6", "1 000", "1M M", "MM", "1MM", "1Mi", "1kB", "0x10", "0b1", "ten", "nan", "inf", "Infinity",
        "1/2", "1e6.5", "\u0663", "\u00b2", "1\u00a0000", "1\n2", "1_000_000;", "_1", ",1",
    ],
)  # fmt: skip
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_count(text)


@pytest.mark.parametrize("text", ["1,5", "2,5k", "1,50", "12,34M"])
def test_a_decimal_comma_is_refused_and_not_read_as_ten_times_as_much(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_count(text)


@pytest.mark.parametrize("text", ["1." + "0" * 30 + "1", "1." + "0" * 40 + "1k"])
def test_a_tiny_part_is_refused_and_not_rounded_away(text: str) -> None:
    with pytest.raises(ValueError, match="whole"):
        parse_count(text)


@given(st.integers(0, 10**60))
@unhurried
def test_a_long_number_is_not_rounded(number: int) -> None:
    assert parse_count(str(number)) == number
    assert parse_count(f"{number:,}") == number
    assert parse_count(f"{number:_}") == number


@given(
    whole=st.integers(0, 10**9),
    part=st.text("0123456789", max_size=9),
    exponent=st.none() | st.integers(0, 12),
    suffix=st.sampled_from(["", *"kKmMbBgGtT"]),
)
@unhurried
def test_a_count_equals_the_fraction_that_it_spells(
    whole: int, part: str, exponent: int | None, suffix: str
) -> None:
    scale = {"": 0, "k": 3, "m": 6, "b": 9, "g": 9, "t": 12}[suffix.lower()]
    text = f"{whole}{'.' if part else ''}{part}{'' if exponent is None else f'e{exponent}'}{suffix}"
    meant = Fraction(whole * 10 ** len(part) + int(part or "0"), 10 ** len(part)) * 10 ** (
        scale + (exponent or 0)
    )

    if meant.denominator == 1:
        assert parse_count(text) == meant
    else:
        with pytest.raises(ValueError, match="whole"):
            parse_count(text)


@given(st.text(max_size=12))
@unhurried
def test_any_text_is_a_number_or_a_value_error(text: str) -> None:
    try:
        assert parse_count(text) >= 0
    except ValueError as error:
        assert repr(text) in str(error)  # noqa: PT017  # both ways are right, but nothing else is


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a.parquet",
        "a/b/c.parquet",
        "...",
        "..a",
        "a..",
        ".a",
        "é/ü.parquet",
        "a b/c",
        "~",
        "x" * 255,
        "-rf",
    ],
)
def test_a_plain_relative_path_is_safe(path: str) -> None:
    assert is_safe(path)


@pytest.mark.parametrize(
    "path",
    [
        "", ".", "..", "/", "/a", "//a", "a/", "a//b", "./a", "../a", "a/..", "a/../b", "a/./b", "a/../../b",
        "\\a", "a\\b", "..\\a", "a\\..\\..\\b", "C:", "C:a", "c:/a", "1:/a", "C:\\a", "\\\\server\\share\\a",
        "a\0b", "a\nb", "a\tb", "a\x7f", "\x1b[2Ja", "a\u202eb", "a\u200bb", "\ud800", "x" * 256, "é" * 256,
        "/".join(["x" * 200] * 6),
    ],
)  # fmt: skip
def test_a_path_that_could_lead_outside_or_deceive_is_not_safe(path: str) -> None:
    assert not is_safe(path)


@given(st.lists(st.text(alphabet="aC.:~ -", max_size=4), min_size=1, max_size=4), st.sampled_from("//\\\n"))
@unhurried
def test_a_safe_path_stays_below_its_root_on_every_system(parts: list[str], separator: str) -> None:
    path = separator.join(parts)

    if is_safe(path):
        assert posixpath.normpath(posixpath.join("/base", path)).startswith("/base/")
        assert ntpath.normpath(ntpath.join("D:\\root", path)).startswith("D:\\root\\")


@pytest.mark.parametrize(("token_type", "token_bytes"), [("uint16", 2), ("uint32", 4)])
def test_a_shard_must_hold_a_token_and_stay_below_two_gibibytes(token_type: str, token_bytes: int) -> None:
    most = (2**31 - 1 - 1024) // token_bytes
    assert 1024 + most * token_bytes < 2**31 <= 1024 + (most + 1) * token_bytes

    for tokens in (1, most):
        rules = rules_with(token_type=token_type, shard_tokens=tokens, val_tokens=tokens)
        assert check_rules(rules) is rules
    for tokens in (-1, 0, most + 1, 10**99):
        with pytest.raises(UsageError, match="--shard-tokens"):
            check_rules(rules_with(token_type=token_type, shard_tokens=tokens))


def test_validation_may_be_switched_off_but_not_be_negative_or_too_large() -> None:
    check_rules(rules_with(val_tokens=0))

    for tokens in (-1, 2**30):
        with pytest.raises(UsageError, match="--val-tokens"):
            check_rules(rules_with(val_tokens=tokens))


@pytest.mark.parametrize("name", ["edu_fineweb", "a", "7", "A.b-c_d", "x" * 100])
def test_a_plain_name_is_accepted(name: str) -> None:
    check_rules(rules_with(name=name))


@pytest.mark.parametrize(
    "name", ["", ".hidden", "-x", "_x", "a/b", "a\\b", "..", "a b", "é", "a\n", "a\0", "x" * 101, "a:b", "a*"]
)
def test_a_name_that_could_not_begin_a_file_name_everywhere_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        check_rules(rules_with(name=name))


@pytest.mark.parametrize("path", ["../a", "/a", "a\nb", ""])
def test_a_manifest_with_a_path_that_leads_outside_is_refused(path: str) -> None:
    manifest = recipe_with(files=(*FILES, SourceShard(path, 1))).source

    with pytest.raises(ManifestError):
        manifest.check()


def test_a_manifest_with_a_path_twice_or_a_negative_size_is_refused() -> None:
    SOURCE.check()

    with pytest.raises(ManifestError, match=r"a/0\.parquet"):
        recipe_with(files=(*FILES, SourceShard("a/0.parquet", 11))).source.check()
    with pytest.raises(ManifestError, match=r"a/2\.parquet"):
        recipe_with(files=(*FILES, SourceShard("a/2.parquet", -1))).source.check()


def test_every_field_of_the_rules_counts_in_the_id() -> None:
    assert set(CHANGED_RULES) == set(Rules.__struct_fields__)
    ids = {Recipe(SOURCE, rules_with(**{name: value})).recipe_id for name, value in CHANGED_RULES.items()}

    assert len(ids | {RECIPE.recipe_id}) == len(CHANGED_RULES) + 1


def test_everything_that_names_the_sources_counts_in_the_id() -> None:
    first, second = FILES
    others = [
        recipe_with(dataset="other/dataset"),
        recipe_with(revision="v1"),
        recipe_with(files=(second, first)),
        recipe_with(files=(first,)),
        recipe_with(files=()),
        recipe_with(files=(SourceShard("a/9.parquet", first.bytes, first.sha256), second)),
        recipe_with(files=(SourceShard(first.path, 11, first.sha256), second)),
        recipe_with(files=(SourceShard(first.path, first.bytes, "00" * 32), second)),
        recipe_with(files=(SourceShard(first.path, first.bytes, None), second)),
        # A dataset's end must not be mistaken for a revision's beginning.
        recipe_with(dataset="some/datasetma", revision="in"),
    ]

    assert len({RECIPE.recipe_id, *(other.recipe_id for other in others)}) == len(others) + 1


def test_the_size_of_a_source_that_nobody_pinned_does_not_count_in_the_id() -> None:
    first, second = FILES
    assert second.sha256 is None
    assert recipe_with(files=(first, SourceShard(second.path, 21))).recipe_id == RECIPE.recipe_id


def test_the_display_name_and_the_totals_do_not_count_in_the_id() -> None:
    assert recipe_with(name="another name").recipe_id == RECIPE.recipe_id
    assert recipe_with(totals=Totals(9, 9, 9, 9)).recipe_id == RECIPE.recipe_id


def test_the_id_is_the_sha256_of_the_recipe_as_canonical_json() -> None:
    files = [["a/0.parquet", 10, "cd" * 32], ["a/1.parquet"]]
    # Those of the first version; what came later is not written unless it is asked for.
    first = (
        "tokenizer vocabulary_sha256 eot token_type text_column shard_tokens val_tokens layout format name"
    )
    rules = {name: getattr(RULES, name) for name in [*first.split(), "block_digits"]}
    canonical = json.dumps(["some/dataset", "main", files, rules], separators=(",", ":"))

    assert RECIPE.recipe_id == hashlib.sha256(canonical.encode()).hexdigest()


def test_the_id_is_the_same_in_every_process() -> None:
    code = """
        import sys
        import msgspec
        from fwconvert.recipes import Recipe
        print(msgspec.json.decode(sys.argv[1], type=Recipe).recipe_id)
    """
    text = msgspec.json.encode(RECIPE).decode()

    for seed in ("1", "2"):
        assert child.run(code, text, PYTHONHASHSEED=seed).strip() == RECIPE.recipe_id


@given(sizes=st.lists(st.integers(0, 10**12), min_size=1, max_size=4), shard_tokens=st.integers(1, 10**9))
@unhurried
def test_block_numbers_have_digits_enough_for_a_token_a_byte(sizes: list[int], shard_tokens: int) -> None:
    pinned = [SourceShard(f"{at}.parquet", size, "ab" * 32) for at, size in enumerate(sizes)]
    digits = block_digits(pinned, shard_tokens)

    assert digits >= 3
    assert 10**digits > max(sizes) // shard_tokens


def test_the_size_of_a_source_that_nobody_pinned_gives_no_digits() -> None:
    # It does not count in the recipe's id either: a damaged file may be replaced by a good copy.
    assert block_digits([SourceShard("a.parquet", 10**12)], 1) == 3


def test_block_numbers_have_three_digits_for_fineweb_and_more_for_many_sources() -> None:
    many = [SourceShard(f"{at}.parquet", 1) for at in range(1000)]

    assert block_digits([SourceShard("000_00000.parquet", 2_153_444_469)] * 140, 100_000_000) == 3
    assert block_digits([], 100_000_000) == 3
    assert block_digits(many, 100_000_000) == 4


def test_workers_default_to_the_usable_cores_and_an_explicit_number_is_kept() -> None:
    assert Options().worker_count == machine.cores() >= 1
    assert Options(workers=3).worker_count == 3


@pytest.mark.parametrize("name", ["patience", "stall_timeout"])
@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_a_time_to_wait_must_be_more_than_nothing(name: str, seconds: float) -> None:
    with pytest.raises(UsageError, match=f"^{name} must be more than 0 seconds\n  given  {seconds}$"):
        Options(**{name: seconds})  # type: ignore[arg-type]  # one of two, both float
