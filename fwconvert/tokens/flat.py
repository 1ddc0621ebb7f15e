"""Texts to gigatoken, and tokens back, as flat buffers.

gigatoken takes and gives batches as arrays of awkward, of which it needs no more than to have buffers passed
on. But to import awkward takes an eighth of a second in every worker, and each batch takes 8 % longer in it.
So in a worker a module of our own has its name: it has the class and the five functions that gigatoken 0.10
asks for, and passes the buffers on. No other version is used, and the encoder is tried this way before it is
used (`gigatoken.agrees`).

Only in a process of ours: in any other, somebody may use awkward himself, so there it is the real one.
"""

import sys
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert import processes


class Array:
    """Lists of numbers, one after the other: list i is `content[bounds[i]:bounds[i + 1]]`."""

    def __init__(self, content: NDArray[Any], bounds: NDArray[np.int64]) -> None:
        self.content = content
        self.bounds = bounds


def encode(
    engine: Any, content: NDArray[np.uint8], bounds: NDArray[np.int64], *, parallel: bool
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the tokens of all texts, and where in them each text begins and the last ends.

    Text i is `content[bounds[i]:bounds[i + 1]]`; the first begins at 0.
    """
    if stand_in_for_awkward():
        encoded = engine.encode_batch(Array(content, bounds), parallel=parallel)
        return encoded.content, encoded.bounds
    layout = engine.encode_batch(_awkward_strings(content, bounds), parallel=parallel).layout
    return np.asarray(layout.content.data), np.asarray(layout.offsets.data)


def stand_in_for_awkward() -> bool:
    """Put our module in the place of awkward, if this process is ours; return whether it is there."""
    if processes.is_ours():
        sys.modules["awkward"] = _STAND_IN
    return processes.is_ours()


def _made() -> ModuleType:
    module: Any = ModuleType("awkward", "What gigatoken needs of awkward.")
    module.Array = Array
    module.without_parameters = module.to_numpy = lambda given: given
    module.flatten = lambda lists: lists.content
    module.num = lambda lists: np.diff(lists.bounds)
    module.unflatten = lambda content, sizes: Array(content, np.concatenate([[0], np.cumsum(sizes)]))
    return module  # type: ignore[no-any-return]


_STAND_IN = _made()


def _awkward_strings(content: NDArray[np.uint8], bounds: NDArray[np.int64]) -> Any:
    """Return texts as awkward strings over the same memory."""
    import awkward  # noqa: PLC0415  # comes with gigatoken

    characters = awkward.contents.NumpyArray(content, parameters={"__array__": "char"})
    strings = awkward.contents.ListOffsetArray(
        awkward.index.Index64(bounds), characters, parameters={"__array__": "string"}
    )
    return awkward.Array(strings)
