"""The oracle is right: held against FORMAT.md's own examples, against naive.py, and counting by hand."""

import random
import re
from pathlib import Path

import naive
import pytest
from worlds import expressions, oracle, shard_files, sources, streams, world
from worlds.expressions import Node, column, constant
from worlds.oracle import Run
from worlds.recipes import Recipe, exported
from worlds.sources import Source

FORMAT = Path(__file__).parent.parent.parent / "FORMAT.md"
EXAMPLES = {
    "": Recipe(shard_tokens=5, val_tokens=0, last="keep"),
    "npy/": Recipe(format="npy", shard_tokens=5, val_tokens=0, last="keep"),
    "raw/": Recipe(format="raw", val_tokens=4),
    "megatron/": Recipe(format="megatron", shard_tokens=5, val_tokens=0, last="keep"),
    "datatrove/": Recipe(format="datatrove", shard_tokens=5, val_tokens=0, last="keep"),
    "nemo/": Recipe(format="nemo", shard_tokens=5, val_tokens=0, last="keep"),
    "mds/": Recipe(format="mds", shard_tokens=5, val_tokens=0, last="keep", sequence_length=2),
}
TOKENIZERS = ("gpt2", "cl100k_base", "gpt2", "cl100k_base")


def source(path: str, *texts: str | None, **columns: object) -> Source:
    """Return a source of some texts; a column has the same value in each row, or a list of them."""
    rows = [
        {
            "text": text,
            **{name: value[at] if isinstance(value, list) else value for name, value in columns.items()},
        }
        for at, text in enumerate(texts)
    ]
    return Source(path, tuple(rows), f"the bytes of {path}".encode(), "by hand")


def convert(recipe: Recipe, *given: Source, pinned: bool = False) -> Run:
    return oracle.convert(given, recipe.rules(), pinned=pinned)


def shards(run: Run) -> dict[str, list[int]]:
    return {run.name(shard): run.tokens(shard) for shard in run.ordered}


def dumps() -> list[tuple[str, bytes]]:
    """Return the files that FORMAT.md shows, by name."""
    found = []
    for name, dump in re.findall(r"```hexdump (\S+)\n(.*?)```", FORMAT.read_text(), re.DOTALL):
        content, repeated, at = b"", False, 0
        for line in dump.splitlines():
            if line == "*":
                repeated = True
                continue
            address, *words = line.split()
            if repeated:
                content += content[-16:] * ((int(address, 16) - len(content)) // 16)
                repeated = False
            content += bytes.fromhex("".join(words))
            at = int(address, 16)
        assert len(content) == at
        found.append((name, content))
    return found


@pytest.mark.parametrize(("name", "content"), dumps())
def test_it_gives_the_bytes_that_the_document_shows(name: str, content: bytes) -> None:
    folder = next((folder for folder in EXAMPLES if folder and name.startswith(folder)), "")
    run = convert(
        EXAMPLES[folder],
        source("a.parquet", "Hello world", "", "The cat sat."),
        source("b.parquet", "One more document"),
    )
    assert run.files[name.removeprefix(folder)] == content


@pytest.mark.parametrize("seed", range(60))
def test_it_agrees_with_the_naive_converter(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    schema = sources.Schema("text", {})
    folder = tmp_path / "sources"
    given = []
    for name in sources.paths(rng, rng.randint(1, 4), flat=False):
        path = name.replace(".PARQUET", ".parquet")
        made = sources.make(rng, path, schema, sources.texts(rng, rng.choice(sources.SHAPES)))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(made.content)
        given.append(made)
    given = sorted({one.path: one for one in given}.values(), key=lambda one: one.path)
    asked = Recipe(
        tokenizer=TOKENIZERS[seed] if seed < len(TOKENIZERS) else "bytes",
        eot=rng.choice(("before", "after")),
        shard_tokens=rng.choice((7, 50, 10_000)),
        val_tokens=rng.choice((0, 7, 40)),
        layout=rng.choice(("independent", "contiguous")),
        last=rng.choice(("merge", "keep", "drop")),
        limit_documents=rng.choice((None, None, 1, 9)),
        limit_tokens=rng.choice((None, None, 1, 55)),
    )
    names = (
        "tokenizer",
        "eot",
        "shard_tokens",
        "val_tokens",
        "layout",
        "last",
        "limit_documents",
        "limit_tokens",
    )
    naive.convert(folder, tmp_path / "out", **{name: getattr(asked, name) for name in names})
    wanted = {
        path.relative_to(tmp_path / "out").as_posix(): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    found = convert(asked, *given).files
    # The naive one has more digits where a file is large.
    assert [*map(found.get, sorted(found))] == [*map(wanted.get, sorted(wanted))]


def test_a_short_rest_takes_in_the_last_full_shard() -> None:
    run = convert(
        Recipe(tokenizer="bytes", shard_tokens=3, val_tokens=0), source("a", "abc"), source("b", "x")
    )
    # EOT a b | c, EOT x: the rest fills one shard.
    assert shards(run) == {
        "edu_fineweb_train_00000_000.bin": [256, 97, 98],
        "edu_fineweb_train_00002_000.bin": [99, 256, 120],
    }
    run = convert(Recipe(tokenizer="bytes", shard_tokens=3, val_tokens=0), source("a", "abc"), source("b"))
    assert shards(run) == {"edu_fineweb_train_00002_000.bin": [256, 97, 98, 99]}
    # What goes on in the same source is one segment; and what was taken in is tail by now.
    assert run.shards[0].segments == [(0, 0)]
    assert b'"tail_tokens":4' in run.manifest()


def test_a_limit_counts_rows_up_to_the_first_document_without_a_token() -> None:
    given = source("a", None, "ab", "", "cd", "ef")
    [job] = convert(Recipe(tokenizer="bytes", limit_documents=1), given).jobs
    assert (job.rows, job.tokens, job.limited, job.cut) == (3, 3, True, False)
    [job] = convert(Recipe(tokenizer="bytes", limit_tokens=4), given).jobs
    assert (job.rows, job.tokens, job.limited, job.cut) == (4, 4, True, True)
    [job] = convert(Recipe(tokenizer="bytes", limit_tokens=9), given).jobs
    assert (job.rows, job.tokens, job.limited, job.cut) == (5, 9, False, False)


def test_sources_behind_the_limit_have_no_job() -> None:
    run = convert(Recipe(tokenizer="bytes", limit_tokens=3), source("a", "ab"), source("b", "cd"))
    assert len(run.jobs) == 1
    assert b'"jobs":1,"jobs_done":1,' in run.manifest()


def test_block_numbers_beyond_their_digits_sort_behind_the_others() -> None:
    many = source("a", "x" * 1500)
    run = convert(Recipe(tokenizer="bytes", shard_tokens=1, val_tokens=0), many)
    names = [run.name(shard) for shard in run.shards]
    assert names == sorted(names)
    assert names[999:1001] == ["edu_fineweb_train_00000_999.bin", "edu_fineweb_train_00000_x000001000.bin"]


def test_only_pinned_sizes_give_block_numbers_more_digits() -> None:
    large = Source("a", ({"text": "x"},), bytes(10_000), "by hand")
    asked = Recipe(tokenizer="bytes", shard_tokens=1, val_tokens=0)
    assert (convert(asked, large).layout.digits, convert(asked, large, pinned=True).layout.digits) == (3, 5)


def test_the_recipe_id_is_that_of_the_compact_json() -> None:
    run = convert(Recipe(tokenizer="bytes", shard_tokens=5), source("ä", "x"))
    rules = (
        '{"tokenizer":"bytes","vocabulary_sha256":"623e820ea7607f6c6a162323b14ecb7be69fb69457cc2845e86bfe0e27a7c9d1",'
        '"eot":"before","token_type":"uint16","text_column":"text","shard_tokens":5,"val_tokens":5,'
        '"layout":"independent","format":"llmc","name":"edu_fineweb","block_digits":3,"last":"merge"}'
    )
    wanted = streams.sha256(f'["local","",[["ä"]],{rules}]'.encode())
    assert f'"recipe_id": "{wanted}",\n'.encode() in run.manifest()


@pytest.mark.parametrize(
    ("node", "row", "wanted"),
    [
        (Node("or", (column("a"), constant(True))), {"a": None}, True),
        (Node("and", (column("a"), constant(True))), {"a": None}, None),
        (Node("and", (column("a"), constant(False))), {"a": None}, False),
        (Node("not", (column("a"),)), {"a": None}, None),
        (Node("chain", (constant(1), column("a"), constant(3)), ("<", "<=")), {"a": 3}, True),
        (Node("chain", (constant(1), column("a"), constant(3)), ("<", "<=")), {"a": None}, None),
        (
            Node("chain", (Node("arithmetic", (column("a"), constant(0)), "/"), constant(5)), (">",)),
            {"a": 1},
            True,
        ),
        (
            Node("chain", (Node("arithmetic", (column("a"), constant(0)), "/"), constant(5)), (">",)),
            {"a": 0},
            False,
        ),
        (Node("among", (column("a"),), ((0.0, 2), False)), {"a": -0.0}, True),
        (Node("among", (column("a"),), ((1, 2), True)), {"a": None}, None),
        (Node("is", (column("a"),), False), {"a": None}, True),
        (Node("len", (column("a"),)), {"a": "äb😀"}, 3),
    ],
)
def test_an_expression_means_what_sql_and_ieee_say(
    node: Node, row: dict[str, object], wanted: object
) -> None:
    assert expressions.value_of(node, row) == wanted


def test_an_expression_has_one_form() -> None:
    inner = Node("or", (column("b"), Node("not", (column("a name"),))))
    node = Node("and", (Node("chain", (column("a"), constant(-1)), (">",)), inner))
    assert expressions.text(node) == "a > -1 and (b or not column('a name'))"
    node = Node("arithmetic", (column("a"), Node("arithmetic", (constant(1), constant(2)), "-")), "-")
    assert expressions.text(Node("chain", (node, constant("it's")), ("==",))) == "a - (1 - 2) == 'it\\'s'"


def test_an_export_keeps_what_nobody_changes() -> None:
    old = Recipe(tokenizer="bytes", shard_tokens=10, layout="contiguous", last="drop").rules()
    new = exported(old, Recipe(format="megatron", shard_tokens=20))
    assert (new.eot, new.val_tokens, new.layout, new.last) == ("after", 20, "contiguous", "drop")
    one = exported(old, Recipe(format="raw"))
    assert (one.shard_tokens, one.val_tokens, one.name, one.last) == (0, 10, "", "keep")


def test_a_world_follows_from_its_seed() -> None:
    assert str(world.make(7)) == str(world.make(7))
    assert str(world.make(7)) != str(world.make(8))


def test_files_beside_a_shard_are_known_by_format() -> None:
    assert shard_files.SIDECARS["datatrove"] == (".ds.index", ".ds.metadata")
