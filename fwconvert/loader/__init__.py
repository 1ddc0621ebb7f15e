"""From token shards to batches for training. Needs numpy and msgspec, and nothing that only conversion needs."""

from fwconvert.loader.loader import Loader, inputs_and_targets

__all__ = ["Loader", "inputs_and_targets"]
