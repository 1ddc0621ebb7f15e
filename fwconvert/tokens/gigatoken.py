"""The fast encoder: gigatoken, straight from Arrow's buffers, ten times as fast as tiktoken.

tiktoken stays the definition of correct. Documents with a character on which
the two are known to differ (see disagreements) are encoded by the reference; the
worker audits a sample of the rest.

gigatoken 0.10 remembers every word that it meets and never forgets one. So it
is made anew when the process has grown by more than a limit.
"""

import importlib.resources
import os
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from io import BufferedWriter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fwconvert import files
from fwconvert.machine import resident_bytes
from fwconvert.store import atomic
from fwconvert.tokens import disagreements, flat
from fwconvert.tokens.tiktoken_kind import PRETOKENIZERS, Vocabulary
from fwconvert.tokens.tokenizer import Encoded, ReferenceTokenizer, Tokenizer, Tokens, text_bytes

# How much the process may grow by remembered words, and how often to look.
MOST_REMEMBERED_BYTES = 200 * 2**20
_LOOK_EVERY_BYTES = 16 * 2**20
# Where the size of the process is not known: the worst text grows it fivefold.
_MOST_TEXT_READ = 64 * 2**20


class FastTokenizer:
    """gigatoken with the reference behind it; see tokenizer.Tokenizer."""

    def __init__(
        self,
        reference: Tokenizer,
        make: Callable[[], Any],
        threads: int = 1,
        *,
        doubtful: Collection[bytes] = (),
    ) -> None:
        """`make` returns a new engine of gigatoken, which has the ids of the reference.

        What has one of the `doubtful` strings is encoded by the reference.
        """
        self.spec = reference.spec
        self.reference = reference
        self._make = make
        self._threads = threads
        self._doubtful = tuple(doubtful)
        # How often gigatoken was made; what it has read since we looked at its size, and in all.
        self.made = 0
        self._unlooked = self._read = 0
        self._renew()

    def encode(self, texts: pa.Array) -> Encoded:
        """Return the tokens of the texts, equal to the reference's."""
        content, bounds = text_bytes(texts)
        encoded = self._encode(content, bounds)
        self._forget_if_large(len(content))
        where = disagreements.documents(content, bounds)
        if self._doubtful:
            where = np.union1d(where, _having(content, bounds, self._doubtful))
        if not len(where):
            return encoded
        exact = self.reference.encode(texts.take(pa.array(where)))
        pairs = zip(exact.offsets[:-1], exact.offsets[1:], strict=True)
        pieces = [exact.tokens[begin:end] for begin, end in pairs]
        return spliced(encoded, dict(zip(where.tolist(), pieces, strict=True)))

    def decode(self, tokens: Tokens) -> bytes:
        """Return the text of the tokens."""
        return self.reference.decode(tokens)

    def _encode(self, content: NDArray[np.uint8], bounds: NDArray[np.int64]) -> Encoded:
        if len(bounds) == 1:
            return Encoded(np.empty(0, self.spec.token_type), bounds)
        tokens, offsets = flat.encode(self._engine, content, bounds, parallel=self._threads > 1)
        return Encoded(tokens.astype(self.spec.token_type), offsets)

    def _forget_if_large(self, text_seen: int) -> None:
        self._unlooked += text_seen
        if self._unlooked < _LOOK_EVERY_BYTES:
            return
        self._read += self._unlooked
        self._unlooked = 0
        now = resident_bytes()
        grown = self._read > _MOST_TEXT_READ if now is None else now - self._size > MOST_REMEMBERED_BYTES
        if grown:
            self._renew()

    def _renew(self) -> None:
        self._engine: Any = None  # Free the old one before the new one takes memory.
        # Its thread pool is the process's and is made on first use.
        os.environ["RAYON_NUM_THREADS"] = str(self._threads)
        self._engine = self._make()
        self.made += 1
        self._unlooked = self._read = 0
        self._size = resident_bytes() or 0


def _having(
    content: NDArray[np.uint8], bounds: NDArray[np.int64], strings: Collection[bytes]
) -> NDArray[np.int64]:
    """Return which documents have one of some strings, which are rare."""
    whole = content.tobytes()
    found = [string for string in strings if string in whole]
    documents = enumerate(pairwise(bounds.tolist())) if found else ()
    having = [at for at, (begin, end) in documents if any(one in whole[begin:end] for one in found)]
    return np.array(having, np.int64)


def of_table(
    vocabulary: Vocabulary, table: bytes, threads: int = 1, scratch: Path | None = None
) -> FastTokenizer:
    """Return the fast tokenizer of a rank table that is built in.

    `scratch` is a folder for short-lived files; None: the one for temporary files.
    """

    def make() -> Any:
        with file_of(table, scratch or Path(tempfile.gettempdir())) as path:
            return of_file(path, PRETOKENIZERS[vocabulary.table])

    return FastTokenizer(ReferenceTokenizer(vocabulary, table, threads), make, threads)


def spliced(encoded: Encoded, documents: Mapping[int, Tokens]) -> Encoded:
    """Return `encoded` with some documents, by index in ascending order, replaced."""
    lengths = np.diff(encoded.offsets)
    parts, done = [], 0
    for index, tokens in documents.items():
        parts += [encoded.tokens[done : encoded.offsets[index]], tokens]
        done = encoded.offsets[index + 1]
        lengths[index] = len(tokens)
    parts.append(encoded.tokens[done:])
    return Encoded(np.concatenate(parts), np.concatenate([[0], np.cumsum(lengths)]))


def agrees(vocabulary: Vocabulary) -> bool:
    """Encode a few words; tell whether the tokens are those of the reference. May raise anything, or crash.

    Needs no table but the beginning of one, which comes with the package, so
    that it can be asked before anything else is there.
    """
    texts = pa.array(["Hello world, it's 2024!\n", "", "  na\u00efve \u4e2d\u6587 <|endoftext|>"])
    place = importlib.resources.files("fwconvert") / "vocabularies" / "trial.tiktoken"
    with importlib.resources.as_file(place) as path:
        os.environ["RAYON_NUM_THREADS"] = "1"
        engine = of_file(path, PRETOKENIZERS[vocabulary.table])
    tokens, offsets = flat.encode(engine, *text_bytes(texts), parallel=False)
    wanted = ReferenceTokenizer(vocabulary, place.read_bytes()).encode(texts)
    return np.array_equal(tokens, wanted.tokens) and np.array_equal(offsets, wanted.offsets)


@contextmanager
def file_of(table: bytes, folder: Path) -> Iterator[Path]:
    """Have a rank table in a file during the block: gigatoken reads it from files only."""
    path = folder / f"ranks-{uuid.uuid4().hex}.tiktoken"
    try:
        # Buffered: on a disk that is almost full a file writes less than it is given, without an error.
        with atomic.writing(path), BufferedWriter(files.create(path)) as file:
            file.write(table)
        yield path
    finally:
        atomic.remove(path)


def of_file(path: Path, pretokenizer: str) -> Any:
    """Return an engine for the rank table in a file, by gigatoken's name for how text is cut."""
    return library().Tokenizer.from_tiktoken(path, pretokenizer=pretokenizer, special_tokens={})


def library() -> Any:
    """Return gigatoken, which may be absent: whoever chooses the encoder knows."""
    flat.stand_in_for_awkward()  # Before anything can import it.
    return import_module("gigatoken")
