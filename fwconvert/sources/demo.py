"""The demo corpus: made-up text in FineWeb-Edu's schema, generated offline.

The texts are the same on every machine and every Python: they come from
`Random(seed).random()`, the one method whose sequence Python promises to keep,
and from arithmetic that IEEE 754 rounds exactly (`exp` and `log` differ in the
last digit between C libraries). Other texts would mean another version in the
folder's name. Only the parquet bytes around them may change with pyarrow.

The words are invented; the small ones that hold a sentence together are English.
Lengths spread as on the web, and now and then a page has what breaks tokenizers:
emoji, CJK, tabs, runs of spaces, and once the end-of-text marker as plain text.
"""

# ruff: noqa: SIM905  (twenty short strings read better as one string that is split)

import hashlib
import math
import os
import re
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from string import capwords

import platformdirs

from fwconvert import files, records
from fwconvert.errors import ManifestError
from fwconvert.recipes import SourceShard
from fwconvert.store import atomic

NAME = "demo-1"
RECORD = "corpus.json"
FILES = 4
ROWS = 2_100
ROW_GROUP = 1_000

_SEED = 4  # the first of four that give 12 MB with four documents above 100 kB
# Ends this document of the first file, and must come out as characters.
_MARKED = 17
_MARKER = "Some pages say <|endoftext|> and go on, since to them it is a word like any other."

# Onsets and prefixes begin with a consonant, so that "a" before a word is right.
_PREFIXES = (*("",) * 30, *"com con de di mar mis par per pre pro re sub ta tra ver".split())
_ONSETS = "b br c ch cl d dr f fl fr g gr h j l l m m n p pl pr r r s s sh st st str t t th tr v w".split()
_VOWELS = "a a a a e e e e i i i o o o ai ea ee oa ou".split()
_CODAS = "d d l l ld lt lt m m mp n n nd nd nt nt r r rk rm rv sk sp st st v v ct ft".split()
_ACCENTS = str.maketrans("aeiou", "áéïöü")
# Kinds of words, as they stand in the clauses below: noun, plural, adjective, adverb, past tense.
_ENDINGS = {
    "N": ("", "", "", "", "er", "or", "ation", "ment", "ness", "ance", "ity", "ure", "et", "le", "ing"),
    "P": ("s", "s", "s", "ers", "ations", "ments", "ets", "ities", "ures"),
    "A": ("", "al", "ic", "ous", "y", "ful", "ish", "able", "ed", "ive"),
    "R": ("ly", "ally", "ously", "ily"),
    "V": ("ed",),
}

# D is a number. "%" and other single capital letters may not stand here.
_CLAUSES = (
    *("the A N of the N V the P", "a N V the A P in the N", "P of the A N R V a N") * 4,
    *("the N V a N with the P of N", "the A N was V by the P", "a N is a N for the P") * 3,
    *("P, P and P V the A N", "the P that V the N are A", "N in the N is R A", "each N has D P") * 2,
    *("the N's P are A and A", "about D P V the N in the A N", "in D the N V its A P", "such P can't be A"),
    *("there isn't a N that R V the P", "you'll find that P and P are A", "it's the N of a A N"),
    *("we don't know how the N V the P", "the N (or N) is a A N", "they've R V the P of N"),
    *("not only the N but also a A N/N V D of the P", "that doesn't mean that a A N V P"),
)
_OPENINGS = (*("",) * 30, "However, ", "For example, ", "As we've seen, ", "And ", '"No," she said, and ')
_LINKS = (*(", and ", ", but ", " because ", ", which is why ", " when ", ", while ") * 2, "; ", " - ", ": ")
_ENDS = (*(".",) * 40, "?", "?", "!", "!", "...", " 🙂", ":")
_BETWEEN = (*(" ",) * 30, "  ", "\n- ", "\n\t")
_ODD = (
    "今日は天気がいいので、散歩に行きました。",
    "我们在学校学习自然科学。한국어 문장도 하나 있습니다.",
    "Crème brûlée, naïve façades, São Paulo, Kraków and the Ångström.",
    "Thanks 👍🏽 to the family 👨‍👩‍👧‍👦 from 🇳🇴 and 🇯🇵!",
    "item\tcount\tshare\nred\t12\t0.25\nblue\t36\t0.75",
    "def area(r):\n    return 3.14159 * r ** 2",
    "WHY NOT? BECAUSE WE'VE SAID SO, AND THAT'S THAT!!!",
    "Columns   are    kept     apart: see https://www.demo.example/a.html?q=1&page=2#top for more.",
    "First line\r\nsecond line\r\n\r\nlast line",
    "\u201cIt\u2019s 20 \u00b0C \u2013 or 68\u00a0\u00b0F,\u201d she said\u2026",
)

Draw = Callable[[], float]  # the next number in [0, 1)
# Clauses as format strings, each with the lists that its words come from.
Phrases = list[tuple[str, list[list[str]]]]


class Corpus(records.Record, frozen=True, tag="fwconvert demo corpus 1"):
    """The files of a complete demo corpus; written last, so that it shows that they are whole."""

    files: tuple[SourceShard, ...]


def cache_folder() -> Path:
    """Return the cache folder: FWCONVERT_CACHE, or the system's default."""
    chosen = os.environ.get("FWCONVERT_CACHE")
    return Path(chosen) if chosen else platformdirs.user_cache_path("fwconvert")


def make(folder: Path) -> tuple[Path, ...]:
    """Make the corpus in `folder`/demo-1 unless it is there and whole; return its parquet files in order.

    A crash leaves nothing half-written under a final name, and the next call
    repairs what is missing or has the wrong size. Several processes may make it at once.
    """
    home = folder / NAME
    paths = tuple(home / f"{number:03}_00000.parquet" for number in range(FILES))
    if not _is_whole(home / RECORD, paths):
        atomic.make_folder(home)
        # If we crash from here on, the old record must not stand for the new files.
        atomic.remove(home / RECORD)
        corpus = Corpus(tuple(_write(path, number) for number, path in enumerate(paths)))
        atomic.replace(home / RECORD, records.lines(records.fields(corpus)))
    return paths


def texts(count: int) -> list[str]:
    """Return so many of the texts, without a file."""
    return [str(document["text"]) for document in islice(_documents(0), count)]


def _is_whole(record: Path, paths: tuple[Path, ...]) -> bool:
    try:
        files = records.read(record, Corpus).files
    except ManifestError:
        return False
    found = [(path.name, path.stat().st_size if path.is_file() else None) for path in paths]
    return found == [(file.path, file.bytes) for file in files]


def _write(path: Path, number: int) -> SourceShard:
    content = _parquet(_documents(number))
    # Left alone if correct: another process may be reading it, and Windows cannot replace an open file.
    if not files.holds(path, content):
        atomic.replace(path, content)
    return SourceShard(path.name, len(content), hashlib.sha256(content).hexdigest())


def _parquet(documents: Iterator[dict[str, object]]) -> bytes:
    # Imported here: a corpus that is already made needs no pyarrow.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    types = dict.fromkeys(("text", "id", "dump", "url", "file_path", "language"), pa.string())
    types |= {"language_score": pa.float64(), "token_count": pa.int64()}
    types |= {"score": pa.float64(), "int_score": pa.int64()}
    table = pa.Table.from_pylist(list(documents), pa.schema(types))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=ROW_GROUP, compression="snappy")
    return bytes(sink.getvalue())


def _documents(number: int) -> Iterator[dict[str, object]]:
    """Yield the rows of one file; `token_count` is the number of words between white space."""
    draw = Random(_SEED + number).random  # noqa: S311
    words = _vocabulary()
    phrases = _phrases(words)
    for row in range(ROWS):
        text = _text(draw, phrases)
        if (number, row) == (0, _MARKED):
            text = f"{text}\n{_MARKER}"
        yield {"text": text, **_origin(draw, words["A"], f"{number}-{row}"), "token_count": len(text.split())}


def _origin(draw: Draw, names: list[str], key: str) -> dict[str, object]:
    url = f"https://www.{_pick(draw, names)}.example/{_pick(draw, names)}/{_pick(draw, names)}-{key}"
    dump = f"DEMO-{2013 + int(draw() * 12)}-{10 + int(draw() * 40)}"
    thousandths = 2_520 + int(draw() * draw() * 2_070)
    return {
        "id": f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, url)}>",
        "dump": dump,
        "url": url,
        "file_path": f"demo/{dump}/warc/{int(draw() * 1_000):05}.warc.gz",
        "language": "en",
        "language_score": (650 + int(draw() * 350)) / 1_000,
        "score": thousandths / 1_000,
        "int_score": round(thousandths / 1_000),
    }


def _text(draw: Draw, phrases: Phrases) -> str:
    left = _sentence_count(draw)
    parts = [capwords(_clause(draw, phrases))] if draw() < 0.2 else []
    while left > 0:
        count = min(left, 2 + int(draw() * 5))
        left -= count
        parts.append(_pick(draw, _BETWEEN).join([_sentence(draw, phrases) for _ in range(count)]))
    return _pick(draw, ("\n", "\n", "\n\n")).join(parts)


def _sentence_count(draw: Draw) -> int:
    """Draw a length from a log-normal-like spread with a heavier tail: median 9, mean 15, most 2,000.

    The logarithm of `spread` is half a sum of four exponentials, so its deviation is 1.
    """
    spread = math.sqrt((draw() * draw()) / ((1 - draw()) * (1 - draw())))
    return 1 + int(8 * min(spread, 250.0))


def _sentence(draw: Draw, phrases: Phrases) -> str:
    if draw() < 0.01:
        return _pick(draw, _ODD)
    sentence = _pick(draw, _OPENINGS) + _clause(draw, phrases)
    while draw() < 0.4:
        sentence += _pick(draw, _LINKS) + _clause(draw, phrases)
    return sentence[0].upper() + sentence[1:] + _pick(draw, _ENDS)


def _clause(draw: Draw, phrases: Phrases) -> str:
    pattern, slots = phrases[int(draw() * len(phrases))]
    return pattern % tuple([words[int(draw() * len(words))] for words in slots])


def _phrases(words: dict[str, list[str]]) -> Phrases:
    slot = re.compile(r"\b[ADNPRV]\b")
    return [(slot.sub("%s", clause), [words[kind] for kind in slot.findall(clause)]) for clause in _CLAUSES]


def _vocabulary() -> dict[str, list[str]]:
    """Return a list to pick from for each kind of word, in which the early words recur as Zipf found."""
    draw = Random(_SEED - 1).random  # noqa: S311
    plain = {kind: [_word(draw, kind) for _ in range(2_500)] for kind in _ENDINGS}
    plain["N"] = [_dressed(word, rank) for rank, word in enumerate(plain["N"])]
    numbers = [_number(draw) for _ in range(2_500)]
    return {"D": numbers} | {kind: _weighted(words) for kind, words in plain.items()}


def _weighted(words: list[str]) -> list[str]:
    copies = [1 + len(words) // (rank + 10) for rank in range(len(words))]
    return [word for word, count in zip(words, copies, strict=True) for _ in range(count)]


def _word(draw: Draw, kind: str) -> str:
    syllables = _pick(draw, _PREFIXES) + _pick(draw, _ONSETS) + _pick(draw, _VOWELS) + _pick(draw, _CODAS)
    return syllables + _pick(draw, _ENDINGS[kind])


def _dressed(word: str, rank: int) -> str:
    if rank % 61 == 30:
        return word.translate(_ACCENTS)
    if rank % 97 == 40:
        return word[:3].upper()
    return word.capitalize() if rank % 11 == 10 else word


def _number(draw: Draw) -> str:
    number = int(draw() * 2_030)
    return _pick(draw, (f"{number}", f"{number:,}", f"{number // 10}.{number % 10}", f"{number // 20}%"))


def _pick(draw: Draw, choices: tuple[str, ...] | list[str]) -> str:
    return choices[int(draw() * len(choices))]
