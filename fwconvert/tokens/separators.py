"""Which tokens separate documents: from what a user typed to ids that stand in no text.

A document's boundary is found again in the tokens alone, so a token that text
can give is refused. One separator stands on one side of each document; if two
are asked for, one begins each document and the other ends it, and they differ.
"""

import hashlib
import json
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fwconvert.errors import UsageError, message
from fwconvert.tokens.definition import Facts
from fwconvert.tokens.spec import TokenizerSpec

if TYPE_CHECKING:
    from fwconvert.tokens.defined import Given

_MOST_LISTED = 30


def chosen(
    spec: TokenizerSpec,
    names: Mapping[str, int],
    free: Container[int],
    eot_token: str | None,
    bos_token: str | None,
) -> TokenizerSpec:
    """Return the tokenizer with the separators that a user typed: names, or ids in decimal.

    `names` are those of the special tokens, `free` all ids that no text can
    give. Raises UsageError with the names for anything else.
    """
    if eot_token is None and bos_token is None:
        return spec
    ends = None if eot_token is None else _id_of("--eot-token", eot_token, spec, names, free)
    begins = None if bos_token is None else _id_of("--bos-token", bos_token, spec, names, free)
    if ends is None:  # The one separator; that it stands before each document is the recipe's part.
        ends, begins = begins, None
    assert ends is not None  # noqa: S101  # for mypy: one of the two was given
    if ends == begins:
        raise UsageError(
            message(
                "one token cannot both begin and end each document: where one ends would not be known",
                "choose two tokens, or write one: --bos-token alone is before each document",
                tokenizer=spec.name,
                eot_token=eot_token,
                bos_token=bos_token,
                special_tokens=listed(names),
            )
        )
    is_usual = (ends, begins) == (spec.eot, spec.bos)
    return spec if is_usual else replace(spec, eot=ends, bos=begins, built_in=False)


def _id_of(flag: str, typed: str, spec: TokenizerSpec, names: Mapping[str, int], free: Container[int]) -> int:
    is_number = typed.isascii() and typed.isdecimal()
    found = names.get(typed)
    if found is None and is_number and len(typed) <= 10:
        found = int(typed)
    if found is not None and found < spec.size and found in free:
        return found
    if found is None:
        wrong = "is no special token of this tokenizer"
    elif found >= spec.size:
        wrong = f"is outside the vocabulary of {spec.size:,} ids"
    else:
        wrong = "is a token of ordinary text, so documents could contain it"
    raise UsageError(
        message(
            f"{flag} {wrong}",
            "choose a special token, by its name or its id",
            tokenizer=spec.name,
            given=repr(typed),
            special_tokens=listed(names),
        )
    )


def listed(names: Mapping[str, int]) -> str:
    """Return special tokens as they are shown; some tokenizers have hundreds that are reserved."""
    shown = [f"{name} ({number})" for name, number in names.items()][:_MOST_LISTED]
    return ", ".join(
        [*shown, *([f"and {len(names) - len(shown):,} more"] if len(names) > len(shown) else [])]
    )


# What ends a document in the tokenizers that people have.
_USUAL = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "[EOS]",
    "<|eos|>",
)
# What ends a turn of a conversation, which chat models have in that place.
_TURNS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|return|>",
    "<|end|>",
    "<|end_of_turn|>",
)


def named_in(config: bytes, facts: Facts) -> str | None:
    """Return the separator that a tokenizer_config.json names, if it does and no text has it."""
    try:
        found = json.loads(config.decode())["eos_token"]
        name = found["content"] if isinstance(found, dict) else found
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    usable = isinstance(name, str) and name not in _TURNS and name in facts.candidates
    return name if usable else None


def of_definition(given: "Given", facts: Facts, default: str | None = None) -> TokenizerSpec:
    """Return what a file defines, with the separators that a user typed, or else the usual ones.

    `default` is what the file itself names. Raises UsageError with the candidates where nothing says which.
    """
    spec = TokenizerSpec(
        kind=given.kind,
        name=given.name,
        sha256=hashlib.sha256(given.content).hexdigest(),
        size=facts.size,
        eot=-1,
    )
    ends = given.eot_token
    if ends is None and given.bos_token is None:
        usual = [name for name in _USUAL if name in facts.candidates]
        if default is None and len(usual) != 1:
            raise UsageError(
                message(
                    "which token separates documents is not known: this tokenizer does not say"
                    if not usual
                    else "which token separates documents is not known: this tokenizer has several that may",
                    "choose one: --eot-token NAME or --bos-token NAME",
                    tokenizer=given.name,
                    candidates=", ".join(usual) or listed(facts.candidates) or "none",
                )
            )
        ends = default if default is not None else usual[0]
    return chosen(spec, facts.names, facts.free, ends, given.bos_token)
