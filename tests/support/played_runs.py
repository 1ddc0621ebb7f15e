"""Runs that take place in a moment, by a clock of their own, and what an outlook says of them.

A `World` moves bytes from a network of a given speed to workers of a given speed, half a second at a time,
and shows what a session would show. It shares nothing with the estimate that is told of it.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from fwconvert.run.engines import Progress
from fwconvert.run.events import Download, Snapshot
from fwconvert.run.outlook import Forecast, Outlook

STEP = 0.5
MB = 1_000_000
SHARD_TOKENS = 100_000_000
# Of a source, a token has so many.
TOKEN_SOURCE_BYTES = 2.5
_STARTS_IN = 0.6

Speed = Callable[[float], float]


def steady(rate: float) -> Speed:
    return lambda _: rate


def growing(each: float, first: int, most: int) -> Speed:
    """Connections of so much each: they double every second, as long as that brings more."""
    return lambda now: each * min(most, first * 2 ** int(now))


def interrupted(speed: Speed, begin: float, end: float) -> Speed:
    return lambda now: 0.0 if begin <= now < end else speed(now)


def uneasy(speed: float) -> Speed:
    chance = random.Random(1)
    return lambda _: speed * chance.uniform(0.5, 2.0) / 1.25


@dataclass
class Played:
    """What was said, at what time; and how long it took."""

    seconds: float = 0.0
    said: list[tuple[float, Forecast]] = field(default_factory=list)

    def errors(self, slack: float = 2.0) -> list[tuple[float, float]]:
        """Return the error of the time left at each time, as a part of the true one; 0 below the slack."""
        found = []
        for when, forecast in self.said:
            true = self.seconds - when
            left = math.inf if forecast.seconds_left is None else forecast.seconds_left
            if true > 0:
                found.append((when, abs(left - true) / true if abs(left - true) > slack else 0.0))
        return found

    def worst(self, since: float = 0.1) -> float:
        """Return the worst error after a part of the time."""
        return max(error for when, error in self.errors() if when >= since * self.seconds)

    def jumps(self, since: float = 0.1) -> float:
        """Return the largest change of the shown end within a second, as a part of the time left."""
        late = [(when, one.seconds_left or 0.0) for when, one in self.said if when >= since * self.seconds]
        pairs = zip(late[: -int(1 / STEP)], late[int(1 / STEP) :], strict=True)
        return max(abs(then + later - now - left) / max(10.0, left) for (now, left), (then, later) in pairs)


@dataclass
class World:
    """A run: its sources, what brings and what converts them. Seconds, and bytes a second."""

    sources: list[float]
    workers: int
    # Of one worker that converts, and of one that joins, in bytes of tokens.
    converts: Speed
    joins: float = 150 * MB
    # None: the sources are here.
    network: Speed | None = None
    # Sources that an earlier session has done.
    found: int = 0
    # Of the tokens, those that are joined.
    joined_share: float = 0.0
    ahead: int = 4
    # Nothing is heard of an order before its end.
    is_silent: bool = False

    def play(self) -> Played:
        """Play the run to its end."""
        return _Playing(self).to_its_end()


class _Playing:
    def __init__(self, world: World) -> None:
        self.world, self.now = world, 0.0
        self.outlook, self.played = Outlook(), Played()
        self.everything = sum(world.sources)
        self.before = self.converted = sum(world.sources[: world.found])
        self.jobs_done = world.found
        open_ones = [*range(world.found, len(world.sources))]
        self.waiting: list[int] = [] if world.network is None else open_ones
        self.here: list[int] = open_ones if world.network is None else []
        self.untouched = sum(world.sources[one] for one in self.waiting)
        self.coming = dict[int, float]()
        self.running = dict[int, float]()
        self.fetched = 0.0
        self.join_tokens = round(self.everything / TOKEN_SOURCE_BYTES * world.joined_share)
        self.join_shards = math.ceil(self.join_tokens / SHARD_TOKENS)

    def to_its_end(self) -> Played:
        while self.jobs_done < len(self.world.sources):
            self.fetch()
            self.hand_out()
            self.convert()
            self.hand_out()
            self.now += STEP
            self.show_converting()
        if self.join_tokens:
            self.join()
        self.played.seconds = self.now
        return self.played

    def fetch(self) -> None:
        world = self.world
        if world.network is None:
            return
        while self.waiting and len(self.coming) + len(self.here) < world.ahead:
            one = self.waiting.pop(0)
            self.coming[one], self.untouched = 0.0, self.untouched - world.sources[one]
        room = world.network(self.now) * STEP
        for one in [*self.coming]:  # The first has all connections, as long as it needs them.
            part = min(room, world.sources[one] - self.coming[one])
            self.coming[one] += part
            self.fetched, room = self.fetched + part, room - part
            if self.coming[one] >= world.sources[one]:
                del self.coming[one]
                self.here.append(one)

    def hand_out(self) -> None:
        while self.here and len(self.running) < self.world.workers:
            self.running[self.here.pop(0)] = 0.0

    def convert(self) -> None:
        if self.now < _STARTS_IN:
            return
        for one in [*self.running]:
            self.running[one] += self.world.converts(self.now) * STEP
            if self.running[one] >= self.world.sources[one]:
                del self.running[one]
                self.jobs_done += 1
                self.converted += self.world.sources[one]

    def show_converting(self) -> None:
        sizes = self.world.sources
        orders = [
            Progress(
                f"{one}", f"{one}", 0 if self.world.is_silent else got / sizes[one], 0, round(sizes[one])
            )
            for one, got in self.running.items()
        ]
        done = self.converted + sum(one.fraction * one.size for one in orders)
        downloads = [Download(f"{one}", round(got), round(sizes[one])) for one, got in self.coming.items()]
        to_fetch = self.untouched + sum(one.size - one.bytes for one in downloads)
        self.show(
            Snapshot(
                phase="convert",
                units=round(self.everything),
                units_done=done,
                session_units=done - self.before,
                session_tokens=round((done - self.before) / TOKEN_SOURCE_BYTES),
                jobs=len(sizes),
                jobs_done=self.jobs_done,
                tokens=round(done / TOKEN_SOURCE_BYTES),
                running=orders,
                fetched=None if self.world.network is None else round(self.fetched),
                downloads=downloads,
                to_fetch=round(to_fetch),
                source_bytes=round(self.everything),
                slots=self.world.workers,
                join_tokens=self.join_tokens,
                join_shards=self.join_shards,
            )
        )

    def join(self) -> None:
        size = self.join_tokens / self.join_shards
        left, shards = self.join_shards, list[float]()
        while left or shards:
            while left and len(shards) < self.world.workers:
                shards.append(size)
                left -= 1
            shards = [rest - self.world.joins / 2 * STEP for rest in shards]
            shards = [rest for rest in shards if rest > 0]
            self.now += STEP
            orders = [Progress(f"{rest}", "", 1 - rest / size, 0, round(size)) for rest in shards]
            self.show_joining(self.join_tokens - left * size - sum(shards), orders)

    def show_joining(self, joined: float, orders: list[Progress]) -> None:
        tokens = round((self.everything - self.before) / TOKEN_SOURCE_BYTES)
        self.show(
            Snapshot(
                phase="join",
                units=self.join_tokens,
                units_done=joined,
                session_units=joined,
                session_tokens=tokens,
                jobs=len(self.world.sources),
                jobs_done=self.jobs_done,
                tokens=tokens,
                running=orders,
                fetched=None if self.world.network is None else round(self.fetched),
                source_bytes=round(self.everything),
                slots=self.world.workers,
                join_tokens=self.join_tokens,
                joined_tokens=joined,
                join_shards=self.join_shards,
            )
        )

    def show(self, snapshot: Snapshot) -> None:
        self.outlook.see(snapshot, self.now)
        self.played.said.append((self.now, self.outlook.forecast()))
