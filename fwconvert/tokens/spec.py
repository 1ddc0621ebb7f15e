"""What a recipe says of its tokenizer, and what every kind of tokenizer can do.

A spec is all that the rest of the package needs to know: which ids there are,
and which of them separates documents. How text becomes ids is up to its kind
(see registry). Light: the driver and `status` load no encoder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fwconvert.options import Encoder, EncoderChoice
from fwconvert.processes import CallApart
from fwconvert.recipes import EotSide, Separators, TokenType

if TYPE_CHECKING:
    from fwconvert.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """One set of token ids, and what defines it."""

    # Who loads it: a key of the registry.
    kind: str
    # As the user says it.
    name: str
    # Of the file that defines the ids.
    sha256: str
    # Every id is below it; not every number below it is an id.
    size: int
    eot: int
    # The id that begins each document, if one is written besides the separator.
    bos: int | None = None
    # Whether its name alone means all this, in every version of fwconvert.
    built_in: bool = False

    @property
    def token_type(self) -> TokenType:
        """The smallest type that holds every id."""
        return "uint16" if self.size <= 2**16 else "uint32"

    def separators(self, side: EotSide) -> Separators:
        """Return what stands around a document, where one separator alone would stand on this side."""
        if side == "before":
            return Separators(self.eot, None)
        return Separators(self.bos, self.eot)


@dataclass(frozen=True)
class Loading:
    """How a tokenizer is loaded. `scratch` is a folder for short-lived files; None: the system's."""

    encoder: Encoder = "reference"
    threads: int = 1
    scratch: Path | None = None


class TokenizerKind(Protocol):
    """Loads the tokenizers of one kind. `folder` is where a run keeps the files that define its tokenizer."""

    def names(self) -> list[str]:
        """Return the names that a user may choose."""

    def find(
        self, name: str, eot_token: str | None = None, bos_token: str | None = None
    ) -> TokenizerSpec | None:
        """Return what a user means by this name, if this kind knows it.

        Raises UsageError if `eot_token` or `bos_token` (a name or an id, as typed) cannot separate documents.
        """

    def choose_encoder(
        self, spec: TokenizerSpec, wanted: EncoderChoice, apart: CallApart, folder: Callable[[], Path | None]
    ) -> tuple[Encoder, str]:
        """Return the encoder to use, and a notice if it is slower than one might expect ("" if not).

        What may end its process is tried by `apart`. `folder` returns the folder of a run, if there is one.
        """

    def provide(self, spec: TokenizerSpec, folder: Path) -> None:
        """Make sure that `load` will work, now and in every worker. Driver only."""

    def copy(self, spec: TokenizerSpec, folder: Path, target: Path) -> None:
        """Copy what `provide` left in one run's folder into that of another, if it is there."""

    def load(self, spec: TokenizerSpec, folder: Path, how: Loading) -> "Tokenizer":
        """Return the tokenizer. Reads the package and `folder`, never the network."""

    def estimate_tokens(self, spec: TokenizerSpec, text_bytes: int, documents: int) -> int:
        """Return about how many tokens such a text has, with one separator for each document."""
