"""Run a generator ahead of its reader, in a thread."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def ahead(items: Iterable[T], most: int) -> Iterator[T]:
    """Yield `items` in order, at most `most` of them made before they are wanted.

    What making them raises is raised here. A reader that goes away stops it.
    """
    iterator, end = iter(items), object()
    thread = ThreadPoolExecutor(1)
    try:
        waiting: deque[Any] = deque(thread.submit(next, iterator, end) for _ in range(most))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, iterator, end))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)
