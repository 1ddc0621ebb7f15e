"""The command line: parsing, commands, and everything that prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fwconvert.run.engines import Engine


def main(argv: Sequence[str] | None = None, *, engine: "Engine | None" = None) -> int:
    """Run a command and return its exit code; fwconvert.cli.parser is loaded only now."""
    from fwconvert.cli import parser  # noqa: PLC0415

    return parser.main(argv, engine=engine)
