"""FineWeb-Edu parquet in, exact fixed-size token shards out.

    import fwconvert
    recipe = fwconvert.make_recipe(source="parquet-folder", shard_tokens=1_000_000)
    result = fwconvert.convert(recipe, "out")

Importing this does nothing and is quick: names are looked up when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fwconvert.errors import FwconvertError
    from fwconvert.loader import Loader
    from fwconvert.options import Options
    from fwconvert.recipes import Recipe
    from fwconvert.run.convert import Result, convert
    from fwconvert.run.export import export
    from fwconvert.run.request import Request, make_recipe, resolve

__all__ = [
    "FwconvertError",
    "Loader",
    "Options",
    "Recipe",
    "Request",
    "Result",
    "convert",
    "export",
    "make_recipe",
    "resolve",
]

_HOMES = {
    "FwconvertError": "errors",
    "Loader": "loader",
    "Options": "options",
    "Recipe": "recipes",
    "Request": "run.request",
    "Result": "run.convert",
    "convert": "run.convert",
    "export": "run.export",
    "make_recipe": "run.request",
    "resolve": "run.request",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
