"""Random and extreme texts that are hard to split into words, for the comparison of encoders."""

import random
import re
import string
import sys
from collections.abc import Callable, Iterator, Sequence

from fwconvert.tokens import disagreements

SCALARS = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]


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

    def with_disagreements(self, count: int) -> list[str]:
        """Return this many texts of all kinds, with whatever characters they have."""
        return [self.random.choice(self.kinds)() for _ in range(count)]

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


def abbreviated(text: str) -> str:
    """Return a text, or both ends of a long one."""
    return (
        f"{text!a}" if len(text) < 300 else f"{text[:100]!a} ... {text[-100:]!a} ({len(text):,} characters)"
    )
