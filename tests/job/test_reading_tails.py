"""What a join reads: tails, and a job's own shard, without having all of them in memory."""

import os
from pathlib import Path

import child
import pytest

from fwconvert.formats import LLMC

TOKENS = 100_000_000
NAME = "edu_fineweb_train_00000_001.bin"

MEASURE = """
    import sys
    from pathlib import Path
    import examples
    from fwconvert.store.local import LocalStore
    from fwconvert.job.orders import JoinOrder, RunContext
    from fwconvert.store.receipts import Absorbed, Segment
    from fwconvert.job.worker import joined_pieces

    def peak():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

    out, name, tokens = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    context = RunContext(str(out), "id", examples.rules_with(last="merge"), "session")
    order = JoinOrder(context, "joined", "train", (Segment(0, tokens, 0, tokens),), ("key",),
                      Absorbed(name, 0, tokens))
    before, joined, documents = peak(), 0, 0
    for piece in joined_pieces(LocalStore(out), order):
        joined += int((piece.tokens == 0).sum())
        documents += len(piece.starts)
    print(joined, documents, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
def test_a_join_has_neither_a_shard_nor_a_tail_in_memory(tmp_path: Path) -> None:
    private = tmp_path / ".fwconvert" / "tails"
    private.mkdir(parents=True)
    (tmp_path / "index").mkdir()
    places = {
        tmp_path / NAME: tmp_path / "index" / NAME.replace(".bin", ".docs"),
        private / "key.tail": private / "key.docs",
    }
    for shard, index in places.items():
        shard.write_bytes(LLMC.header_of(2, TOKENS))
        os.truncate(shard, 1024 + 2 * TOKENS)  # zeros that take no room
        index.write_bytes(bytes(8))

    path = {
        "PYTHONPATH": os.pathsep.join([str(Path(child.__file__).parent), child.environment()["PYTHONPATH"]])
    }
    joined, documents, growth = map(int, child.run(MEASURE, tmp_path, NAME, TOKENS, **path).split())

    assert (joined, documents) == (2 * TOKENS, 2)
    assert growth < 50_000_000
