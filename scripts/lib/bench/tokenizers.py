"""Compare the fast encoder with the reference for tokenizers that files define: speed, and every difference.

    scripts/bench tokenizers --source DIR tokenizer.json tokenizer.model

Each file has a process of its own. The fast encoder gets all of the text; the reference, which is slow, the
first megabytes, on which the two are compared; then both get texts that are hard to split.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from nasty_texts import Texts, abbreviated, extreme_texts

from bench.limits import texts
from bench.measure import child, log, run
from bench.table import markdown
from fwconvert.tokens.defined import library_of
from fwconvert.tokens.spec import Loading, TokenizerSpec
from fwconvert.tokens.tokenizer import Tokenizer

_HEAD = (
    "file", "fast MB/s", "reference MB/s", "load s", "documents", "differ", "hard texts", "differ",
)  # fmt: skip
_KINDS = {".json": "hf", ".model": "sentencepiece"}


def main() -> int:
    """Print the table; return 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="scripts/bench tokenizers", description=__doc__)
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", type=Path, help="a tokenizer.json or a tokenizer.model")
    add("--source", metavar="DIR", type=Path, required=True, help="parquet files with a column `text`")
    add("--megabytes", metavar="N", type=float, default=8.0, help="how much the reference gets (default: 8)")
    add("--fuzz", metavar="N", type=int, default=20_000, help="how many hard texts (default: 20,000)")
    add("--extreme", action="store_true", help="also very long texts, 25 MB in all")
    args = parser.parse_args()
    sources = sorted(args.source.rglob("*.parquet"))
    lines, differences = [], 0
    for file in args.files:
        log(str(file))
        task = {
            "file": file.absolute(),
            "sources": list(map(str, sources)),
            "fuzz": args.fuzz,
            "extreme": args.extreme,
        }
        command = child("bench.tokenizers.compare", **task, most=args.megabytes * 1e6)
        found = run(command, Path.cwd()).reported
        lines.append((file.name, *found["cells"]))
        differences += found["differences"]
        for shown in found["examples"]:
            log(f"  differs: {shown}")
    print(markdown(_HEAD, lines))
    return 1 if differences else 0


def compare(
    file: str, sources: Sequence[str], most: float, fuzz: int, *, extreme: bool = False
) -> dict[str, Any]:
    """Return the cells of a row, how many texts differ, and a few of them."""
    content, kind = Path(file).read_bytes(), _KINDS[Path(file).suffix]
    # No file has ids this large, so that nothing is taken for a separator.
    spec = TokenizerSpec(
        kind=kind, name=file, sha256=hashlib.sha256(content).hexdigest(), size=2**20, eot=2**20 - 1
    )
    library, began = library_of(kind), time.process_time()
    reason = library.why_not_fast(content)
    # The fast encoder has its reference beside it.
    fast = None if reason else library.fast(spec, content, Loading("fast"))
    reference = library.reference(spec, content, Loading()) if fast is None else fast.reference
    load = f"{time.process_time() - began:.1f}"
    few, size = [], 0
    for batch in _batches(sources):
        if size < most:
            few.append(batch)
            size += batch.nbytes
    wanted, rate = _timed(reference, few)
    if fast is None:
        return {"cells": [f"none: {reason}", f"{rate:.1f}", load, *"----"], "differences": 0, "examples": []}
    hard = _hard_texts(few[0], fuzz, extreme=extreme)
    differing = [
        list(_differing(few, _timed(fast, few)[0], wanted)),
        list(_differing(hard, _timed(fast, hard)[0], _timed(reference, hard)[0])),
    ]
    _, fast_rate = _timed(fast, _batches(sources), keep=False)
    cells = [f"{fast_rate:.0f}", f"{rate:.1f}", load]
    for batches, found in zip((few, hard), differing, strict=True):
        cells += [f"{sum(map(len, batches)):,}", str(len(found))]
    examples = [abbreviated(text) for found in differing for text in found[:5]]
    return {"cells": cells, "differences": sum(map(len, differing)), "examples": examples}


def _batches(sources: Sequence[str]) -> Iterator[pa.Array]:
    for source in sources:
        for batch in texts(Path(source)):
            yield batch.drop_null()


def _timed(
    encoder: Tokenizer, batches: Sequence[pa.Array] | Iterator[pa.Array], *, keep: bool = True
) -> tuple[list[list[Any]], float]:
    """Return the tokens of each document, by batches, if they are kept; and MB of text in a second of CPU."""
    kept, spent, size = [], 0.0, 0
    for batch in batches:
        began = time.process_time()
        encoded = encoder.encode(batch)
        spent += time.process_time() - began
        size += batch.nbytes
        if keep:
            kept.append(np.split(encoded.tokens, encoded.offsets[1:-1]))
    return kept, size / 1e6 / spent if spent else 0.0


def _hard_texts(known: pa.Array, count: int, *, extreme: bool) -> list[pa.Array]:
    """Return texts that are hard to split, some with words of those that are known."""
    source = Texts(1, " ".join(known[:500].to_pylist()).encode().split()[:6_000])
    found = source.with_disagreements(count)
    batches = [found[at : at + 1000] for at in range(0, len(found), 1000)]
    batches += [list(extreme_texts())] if extreme else []
    return [pa.array(batch, pa.large_string()) for batch in batches]


def _differing(batches: Sequence[pa.Array], found: list[list[Any]], wanted: list[list[Any]]) -> Iterator[str]:
    for batch, quick, slow in zip(batches, found, wanted, strict=True):
        for index, (one, other) in enumerate(zip(quick, slow, strict=True)):
            if not np.array_equal(one, other):
                yield batch[index].as_py()


if __name__ == "__main__":
    sys.exit(main())
