"""The comparison of tokenizers: it finds differences, and says which file has no fast way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import corpus
import numpy as np
import pyarrow as pa
import pytest
import small_tokenizers as small
from bench import tokenizers
from bench.measure import child

pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("gigatoken", reason="the fast encoder has no wheel for this machine")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the benchmark wants wait4")


def test_each_file_gets_a_row(tmp_path: Path) -> None:
    source = corpus.write(tmp_path / "in" / "a.parquet", [*corpus.documents(0, 30), *corpus.ODD])
    fast, slow = tmp_path / "fast.json", tmp_path / "slow.json"
    fast.write_bytes(small.byte_level())
    slow.write_bytes(small.digits())
    task = {"sources": [str(source)], "most": 1e6, "fuzz": 30}
    # In processes of their own, as the libraries are told by the environment how many threads they may have.
    rows = []
    for file in (fast, slow):
        words = child("bench.tokenizers.compare", file=file, **task)
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(words, check=False, capture_output=True, text=True, env=paths)
        assert ended.returncode == 0, ended.stderr
        rows.append(json.loads(ended.stdout.splitlines()[-1]))
    texts = [text for text in [*corpus.documents(0, 30), *corpus.ODD] if text is not None]
    assert rows[0]["cells"][3:5] == [str(len(texts)), "0"]
    assert rows[0]["cells"][5] == "30"
    assert (rows[0]["cells"][6], rows[0]["differences"]) == ("0", 0)
    assert rows[1]["cells"][0].endswith("it has the pre-tokenizer Digits, ByteLevel")
    assert rows[1]["cells"][3:] == ["-"] * 4


def test_a_difference_is_found() -> None:
    batch = pa.array(["same", "other", "longer"])
    quick = [[np.array([1]), np.array([2]), np.array([3])]]
    slow = [[np.array([1]), np.array([3]), np.array([3, 4])]]
    assert list(tokenizers._differing([batch], quick, slow)) == ["other", "longer"]
    assert list(tokenizers._differing([batch], quick, quick)) == []
