"""The errors that fwconvert raises on purpose.

Each takes one finished string. An exception with a constructor signature of
its own, raised in a spawned worker, reaches the parent as a broken pool with
its message lost; a single string always survives pickling.

A message has three parts: what is wrong, the values one per line, what to do.
`message` lays them out, so that all of them look alike.
"""

_MOST_SHOWN = 10_000


class FwconvertError(Exception):
    """Base of every error that fwconvert raises on purpose."""


class UsageError(FwconvertError):
    """The command cannot be carried out as given. Nothing was written."""


class SourceError(FwconvertError):
    """A source shard cannot be converted: missing, changed, damaged or not what it should be."""


class ColumnError(SourceError):
    """A source shard has not the columns that a recipe asks for, or has others under their names."""


class ManifestError(FwconvertError):
    """A JSON record (source manifest, plan, receipt, run manifest) cannot be believed."""


class ShardError(FwconvertError):
    """A token shard or a document index is not what its record says."""


class RemoteError(FwconvertError):
    """Where sources are fetched from cannot be used: no way to it, no access. No source is to blame."""


class HubError(RemoteError):
    """The hub cannot be used: no way to it, no access, nothing of that name. No source is to blame."""


class OutputError(FwconvertError):
    """The output could not be written: no space, read-only, broken disk. No job is to blame."""


class EndedApart(FwconvertError):
    """A process that was to call a function ended, or was ended, before it had an answer."""


class NotReady(FwconvertError):
    """A run that a loader follows has made nothing new for too long, or nobody makes it any more."""


class Stopped(FwconvertError):
    """The user asked to stop; the work was given up at a safe place."""


def message(wrong: str, /, *actions: str, **values: object) -> str:
    """Lay out an error: what is wrong, then the values one per line, then what to do."""
    names = {name: name.replace("_", " ") for name in values}
    width = max(map(len, names.values()), default=0)
    lines = [wrong]
    lines += [f"  {names[name]:<{width}}  {shortened(str(value))}" for name, value in values.items()]
    lines += [f"  -> {action}" for action in actions]
    return printable("\n".join(lines))


def shortened(text: str) -> str:
    """Return a text as it is shown: one from outside may have any length."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ... ({len(text):,} characters)"


def printable(text: str) -> str:
    """Return text from outside in a form that cannot command a terminal and can be encoded."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
