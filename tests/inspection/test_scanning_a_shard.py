"""One pass over the tokens of a shard: what it tells at positions that need more than 32 bits."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from examples import rules_with

from fwconvert.inspection import verify_shard
from fwconvert.inspection.verify_shard import Scan
from fwconvert.tokens.registry import find

FAR = 2**33
TOKENS = np.array([1, 256, 2, 2, 256, 300, 256], "<u2")  # 300 is no id of `bytes`, and 256 its EOT


@pytest.mark.parametrize("step", [1, 2, 100])
def test_positions_beyond_32_bits_are_told_exactly(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_shard, "STEP", step)
    (tmp_path / "train.bin").write_bytes(TOKENS.tobytes())
    # EOTs stand after documents, at 1, 4 and 6; so documents start at 2 and 5, but here at 2 and 3.
    starts = np.array([FAR, FAR + 2, FAR + 3], "<u8")
    rules = rules_with(format="raw", layout="contiguous", shard_tokens=0, name="", eot="after")
    with (tmp_path / "train.bin").open("rb") as file:
        one = Scan(file, rules, find("bytes"), starts)
        assert one.read_header() == b""
        assert one.read(FAR, FAR + len(TOKENS)) == ({"EOT": 3}, True)

    assert (one.unknown.count, one.unknown.first) == (1, FAR + 5)
    (mark,) = one.marks
    assert (mark.missing.count, mark.missing.first) == (1, FAR + 5)
    assert (mark.unexpected.count, mark.unexpected.first) == (1, FAR + 3)
    assert one.digest.hexdigest() == hashlib.sha256(TOKENS.tobytes()).hexdigest()
