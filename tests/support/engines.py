"""Engines for tests: orders carried out in this very process, without the second that a process takes."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

from fwconvert.run.engines.executor import ExecutorEngine

P = ParamSpec("P")
R = TypeVar("R")


class AtOnce(Executor):
    """Calls what it is given before it returns."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        future: Future[R] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def inline() -> ExecutorEngine:
    """Return an engine that carries out each order as it is submitted."""
    return ExecutorEngine(AtOnce(), slots=1)
