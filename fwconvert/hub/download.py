"""Fetch one file from the hub: resumed at the exact byte after a crash, verified before it is published.

What has arrived is kept in a part file named after the content (see part), so a
later call finds it and never mistakes it for another. Several connections bring
it (see connections). If a server ignores ranges, one does, and the bytes that we
already have are skipped.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fwconvert import files
from fwconvert.errors import SourceError, Stopped, message
from fwconvert.hub.client import endpoint
from fwconvert.hub.connections import Connections, Transfer
from fwconvert.hub.part import ContentMismatch, Part, part_name
from fwconvert.hub.remote import Remote
from fwconvert.hub.retry import Retry
from fwconvert.recipes import SourceShard
from fwconvert.store import atomic

_CONTENT_TRIES = 2


@dataclass(frozen=True)
class Download:
    """How a file is fetched: from where, for how long to retry, and where to report progress."""

    remote: Remote
    patience: float
    stop: threading.Event
    # Called with the number of bytes received, and with notices for the user.
    count: Callable[[int], None]
    tell: Callable[[str], None]
    # Shared by all files that are fetched at a time.
    connections: Connections
    # Files are kept in a folder of the user's. Nothing there is ever replaced, because it may not be ours;
    # so each file is synced before it gets its name, and a power cut cannot leave a damaged one.
    keeps: bool = False

    def fetch(self, file: SourceShard, place: Path, parts: Path, turn: int = 0) -> None:
        """Put the whole, verified file at `place`; raise SourceError if it cannot be fetched.

        HubError means that no file can be fetched now, OutputError that there is
        no space for it. What has arrived stays in the folder `parts` for the next
        call. Of several files at a time, those of a lower `turn` get connections first.
        """
        while not self._is_there(file, place):
            atomic.refuse_link(parts)
            for folder in (parts, place.parent):
                atomic.have_folder(folder)
            with Part.opened(parts / part_name(file, self.remote.revision), file, self._pause) as part:
                if not self._is_there(file, place):
                    try:
                        self._download_verified(file, part, turn)
                    except BaseException:
                        part.discard_if_empty()
                        raise
                if self._publish(file, part, place):
                    return

    def _publish(self, file: SourceShard, part: Part, place: Path) -> bool:
        """Move a part to its place, unless the file is there already; return whether it is there now."""
        if self.keeps:
            part.sync()
        if self._is_there(file, place):
            part.discard()
            return True
        published = part.publish(place)
        if published and self.keeps:
            atomic.sync_folder(place.parent)
        return published

    def is_right(self, file: SourceShard, place: Path) -> bool:
        """Return whether the file at `place` is the right one, by its size and, if known, its sha256."""
        try:
            if files.state_of(place).st_size != file.bytes:
                return False
            return file.sha256 is None or files.sha256_of(place, self._tick) == file.sha256
        except OSError:  # A file that cannot be read cannot be verified.
            return False

    def _is_there(self, file: SourceShard, place: Path) -> bool:
        """Return whether the file is in its place; raise SourceError if another one is, which must stay."""
        if self.is_right(file, place):
            return True
        if self.keeps and os.path.lexists(place):
            raise SourceError(_occupied_message(file, place))
        return False

    def _download_verified(self, file: SourceShard, part: Part, turn: int) -> None:
        for attempt in range(1, _CONTENT_TRIES + 1):
            try:
                self._download(file, part, turn)
                part.verify()
            except ContentMismatch as wrong:
                part.restart()
                if attempt == _CONTENT_TRIES:
                    part.discard()
                    raise SourceError(self._mismatch_message(file, wrong)) from None
                self.connections.met("corrupt")
                self.tell(f"{file.path}: {wrong}; fetching it again")
            else:
                return

    def _download(self, file: SourceShard, part: Part, turn: int) -> None:
        """Fetch what is missing, by as many connections as pay, and hash it in order as it arrives."""
        retry = Retry(self.patience, self.stop, self.tell)
        transfer = Transfer(self.remote, file, part, retry, self.count, self.connections.changed, turn)
        with self.connections.serving(transfer):
            while not part.is_whole:
                if not part.hash_more(self._tick):
                    transfer.wait()
                self._pause(0)

    def _pause(self, seconds: float) -> None:
        if self.stop.wait(seconds) if seconds else self.stop.is_set():
            raise Stopped("stopped by the user")

    def _tick(self, *_: int) -> None:
        self._pause(0)

    def _mismatch_message(self, file: SourceShard, wrong: ContentMismatch) -> str:
        return message(
            f"the server sent bytes that do not match the manifest, {_CONTENT_TRIES} times",
            "a mirror or proxy may serve corrupt bytes: use another HF_ENDPOINT",
            file=file.path,
            wanted=f"{file.bytes:,} bytes, sha256 {file.sha256 or 'any'}",
            found=wrong,
            endpoint=endpoint(),
        )


def _occupied_message(file: SourceShard, place: Path) -> str:
    return message(
        "another file is where this source is to be kept; it is not replaced",
        "move it away, or choose another --keep-source; then run the same command again",
        place=place,
        wanted=f"{file.bytes:,} bytes, sha256 {file.sha256 or 'any'}",
        found=_described(place, file.bytes),
    )


def _described(place: Path, wanted: int) -> str:
    try:
        size = files.state_of(place).st_size
        return f"{size:,} bytes" if size != wanted else f"{size:,} bytes, sha256 {files.sha256_of(place)}"
    except FileNotFoundError:
        return "a broken link"
    except OSError as error:
        return f"something that cannot be read: {error.strerror}"
