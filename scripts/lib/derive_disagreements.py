"""Derive the table in tokens/disagreements.py: code points that gigatoken and tiktoken split differently.

Rank tables hide most differences: few tokens span the boundary between two
words, so a wrong boundary rarely shows. So the two are also compared with a
synthetic table, whose merges all span a boundary between characters and so
show where every word ends. The result then depends on no vocabulary, and
o200k_base can be checked without its table.

    scripts/disagreements             print the table; exit 1 if it differs from the committed one
    scripts/disagreements --write     put it into fwconvert/tokens/disagreements.py
    scripts/disagreements --fuzz N    also compare N texts without these code points, and
                                      some extreme ones; exit 1 if a difference is found

The real tables are used as well; that of o200k_base if tiktoken has it (see TIKTOKEN_CACHE_DIR).
"""

import argparse
import base64
import hashlib
import importlib.metadata
import itertools
import random
import re
import string
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gigatoken
import numpy as np
import pyarrow as pa

from fwconvert.errors import SourceError, UsageError
from fwconvert.tokens import disagreements, tiktoken_kind
from fwconvert.tokens.tokenizer import ReferenceTokenizer, parse_ranks

# gigatoken's name for the pattern of each encoding.
PATTERNS = {"gpt2": "gpt2", "cl100k_base": "gpt4", "o200k_base": "o200k"}

SCALARS = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]

# Every alternative of the patterns with the character @ beside it; and, alone, what only the end of a text
# decides.
CROWD = "a@b A@A @Ab 1@2 !@! @'s @1111 @@\t@\r\n@/\n'@s \u0301@a  @a @ a"
ALONE = ("@", " @", "@ ", "@\n")

Ranges = list[tuple[int, int]]


class Pair:
    """The two encoders with one encoding's pattern and one rank table."""

    def __init__(self, name: str, table: bytes) -> None:
        own = hashlib.sha256(table).hexdigest() == tiktoken_kind.find(name).sha256
        self.description = f"{name} with {'its' if own else 'a synthetic'} table"
        self.reference = ReferenceTokenizer(tiktoken_kind.find(name), table)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ranks.tiktoken"
            path.write_bytes(table)
            self.fast = gigatoken.Tokenizer.from_tiktoken(
                str(path), pretokenizer=PATTERNS[name], special_tokens={}
            )

    def differing(self, texts: Sequence[str]) -> list[int]:
        """Return the indices of the texts for which the two make different tokens."""
        array = self.fast.encode_batch(list(texts), parallel=False).layout
        fast, fast_bounds = np.asarray(array.content.data), np.asarray(array.offsets.data)
        encoded = self.reference.encode(pa.array(texts, pa.large_string()))
        slow, slow_bounds = encoded.tokens, encoded.offsets
        if np.array_equal(fast_bounds, slow_bounds) and np.array_equal(fast, slow):
            return []
        cuts = zip(
            itertools.pairwise(fast_bounds.tolist()), itertools.pairwise(slow_bounds.tolist()), strict=True
        )
        return [
            index for index, ((a, b), (c, d)) in enumerate(cuts) if not np.array_equal(fast[a:b], slow[c:d])
        ]


def pairs(folder: Path) -> Iterator[Pair]:
    """Yield every encoding with the synthetic table and, where available, with its own."""
    for name in PATTERNS:
        yield Pair(name, synthetic_table())
        try:
            tiktoken_kind.provide_table(tiktoken_kind.find(name), folder)
            yield Pair(name, tiktoken_kind.read_table(tiktoken_kind.find(name), folder))
        except UsageError as error:
            print(f"without the rank table of {name}: {error}", file=sys.stderr)


def synthetic_table() -> bytes:
    """Return a rank table that merges the last byte of any character with the first byte of any other.

    Two ASCII characters merge last, so that the boundaries of all other characters
    show.
    """
    borders = [
        bytes([end, begin])
        for end, begin in itertools.product(range(0xC0), [*range(0x80), *range(0xC0, 0x100)])
    ]
    borders.sort(key=bytes.isascii)
    pieces = [bytes([byte]) for byte in range(256)] + borders
    return b"".join(b"%s %d\n" % (base64.b64encode(piece), rank) for rank, piece in enumerate(pieces))


def derive(pair: Pair, context: str, together: int = 1) -> set[int]:
    """Return the code points that make a difference in the place of @ in the context.

    Texts with many code points `together` are compared first, which is faster.
    """
    texts = [context.replace("@", scalar) for scalar in SCALARS]
    groups = ["\n".join(texts[at : at + together]) for at in range(0, len(texts), together)]
    differing = [group * together for group in pair.differing(groups)]
    suspects = [index for at in differing for index in range(at, min(at + together, len(texts)))]
    found = pair.differing([texts[index] for index in suspects])
    return {ord(SCALARS[suspects[index]]) for index in found}


def as_ranges(codes: set[int]) -> Ranges:
    """Return the code points as ranges, both ends included."""
    firsts = sorted(code for code in codes if code - 1 not in codes)
    lasts = sorted(code for code in codes if code + 1 not in codes)
    return list(zip(firsts, lasts, strict=True))


def source_with(ranges: Ranges) -> str:
    """Return the source of fwconvert/tokens/disagreements.py with another table."""
    installed = importlib.metadata.version("gigatoken")
    against = importlib.metadata.version("tiktoken")
    lines = [
        f"# First and last code point of each range, for gigatoken {installed} against tiktoken {against}.",
        f'GIGATOKEN = "{installed}"',
        "RANGES: tuple[tuple[int, int], ...] = (",
        *(f"    (0x{first:04X}, 0x{last:04X})," for first, last in ranges),
        ")",
    ]
    table = re.compile(r"^# First and last code point of .*?^\)$", re.MULTILINE | re.DOTALL)
    source, count = table.subn("\n".join(lines), Path(disagreements.__file__).read_text("utf-8"))
    assert count == 1, "the table in fwconvert/tokens/disagreements.py has moved"
    return source


class Texts:
    """Random texts that are hard to split. The same seed gives the same texts."""

    def __init__(self, seed: int, pieces: Sequence[bytes]) -> None:
        self.random = random.Random(seed)
        self.pieces = [piece.decode("utf-8", "ignore") for piece in pieces]
        self.spaces = [c for c in SCALARS if c.isspace()] + list("\u180e\u200b\u200c\u200d\u2060\ufeff\0")
        self.marks = "\u0300\u0301\u0308\u0329\u0351\u0903\u093e\u094d\u20e3\ufe0f\u200d\U0001f3fd"
        self.words = [
            "the", "Don", "na\u00efve", "\u00dcBER", "x", "I", "\u01c5", "2024", "\u00bd",
            "\u65e5\u672c", "\u0661",
        ]  # fmt: skip
        self.endings = [
            "s", "t", "re", "ve", "m", "ll", "d", "S", "LL", "Ve", "\u017f", "\u212a", "sT", "l", "r",
        ]  # fmt: skip
        self.kinds: list[Callable[[], str]] = [
            self.any_characters, self.near_characters, self.prose, self.vocabulary,
            self.white_space, self.run, self.contraction, self.combination, self.controls,
        ]  # fmt: skip

    def without_disagreements(self, count: int) -> list[str]:
        """Return this many texts of all kinds, without the code points of the table."""
        unwanted = re.compile("[" + "".join(f"{chr(a)}-{chr(b)}" for a, b in disagreements.RANGES) + "]")
        return [unwanted.sub("", self.random.choice(self.kinds)()) for _ in range(count)]

    def some(self, choices: Sequence[str], most: int) -> str:
        """Join up to `most` choices."""
        return "".join(self.random.choices(choices, k=self.random.randint(1, most)))

    def any_characters(self) -> str:
        """Return characters of all of Unicode, with ASCII between them."""
        return self.some(
            [*self.random.choices(SCALARS, k=8), *self.random.choices(string.printable, k=6)], 20
        )

    def near_characters(self) -> str:
        """Return characters of one page, as a text in some script has them."""
        at = self.random.randrange(min(len(SCALARS), 0x32000) - 64)
        return self.some([*SCALARS[at : at + 64], " ", " ", "'", "\n"], 24)

    def prose(self) -> str:
        """Return words with one character changed."""
        text = " ".join(self.random.choices([*self.words, *self.pieces[300:5000]], k=8))
        at = self.random.randrange(len(text))
        return (
            text[:at]
            + self.random.choice(SCALARS[: self.random.choice((128, 0x3000, len(SCALARS)))])
            + text[at + 1 :]
        )

    def vocabulary(self) -> str:
        """Return entries of the vocabulary, joined."""
        return self.some(self.pieces, 8)

    def white_space(self) -> str:
        """Return spaces of all kinds around little else."""
        return self.some(
            [*self.random.choices(self.spaces, k=3), " ", "\n", "\r\n", "\t", "a", "1", ".", "/"], 16
        )

    def run(self) -> str:
        """Return a run of one character, most often short."""
        length = int(2 ** self.random.uniform(0, 9))
        return (
            self.random.choice(["", " ", "a", "\n"])
            + self.some(string.printable, 1) * length
            + self.some("a1 .\n'", 3)
        )

    def contraction(self) -> str:
        """Return words with endings, in both cases and with both apostrophes."""
        parts = [self.words, "''\u2019 ", self.endings, ["", " ", "s", "'", "\u0301", "A", "\n"]]
        return "".join(self.random.choice(part) for _ in range(self.random.randint(1, 3)) for part in parts)

    def combination(self) -> str:
        """Return letters and emoji with marks and joiners."""
        return self.some([*self.marks, *self.words, "\U0001f469", "\U0001f1e9", "e", "E", " ", "#", "'s"], 12)

    def controls(self) -> str:
        """Return control characters and the names of special tokens."""
        names = ["<|endoftext|>", "<|endofprompt|>", "<|fim_prefix|>", "<|", "|>", "endoftext"]
        return self.some([*names, *SCALARS[:32], *SCALARS[0x7F:0xA1], "a", " "], 8)


def extreme_texts() -> Iterator[str]:
    """Yield texts that are very long, or strange."""
    yield from ("<|endoftext|>", "\0", "\0" * 1_000_000, "a\0b\0\0 \0c", "")
    for character in "a A1.\n\t\u00e9\u3000\u65e5\u0301'":
        for end in ("", "a", "\n", " a"):
            yield character * 150_000 + end
    yield from ("a" * 1_000_000, " " * 1_200_000 + "a", "\n" * 1_200_000 + "a", "ab" * 500_000)
    yield "It's 10 MB long, isn't it?  Yes.\n\n" * 300_000


def fuzz(pair: Pair, count: int) -> int:
    """Print and count the texts that make a difference without a code point of the table."""
    source = Texts(1, list(parse_ranks(tiktoken_kind.read_table(tiktoken_kind.find("cl100k_base"), Path()))))
    batches = (source.without_disagreements(min(20_000, count - at)) for at in range(0, count, 20_000))
    differences = 0
    for texts in itertools.chain(batches, ([text] for text in extreme_texts())):
        try:
            found = [texts[index] for index in pair.differing(texts)]
        except SourceError as error:  # Nothing to compare with: tiktoken's regex engine failed.
            print(f"{pair.description}, {abbreviated(texts[0])}: {error}")
            continue
        differences += len(found)
        for text in found:
            print(f"{pair.description} differs: {abbreviated(text)}")
    return differences


def abbreviated(text: str) -> str:
    """Return a text, or both ends of a long one."""
    return (
        f"{text!a}" if len(text) < 300 else f"{text[:100]!a} ... {text[-100:]!a} ({len(text):,} characters)"
    )


def main() -> int:
    """Derive the table; compare it, print it, write it; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--fuzz", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    found: set[int] = set()
    differences = 0
    with tempfile.TemporaryDirectory() as folder:
        for pair in pairs(Path(folder)):
            codes = derive(pair, CROWD, together=64).union(*(derive(pair, context) for context in ALONE))
            print(f"{pair.description}: {len(codes):,} code points", file=sys.stderr)
            found |= codes
            differences += fuzz(pair, arguments.fuzz) if arguments.fuzz else 0
    ranges = as_ranges(found)
    print(*(f"{first:04X}-{last:04X}" for first, last in ranges), sep="\n")
    if arguments.write:
        Path(disagreements.__file__).write_text(source_with(ranges), "utf-8")
        return 1 if differences else 0
    return 1 if differences or ranges != list(disagreements.RANGES) else 0


if __name__ == "__main__":
    sys.exit(main())
