"""The rows of the benchmark's main table: what is run, on which files, and what must come out."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import util
from pathlib import Path
from typing import Any, Literal

from bench.measure import BenchError, Measure, child, counts_of, fwconvert, link, log, run

Group = Literal["fwconvert", "ceiling", "instead", "floor", "peers"]


# The tokenizers that gigatoken knows.
ENCODE_FILES = ("gpt2", "r50k_base", "cl100k_base", "o200k_base")


@dataclass(frozen=True)
class Setup:
    """What all rows have in common."""

    work: Path
    files: tuple[Path, ...]
    tokenizer: str
    encoder: str
    cores: int
    # What the manifests of the conversions of all, and of few files, say.
    of_all: dict[str, Any] = field(default_factory=dict)
    of_few: dict[str, Any] = field(default_factory=dict)
    # Small, so that even a few files have several shards to compare.
    peer_shard_tokens: int = 1_000_000

    @property
    def out(self) -> Path:
        """Where a run writes; created before and removed after each."""
        return self.work / "out"

    @property
    def all_folder(self) -> Path:
        """The folder of all files."""
        return self.work / "all"

    @property
    def few_folder(self) -> Path:
        """The folder of the peers' files."""
        return self.work / "few"

    @property
    def json_file(self) -> Path:
        """The tokenizer.json for the tools that need one."""
        return self.work / "tokenizer.json"

    def options(self, workers: int, threads: int = 1) -> list[str]:
        """Return the options of a conversion."""
        words = ["--tokenizer", self.tokenizer, "--encoder", self.encoder]
        words += ["--shard-tokens", str(self.shard_tokens)]
        return [*words, "--workers", str(workers), "--threads", str(threads), "--no-disk-check"]

    @property
    def shard_tokens(self) -> int:
        """Tokens per shard, in proportion: 100M for a FineWeb-Edu file of 2.15 GB.

        With full-size shards, files this small would be nothing but tails.
        """
        return max(100_000, max(file.stat().st_size for file in self.files) * 100 // 2150)


@dataclass(frozen=True)
class Way:
    """One way to make tokens, which is one row: a command, and how many processes it uses."""

    group: Group
    key: str
    title: str
    command: list[str]
    # How many cores it can use at most.
    processes: int
    once: bool = False


@dataclass
class Row:
    """A way and its best run."""

    way: Way
    tokens: int
    text_bytes: int
    best: Measure

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.best.seconds


def prepare(setup: Setup, few_bytes: int) -> Setup:
    """Convert everything once, unmeasured: the files are then cached, and the right answers known.

    The peers are slow, so they get the first documents, about `few_bytes` of text.
    """
    link(setup.files, setup.all_folder)
    of_all, _ = convert(setup, setup.all_folder, *setup.options(setup.cores))
    known = replace(setup, of_all=of_all)
    share = min(1, few_bytes / of_all["text_bytes"])
    cut(known, setup.few_folder.name, setup.cores, max(1, int(of_all["documents"] * share) // setup.cores))
    contiguous = ["--layout", "contiguous", "--shard-tokens", str(setup.peer_shard_tokens), "--last", "keep"]
    of_few, _ = convert(setup, setup.few_folder, *setup.options(setup.cores), *contiguous)
    return replace(known, of_few=of_few)


def cut(setup: Setup, name: str, files: int, rows: int) -> list[Path]:
    """Write the first documents as `files` files of `rows` rows each; return them."""
    folder = setup.work / name
    sources = [str(path.absolute()) for path in setup.files]
    run(child("bench.corpus.cut", sources=sources, folder=folder, files=files, rows=rows), setup.work)
    return sorted(folder.iterdir())


def convert(setup: Setup, source: Path, *options: str) -> tuple[dict[str, Any], Measure]:
    """Run fwconvert into an empty folder; return the counts in its manifest and what it took."""
    with fresh(setup.out):
        measure = run(fwconvert(source, setup.out, *options), setup.work)
        return counts_of(setup.out), measure


@contextmanager
def fresh(folder: Path) -> Iterator[None]:
    """Create a folder for the block, and remove it afterwards."""
    folder.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(folder)


def ways(setup: Setup, *, peers: bool) -> list[Way]:
    """Return all rows that can be measured here."""
    made = [*_ours(setup), *_ceilings(setup), *_instead(setup), *_floor(setup), *_peers(setup)]
    if peers and util.find_spec("datatrove") and util.find_spec("tokenizers"):
        task = child(
            "bench.peers.datatrove", **_peer(setup), processes=setup.cores, json_file=setup.json_file
        )
        made.append(Way("peers", "datatrove", "datatrove itself", task, setup.cores, once=True))
    return made


def _counts(setup: Setup) -> list[int]:
    return sorted({1, 2, setup.cores})


def _ours(setup: Setup) -> Iterator[Way]:
    for workers, threads in [*((count, 1) for count in _counts(setup)), (1, 2)]:
        command = fwconvert(setup.all_folder, setup.out, *setup.options(workers, threads))
        title = f"fwconvert, {_many(workers, 'worker')}" + (f" of {threads} threads" if threads > 1 else "")
        key = f"fwconvert-{workers}x{threads}"
        yield Way("fwconvert", key, title, command, workers * threads)


def _ceilings(setup: Setup) -> Iterator[Way]:
    for count in _counts(setup):
        task = {"files": _names(setup), "tokenizer": setup.tokenizer}
        command = child("bench.limits.ceiling", **task, processes=count)
        title = f"ceiling: decode and encode alone, {_many(count, 'process', 'es')}"
        yield Way("ceiling", f"ceiling-{count}", title, command, count)


def _instead(setup: Setup) -> Iterator[Way]:
    # Not imported here: what drives the rows imports nothing heavy.
    if util.find_spec("gigatoken") and setup.tokenizer in ENCODE_FILES:
        task = {"files": _names(setup), "threads": setup.cores, "tokenizer": setup.tokenizer}
        title = "gigatoken's encode_files, on all cores: no output, hash or audit"
        command = child("bench.limits.encode_files", **task)
        yield Way("instead", "gigatoken", title, command, setup.cores)


def _floor(setup: Setup) -> Iterator[Way]:
    size = sum(path.stat().st_size for path in setup.files)
    output = setup.of_all["tokens"] * setup.of_all["token_bytes"]
    write = child("bench.limits.write", out=setup.out / "written", size=output)
    yield Way("floor", "decode", "decode alone", child("bench.limits.decode", files=_names(setup)), 1)
    yield Way("floor", "sha256", f"sha256 of the sources alone ({size / 1e6:,.0f} MB)",
              child("bench.limits.sha256", files=_names(setup)), 1)  # fmt: skip
    yield Way("floor", "write", f"write and fsync of the output alone ({output / 1e6:,.0f} MB)", write, 1)


def _peers(setup: Setup) -> Iterator[Way]:
    task, cores = _peer(setup), setup.cores
    named = {**task, "tokenizer": setup.tokenizer}
    llmc = child("bench.peers.llmc", **named, processes=cores, shard_tokens=setup.peer_shard_tokens)
    yield Way("peers", "llmc", "the llm.c way: a pool, document by document, tiktoken", llmc, cores)
    batches = child("bench.peers.batches", **named, processes=cores)
    yield Way(
        "peers", "map", "the datasets.map way: a pool, 1,000 documents a time, tiktoken", batches, cores
    )
    if util.find_spec("tokenizers"):
        run(child("bench.peers.describe", tokenizer=setup.tokenizer, json_file=setup.json_file), setup.work)
        hf = child("bench.peers.huggingface", **named, json_file=setup.json_file)
        yield Way("peers", "hf", "HF tokenizers' encode_batch, on all cores", hf, cores)


def _peer(setup: Setup) -> dict[str, Any]:
    return {"files": sorted(str(path) for path in setup.few_folder.iterdir()), "out": setup.out}


def _names(setup: Setup) -> list[str]:
    return [str(path.absolute()) for path in setup.files]


def _many(count: int, noun: str, plural: str = "s") -> str:
    return f"{count} {noun}" + (plural if count > 1 else "")


def measure(setup: Setup, wanted: Sequence[Way], rounds: int, notes: list[str]) -> list[Row]:
    """Run all ways in turn, `rounds` times over; keep the best run of each."""
    rows: dict[str, Row] = {}
    for number, way in ((number, way) for number in range(rounds) for way in wanted):
        if way.once and number:
            continue
        with fresh(setup.out):
            took = run(way.command, setup.work)
            _check(setup, way, took, notes)
        expected = setup.of_few if way.group == "peers" else setup.of_all
        row = rows.setdefault(way.key, Row(way, expected["tokens"], expected["text_bytes"], took))
        row.best = min(row.best, took, key=lambda one: one.seconds)
        log(f"  round {number + 1}: {took.seconds:7.2f} s  {way.title}")
    return list(rows.values())


def checked(rows: Sequence[Row]) -> list[str]:
    """Return what these rows have proven about their tokens; a difference would have raised."""
    keys = [row.way.key for row in rows]
    peers = [row.way.key for row in rows if row.way.group == "peers"]
    proven = {
        "fwconvert made the same token shards in every run.": any(
            key.startswith("fwconvert") for key in keys
        ),
        f"These made as many tokens as fwconvert from the same sources: {', '.join(peers)}.": bool(peers),
        "The llm.c way's token shards are, byte for byte, those of --layout contiguous.": "llmc" in keys,
    }
    return [text for text, holds in proven.items() if holds]


def _check(setup: Setup, way: Way, took: Measure, notes: list[str]) -> None:
    """Compare what a run made with what it should have made."""
    expected = setup.of_few if way.group == "peers" else setup.of_all
    if way.group == "fwconvert":
        _require_equal(way, counts_of(setup.out), expected)
    elif way.group == "peers":
        _require_equal(
            way, took.reported, {name: value for name, value in expected.items() if name in took.reported}
        )
    elif way.group in ("ceiling", "instead") and took.reported["tokens"] != expected["tokens"]:
        # The fast encoder alone, without fwconvert's check for characters on which it is wrong.
        note = f"gigatoken alone ({way.key}) made {took.reported['tokens'] - expected['tokens']:+,} tokens"
        notes += [note] if note not in notes else []
    if way.key == "llmc":
        _require_equal(
            way, {"sha256": sorted(_hashes(setup.out.glob("*.bin")))}, {"sha256": expected["sha256"]}
        )


def _require_equal(way: Way, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    if found != wanted:
        raise BenchError(f"{way.title}: other tokens\n  made    {found}\n  wanted  {wanted}")


def _hashes(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        with path.open("rb") as file:
            yield hashlib.file_digest(file, "sha256").hexdigest()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
