"""A loopback hub whose files also lie in Xet storage, as those of the Hugging Face hub do.

hf_xet itself cuts the files into chunks and packs them into xorbs, in a local store. From it the server
answers as the hub's storage does: which chunks of which xorbs make up a file, or a range of it, and the bytes
of xorbs. They come from an origin with the same limits as the CDN's.
"""

import json
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from hub_faults import Answer, Body, Origin, Request
from hub_server import HubServer, Link

_SPAN = re.compile(r"bytes=(\d+)-(\d+)")
# Of a shard of hf_xet: its head; then of each file its hash, flags, the number of its entries, and these.
_SHARD_HEAD = 48
_FILE = struct.Struct("<32sII8x")
_ENTRY = struct.Struct("<32sIIII")
_LAST = b"\xff" * 32
_VERIFICATION, _METADATA = 1 << 31, 1 << 30
# Of a chunk in a xorb: version, packed size, how it is packed, size.
_CHUNK = struct.Struct("<B3sB3s")


@dataclass(frozen=True)
class Term:
    """Consecutive chunks of a xorb that are consecutive bytes of a file."""

    xorb: str
    begin: int
    end: int


class Store:
    """What a folder holds that hf_xet has used as its local store."""

    def __init__(self, folder: Path) -> None:
        self._xorbs = folder / "xet" / "xorbs" / "xorbs"
        self._files: dict[str, list[Term]] = {}
        for shard in (folder / "xet" / "xorbs" / "shards").glob("*.mdb"):
            self._files.update(_files_of(shard.read_bytes()))
        self.chunks = cache(self._chunks)

    def xorb(self, name: str) -> Path:
        """Return the file of a xorb."""
        return self._xorbs / f"default.{name}"

    def reconstruction(self, file: str, begin: int, end: int) -> dict[str, Any] | None:
        """Return how to make the bytes from `begin` to `end` of a file; None if they do not exist.

        Chunks of one xorb that follow each other are one range, as on the hub.
        """
        found: list[Term] = []
        skipped = position = 0
        for term in self._files.get(file, []):
            _, sizes = self.chunks(term.xorb)
            for chunk in range(term.begin, term.end):
                after = position + sizes[chunk]
                if begin < after and position < end:
                    if not found:
                        skipped = begin - position
                    _add(found, Term(term.xorb, chunk, chunk + 1))
                position = after
        return self._described(found, skipped) if found else None

    def _described(self, terms: list[Term], skipped: int) -> dict[str, Any]:
        xorbs: dict[str, list[Term]] = {}
        # A chunk that a file has twice is sent once.
        for xorb, chunk in sorted({(term.xorb, i) for term in terms for i in range(term.begin, term.end)}):
            _add(xorbs.setdefault(xorb, []), Term(xorb, chunk, chunk + 1))
        return {
            "offset_into_first_range": skipped,
            "terms": [
                {
                    "hash": term.xorb,
                    "unpacked_length": sum(self.chunks(term.xorb)[1][term.begin : term.end]),
                    "range": {"start": term.begin, "end": term.end},
                }
                for term in terms
            ],
            "xorbs": {
                xorb: [
                    {
                        "url": f"/xorb/{xorb}",
                        "ranges": [
                            {
                                "chunks": {"start": term.begin, "end": term.end},
                                "bytes": {"start": ends[term.begin], "end": ends[term.end] - 1},
                            }
                        ],
                    }
                    for term in ranges
                ]
                for xorb, ranges in xorbs.items()
                for ends in [self.chunks(xorb)[0]]
            },
        }

    def _chunks(self, xorb: str) -> tuple[list[int], list[int]]:
        """Return where the chunks of a xorb begin, and how large each is when it is unpacked."""
        packed, sizes = [], []
        content = memoryview(self.xorb(xorb).read_bytes())
        position = 0
        while position < len(content) and content[position] == 0:  # The footer begins with another byte.
            _, length, _, size = _CHUNK.unpack_from(content, position)
            packed.append(_CHUNK.size + int.from_bytes(length, "little"))
            sizes.append(int.from_bytes(size, "little"))
            position += packed[-1]
        return list(accumulate(packed, initial=0)), sizes


def _add(terms: list[Term], term: Term) -> None:
    """Append chunks; those that follow the last ones in the same xorb are joined with them."""
    if terms and terms[-1].xorb == term.xorb and terms[-1].end == term.begin:
        term = Term(term.xorb, terms.pop().begin, term.end)
    terms.append(term)


def _files_of(shard: bytes) -> Iterator[tuple[str, list[Term]]]:
    position = _SHARD_HEAD
    while True:
        name, flags, entries = _FILE.unpack_from(shard, position)
        if name == _LAST:
            return
        position += _FILE.size
        terms = []
        for _ in range(entries):
            xorb, _, _, begin, end = _ENTRY.unpack_from(shard, position)
            terms.append(Term(_hex(xorb), begin, end))
            position += _ENTRY.size
        position += _ENTRY.size * (bool(flags & _VERIFICATION) * entries + bool(flags & _METADATA))
        yield _hex(name), terms


def _hex(name: bytes) -> str:
    """Return a hash as Xet writes it: as four numbers."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", name))


class XetHub(HubServer):
    """A hub that names the Xet hashes of its files, and a storage that has them. `hashes` is by path."""

    def __init__(self, folder: Path, store: Path, hashes: dict[str, str], rate: int, link: Link) -> None:
        self._store, self._hashes = Store(store), hashes
        super().__init__(folder, rate=rate, link=link)
        self.storage = Origin(
            "cdn", self._storage_answer, faults=self._faults, log=self._exchanges, rate=rate, link=link
        )

    def stop(self) -> None:
        """End all servers."""
        try:
            self.storage.stop()
        finally:
            super().stop()

    def _answer(self, request: Request) -> Answer:
        if "/xet-read-token/" not in request.path:
            return self._with_xet(request, super()._answer(request))
        headers = {
            "X-Xet-Cas-Url": self.storage.endpoint,
            "X-Xet-Access-Token": "read-only",
            "X-Xet-Token-Expiration": "4102444800",
        }
        told = {"casUrl": self.storage.endpoint, "accessToken": "read-only", "exp": 4102444800}
        return _json(told, headers)

    def _with_xet(self, request: Request, answer: Answer) -> Answer:
        path = unquote(request.raw_path.partition("/resolve/")[2]).partition("/")[2]
        if answer.status != 302 or path not in self._hashes:
            return answer
        route = f"{self.endpoint}/api/datasets/{self.repo}/xet-read-token/{self.commit}"
        headers = {"X-Xet-Hash": self._hashes[path], "Link": f'<{route}>; rel="xet-auth"'}
        return Answer(answer.status, {**answer.headers, **headers}, answer.body)

    def _storage_answer(self, request: Request) -> Answer:
        _, kind, name = request.path.rsplit("/", 2)
        found = _SPAN.fullmatch(request.range or "")
        begin, last = (int(found[1]), int(found[2])) if found else (0, 2**62)
        if kind == "xorb":
            path = self._store.xorb(name)
            last = min(last, path.stat().st_size - 1)
            headers = {"Content-Range": f"bytes {begin}-{last}/{path.stat().st_size}"}
            return Answer(206, headers, Body(path, last + 1 - begin, begin))
        if kind != "reconstructions" or not request.path.startswith("/v2/"):
            return Answer(404)
        made = self._store.reconstruction(name, begin, last + 1)
        if made is None:
            return Answer(416)
        for fetch in (fetch for fetches in made["xorbs"].values() for fetch in fetches):
            fetch["url"] = f"{self.storage.endpoint}{fetch['url']}"
        return _json(made)


def _json(value: object, headers: dict[str, str] | None = None) -> Answer:
    text = json.dumps(value).encode()
    return Answer(200, {"Content-Type": "application/json", **(headers or {})}, Body(text, len(text)))


def _serve(repository: str, store: str, connection: str, link: str, latency: str) -> None:
    hashes = json.loads(Path(store, "hashes.json").read_text("utf-8"))
    shared = Link(int(link) or None, float(latency))
    with XetHub(Path(repository), Path(store), hashes, int(connection), shared) as server:
        print(server.endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
