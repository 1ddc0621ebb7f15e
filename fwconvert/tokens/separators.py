"""Which tokens separate documents: from what a user typed to ids that stand in no text.

A document's boundary is found again in the tokens alone, so a token that text
can give is refused. One separator stands on one side of each document; if two
are asked for, one begins each document and the other ends it, and they differ.
"""

from collections.abc import Container, Mapping
from dataclasses import replace

from fwconvert.errors import UsageError, message
from fwconvert.tokens.spec import TokenizerSpec


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
                special_tokens=_listed(names),
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
            special_tokens=_listed(names),
        )
    )


def _listed(names: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({number})" for name, number in names.items())
