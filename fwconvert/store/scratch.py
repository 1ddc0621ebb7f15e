"""A folder of this node for what need not outlive a session: fetched sources, drafts on their way elsewhere.

Many may share one: the sessions of several runs, the ranks of one run, several
users. So each session has a folder of its own in it, named after its user, its
run and itself, and holds a lock beside that folder while it is at work. What a
dead session has left belongs to the next session of the same run and user on this
node, which takes over what it needs. Nothing that is kept here has to be durable.

    DIR/fwconvert-{user}-{run}-{session}/       what the session has here
    DIR/fwconvert-{user}-{run}-{session}.lock   held while it is at work
"""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fwconvert.errors import OutputError, message
from fwconvert.store import atomic, layout, lock

# If nobody has touched it for this long and its session is over, no run comes back for it.
_FORGOTTEN_SECONDS = 24 * 60 * 60


@dataclass(frozen=True)
class Scratch:
    """What the sessions of one run have in a folder of this node."""

    root: Path
    # The run's uri: a folder that was moved is another run.
    run: str

    def of(self, session: str) -> Path:
        """Return the folder of a session."""
        return self.root / f"{self._begins}{session}"

    @contextmanager
    def held(self, session: str) -> Iterator[Path]:
        """Have a folder of the session's own during the block; what is left in it is for the next one."""
        own = self.of(session)
        atomic.have_folder(self.root)
        self._sweep_forgotten()
        # Before the folder is made: one without a lock belongs to nobody.
        with lock.own(_lock_of(own), session, str(self.root)):
            atomic.have_folder(own)
            _refuse_foreign(own)
            try:
                yield own
            finally:
                atomic.remove_if_empty(own)

    def left(self) -> list[Path]:
        """Return the folders of sessions of this run that are certainly over."""
        return [*_over(self.root, self._begins)]

    def left_bytes(self) -> int:
        """Return how much these sessions have left: the next one takes it over."""
        return sum(_state(path, "st_size") for left in self.left() for path in left.iterdir())

    def clear(self) -> None:
        """Remove what any session of this run has here. Hold the run's lock alone: none is at work then."""
        for folder in self.root.glob(f"{self._begins}*"):
            if folder.is_dir() and _is_ours(folder):
                atomic.sweep(folder)
                self.is_done_with(folder)
        atomic.remove_if_empty(self.root)

    def is_done_with(self, left: Path) -> None:
        """Forget a session that is over, if nothing of it is left."""
        atomic.remove_if_empty(left)
        if not left.exists():
            atomic.remove(_lock_of(left))

    def _sweep_forgotten(self) -> None:
        """Remove what sessions of this user, of any run, have left and nobody has come back for."""
        long_ago = time.time() - _FORGOTTEN_SECONDS
        for left in _over(self.root, _OURS):
            if all(_state(path, "st_mtime") < long_ago for path in (left, *left.iterdir())):
                atomic.sweep(left)
                self.is_done_with(left)
        for path in self.root.glob(f"{_OURS}*{layout.LOCK_SUFFIX}"):
            # Its session was cut off before it had a folder, or when it had none any more.
            if not path.with_suffix("").exists() and lock.is_over(path):
                atomic.remove(path)

    @property
    def _begins(self) -> str:
        return f"{_OURS}{hashlib.sha256(self.run.encode()).hexdigest()[:16]}-"


_USER = "user" if os.name == "nt" else str(os.geteuid())
_OURS = f"fwconvert-{_USER}-"


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + layout.LOCK_SUFFIX)


def _over(root: Path, begins: str) -> Iterator[Path]:
    """Yield the folders with names that begin so, and whose sessions are certainly over."""
    for path in sorted(root.glob(f"{begins}*")):
        if path.is_dir() and _is_ours(path) and lock.is_over(_lock_of(path)):
            yield path


def _is_ours(folder: Path) -> bool:
    """Return whether nobody else has made a folder: others may write in the folder that it is in."""
    try:
        return not folder.is_symlink() and (os.name == "nt" or folder.lstat().st_uid == os.geteuid())
    except FileNotFoundError:
        return False


def _refuse_foreign(folder: Path) -> None:
    if not _is_ours(folder):
        raise OutputError(
            message(
                "a folder of ours in --scratch was made by somebody else",
                "choose another --scratch, in which others cannot write",
                folder=folder,
            )
        )


def _state(path: Path, what: str) -> int:
    try:
        return int(getattr(path.lstat(), what))
    except OSError:  # Somebody else removes it just now.
        return 0
