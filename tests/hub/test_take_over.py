"""What a slow connection has left is taken over by another one, and never a range without bytes."""

import threading
from pathlib import Path

from fwconvert.hub.connections import Transfer
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.part import Part
from fwconvert.hub.retry import Retry
from fwconvert.recipes import SourceShard

PIECE = Part.piece_bytes
LATER = 1_000.0


def test_a_connection_that_has_brought_everything_but_not_ended_leaves_nothing(tmp_path: Path) -> None:
    file = SourceShard("a.parquet", 2 * PIECE, None)
    with Part.opened(tmp_path / "a.part", file, lambda _: None) as part:
        retry = Retry(60.0, threading.Event(), lambda _: None)
        remote = Dataset("owner/name", "main")
        transfer = Transfer(remote, file, part, retry, lambda _: None, threading.Condition(), 0)
        first, second = transfer.claim(1, 0.0), transfer.claim(1, 0.0)
        assert first is not None
        assert second is not None
        transfer.write(first, memoryview(bytes(PIECE)))
        transfer.write(second, memoryview(bytes(PIECE - 1)))
        taken = transfer.take_over(1e6, LATER)
        assert taken is not None
        assert (taken.position, taken.end) == (2 * PIECE - 1, 2 * PIECE)
        assert transfer.take_over(1e6, LATER) is None
        assert part.arrived == 2 * PIECE - 1
