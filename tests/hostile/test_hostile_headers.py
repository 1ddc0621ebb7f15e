"""Headers of numpy's and llm.c's shards, and document indexes, that are made to break a loader."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bounded
import corpus
import numpy as np
import pytest
from numpy.typing import NDArray

from fwconvert.errors import FwconvertError, ShardError
from fwconvert.inspection import show, trace
from fwconvert.loader import Loader
from fwconvert.loader.files import Claims, look

GOOD = "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }"
BAD = {
    "brackets": "(" * 3000,
    "signs": "-" * 3900 + "1",
    "dictionaries": "{0:" * 1200,
    "signs in the shape": GOOD.replace("5", "-" * 3000 + "5"),
    "a negative shape": GOOD.replace("5", "-5"),
    "a shape beyond all measure": GOOD.replace("5", "9" * 19),
    "a shape of more digits than a number has": GOOD.replace("5", "9" * 3800),
    "no shape": GOOD.replace("(5,)", "None"),
    "two dimensions": GOOD.replace("5,", "5, 1"),
    "a structure": GOOD.replace("'<u2'", "[('a', '<u2')]"),
    "objects": GOOD.replace("<u2", "|O"),
    "big endian": GOOD.replace("<u2", ">u2"),
    "keys of two kinds": GOOD.replace("'shape'", "1"),
    "an entry too many": GOOD.replace("}", "'x': True, }"),
    "an entry twice": GOOD.replace("}", "'shape': (4,), }").replace("'descr': '<u2', ", ""),
    "half a text": GOOD[:-9],
    "a call": "__import__('os').getcwd()",
    "bytes that are no text": "\xff\xfe\x00" * 100,
}


def npy(folder: Path, header: str, version: int = 1, said: int | None = None) -> Path:
    raw = header.encode("latin-1")
    length = (len(raw) if said is None else said).to_bytes(2 if version == 1 else 4, "little")
    path = folder / "a_train_0.npy"
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + length + raw + bytes(10))
    return path


@pytest.mark.parametrize("kind", BAD)
def test_a_header_that_numpy_would_stumble_over_is_a_shard_error(kind: str, tmp_path: Path) -> None:
    for version in (1, 2, 3):
        with pytest.raises(ShardError, match="a_train_0"):
            look(npy(tmp_path, BAD[kind], version), Claims())
    with pytest.raises(ShardError, match="a_train_0"):
        Loader(tmp_path, batch=1, seq_len=1)


@pytest.mark.parametrize(("version", "said"), [(1, 65_535), (2, 2**32 - 1), (3, 5000), (4, None), (0, 0)])
def test_a_header_of_a_length_or_a_version_that_cannot_be_is_refused(
    version: int, said: int | None, tmp_path: Path
) -> None:
    with pytest.raises(ShardError, match="a_train_0"):
        look(npy(tmp_path, GOOD, version, said), Claims())


@pytest.mark.parametrize("header", [GOOD, GOOD.replace(", }", "}"), f"  {GOOD}   \n", GOOD.replace("'", '"')])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_header_as_others_write_it_is_read(header: str, version: int, tmp_path: Path) -> None:
    assert look(npy(tmp_path, header, version), Claims()).tokens == 5


@pytest.mark.parametrize("tokens", [-1, 2**31 - 1, 6])
def test_a_count_of_tokens_that_the_file_does_not_hold_is_refused(tokens: int, tmp_path: Path) -> None:
    path = tmp_path / "a_train_0.bin"
    path.write_bytes(struct.pack("<3i", 20240520, 1, tokens).ljust(1024, b"\0") + bytes(10))
    with pytest.raises(ShardError, match="a_train_0"):
        Loader(tmp_path, batch=1, seq_len=1)


LIES: dict[str, Callable[[NDArray[np.uint32]], NDArray[Any]]] = {
    "falling": lambda starts: starts[::-1],
    "all the same": lambda starts: starts * 0,
    "beyond the shard": lambda starts: starts + 2**31,
    "one of them beyond": lambda starts: np.where(np.arange(len(starts)) == 1, 2**32 - 1, starts),
    "one of them before": lambda starts: np.where(np.arange(len(starts)) == 2, 0, starts),
}


@pytest.mark.parametrize("kind", LIES)
def test_an_index_that_lies_is_told_by_everybody_who_reads_it(kind: str, tmp_path: Path) -> None:
    """Its hash fits: whoever writes the index may write the run manifest, too."""
    sources, out = corpus.equal_sources(tmp_path / "sources", files=1, rows=40), tmp_path / "out"
    flags = ("--tokenizer", "bytes", "--shard-tokens", "4000", "--workers", "1")
    assert bounded.run("--source", sources, "--out", out, *flags).code == 0
    manifest = json.loads((out / "manifest.json").read_bytes())
    line = next(line for line in manifest["shards"] if line["split"] == "train")
    path = out / "index" / f"{Path(line['name']).stem}.docs"
    entries = np.fromfile(path, [("start", "<u4"), ("row", "<u4")])
    entries["start"] = LIES[kind](entries["start"])
    entries.tofile(path)
    line["index_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest))

    with pytest.raises(ShardError):
        next(iter(Loader(out, batch=1, seq_len=8, order="documents")))
    assert bounded.run("verify", out).code == 1
    for offset in (0, 5, 1500, 3999):
        try:
            trace.trace(out, f"{line['name']}:{offset}")
        except FwconvertError:
            continue
    for number in range(1, 41, 7):
        try:
            show.numbered(out, number)
            show.documents(out, line["name"], number)
        except FwconvertError:
            continue
