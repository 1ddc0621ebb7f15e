"""The tiktoken kind: tiktoken is the reference, gigatoken the fast way to the same ids.

Which of the two encodes is an option, not part of the recipe. Light on purpose:
the driver chooses, a worker loads.

gigatoken may be installed and not import (a broken installation, another Python
mode), or end the process (an instruction that an old processor lacks). So it is
tried in a process of its own, before anything depends on it, which also keeps
it out of the driver's memory. It takes as long as starting one worker.
"""

from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

from fwconvert.errors import EndedApart, UsageError, message
from fwconvert.options import Encoder, EncoderChoice
from fwconvert.processes import ProcessLimits, call_apart
from fwconvert.tokens import vocabulary
from fwconvert.tokens.spec import Loading, TokenizerSpec
from fwconvert.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    from fwconvert.tokens.tokenizer import Tokenizer

# gigatoken's names for the split patterns, by rank table. It refuses p50k_base, whose ranks have gaps.
PRETOKENIZERS = {"r50k_base": "gpt2", "cl100k_base": "gpt4", "o200k_base": "o200k"}


class TiktokenKind:
    """See spec.TokenizerKind."""

    def names(self) -> list[str]:
        """See TokenizerKind."""
        return [name for name, known in vocabulary.VOCABULARIES.items() if known.kind == "tiktoken"]

    def find(self, name: str) -> TokenizerSpec | None:
        """See TokenizerKind."""
        return vocabulary.VOCABULARIES[name] if name in self.names() else None

    def choose_encoder(self, spec: TokenizerSpec, wanted: EncoderChoice) -> tuple[Encoder, str]:
        """See TokenizerKind."""
        return choose(wanted, vocabulary.find(spec.name), why_fast_fails)

    def provide(self, spec: TokenizerSpec, folder: Path) -> None:
        """See TokenizerKind."""
        vocabulary.provide(vocabulary.find(spec.name), folder)

    def copy(self, spec: TokenizerSpec, folder: Path, target: Path) -> None:
        """See TokenizerKind."""
        vocabulary.copy(vocabulary.find(spec.name), folder, target)

    def load(self, spec: TokenizerSpec, folder: Path, how: Loading) -> "Tokenizer":
        """See TokenizerKind."""
        known = vocabulary.find(spec.name)
        table = vocabulary.read_table(known, folder)
        if how.encoder == "fast":
            from fwconvert.tokens.gigatoken import FastTokenizer  # noqa: PLC0415  # heavy

            return FastTokenizer(known, table, how.threads, how.scratch)
        from fwconvert.tokens.tokenizer import ReferenceTokenizer  # noqa: PLC0415  # heavy

        return ReferenceTokenizer(known, table, how.threads)

    def estimate_tokens(self, spec: TokenizerSpec, text_bytes: int, documents: int) -> int:
        """See TokenizerKind."""
        return max(documents, round(text_bytes / vocabulary.find(spec.name).text_bytes_per_token))


# Tells why the fast encoder fails on this machine, or "".
Trial = Callable[[Vocabulary], str]


def choose(wanted: EncoderChoice, known: Vocabulary, trial: Trial) -> tuple[Encoder, str]:
    """Return the encoder to use, and why it is not the fast one ("" if it is, or if that is no loss)."""
    if wanted == "reference" or not known.table:
        return "reference", ""
    missing = _why_not_fast(known, trial)
    if not missing:
        return "fast", ""
    if wanted == "fast":
        raise UsageError(
            message(
                "the fast encoder cannot be used",
                "pass --encoder auto or --encoder reference: the output is the same",
                reason=missing,
            )
        )
    return "reference", f"the reference encoder is used, which is slower: {missing}"


def _why_not_fast(known: Vocabulary, trial: Trial) -> str:
    if known.table not in PRETOKENIZERS:
        return f"gigatoken does not know {known.name}"
    if util.find_spec("gigatoken") is None:
        return "gigatoken is not installed (it has no wheel for every platform)"
    from fwconvert.tokens.disagreements import GIGATOKEN  # noqa: PLC0415  # loads numpy

    installed = _version()
    if installed != GIGATOKEN:
        return f"gigatoken {installed} is installed, and only {GIGATOKEN} was compared with tiktoken"
    failure = trial(known)
    return f"gigatoken is installed and does not work here: {failure}" if failure else ""


def _version() -> str:
    try:
        return metadata.version("gigatoken")
    except metadata.PackageNotFoundError:
        return "of unknown version"


# Importing it takes a moment; from a slow network drive, many.
_GUARD = ProcessLimits(stall_seconds=60.0)


def why_fast_fails(known: Vocabulary) -> str:
    """Return why gigatoken cannot be used for a vocabulary on this machine, or ""."""
    try:
        return call_apart(_try, known, _GUARD)
    except EndedApart as ended:
        return str(ended)


def _try(known: Vocabulary) -> str:
    try:
        from fwconvert.tokens.gigatoken import agrees  # noqa: PLC0415  # heavy, and what is tried: in its process only

        return "" if agrees(known) else "it gives other tokens than tiktoken"
    except BaseException as error:  # noqa: BLE001  # a panic of Rust is no Exception
        return f"{type(error).__name__}: {error}"
