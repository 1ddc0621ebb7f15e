"""The paths of a run in a local folder, for code that does not speak to a `Store` yet."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fwconvert.store import layout
from fwconvert.store.local import LocalStore


@dataclass(frozen=True)
class RunFolder(LocalStore):
    """The paths of a run."""

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.root

    @property
    def store(self) -> LocalStore:
        """The same run as a store."""
        return self

    @cached_property
    def private(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.PRIVATE

    @cached_property
    def index(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.INDEX

    @cached_property
    def manifest(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.MANIFEST

    @cached_property
    def plan(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.PLAN

    @cached_property
    def places(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.PLACES

    @cached_property
    def receipts(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.RECEIPTS

    @cached_property
    def joins(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.JOINS

    @cached_property
    def quarantine(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.QUARANTINE

    @cached_property
    def tails(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.TAILS

    @cached_property
    def sources(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.SOURCES

    @cached_property
    def temporary(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.TEMPORARY

    @cached_property
    def sessions(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.SESSIONS

    @cached_property
    def vocabularies(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.VOCABULARIES

    @cached_property
    def logs(self) -> Path:
        """Return the path of this file or folder."""
        return self.path / layout.LOGS

    def shard(self, name: str) -> Path:
        """Return the path of a token shard."""
        return self.path / name

    def shard_index(self, name: str) -> Path:
        """Return the path of the document index of a token shard."""
        return self.path / layout.index(name)

    def receipt(self, key: str) -> Path:
        """Return the path of a job's receipt."""
        return self.path / layout.receipt(key)

    def quarantined(self, key: str) -> Path:
        """Return the path of the record of a job that was given up."""
        return self.path / layout.quarantined(key)

    def join(self, name: str) -> Path:
        """Return the path of the receipt of a joined shard."""
        return self.path / layout.join_receipt(name)

    def tail(self, key: str) -> Path:
        """Return the path of a job's tail."""
        return self.path / layout.tail(key)

    def tail_index(self, key: str) -> Path:
        """Return the path of the document index of a job's tail."""
        return self.path / layout.tail_index(key)

    def write(self, name: str | Path, content: bytes) -> None:
        """Make `content` the content of a record in the folder, durably and all at once."""
        super().write(name if isinstance(name, str) else name.relative_to(self.path).as_posix(), content)

    def remove_tail(self, key: str) -> None:
        """Remove a job's tail if it is there."""
        self.store.remove(layout.tail(key), layout.tail_index(key))

    def make(self) -> None:
        """Make all the folders."""
        self.prepare()
