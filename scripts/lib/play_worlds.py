"""Play worlds, one after the other or several in parallel, and print those that went wrong.

A world follows from a seed: sources, a recipe, and what happens to a run
(tests/worlds). Each is played against the real program in processes of its own,
and checked by an oracle that shares no code with it.
"""

import argparse
import secrets
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests"), str(REPOSITORY / "tests/support")]

from worlds import play, world  # noqa: E402  # found by the line above
from worlds.play import Played  # noqa: E402


def main() -> int:
    """Play the worlds that the arguments select; return the exit code."""
    args = _parse_arguments()
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
    first = secrets.randbelow(10**9) if args.seed is None else args.seed
    if args.minutes is None:
        return _one(first, args)
    print(f"worlds from seed {first} on, {args.jobs} at a time, for {args.minutes:g} minutes", flush=True)
    started = time.monotonic()
    worlds = commands = disturbances = 0
    wrong = []
    for played in _played(first, args):
        worlds += 1
        commands += played.commands
        disturbances += played.disturbances
        if played.wrong:
            wrong.append(played.seed)
            print(f"{world.make(played.seed, args.without)}\n  WRONG: {played.wrong}\n", flush=True)
    minutes = (time.monotonic() - started) / 60
    print(f"{worlds:,} worlds, {commands:,} commands, {disturbances:,} disturbances in {minutes:.1f} minutes")
    print(f"wrong: {' '.join(map(str, sorted(wrong))) or 'none'}")
    return 1 if wrong else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--seed",
        metavar="N",
        type=int,
        help="the first world; alone: this one, with everything that happened",
    )
    add("--minutes", metavar="N", type=float, help="play worlds from the first seed on for this long")
    add("--jobs", metavar="N", type=int, default=2, help="worlds in parallel (default: 2)")
    add("--keep", metavar="DIR", type=Path, help="keep the folders of worlds that go wrong here")
    add("--without", metavar="WORDS", type=lambda text: frozenset(text.split(",")), default=frozenset(),
        help="leave these kinds of steps out: interrupt,damage,broken,replaced,…,export")  # fmt: skip
    return parser.parse_args()


def _one(seed: int, args: argparse.Namespace) -> int:
    made = world.make(seed, args.without)
    print(made)
    played = play.play(made, args.keep)
    print(played.diary)
    print(f"WRONG: {played.wrong}" if played.wrong else "all is right")
    return 1 if played.wrong else 0


def _played(first: int, args: argparse.Namespace) -> Iterator[Played]:
    """Yield the outcome of each world, until the time is up."""
    deadline = time.monotonic() + 60 * args.minutes
    seeds = count(first)
    with ProcessPoolExecutor(args.jobs) as pool:
        going: set[Future[Played]] = set()
        while going or time.monotonic() < deadline:
            while len(going) < args.jobs and time.monotonic() < deadline:
                going.add(pool.submit(_play, next(seeds), args.without, args.keep))
            done, going = wait(going, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _play(seed: int, without: frozenset[str], keep: Path | None) -> Played:
    return play.play(world.make(seed, without), keep)


if __name__ == "__main__":
    sys.exit(main())
