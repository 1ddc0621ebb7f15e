"""The command line: words in, an exit code out.

Exit codes: 0 done; 1 incomplete or failed; 2 the caller's mistake, and nothing was
written; 129, 130 and 143 stopped (SIGHUP, SIGINT, SIGTERM). They report the outcome
of the work, even if nothing can be printed.

`COMMANDS` has every command but the conversion itself, which needs no word. What a
mistake is answered with is in `mistakes`, what values may be in `values`.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fwconvert import processes
from fwconvert.addresses import plain
from fwconvert.cli import commands, flags, looking, values
from fwconvert.cli.console import note, notes_as_json
from fwconvert.cli.mistakes import Parser, first_word
from fwconvert.errors import FwconvertError, UsageError

if TYPE_CHECKING:  # For annotations only, so that --help stays fast.
    from fwconvert.run.engines import Engine

# An example, and what it is for.
Examples = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Command:
    """A command: how it is filled with flags, what it does, and what its help says."""

    # Under which heading the help of the program has it.
    group: str
    summary: str
    fill: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int]
    about: str
    examples: Examples


def main(argv: Sequence[str] | None = None, *, engine: "Engine | None" = None) -> int:
    """Run a command; return its exit code. Errors are printed, never raised.

    A program may pass the engine that `convert` and `export` run on.
    """
    processes.open_standard_streams()
    notes_as_json(wanted=False)
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


def _run(words: list[str], engine: "Engine | None") -> int:
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if words[:1] == ["convert"]:  # What needs no word may have one.
        words = words[1:]
    if words in (["--version"], ["-V"]):
        return commands.versions()
    given = argparse.Namespace(engine=engine)
    if not words or words[0].startswith(_HYPHENS):
        parser = program()
        args = parser.read(words, given, _FlagsOfOthers())
        if args.about:
            return commands.about()
        if args.rank is None and args.world is None:
            return commands.convert(args)
        return commands.rank(args, _given_words(parser, words))
    name, *rest = words
    if name not in COMMANDS:
        raise UsageError(first_word(name, [*COMMANDS], rest))
    parser = command_parser(name)
    return COMMANDS[name].run(parser.read(rest, given, _FlagsOfOthers()))


# What a flag may begin with, as people type it; only the first is right.
_HYPHENS = ("-", "\N{EN DASH}", "\N{EM DASH}", "\N{MINUS SIGN}")


class _FlagsOfOthers(Mapping[str, list[str]]):
    """The flags of every command, made when they are asked for: after a mistake."""

    def __getitem__(self, name: str) -> list[str]:
        return command_parser(name).flags if name else program().flags

    def __iter__(self) -> Iterator[str]:
        return iter(["", *COMMANDS])

    def __len__(self) -> int:
        return len(COMMANDS) + 1


def _given_words(parser: Parser, words: list[str]) -> dict[str, object]:
    """Return the values of the flags that are on the command line; the parser has no defaults after this."""
    for action in parser._actions:  # noqa: SLF001  # argparse has no other way to ask
        action.default = argparse.SUPPRESS
    return vars(parser.read(words))


# --- the parsers


def program() -> Parser:
    """Return the parser of a conversion, whose help is that of the program."""
    parser = _parser("fwconvert", _PROGRAM, _PROGRAM_EXAMPLES)
    parser.usage = "fwconvert [COMMAND] [flags]"
    add = parser.add_argument
    add(
        "--about",
        action="store_true",
        help="show the version and exit; --version alone shows the data's, too",
    )
    flags.add_recipe(parser)
    group = parser.add_argument_group("where, and with what (no byte of the output depends on it)")
    flags.add_out(group)
    flags.add_encoding(group)
    flags.add_display(group)
    flags.add_wandb(group)
    flags.add_work(parser.add_argument_group("work"))
    flags.add_fetching(parser.add_argument_group("fetching").add_argument)
    ranks = parser.add_argument_group("more than one machine")
    flags.add_engine(ranks)
    ranks.add_argument(
        "--rank", metavar="I|auto", type=values.rank,
        help="convert only the share of this rank of the plan in --out (see plan --save); "
        "auto: as Slurm or Kubernetes say",
    )  # fmt: skip
    flags.add_world(ranks)
    return parser


def command_parser(name: str) -> Parser:
    """Return the parser of a command."""
    command = COMMANDS[name]
    parser = _parser(f"fwconvert {name}", command.about, command.examples)
    fill(parser, command)
    return parser


def fill(parser: Parser, command: Command) -> None:
    """Give the flags of a command to a parser, and a usage that fits on a line."""
    command.fill(parser)
    names = [*_positional(parser), *_required(parser)]
    parser.usage = " ".join([parser.prog, *names, "[flags]"])


def _positional(parser: Parser) -> list[str]:
    found = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001
    names = [(str(action.metavar or action.dest), action.nargs) for action in found]
    return [f"[{name}]" if nargs == "?" else name for name, nargs in names]


def _required(parser: Parser) -> list[str]:
    found = [action for action in parser._actions if action.option_strings and action.required]  # noqa: SLF001
    return [f"{action.option_strings[0]} {action.metavar}" for action in found]


def _parser(name: str, description: str, examples: Examples) -> Parser:
    width = max(len(line) for line, _ in examples)
    shown = "\n".join(f"  {line:<{width}}  {what}" for line, what in examples)
    return Parser(
        prog=name,
        description=description,
        epilog=f"examples:\n{shown}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        exit_on_error=False,
    )


def _fill_plan(parser: Parser) -> None:
    group = parser.add_argument_group("what to plan with")
    group.add_argument(
        "--bandwidth", metavar="SPEED", type=values.bandwidth,
        help="of the line to the sources: 100M, 1G (bits a second), 12MB/s "
        "(default: measured for two seconds)",
    )  # fmt: skip
    group.add_argument(
        "--save", action="store_true", help="write the plan into --out, for ranks to convert (--rank)"
    )
    flags.add_json(group)
    flags.add_recipe(parser)
    group = parser.add_argument_group("where, and with what (no byte of the output depends on it)")
    flags.add_out(group)
    flags.add_encoding(group)
    flags.add_work(parser.add_argument_group("work"))
    flags.add_fetching(parser.add_argument_group("fetching").add_argument)
    flags.add_engine(parser.add_argument_group("more than one machine"))


def _fill_pin(parser: Parser) -> None:
    add = parser.add_argument
    add("source", metavar="REPO|DIR", type=values.given,
        help="a dataset on the hub (owner/name), or a folder here")  # fmt: skip
    add("path", metavar="PATH", nargs="?", default="", help="a folder of the repository (default: all of it)")
    add("--revision", metavar="R", default="", help="a branch, tag or commit (default: main)")
    add("-o", "--output", "--out", metavar="FILE", type=values.path, required=True,
        help="where to write the manifest")  # fmt: skip


def _fill_with_run(parser: Parser) -> None:
    flags.add_run(parser)
    flags.add_json(parser)


def _fill_repair(parser: Parser) -> None:
    flags.add_run(parser)
    parser.add_argument(
        "--source", metavar="DIR", type=values.place,
        help="where the sources are now, or s3://... (default: where they were, or the hub)",
    )  # fmt: skip
    flags.add_display(parser)
    flags.add_wandb(parser)
    group = parser.add_argument_group("with what (no byte of the output depends on it)")
    flags.add_encoding(group)
    flags.add_work(group, rehash=False)
    flags.add_fetching(parser.add_argument_group("fetching").add_argument)
    flags.add_engine(parser.add_argument_group("more than one machine"))


def _fill_show(parser: Parser) -> None:
    flags.add_run(parser)
    add = parser.add_argument
    add("shard", metavar="SHARD", nargs="?", help="a token shard's name, or an unambiguous part of it")
    add("--documents", metavar="N", type=values.count(1), default=3, help="how many (default 3)")
    add("--document", metavar="N", type=values.count(1),
        help="instead: the whole document N of the run; 1 is the first one of the first source")  # fmt: skip


def _fill_trace(parser: Parser) -> None:
    flags.add_run(parser)
    add = parser.add_argument
    add("place", metavar="SHARD:OFFSET", help="a token shard, and the index of a token in it, from 0")
    add("--source", metavar="DIR", type=values.place, help="the folder with the source files, or s3://...")
    flags.add_json(parser)


def _fill_report(parser: Parser) -> None:
    flags.add_run(parser)
    add = parser.add_argument
    add("-o", "--output", "--out", metavar="FILE", dest="output", type=values.path,
        help="where to write it (default: OUT's name, then .html)")  # fmt: skip
    add("--verify", action="store_true", help="read and check every file of the run for it")


def _fill_browse(parser: Parser) -> None:
    flags.add_run(parser)
    parser.add_argument(
        "--port", metavar="N", type=values.count(0),
        help="on 127.0.0.1 (default: 8642, or any that is free; 0: any)",
    )  # fmt: skip


def _fill_compare(parser: Parser) -> None:
    add = parser.add_argument
    add("a", metavar="A", type=values.place, help="the output folder of a run, or s3://...")
    add("b", metavar="B", type=values.place, help="that of another run")
    flags.add_json(parser)


def _fill_export(parser: Parser) -> None:
    flags.add_run(parser)
    parser.add_argument(
        "-o", "--out", metavar="DIR", dest="new", type=values.place, required=True,
        help="a new folder, or s3://...",
    )  # fmt: skip
    flags.add_copies(parser.add_argument)
    flags.add_display(parser)
    flags.add_wandb(parser)
    flags.add_shape(parser.add_argument_group("what to make (part of the recipe)"), changes=True)
    flags.add_work(parser.add_argument_group("work (no byte of the output depends on it)"))
    flags.add_engine(parser.add_argument_group("more than one machine"))


def _fill_merge(parser: Parser) -> None:
    flags.add_run(parser)
    flags.add_world(parser)
    flags.add_copies(parser.add_argument)
    flags.add_display(parser)
    flags.add_wandb(parser)
    flags.add_work(parser.add_argument_group("work (no byte of the output depends on it)"))
    flags.add_engine(parser.add_argument_group("more than one machine"))


def _fill_copy(parser: Parser) -> None:
    flags.add_run(parser)
    add = parser.add_argument
    add("new", metavar="NEW", type=values.place, help="a folder, or s3://bucket/prefix (gs://, az://)")
    flags.add_copies(add)
    flags.add_display(parser)


def _fill_completion(parser: Parser) -> None:
    shells = commands.SHELLS
    parser.add_argument(
        "shell", metavar="SHELL", choices=shells, type=values.one_of(shells), help=", ".join(shells)
    )


# --- the table

COMMANDS: dict[str, Command] = {
    "plan": Command(
        "before a run",
        "what a run would need: tokens, disk, time",
        _fill_plan,
        commands.plan,
        "Answer before anything is spent: files, tokens, token shards, disk, time, and what limits it.\n"
        "A few row groups are read and encoded for that, of files on the hub by ranges. Changes nothing,\n"
        "except with --save. Exit code 1: the disk is too small.",
        (
            ("fwconvert plan --version 10B", "the whole 10BT sample"),
            ("fwconvert plan --source data --min-score 3", "what a filter keeps"),
            ("fwconvert plan --version 100B --bandwidth 1G", "with a line of 1 Gbit/s"),
        ),
    ),
    "pin": Command(
        "before a run",
        "pin any dataset, for --version FILE",
        _fill_pin,
        commands.pin,
        "Make a source manifest: the exact list of files, with sizes and sha256, of a dataset on the hub\n"
        "or of a folder on this machine. Use it with --version FILE.",
        (
            ("fwconvert pin data -o mine.json", "a folder here"),
            ("fwconvert pin HuggingFaceFW/fineweb sample/10BT -o fineweb10B.json", "a part of a dataset"),
        ),
    ),
    "status": Command(
        "look at a run",
        "how far it is, and what failed",
        _fill_with_run,
        commands.status,
        "Show how far a run is, and what failed. Exit code 0: complete; 1: not yet.",
        (("fwconvert status tokens", "in words"), ("fwconvert status tokens --json", "for programs")),
    ),
    "verify": Command(
        "look at a run",
        "check every file of it",
        _fill_with_run,
        commands.verify,
        "Check every file of a run: sizes, sha256, totals, document index, token ids. Exit code 1: problems.",
        (("fwconvert verify tokens", "prove it"), ("fwconvert repair tokens", "if there are problems")),
    ),
    "show": Command(
        "look at a run",
        "read the documents of a token shard",
        _fill_show,
        commands.show,
        "Decode the first documents of a token shard, or one document of the run.",
        (
            ("fwconvert show tokens train_00000_000", "the first documents of a token shard"),
            ("fwconvert show tokens --document 2", "one document of the run"),
        ),
    ),
    "trace": Command(
        "look at a run",
        "the source, row, id and URL of a token",
        _fill_trace,
        commands.trace,
        "Show where a token comes from: the source file, the row, and the id and url in that row.\n"
        "The row is read from --source, from its former place, or from the hub, and must match the tokens.",
        (("fwconvert trace tokens train_00000_000:1234", "token 1234 of that shard"),),
    ),
    "report": Command(
        "look at a run",
        "one page about it, for a browser",
        _fill_report,
        looking.report,
        "Write one page about a run, for a browser: what was made, how fast, what the documents are like.\n"
        "It needs no network and loads nothing. Runs that are not finished, or were made by an earlier\n"
        "version, have a page with what is known of them.",
        (("fwconvert report tokens -o tokens.html", "open that file in a browser"),),
    ),
    "browse": Command(
        "look at a run",
        "the same page, live, with a reader",
        _fill_browse,
        looking.browse,
        "Show the page of a run in a browser on this machine, live while the run goes on, with a reader:\n"
        "any document, any token, search. Only this machine can reach it. Ctrl-C ends it.",
        (("fwconvert browse tokens", "then open the address that it prints"),),
    ),
    "compare": Command(
        "look at a run",
        "how two runs differ",
        _fill_compare,
        looking.compare,
        "Compare two runs: their recipes and counts, which token shards are equal, byte for byte, by the\n"
        "sha256 in the run manifests, and where the first difference is. Exit code 0: equal; 1: not.",
        (
            ("fwconvert compare tokens other", "in words"),
            ("fwconvert compare tokens other --json", "for programs"),
        ),
    ),
    "repair": Command(
        "change a run",
        "make damaged or missing files again",
        _fill_repair,
        commands.repair,
        "Hash every file of a run, and make those again from their sources that are damaged or missing.\n"
        "A run that is not finished is finished. After a crash, run the same command again.\n"
        "Exit code 0: it is whole.",
        (
            ("fwconvert repair tokens", "from where the sources were"),
            ("fwconvert repair tokens --source data", "from where they are now"),
        ),
    ),
    "export": Command(
        "change a run",
        "another format, without tokenizing again",
        _fill_export,
        commands.export,
        "Make another run from a finished one without tokenizing again. The files are those that a\n"
        "conversion with these flags would make; whatever is not given stays as it is.\n"
        "After a crash, run the same command again: it resumes.",
        (
            ("fwconvert export tokens --format npy -o as_npy", "for build-nanogpt"),
            ("fwconvert export tokens --shard-tokens 2k -o small", "smaller token shards"),
        ),
    ),
    "copy": Command(
        "change a run",
        "a finished run to or from an object store",
        _fill_copy,
        commands.copy,
        "Copy a finished run, to an object store, from one, or anywhere else. Every file is proven by its\n"
        "sha256, and the manifest comes last. If it is interrupted, the same command goes on.",
        (
            ("fwconvert copy tokens other", "to another folder"),
            ("fwconvert copy tokens s3://bucket/tokens", "to an object store"),
        ),
    ),
    "merge": Command(
        "change a run",
        "finish what many machines converted (--rank)",
        _fill_merge,
        commands.merge,
        "Finish a run that ranks have converted: check what they made, join the tails, write the manifest.\n"
        "If sources are missing, nothing is joined; the ranks to run again are printed as Slurm's --array\n"
        "takes them, then the sources, and the exit code is 1.",
        (("fwconvert merge tokens", "when all ranks are done"),),
    ),
    "completion": Command(
        "your shell",
        "complete these words by TAB",
        _fill_completion,
        commands.completion,
        "Print what lets a shell complete commands, flags, their choices and paths. To keep it:\n"
        "  bash  fwconvert completion bash > ~/.local/share/bash-completion/completions/fwconvert\n"
        "  zsh   fwconvert completion zsh > ~/.zfunc/_fwconvert   (with fpath+=~/.zfunc before compinit)\n"
        "  fish  fwconvert completion fish > ~/.config/fish/completions/fwconvert.fish",
        (("fwconvert completion bash", "the others are zsh and fish"),),
    ),
}


def _summaries() -> str:
    width, lines, group = max(map(len, COMMANDS)), [], ""
    for name, command in COMMANDS.items():
        if command.group != group:
            group = command.group
            lines.append(f"{group}:")
        lines.append(f"  {name:<{width}}  {command.summary}")
    return "\n".join(lines)


_PROGRAM = f"""\
Convert FineWeb-Edu parquet files into exact fixed-size token shards. After a crash, run the
same command again: it resumes. To start over, remove the folder.

{_summaries()}
Without a command it converts; the flags are below. fwconvert COMMAND --help has those of a command."""

_PROGRAM_EXAMPLES = (
    ("fwconvert --version demo", "try it: offline, in seconds"),
    ("fwconvert --source data --out tokens", "convert your own parquet files"),
    ("fwconvert --source 'data/*.parquet' --where 'score > 3' -o good", "those documents alone"),
    ("fwconvert --version 10B", "fetch FineWeb-Edu's 10BT sample and convert it"),
    ("fwconvert --version 10B --limit-tokens 1B --out one", "its first billion tokens"),
)
