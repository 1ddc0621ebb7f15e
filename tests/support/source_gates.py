"""What a test does to a process at a source: it waits or dies there, so no test has to catch it in time."""

import os
from pathlib import Path

import runner


class Gates:
    """What befalls a worker of any node at a source: see gates/sitecustomize.py, which its process loads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that heeds them."""
        places = (Path(__file__).with_name("gates"), runner.REPOSITORY)
        return {
            "PYTHONPATH": os.pathsep.join(map(str, places)),
            "FWCONVERT_TESTS_GATES": str(self.folder),
        }

    def shut(self, what: str, *sources: str) -> None:
        """From now on, whoever opens one of these sources has to "hold", "die", "die-once" or be "slow".

        "hold-draft" holds who begins to write what is made of one: its session is at work by then.
        """
        for name in sources:
            (self.folder / f"{name}.{what}").touch()

    def open(self) -> None:
        """Let nothing befall anybody any more, and forget who was held."""
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Forget who was held: they are dead."""
        for path in self.folder.glob("*.held-by-*"):
            path.unlink()

    def held(self) -> set[int]:
        """Return the processes that wait at a source."""
        return {int(path.name.rpartition("-")[2]) for path in self.folder.glob("*.held-by-*")}

    def died(self, source: str) -> int:
        """Return how many processes have died at a source."""
        return len([*self.folder.glob(f"{source}.died-*")])
