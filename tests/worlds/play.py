"""Play a world: give its commands to the real program, let its history happen, and check everything."""

import shutil
import tempfile
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from worlds import checks, happenings, looks, oracle
from worlds.history import PRIVATE, Damage, Interrupt
from worlds.oracle import Run
from worlds.place import Place
from worlds.program import Ended, Program, Wrong
from worlds.world import World


@dataclass(frozen=True)
class Played:
    """What came of a world: nothing wrong, or what; and how much was done."""

    seed: int
    wrong: str
    commands: int
    disturbances: int
    diary: str


def play(world: World, keep: Path | None = None) -> Played:
    """Play a world in a folder of its own; return what came of it."""
    prefix = f"world-{world.seed}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder, wrong = Path(name), ""
        player = Player(world, folder, stack)
        try:
            player.play()
        except Wrong as error:
            wrong = str(error)
        except Exception:  # noqa: BLE001  # what the player did not expect is wrong, too
            wrong = traceback.format_exc()
        if wrong and keep is not None:
            shutil.copytree(folder, keep / f"world-{world.seed}", dirs_exist_ok=True)
        program = player.program
        return Played(world.seed, wrong, program.commands, program.disturbances, "\n".join(program.diary))


class Player:
    """A world that is played: its folder, its program, and how its sources are by now."""

    def __init__(self, world: World, folder: Path, stack: ExitStack) -> None:
        self.world = world
        self.out = folder / "OUT"
        self.program = Program(folder)
        self.place = Place(world, folder, self.program, stack)
        self.sources = [*world.sources]
        # What plan.json was before it was damaged.
        self.plan: bytes | None = None
        self._expected: dict[tuple[bytes, ...], Run] = {}
        self._turn = 0

    def play(self) -> None:
        """Do all of it."""
        if self.world.mistake:
            self._refuse_the_mistake()
            return
        self.place.fill()
        for step in self.world.before:
            happenings.happen(self, step)
        self.finish()
        self._go_on()
        looks.look(self)

    def _go_on(self) -> None:
        """Let happen what happens to a complete run; it is complete again before its sources change."""
        damaged = False
        for step in self.world.after:
            if damaged and not isinstance(step, Damage | Interrupt):
                self._repair()
            happenings.happen(self, step)
            damaged = isinstance(step, Damage | Interrupt)
        if damaged:
            self._repair()
        elif self.world.after:
            self.finish()

    def _repair(self) -> None:
        """Whatever was damaged in a complete run is noticed by those who look, and made again."""
        spoilt = checks.spoilt(self.out, self.run())
        if spoilt and self.plan is None:
            self.must(self.program.run("verify", str(self.out)), {1})
        if any(not (self.out / name).is_file() for name in spoilt):
            self.must(self.program.run("status", str(self.out)), {1, 2} if self.plan is not None else {1})
        self.finish()

    def finish(self) -> None:
        """Give the command with everything as it should be: it must end, and all must be right."""
        ended = self.program.run(*self.words())
        if ended.code != 0 and self.plan is not None:
            # A plan that is lost or damaged may be explained instead of mended.
            self.must(ended, {1, 2})
            (self.out / PRIVATE / "plan.json").write_bytes(self.plan)
            ended = self.program.run(*self.words())
        self.plan = None
        self.must(ended, {0})
        checks.complete(self.out, self.run())

    def run(self) -> Run:
        """Return the run that the sources, as they are, must give."""
        key = tuple(source.content for source in self.sources)
        if key not in self._expected:
            rules = self.world.recipe.rules()
            self._expected[key] = oracle.convert([*self.sources], rules, **self.place.identity)
        return self._expected[key]

    def words(self, recipe: tuple[str, ...] | None = None) -> list[str]:
        """Return the words of the command, with the options whose turn it is."""
        options = self.world.options[self._turn % len(self.world.options)]
        self._turn += 1
        given = self.world.recipe.words() if recipe is None else [*recipe]
        return [*self.place.words(), *given, "--out", str(self.out), *options]

    def must(self, ended: Ended, codes: set[int]) -> Ended:
        """Fail unless a command ended with one of these exit codes."""
        if ended.code not in codes:
            expected = " or ".join(map(str, sorted(codes)))
            raise Wrong(f"exit code {ended.code} instead of {expected}: {ended}")
        return ended

    def _refuse_the_mistake(self) -> None:
        given = [*self.world.mistaken_words, "--out", str(self.out)]
        if self.world.mistake == "no sources":
            words = ["--source", str(self.place.root), *given]
        else:
            self.place.fill()
            words = [*self.place.words(), *given]
        self.must(self.program.run(*words), {2})
        if self.out.exists():
            raise Wrong(f"it was refused, and yet there is {checks.some(self.out.rglob('*'))}")
