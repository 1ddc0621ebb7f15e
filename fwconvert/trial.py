"""Whether the fast encoder works on this machine: tried, before anything depends on it.

gigatoken may be there and not import (a broken installation, another Python
mode), or end the process (an instruction that an old processor lacks). So it is
tried in a process of its own, which also keeps it out of the driver's memory.
It takes as long as starting one worker.
"""

from fwconvert.engine import Limits, call_apart
from fwconvert.errors import EndedApart
from fwconvert.vocabulary import Vocabulary

# Importing it takes a moment; from a slow network drive, many.
_GUARD = Limits(stall_seconds=60.0)


def why_fast_fails(vocabulary: Vocabulary) -> str:
    """Return why gigatoken cannot be used for a vocabulary on this machine, or ""."""
    try:
        return call_apart(_try, vocabulary, _GUARD)
    except EndedApart as ended:
        return str(ended)


def _try(vocabulary: Vocabulary) -> str:
    try:
        from fwconvert.fast import agrees  # noqa: PLC0415  # heavy, and what is tried: in its process only

        return "" if agrees(vocabulary) else "it gives other tokens than tiktoken"
    except BaseException as error:  # noqa: BLE001  # a panic of Rust is no Exception
        return f"{type(error).__name__}: {error}"
