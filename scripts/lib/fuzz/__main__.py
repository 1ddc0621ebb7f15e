"""Fuzz the readers of outside bytes, or play inputs to them once more.

Each target is fuzzed in a process of its own (fuzz.child). The seeds in the
repository are where it begins; what it comes upon is kept in the user's cache,
so that the next run goes on from there. What it finds is kept in a folder that
is told: the input, and beside it what happened.
"""

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from fuzz.targets import TARGETS, Player, Target, bound_memory, scratch_folder

# A hang is told from a busy machine by much: an input takes some milliseconds.
_HANG_SECONDS = 60
_MOST_MB = 1500
_MOST_INPUT_BYTES = 16384
# What ends a target's process is likely to end the next one soon.
_MOST_STARTS = 30
# In the folder of findings, beside these.
_OURS = ("log", "words")


def main() -> int:
    """Do what the arguments say; return the exit code."""
    args = _arguments()
    if args.list:
        for target in TARGETS.values():
            print(f"{target.name:<16} {target.about}")
        return 0
    chosen = [TARGETS[name] for name in args.targets] or [*TARGETS.values()]
    if args.input:
        return _play(chosen, args.input)
    findings = args.findings or _cache() / time.strftime("findings-%Y%m%dT%H%M%S")
    fuzzed = [_fuzz(target, args, findings / target.name) for target in chosen]
    found = [path for one in fuzzed for path in one.findings]
    print(f"found: {len(found)}" if found else "found: nothing")
    for path in found:
        print(f"  {path}")
    return 1 if found or not all(one.inputs for one in fuzzed) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("targets", metavar="TARGET", nargs="*", help="what to fuzz (default: everything)")
    add("--list", action="store_true", help="tell the targets")
    add("--input", metavar="FILE", type=Path, nargs="+", help="play these inputs, or all in a folder, once")
    add("--seconds", metavar="N", type=int, default=60, help="for each target (default: 60)")
    add("--findings", metavar="DIR", type=Path, help="where to keep what is found")
    add("--corpus", metavar="DIR", type=Path, default=_cache() / "corpus",
        help="where to keep inputs that lead somewhere (default: in the user's cache)")  # fmt: skip
    args = parser.parse_args()
    unknown = [name for name in args.targets if name not in TARGETS]
    if unknown:
        parser.error(f"there is no target {unknown[0]}; see --list")
    if args.input and len(args.targets) != 1:
        parser.error("--input is for one target: name it")
    return args


def _cache() -> Path:
    return Path(platformdirs.user_cache_dir("fwconvert", appauthor=False)) / "fuzz"


def _play(targets: list[Target], given: list[Path]) -> int:
    """Play inputs to a target, in this process, and tell what came of each."""
    (target,) = targets
    files = [file for path in given for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    bound_memory()
    found = 0
    with scratch_folder() as folder:
        player = Player(target, folder)
        for file in files:
            played = player.play(file.read_bytes())
            found += played.ended == "found"
            reason = " ".join(played.reason.split())[:200] if played.ended == "refused" else played.reason
            print(f"{file.name}: {played.ended}  {reason}".rstrip(), flush=True)
    return 1 if found else 0


@dataclass(frozen=True)
class _Fuzzed:
    inputs: int
    findings: list[Path]


def _fuzz(target: Target, args: argparse.Namespace, findings: Path) -> _Fuzzed:
    """Fuzz a target for its seconds; one that is ended by what it finds is started again."""
    corpus = args.corpus / target.name
    for folder in (corpus, findings, target.seeds):
        folder.mkdir(parents=True, exist_ok=True)
    log, inputs, covered = findings / "log", 0, ""
    ends = time.monotonic() + args.seconds
    for _ in range(_MOST_STARTS):
        left = int(ends - time.monotonic())
        if left < 1:
            break
        with scratch_folder() as scratch:  # Here: libFuzzer ends its process without leaving blocks.
            command = _command(target, [scratch, findings, corpus, target.seeds], left)
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        told = ended.stdout.decode(errors="replace")
        with log.open("a", encoding="utf-8") as file:
            file.write(told)
        # Ended by what it found, it has told no more than how far it was.
        inputs += int((re.findall(r"^#(\d+)\t", told, re.MULTILINE) or ["0"])[-1])
        covered = (re.findall(r"cov: \d+ ft: \d+", told) or [covered])[-1]
        if ended.returncode == 0:
            break
    found = [path for path in sorted(findings.iterdir()) if path.suffix != ".txt" and path.name not in _OURS]
    print(
        f"{target.name}: {inputs:,} inputs, {covered or f'NOTHING, see {log}'}, {len(found)} found",
        flush=True,
    )
    return _Fuzzed(inputs, found)


def _command(target: Target, folders: list[Path], seconds: int) -> list[str]:
    """Return the command that fuzzes a target. The folders: scratch, findings, corpus and seeds."""
    findings = folders[1]
    words = findings / "words"
    spelt = ("".join(f"\\x{byte:02x}" for byte in word) for word in target.words)
    words.write_text("".join(f'"{word}"\n' for word in spelt), "utf-8")
    return [
        sys.executable,
        "-P",
        "-m",
        "fuzz.child",
        target.name,
        *map(str, folders),
        f"-max_total_time={seconds}",
        f"-timeout={_HANG_SECONDS}",
        f"-rss_limit_mb={_MOST_MB}",
        f"-max_len={_MOST_INPUT_BYTES}",
        "-len_control=0",
        "-print_final_stats=1",
        "-report_slow_units=1000",
        f"-artifact_prefix={findings}/",
        *([f"-dict={words}"] if target.words else []),
    ]


if __name__ == "__main__":
    sys.exit(main())
