"""What a Python program asks for is refused, before anything is written, where argparse would refuse it."""

import math
from pathlib import Path
from typing import Any

import corpus
import msgspec
import numpy as np
import pytest
import runner

import fwconvert
from fwconvert.errors import UsageError
from fwconvert.options import Options
from fwconvert.recipes import Recipe

# A choice, and what the message must say of it besides its name.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"limit_tokens": 1e5}, "100_000"),
    ({"limit_tokens": 1e9}, "1_000_000_000"),
    ({"limit_tokens": True}, "True"),
    ({"limit_tokens": math.nan}, "nan"),
    ({"limit_tokens": np.int64(5)}, "int64"),
    ({"limit_documents": 10.0}, "int: 10"),
    ({"limit_documents": 10.5}, "10.5"),
    ({"limit_documents": "10"}, "'10'"),
    ({"min_int_score": 2.5}, "2.5"),
    ({"min_int_score": 3.0}, "int: 3"),
    ({"min_score": "3"}, "float"),
    ({"min_score": True}, "True"),
    ({"min_score": 10**400}, "1000000"),
    ({"shard_tokens": 5e4}, "50_000"),
    ({"val_tokens": 5e4}, "50_000"),
    ({"eot": "After"}, "'before', 'after'"),
    ({"eot": []}, "'before', 'after'"),
    ({"layout": "x"}, "'independent', 'contiguous'"),
    ({"last": "y"}, "'keep', 'drop', 'merge'"),
    ({"format": "bin"}, "'llmc', 'npy'"),
    ({"compress": True}, "'none', 'zstd'"),
    ({"compress": "gzip"}, "'none', 'zstd'"),
    ({"compress": ""}, "'none', 'zstd'"),
    ({"text_column": None}, "str"),
    ({"tokenizer": 5}, "str"),
    ({"name": 5}, "str"),
    ({"where": 5}, "str"),
    ({"version": 10}, "str"),
]


@pytest.mark.parametrize(("choice", "told"), WRONG, ids=str)
def test_a_recipe_of_other_types_is_refused_and_it_is_said_what_is_allowed(
    choice: dict[str, Any], told: str, tmp_path: Path
) -> None:
    corpus.write(tmp_path / "a.parquet", ["text"])
    with pytest.raises(UsageError) as refused:
        fwconvert.recipe(**{"source": str(tmp_path), "tokenizer": "bytes", **choice})
    assert next(iter(choice)) in str(refused.value)
    assert "allowed" in str(refused.value)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "rule", [{"limit_tokens": 1e5}, {"eot": "After"}, {"eot": "\ud800"}, {"min_score": "3"}], ids=str
)
def test_a_recipe_that_was_made_by_hand_is_refused_before_anything_is_written(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    corpus.write(tmp_path / "source/a.parquet", ["text"])
    recipe = fwconvert.recipe(source=tmp_path / "source", tokenizer="bytes")
    wrong = Recipe(recipe.source, msgspec.structs.replace(recipe.rules, **rule))

    with pytest.raises(UsageError, match=next(iter(rule))):
        fwconvert.convert(wrong, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", [choice for choice, _ in WRONG if "compress" in choice]
    + [{"last": "mrege"}, {"layout": "cont"}, {"eot": "sideways"}, {"shard_tokens": 5e4}, {"name": 5},
       {"format": "bogus"}, {"format": []}, {"val_tokens": True}], ids=str)  # fmt: skip
def test_an_export_of_other_types_is_refused_before_anything_is_written(
    change: dict[str, Any], finished: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError):
        fwconvert.export(finished, tmp_path / "out", Options(workers=1), **change)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    corpus.tiny(folder / "source")
    assert runner.convert(folder / "source", folder / "run", tokenizer="bytes", shard_tokens=9).complete
    return folder / "run"


@pytest.mark.parametrize("compress", [None, "none"])
def test_none_is_no_compression(compress: Any, tmp_path: Path) -> None:
    corpus.write(tmp_path / "a.parquet", ["text"])
    recipe = fwconvert.recipe(source=tmp_path, compress=compress)
    assert recipe == fwconvert.recipe(source=str(tmp_path))
    assert recipe.rules.compress is None


def test_a_whole_number_is_a_number_and_one_recipe(tmp_path: Path) -> None:
    corpus.write(tmp_path / "a.parquet", ["text"])
    recipes = [fwconvert.recipe(source=tmp_path, min_score=score) for score in (3, 3.0)]
    assert recipes[0].recipe_id == recipes[1].recipe_id


@pytest.mark.parametrize(
    "option",
    [
        {"keep_source": ""}, {"keep_source": 5}, {"keep_source": b"here"},
        *({name: value} for name in ("workers", "threads", "prefetch", "max_connections", "worker_memory")
          for value in (0, -1, 1.0, True, "2", math.nan)),
        *({name: value} for name in ("patience", "stall_timeout")
          for value in (0, -1, -0.5, math.nan, -math.inf, True, "9", None)),
        {"max_connections": None}, {"encoder": "Fast"}, {"encoder": None}, {"check_disk": 0},
        {"check_disk": None},
    ],
    ids=str,
)  # fmt: skip
def test_options_that_cannot_be_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Options(**option)


@pytest.mark.parametrize(
    "option",
    [{"workers": 1}, {"patience": 1}, {"patience": 0.2}, {"stall_timeout": math.inf}, {"threads": None}],
    ids=str,
)
def test_options_that_can_be_are_taken(option: dict[str, Any]) -> None:
    Options(**option)


@pytest.mark.parametrize("given", ["here", Path("here")])
def test_a_folder_is_a_text_or_a_path(given: str | Path) -> None:
    assert Options(keep_source=given).keep_folder == Path("here")
