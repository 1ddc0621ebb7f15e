"""The runs that the tests of verify look at, each made once."""

from pathlib import Path

import pytest
from verified import AFTER, BEFORE, SOURCES, Kind, Run, convert, copy, write_sources


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Give the finished run of a kind; each is made once, and none may be changed."""
    base = tmp_path_factory.mktemp("runs")
    write_sources(base / "sources", SOURCES)
    made: dict[Kind, Path] = {}

    def give(kind: Kind) -> Path:
        if kind not in made:
            out = base / f"{kind.layout}-{kind.eot}-{kind.val_tokens}"
            assert convert(base / "sources", out, kind).complete
            made[kind] = out
        return made[kind]

    return give


@pytest.fixture
def before(run: Run, tmp_path: Path) -> Path:
    """Give a copy to damage, without the private folder: EOT before each document."""
    return copy(run(BEFORE), tmp_path)


@pytest.fixture
def after(run: Run, tmp_path: Path) -> Path:
    """Give a copy to damage, without the private folder: EOT after each document."""
    return copy(run(AFTER), tmp_path)


@pytest.fixture
def whole(run: Run, tmp_path: Path) -> Path:
    """Give a copy to damage with everything in it."""
    return copy(run(BEFORE), tmp_path, private=True)
