"""Where the sources of a world lie, and the words by which a command finds them."""

import json
import random
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import hub_server
from worlds import streams
from worlds.program import Program, Wrong
from worlds.sources import Source
from worlds.world import World

MINE = b"mine, and no source"
# What a network may do, and a run survives: the fault, and how it goes wrong.
FAULTS: tuple[tuple[Any, dict[str, Any]], ...] = (
    ("reset", {"after": 100}),
    ("close", {"after": 7}),
    ("refuse", {}),
    ("status", {"status": 503}),
    ("status", {"status": 500, "on": "hub"}),
    ("status", {"status": 429, "headers": {"Retry-After": "0"}, "on": "hub"}),
    ("corrupt", {"after": 9}),
    ("ignore_range", {}),
)


class Place:
    """A folder, a file, a pattern, a pinned folder (perhaps copied flat), or a hub."""

    def __init__(self, world: World, folder: Path, program: Program, stack: ExitStack) -> None:
        self._world, self._program = world, program
        self.root = folder / "sources"
        self.root.mkdir()
        # Files that were copied lie under their bare names.
        self._flat = folder / "copied" if world.kind == "flat" else None
        self._pinned = folder / "pinned.json"
        self.kept = folder / "kept"
        # What the user has in the folder where fetched sources are kept.
        self.mine: dict[str, bytes] = {}
        if world.kind == "hub":
            self._hub = stack.enter_context(hub_server.HubServer(self.root))
            program.endpoint = self._hub.endpoint

    @property
    def identity(self) -> dict[str, Any]:
        """Where the sources are from, as the oracle wants to know it."""
        if self._world.kind == "hub":
            return {"pinned": True, "dataset": hub_server.REPO, "revision": hub_server.COMMIT}
        return {"pinned": self._world.is_pinned}

    @property
    def folder(self) -> Path:
        """The folder that somebody names who says where the files are."""
        return self._flat or self.root

    def fill(self) -> None:
        """Lay down everything, and pin it if it is to be pinned."""
        for name, content in self._world.others.items():
            self._lay(self.root / name, content)
        for source in self._world.sources:
            self._lay(self.root / source.path, source.content)
        if self._world.is_pinned:
            self._pin()
        if self._flat is not None:
            for source in self._world.sources:
                self.write(source)
        if self._world.kind == "hub":
            self._prepare_the_hub()

    def write(self, source: Source, content: bytes | None = None) -> None:
        """Make a source what it should be, or something else."""
        self._lay(self.path(source), source.content if content is None else content)

    def path(self, source: Source) -> Path:
        """Return where the program finds a source."""
        if self._flat is not None:
            return self._flat / PurePosixPath(source.path).name
        return self.root / source.path

    def words(self) -> list[str]:
        """Return the words that name the sources."""
        kind = self._world.kind
        if kind == "hub":
            kept = ["--keep-source", str(self.kept)] if self._world.keeps_source else []
            few = ["--prefetch", "1", "--max-connections", "2"] if self._world.seed % 3 == 0 else []
            return ["--version", str(self._pinned), "--patience", "30", *kept, *few]
        if self._world.is_pinned:
            return ["--version", str(self._pinned), "--source", str(self.folder)]
        if kind == "file":
            return ["--source", str(self.root / self._world.sources[0].path)]
        return ["--source", str(self.root / "**" / "*.parquet" if kind == "glob" else self.root)]

    def _lay(self, place: Path, content: bytes) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)

    def _pin(self) -> None:
        what = hub_server.REPO if self._world.kind == "hub" else str(self.root)
        ended = self._program.run("pin", what, "-o", str(self._pinned))
        if ended.code != 0:
            raise Wrong(f"pin fails: {ended}")
        files = json.loads(self._pinned.read_bytes())["files"]
        wanted = [
            {"path": one.path, "bytes": len(one.content), "sha256": streams.sha256(one.content)}
            for one in self._world.sources
        ]
        if files != wanted:
            raise Wrong(f"pin lists\n    {files}\n  and should list\n    {wanted}")

    def _prepare_the_hub(self) -> None:
        rng = random.Random(f"faults {self._world.seed}")
        for kind, how in rng.sample(FAULTS, rng.choice((0, 0, 1, 2))):
            self._program.note(f"* the network will: {kind} {how}")
            self._program.disturbances += 1
            self._hub.fault(kind, **how)
        if self._world.keeps_source:
            self._own_a_namesake()

    def _own_a_namesake(self) -> None:
        """Lay a file of the user's own where sources are kept, with the bare name of one of them."""
        paths = {source.path for source in self._world.sources}
        bare = sorted({PurePosixPath(path).name for path in paths if "/" in path} - paths)
        for name in bare[:1]:
            self._lay(self.kept / name, MINE)
            self.mine[name] = MINE
