import pytest
from examples import unhurried
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from fwconvert.cli import screen

LONG = "data/CC-MAIN-2024-10/train-{:05d}-of-00064.parquet"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (950, "950"),
        (999.4, "999"),
        (999.5, "1.00K"),
        (1234, "1.23K"),
        (9_996, "10.0K"),
        (99_960, "100K"),
        (999_499, "999K"),
        (999_500, "1.00M"),
        (12_345_678, "12.3M"),
        (1.3e12, "1.30T"),
        (5.4e15, "5400T"),
    ],
)
def test_counts_have_three_digits(number: float, text: str) -> None:
    assert screen.humanised(number) == text


@given(st.floats(0, 9.9e14))
@unhurried
def test_a_count_is_never_wider_than_its_column(number: float) -> None:
    assert len(screen.humanised(number)) <= 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00:00"),
        (7.4, "0:00:07"),
        (59.6, "0:01:00"),
        (3723, "1:02:03"),
        (360_000, "100:00:00"),
        (None, "–"),  # noqa: RUF001
        (float("inf"), "–"),  # noqa: RUF001
    ],
)
def test_durations_are_hours_minutes_and_seconds(seconds: float | None, text: str) -> None:
    assert screen.duration(seconds) == text


def test_a_hundred_percent_means_all() -> None:
    assert screen.percent(0.99999) == " 99.9%"
    assert screen.percent(1.0) == "  100%"
    assert screen.percent(0.0) == "  0.0%"


def test_megabytes_have_a_decimal_while_it_matters() -> None:
    assert [screen.megabytes(n) for n in (0, 4.24e6, 99.94e6, 99.96e6, 1.5e9)] == [
        "0.0",
        "4.2",
        "99.9",
        "100",
        "1,500",
    ]


def test_a_path_loses_its_middle_and_keeps_the_number_at_its_end() -> None:
    assert screen.shortened(LONG.format(17), 34) == "data/CC-MAI…00017-of-00064.parquet"
    assert screen.shortened("000_00000.parquet", 17) == "000_00000.parquet"


@given(st.text(max_size=60), st.integers(1, 40))
@unhurried
def test_a_shortened_text_fits(text: str, width: int) -> None:
    assert cell_len(screen.shortened(text, width)) <= width


def test_ideographs_take_two_columns() -> None:
    assert screen.cells("教育") == 4
    assert screen.shortened("教育教育教育.parquet", 14) == "教育….parquet"


def test_a_wrapped_line_is_indented_below_its_beginning() -> None:
    line = "  hint  the kernel kills the largest process"
    assert screen.wrapped(line, 30) == ["  hint  the kernel kills the", "    largest process"]
    assert screen.wrapped(line, 80) == [line]


def test_wrapping_leaves_a_path_whole() -> None:
    path = "/a/path/that-is/longer/than/the/line"
    assert f"    {path}" in screen.wrapped(f"  log  {path}", 20)


def test_control_characters_do_not_reach_the_screen() -> None:
    assert screen.printable_lines("a\x1b[2Jb\n\tc\x07\ud800") == ["a?[2Jb", "        c??"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_any_text_can_be_written_in_any_encoding_at_its_width(encoding: str) -> None:
    text = "━━── 43% · 1.2M … – 教育"  # noqa: RUF001
    written = screen.encodable(text, encoding).encode(encoding).decode(encoding)
    assert cell_len(written) == cell_len(text)


def test_ascii_has_plainer_glyphs() -> None:
    assert screen.encodable("━─ · … –", "ascii") == "#- | ~ -"  # noqa: RUF001


def test_what_does_not_fit_in_a_line_is_left_out_whole() -> None:
    assert screen.fitting(["join 50%", "8/8 jobs", "in 0:00:07"], 20) == "join 50% · 8/8 jobs"
    assert screen.fitting(["join 50%", "8/8 jobs"], 3) == "join 50%"
