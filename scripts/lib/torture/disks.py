"""File systems that can lose power: loop-mounted images that are shut down as they are.

The shutdown call of ext4 and xfs drops everything that is not on the disk yet,
data and names, as a power cut does. Needs root, loop devices and the file
system's own tools; where one is missing, `skip_reason` says which.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

# From linux/fs: _IOR('X', 125, __u32), with the flag "do not flush the log".
_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
}
_MEGABYTES = {"ext4": 64, "xfs": 320}


def skip_reason(kind: str) -> str:
    """Return why this machine cannot have such a disk; empty if it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if shutil.which(_MAKE[kind][0]) is None:
        return f"{_MAKE[kind][0]} is not installed"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    return ""


class Disk:
    """A mounted file system in a file."""

    def __init__(self, kind: str, folder: Path, options: str = "") -> None:
        self.path = folder / "mounted"
        self._options = options
        self._image = folder / "image"
        self.path.mkdir(parents=True)
        with self._image.open("wb") as file:
            file.truncate(_MEGABYTES[kind] * 2**20)
        _run([*_MAKE[kind], str(self._image)])
        self._mount()

    def cut_power(self) -> None:
        """Lose everything that is not on the disk, then mount again."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("<I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)
        _unmount(self.path)
        self._mount()

    def close(self) -> None:
        """Unmount it."""
        _unmount(self.path)

    def _mount(self) -> None:
        options = ["loop", *filter(None, [self._options])]
        _run(["mount", "-o", ",".join(options), str(self._image), str(self.path)])


class ShrinkingDisk:
    """A file system in memory whose size can be changed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "small"
        self.path.mkdir(parents=True)
        _run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(self.path)])

    def resize(self, size: int) -> None:
        """Set its size in bytes."""
        _run(["mount", "-o", f"remount,size={size}", str(self.path)])

    def close(self) -> None:
        """Unmount it."""
        _unmount(self.path)


def _unmount(path: Path) -> None:
    # A process that was just killed may hold it a moment longer.
    for _ in range(100):
        if subprocess.run(["umount", str(path)], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.05)
    _run(["umount", str(path)])


def _run(words: list[str]) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
