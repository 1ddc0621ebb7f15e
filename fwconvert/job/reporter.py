"""What an order says while it is carried out, and how it hears of a stop request.

Light on purpose: the scheduler's process imports it too.
"""

from typing import Protocol


class Reporter(Protocol):
    """Passes progress from a worker to whoever scheduled its order, and a stop request back."""

    def show(self, done: int, total: int) -> None:
        """Report how much of the order is done."""

    def show_text(self, tokens: int, text_bytes: int) -> None:
        """Report how many tokens the order has made so far, and from how much text."""

    def beat(self) -> None:
        """Report that the worker is alive. For places where the order cannot stop."""

    def check(self) -> None:
        """Report that the worker is alive; raise Stopped if it is asked to stop."""


class NoReporter:
    """Reports to nobody, and is never asked to stop."""

    def show(self, done: int, total: int) -> None:
        """Drop it."""

    def show_text(self, tokens: int, text_bytes: int) -> None:
        """Drop it."""

    def beat(self) -> None:
        """Drop it."""

    def check(self) -> None:
        """Go on."""
