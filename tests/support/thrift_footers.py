"""Footers of parquet files, written byte by byte, as thrift's compact protocol has them."""

from collections.abc import Sequence
from pathlib import Path

# A column chunk without anything, in 3 bytes: pyarrow takes 700 for it.
EMPTY_CHUNK = b"\x26\x00\x00"


def number(value: int) -> bytes:
    """Return a count as thrift writes it."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def integer(value: int) -> bytes:
    """Return a positive number with a sign."""
    return number(value << 1)


def structs(parts: bytes, count: int) -> bytes:
    """Return a list of structs, given the bytes of all of them."""
    head = bytes([count << 4 | 12]) if count < 15 else b"\xfc" + number(count)
    return head + parts


def leaf(name: bytes) -> bytes:
    """Return a column of bytes in a schema."""
    return b"\x15" + integer(6) + b"\x25" + integer(1) + b"\x18" + number(len(name)) + name + b"\x00"


def root(children: int) -> bytes:
    """Return the root of a schema."""
    return b"\x48\x01s\x15" + integer(children) + b"\x00"


def row_group(chunks: int) -> bytes:
    """Return a row group of so many empty column chunks."""
    return b"\x19" + structs(EMPTY_CHUNK * chunks, chunks) + b"\x16\x00\x16\x00\x00"


def metadata(columns: Sequence[bytes], groups: Sequence[bytes] = ()) -> bytes:
    """Return the whole footer."""
    schema = structs(root(len(columns)) + b"".join(map(leaf, columns)), len(columns) + 1)
    listed = structs(b"".join(groups), len(groups))
    return b"\x15" + integer(1) + b"\x19" + schema + b"\x16\x00\x19" + listed + b"\x00"


def write(path: Path, footer: bytes, said: int | None = None, magic: bytes = b"PAR1") -> Path:
    """Write a file that is nothing but a footer, which may say another length than it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    length = len(footer) if said is None else said
    path.write_bytes(b"PAR1" + footer + length.to_bytes(4, "little") + magic)
    return path
