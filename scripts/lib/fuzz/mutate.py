"""Structure-aware mutation, so that inputs get past the first check.

Each mutator takes an input and a source of random numbers, and returns another
input. The caller mixes in the fuzzer's own mutations of bytes.
"""

import copy
import io
import json
import random
import re
import struct
from collections.abc import Callable
from typing import Any

import zstandard

Mutator = Callable[[bytes, random.Random], bytes]

_NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 255, 256, 65535, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**60, 2**63 - 1, 2**63, 2**64,
    -(2**31), -(2**63), 10**30, 1.5, -0.0, 1e308, 999_999,
)  # fmt: skip
_TEXTS = (
    "", ".", "..", "../x", "/etc/passwd", "a/../b", "a\\b", "C:x", "a\0b", "\x1b[31m", "\u202e", "\ud800",
    "x" * 300, "x" * 2000, "0" * 64, "f" * 64, "main", "train", "val", "raw", "npy", "llmc", "megatron",
    "datatrove", "uint32", "before", "after", "contiguous", "independent", "keep", "drop", "merge", "gpt2",
    "bytes", "zstd 1.5.7, level 3", "score > 3", "x in (" + "-" * 900 + "1,)", "file", "directory",
    ".parquet",
)  # fmt: skip


def json_text(data: bytes, rng: random.Random) -> bytes:
    """Change values in a JSON text; wrap anything else in braces now and then."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return b"{" + data + b"}" if rng.random() < 0.1 else data
    holder = [found]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change(holder, rng)
    try:
        return json.dumps(holder[0], separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return data


def _change(holder: list[Any], rng: random.Random) -> None:
    places = [*_places(holder)]
    parent, key = rng.choice(places)
    other_parent, other_key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0 and parent is not holder:
        del parent[key]
    elif kind == 1 and isinstance(parent, list) and parent is not holder:
        parent.insert(key, copy.deepcopy(parent[key]))
    elif kind == 2:
        parent[key] = copy.deepcopy(other_parent[other_key])
    elif kind == 3 and isinstance(parent[key], int):
        parent[key] += rng.choice((-1, 1, 2, 10, -10, 10**6))
    elif kind == 4 and isinstance(parent, dict):
        parent[rng.choice((*parent, "extra"))] = parent[key]
    elif kind == 5:
        parent[key] = rng.choice((None, True, False, [], {}, [parent[key]], {"a": parent[key]}))
    else:
        parent[key] = rng.choice(_TEXTS if isinstance(parent[key], str) else _NUMBERS)


def _places(node: Any) -> Any:
    keys = range(len(node)) if isinstance(node, list) else [*node]
    for key in keys:
        yield node, key
        if isinstance(node[key], list | dict):
            yield from _places(node[key])


_HEADERS = (
    "Content-Range: bytes 0-999/1000", "Content-Range: bytes 500-999/1000", "Content-Length: 1000",
    "Retry-After: 7", "Retry-After: Wed, 21 Oct 2099 07:28:00 GMT",
    "Retry-After: Mon, 1 Jan 0001 00:00:00 -2359", 'RateLimit: "api";r=0;t=55',
    'RateLimit-Policy: "fixed window";"api";q=500;w=300', 'Link: </api?cursor=a>; rel="next"',
    'Link: <//evil.example/?cursor=a>; rel="next", <x>; rel=prev', "Content-Encoding: gzip",
    "Content-Encoding: identity", "Content-Type: application/json; charset=x", "X-Error-Code: RepoNotFound",
    "X-Error-Code: GatedRepo", "X-Error-Code: EntryNotFound", "X-Error-Message: no",
    "X-Error-Code: RevisionNotFound", "X-Request-Id: 1", "Location: http://other.example/",
    "Set-Cookie: a=b; Path=/",
)  # fmt: skip
_STATES = ("200", "206", "400", "401", "403", "404", "408", "416", "425", "429", "500", "503", "511")


def header_lines(data: bytes, rng: random.Random) -> bytes:
    """Change the lines of a response: its status, its headers, a number in one of them."""
    head, _, body = data.decode("latin-1").partition("\n\n")
    lines = head.split("\n")
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, kind = rng.randrange(len(lines)), rng.randrange(6)
        if kind == 0:
            lines[0] = rng.choice(_STATES)
        elif kind == 1 and at:
            del lines[at]
        elif kind in {2, 3}:
            lines.insert(at + 1, rng.choice(_HEADERS))
        elif kind == 4 and at:
            number = rng.choice((str(rng.choice(_NUMBERS)), "9" * 5000, "\xb2", "\xd9\xa3"))
            lines[at] = re.sub(r"[0-9]+", number, lines[at], count=rng.choice((0, 1)))
        else:
            body = rng.choice(("", "x" * 1000, "[]", "x" * 1001))
    return ("\n".join(lines) + "\n\n" + body).encode("latin-1", "replace")


def numbers(data: bytes, rng: random.Random) -> bytes:
    """Change whole little-endian numbers."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        width = rng.choice((2, 4, 8))
        if len(content) < width:
            return bytes(content) + rng.randbytes(8)
        at = rng.randrange(0, len(content) - width + 1, rng.choice((1, 4)))
        old = int.from_bytes(content[at : at + width], "little")
        new = rng.choice((old + 1, old - 1, 0, 1, 2**31, 2**32 - 1, 2**63, rng.randrange(2000)))
        content[at : at + width] = (new % 256**width).to_bytes(width, "little")
    kind = rng.randrange(6)
    if kind == 0:
        at = rng.randrange(0, len(content), 4)
        del content[at : at + 8]
    elif kind == 1:
        content += content[-8:]
    return bytes(content)


_DESCRIBED = (
    "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }",
    "{'descr': '<u4', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (4,), }",
    "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (4,)}",
    "{'descr': '<u2', 'fortran_order': True, 'shape': (-1,), }",
    "{'descr': '<u2', 'fortran_order': False, 'shape': (2**63,), }",
    "{'descr': '<u2', 'fortran_order': False, 'shape': (9223372036854775808,), }",
    "{'descr': 'u2', 'fortran_order': 0, 'shape': [4]}",
    "{'descr': '" + "(2,)" * 20 + "u2', 'fortran_order': False, 'shape': (), }", "((((((", "-" * 900 + "1",
    "[" * 90 + "]" * 90, "{'descr': '<u2', 'fortran_order': False, 'shape': (4L,), }",
    "{'descr': ('<u2', (2,)), 'fortran_order': False, 'shape': (2,)}",
    "{'descr': {}, 'fortran_order': False, 'shape': (2,)}",
    "{'descr': None, 'fortran_order': False, 'shape': (2,)}", "{1: 2}", "{[]: 1}", "{**{}}",
    "{'descr': '<u2', 'fortran_order': False, 'shape': (True,), }",
    "{'descr': '<u2', 'shape': (4,), 'fortran_order': False}",
)  # fmt: skip


def shard_header(data: bytes, rng: random.Random) -> bytes:
    """Change the numbers of a header, or numpy's description of an array and the length before it."""
    if not data.startswith(b"\x93NUMPY") or len(data) < 12 or rng.random() < 0.2:
        return numbers(data, rng)
    version = rng.choice((1, 1, 1, 2, 3, rng.randrange(256)))
    length = int.from_bytes(data[8:10], "little")
    text = data[10 : 10 + length].decode("latin-1").strip()
    if rng.random() < 0.3:
        text = rng.choice(_DESCRIBED)
    for _ in range(rng.choice((0, 1, 1, 2))):
        text = _spliced(text, rng, _PYTHON)
    described = text.encode("latin-1", "replace")[:60000]
    size = struct.pack("<H", len(described)) if version == 1 else struct.pack("<I", len(described))
    return b"\x93NUMPY" + bytes([version, 0]) + size + described + data[10 + length :]


_PYTHON = (
    "'descr'", "'shape'", "'fortran_order'", "'<u2'", "'>u4'", "'O'", "(", ")", "[", "]", "{", "}", ",",
    ":", "None", "True", "-", "1", "9" * 30, "9" * 5000, "'" * 3, "b''", "1e999", "1j", "\\x00", "\n", "#",
    "f''", "*", "...", "lambda: 0",
)  # fmt: skip


def _spliced(text: str, rng: random.Random, words: tuple[str, ...]) -> str:
    """Return a text with one of its words removed, replaced, repeated or nested."""
    parts = re.findall(r"\s+|\w+|'[^']*'|.", text, re.DOTALL) or [""]
    at, kind = rng.randrange(len(parts)), rng.randrange(6)
    if kind == 0:
        del parts[at]
    elif kind == 1:
        parts[at] = rng.choice(words)
    elif kind == 2:
        parts.insert(at, rng.choice(words))
    elif kind == 3:
        parts[at] *= rng.choice((2, 2, 3, 60, 500))
    elif kind == 4:
        end = rng.randrange(at, len(parts)) + 1
        parts[at:end] = [*parts[at:end], " ", *parts[at:end]]
    else:
        end, depth = rng.randrange(at, len(parts)) + 1, rng.choice((1, 1, 2, 55, 300))
        opening, closing = rng.choice((("(", ")"), ("not ", ""), ("-", ""), ("[", "]"), ("len(", ")")))
        parts[at:end] = [opening * depth, *parts[at:end], closing * depth]
    return "".join(parts)


_WORDS = (
    "score", "int_score", "language", "text", "truth", "nothing", "missing", "True", "False", "None", "1",
    "-1", "1.5", "1e308", "1e999", "9223372036854775807", "9223372036854775808", "'en'", "''", "'\\ud800'",
    "'\\x00'", " and ", " or ", " not ", " in (1, 2)", " in ('en',)", " in (1, 1.5)", " not in (True,)",
    " is None", " is not None", " < ", " <= ", " == ", " != ", " + ", " - ", " * ", " / ", " ** ", " // ",
    "len(text)", "contains(text, 'o')", "startswith(text, '')", "endswith(language, 'n')",
    "column('score')", "column('a b')", "(", ")", ",", "[", "]", "x if y else z", "lambda: 0", "f'{1}'",
    "\n", "#", "\u2028", "\u00b2", "\u212b", "0x10", "1_000", "1j", "b'x'", "...", ":=", "*", "a.b", "a[0]",
    "a(b=1)",
)  # fmt: skip


def expression(data: bytes, rng: random.Random) -> bytes:
    """Change the words of an expression."""
    text = data.decode(errors="surrogateescape")
    for _ in range(rng.choice((1, 1, 2, 3))):
        text = _spliced(text, rng, _WORDS)
    return text[:4100].encode(errors="surrogateescape")


def zstd_frame(data: bytes, rng: random.Random) -> bytes:
    """Change the content of a frame and compress it again, or change the header of the frame."""
    kind = rng.randrange(6)
    if kind < 3:
        try:
            content = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read(2**16)
        except zstandard.ZstdError:
            content = bytes(1024)
        content = shard_header(content or b"\0", rng) * rng.choice((1, 1, 1, 2, 1000))
        return _compressed(content, rng)
    if kind == 3:  # A decompression bomb.
        return _compressed(bytes(rng.choice((2**12, 2**16, 2**20))), rng)
    if kind == 4 and len(data) > 14:  # The frame header.
        frame, at = bytearray(data), rng.randrange(4, 14)
        frame[at] = rng.choice((0, 1, 127, 128, 255, frame[at] ^ 1 << rng.randrange(8)))
        return bytes(frame)
    return data + rng.choice((b"", b"\0", data, b"\x50\x2a\x4d\x18\4\0\0\0abcd", b"\x28\xb5\x2f\xfd"))


def _compressed(content: bytes, rng: random.Random) -> bytes:
    packer = zstandard.ZstdCompressor(
        rng.choice((1, 3)), write_checksum=rng.random() < 0.9, write_content_size=rng.random() < 0.9
    )
    return packer.compress(content)


def parquet(data: bytes, rng: random.Random) -> bytes:
    """Change bytes of a footer, mostly, and correct its length."""
    if len(data) < 12 or rng.random() < 0.15:
        return numbers(data, rng)
    length = int.from_bytes(data[-8:-4], "little")
    if length > len(data) - 8:
        return data[:-8] + struct.pack("<I", min(length, len(data) - 8)) + b"PAR1"
    body, footer = data[: -8 - length], bytearray(data[-8 - length : -8])
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        if footer:
            _change_thrift(footer, rng)
    declared = rng.choice((len(footer),) * 8 + (0, len(footer) + 1, 2**31, 2**32 - 1))
    return body + bytes(footer) + struct.pack("<I", declared) + b"PAR1"


def _change_thrift(footer: bytearray, rng: random.Random) -> None:
    at, kind = rng.randrange(len(footer)), rng.randrange(6)
    if kind == 0:
        footer[at] ^= 1 << rng.randrange(8)
    elif kind == 1:  # Headers of fields, lists and structs.
        footer[at] = rng.choice((0, 1, 0x15, 0x16, 0x19, 0x1C, 0x2C, 0x7F, 0x80, 0xFF))
    elif kind == 2:  # A varint of maximal length.
        footer[at : at + 1] = b"\xff" * rng.choice((1, 4, 8, 9)) + b"\x01"
    elif kind == 3:
        del footer[at : at + rng.choice((1, 2, 8, 40))]
    elif kind == 4:
        footer[at:at] = footer[at : at + rng.randrange(1, 64)] * rng.choice((1, 1, 20, 200))
    else:
        part, to = footer[at : at + rng.randrange(1, 32)], rng.randrange(len(footer))
        footer[to : to + len(part)] = part
