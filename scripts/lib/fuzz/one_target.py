"""Fuzz one target, in a process of its own: what kills it kills nothing else.

An error that the target must not raise is kept with its input, once for each
place that raises it, and the fuzzer continues. A crash, a hang or too much
memory kills the process; the fuzzer has kept the input by then.

    python -m fuzz.one_target TARGET SCRATCH FINDINGS [flags and folders of libFuzzer]
"""

import random
import sys
from pathlib import Path

import atheris

# Only our own code is instrumented: its branches guide the fuzzer.
with atheris.instrument_imports(include=["fwconvert"]):
    from fuzz import targets

# The share of inputs that are mutated by their structure; the others are mutated as bytes.
_STRUCTURED = 0.7


def main() -> None:
    """Fuzz until libFuzzer exits the process."""
    name, scratch, findings, *flags = sys.argv[1:]
    target = targets.TARGETS[name]
    runner = targets.Runner(target, Path(scratch))
    targets.limit_memory()

    def one_input(data: bytes) -> None:
        outcome = runner.run(data)
        if outcome.status == "found":
            _keep(Path(findings), outcome, data)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < _STRUCTURED:
            new = target.mutate(data, rng)
            if new != data and len(new) <= most:
                return new
        found: bytes = atheris.Mutate(data, most)
        return found

    atheris.Setup([sys.argv[0], *flags], one_input, custom_mutator=mutate)
    atheris.Fuzz()


def _keep(folder: Path, outcome: targets.Outcome, data: bytes) -> None:
    """Keep the shortest input for each place that raises."""
    path = folder / outcome.site
    if not path.exists() or len(data) < path.stat().st_size:
        path.write_bytes(data)
        path.with_name(f"{path.name}.txt").write_text(outcome.reason, "utf-8", "replace")


if __name__ == "__main__":
    main()
