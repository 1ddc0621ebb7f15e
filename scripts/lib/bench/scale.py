"""What a run with very many sources and token shards costs to make, to look at, to verify and to load.

scripts/bench scale --sources 20000

The sources are tiny, so that little but the bookkeeping is measured: three token shards for four sources, as
20,000 sources and 15,000 token shards have. Each step is a command; the peak is that of its largest process.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.measure import Measure, child, run

_DIFFERENT = 20
_RECIPE = ("--tokenizer", "bytes", "--shard-tokens", "1000", "--val-tokens", "0")


def main() -> int:
    """Measure each number of sources; print a table."""
    parser = argparse.ArgumentParser(prog="scripts/bench scale", description=__doc__, allow_abbrev=False)
    parser.add_argument("--sources", metavar="N,...", default="5000,20000", help="default: 5000,20000")
    parser.add_argument("--work", metavar="DIR", type=Path, help="where to make a temporary folder")
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="keep the runs here, and use those that are there"
    )
    given = parser.parse_args()
    counts = [int(count) for count in given.sources.split(",")]
    found: dict[str, list[Measure]] = {}
    for count in counts:
        with tempfile.TemporaryDirectory(prefix="fwconvert-scale-", dir=given.work) as temporary:
            folder = Path(temporary) if given.keep is None else given.keep / str(count)
            folder.mkdir(parents=True, exist_ok=True)
            for title, measure in measured(folder, count).items():
                found.setdefault(title, []).append(measure)
    head = "".join(f" {count:,} sources: seconds | CPU s | peak MB |" for count in counts)
    print(f"| step |{head}\n|---|{'--:|--:|--:|' * len(counts)}")
    for title, measures in found.items():
        cells = "".join(
            f" {one.seconds:.1f} | {one.cpu_seconds:.1f} | {one.peak_bytes / 1e6:.0f} |" for one in measures
        )
        print(f"| {title} |{cells}")
    return 0


def measured(folder: Path, count: int) -> dict[str, Measure]:
    """Return what each step takes with so many sources."""
    sources, out = folder / "sources", folder / "out"
    program = [sys.executable, "-P", "-m", "fwconvert"]
    recipe = ["--source", str(sources), "--out", str(out), *_RECIPE]
    rank = [*program, "--out", str(out), "--quiet", "--world", "2", "--rank"]
    merge = [*program, "merge", str(out), "--quiet"]
    found = {}
    if not (out / "manifest.json").exists():
        run(child("bench.scale.make_sources", folder=sources, count=count), folder)
        found["plan --save"] = run([*program, "plan", *recipe, "--save"], folder)
        run(child("bench.scale.link_output", sources=sources, out=out), folder)
    looking = {
        "a rank, all of whose half is done": [*rank, "0"],
        "merge: hash the tails, join them, write manifest.json": merge,
        "merge again: all is done": merge,
        "the ordinary command: all is done": [*program, *recipe, "--quiet"],
        "status": [*program, "status", str(out)],
        "verify": [*program, "verify", str(out)],
        "loader: open, and a shuffled batch": child("bench.scale.load", out=out, order="shuffled"),
        "loader: open, and a batch in sequence": child("bench.scale.load", out=out, order="sequential"),
    }
    for title, command in looking.items():
        found[title] = run(command, folder)
        print(f"  {count:,} sources: {found[title].seconds:7.2f} s  {title}", file=sys.stderr, flush=True)
    manifest = json.loads((out / "manifest.json").read_bytes())
    size = (out / "manifest.json").stat().st_size
    print(f"  {len(manifest['shards']):,} token shards, manifest.json of {size:,} bytes", file=sys.stderr)
    return found


def make_sources(folder: str, count: int) -> None:
    """Write a few different sources, and link them under as many names as are wanted."""
    import pyarrow as pa  # noqa: PLC0415  # in a process of its own
    import pyarrow.parquet as pq  # noqa: PLC0415

    root = Path(folder)
    root.mkdir(parents=True)
    for number in range(count):
        path = root / f"{number:05}.parquet"
        if number >= _DIFFERENT:
            path.hardlink_to(root / f"{number % _DIFFERENT:05}.parquet")
            continue
        # A shard and a tail of 8 tokens; every fourth has a tail alone.
        sizes = [7] if number % 4 == 0 else [199, 199, 199, 199, 199, 7]
        pq.write_table(pa.table({"text": [chr(97 + number) * size for size in sizes]}), path)


def link_output(sources: str, out: str) -> None:
    """Have all sources converted: a few really, and of the others, which are equal, the files are linked.

    Converting 20,000 sources one by one would take most of the time, and is measured elsewhere.
    """
    import msgspec  # noqa: PLC0415  # in a process of its own

    from fwconvert import Options, Rank, convert_rank, recipe, save_plan  # noqa: PLC0415
    from fwconvert.store import layout, receipts, saved_recipe, sessions  # noqa: PLC0415
    from fwconvert.store.local import LocalStore  # noqa: PLC0415

    few, first = Path(out).with_name("few"), Path(out).with_name("first")
    few.mkdir()
    for number in range(_DIFFERENT):
        (few / f"{number:05}.parquet").hardlink_to(Path(sources) / f"{number:05}.parquet")
    save_plan(recipe(source=few, tokenizer="bytes", shard_tokens=1000, val_tokens=0), first)
    assert convert_rank(first, Rank(0, 1), Options(workers=1)).complete
    there, here = LocalStore(first), LocalStore(Path(out), "linked")
    plan = saved_recipe.read_plan(here)
    sessions.write(
        here, msgspec.structs.replace(sessions.new(), id="linked", ended="now", outcome="complete")
    )
    vars(os)["fsync"] = lambda _: None
    for index, file in enumerate(plan.source.files):
        like = there.local(layout.receipt(layout.job_key(f"{index % _DIFFERENT:05}.parquet")))
        made = receipts.read(
            there, str(like.relative_to(first)), receipts.Receipt, saved_recipe.read_plan(there).recipe_id
        )
        names = {
            line.name: layout.job_shard(plan.rules, "train", index, at) for at, line in enumerate(made.shards)
        }
        links = names | {layout.index(old): layout.index(new) for old, new in names.items()}
        links |= {
            name(layout.job_key(made.path)): name(layout.job_key(file.path))
            for name in (layout.tail, layout.tail_index)
        }
        for old, new in links.items():
            here.local(new).hardlink_to(there.local(old))
        lines = tuple(
            msgspec.structs.replace(line, name=names[line.name], segments=((index, 0),))
            for line in made.shards
        )
        changes = {"path": file.path, "recipe_id": plan.recipe_id, "session": "linked", "shards": lines}
        receipts.publish(here, msgspec.structs.replace(made, **changes))


def load(out: str, order: Any) -> dict[str, float]:
    """Open a run and take a batch; return how long that took without the imports."""
    from fwconvert.loader import Loader  # noqa: PLC0415  # in a process of its own

    started = time.perf_counter()
    batches = iter(Loader(out, seq_len=256, batch=8, order=order))
    next(batches)
    return {"seconds": time.perf_counter() - started}


if __name__ == "__main__":
    sys.exit(main())
