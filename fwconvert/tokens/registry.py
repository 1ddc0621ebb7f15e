"""Every kind of tokenizer, and from a name or a recipe's rules to a tokenizer: the entry to this room.

A new kind is a class (see spec.TokenizerKind), a line in KINDS, and its tests.
Tokenizers that are built in are known by their name alone, as the recipes of
the first versions have them. Of any other the rules hold the whole spec.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fwconvert.errors import UsageError, message
from fwconvert.options import Encoder, EncoderChoice
from fwconvert.processes import CallApart
from fwconvert.recipes import Rules, Separators
from fwconvert.tokens import given, separators
from fwconvert.tokens.defined import DefinedKind, Given
from fwconvert.tokens.given import Kept
from fwconvert.tokens.spec import Loading, TokenizerKind, TokenizerSpec
from fwconvert.tokens.tiktoken_kind import EOT_TEXT, TiktokenKind

if TYPE_CHECKING:
    from fwconvert.tokens.tokenizer import Tokenizer


_BYTES = TokenizerSpec(
    kind="bytes",
    name="bytes",
    # Of b"fwconvert bytes 1: a token is one byte of UTF-8, <|endoftext|> is 256\n".
    sha256="623e820ea7607f6c6a162323b14ecb7be69fb69457cc2845e86bfe0e27a7c9d1",
    size=257,
    eot=256,
    built_in=True,
)


class BytesKind:
    """A token is one byte of UTF-8, and 256 separates documents: nothing to load, and easy to invert."""

    def names(self) -> list[str]:
        """See TokenizerKind."""
        return [_BYTES.name]

    def find(
        self, name: str, eot_token: str | None = None, bos_token: str | None = None
    ) -> TokenizerSpec | None:
        """See TokenizerKind."""
        if name != _BYTES.name:
            return None
        return separators.chosen(_BYTES, {EOT_TEXT: _BYTES.eot}, (_BYTES.eot,), eot_token, bos_token)

    def choose_encoder(
        self,
        spec: TokenizerSpec,  # noqa: ARG002
        wanted: EncoderChoice,  # noqa: ARG002
        apart: CallApart,  # noqa: ARG002
        folder: Callable[[], Path | None],  # noqa: ARG002
    ) -> tuple[Encoder, str]:
        """Return the only one that there is."""
        return "reference", ""

    def provide(self, spec: TokenizerSpec, folder: Path) -> None:
        """Need no file."""

    def copy(self, spec: TokenizerSpec, folder: Path, target: Path) -> None:
        """Need no file."""

    def load(self, spec: TokenizerSpec, folder: Path, how: Loading) -> "Tokenizer":  # noqa: ARG002
        """See TokenizerKind."""
        from fwconvert.tokens.tokenizer import BytesTokenizer  # noqa: PLC0415  # heavy

        return BytesTokenizer(spec)

    def estimate_tokens(self, spec: TokenizerSpec, text_bytes: int, documents: int) -> int:  # noqa: ARG002
        """Return exactly how many."""
        return text_bytes + documents


# Models by which people call their tokenizers.
_MODELS = {
    **dict.fromkeys(("tiktoken", "gpt2small", "gpt2bpe", "openaigpt2"), "gpt2"),
    **dict.fromkeys(("gpt3", "davinci"), "r50k_base"),
    **dict.fromkeys(("gpt4", "gpt35", "gpt35turbo", "chatgpt", "cl100k", "dolma2"), "cl100k_base"),
    **dict.fromkeys(("gpt4o", "gpt4omini", "o1", "o200k"), "o200k_base"),
    **dict.fromkeys(("utf8", "byte", "byt5"), "bytes"),
}

# Of what users name: a tokenizer.json, a model of sentencepiece, and rank tables.
DEFINED = {
    kind.kind: kind
    for kind in (
        DefinedKind("hf", ".json", "tokenizers", "hf", "Hugging Face's library", "1 to 3"),
        DefinedKind("sentencepiece", ".model", "sentencepiece", "sentencepiece", "sentencepiece", "3 to 4"),
        DefinedKind("ranks", ".ranks", "", "", "tiktoken", "8 to 10"),
    )
}

KINDS: dict[str, TokenizerKind] = {"tiktoken": TiktokenKind(), "bytes": BytesKind(), **DEFINED}


def find(
    name: str,
    eot_token: str | None = None,
    bos_token: str | None = None,
    kept: Callable[[], Kept | None] = lambda: None,
) -> TokenizerSpec:
    """Return the tokenizer that a user means by `name`, or raise UsageError with the names that exist.

    `eot_token` and `bos_token` are the separators as the user typed them: a name, or an id in
    decimal. Where one is given, it is the only separator; where both are, each document has both.
    `kept` returns what the run that is continued has, if there is one: see given.
    """
    for kind in KINDS.values():
        spec = kind.find(name, eot_token, bos_token)
        if spec is not None:
            return spec
    file = given.named(name, kept)
    if file is not None:
        if eot_token is not None or bos_token is not None:
            file = replace(file, eot_token=eot_token, bos_token=bos_token)
        return DEFINED[file.kind].examine(file)
    known = [name for kind in KINDS.values() for name in kind.names()]
    plain = re.sub("[^a-z0-9]", "", name.lower())
    near = [_MODELS[plain]] if plain in _MODELS else difflib.get_close_matches(name.lower(), known, n=1)
    raise UsageError(
        message(
            "there is no such tokenizer",
            *([f"did you mean {near[0]}?"] if near else []),
            "choose a known name, a file (tokenizer.json, NAME.model, NAME.tiktoken), or OWNER/NAME",
            given=repr(name),
            known=", ".join(known),
        )
    )


def of_rules(rules: Rules) -> TokenizerSpec:
    """Return the tokenizer of a recipe's rules, or raise UsageError if this version has none of its kind."""
    if rules.tokenizer_kind is None or rules.vocabulary_size is None or rules.eot_id is None:
        return find(rules.tokenizer)
    if rules.tokenizer_kind not in KINDS:
        raise UsageError(
            message(
                "this version of fwconvert has no such kind of tokenizer",
                "use the version that made the recipe",
                kind=repr(rules.tokenizer_kind),
                known=", ".join(KINDS),
            )
        )
    spec = TokenizerSpec(
        kind=rules.tokenizer_kind,
        name=rules.tokenizer,
        sha256=rules.vocabulary_sha256,
        size=rules.vocabulary_size,
        eot=rules.eot_id,
        bos=rules.bos_id,
    )
    return _known(spec) if KINDS[spec.kind].names() else spec


def _known(spec: TokenizerSpec) -> TokenizerSpec:
    """Return a built-in tokenizer with other separators; raise UsageError if there is no such one."""
    found = KINDS[spec.kind].find(spec.name, str(spec.eot), None if spec.bos is None else str(spec.bos))
    if found is None or (found.sha256, found.size) != (spec.sha256, spec.size):
        raise UsageError(
            message(
                "this version of fwconvert has no such tokenizer",
                "use the version that made the recipe",
                tokenizer=repr(spec.name),
                size=spec.size,
                sha256=spec.sha256,
            )
        )
    return found


def separators_of(rules: Rules) -> Separators:
    """Return what stands around each document of a recipe, or raise UsageError as `of_rules` does."""
    return of_rules(rules).separators(rules.eot)


def as_rules(spec: TokenizerSpec) -> dict[str, Any]:
    """Return what the rules of a recipe say of its tokenizer: what `of_rules` reads."""
    rules = {"tokenizer": spec.name, "vocabulary_sha256": spec.sha256, "token_type": spec.token_type}
    if spec.built_in:
        return rules
    return {
        **rules,
        "tokenizer_kind": spec.kind,
        "vocabulary_size": spec.size,
        "eot_id": spec.eot,
        "bos_id": spec.bos,
    }


# What `as_rules` leaves out of the rules where a tokenizer's name alone means all of it.
UNSEPARATED = dict.fromkeys(("tokenizer_kind", "vocabulary_size", "eot_id", "bos_id"))


def reseparated(
    spec: TokenizerSpec,
    eot_token: str | None,
    bos_token: str | None,
    kept: Callable[[], Kept | None] = lambda: None,
) -> TokenizerSpec:
    """Return a tokenizer that a run has with other separators, or raise UsageError. `kept`: as for `find`."""
    if spec.name in KINDS[spec.kind].names():
        return find(spec.name, eot_token, bos_token)
    found = kept() if spec.kind in DEFINED else None
    if found is not None and found.content is not None:
        return DEFINED[spec.kind].examine(
            Given(spec.kind, spec.name, found.content, b"", eot_token, bos_token)
        )
    # The definition may be away. That no text has the separators of the run is known.
    known = (spec.eot,) if spec.bos is None else (spec.bos, spec.eot)
    return separators.chosen(spec, {}, known, eot_token, bos_token)


def kept(rules: Rules, folder: Path) -> Kept | None:
    """Return the tokenizer that a run has and keeps the file of in a folder; None: a built-in one."""
    kind = DEFINED.get(rules.tokenizer_kind or "")
    return None if kind is None else Kept(rules, kind.kept(of_rules(rules), folder))


def kind_of(spec: TokenizerSpec) -> TokenizerKind:
    """Return what loads such a tokenizer."""
    return KINDS[spec.kind]


def load(spec: TokenizerSpec, folder: Path, how: Loading = Loading()) -> "Tokenizer":  # noqa: B008  # it is frozen
    """Return a tokenizer; `folder` is the one that it was provided in."""
    return kind_of(spec).load(spec, folder, how)


def estimate_tokens(rules: Rules, text_bytes: int, documents: int) -> int:
    """Return about how many tokens such a text has, separators included."""
    spec = of_rules(rules)
    # Each kind counts one separator for each document.
    more = documents * (rules.separators_each - 1)
    return kind_of(spec).estimate_tokens(spec, text_bytes, documents) + more
