"""What this machine has, and what a process of ours takes of it: cores, memory, open files."""

import os
import sys
from contextlib import suppress

if sys.platform != "win32":
    import resource


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resident_bytes(pid: int | None = None) -> int | None:
    """Return how much memory a process (this one unless told) has, or None where nobody can tell."""
    if sys.platform == "win32":
        return None
    try:
        with open(f"/proc/{pid or 'self'}/statm", "rb") as file:  # noqa: PTH123  # called often
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):  # Not Linux: the most that it ever had, in bytes on macOS.
        return None if pid else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def machine_bytes() -> int | None:
    """Return how much memory this machine has, or None where nobody can tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def boot_id() -> str:
    """Return what tells this start of the machine from every other; "" where that is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # noqa: PTH123  # as above
            return file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return ""


def allow_open_files(wanted: int) -> int:
    """Let this process, and those that it starts, have so many files open; return how many they may have."""
    if sys.platform == "win32":
        return sys.maxsize
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # macOS may allow fewer than it says.
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
