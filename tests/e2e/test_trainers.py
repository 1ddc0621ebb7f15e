"""Every format as its trainer reads it, with equal bytes whatever happens.

What each file must be is made from the naive writer's shards by code that shares nothing with the package:
numpy's own writer, and struct by the layouts that the trainers publish.
"""

import io
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus
import naive
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runner

from fwconvert.errors import UsageError
from fwconvert.inspection.verify import verify
from fwconvert.loader import Loader

SHARD_TOKENS = 1000
WIDTHS = {"gpt2": 2, "cl100k_base": 4, "bytes": 2}
EOTS = {"gpt2": 50256, "cl100k_base": 100257, "bytes": 256}
OTHERS = ("npy", "raw", "megatron", "datatrove", "nemo", "litdata", "mds", "parquet")
SUFFIXES = {
    "llmc": ".bin", "npy": ".npy", "raw": ".bin", "megatron": ".bin", "datatrove": ".ds", "nemo": ".bin",
    "litdata": ".bin", "mds": ".mds", "parquet": ".parquet",
}  # fmt: skip
SIDES = {kind: "before" if kind in ("llmc", "npy", "nemo") else "after" for kind in ("llmc", *OTHERS)}
# Of an MDS sample, and the size of its header, which has room for the samples of the longest shard that
# there may be: with --last merge one that took in another.
LENGTH = 64
MDS_ROOMS = {"merge": 704, "keep": 640, "drop": 640}

Files = dict[str, bytes]
Harms = tuple[Callable[[Path], None], Callable[[Path], None]]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.varied(tmp_path_factory.mktemp("varied"))


def recipe_of(kind: str, tokenizer: str, **more: Any) -> dict[str, Any]:
    if kind == "raw":
        return {"format": kind, "tokenizer": tokenizer, "val_tokens": SHARD_TOKENS, **more}
    if kind == "mds":
        more["sequence_length"] = LENGTH
    return {"format": kind, "tokenizer": tokenizer, "shard_tokens": SHARD_TOKENS, **more}


def naive_run(sources: Path, out: Path, kind: str, tokenizer: str, **more: Any) -> None:
    size, layout = (10**9, "contiguous") if kind == "raw" else (SHARD_TOKENS, "independent")
    choices = {"shard_tokens": size, "val_tokens": SHARD_TOKENS, "layout": layout, "eot": SIDES[kind]}
    naive.convert(sources, out, tokenizer=tokenizer, **{**choices, **more})


def expected(naive_out: Path, kind: str, tokenizer: str, last: str = "merge") -> Files:
    """Return what each file must be, from llm.c shards and document indexes of the same stream."""
    room = MDS_ROOMS[last]
    files: Files = {}
    for path in naive_out.glob("*.bin"):
        tokens = np.frombuffer(path.read_bytes()[1024:], f"<u{WIDTHS[tokenizer]}")
        entries = np.fromfile(naive_out / "index" / f"{path.stem}.docs", "<u4").reshape(-1, 2)
        stem = path.stem.split("_")[2] if kind == "raw" else path.stem
        width = "<QI" if kind == "raw" else "<II"
        files[f"index/{stem}.docs"] = b"".join(struct.pack(width, *entry) for entry in entries.tolist())
        files |= (
            as_mds(stem, tokens, tokenizer, room) if kind == "mds" else WRITERS[kind](stem, tokens, tokenizer)
        )
    if kind == "litdata":
        return files | list_litdata(files, WIDTHS[tokenizer])
    return files | list_mds(files, WIDTHS[tokenizer], room) if kind == "mds" else files


def as_npy(stem: str, tokens: Any, _: str) -> Files:
    file = io.BytesIO()
    np.save(file, tokens)
    return {f"{stem}.npy": file.getvalue()}


def as_raw(stem: str, tokens: Any, _: str) -> Files:
    return {f"{stem}.bin": tokens.tobytes()}


def document_ends(tokens: Any, tokenizer: str) -> list[int]:
    """Return where documents end, told by the separators alone; the last may go on in the next shard."""
    ends = [at + 1 for at, token in enumerate(tokens.tolist()) if token == EOTS[tokenizer]]
    return ends if ends[-1:] == [len(tokens)] else [*ends, len(tokens)]


def as_megatron(stem: str, tokens: Any, tokenizer: str) -> Files:
    width, ends = WIDTHS[tokenizer], document_ends(tokens, tokenizer)
    begins = [0, *ends[:-1]]
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, {2: 8, 4: 4}[width], len(ends), len(ends) + 1)
    index += b"".join(struct.pack("<i", end - begin) for begin, end in zip(begins, ends, strict=True))
    index += b"".join(struct.pack("<q", begin * width) for begin in begins)
    index += b"".join(struct.pack("<q", number) for number in range(len(ends) + 1))
    return {f"{stem}.bin": tokens.tobytes(), f"{stem}.idx": index}


def as_datatrove(stem: str, tokens: Any, tokenizer: str) -> Files:
    ends = document_ends(tokens, tokenizer)
    # Three digits for people.
    count = len(tokens)
    people = f"{count / 1000:.2f} kT" if count >= 1000 else f"{count:.{3 - len(str(count))}f} T"
    lines = f"{tokenizer}|{WIDTHS[tokenizer]}\n{len(tokens)}\n{people}"
    index = struct.pack(f"<{len(ends)}Q", *ends)
    return {f"{stem}.ds": tokens.tobytes(), f"{stem}.ds.index": index, f"{stem}.ds.metadata": lines.encode()}


def as_nemo(stem: str, tokens: Any, tokenizer: str) -> Files:
    width, separator = WIDTHS[tokenizer], EOTS[tokenizer]
    head = struct.pack("<256i", 278895051, 1, len(tokens), width, *[0] * 252)
    found = [at for at, token in enumerate(tokens.tolist()) if token == separator]
    index = struct.pack(f"<{len(found)}i", *found)
    return {f"{stem}.bin": head + tokens.tobytes(), f"{stem}.bos.idx": index}


def as_litdata(stem: str, tokens: Any, tokenizer: str) -> Files:
    magic = {2: (20240520, 1), 4: (20240801, 7)}[WIDTHS[tokenizer]]
    return {f"{stem}.bin": struct.pack("<256i", *magic, len(tokens), *[0] * 253) + tokens.tobytes()}


def as_mds(stem: str, tokens: Any, tokenizer: str, room: int) -> Files:
    width, samples = WIDTHS[tokenizer], len(tokens) // LENGTH
    offsets = [room + at * LENGTH * width for at in range(samples + 1)]
    columns = json.dumps({**mds_columns(width), "tokens": len(tokens)}, sort_keys=True).encode()
    head = struct.pack(f"<{samples + 2}I", samples, *offsets) + columns
    return {f"{stem}.mds": head.ljust(room) + tokens.tobytes()}


def mds_columns(width: int) -> dict[str, Any]:
    described = {"column_encodings": [f"ndarray:uint{8 * width}:{LENGTH}"], "column_names": ["tokens"]}
    named = {"format": "mds", "version": 2, "hashes": [], "size_limit": None, "compression": None}
    return {**described, **named, "column_sizes": [LENGTH * width]}


def as_parquet(stem: str, tokens: Any, tokenizer: str) -> Files:
    ends = document_ends(tokens, tokenizer)
    rows = [tokens[begin:end].tolist() for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    element = pa.field("element", pa.int32(), nullable=False)
    schema = pa.schema([pa.field("input_ids", pa.list_(element), nullable=False)])
    file = io.BytesIO()
    table = pa.table({"input_ids": rows}, schema)
    pq.write_table(table, file, compression="none", write_statistics=False, row_group_size=1000)
    return {f"{stem}.parquet": file.getvalue()}


def list_litdata(files: Files, width: int) -> Files:
    config = {
        "chunk_bytes": None, "chunk_size": SHARD_TOKENS, "compression": None, "encryption": None,
        "data_format": [{2: "no_header_tensor:20", 4: "no_header_tensor:15"}[width]],
        "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]',
        "item_loader": "TokensLoader",
    }  # fmt: skip
    return lists(files, ".bin", lambda path, size: {
        "chunk_bytes": size, "chunk_size": 254, "dim": (size - 1024) // width, "filename": path,
    }, lambda chunks: {"chunks": chunks, "config": config})  # fmt: skip


def list_mds(files: Files, width: int, room: int) -> Files:
    return lists(files, ".mds", lambda path, size: {
        **mds_columns(width), "samples": (size - room) // width // LENGTH, "zip_data": None,
        "raw_data": {"basename": path, "bytes": size, "hashes": {}},
    }, lambda shards: {"shards": shards, "version": 2})  # fmt: skip


def lists(files: Files, suffix: str, line: Callable[[str, int], Any], whole: Callable[[Any], Any]) -> Files:
    found: Files = {}
    for name, split in (("index.json", "train"), ("train/index.json", "train"), ("val/index.json", "val")):
        path = "../" if "/" in name else ""
        chosen = sorted(file for file in files if file.endswith(suffix) and f"_{split}_" in file)
        listed = whole([line(path + file, len(files[file])) for file in chosen])
        if chosen:
            found[name] = json.dumps(listed, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    return found


WRITERS: dict[str, Callable[[str, Any, str], Files]] = {
    "npy": as_npy, "raw": as_raw, "megatron": as_megatron, "datatrove": as_datatrove, "nemo": as_nemo,
    "litdata": as_litdata, "parquet": as_parquet,
}  # fmt: skip
# With files about all token shards.
LISTS = ("litdata", "mds")


def files_of(out: Path) -> Files:
    """Return all that a run has made for others, but for the run manifest."""
    paths = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    private = (runner.PRIVATE, "manifest.json")
    return {name: path.read_bytes() for name, path in paths.items() if not name.startswith(private)}


def assert_proven(out: Path) -> None:
    assert [f"{problem.file}: {problem.what}" for problem in verify(out).problems] == []


@pytest.mark.parametrize("tokenizer", ["gpt2", "cl100k_base"])
@pytest.mark.parametrize("kind", OTHERS)
def test_a_run_is_what_the_trainer_s_own_writer_would_make(
    kind: str,
    tokenizer: str,
    sources: Path,
    tmp_path: Path,
) -> None:
    assert runner.convert(sources, tmp_path / "out", workers=2, **recipe_of(kind, tokenizer)).complete
    naive_run(sources, tmp_path / "naive", kind, tokenizer)

    assert files_of(tmp_path / "out") == expected(tmp_path / "naive", kind, tokenizer)
    assert_proven(tmp_path / "out")


@pytest.mark.parametrize("layout", ["independent", "contiguous"])
@pytest.mark.parametrize("kind", ["npy", "megatron", "datatrove", "mds", "parquet"])
def test_either_layout_and_either_side_can_be_told(
    kind: str,
    layout: str,
    sources: Path,
    tmp_path: Path,
) -> None:
    more = {"layout": layout, "eot": "after", "val_tokens": 0}
    assert runner.convert(sources, tmp_path / "out", **recipe_of(kind, "bytes", **more)).complete
    naive_run(sources, tmp_path / "naive", kind, "bytes", **more)

    assert files_of(tmp_path / "out") == expected(tmp_path / "naive", kind, "bytes")
    assert_proven(tmp_path / "out")


@pytest.mark.parametrize("last", ["merge", "keep", "drop"])
@pytest.mark.parametrize("kind", ["npy", "megatron", "datatrove", "nemo", "litdata", "mds", "parquet"])
def test_a_short_last_shard_leaves_nothing_beside_it_behind(kind: str, last: str, tmp_path: Path) -> None:
    """Two tails of 200 tokens, which a shard of the second source takes in with --last merge."""
    for number in range(2):
        corpus.write(tmp_path / f"sources/{number}.parquet", ["x" * 99] * 11 + ["y" * 69] + ["z" * 29])
    more = {"last": last, "val_tokens": 0}
    assert runner.convert(tmp_path / "sources", tmp_path / "out", **recipe_of(kind, "bytes", **more)).complete
    shutil.copytree(tmp_path / "out", tmp_path / "again")
    naive_run(tmp_path / "sources", tmp_path / "naive", kind, "bytes", **more)
    wanted = expected(tmp_path / "naive", kind, "bytes", last)
    stems = {file.split(".")[0] for file in wanted if "/" not in file and file != "index.json"}

    assert len(stems) == {"merge": 2, "keep": 3, "drop": 2}[last]
    assert files_of(tmp_path / "out") == wanted
    assert_proven(tmp_path / "out")
    # Mended, too, when the shard that took the other in is lost.
    (tmp_path / "again" / f"{max(stems)}{SUFFIXES[kind]}").unlink()
    runner.cut_off(tmp_path / "again")
    assert runner.convert(
        tmp_path / "sources", tmp_path / "again", **recipe_of(kind, "bytes", **more)
    ).complete
    assert runner.tree(tmp_path / "again") == runner.tree(tmp_path / "out")


def stream(out: Path, kind: str) -> list[int]:
    """Return all tokens of a run in the order of the names, validation first."""
    offset = {"llmc": 1024, "npy": 128, "nemo": 1024, "litdata": 1024, "mds": MDS_ROOMS["merge"]}.get(kind, 0)
    names = sorted(out.glob(f"*{SUFFIXES[kind]}"), key=lambda path: ("train" in path.name, path.name))
    if kind == "parquet":
        rows = [row for path in names for row in pq.read_table(path)["input_ids"].to_pylist()]
        return [token for row in rows for token in row]
    return [token for path in names for token in np.fromfile(path, "<u2", offset=offset).tolist()]


def documents_of(tokens: list[int], eot: int, side: str) -> list[list[int]]:
    """Cut a stream into documents, without their separators."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == eot:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts[1:] if side == "before" else parts[:-1]


def test_the_documents_are_those_of_llm_c_s_shards(sources: Path, tmp_path: Path) -> None:
    found = {}
    for kind in ("llmc", "raw", "nemo", "litdata"):
        layout = {} if kind == "raw" else {"layout": "contiguous"}
        runner.convert(sources, tmp_path / kind, **recipe_of(kind, "gpt2", **layout))
        found[kind] = documents_of(stream(tmp_path / kind, kind), EOTS["gpt2"], SIDES[kind])

    assert found == dict.fromkeys(found, found["llmc"])
    assert len(found["llmc"]) > 100


@pytest.mark.parametrize("kind", ["nemo", "litdata", "mds", "parquet"])
def test_any_number_of_workers_makes_equal_folders(
    kind: str,
    sources: Path,
    tmp_path: Path,
    finished: Callable[[str], Path],
) -> None:
    assert runner.convert(sources, tmp_path / "out", workers=2, **recipe_of(kind, "bytes")).complete
    assert runner.tree(tmp_path / "out") == runner.tree(finished(kind))


@pytest.mark.parametrize("kind", ["raw", "megatron", "mds", "parquet"])
def test_a_killed_run_ends_in_the_same_bytes(kind: str, tmp_path: Path) -> None:
    sources = corpus.equal_sources(tmp_path / "sources", files=6, rows=60)
    recipe = recipe_of(kind, "bytes")
    assert runner.convert(sources, tmp_path / "whole", **recipe).complete
    out = tmp_path / "killed"
    for steps in (2, 6):  # The last is when the join begins.
        with runner.running(sources, out, workers=2, **recipe) as process:
            runner.wait_until(lambda least=steps: runner.steps(out) >= least, process)  # type: ignore[misc]
    runner.assert_tidy_end(runner.run(sources, out, workers=2, **recipe), 0)

    assert runner.tree(out) == runner.tree(tmp_path / "whole")
    assert runner.litter(out) == []
    assert_proven(out)


def beside(kind: str) -> list[str]:
    """Return one file of each kind: the files of a shard of a source, and of a joined one."""
    if kind == "raw":
        return ["train.bin", "val.bin", "index/train.docs", "index/val.docs"]
    ends = {
        "megatron": [".bin", ".idx"], "datatrove": [".ds", ".ds.index", ".ds.metadata"],
        "nemo": [".bin", ".bos.idx"],
    }.get(kind, [SUFFIXES[kind]])  # fmt: skip
    stems = ["edu_fineweb_val_00000_000", "edu_fineweb_train_00008_000"]
    lists = ["index.json", "train/index.json", "val/index.json"] if kind in LISTS else []
    files = [f"{stem}{end}" for stem in stems for end in ends]
    return [*files, *(f"index/{stem}.docs" for stem in stems), *lists]


KINDS_OF_FILE = [(kind, file) for kind in OTHERS for file in beside(kind)]
# Those of which there may be others.
NUMBERED = [(kind, file) for kind, file in KINDS_OF_FILE if file.startswith("edu_fineweb_")]


@pytest.fixture(scope="module")
def finished(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a finished run of a format, made once."""
    runs: dict[str, Path] = {}

    def run(kind: str) -> Path:
        if kind not in runs:
            out = tmp_path_factory.mktemp(kind) / "out"
            assert runner.convert(sources, out, **recipe_of(kind, "bytes")).complete
            runs[kind] = out
        return runs[kind]

    return run


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, 1)


@pytest.mark.parametrize("harm", [flip, cut, os.unlink])
@pytest.mark.parametrize(("kind", "file"), KINDS_OF_FILE)
def test_verify_names_each_file_that_is_harmed(
    kind: str, file: str, harm: Callable[[Path], None], tmp_path: Path, finished: Callable[[str], Path]
) -> None:
    out = Path(shutil.copytree(finished(kind), tmp_path / "out"))
    harm(out / file)

    assert file in {problem.file for problem in verify(out).problems}


@pytest.mark.parametrize("harms", [(flip, flip), (cut, os.unlink)])
@pytest.mark.parametrize("kind", OTHERS)
def test_the_next_run_mends_what_is_harmed(
    kind: str, harms: Harms, sources: Path, tmp_path: Path, finished: Callable[[str], Path]
) -> None:
    """A file of a source's shard, one of a joined shard, and a list; those beside a shard where there are.

    What is cut in one format is missing in the next.
    """
    out = Path(shutil.copytree(finished(kind), tmp_path / "out"))
    some = {"raw": (0, 2), "megatron": (1, 3), "datatrove": (1, 5), "nemo": (1, 3)}
    for number, file in enumerate(some.get(kind, (0, 1, -1) if kind in LISTS else (0, 1))):
        harms[(number + OTHERS.index(kind)) % 2](out / beside(kind)[file])
    if flip in harms:  # Only what a session that was cut off has made is hashed.
        runner.cut_off(out)

    assert runner.convert(sources, out, **recipe_of(kind, "bytes")).complete
    assert runner.tree(out) == runner.tree(finished(kind))
    assert_proven(out)


@pytest.mark.parametrize(("kind", "file"), NUMBERED)
def test_a_file_beside_a_shard_that_is_not_in_the_manifest_is_told(
    kind: str,
    file: str,
    tmp_path: Path,
    finished: Callable[[str], Path],
) -> None:
    out = Path(shutil.copytree(finished(kind), tmp_path / "out"))
    extra = file.replace("_00000_", "_00077_").replace("_00008_", "_00077_")
    (out / extra).write_bytes(b"x")

    found = verify(out).problems
    assert [(problem.file, problem.what) for problem in found] == [
        (extra, "is not part of this run, but a trainer would read it")
    ]


@pytest.mark.parametrize("kind", ["megatron", "datatrove", "nemo"])
def test_a_sidecar_that_fits_its_hash_but_not_its_shard_is_told(
    kind: str,
    tmp_path: Path,
    finished: Callable[[str], Path],
) -> None:
    """The one who made it was wrong, and so was every record of it."""
    out = Path(shutil.copytree(finished(kind), tmp_path / "out"))
    file = out / beside(kind)[1]
    flip(file)
    old = json.loads((out / "manifest.json").read_text())
    line = next(side for shard in old["shards"] for side in shard["sidecars"] if side["name"] == file.name)
    text = (out / "manifest.json").read_text()
    (out / "manifest.json").write_text(text.replace(line["sha256"], runner._sha256(file)))
    shutil.rmtree(out / runner.PRIVATE)

    (problem,) = verify(out).problems
    assert problem.file == file.name
    assert "does not match the document index" in problem.what


@pytest.mark.parametrize("change", ["none", "other", "outside"])
def test_a_record_cannot_name_other_files_beside_a_shard(
    change: str, tmp_path: Path, finished: Callable[[str], Path]
) -> None:
    out = Path(shutil.copytree(finished("megatron"), tmp_path / "out"))
    manifest = json.loads((out / "manifest.json").read_text())
    names = {"other": "edu_fineweb_train_00000_001.idx", "outside": "../../outside.idx"}
    (tmp_path.parent / "outside.idx").write_bytes(b"not ours")
    for shard in manifest["shards"]:
        if change == "none":
            del shard["sidecars"]
        else:
            shard["sidecars"][0]["name"] = names[change]
    (out / "manifest.json").write_text(json.dumps(manifest))

    told = [problem.what for problem in verify(out).problems]
    assert sum("beside it in its line instead of" in what for what in told) >= len(manifest["shards"]) - 1
    assert not any("not ours" in what for what in told)


def test_what_build_nanogpt_loads_are_the_shards_and_nothing_else(finished: Callable[[str], Path]) -> None:
    out = finished("npy")
    for split, least in (("train", 2), ("val", 1)):
        # build-nanogpt, train_gpt2.py: the folder is listed, and each name with the split in it is loaded.
        names = sorted(path.name for path in out.iterdir() if split in path.name)
        assert len(names) >= least
        for name in names:
            tokens = np.load(out / name)
            assert tokens.dtype == np.uint16
            assert tokens.ndim == 1
            assert SHARD_TOKENS <= len(tokens) < 2 * SHARD_TOKENS  # The last may have taken in another.


def test_nano_gpt_maps_train_bin_and_val_bin(finished: Callable[[str], Path], sources: Path) -> None:
    out = finished("raw")
    # nanoGPT, train.py: get_batch maps the whole file as uint16.
    train, val = (np.memmap(out / f"{split}.bin", dtype=np.uint16, mode="r") for split in ("train", "val"))
    streams = [
        naive.read(path, naive.encoder("bytes"), 256, "after") for path in sorted(sources.glob("*.parquet"))
    ]

    assert [*val.tolist(), *train.tolist()] == naive.concatenate(streams).tokens
    assert len(val) == SHARD_TOKENS
    assert sorted(path.name for path in out.glob("*.bin")) == ["train.bin", "val.bin"]


def read_megatron(prefix: Path) -> list[list[int]]:
    """Return the documents as megatron/core/datasets/indexed_dataset.py reads them."""
    index = prefix.with_suffix(".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, documents = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    lengths = np.frombuffer(index, np.int32, sequences, 34)
    pointers = np.frombuffer(index, np.int64, sequences, 34 + lengths.nbytes)
    indices = np.frombuffer(index, np.int64, documents, 34 + lengths.nbytes + pointers.nbytes)
    assert len(index) == 34 + lengths.nbytes + pointers.nbytes + indices.nbytes  # no modes
    assert lengths.shape[0] == indices[-1]
    content, kind = prefix.with_suffix(".bin").read_bytes(), {8: np.uint16, 4: np.int32}[code]
    return [
        np.frombuffer(content, kind, length, pointer).tolist()
        for length, pointer in zip(lengths.tolist(), pointers.tolist(), strict=True)
    ]


@pytest.fixture(scope="module", params=["gpt2", "cl100k_base"])
def for_megatron(
    request: pytest.FixtureRequest, sources: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("megatron") / "out"
    assert runner.convert(sources, out, **recipe_of("megatron", request.param, layout="contiguous")).complete
    return out, request.param


def test_megatron_reads_the_documents_of_the_sources(for_megatron: tuple[Path, str], sources: Path) -> None:
    out, tokenizer = for_megatron
    prefixes = sorted(out.glob("*.idx"), key=lambda path: path.stem.split("_")[-1])
    parts = [read_megatron(path.with_suffix("")) for path in prefixes]
    encode, eot = naive.encoder(tokenizer), EOTS[tokenizer]
    paths = sorted(sources.glob("*.parquet"))
    tokens = [token for path in paths for token in naive.read(path, encode, eot, "after").tokens]

    assert [token for part in parts for document in part for token in document] == tokens
    # Every part is a document or its rest, and ends with its separator unless the shard ends first.
    assert all(document[-1] == eot for part in parts for document in part[:-1])
    assert all(eot not in document[:-1] for part in parts for document in part)


def test_nanotron_finds_the_tokenizer_and_the_size_of_a_token(finished: Callable[[str], Path]) -> None:
    # nanotron, config.py: NanosetDatasetsArgs reads the first line of each *.metadata in the folder.
    found = [path.read_text().splitlines()[0].split("|") for path in finished("datatrove").glob("*.metadata")]
    assert len(found) > 3
    assert all(line == ["bytes", "2"] for line in found)


def test_show_reads_every_format(finished: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    from fwconvert.cli import main  # noqa: PLC0415

    for kind in OTHERS:
        name = "train" if kind == "raw" else "train_00000_001"
        assert main(["show", str(finished(kind)), name, "--documents", "2"]) == 0
        shown = capsys.readouterr().out
        assert "--- document 2: row " in shown
        assert "document " in shown.split("tokens")[2]


def test_the_loader_serves_the_same_windows_of_every_format(finished: Callable[[str], Path]) -> None:
    """Those of llm.c's shards, or of Megatron-LM's, by the side of the separator."""

    def served(kind: str, **how: Any) -> list[Any]:
        loader = Loader(finished(kind), seq_len=16, batch=1, **how)
        return [window.tolist() for batch in loader for window in batch]

    for kind in ("npy", "nemo", "datatrove", "litdata", "mds", "parquet"):
        like = "llmc" if SIDES[kind] == "before" else "megatron"
        assert served(kind, order="sequential") == served(like, order="sequential")
        assert served(kind, split="val", order="documents") == served(like, split="val", order="documents")
        if kind != "parquet":
            assert served(kind, order="shuffled") == served(like, order="shuffled")
    with pytest.raises(UsageError, match="this many parquet token shards can only be served in sequence"):
        served("parquet", order="shuffled")


def test_status_and_plan_tell_the_format(
    finished: Callable[[str], Path], sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fwconvert.cli import main  # noqa: PLC0415

    for kind in OTHERS:
        assert main(["status", str(finished(kind))]) == 0
        assert kind in capsys.readouterr().out
    for kind in ("nemo", "litdata"):  # It measures, which takes seconds.
        words = ["--source", str(sources), "--out", str(tmp_path), "--format", kind]
        assert main(["plan", *words]) == 0
        shown = capsys.readouterr().out
        assert f"{kind}, a separator {SIDES[kind]} each document" in shown
        assert {"nemo": "NeMo Automodel", "litdata": "LitGPT, litdata"}[kind] in shown
    assert main(["status", str(finished("raw")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "raw"


def test_a_run_ends_with_what_is_typed_and_begins_with_what_nobody_reads(
    sources: Path, tmp_path: Path
) -> None:
    out = tmp_path / "my run"
    for said in ("Trainers that read it as it is:", "already"):
        ended = runner.run(sources, out, **recipe_of("litdata", "bytes"))
        runner.assert_tidy_end(ended, 0)
        assert said in ended.stdout
        if said != "already":
            assert f"  LitGPT   --data LitData --data.data_path '{out}' " in ended.stdout
            assert f"  litdata  StreamingDataset('{out}/train', " in ended.stdout

    ended = runner.run(sources, tmp_path / "wide", **recipe_of("npy", "cl100k_base"))
    runner.assert_tidy_end(ended, 0)
    told = ended.stderr.partition(" convert ")[0]
    assert "no trainer that is known reads what this makes" in told
    assert "build-nanogpt  it reads uint16 alone" in told
    assert "Trainers that read" not in ended.stdout


def test_a_folder_of_one_format_is_not_taken_for_another(
    finished: Callable[[str], Path], sources: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(finished("megatron"), tmp_path / "out"))
    ended = runner.run(sources, out, **recipe_of("datatrove", "bytes"))
    runner.assert_tidy_end(ended, 2)
    assert "format in folder" in ended.stderr

    shutil.rmtree(out / runner.PRIVATE)
    for path in out.glob("*.bin"):
        path.unlink()
    ended = runner.run(sources, out, **recipe_of("megatron", "bytes"))
    runner.assert_tidy_end(ended, 2)
    assert ".idx" in ended.stderr


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--format", "raw", "--layout", "independent"], "leave --layout out"),
        (["--format", "raw", "--shard-tokens", "1M"], "leave --shard-tokens out"),
        (["--format", "raw", "--name", "mine"], "leave --name out"),
        (["--format", "npy", "--name", "interval"], "choose another --name"),
        (["--format", "megatron", "--shard-tokens", "3G"], "choose a number"),
        (["--format", "datatrove", "--shard-tokens", "5G"], "choose a number"),
    ],
)
def test_wrong_combinations_are_refused_before_anything_is_written(
    words: list[str], advice: str, sources: Path, tmp_path: Path
) -> None:
    ended = runner.run(sources, tmp_path / "out", *words)

    runner.assert_tidy_end(ended, 2)
    assert advice in ended.stderr
    assert not (tmp_path / "out").exists()


def llmc_refuses(path: Path, processes: int, batch: int, length: int) -> str:
    """Return why llm.c would not begin to train with a shard, or "": the checks of llmc/dataloader.h."""
    head = np.fromfile(path, "<i4", 256)
    if head[:2].tolist() != [20240520, 1]:
        return "magic or version"
    if head[2] <= 0:
        return "no tokens"
    if path.stat().st_size != 1024 + 2 * int(head[2]):
        return "size"
    return "" if head[2] >= processes * batch * length + 1 else "fewer tokens than a step takes"


# Processes, batch and length: small, and as much as a whole shard allows, alone and on several.
STEPS = [(1, 1, 1), (1, 4, 64), (1, 27, 37), (3, 9, 37), (9, 3, 37), (1, 1, SHARD_TOKENS - 1)]


@pytest.mark.parametrize("layout", ["independent", "contiguous"])
def test_llm_c_takes_every_shard_for_steps_up_to_a_shard(layout: str, sources: Path, tmp_path: Path) -> None:
    recipe = recipe_of("llmc", "gpt2", layout=layout)
    assert runner.convert(sources, tmp_path / "out", **recipe).complete
    shards = sorted((tmp_path / "out").glob("*.bin"))
    found = {(path.name, step): llmc_refuses(path, *step) for path in shards for step in STEPS}

    assert len(shards) > 3
    assert {key: why for key, why in found.items() if why} == {}
    # A step that takes a token more than there are is one too many.
    assert {llmc_refuses(path, 1, 1, path.stat().st_size // 2 - 512) for path in shards} == {
        "fewer tokens than a step takes"
    }


def test_llm_c_may_refuse_a_short_shard_that_was_kept(sources: Path, tmp_path: Path) -> None:
    assert runner.convert(sources, tmp_path, **recipe_of("llmc", "gpt2", last="keep")).complete
    refused = [path for path in tmp_path.glob("*.bin") if llmc_refuses(path, 1, 27, 37)]

    assert refused == [max(tmp_path.glob("*_train_*.bin"))]


def test_llm_c_and_modded_nanogpt_take_the_shards(sources: Path, tmp_path: Path) -> None:
    recipe = recipe_of("llmc", "gpt2", name="fineweb")
    assert runner.convert(sources, tmp_path, **recipe).complete
    for split, least in (("train", 2), ("val", 1)):
        shards = sorted(tmp_path.glob(f"fineweb_{split}_*.bin"))
        assert len(shards) >= least  # modded-nanogpt needs two for training
        for path in shards:
            assert [llmc_refuses(path, *step) for step in STEPS] == [""] * len(STEPS)
            # modded-nanogpt, train_gpt.py: a document starts with BOS_ID; where they start is scanned for.
            tokens = np.fromfile(path, "<u2", offset=1024)
            starts = np.fromfile(tmp_path / "index" / f"{path.stem}.docs", "<u4").reshape(-1, 2)[:, 0]
            assert np.flatnonzero(tokens == 50256).tolist() == starts.tolist()
    first = min(tmp_path.glob("fineweb_train_*.bin"))
    assert 50256 in np.fromfile(first, "<u2", 6_000_000, offset=1024)
