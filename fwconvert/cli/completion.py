"""Completion of the program's words by a shell: a script that shtab makes of the parsers.

The script has all words in it, so that TAB starts no Python. What it cannot know, such
as the token shards of a run, is not completed.
"""

import argparse

import shtab

from fwconvert.cli import parser as parsers
from fwconvert.cli.mistakes import Parser
from fwconvert.sources import catalog
from fwconvert.tokens import registry

# What the values of flags and arguments are, by what the help calls them.
_PATHS = {
    "DIR": shtab.DIR, "OUT": shtab.DIR, "NEW": shtab.DIR, "REPO|DIR": shtab.DIR,
    "FILE": shtab.FILE, "DIR|GLOB|FILE": shtab.FILE,
}  # fmt: skip


def script(shell: str) -> str:
    """Return the script for a shell."""
    return shtab.complete(_tree(), shell=shell).rstrip()


def _tree() -> Parser:
    """Return all commands as subcommands of the program, as shtab reads them."""
    program = parsers.program()
    # Without a usage of its own: shtab takes it for a pattern.
    program.usage = program.description = program.epilog = None
    commands = program.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in parsers.COMMANDS.items():
        parser = commands.add_parser(name, help=command.summary, allow_abbrev=False)
        command.fill(parser)
        _tell_values(parser)
    commands.add_parser(
        "convert", help="the same as without a command", parents=[parsers.program()], add_help=False
    )
    _tell_values(program)
    return program


def _tell_values(parser: argparse.ArgumentParser) -> None:
    """Say what the values of flags can be, where the parser does not know."""
    names = {
        "--version": catalog.names(),
        "--tokenizer": [name for kind in registry.KINDS.values() for name in kind.names()],
    }
    for action in parser._actions:  # noqa: SLF001  # there is no other way to them
        for flag in action.option_strings:
            action.choices = names.get(flag, action.choices)
        path = _PATHS.get(str(action.metavar))
        if path is not None and action.choices is None:
            action.complete = path  # type: ignore[attr-defined]  # as shtab asks for it
