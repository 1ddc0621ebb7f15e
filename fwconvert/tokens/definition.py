"""A Hugging Face tokenizer.json, and what of it decides the tokens of ordinary text.

Such a file also says what a chat program wants: special tokens that are found
in the text, tokens put around it, how long it may be. Text is always ordinary
text here, so that a document that spells out a separator does not hold one.
`for_text` leaves all that out; what it returns is a tokenizer.json, too, which
every library reads, and the ids of what stays are those of the file.

A stranger's file is read in a process of its own: its values may take twenty
times the memory of its bytes.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fwconvert.errors import UsageError, message

# Gemma 3 has 33 MB.
MOST_BYTES = 128 * 2**20
_MOST_IDS = 2**31

Tree = dict[str, Any]


def for_text(content: bytes) -> bytes:
    """Return the tokenizer.json that gives ordinary text the ids that `content`, one too, gives it.

    Special added tokens are dropped, and so are post-processor, truncation and
    padding. The other added tokens, which text may contain, stay what they are.
    Raises UsageError for what is no tokenizer.json, or has no definite ids.
    """
    return text_of(parse(content))


def text_of(definition: Tree) -> bytes:
    """Return what `for_text` returns of a definition that is parsed."""
    model, added = definition["model"], definition["added_tokens"]
    specials = {token["content"] for token in added if token["special"]}
    kept = [token for token in added if not token["special"]]
    try:
        if isinstance(model["vocab"], list):
            vocab: Any = _pieces_for_text(model["vocab"], specials, kept)
        else:
            vocab = _entries_for_text(model, specials, kept)
    except _MALFORMED as error:
        raise _no_definition(error) from None
    text = {
        **definition,
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "added_tokens": kept,
        "model": {**model, "vocab": vocab},
    }
    return json.dumps(text, ensure_ascii=False, separators=(",", ":")).encode()


# What comes of looking at JSON that is not shaped as it should be, or too deep.
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


def parse(content: bytes) -> Tree:
    """Return what a tokenizer.json says, or raise UsageError for what is none, or has no definite ids."""
    try:
        definition = json.loads(content.decode())
        # What cannot be written again: half a character, an infinite number.
        json.dumps(definition, ensure_ascii=False, allow_nan=False).encode()
        definition = {**definition, "added_tokens": _added(definition.get("added_tokens") or [])}
        ids = vocabulary(definition)
        if definition["model"].get("dropout"):
            raise _indefinite("its model has dropout, so that a text has other tokens each time")
    except _MALFORMED as error:
        raise _no_definition(error) from None
    _refuse_contradictions(ids, definition["added_tokens"])
    return definition


def vocabulary(definition: Tree) -> dict[str, int]:
    """Return the ids of the model by what they spell; added tokens need not be among them."""
    vocab = definition["model"]["vocab"]
    if isinstance(vocab, list):
        return {piece: number for number, (piece, _) in enumerate(vocab)}
    return {text: _as_id(number) for text, number in vocab.items()}


def _added(tokens: list[Tree]) -> list[Tree]:
    return [
        {
            **token,
            "content": str(token["content"]),
            "id": _as_id(token["id"]),
            "special": bool(token["special"]),
        }
        for token in tokens
    ]


def _as_id(number: object) -> int:
    if type(number) is not int or not 0 <= number < _MOST_IDS:
        raise ValueError(f"{number!r:.100} is no id")
    return number


def _refuse_contradictions(ids: Mapping[str, int], added: list[Tree]) -> None:
    """Raise UsageError unless each id means one token, the one that Hugging Face tokenizers takes it for."""
    spelt = {number: text for text, number in ids.items()}
    if len(spelt) < len(ids):
        raise _indefinite("two tokens of the model have one id")
    # How that library numbers added tokens, whatever ids the file has for them.
    given, following = dict(ids), len(ids)
    for token in added:
        text, number = token["content"], token["id"]
        if spelt.setdefault(number, text) != text or ids.get(text, number) != number:
            raise _indefinite(f"two tokens have the id {number}, or one has two", token=text)
        following = max(following, given.setdefault(text, following) + 1)
        if given[text] != number and not token["special"]:
            gives = f"Hugging Face tokenizers gives it {given[text]}"
            raise _indefinite(f"an added token has the id {number}, and {gives}", token=text)


def _entries_for_text(model: Tree, specials: Collection[str], kept: list[Tree]) -> dict[str, int]:
    """Return the vocabulary without what text must not give, and with the added tokens that it may.

    Added tokens are numbered in their order, so those behind a special one
    would get other ids without it. What stands in the vocabulary has its id.
    """
    vocab = {**model["vocab"], **{token["content"]: token["id"] for token in kept}}
    if "merges" in model and not model.get("ignore_merges"):
        return vocab  # Only merges lead to a token, and they stay.
    needed = {model.get("unk_token")}
    for merge in model.get("merges", ()):
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        needed |= {left, right, left + right}
    removed = {text for text in specials if len(text) > 1 and text not in needed}
    return {text: number for text, number in vocab.items() if text not in removed}


def _pieces_for_text(pieces: list[Any], specials: Collection[str], kept: list[Tree]) -> list[Any]:
    """Return the pieces, of which one has its place for an id: that of a special token becomes empty.

    An empty piece is never found in a text. As in `_entries_for_text`, added
    tokens get a place of their own; it has the lowest score, which decides what unknown ones have.
    """
    found = [["" if piece in specials else piece, score] for piece, score in pieces]
    lowest = min((score for _, score in pieces), default=0.0)
    places = {piece for piece, _ in pieces}
    for token in kept:
        if token["content"] not in places:
            found += [["", lowest]] * (token["id"] - len(found)) + [[token["content"], lowest]]
    return found


def _no_definition(reason: BaseException) -> UsageError:
    return UsageError(
        message(
            "this is no tokenizer.json of Hugging Face tokenizers",
            "name a file that tokenizers.Tokenizer.from_file can read",
            reason=f"{type(reason).__name__}: {reason}",
        )
    )


def _indefinite(why: str, **values: object) -> UsageError:
    return UsageError(
        message(
            "this tokenizer.json does not say which ids a text has",
            "ask who made it for one that is consistent",
            reason=why,
            **values,
        )
    )


@dataclass(frozen=True)
class Facts:
    """Which ids a definition has: all are below `size`."""

    size: int
    # The special tokens, and whatever else has a name that no text gives.
    names: Mapping[str, int]
    # The ids that text may give.
    taken: Collection[int]

    @property
    def candidates(self) -> dict[str, int]:
        """Those that may separate documents."""
        return {name: number for name, number in self.names.items() if number in self.free}

    @property
    def free(self) -> "Free":
        """The ids that no text gives."""
        return Free(self.taken)


@dataclass(frozen=True)
class Free:
    """All ids but those that text may give."""

    taken: Collection[int]

    def __contains__(self, number: object) -> bool:
        return number not in self.taken


def facts(definition: Tree) -> Facts:
    """Return which ids a parsed definition has, and which of them text may give."""
    ids, added = vocabulary(definition), definition["added_tokens"]
    specials = {token["content"]: token["id"] for token in added if token["special"]}
    kept = {token["content"]: token["id"] for token in added if not token["special"]}
    reached = _reached(definition["model"], ids, specials)
    unreached = {text: number for text, number in ids.items() if text not in reached and text not in kept}
    numbers = [*ids.values(), *(token["id"] for token in added)]
    taken = {number for text, number in ids.items() if text in reached} | set(kept.values())
    return Facts(max(numbers, default=0) + 1, {**specials, **unreached}, frozenset(taken))


def _reached(model: Tree, ids: Mapping[str, int], specials: Collection[str]) -> set[str]:
    """Return the tokens of the model that text may give."""
    unknown = str(model.get("unk_token"))
    plain = "merges" in model and not model.get("ignore_merges")
    if not plain or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return {text for text in ids if text not in specials or text == unknown}
    # What a merge makes, and what there is to begin with: characters, and bytes in hexadecimal.
    made = {"".join(merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in model["merges"]}
    begun = {text for text in ids if len(text) == 1 or re.fullmatch("<0x[0-9A-F]{2}>", text)}
    return {text for text in ids if text in made} | begun | ({unknown} & ids.keys())
