"""FineWeb-Edu parquet in, exact fixed-size token shards out.

    import fwconvert
    recipe = fwconvert.recipe(source="parquet-folder", shard_tokens=1_000_000)
    result = fwconvert.convert(recipe, "out")

Rely on the names below and on `fwconvert.loader.torch`; everything else is
internal and may change. Importing this does nothing and is quick: a name is
looked up when it is first used.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # The public names, each once, each with its home: type checkers read them here, and so does _homes.
    from fwconvert.errors import FwconvertError as FwconvertError
    from fwconvert.errors import HubError as HubError
    from fwconvert.errors import ManifestError as ManifestError
    from fwconvert.errors import OutputError as OutputError
    from fwconvert.errors import ShardError as ShardError
    from fwconvert.errors import SourceError as SourceError
    from fwconvert.errors import UsageError as UsageError
    from fwconvert.inspection.reader import RunReader as RunReader
    from fwconvert.inspection.reader import open_run as open_run
    from fwconvert.inspection.status import Status as Status
    from fwconvert.inspection.status import status as status
    from fwconvert.inspection.trace import Trace as Trace
    from fwconvert.inspection.trace import trace as trace
    from fwconvert.inspection.verify import Report as Report
    from fwconvert.inspection.verify import verify as verify
    from fwconvert.loader import Loader as Loader
    from fwconvert.options import Options as Options
    from fwconvert.recipes import Recipe as Recipe
    from fwconvert.recipes import SourceManifest as SourceManifest
    from fwconvert.run.convert import Result as Result
    from fwconvert.run.convert import convert as convert
    from fwconvert.run.copying import Copied as Copied
    from fwconvert.run.copying import copy as copy
    from fwconvert.run.engines import Engine as Engine
    from fwconvert.run.events import Observer as Observer
    from fwconvert.run.events import Snapshot as Snapshot
    from fwconvert.run.events import StopSwitch as StopSwitch
    from fwconvert.run.export import export as export
    from fwconvert.run.preflight import Estimate as Estimate
    from fwconvert.run.preflight import plan as plan
    from fwconvert.run.ranks import Rank as Rank
    from fwconvert.run.ranks import convert_rank as convert_rank
    from fwconvert.run.ranks import merge as merge
    from fwconvert.run.ranks import save_plan as save_plan
    from fwconvert.run.request import recipe as recipe
    from fwconvert.sources.pin import pin as pin


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_homes())
    if name.startswith("__") or name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415  # as late as all else

    return getattr(importlib.import_module(_homes()[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_homes()])


@cache
def _homes() -> dict[str, str]:
    """Return the modules of the public names, as the imports above say."""
    import ast  # noqa: PLC0415
    import inspect  # noqa: PLC0415
    import sys  # noqa: PLC0415

    source = inspect.getsource(sys.modules[__name__])
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {
        name.asname: node.module or "" for node in imports for name in node.names if name.asname is not None
    }
