"""Files that have the name of an output and are none.

A source that was converted on trial may leave token shards that the finished
run does not have: it was withdrawn, or its worker was killed before its receipt.
"""

from collections.abc import Collection

from fwconvert import atomic, names
from fwconvert.config import Rules
from fwconvert.folder import RunFolder


def remove_strays(folder: RunFolder, rules: Rules, shards: Collection[str]) -> None:
    """Remove everything that looks like output of the run and is not of `shards`, and all tails."""
    strays = [path for path in folder.path.iterdir() if _is_stray(path.name, rules, shards)]
    for path in folder.index.iterdir():
        shard = path.stem + names.SUFFIX
        if path.name == names.index(shard) and _is_stray(shard, rules, shards):
            strays.append(path)
    strays += folder.tails.iterdir()
    for path in strays:
        atomic.remove(path)
    for changed in {path.parent for path in strays}:
        atomic.sync_folder(changed)


def _is_stray(name: str, rules: Rules, shards: Collection[str]) -> bool:
    return names.is_shard(rules, name) and name not in shards
