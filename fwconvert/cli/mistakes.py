"""A parser that says what somebody seems to have meant, instead of printing its usage.

Whatever is wrong with the words of a command line becomes one UsageError: what is
wrong, the values, what to do. The mistakes that are told apart are those that people
make: a misspelt flag, a flag of another command or another program, a pattern that
the shell has expanded, a version or a folder without its flag.
"""

import argparse
import difflib
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from fwconvert.cli import values
from fwconvert.cli.console import tell
from fwconvert.errors import UsageError, message
from fwconvert.sources import catalog

# What people say who come from other programs, by the word without its hyphens.
_SYNONYMS = {
    "batch-size": "--workers", "codec": "--compress", "compression": "--compress", "cpus": "--workers",
    "dataset": "--version", "data": "--source", "input": "--source", "in": "--source", "i": "--source",
    "dest": "--out", "destination": "--out", "output": "--out", "output-dir": "--out", "out-dir": "--out",
    "outdir": "--out", "encoding": "--tokenizer", "vocab": "--tokenizer", "model": "--tokenizer",
    "filter": "--where", "query": "--where", "jobs": "--workers", "j": "--workers", "n": "--workers",
    "num-workers": "--workers", "num-proc": "--workers", "nproc": "--workers", "processes": "--workers",
    "max-tokens": "--limit-tokens", "num-tokens": "--limit-tokens", "limit": "--limit-tokens",
    "max-documents": "--limit-documents", "prefix": "--name", "q": "--quiet", "silent": "--quiet",
    "shard-size": "--shard-tokens", "tokens-per-shard": "--shard-tokens", "sample": "--version",
    "subset": "--version", "split": "--version", "tmp": "--scratch", "cache-dir": "--keep-source",
    "val-size": "--val-tokens", "validation-tokens": "--val-tokens", "column": "--text-column",
    "text-field": "--text-column", "text-key": "--text-column", "recursive": "--source",
}  # fmt: skip
# What there is no flag for, and what there is instead.
_NEEDLESS = {
    **dict.fromkeys(("resume", "continue", "restart"), "the same command again continues: it needs no flag"),
    **dict.fromkeys(("force", "overwrite", "f"), "to start over, remove the folder: nothing is overwritten"),
    **dict.fromkeys(("dry-run", "dryrun", "estimate"), "to see what a run needs: fwconvert plan"),
    "verify": "to check a run: fwconvert verify OUT",
    **dict.fromkeys(("v", "V"), "for the version of the program: fwconvert --version"),
}


class Parser(argparse.ArgumentParser):
    """Prints through the console module, so that a broken pipe does not change the exit code."""

    def print_help(self, file: object = None) -> None:  # noqa: ARG002  # always a result
        """Print the help."""
        tell(self.format_help().removesuffix("\n"))

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; called by argparse for arguments that are missing."""
        raise UsageError(_missing(self, message))

    def read(
        self,
        words: Sequence[str],
        namespace: argparse.Namespace | None = None,
        others: Mapping[str, Collection[str]] | None = None,
    ) -> argparse.Namespace:
        """Return what the words say. `others` are the flags of the other commands, by their names."""
        _refuse_dashes(self, words)
        try:
            args, extra = self.parse_known_args(words, namespace)
        except argparse.ArgumentError as error:
            raise UsageError(_refused(self, error)) from None
        if extra:
            raise UsageError(_unknown(self, list(words), extra, others or {}))
        return args

    @property
    def flags(self) -> list[str]:
        """The flags with two hyphens."""
        return [flag for flag in self._option_string_actions if flag.startswith("--")]


def first_word(word: str, commands: Collection[str], rest: Sequence[str]) -> str:
    """Return what to say of a first word that is no command."""
    hint = _meant_by(word, rest) or _meant_command(word, commands, rest)
    known = f"the commands are {', '.join(commands)}; without a command it converts"
    return message("unknown command", hint or known, given=word)


def _meant_command(word: str, commands: Collection[str], rest: Sequence[str]) -> str:
    if word in ("version", "source", "out", "about"):
        return f"did you mean fwconvert --{shlex.join([word, *rest])}?"
    close = difflib.get_close_matches(word, commands, n=1)
    return f"did you mean {close[0]}?" if close else ""


def _meant_by(word: str, rest: Sequence[str] | None) -> str:
    """Return what a word without a flag seems to be: a version, or something to convert.

    If it is the first word, `rest` are those after it.
    """
    versions = {name.lower(): name for name in catalog.names()}
    begin = "" if rest is None else "fwconvert "
    if word.lower() in versions:
        return f"did you mean {begin}--version {shlex.join([versions[word.lower()], *(rest or [])])}?"
    if (
        re.search(r"\.(parquet|jsonl?|ndjson|arrow|feather|csv)\b|[*?]", word)
        or "://" in word
        or os.sep in word
        or Path(word).is_dir()
    ):
        out = " --out OUT" if rest is not None and not {"-o", "--out"} & {*rest} else ""
        return f"did you mean {begin}--source {shlex.join([word, *(rest or [])])}{out}?"
    return ""


def _refuse_dashes(parser: Parser, words: Sequence[str]) -> None:
    """Refuse what argparse would read as something else: a dash for hyphens, one hyphen for two."""
    for word in words:
        if word == "--":
            return
        bare = re.sub("^[-\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}]+", "", word)
        begin, name = word.removesuffix(bare), f"--{bare.partition('=')[0]}"
        if begin and begin.strip("-") and bare:
            raise UsageError(
                message("a flag begins with hyphens, not with a dash", f"did you mean {name}?", given=word)
            )
        if begin == "-" and len(bare) > 1 and name in parser.flags:
            raise UsageError(
                message("a long flag begins with two hyphens", f"did you mean {name}?", given=word)
            )


def _refused(parser: Parser, error: argparse.ArgumentError) -> str:
    name = _name(error.argument_name or "")
    text = error.message
    if values.FLAG in text:
        return text.replace(values.FLAG, name, 1)
    if error.argument_name is None:
        return _missing(parser, text)
    if text == "expected one argument":
        hint = f"choose one of {', '.join(catalog.names())}" if name == "--version" else _help(parser)
        return message(f"{name} needs a value", hint)
    if text.startswith("ignored explicit argument"):
        return message(f"{name} takes no value", "write it alone", given=text.rpartition(" ")[2])
    return message(f"{name}: {text}", _help(parser))


def _missing(parser: Parser, text: str) -> str:
    """Return what to say of arguments that are missing, as argparse lists them."""
    names = text.partition("required: ")[2]
    if not names:
        return message(text, _help(parser))
    first = " and ".join(map(_name, names.split(", ")))
    return message(f"{first} is missing", f"the command is {_usage(parser)}")


def _usage(parser: Parser) -> str:
    return " ".join(parser.format_usage().removeprefix("usage: ").split())


def _help(parser: Parser) -> str:
    return f"{parser.prog} --help tells what it takes"


def _name(argument: str) -> str:
    """Return the longest name of an argument: --out of -o/--out."""
    return max(argument.split("/"), key=len) if argument.startswith("-") else argument


def _unknown(
    parser: Parser, words: list[str], extra: list[str], others: Mapping[str, Collection[str]]
) -> str:
    flag = next((word for word in extra if word.startswith("-")), None)
    if flag is None:
        return _unexpected(parser, words, extra, others)
    name = flag.partition("=")[0]
    bare = name.lstrip("-").lower().replace("_", "-")
    if bare in _NEEDLESS and f"--{bare}" not in parser.flags:
        return message("there is no such flag", _NEEDLESS[bare], given=name)
    exact = _SYNONYMS.get(bare)
    close = difflib.get_close_matches(f"--{bare}", parser.flags, n=1, cutoff=0.7)
    meant = exact if exact in parser.flags else close[0] if close else ""
    if meant:
        return message("there is no such flag", f"did you mean {meant}?", given=name)
    owners = [command for command, flags in others.items() if f"--{bare}" in flags]
    if owners:
        spelled = ", ".join(f"fwconvert {command}".strip() for command in owners)
        return message(f"{parser.prog} has no such flag", f"it is one of {spelled}", given=name)
    return message("there is no such flag", _help(parser), given=name)


def _unexpected(
    parser: Parser, words: list[str], extra: list[str], others: Mapping[str, Collection[str]]
) -> str:
    """Return what to say of words that belong to no flag."""
    place = words.index(extra[0])
    before = words[place - 2] if place > 1 else ""
    if before == "--source" and "--source" in parser.flags:
        return _expanded([words[place - 1], *extra])
    if extra[0] in others:
        rest = shlex.join(word for at, word in enumerate(words) if at != place)
        return message(
            "the command comes first", f"did you mean fwconvert {extra[0]} {rest}?", given=extra[0]
        )
    hint = _meant_by(extra[0], None) if {"--version", "--source"} <= {*parser.flags} else ""
    more = {"and": f"{len(extra) - 1:,} more words"} if len(extra) > 1 else {}
    return message("there is a word that belongs to no flag", hint or _help(parser), given=extra[0], **more)


def _expanded(paths: list[str]) -> str:
    """Return what to say of several paths after --source: the shell has put them in a pattern's place."""
    folders = {os.path.dirname(path) for path in paths}  # noqa: PTH120  # as it was written
    endings = {os.path.splitext(path)[1] for path in paths}  # noqa: PTH122
    pattern = os.path.join(folders.pop(), f"*{endings.pop()}") if len(folders) == len(endings) == 1 else ""  # noqa: PTH118
    quoted = f"--source '{pattern}'" if pattern and "'" not in pattern else "--source 'DIR/*.parquet'"
    return message(
        "--source takes one folder, pattern or file: has the shell expanded a pattern?",
        f"put the pattern in quotes: {quoted}",
        "or name the folder: all files of text below it are taken",
        "or say --source before each of them",
        given=f"{len(paths):,} paths, from {paths[0]} to {paths[-1]}",
    )
