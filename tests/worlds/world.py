"""A world: sources, a recipe, options, and what happens. All of it follows from a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from worlds import expressions, history, sources
from worlds.history import Step
from worlds.recipes import SPECIALS, ZIPS, Recipe
from worlds.sources import Schema, Source

KINDS = ("folder", "folder", "folder", "file", "glob", "pinned", "pinned", "flat", "hub")
PINNED = ("pinned", "flat", "hub")
FORMATS = ("llmc", "llmc", "llmc", "npy", "raw", "megatron", "datatrove")
TEXT_COLUMNS = ("text", "text", "text", "content", "größe", "the text")
# Kinds of the columns that a source may have besides its text.
COLUMNS = {
    "id": "text", "url": "text", "score": "fraction", "int_score": "whole", "language": "text",
    "flag": "truth", "nothing": "any", "void": "any", "a name": "number",
}  # fmt: skip
# In an expression a number is a number.
SPOKEN = {"fraction": "number", "whole": "number"}


@dataclass(frozen=True)
class World:
    """Everything that is decided beforehand."""

    seed: int
    kind: str
    sources: tuple[Source, ...]
    # What lies among them and is none.
    others: dict[str, bytes]
    recipe: Recipe
    # Of each command its own options are taken, in turn.
    options: tuple[tuple[str, ...], ...]
    # Before the command that ends it, and after.
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    # A recipe that cannot be: every command is refused, and nothing is written.
    mistake: str = ""
    mistaken_words: tuple[str, ...] = ()
    changes: Recipe | None = None
    keeps_source: bool = False

    @property
    def is_pinned(self) -> bool:
        return self.kind in PINNED

    def __str__(self) -> str:
        lines = [f"world {self.seed}: {self.kind}, {len(self.sources)} sources"]
        lines += [f"  source {at}: {one.path!r}, {one.how}" for at, one in enumerate(self.sources)]
        lines += [f"  beside them: {name!r}" for name in self.others]
        lines += [f"  recipe: {' '.join(self.recipe.words())}"]
        lines += [f"  mistake: {self.mistake}: {' '.join(self.mistaken_words)}"] if self.mistake else []
        lines += [f"  before: {step}" for step in self.before] + [f"  after: {step}" for step in self.after]
        lines += [f"  export: {' '.join(self.changes.words())}"] if self.changes else []
        return "\n".join(lines)


def make(seed: int, without: frozenset[str] = frozenset()) -> World:
    """Return the world of a seed; `without` names what it shall not have: a kind, or a word of a step."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    schema = Schema(rng.choice(TEXT_COLUMNS), _columns(rng))
    files = _sources(rng, kind, schema)
    recipe = _recipe(rng, schema, files)
    if rng.random() < 0.015:
        return _many_blocks(seed, rng)
    world = World(
        seed=seed,
        kind=kind,
        sources=files,
        others=_others(rng) if kind not in ("file", "hub") else {},
        recipe=recipe,
        options=tuple(_options(rng, recipe) for _ in range(6)),
        changes=some_changes(rng, recipe) if rng.random() < 0.5 else None,
        keeps_source=rng.random() < 0.4,
    )
    if rng.random() < 0.07:
        mistake, words = _mistake(rng, world)
        return replace(world, mistake=mistake, mistaken_words=words)
    world = replace(world, before=_before(rng, world, schema), after=_after(rng, world, schema))
    return _left_out(world, without)


def _many_blocks(seed: int, rng: random.Random) -> World:
    """Return a world with more blocks in a source than their numbers have digits for."""
    schema = Schema("text", {})
    few, many = ["ab", "c"], ["x" * rng.randint(1000, 1100), "end"]
    paths = ["a.parquet", "b.parquet", "c.parquet"]
    files = tuple(
        sources.make(rng, path, schema, texts) for path, texts in zip(paths, [few, many, few], strict=True)
    )
    recipe = Recipe(
        tokenizer="bytes", shard_tokens=1, val_tokens=rng.choice((0, 1)), last=rng.choice((None, "keep"))
    )
    kind = rng.choice(("folder", "pinned"))
    steps = (history.some_interrupt(rng),) if rng.random() < 0.5 else ()
    return World(seed, kind, files, {}, recipe, ((), ("--workers", "1")), steps)


def _left_out(world: World, without: frozenset[str]) -> World:
    """Return a world without the steps of these kinds, as their class names have them."""
    before = tuple(step for step in world.before if type(step).__name__.lower() not in without)
    after = tuple(step for step in world.after if type(step).__name__.lower() not in without)
    changes = None if "export" in without else world.changes
    return replace(world, before=before, after=after, changes=changes)


def _columns(rng: random.Random) -> dict[str, str]:
    return {name: kind for name, kind in COLUMNS.items() if rng.random() < 0.55}


def _sources(rng: random.Random, kind: str, schema: Schema) -> tuple[Source, ...]:
    count = 1 if kind == "file" else rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6))
    paths = sources.paths(rng, count, flat=kind == "file")
    if kind == "flat":  # Of files without their folders each bare name must be one of a kind.
        paths = sorted({path.rpartition("/")[2]: path for path in paths}.values())
    if kind in ("glob", "hub"):  # Both mind the case of an ending.
        paths = sorted(
            {path.removesuffix(".PARQUET").removesuffix(".parquet") + ".parquet" for path in paths}
        )
    found: list[Source] = []
    for path in paths:
        if found and rng.random() < 0.15:  # A twin, to the byte.
            found.append(replace(rng.choice(found), path=path))
            continue
        found.append(sources.make(rng, path, schema, sources.texts(rng, rng.choice(sources.SHAPES))))
    return tuple(found)


def _others(rng: random.Random) -> dict[str, bytes]:
    known = {".hidden.parquet": b"no", "notes.txt": b"no", ".folder/x.parquet": b"no", "x.parquet.tmp": b"no"}
    return {name: content for name, content in known.items() if rng.random() < 0.2}


def _size(files: tuple[Source, ...], text_column: str) -> int:
    """Return about how many tokens there are."""
    return sum(len((row[text_column] or "").encode()) + 1 for source in files for row in source.rows)


def _recipe(rng: random.Random, schema: Schema, files: tuple[Source, ...]) -> Recipe:
    kind = rng.choice(FORMATS)
    tokens = _size(files, schema.text_column)
    one_stream = kind == "raw"
    smallest = max(1, tokens // rng.choice((10, 30, 100)))
    size = max(smallest, rng.choice((1, 2, 3, 5, 7, 10, 17, 50, 100, 200, 1000)))
    val = rng.choice((None, None, 0, 0, size, rng.randint(1, 60), tokens // 2, 10**8))
    columns = {name: SPOKEN.get(kind, kind) for name, kind in schema.columns.items()}
    where = None
    if rng.random() < 0.25:
        spoken = columns | {schema.text_column: "text"}
        where = expressions.truth(rng, spoken)
    asked = Recipe(
        tokenizer=rng.choice((*["bytes"] * 12, "gpt2", None, "cl100k_base", "r50k_base")),
        format=kind if kind != "llmc" or rng.random() < 0.3 else None,
        eot=rng.choice((None, None, "before", "after")),
        shard_tokens=None if one_stream else size,
        val_tokens=val,
        layout=None if one_stream else rng.choice((None, "independent", "contiguous")),
        last=None if one_stream else rng.choice((None, "merge", "keep", "drop")),
        compress=rng.choice((None, None, "none", "zstd")) if kind in ZIPS else None,
        name=None if one_stream else rng.choice((None, None, "x", "a-b.c_9", "fineweb", "A" * 100)),
        text_column=None if schema.text_column == "text" else schema.text_column,
        min_score=rng.choice((0.0, 2.5, 3.0, -1.0)) if "score" in columns and rng.random() < 0.15 else None,
        min_int_score=rng.randint(-1, 4) if "int_score" in columns and rng.random() < 0.15 else None,
        where=where,
        where_text=None if where is None else expressions.as_typed(where, rng),
    )
    if rng.random() < 0.15:
        asked = replace(asked, limit_documents=rng.choice((1, 2, 5, rng.randint(1, 60))))
    if rng.random() < 0.15:
        asked = replace(asked, limit_tokens=rng.choice((1, 2, rng.randint(1, max(1, tokens)), 10**9)))
    return _with_separators(rng, asked, asked.tokenizer or "gpt2")


def _with_separators(rng: random.Random, asked: Recipe, tokenizer: str) -> Recipe:
    """Perhaps ask for other separators: one, one before each document, or two."""
    if tokenizer not in SPECIALS or rng.random() < (0.3 if tokenizer == "cl100k_base" else 0.9):
        return asked
    known = SPECIALS[tokenizer][0]
    one, *others = rng.sample(sorted(known), len(known))
    other = next((name for name in others if known[name] != known[one]), None)
    way = rng.choice(("eot", "bos", "both", "both"))
    if way == "both" and other is not None:
        return replace(asked, eot=None, eot_token=one, bos_token=other)
    if way == "eot":
        return replace(asked, eot_token=one)
    return replace(asked, eot=None if asked.eot == "after" else asked.eot, bos_token=one)


def _options(rng: random.Random, recipe: Recipe) -> tuple[str, ...]:
    words = ["--workers", rng.choice("1112223")]
    words += ["--threads", rng.choice("12")] if rng.random() < 0.5 else []
    words += ["--encoder", "reference"] if recipe.tokenizer != "bytes" and rng.random() < 0.4 else []
    return (*words, *(["--quiet"] if rng.random() < 0.2 else []))


def some_changes(rng: random.Random, recipe: Recipe) -> Recipe:
    """Return what an export may be asked to make of a run."""
    old = recipe.rules()
    kind = rng.choice((None, *FORMATS))
    one_stream = (kind or old.format) == "raw"
    shaped = not one_stream
    named = old.name if old.format != "raw" else "edu_fineweb"
    name = rng.choice((None, None, "y")) if shaped else None
    if (kind or old.format) == "npy" and any(word in named for word in ("train", "val")):
        name = "y"
    asked = Recipe(
        format=kind,
        eot=rng.choice((None, None, "before", "after")),
        shard_tokens=rng.choice((None, 3, 10, 64, 500)) if shaped else None,
        val_tokens=rng.choice((None, None, 0, 5, 100)),
        layout=rng.choice((None, "independent", "contiguous")) if shaped else None,
        last=rng.choice((None, "merge", "keep", "drop")) if shaped else None,
        compress=rng.choice((None, "none", "zstd")) if (kind or old.format) in ZIPS else None,
        name=name,
    )
    asked = _with_separators(rng, asked, old.tokenizer)
    # Two separators have no side; who keeps them cannot ask for one.
    both_stay = old.bos_id is not None and asked.eot_token is None and asked.bos_token is None
    return replace(asked, eot=None) if both_stay else asked


# --- what happens ------------------------------------------------------------------------------------------


def _before(rng: random.Random, world: World, schema: Schema) -> tuple[Step, ...]:
    """Return what happens until the command is left alone."""
    way = rng.choice(
        ("nothing", "nothing", "interrupts", "interrupts", "interrupts", "broken", "replaced", "twice")
    )
    steps: list[Step] = []
    if way == "twice":
        return (history.Twice(),)
    if way == "broken":
        return (_broken(rng, world),)
    if way == "interrupts":
        for _ in range(rng.choice((1, 1, 2, 3))):
            steps.append(history.some_interrupt(rng))
            steps += [history.some_damage(rng) for _ in range(rng.choice((0, 0, 1, 2, 3)))]
    if way == "replaced" and world.kind != "hub":
        steps += [history.some_interrupt(rng), _replaced(rng, world, schema)]
    return tuple(steps)


def _broken(rng: random.Random, world: World) -> Step:
    count = len(world.sources)
    which = sorted(rng.sample(range(count), k=rng.randint(1, max(1, count // 2))))
    made = {at: sources.broken(rng, world.sources[at], world.recipe.rules().text_column) for at in which}
    first = history.some_interrupt(rng) if rng.random() < 0.3 else None
    contents, ways = {at: made[at][0] for at in which}, {at: made[at][1] for at in which}
    return history.Broken(contents, ways, first, rng.random() < 0.4)


def _replaced(rng: random.Random, world: World, schema: Schema) -> Step:
    index = rng.randrange(len(world.sources))
    shape = rng.choice(sources.SHAPES)
    by = sources.make(rng, world.sources[index].path, schema, sources.texts(rng, shape))
    return history.Replaced(index, by)


def _after(rng: random.Random, world: World, schema: Schema) -> tuple[Step, ...]:
    """Return what happens to a run that is complete."""
    local: list[Callable[[], Step]] = [
        lambda: _replaced(rng, world, schema),
        lambda: history.Removed(rng.randrange(len(world.sources))),
        lambda: history.Touched(rng.randrange(len(world.sources))),
        lambda: history.Added(sources.make(rng, "new one.parquet", schema, [sources.text(rng, 5)])),
    ]
    anywhere: list[Callable[[], Step]] = [
        lambda: history.OtherRecipe(_another(rng, world.recipe)),
        lambda: history.some_interrupt(rng),
        lambda: history.Stray(rng.randint(1, 99_999)),
        history.Twice,
    ]
    steps: list[Step] = []
    if rng.random() < 0.45:
        steps += [history.some_damage(rng) for _ in range(rng.choice((1, 1, 2, 4)))]
        steps += [history.some_interrupt(rng)] if rng.random() < 0.3 else []
    if rng.random() < 0.35:
        # Whatever is damaged is made again before the sources change: what then happens is certain.
        choices = anywhere if world.kind == "hub" else [*local, *anywhere]
        steps.append(rng.choice(choices)())
    return tuple(steps)


def _another(rng: random.Random, recipe: Recipe) -> tuple[str, ...]:
    """Return the flags of another recipe."""
    if recipe.format == "raw":
        return tuple(replace(recipe, val_tokens=(recipe.val_tokens or 0) + 1).words())
    changed = rng.choice((
        replace(recipe, shard_tokens=(recipe.shard_tokens or 0) + 1, val_tokens=recipe.rules().val_tokens),
        replace(recipe, val_tokens=recipe.rules().val_tokens + 1),
        replace(recipe, name="another"),
        replace(recipe, last="drop" if recipe.rules().last != "drop" else "merge"),
        replace(recipe, limit_tokens=(recipe.limit_tokens or 10**6) + 1),
    ))  # fmt: skip
    return tuple(changed.words())


def _mistake(rng: random.Random, world: World) -> tuple[str, tuple[str, ...]]:
    """Return something that must be refused: what it is, and the flags."""
    plain = replace(
        world.recipe, format=None, compress=None, shard_tokens=50, val_tokens=0, layout=None, last=None
    )
    return rng.choice((
        ("no sources", tuple(world.recipe.words())),
        ("a layout for one stream", ("--format", "raw", "--layout", "independent")),
        ("a size for one stream", ("--format", "raw", "--shard-tokens", "10")),
        ("a name for one stream", ("--format", "raw", "--name", "x")),
        ("a misleading name", ("--format", "npy", "--name", "my_train")),
        ("compressed megatron", ("--format", "megatron", "--compress", "zstd")),
        ("compressed datatrove", ("--format", "datatrove", "--compress", "zstd")),
        ("no tokens in a shard", ("--shard-tokens", "0")),
        ("a shard too large", ("--shard-tokens", "3G")),
        ("half a token", ("--shard-tokens", "1.5")),
        ("a name that leads elsewhere", ("--name", "../x")),
        ("an empty name", ("--name", "")),
        ("no such tokenizer", ("--tokenizer", "gpt9")),
        ("no such format", ("--format", "tar")),
        ("no such column", (*plain.words(), "--text-column", "nowhere")),
        ("no such column in a filter", (*plain.words(), "--where", "nowhere > 1")),
        ("no expression", (*plain.words(), "--where", "score >")),
        ("a constant expression", (*plain.words(), "--where", "1 < 2")),
        ("a text and a number", (*plain.words(), "--where", "len(text) > 'a'")),
        ("no limit", (*plain.words(), "--limit-tokens", "0")),
        ("no workers", (*plain.words(), "--workers", "0")),
        ("an unknown flag", (*plain.words(), "--resume")),
    ))  # fmt: skip
