"""Files that have the name of an output and are none.

A source that was converted on trial may leave token shards that the finished
run does not have: it was withdrawn, or its worker was killed before its receipt.
"""

from collections.abc import Collection

from fwconvert import atomic, names
from fwconvert.config import Rules
from fwconvert.folder import RunFolder


def remove_strays(folder: RunFolder, rules: Rules, shards: Collection[str], sources: Collection[str]) -> None:
    """Remove all that looks like output of the run and is not of `shards`, and tails of none of `sources`."""
    keys = {names.job_key(path) for path in sources}
    known = (None, *shards)
    strays = [path for path in folder.path.iterdir() if names.owner(rules, path.name) not in known]
    strays += [path for path in folder.index.iterdir() if names.index_owner(rules, path.name) not in known]
    strays += [path for path in folder.tails.iterdir() if path.stem not in keys]
    for path in strays:
        atomic.remove(path)
    for changed in {path.parent for path in strays}:
        atomic.sync_folder(changed)
