"""Words in, an exit code out; everything that prints is here."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fwconvert.run.engines import Engine


def main(argv: Sequence[str] | None = None, *, engine: "Engine | None" = None) -> int:
    """Run a command; return its exit code (see fwconvert.cli.parser, which is loaded only now)."""
    from fwconvert.cli import parser  # noqa: PLC0415

    return parser.main(argv, engine=engine)
