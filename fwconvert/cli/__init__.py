"""Words in, an exit code out; everything that prints is here."""

from fwconvert.cli.parser import main

__all__ = ["main"]
