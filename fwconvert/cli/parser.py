"""The command-line parser: arguments in, an exit code out.

Exit codes: 0 done; 1 incomplete or failed; 2 the caller's mistake, and nothing was
written; 129, 130 and 143 stopped (SIGHUP, SIGINT, SIGTERM). They report the outcome
of the work, even if nothing can be printed.
"""

import argparse
import difflib
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, get_args

from fwconvert import processes
from fwconvert.addresses import plain
from fwconvert.cli import commands
from fwconvert.cli.console import note, tell
from fwconvert.errors import FwconvertError, UsageError, message
from fwconvert.formats import FormatName
from fwconvert.options import parse_count

if TYPE_CHECKING:  # For annotations only, so that --help stays fast.
    from fwconvert.run.engines import Engine

_DESCRIPTION = """\
Convert FineWeb-Edu parquet files into exact fixed-size token shards.

  fwconvert --version demo                  try it: offline, in seconds
  fwconvert --version 10B                   fetch FineWeb-Edu and convert it
  fwconvert --source DIR --out OUT          convert your own parquet files
  fwconvert plan    [the same options]      what a run would need; changes nothing
  fwconvert pin     REPO PATH -o FILE       pin any dataset, for --version FILE
  fwconvert status  OUT                     how far a run is
  fwconvert verify  OUT                     check every file of a run
  fwconvert show    OUT SHARD               read the documents of a token shard
  fwconvert show    OUT --document N        read one document of the run
  fwconvert trace   OUT SHARD:OFFSET        the source, row, id and URL of a token
  fwconvert export  OUT --format F -o DIR   another format, without tokenizing again

After a crash, run the same command again: it resumes. To start over, remove the folder.
"""


def main(argv: Sequence[str] | None = None, *, engine: "Engine | None" = None) -> int:
    """Run a command; return its exit code. Errors are printed, never raised.

    A program may pass the engine that `convert` and `export` run on.
    """
    processes.open_standard_streams()
    try:
        return _run(list(sys.argv[1:] if argv is None else argv), engine)
    except UsageError as error:
        return _complain(error, 2)
    except FwconvertError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return _complain("stopped", 130)
    except Exception as error:  # noqa: BLE001  # users should not have to read a traceback
        if os.environ.get("FWCONVERT_DEBUG"):
            note(plain(traceback.format_exc()))
        return _complain(
            f"{type(error).__name__}: {plain(error)}\n  -> set FWCONVERT_DEBUG=1 to see where", 1
        )


def _complain(error: object, code: int) -> int:
    note(f"fwconvert: {error}")
    return code


class _Parser(argparse.ArgumentParser):
    """Prints through the console module, so that a broken pipe does not change the exit code."""

    def print_help(self, file: object = None) -> None:  # noqa: ARG002  # always a result
        tell(self.format_help().removesuffix("\n"))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.format_usage()}{self.prog}: error: {message}\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if message:
            note(message.removesuffix("\n"))
        sys.exit(status)


def _run(argv: list[str], engine: "Engine | None") -> int:
    parsers = {
        "plan": (_plan_parser, commands.plan),
        "pin": (_pin_parser, commands.pin),
        "status": (_status_parser, commands.status),
        "verify": (_verify_parser, commands.verify),
        "show": (_show_parser, commands.show),
        "trace": (_trace_parser, commands.trace),
        "export": (_export_parser, commands.export),
    }
    if not argv or argv[0].startswith("-"):
        args = _convert_parser().parse_args(argv, argparse.Namespace(engine=engine))
        return commands.about() if args.about else commands.convert(args)
    if argv[0] not in parsers:
        close = difflib.get_close_matches(argv[0], parsers, n=1)
        meant = [f"did you mean {word}?" for word in close]
        known = f"the commands are {', '.join(parsers)}; without a command it converts"
        raise UsageError(message("unknown command", *meant, known, given=argv[0]))
    make, command = parsers[argv[0]]
    return command(make().parse_args(argv[1:], argparse.Namespace(engine=engine)))


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    program = "fwconvert" if not name else f"fwconvert {name}"
    return _Parser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _convert_parser() -> argparse.ArgumentParser:
    parser = _parser("", _DESCRIPTION)
    parser.add_argument("--about", action="store_true", help="show the version and exit")
    _add_recipe(parser)
    group = parser.add_argument_group("options (they do not change a byte of the output)")
    _add_out(group)
    group.add_argument("--quiet", action="store_true", help="print errors only")
    return parser


def _plan_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "plan", "Show what a run would need: files, tokens, token shards, disk. Changes nothing."
    )
    _add_recipe(parser)
    _add_out(parser.add_argument_group("options"))
    _add_json(parser)
    return parser


def _pin_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "pin",
        "Make a source manifest: the exact list of files, with sizes and sha256, of a dataset on the hub\n"
        "or of a folder on this machine. Use it with --version FILE.",
    )
    add = parser.add_argument
    add("source", metavar="REPO|DIR", type=_given, help="a dataset on the hub (owner/name), or a folder here")
    add("path", metavar="PATH", nargs="?", default="", help="a folder of the repository (default: all of it)")
    add("--revision", metavar="R", default="", help="a branch, tag or commit (default: main)")
    add("-o", "--output", metavar="FILE", type=_path, required=True, help="where to write the manifest")
    return parser


def _status_parser() -> argparse.ArgumentParser:
    parser = _parser("status", "Show how far a run is, and what failed. Exit code 0: complete; 1: not yet.")
    _add_run(parser)
    _add_json(parser)
    return parser


def _verify_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "verify",
        "Check every file of a run: sizes, sha256, totals, document index, token ids. Exit code 1: problems.",
    )
    _add_run(parser)
    _add_json(parser)
    return parser


def _show_parser() -> argparse.ArgumentParser:
    parser = _parser("show", "Decode the first documents of a token shard, or one document of the run.")
    _add_run(parser)
    add = parser.add_argument
    add("shard", metavar="SHARD", nargs="?", help="a token shard's name, or an unambiguous part of it")
    add("--documents", metavar="N", type=_count(1), default=3, help="how many (default 3)")
    add("--document", metavar="N", type=_count(1),
        help="instead: the whole document N of the run; 1 is the first one of the first source")  # fmt: skip
    return parser


def _trace_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "trace",
        "Show where a token comes from: the source file, the row, and the id and url in that row.\n"
        "The row is read from --source, from its former place, or from the hub, and must match the tokens.",
    )
    _add_run(parser)
    add = parser.add_argument
    add("place", metavar="SHARD:OFFSET", help="a token shard, and the index of a token in it, from 0")
    add("--source", metavar="DIR", type=_path, help="the folder with the source files")
    _add_json(parser)
    return parser


def _export_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "export",
        "Make another run from a finished one without tokenizing again. The files are those that a\n"
        "conversion with these flags would make; whatever is not given stays as it is.\n"
        "After a crash, run the same command again: it resumes.",
    )
    _add_run(parser)
    _add_shape(parser.add_argument_group("what to make (part of the recipe)"), changes=True)
    group = parser.add_argument_group("options (they do not change a byte of the output)")
    group.add_argument(
        "-o", "--out", metavar="DIR", dest="new", type=_path, required=True, help="a new folder"
    )
    _add_work(group)
    group.add_argument("--quiet", action="store_true", help="print errors only")
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", type=_path, help="the output folder of a run")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    source = parser.add_argument_group("what to convert")
    source.add_argument(
        "--version", metavar="NAME", type=_given, help="10B, 100B, 350B, full, demo, or a manifest file"
    )
    source.add_argument(
        "--source", metavar="DIR|GLOB|FILE", type=_given, help="parquet files on this machine"
    )
    source.add_argument("--text-column", metavar="NAME", default="text", help="default: text")
    recipe = parser.add_argument_group("what to make (part of the recipe)")
    add = recipe.add_argument
    add("--tokenizer", metavar="NAME", default="gpt2",
        help="gpt2 (default), cl100k_base, o200k_base, r50k_base, p50k_base, bytes")  # fmt: skip
    _add_shape(recipe)
    _add_choice(parser.add_argument_group("which documents (part of the recipe)").add_argument)


def _add_shape(group: "argparse._ArgumentGroup", *, changes: bool = False) -> None:
    """Add the flags that decide the files but not the tokens; for an export, those that may differ."""
    add, same = group.add_argument, "as in OUT"
    add("--format", choices=get_args(FormatName), default=None if changes else "llmc",
        help="llmc: llm.c, modded-nanogpt; npy: build-nanogpt; raw: nanoGPT, one file; "
        f"megatron: Megatron-LM; datatrove: nanotron (default: {same if changes else 'llmc'})")  # fmt: skip
    side = f"{same}, or that of a new --format" if changes else "before for llmc and npy, else after"
    add("--eot", choices=("before", "after"), help=f"where a document's separator is (default: {side})")
    add("--shard-tokens", metavar="N", type=_count(1),
        help=f"tokens in a shard (default: {same if changes else '100M; demo: 250k'})")  # fmt: skip
    add("--val-tokens", metavar="N", type=_count(0), help="tokens for validation, from the first source "
        f"(default: {same if changes else 'one shard'}; 0: none)")  # fmt: skip
    add("--layout", choices=("independent", "contiguous"),
        help="independent: shards per source; contiguous: one stream, as in llm.c "
        f"(default: {same if changes else 'independent'})")  # fmt: skip
    add("--last", choices=("merge", "keep", "drop"),
        help="a last shard that is not full: merge it into the one before, keep it or drop it "
        f"(default: {same if changes else 'merge'})")  # fmt: skip
    add("--compress", choices=("none", "zstd"), default=None if changes else "none",
        help="zstd: shards to be shipped, not memory-mapped (llmc, npy, raw) "
        f"(default: {same if changes else 'none'})")  # fmt: skip
    add("--name", metavar="PREFIX",
        help=f"prefix of file names (default: {same if changes else 'edu_fineweb'})")  # fmt: skip


def _add_choice(add: Callable[..., object]) -> None:
    add("--min-score", metavar="X", type=_finite, help="keep rows whose column score is at least X")
    add("--min-int-score", metavar="N", type=_whole, help="keep rows whose column int_score is at least N")
    add("--where", metavar="EXPR",
        help="keep rows for which this is true: \"language_score > 0.9 and language == 'en'\"")  # fmt: skip
    add("--limit-documents", metavar="N", type=_count(1), help="stop after N documents")
    add("--limit-tokens", metavar="N", type=_count(1),
        help="stop after N tokens, separators included; the last document is cut there")  # fmt: skip


def _add_out(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--out", metavar="DIR", type=_path, help="output folder (default: edu_fineweb{VERSION})"
    )
    group.add_argument(
        "--threads", metavar="N", type=_count(1), help="in each process (default: cores / workers)"
    )
    group.add_argument(
        "--encoder", choices=("auto", "fast", "reference"), default="auto",
        help="fast: gigatoken, audited; reference: tiktoken (default: auto)",
    )  # fmt: skip
    _add_work(group)
    _add_fetching(group.add_argument)


def _add_work(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--workers", metavar="N", type=_count(1), help="processes (default: one for each core)"
    )
    group.add_argument(
        "--rehash", action="store_true",
        help="hash all existing output, and remake what is damaged "
        "(default: hash what has been modified since)",
    )  # fmt: skip
    group.add_argument(
        "--no-disk-check", dest="check_disk", action="store_false",
        help="start even if the disk seems too small",
    )  # fmt: skip
    group.add_argument(
        "--worker-memory", metavar="BYTES", type=_count(1),
        help="kill a process that uses more (default: its share of 80 %% of the machine's memory)",
    )  # fmt: skip
    group.add_argument(
        "--stall-timeout", metavar="SECONDS", type=_count(1), default=900,
        help="kill a process without progress for this long (default: 900)",
    )  # fmt: skip


def _add_fetching(add: Callable[..., object]) -> None:
    add("--keep-source", metavar="DIR", type=_path,
        help="keep fetched files here, and reuse those already there (default: remove them)")  # fmt: skip
    add("--prefetch", metavar="N", type=_count(1),
        help="files fetched ahead of the workers (default: 4, or half the workers)")  # fmt: skip
    add("--max-connections", metavar="N", type=_count(1), default=64,
        help="connections to the hub; as many as make it faster are used (default: at most 64)")  # fmt: skip
    add("--patience", metavar="SECONDS", type=_count(1), default=600,
        help="how long to retry without progress from the hub (default: 600)")  # fmt: skip


def _given(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty: is a shell variable not set?")
    return text


def _path(text: str) -> Path:
    """Return a path. Refuse "", which an unset shell variable gives: it would mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: is a shell variable not set? The current folder is .")
    return Path(text)


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 3 or 2.5")
    return number


def _whole(text: str) -> int:
    if not re.fullmatch("[+-]?[0-9]{1,18}", text.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number such as 3")
    return int(text)


def _count(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = parse_count(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is less than {least}")
        return number

    return parse
