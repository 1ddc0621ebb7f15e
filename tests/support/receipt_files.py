"""Receipts as files at any path: read as the package does, and sealed as one who means ill would."""

from pathlib import Path

from fwconvert.store import receipts
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import AnyReceipt, JoinReceipt, Receipt


def read(path: Path, kind: type[AnyReceipt], recipe_id: str) -> AnyReceipt:
    """Return the receipt in a file, or raise ManifestError."""
    return receipts.read(LocalStore(path.parent), path.name, kind, recipe_id)


def write(receipt: Receipt | JoinReceipt, path: Path) -> None:
    """Write a receipt that has the right digest, whatever it says, and wherever."""
    path.write_bytes(receipts.encode(receipt))
