"""Which encoder is used: gigatoken where it can be had and was compared, the reference of the kind elsewhere.

Light: the driver chooses, and loads no encoder.
"""

from collections.abc import Callable
from importlib import metadata, util

from fwconvert.errors import UsageError, message
from fwconvert.options import Encoder, EncoderChoice


def choose(
    wanted: EncoderChoice, why_not_fast: Callable[[], str], slower: Callable[[str], str]
) -> tuple[Encoder, str]:
    """Return the encoder to use, and a notice if it is slower than one might expect ("" if not).

    `why_not_fast` is asked if it matters; `slower` makes a notice of its reason. Raises UsageError where
    the fast encoder is wanted and cannot be used.
    """
    if wanted == "reference":
        return "reference", ""
    reason = why_not_fast()
    if not reason:
        return "fast", ""
    if wanted == "fast":
        raise UsageError(
            message(
                "the fast encoder cannot be used",
                "pass --encoder auto or --encoder reference: the output is the same",
                reason=reason,
            )
        )
    return "reference", slower(reason)


def why_no_gigatoken() -> str:
    """Return why gigatoken cannot be used for any tokenizer; "" if it can be tried."""
    if util.find_spec("gigatoken") is None:
        return "gigatoken is not installed (it has no wheel for every platform)"
    from fwconvert.tokens.disagreements import GIGATOKEN  # noqa: PLC0415  # loads numpy

    try:
        installed = metadata.version("gigatoken")
    except metadata.PackageNotFoundError:
        installed = "of unknown version"
    if installed != GIGATOKEN:
        return f"gigatoken {installed} is installed, and only {GIGATOKEN} was compared with the references"
    return ""
