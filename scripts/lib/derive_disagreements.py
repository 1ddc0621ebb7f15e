"""Derive the table in tokens/disagreements.py: code points that gigatoken and a reference split differently.

The references are tiktoken and tokenizers of Hugging Face; the latter also put
text into Unicode's form NFC, where the file of a tokenizer asks for that. One
table has what any of these finds, as all of it is rare.

    scripts/disagreements             print the table; exit 1 if it differs from the committed one
    scripts/disagreements --write     put it into fwconvert/tokens/disagreements.py
    scripts/disagreements --fuzz N    also compare N texts without these code points, and
                                      some extreme ones; exit 1 if a difference is found

See encoder_pairs for what is compared. The real tables of tiktoken's encodings are used as
well; that of o200k_base if tiktoken has it (see TIKTOKEN_CACHE_DIR). Real files: scripts/bench tokenizers.
"""

import argparse
import importlib.metadata
import itertools
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import encoder_pairs
from encoder_pairs import Pair
from nasty_texts import SCALARS, Texts, abbreviated, extreme_texts

from fwconvert.errors import SourceError, UsageError
from fwconvert.tokens import disagreements, tiktoken_kind
from fwconvert.tokens.tokenizer import parse_ranks

# Every alternative of the patterns with the character @ beside it; and, alone, what only the end of a text
# decides.
CROWD = "a@b A@A @Ab 1@2 !@! @'s @1111 @@\t@\r\n@/\n'@s \u0301@a  @a @ a"
ALONE = ("@", " @", "@ ", "@\n")
# A mark that one of the two does not know stays where it is, and keeps an accent from its letter.
MARKED = ("@", "a@\u0301", "a@\u0323", "@\u0301", "\u0327@\u0301", "\u1100@\u11a8")
# Composed characters are no further than this from what they are made of, which may be a common accent, too.
NEAR = 128
ACCENTS = [chr(code) for code in (*range(0x300, 0x346), 0x3099, 0x309A)]

# Hugging Face tokenizers are slow, and planes without a character are all alike: one in 64 of those.
SAMPLED = [char for char in SCALARS if ord(char) >> 16 in (0, 1, 2, 3, 14) or not ord(char) % 64]

Ranges = list[tuple[int, int]]


class Compared(Protocol):
    """Two ways to do one thing with texts."""

    def differing(self, texts: Sequence[str]) -> list[int]:
        """Return the indices of the texts for which the two differ."""


def real_tables(folder: Path) -> Iterator[Pair]:
    """Yield the encodings of tiktoken with their own tables, where available."""
    for name in encoder_pairs.TIKTOKEN_PATTERNS:
        try:
            tiktoken_kind.provide_table(tiktoken_kind.find(name), folder)
            table = tiktoken_kind.read_table(tiktoken_kind.find(name), folder)
            yield encoder_pairs.of_tiktoken(f"{name} with its table", name, table)
        except UsageError as error:
            print(f"without the rank table of {name}: {error}", file=sys.stderr)


def derive(compared: Compared, context: str, together: int = 1, scalars: Sequence[str] = SCALARS) -> set[int]:
    """Return the code points that make a difference in the place of @ in the context.

    Texts with many code points `together` are compared first, which is faster.
    """
    texts = [context.replace("@", scalar) for scalar in scalars]
    groups = ["\n".join(texts[at : at + together]) for at in range(0, len(texts), together)]
    differing = [group * together for group in compared.differing(groups)]
    suspects = [index for at in differing for index in range(at, min(at + together, len(texts)))]
    found = compared.differing([texts[index] for index in suspects])
    return {ord(scalars[suspects[index]]) for index in found}


def derive_joined(compared: Compared, known: set[int], scalars: Sequence[str] = SCALARS) -> set[int]:
    """Return the code points, beside the known ones, that make a difference right behind another one.

    The newer of two characters is returned: the one with the higher number.
    """
    found: set[int] = set()
    firsts = [char for char in scalars if 0x300 <= ord(char) < 0x20000]
    for at in range(0, len(firsts), 1000):
        part = firsts[at : at + 1000]
        lines = ["\n".join(first + second for second in _near(first, known)) for first in part]
        for index in compared.differing(lines):
            pairs = [part[index] + second for second in _near(part[index], known)]
            found |= {max(map(ord, pairs[pair])) for pair in compared.differing(pairs)}
    return found - known


def _near(char: str, known: set[int]) -> list[str]:
    if ord(char) in known:
        return []
    codes = range(max(0x300, ord(char) - NEAR), ord(char) + NEAR + 1)
    return ACCENTS + [chr(code) for code in codes if code not in known and not 0xD800 <= code <= 0xDFFF]


def derive_all() -> set[int]:
    """Return the code points that make a difference anywhere, without a real vocabulary."""
    found: set[int] = set()
    for name, pair in encoder_pairs.synthetic_pairs().items():
        scalars = SCALARS if name in encoder_pairs.TIKTOKEN_PATTERNS else SAMPLED
        codes = derive(pair, CROWD, 64, scalars).union(*(derive(pair, each, 1, scalars) for each in ALONE))
        print(f"{name} with a synthetic vocabulary: {len(codes):,} code points", file=sys.stderr)
        found |= codes
    normalizing = encoder_pairs.Normalizing()
    marks = set().union(*(derive(normalizing, context) for context in MARKED))
    joined = derive_joined(normalizing, marks)
    print(f"NFC: {len(marks):,} code points, and {len(joined):,} behind others", file=sys.stderr)
    return found | marks | joined


def as_ranges(codes: set[int]) -> Ranges:
    """Return the code points as ranges, both ends included."""
    firsts = sorted(code for code in codes if code - 1 not in codes)
    lasts = sorted(code for code in codes if code + 1 not in codes)
    return list(zip(firsts, lasts, strict=True))


def source_with(ranges: Ranges) -> str:
    """Return the source of fwconvert/tokens/disagreements.py with another table."""
    versions = {name: importlib.metadata.version(name) for name in ("gigatoken", "tiktoken", "tokenizers")}
    fast, *against = (f"{name} {version}" for name, version in versions.items())
    lines = [
        f"# First and last code point of each range, for {fast} against {' and '.join(against)}.",
        f'GIGATOKEN = "{versions["gigatoken"]}"',
        "RANGES: tuple[tuple[int, int], ...] = (",
        *(f"    (0x{first:04X}, 0x{last:04X})," for first, last in ranges),
        ")",
    ]
    table = re.compile(r"^# First and last code point of .*?^\)$", re.MULTILINE | re.DOTALL)
    source, count = table.subn("\n".join(lines), Path(disagreements.__file__).read_text("utf-8"))
    assert count == 1, "the table in fwconvert/tokens/disagreements.py has moved"
    return source


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


def main() -> int:
    """Derive the table; compare it, print it, write it; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--fuzz", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    found, differences = derive_all(), 0
    with tempfile.TemporaryDirectory() as folder:
        for pair in real_tables(Path(folder)):
            codes = derive(pair, CROWD, together=64).union(*(derive(pair, context) for context in ALONE))
            print(f"{pair.description}: {len(codes):,} code points", file=sys.stderr)
            found |= codes
            differences += fuzz(pair, arguments.fuzz) if arguments.fuzz else 0
    if arguments.fuzz:
        for pair in encoder_pairs.synthetic_pairs().values():
            differences += fuzz(pair, arguments.fuzz)
    # A difference of ASCII is one of the pattern: it is no character that is in doubt.
    assert min(found) >= 0x80, sorted(code for code in found if code < 0x80)
    ranges = as_ranges(found)
    print(*(f"{first:04X}-{last:04X}" for first, last in ranges), sep="\n")
    if arguments.write:
        Path(disagreements.__file__).write_text(source_with(ranges), "utf-8")
        return 1 if differences else 0
    return 1 if differences or ranges != list(disagreements.RANGES) else 0


if __name__ == "__main__":
    sys.exit(main())
