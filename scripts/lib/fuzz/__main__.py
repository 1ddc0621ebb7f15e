"""Fuzz the readers of outside bytes, or replay inputs to them.

Each target is fuzzed in a process of its own (fuzz.one_target). It starts from
the seeds in the repository; its corpus is kept in the user's cache, so that the
next run continues from there. Findings are kept in a folder that is printed:
the input, and beside it what happened.
"""

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from fuzz.targets import TARGETS, Runner, Target, limit_memory, scratch_folder

# Far more than a busy machine needs: an input takes some milliseconds.
_HANG_SECONDS = 60
_MOST_MB = 1500
_MOST_INPUT_BYTES = 16384
# What kills a target's process is likely to kill the next one soon.
_MOST_STARTS = 30
# In the folder of findings, but no findings.
_OTHER_FILES = ("log", "dictionary")


def main() -> int:
    """List, replay or fuzz, as the arguments say; return the exit code."""
    args = _parse_arguments()
    if args.list:
        for target in TARGETS.values():
            print(f"{target.name:<16} {target.description}")
        return 0
    chosen = [TARGETS[name] for name in args.targets] or [*TARGETS.values()]
    if args.input:
        return _replay(chosen, args.input)
    findings = args.findings or _cache() / time.strftime("findings-%Y%m%dT%H%M%S")
    fuzzed = [_fuzz(target, args, findings / target.name) for target in chosen]
    found = [path for one in fuzzed for path in one.findings]
    print(f"found: {len(found)}" if found else "found: nothing")
    for path in found:
        print(f"  {path}")
    return 1 if found or not all(one.inputs for one in fuzzed) else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("targets", metavar="TARGET", nargs="*", help="what to fuzz (default: everything)")
    add("--list", action="store_true", help="list the targets")
    add("--input", metavar="FILE", type=Path, nargs="+", help="replay these inputs, or all in a folder")
    add("--seconds", metavar="N", type=int, default=60, help="for each target (default: 60)")
    add("--findings", metavar="DIR", type=Path, help="where to keep findings")
    add("--corpus", metavar="DIR", type=Path, default=_cache() / "corpus",
        help="where to keep inputs that reach new code (default: in the user's cache)")  # fmt: skip
    args = parser.parse_args()
    unknown = [name for name in args.targets if name not in TARGETS]
    if unknown:
        parser.error(f"there is no target {unknown[0]}; see --list")
    if args.input and len(args.targets) != 1:
        parser.error("--input is for one target: name it")
    return args


def _cache() -> Path:
    return Path(platformdirs.user_cache_dir("fwconvert", appauthor=False)) / "fuzz"


def _replay(targets: list[Target], given: list[Path]) -> int:
    """Run a target on inputs, in this process, and print the outcome of each."""
    (target,) = targets
    files = [file for path in given for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    limit_memory()
    found = 0
    with scratch_folder() as folder:
        runner = Runner(target, folder)
        for file in files:
            outcome = runner.run(file.read_bytes())
            found += outcome.status == "found"
            reason = " ".join(outcome.reason.split())[:200] if outcome.status == "refused" else outcome.reason
            print(f"{file.name}: {outcome.status}  {reason}".rstrip(), flush=True)
    return 1 if found else 0


@dataclass(frozen=True)
class _Fuzzed:
    inputs: int
    findings: list[Path]


def _fuzz(target: Target, args: argparse.Namespace, findings: Path) -> _Fuzzed:
    """Fuzz a target for its seconds; start it again if a finding kills it."""
    corpus = args.corpus / target.name
    for folder in (corpus, findings, target.seeds):
        folder.mkdir(parents=True, exist_ok=True)
    log, inputs, covered = findings / "log", 0, ""
    ends = time.monotonic() + args.seconds
    for _ in range(_MOST_STARTS):
        left = int(ends - time.monotonic())
        if left < 1:
            break
        with scratch_folder() as scratch:  # Here: libFuzzer exits without cleaning up.
            command = _command(target, [scratch, findings, corpus, target.seeds], left)
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        output = ended.stdout.decode(errors="replace")
        with log.open("a", encoding="utf-8") as file:
            file.write(output)
        # Killed by a finding, it has printed no more than how far it was.
        inputs += int((re.findall(r"^#(\d+)\t", output, re.MULTILINE) or ["0"])[-1])
        covered = (re.findall(r"cov: \d+ ft: \d+", output) or [covered])[-1]
        if ended.returncode == 0:
            break
    kept = [path for path in sorted(findings.iterdir()) if path.suffix != ".txt"]
    found = [path for path in kept if path.name not in _OTHER_FILES]
    print(
        f"{target.name}: {inputs:,} inputs, {covered or f'NOTHING, see {log}'}, {len(found)} found",
        flush=True,
    )
    return _Fuzzed(inputs, found)


def _command(target: Target, folders: list[Path], seconds: int) -> list[str]:
    """Return the command that fuzzes a target. The folders: scratch, findings, corpus and seeds."""
    findings = folders[1]
    dictionary = findings / "dictionary"
    escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in target.dictionary)
    dictionary.write_text("".join(f'"{word}"\n' for word in escaped), "utf-8")
    return [
        sys.executable,
        "-P",
        "-m",
        "fuzz.one_target",
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
        *([f"-dict={dictionary}"] if target.dictionary else []),
    ]


if __name__ == "__main__":
    sys.exit(main())
