"""What a slow connection has left is taken over by another one, and never a range without bytes."""

import threading
from pathlib import Path

from fwconvert.hub.connections import Connections, Transfer
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


def test_a_connection_that_is_left_alone_is_compared_with_those_that_have_ended(tmp_path: Path) -> None:
    file = SourceShard("a.parquet", PIECE, None)
    with Part.opened(tmp_path / "a.part", file, lambda _: None) as part:
        connections = Connections(4)
        transfer = Transfer(
            Dataset("owner/name", "main"),
            file,
            part,
            Retry(60.0, threading.Event(), lambda _: None),
            lambda _: None,
            connections.changed,
            0,
        )
        connections._transfers.append(transfer)
        crawling = transfer.claim(1, 0.0)
        assert crawling is not None
        connections._active.add(crawling)
        crawling.bytes, crawling.moved = 1_000, LATER
        connections._moved = LATER
        # Its own pace tells nothing about it, however fast the last moment was.
        connections._pace.rate = 1e6
        assert connections._choose(LATER) is None
        connections._rates.append(1e6)
        taken = connections._choose(LATER)
        assert taken is not None
        assert crawling.is_lost
