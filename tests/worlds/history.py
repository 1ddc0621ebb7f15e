"""What may happen to a run: the steps of a world's history, each a value that says itself in words.

Where a step depends on what is there when its time comes (which shard to damage, which worker to kill), it
carries a seed of its own, so that it chooses the same again among the same.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worlds.sources import Source

PRIVATE = ".fwconvert"


@dataclass(frozen=True)
class Interrupt:
    """The command is given, and something ends it, or one of its workers, at a certain instant."""

    # What is waited for: files of this kind, so many; then some milliseconds more.
    awaited: str
    count: int
    milliseconds: int
    # kill, kill worker, interrupt, terminate, hang up
    action: str

    def __str__(self) -> str:
        when = f"when there are {self.count} {self.awaited} and {self.milliseconds} ms have passed"
        return f"run, and {self.action} {when}"


@dataclass(frozen=True)
class Damage:
    """A file of the run, if there is one of this kind, is deleted, cut short, changed or appended to."""

    what: str
    how: str
    seed: int

    def __str__(self) -> str:
        return f"{self.how} one of: {self.what} (choice {self.seed})"


@dataclass(frozen=True)
class Broken:
    """Sources cannot be read; the command is given; they are mended."""

    contents: dict[int, bytes]
    ways: dict[int, str]
    interrupt: Interrupt | None = None
    # While they are away, a bit rots of a shard that will be joined with the rest.
    rots: bool = False

    def __str__(self) -> str:
        which = ", ".join(
            f"source {at} ({way}, {len(self.contents[at])} bytes)" for at, way in self.ways.items()
        )
        return f"broken: {which}; {self.interrupt or 'nothing'} first; run; then they are mended"


@dataclass(frozen=True)
class Replaced:
    """A source has become another one; the command is given; where that is refused, it is put back."""

    index: int
    by: Source

    def __str__(self) -> str:
        return f"source {self.index} is replaced by {self.by.how}; put back if that is refused"


@dataclass(frozen=True)
class Removed:
    """A source is gone; the command is given; it is put back."""

    index: int

    def __str__(self) -> str:
        return f"source {self.index} is gone; run; it is put back"


@dataclass(frozen=True)
class Added:
    """There is a source more; the command is given; it is removed."""

    source: Source

    def __str__(self) -> str:
        return f"{self.source.path!r} is new; run; it is removed"


@dataclass(frozen=True)
class Touched:
    """A source has another time of change and the same bytes."""

    index: int

    def __str__(self) -> str:
        return f"source {self.index} is written again with the same bytes; run"


@dataclass(frozen=True)
class OtherRecipe:
    """Another recipe is asked for in the same folder."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"another recipe in the same folder: {' '.join(self.words)}"


@dataclass(frozen=True)
class Twice:
    """The command is given twice at once."""

    def __str__(self) -> str:
        return "run twice at once"


@dataclass(frozen=True)
class Stray:
    """There is a file under the name of a shard that the run does not have."""

    number: int

    def __str__(self) -> str:
        return f"a shard {self.number} that nobody made lies in the folder; run"


Step = Stray | Interrupt | Damage | Broken | Replaced | Removed | Added | Touched | OtherRecipe | Twice

# --- files of a run, by kind -------------------------------------------------------------------------------

KINDS: dict[str, str] = {
    "shards": "*",
    "document indexes": "index/*.docs",
    "tails": f"{PRIVATE}/tails/*",
    "receipts": f"{PRIVATE}/receipts/*.json",
    "join receipts": f"{PRIVATE}/joins/*.json",
    "plans": f"{PRIVATE}/plan.json",
    "manifests": "manifest.json",
    "session records": f"{PRIVATE}/sessions/*.json",
    "places": f"{PRIVATE}/places.json",
    "locks": f"{PRIVATE}/lock",
    "quarantine records": f"{PRIVATE}/quarantine/*",
    "fetched sources": f"{PRIVATE}/sources/*",
    "temporary files": f"{PRIVATE}/temporary/*",
    "files": "**/*",
}
DAMAGED = (
    *["shards"] * 6, *["document indexes"] * 3, *["tails"] * 2, *["receipts"] * 3, *["join receipts"] * 3,
    "plans", *["manifests"] * 2, "session records", "places", "locks", "quarantine records",
    "fetched sources",
)  # fmt: skip
ACTIONS = ("kill", "kill", "kill", "kill worker", "interrupt", "terminate", "hang up")
HOWS = ("delete", "delete", "truncate", "change", "append", "empty")
LITTER = ("temporary/left-1.part", "temporary/left-2", "logs/left.log")


def files(out: Path, kind: str) -> list[Path]:
    """Return the files of a kind, in order. Token shards and the files beside them count as shards."""
    found = sorted(path for path in out.glob(KINDS[kind]) if path.is_file())
    return [path for path in found if path.name != "manifest.json"] if kind == "shards" else found


def count(out: Path, kind: str) -> int:
    """Return how many files of a kind there are, while others make and remove some."""
    try:
        return sum(1 for _ in out.glob(KINDS[kind]))
    except OSError:
        return 0


def damage(out: Path, step: Damage) -> str:
    """Do it; return what was done."""
    rng = random.Random(step.seed)
    if step.what == "litter":
        path = out / PRIVATE / rng.choice(LITTER)
        manifest = out / "manifest.json"
        if not path.parent.is_dir() or (manifest.exists() and b'"complete":true' in manifest.read_bytes()):
            return "no session has left litter"  # Nobody looks for any in a run that is complete.
        path.write_bytes(b"left behind")
        return f"left {path.relative_to(out)}"
    candidates = files(out, step.what)
    if not candidates:
        return f"there are no {step.what}"
    path = rng.choice(candidates)
    if step.how == "delete":
        path.unlink()
    else:
        before = path.read_bytes()
        path.write_bytes(_HOWS[step.how](before, rng))
    return f"{step.how} {path.relative_to(out)}"


def _changed(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return b"x"
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ rng.randint(1, 255)]) + content[at + 1 :]


_HOWS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "truncate": lambda content, rng: content[: rng.randrange(max(1, len(content)))],
    "change": _changed,
    "append": lambda content, rng: content + rng.randbytes(rng.randint(1, 20)),
    "empty": lambda _, __: b"",
}


def some_damage(rng: random.Random) -> Damage:
    if rng.random() < 0.1:
        return Damage("litter", "leave", rng.randrange(10**6))
    return Damage(rng.choice(DAMAGED), rng.choice(HOWS), rng.randrange(10**6))


def some_interrupt(rng: random.Random) -> Interrupt:
    awaited = rng.choice(
        ("files", "files", "shards", "document indexes", "tails", "receipts", "join receipts")
    )
    count_of = {
        "files": rng.randint(1, 30),
        "shards": rng.randint(1, 12),
        "document indexes": rng.randint(1, 12),
    }
    action = rng.choice(ACTIONS)
    return Interrupt(
        awaited, count_of.get(awaited, rng.randint(1, 3)), rng.choice((0, 0, 0, 1, 3, 10, 50)), action
    )
