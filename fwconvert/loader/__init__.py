"""Batches for training, from token shards. Needs numpy and msgspec, not what only conversion needs."""

from fwconvert.loader.loader import Loader, inputs_and_targets

__all__ = ["Loader", "inputs_and_targets"]
