"""Small runs for the tests of verify, and ways to change and to damage them."""

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import forked
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fwconvert
from fwconvert.errors import ManifestError
from fwconvert.inspection.verify import verify
from fwconvert.recipes import EotSide, Layout
from fwconvert.shards import shard
from fwconvert.store import layout as names
from fwconvert.tokens.registry import find

SIZE = 64
# llm.c's.
HEADER_BYTES = 1024
EOT = find("bytes").eot

Json = dict[str, Any]
Change = Callable[[Path], None]


def of(*lengths: int) -> list[str | None]:
    """Make documents of so many tokens each, EOT included."""
    return [(f"document {number} " * length)[: length - 1] for number, length in enumerate(lengths)]


# With 64 tokens a shard. Tails begin with a document, within one, and right behind one's end.
SOURCES: dict[str, list[str | None]] = {
    "0-ends-with-its-shards": [*of(64, 32), None, "", *of(32, 64)],
    "1-longer-than-three-shards": of(10, 260, 64, 20),
    "2-all-tail": ["one", None, "😀 two", "<|endoftext|>"],
    "3-no-rows": [],
    "4-tail-within-a-document": of(100, 11),
    "5-tail-begins-a-document": of(50, 14, 12),
    "6-only-nulls": [None, None],
    "7-tail-fills-a-joined-shard": of(30, 42),
    "8-short": of(2, 2, 3),
}
DOCUMENTS = sum(1 for texts in SOURCES.values() for text in texts if text)
TOKENS = sum(len(text.encode()) + 1 for texts in SOURCES.values() for text in texts if text)


@dataclass(frozen=True)
class Kind:
    layout: Layout = "independent"
    eot: EotSide = "before"
    val_tokens: int = SIZE
    tokenizer: str = "bytes"


KINDS = [
    Kind(layout, eot, val_tokens)
    for layout, eot, val_tokens in itertools.product(get_args(Layout), get_args(EotSide), (SIZE, 0, 100_000))
]
BEFORE, AFTER = Kind(), Kind(eot="after")


def write_sources(folder: Path, sources: dict[str, list[str | None]]) -> None:
    folder.mkdir()
    for name, texts in sources.items():
        pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), folder / f"{name}.parquet")


def convert(sources: Path, out: Path, kind: Kind, shard_tokens: int = SIZE) -> fwconvert.Result:
    recipe = fwconvert.recipe(
        source=str(sources),
        tokenizer=kind.tokenizer,
        shard_tokens=shard_tokens,
        layout=kind.layout,
        eot=kind.eot,
        val_tokens=kind.val_tokens,
        name="t",
        last="keep",
    )
    with forked.workers():
        return fwconvert.convert(recipe, out, fwconvert.Options(workers=1))


Run = Callable[[Kind], Path]


def copy(out: Path, folder: Path, *, private: bool = False) -> Path:
    ignored = shutil.ignore_patterns() if private else shutil.ignore_patterns(".fwconvert")
    return Path(shutil.copytree(out, folder / "copy", ignore=ignored))


def told(out: Path) -> list[str]:
    return [f"{problem.file}: {problem.what}" for problem in verify(out).problems]


def assert_told(out: Path, *wanted: str) -> None:
    """Each of `wanted` must be part of a problem, and no other problem may be told."""
    found = told(out)
    missing = [part for part in wanted if not any(part in problem for problem in found)]
    surplus = [problem for problem in found if not any(part in problem for part in wanted)]
    assert (missing, surplus) == ([], []), found


def read_manifest(out: Path) -> Json:
    found: Json = json.loads((out / "manifest.json").read_bytes())
    return found


def edit(out: Path, change: Callable[[Json], object]) -> None:
    manifest = read_manifest(out)
    change(manifest)
    (out / "manifest.json").write_text(json.dumps(manifest))


def seal(out: Path) -> None:
    """Put the sizes and hashes of the files into the manifest, so that only their meaning can be wrong."""

    def change(manifest: Json) -> None:
        for line in manifest["shards"]:
            content, index = (out / line["name"]).read_bytes(), index_of(out, line["name"]).read_bytes()
            line["bytes"], line["sha256"] = len(content), hashlib.sha256(content).hexdigest()
            line["index_sha256"] = hashlib.sha256(index).hexdigest()

    edit(out, change)


def index_of(out: Path, name: str) -> Path:
    return out / names.index(name)


def tokens_of(out: Path, name: str) -> "np.ndarray[Any, Any]":
    """Map the tokens of a shard so that they can be changed."""
    return np.memmap(out / name, "<u2", "r+", HEADER_BYTES)


def entries_of(out: Path, name: str) -> "np.ndarray[Any, Any]":
    """Map the entries of a document index so that they can be changed."""
    return np.memmap(index_of(out, name), shard.INDEX_TYPE, "r+")


def write_entries(out: Path, name: str, entries: list[tuple[int, int]]) -> None:
    """Replace a document index, and its number of documents in the manifest."""
    index_of(out, name).write_bytes(np.array(entries, shard.INDEX_TYPE).tobytes())
    edit(out, lambda manifest: line_of(manifest, name).update(documents=len(entries)))


def line_of(manifest: Json, name: str) -> Json:
    return next(line for line in manifest["shards"] if line["name"] == name)


def job_of(manifest: Json, number: int) -> Json:
    found: Json = manifest["jobs"][number]
    return found


# What only a receipt or the source itself could prove.
UNPROVABLE = {("jobs", "sha256"), ("jobs", "text_bytes")}


def leaves(value: Any, *place: Any) -> list[tuple[Any, ...]]:
    """Return the way to every single value."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for key, part in parts for leaf in leaves(part, *place, key)]
    return [place]


def another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else f"{value or ''}x"


def assert_change_is_noticed(out: Path, original: bytes, way: list[Any], last: Any) -> None:
    """Change one value of a run manifest, found by keys and indices."""
    manifest = json.loads(original)
    parent = manifest
    for key in way:
        parent = parent[key]
    parent[last] = another(parent[last])
    (out / "manifest.json").write_text(json.dumps(manifest))
    try:
        assert told(out), (way, last)
    except ManifestError:
        assert way in ([], ["rules"])
