"""Small worlds by chance, each repeated by its seed: the real program against an independent oracle.

`scripts/worlds --seed N` plays one of them with everything that it said; `--minutes N` plays more.
"""

import pytest
from worlds import play, world

SEEDS = range(1000, 1030)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_world_ends_as_the_oracle_says(seed: int) -> None:
    made = world.make(seed)
    played = play.play(made)
    assert not played.wrong, f"{made}\n{played.diary}\nWRONG: {played.wrong}"
