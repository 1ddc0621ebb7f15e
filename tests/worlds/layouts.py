"""Which token goes into which token shard, and what the shards are called: the second half of the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from worlds.recipes import Rules

ENDLESS = 2**63


@dataclass(frozen=True)
class Stretch:
    """Some tokens of a source, from `begin` to `end`."""

    source: int
    begin: int
    end: int


@dataclass(frozen=True)
class Shard:
    """A token shard: its name without an ending, and where its tokens come from."""

    stem: str
    split: str
    stretches: tuple[Stretch, ...]

    @property
    def size(self) -> int:
        return sum(stretch.end - stretch.begin for stretch in self.stretches)

    @property
    def segments(self) -> list[tuple[int, int]]:
        """Where the tokens of another source begin; what follows on in the same source does not count."""
        found: list[tuple[int, int]] = []
        first = 0
        for stretch in self.stretches:
            if not found or found[-1][0] != stretch.source:
                found.append((stretch.source, first))
            first += stretch.end - stretch.begin
        return found


@dataclass(frozen=True)
class Layout:
    """How the tokens of some sources are cut; of the sources `tokens` tells how many each gives."""

    rules: Rules
    tokens: Sequence[int]
    # How many there are in all, and how many digits a block number has.
    sources: int
    digits: int

    def shards(self) -> tuple[list[Shard], int]:
        """Return all token shards of the finished run, and how many tokens are dropped."""
        return self._contiguous() if self.rules.layout == "contiguous" else self._independent()

    def own(self, source: int) -> tuple[list[Shard], Stretch]:
        """Return the shards that a source gives by itself, and its tail."""
        total, size = self.tokens[source], self.rules.shard_tokens
        val = self.rules.val_tokens if source == 0 else 0
        if self.rules.layout == "contiguous" or val > total:
            return [], Stretch(source, 0, total)
        shards = [Shard(self._name("val", source, 0), "val", (Stretch(source, 0, val),))] if val else []
        begin = val
        while total - begin >= size:
            name = self._name("train", source, len(shards))
            shards.append(Shard(name, "train", (Stretch(source, begin, begin + size),)))
            begin += size
        return shards, Stretch(source, begin, total)

    def _independent(self) -> tuple[list[Shard], int]:
        made = [self.own(source) for source in range(len(self.tokens))]
        own = [shard for shards, _ in made for shard in shards]
        joined = [
            Shard(self._name("train", self.sources, block), "train", part)
            for block, part in enumerate(cut([tail for _, tail in made], self.rules.shard_tokens))
        ]
        if len(joined) != 1 or self.rules.last != "merge":
            settled, dropped = self._settled(joined)
            return own + settled, dropped
        training = [shard for shard in own if shard.split == "train"]
        if not training or joined[0].size == self.rules.shard_tokens:
            return own + joined, 0
        # The one short shard takes in the last full one, whose file is then gone.
        own.remove(training[-1])
        return [*own, replace(joined[0], stretches=training[-1].stretches + joined[0].stretches)], 0

    def _contiguous(self) -> tuple[list[Shard], int]:
        rules = self.rules
        rest = [Stretch(source, 0, tokens) for source, tokens in enumerate(self.tokens)]
        first: list[Shard] = []
        if 0 < rules.val_tokens <= sum(self.tokens):
            head, *parts = cut(rest, rules.val_tokens)
            first = [Shard(self._stream_name("val", 0), "val", head)]
            rest = [stretch for part in parts for stretch in part]
        training = [
            Shard(self._stream_name("train", at), "train", part)
            for at, part in enumerate(cut(rest, rules.shard_tokens or ENDLESS), start=1)
        ]
        settled, dropped = self._settled(training)
        return first + settled, dropped

    def _settled(self, training: list[Shard]) -> tuple[list[Shard], int]:
        """Keep a short last shard, drop it, or add it to the one before it, if there is one."""
        if not training or training[-1].size == self.rules.shard_tokens or self.rules.last == "keep":
            return training, 0
        *before, short = training
        if self.rules.last == "drop":
            return before, short.size
        if not before:
            return training, 0
        return [*before[:-1], replace(before[-1], stretches=before[-1].stretches + short.stretches)], 0

    def _name(self, split: str, source: int, block: int) -> str:
        return f"{self.rules.name}_{split}_{number(source, 5)}_{number(block, self.digits)}"

    def _stream_name(self, split: str, at: int) -> str:
        return split if self.rules.format == "raw" else f"{self.rules.name}_{split}_{at:06d}"


def cut(stretches: Sequence[Stretch], size: int) -> list[tuple[Stretch, ...]]:
    """Cut stretches, one after the other, into parts of `size` tokens; the last may be short."""
    parts: list[tuple[Stretch, ...]] = []
    part: list[Stretch] = []
    room = size
    for stretch in stretches:
        begin = stretch.begin
        while begin < stretch.end:
            end = min(stretch.end, begin + room)
            part.append(replace(stretch, begin=begin, end=end))
            room, begin = room - (end - begin), end
            if room == 0:
                parts.append(tuple(part))
                part, room = [], size
    return [*parts, tuple(part)] if part else parts


def number(value: int, digits: int) -> str:
    """Return a number in a name: so many digits, or x and nine, which sort behind all of those."""
    return f"{value:0{digits}d}" if value < 10**digits else f"x{value:09d}"
