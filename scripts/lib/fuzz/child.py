"""Fuzz one target, in a process of its own: whatever ends it ends nothing else.

An error that the target must not raise is kept with its input, once for each
place that it comes from, and the fuzzer goes on. A crash, a hang or too much
memory ends the process; the fuzzer has kept the input by then.

    python -m fuzz.child TARGET SCRATCH FINDINGS [flags and folders of libFuzzer]
"""

import random
import sys
from pathlib import Path

import atheris

# Only what is ours is looked into: its branches guide the fuzzer.
with atheris.instrument_imports(include=["fwconvert"]):
    from fuzz import targets

# Of inputs that are changed with regard to their structure; the others are changed as bytes.
_STRUCTURED = 0.7


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    name, scratch, findings, *flags = sys.argv[1:]
    target = targets.TARGETS[name]
    player = targets.Player(target, Path(scratch))
    targets.bound_memory()

    def one_input(data: bytes) -> None:
        played = player.play(data)
        if played.ended == "found":
            _keep(Path(findings), played, data)

    def changed(data: bytes, most: int, seed: int) -> bytes:
        dice = random.Random(seed)
        if dice.random() < _STRUCTURED:
            new = target.mutate(data, dice)
            if new != data and len(new) <= most:
                return new
        found: bytes = atheris.Mutate(data, most)
        return found

    atheris.Setup([sys.argv[0], *flags], one_input, custom_mutator=changed)
    atheris.Fuzz()


def _keep(folder: Path, played: targets.Played, data: bytes) -> None:
    """Keep the shortest input for each place that findings come from."""
    path = folder / played.site
    if not path.exists() or len(data) < path.stat().st_size:
        path.write_bytes(data)
        path.with_name(f"{path.name}.txt").write_text(played.reason, "utf-8", "replace")


if __name__ == "__main__":
    main()
