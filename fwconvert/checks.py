"""Whether rules can be carried out; if not, what to change."""

import math
import re

from fwconvert import expression, typed, where
from fwconvert.config import Rules
from fwconvert.errors import UsageError, message


def check_rules(rules: Rules) -> Rules:
    """Return `rules` if they can be carried out; raise UsageError that says what to change."""
    typed.check(rules)
    kind = rules.kind
    most = kind.most(rules.token_bytes)
    if kind.is_one_stream:
        kind.check_stream(rules.layout, rules.shard_tokens, rules.name, rules.last)
    else:
        # The last shard takes in what does not fill another.
        longest = most // 2 if rules.last == "merge" else most
        _check_count("--shard-tokens", rules.shard_tokens, 1, longest, kind.limit)
        _check_name(rules.name)
        kind.check_name(rules.name)
    _check_count("--val-tokens", rules.val_tokens, 0, most, kind.limit)
    _check_text_column(rules.text_column)
    if not 1 <= rules.block_digits <= 20:
        raise UsageError(message("block numbers cannot have so many digits", digits=rules.block_digits))
    _check_compression(rules)
    _check_choice(rules)
    return rules


def _check_compression(rules: Rules) -> None:
    if rules.compress is None:
        return
    if not rules.kind.zips:
        raise UsageError(
            message(
                f"{rules.kind.trainer} cannot read compressed token shards, nor can fwconvert",
                "leave --compress out, or choose --format llmc, npy or raw",
                format=rules.format,
            )
        )
    if not re.fullmatch(r"zstd [0-9]{1,3}(\.[0-9]{1,3}){2}, level [0-9]{1,2}", rules.compress):
        raise UsageError(message("this is no known way to compress", given=ascii(rules.compress)))


def _check_count(flag: str, tokens: int, least: int, most: int, limit: str) -> None:
    if not least <= tokens <= most:
        raise UsageError(
            message(
                f"{flag} is out of range ({limit})",
                f"choose a number from {least:,} to {most:,}",
                given=f"{tokens:,}",
            )
        )


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UsageError(
            message(
                "--name cannot be the beginning of a file name",
                "use letters, digits, '.', '_' and '-'; begin with a letter or a digit",
                given=repr(name),
            )
        )


def _check_text_column(name: str) -> None:
    """Raise UsageError for bytes that are no text, as a command line may hold them; no record can."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(
            message("--text-column is no text", "name a column of the sources", given=ascii(name))
        ) from None


def _check_choice(rules: Rules) -> None:
    """Raise UsageError if documents cannot be chosen so."""
    for flag, number, least, most in (
        ("--min-score", rules.min_score, -math.inf, math.inf),
        ("--min-int-score", rules.min_int_score, -(2**63), 2**63),
        ("--limit-documents", rules.limit_documents, 0, 2**63),
        ("--limit-tokens", rules.limit_tokens, 0, 2**63),
    ):
        if number is not None and not least < number < most:
            raise UsageError(message(f"{flag} is out of range", given=number))
    # A text of its own for an expression that is written otherwise would be another recipe.
    if rules.where is not None and expression.text(where.parse(rules.where)) != rules.where:
        raise UsageError(message("the expression of --where is not in its one form", where=rules.where))
