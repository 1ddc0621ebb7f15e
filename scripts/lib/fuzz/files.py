"""Untrusted files and expressions, given to what reads them: parquet, token shards, zstd, --where."""

import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pyarrow as pa

from fwconvert import formats, where
from fwconvert.errors import FwconvertError
from fwconvert.loader import files as loader_files
from fwconvert.loader.files import Claims
from fwconvert.options import Options
from fwconvert.recipes import Recipe, Rules, SourceManifest, SourceShard, TokenType, Totals
from fwconvert.run import preflight
from fwconvert.run.inputs import LocalFiles
from fwconvert.shards import shard, zstd
from fwconvert.sources import filters
from fwconvert.sources import parquet as source
from fwconvert.sources.filters import Sieve
from fwconvert.store.local import LocalStore
from fwconvert.tokens import registry

_TYPES: tuple[TokenType, ...] = ("uint16", "uint32")
# A file of a few KB may hold a thousand batches; the first are like the others.
_SOME = 8
_TABLE = pa.RecordBatch.from_pydict(
    {
        "text": ["one", "two", "", None],
        "score": pa.array([1.5, float("nan"), -0.0, None], pa.float64()),
        "int_score": pa.array([1, -(2**63), 2**63 - 1, None], pa.int64()),
        "language": ["en", "de", "", None],
        "truth": [True, False, None, True],
        "nothing": pa.nulls(4),
    }
)


def parquet(scratch: Path) -> Callable[[bytes], object]:
    """Return what reads a source file: as the driver, trace and a worker do."""
    path = scratch / "source.parquet"
    known = registry.find("bytes")
    rules = Rules(
        "bytes", known.sha256, "before", "uint16", "text", 300, 0, "independent", "llmc", "a", 3,
        where="score > 1.0 or language == 'en'",
    )  # fmt: skip
    options, chosen = Options(workers=1), filters.of(rules)

    def read(data: bytes) -> object:
        path.write_bytes(data)
        files = (SourceShard(path.name, len(data)),)
        recipe = Recipe(SourceManifest("", "local", "", "", files, Totals(1, len(data))), rules).at(scratch)
        inputs, never = LocalFiles(recipe.source, scratch), threading.Event()
        refused: FwconvertError | None = None
        for reader in (
            lambda: inputs.estimate(recipe, options),
            lambda: preflight.check(LocalStore(scratch / "out"), recipe, options, inputs, never),
            lambda: source.read_row(path, str(path), 0, "text"),
            lambda: source.read_row(path, str(path), 3, "text"),
            lambda: source.identity(path, 1),
            lambda: [source.extent(path), *islice(source.batches(path, "text", chosen), _SOME)],
        ):
            try:
                reader()
            except FwconvertError as error:
                refused = error
        if refused is not None:
            raise refused
        return None

    return read


def token_shard(scratch: Path) -> Callable[[bytes], object]:
    """Return what reads a token shard."""

    def read(data: bytes) -> object:
        return _shard(scratch, data, "")

    return read


def compressed_shard(scratch: Path) -> Callable[[bytes], object]:
    """Return what reads a token shard that is compressed."""

    def read(data: bytes) -> object:
        path = scratch / "some.zst"
        path.write_bytes(data)
        try:
            zstd.unzip(path, 2**32)
        finally:
            _shard(scratch, data, formats.ZIPPED)
        return None

    return read


def _shard(scratch: Path, data: bytes, ending: str) -> object:
    """Read a file as every format; raise the last error if none of them reads it."""
    read, refused = False, None
    names = [f"a_train_000.bin{ending}", f"train.bin{ending}"]
    for name in names:
        path = scratch / name
        path.write_bytes(data)
        readers: list[Callable[[], object]] = [
            lambda path=path, raw=raw: loader_files.look(path, Claims(raw=raw)).read()  # type: ignore[misc]
            for raw in (None, *_TYPES)
        ]
        for kind in (formats.find("llmc"), formats.find("npy"), formats.find("raw")):
            for width in _TYPES:
                readers += [
                    lambda p=path, w=width, k=kind: shard.token_count(p, w, k),  # type: ignore[misc]
                    lambda p=path, w=width, k=kind: shard.read_tokens(p, w, k),  # type: ignore[misc]
                ]
        for reader in readers:
            try:
                reader()
                read = True
            except FwconvertError as error:
                refused = error
    if not read and refused is not None:
        raise refused
    return None


def where_expression(_scratch: Path) -> Callable[[bytes], object]:
    """Return what parses an expression, prints it, parses that again, and evaluates it on some rows."""

    def read(data: bytes) -> object:
        node = where.parse(data.decode(errors="surrogateescape"))
        spelt = where.text(node)
        if len(spelt) <= where.MOST_CHARACTERS:
            again = where.parse(spelt)
            assert repr(again) == repr(node), f"{spelt!r} is another expression"
        chosen = Sieve(node)
        chosen.check(_TABLE.schema, Path("some.parquet"))
        return chosen.kept(_TABLE, Path("some.parquet"))

    return read
