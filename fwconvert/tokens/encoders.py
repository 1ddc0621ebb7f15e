"""Which encoder a run uses. An option, not part of the recipe: all of them give the same ids.

Light on purpose: the driver chooses, a worker loads.

Whether the fast encoder works on this machine: tried, before anything depends on it.

gigatoken may be there and not import (a broken installation, another Python
mode), or end the process (an instruction that an old processor lacks). So it is
tried in a process of its own, which also keeps it out of the driver's memory.
It takes as long as starting one worker.
"""

from collections.abc import Callable
from importlib import metadata, util

from fwconvert.errors import EndedApart, UsageError, message
from fwconvert.options import Encoder, EncoderChoice
from fwconvert.processes import ProcessLimits, call_apart
from fwconvert.tokens.disagreements import GIGATOKEN
from fwconvert.tokens.vocabulary import Vocabulary

# gigatoken's names for the split patterns, by rank table. It refuses p50k_base, whose ranks have gaps.
PRETOKENIZERS = {"r50k_base": "gpt2", "cl100k_base": "gpt4", "o200k_base": "o200k"}


# Tells why the fast encoder fails on this machine, or "".
Trial = Callable[[Vocabulary], str]


def choose(wanted: EncoderChoice, vocabulary: Vocabulary, trial: Trial) -> tuple[Encoder, str]:
    """Return the encoder to use, and why it is not the fast one ("" if it is, or if that is no loss)."""
    if wanted == "reference" or not vocabulary.table:
        return "reference", ""
    missing = _why_not_fast(vocabulary, trial)
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


def _why_not_fast(vocabulary: Vocabulary, trial: Trial) -> str:
    if vocabulary.table not in PRETOKENIZERS:
        return f"gigatoken does not know {vocabulary.name}"
    if util.find_spec("gigatoken") is None:
        return "gigatoken is not installed (it has no wheel for every platform)"
    installed = _version()
    if installed != GIGATOKEN:
        return f"gigatoken {installed} is installed, and only {GIGATOKEN} was compared with tiktoken"
    failure = trial(vocabulary)
    return f"gigatoken is installed and does not work here: {failure}" if failure else ""


def _version() -> str:
    try:
        return metadata.version("gigatoken")
    except metadata.PackageNotFoundError:
        return "of unknown version"


# Importing it takes a moment; from a slow network drive, many.
_GUARD = ProcessLimits(stall_seconds=60.0)


def why_fast_fails(vocabulary: Vocabulary) -> str:
    """Return why gigatoken cannot be used for a vocabulary on this machine, or ""."""
    try:
        return call_apart(_try, vocabulary, _GUARD)
    except EndedApart as ended:
        return str(ended)


def _try(vocabulary: Vocabulary) -> str:
    try:
        from fwconvert.tokens.gigatoken import agrees  # noqa: PLC0415  # heavy, and what is tried: in its process only

        return "" if agrees(vocabulary) else "it gives other tokens than tiktoken"
    except BaseException as error:  # noqa: BLE001  # a panic of Rust is no Exception
        return f"{type(error).__name__}: {error}"
